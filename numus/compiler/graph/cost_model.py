"""How much arithmetic values take, and which operations take long."""

from __future__ import annotations

from collections.abc import Container, Iterable

from numus.compiler.graph.value import ATTENTION, Value, walk
from numus.shapes import size_of

# Functions of many instructions.
HEAVY = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv ndtr lgamma digamma trigamma sigmoid pow atan2 hypot cbrt mod "
    "floor_divide threefry normal".split()
)

# Of these, the ones that a device of many threads computes again sooner than it stores and loads
# them.
MADE_AGAIN = frozenset("exp exp2 expm1 log log2 log1p tanh sigmoid erf".split())

SLOW = frozenset("div sqrt rsqrt".split())  # that are more than one instruction of a thread


def inside(members: Iterable[Value], in_memory: Container[Value]) -> list[Value]:
    """These values and those that are computed on the way to them, in order: all that is not read
    from memory.
    """
    own = set(members)
    found = walk(own, lambda v: v in own or v not in in_memory)
    return sorted((v for v in found if v in own or v not in in_memory), key=lambda v: v.id)


def flops(values: Iterable[Value]) -> int:
    """Arithmetic operations of a kernel, each elementwise function counted as one."""
    values = list(values)
    return sum(map(_flops, values)) + _of_scores([v for v in values if v.kind in ATTENTION])


def _of_scores(values: list[Value]) -> int:
    """What the parts of attention take of a kernel: they share the scores of queries and keys, and
    the cotangents of these.
    """
    if not values:
        return 0
    given = {n: x for v in values for n, x in zip(v.params.names, v.inputs, strict=True)}
    (stack, queries, size), keys = given["q"].shape, given["k"].shape[1]
    wide = given["v"].shape[2] if "v" in given else 0
    pairs = queries * keys
    if values[0].params.causal:  # query i looks at keys 0 … i
        whole = min(queries, keys)
        pairs = whole * (whole + 1) // 2 + (queries - whole) * keys
    each = 2 * size
    if any(v.params.which in ("q", "k") for v in values):
        each += 2 * wide
    for v in values:
        if v.op == "attention_lse":
            each += 4  # scaled, compared, exponentiated, added up
        else:
            each += 2 * (size if v.params.which in ("q", "k") else wide)
    return stack * pairs * each


def _flops(v: Value) -> int:
    if v.kind == "elementwise" and v.op not in ("cast", "bitcast"):
        return v.size
    if v.kind == "reduce":
        return v.inputs[0].size
    if v.kind == "contract":
        return 2 * v.size * v.inputs[0].shape[2]
    if v.kind == "convolve":
        gaps = size_of(tuple(window.gap for window in v.params[1]))  # of zeros, passed over
        return 2 * v.size * size_of(v.inputs[1].shape[1:]) // gaps
    return 0
