"""Which costly functions need no more digits than 16-bit floats keep of them, or have to give."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.kernels.math import approximate
from numus.target import Target

ROUGH = "rough"  # what such a function has for parameters

_HALVES = (dt.bfloat16, dt.float16)
_SCALING = frozenset("mul div neg where reduce_sum reshape permute broadcast".split())
_ARITHMETIC = _SCALING | {"add", "sub"}
_BOUNDED = ("sigmoid", "ndtr")  # in sums, their errors stay small beside the terms


def mark(values: Sequence[Value], roots: Collection[Value], target: Target) -> None:
    """Mark functions whose results are rounded to 16-bit floats, on targets that have units for the
    rough forms: functions of such floats, and those of float32 whose results reach nothing but
    casts to them, through arithmetic alone that leaves relative errors as small as they are. Where
    powers are of differences from the largest of such floats (scores), that one is 1, and exact: no
    difference of theirs loses digits, and the logarithm of their sum (the loss) may be float32."""
    if not target.approx_math or not any(v.op in approximate.FORMS for v in values):
        return
    ends = set(roots)
    users: dict[Value, list[Value]] = {}
    for v in values:
        for x in v.inputs:
            users.setdefault(x, []).append(v)
    # whether all that is made of a value is rounded: by scaling, by any arithmetic, or by that but
    # for logarithms of sums
    rounded: dict[Value, tuple[bool, bool, bool]] = {}
    for v in reversed(values):
        rounded[v] = _all_rounded(v, users, rounded, ends)
        if v.op not in approximate.FORMS or v.params is not None:
            continue
        anywhere = v.op in approximate.ANYWHERE
        at_once = v.dtype is dt.bfloat16 or (v.dtype is dt.float16 and anywhere)
        later = v.dtype is dt.float32 and anywhere and rounded[v][v.op in _BOUNDED]
        later = later or (v.op == "exp" and rounded[v][2] and _is_below_largest(v.inputs[0]))
        if at_once or later:
            v.params = ROUGH


def _all_rounded(
    v: Value,
    users: dict[Value, list[Value]],
    rounded: dict[Value, tuple[bool, bool, bool]],
    ends: set[Value],
) -> tuple[bool, bool, bool]:
    def through(operations: frozenset[str], which: int, logs: bool = False) -> bool:
        return v not in ends and all(
            (u.op == "cast" and u.dtype in _HALVES)
            or (u.op in operations and rounded[u][which])
            or (u.op == "log" and logs)
            for u in users.get(v, ())
        )

    is_sum = _source(v).op == "reduce_sum"
    return through(_SCALING, 0), through(_ARITHMETIC, 1), through(_ARITHMETIC, 2, is_sum)


def _is_below_largest(v: Value) -> bool:
    """Whether a value is how far 16-bit floats are below the largest of them, in a row."""
    if v.op != "sub":
        return False
    scores, largest = (_source(x) for x in v.inputs)
    halves = scores.op == "cast" and scores.inputs[0].dtype in _HALVES
    return halves and largest.op == "reduce_max" and _source(largest.inputs[0]) is scores


def _source(v: Value) -> Value:
    """What a value is a view of."""
    while v.kind == "view":
        v = v.inputs[0]
    return v
