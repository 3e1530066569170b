"""Approximate math (LLVM's afn): hardware exp2, log2 and reciprocals where 16-bit floats round the
result anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.kernels.math import approximate
from numus.target import Target

APPROX = "approx"  # the parameters of a function that may be approximated

_HALF_DTYPES = (dt.bfloat16, dt.float16)
_SCALING = frozenset("mul div neg where reduce_sum reshape permute broadcast".split())
_ARITHMETIC = _SCALING | {"add", "sub"}
_BOUNDED = ("sigmoid", "ndtr")  # in sums, their errors stay small next to the terms


def approximated(
    values: Sequence[Value], roots: Collection[Value], target: Target
) -> dict[Value, Value]:
    """Copies of the values whose functions may be approximated, and of those that use them.

    These are functions of 16-bit floats, and functions of float32 that reach nothing but casts to
    16 bits, through arithmetic that keeps relative errors small. In a softmax of 16-bit scores the
    largest exponential is exactly 1, so the logarithm of their sum (the loss) may be float32.
    """
    if not target.approx_math or not any(v.op in approximate.FUNCTIONS for v in values):
        return {}
    marked = _marked(values, set(roots))
    copies: dict[Value, Value] = {}
    for v in values if marked else ():
        inputs = tuple(copies.get(x, x) for x in v.inputs)
        if v in marked or inputs != v.inputs:
            copies[v] = v.replace(inputs, APPROX if v in marked else v.params)
    return copies


def _marked(values: Sequence[Value], roots: set[Value]) -> set[Value]:
    users: dict[Value, list[Value]] = {}
    for v in values:
        for x in v.inputs:
            users.setdefault(x, []).append(v)
    # all uses of a value are rounded: through scaling, through arithmetic, or through that and
    # logarithms of sums
    rounded: dict[Value, tuple[bool, bool, bool]] = {}
    found: set[Value] = set()
    for v in reversed(values):
        rounded[v] = _uses_rounded(v, users, rounded, roots)
        if v.op not in approximate.FUNCTIONS or v.params is not None:
            continue
        anywhere = v.op in approximate.ANY_ARGUMENT
        at_once = v.dtype is dt.bfloat16 or (v.dtype is dt.float16 and anywhere)
        later = v.dtype is dt.float32 and anywhere and rounded[v][v.op in _BOUNDED]
        if at_once or later or (v.op == "exp" and rounded[v][2] and _is_minus_max(v.inputs[0])):
            found.add(v)
    return found


def _uses_rounded(
    v: Value,
    users: dict[Value, list[Value]],
    rounded: dict[Value, tuple[bool, bool, bool]],
    roots: set[Value],
) -> tuple[bool, bool, bool]:
    def through(operations: frozenset[str], which: int, logs: bool = False) -> bool:
        return v not in roots and all(
            (u.op == "cast" and u.dtype in _HALF_DTYPES)
            or (u.op in operations and rounded[u][which])
            or (u.op == "log" and logs)
            for u in users.get(v, ())
        )

    is_sum = _viewed(v).op == "reduce_sum"
    return through(_SCALING, 0), through(_ARITHMETIC, 1), through(_ARITHMETIC, 2, is_sum)


def _is_minus_max(v: Value) -> bool:
    """The value is x - max(x), of 16-bit floats."""
    if v.op != "sub":
        return False
    scores, largest = (_viewed(x) for x in v.inputs)
    halves = scores.op == "cast" and scores.inputs[0].dtype in _HALF_DTYPES
    return halves and largest.op == "reduce_max" and _viewed(largest.inputs[0]) is scores


def _viewed(v: Value) -> Value:
    while v.kind == "view":
        v = v.inputs[0]
    return v
