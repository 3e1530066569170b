"""Epilogues of contiguous elements of C: their operands are loaded as vectors.

What the epilogue computes of the first two elements tells whether the others differ from them in
the element of each operand alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from numus import ir
from numus.ir import Expr, Stmt
from numus.ir.substitution import substitute
from numus.kernels.matmul.gpu.problem import Coordinate

STORE_VECTOR = 8  # contiguous elements of C that a thread stores
_ACCESS_BYTES = 16

Element = Callable[[Coordinate, Expr], ir.Store]  # of C, from its accumulator


@dataclass(slots=True)
class VectorValues:
    """Contiguous elements of C from their accumulators."""

    loads: list[Stmt]
    stores: list[Stmt]
    operands: list[ir.Buffer]  # that are read as vectors,
    indices: list[Expr]  # from here on


def vector_values(
    element: Element,
    at: Coordinate,
    accumulators: Sequence[Expr],
    is_aligned: Callable[[Expr], bool],
    tag: str,
) -> VectorValues | None:
    """Elements from here on along n; None where operands are no vectors. `is_aligned`: whether an
    expression is a multiple of STORE_VECTOR."""
    which, m, n = at
    one, two = (element((which, m, n + u), accumulators[u]) for u in (0, 1))
    loads = list(zip(*(_loads(s.value) for s in (one, two)), strict=False))
    vectors = [(a, b) for a, b in loads if a is not b]
    follow = [(one.index, two.index), *((a.args[0], b.args[0]) for a, b in vectors)]
    if not all(_follows(x, y) and _is_multiple(x, is_aligned) for x, y in follow):
        return None
    if any(a.attr is not b.attr or len(a.args) + len(b.args) > 2 for a, b in vectors):
        return None
    if any(_loads(a.args[0]) for a, _ in vectors) or len(_loads(one.value)) != len(loads):
        return None
    found: list[Stmt] = []
    names: list[list[Expr]] = []
    for k, (a, _) in enumerate(vectors):
        width = min(STORE_VECTOR, _ACCESS_BYTES // a.attr.dtype.itemsize)
        names.append([ir.var(f"e{tag}_{k}_{u}", a.attr.dtype) for u in range(STORE_VECTOR)])
        for u, name in enumerate(names[-1]):
            load = ir.load(a.attr, a.args[0] + u)
            found.append(ir.Let(name, load, vector=0 if u % width else width))

    def value(u: int, s: ir.Store, which: int) -> Expr:
        new = {pair[which]: names[k][u] for k, pair in enumerate(vectors)}
        return substitute(s.value, {**new, accumulators[which]: accumulators[u]})

    if value(1, one, 0) is not value(1, two, 1):
        return None
    width = min(STORE_VECTOR, _ACCESS_BYTES // one.buffer.dtype.itemsize)
    stores: list[Stmt] = [
        replace(one, index=one.index + u, value=value(u, one, 0), vector=0 if u % width else width)
        for u in range(STORE_VECTOR)
    ]
    firsts = [a for a, _ in vectors]
    return VectorValues(found, stores, [a.attr for a in firsts], [a.args[0] for a in firsts])


def _loads(e: Expr) -> list[Expr]:
    return [x for x in ir.walk(e, lambda x: x.op != "load") if x.op == "load"]


def _follows(first: Expr, second: Expr) -> bool:
    base, offset = ir.split_constant(first)
    return ir.split_constant(second) == (base, offset + 1)


def _is_multiple(e: Expr, is_aligned: Callable[[Expr], bool]) -> bool:
    """Whether an index is provably a multiple of STORE_VECTOR."""
    if e.op == "const":
        return int(e.attr) % STORE_VECTOR == 0
    if is_aligned(e):
        return True
    if e.op == "mul":
        return any(_is_multiple(a, is_aligned) for a in e.args)
    whole = e.op in ("add", "sub", "irem", "cast")
    return whole and all(_is_multiple(a, is_aligned) for a in e.args)
