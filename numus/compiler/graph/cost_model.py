"""Cost model of the graph: expensive operations, and the arithmetic of a kernel."""

from __future__ import annotations

from collections.abc import Container, Iterable

from numus.compiler.graph.value import ATTENTION, Value, walk
from numus.shapes import size_of

# Functions of many instructions.
EXPENSIVE_OPS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh "
    "atanh erf erfc erfinv ndtr lgamma digamma trigamma sigmoid pow atan2 hypot cbrt mod "
    "floor_divide threefry normal".split()
)

# Of these, the ones that a GPU recomputes faster than it stores and loads them.
GPU_RECOMPUTED_OPS = frozenset("exp exp2 expm1 log log2 log1p tanh sigmoid erf ndtr".split())
# And a CPU, where they are larger than caches.
CPU_RECOMPUTED_OPS = frozenset("exp exp2".split())

# More than one instruction of a GPU thread.
MULTI_INSTRUCTION_OPS = frozenset("div sqrt rsqrt".split())


def nbytes(v: Value) -> int:
    return v.size * v.dtype.itemsize


def computed_values(members: Iterable[Value], in_memory: Container[Value]) -> list[Value]:
    """Members and the values inlined into them, in order: all that is not read from memory."""
    own = set(members)
    found = walk(own, lambda v: v in own or v not in in_memory)
    return sorted((v for v in found if v in own or v not in in_memory), key=lambda v: v.id)


def flops(values: Iterable[Value]) -> int:
    """Arithmetic operations of a kernel, each elementwise function counted as one."""
    values = list(values)
    return sum(map(_flops, values)) + _attention_flops([v for v in values if v.kind in ATTENTION])


def _attention_flops(values: list[Value]) -> int:
    """Outputs of one attention kernel share the scores and their cotangents."""
    if not values:
        return 0
    operands = {n: x for v in values for n, x in zip(v.params.names, v.inputs, strict=True)}
    (batch, queries, head_dim), keys = operands["q"].shape, operands["k"].shape[1]
    value_dim = operands["v"].shape[2] if "v" in operands else 0
    pairs = queries * keys
    if values[0].params.causal:  # query i attends to keys 0 ... i
        square = min(queries, keys)
        pairs = square * (square + 1) // 2 + (queries - square) * keys
    per_pair = 2 * head_dim
    if any(v.params.which in ("q", "k") for v in values):
        per_pair += 2 * value_dim
    for v in values:
        if v.op == "attention_lse":
            per_pair += 4  # scale, compare, exponentiate, add
        else:
            per_pair += 2 * (head_dim if v.params.which in ("q", "k") else value_dim)
    return batch * pairs * per_pair


def _flops(v: Value) -> int:
    if v.kind == "elementwise" and v.op not in ("cast", "bitcast"):
        return v.size
    if v.kind == "reduce":
        return v.inputs[0].size
    if v.kind == "contract":
        return 2 * v.size * v.inputs[0].shape[2]
    if v.kind == "convolve":
        dilation = size_of(tuple(w.lhs_dilation for w in v.params[1]))  # zeros are skipped
        return 2 * v.size * size_of(v.inputs[1].shape[1:]) // dilation
    return 0
