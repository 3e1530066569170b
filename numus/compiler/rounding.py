"""Which costly functions need no more digits than 16-bit floats keep of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numus import dtypes as dt
from numus.compiler.local import Val
from numus.runtime.contract import Facts

ROUGH = "rough"  # what such a function has for parameters

_HALVES = (dt.bfloat16, dt.float16)
_FUNCTIONS = ("sigmoid",)  # of which there is a rough form: `scalar_ops.ROUGH_FORMS`
_ARITHMETIC = frozenset("add sub mul neg where reshape permute broadcast".split())


def mark(values: Sequence[Val], roots: Collection[Val], facts: Facts) -> None:
    """Mark functions of float32 whose results reach nothing but casts to 16-bit floats, through
    arithmetic alone, on targets that have units for the rough forms."""
    if "tiles" not in facts.features or not any(v.op in _FUNCTIONS for v in values):
        return
    ends = set(roots)
    users: dict[Val, list[Val]] = {}
    for v in values:
        for x in v.inputs:
            users.setdefault(x, []).append(v)
    rounded: dict[Val, bool] = {}  # whether all that is made of a value is
    for v in reversed(values):
        rounded[v] = v not in ends and all(
            (u.op == "cast" and u.dtype in _HALVES) or (u.op in _ARITHMETIC and rounded[u])
            for u in users.get(v, ())
        )
        if v.op in _FUNCTIONS and v.dtype is dt.float32 and rounded[v]:
            v.params = ROUGH
