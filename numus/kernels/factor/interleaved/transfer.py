"""Matrices of separate memory to and from vectors with an element of each: transposes in registers
where rows are whole vectors, one element after the other where not (gathers are slower)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from numus import ir
from numus.ir import Expr, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import ZERO, Matrix, Number, Read


class OfLanes(Protocol):
    """Elements of the matrix of one lane."""

    def of_lane(self, i: Expr, j: Expr, lane: Expr) -> Number: ...


def in_vectors(p: LaneProgram, columns: int) -> bool:
    """Whether rows are whole vectors."""
    plain = p.components == 1 and p.unroll == 1 and p.width & (p.width - 1) == 0
    return plain and columns % p.width == 0


def gathered(
    p: LaneProgram,
    sources: Sequence[Read],
    to: LaneMatrix,
    extents: tuple[Expr, Expr],
    left: Expr,
    by_vectors: bool,
) -> None:
    """Rows and columns of a matrix of each lane, into columns from `left` on."""
    rows, columns = extents
    if by_vectors:
        with p.loop(ZERO, rows) as i, p.loop(ZERO, ir.idiv(columns, const(p.width))) as part:
            start = p.let(ir.mul(part, const(p.width)))
            with p.vector() as v:
                read = [p.let(source(i, ir.add(start, v))[0]) for source in sources]
                lets, read = transpose_registers(read, v, p.real)
                p.do(*lets)
                for r, value in enumerate(read):
                    j = ir.add(ir.add(start, left), const(r))
                    p.do(ir.Store(to.buffer, to.places(i, j, v)[0], value))
        return
    with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
        for lane, source in enumerate(sources):
            places = to.places(i, ir.add(j, left), const(lane))
            pairs = zip(places, source(i, j), strict=True)
            p.do(*(ir.Store(to.buffer, k, part) for k, part in pairs))


def scattered(
    p: LaneProgram,
    source: OfLanes,
    outs: Sequence[Matrix],
    extents: tuple[Expr, Expr],
    top: Expr,
    left: Expr,
    by_vectors: bool,
) -> None:
    """Rows and columns from `left` on to a matrix of each lane, from row `top` on."""
    rows, columns = extents
    if by_vectors:
        with p.loop(ZERO, rows) as i, p.loop(ZERO, ir.idiv(columns, const(p.width))) as part:
            start = p.let(ir.mul(part, const(p.width)))
            row = p.let(ir.add(i, top))
            with p.vector() as v:
                read = [
                    p.let(source.of_lane(i, ir.add(ir.add(start, left), const(r)), v)[0])
                    for r in range(p.width)
                ]
                lets, read = transpose_registers(read, v, p.real)
                p.do(*lets)
                for out, value in zip(outs, read, strict=True):
                    out[row, ir.add(start, v)] = (value,)
        return
    with p.loop(ZERO, rows) as i, p.loop(ZERO, columns) as j:
        for lane, out in enumerate(outs):
            out[ir.add(i, top), j] = source.of_lane(i, ir.add(j, left), const(lane))
