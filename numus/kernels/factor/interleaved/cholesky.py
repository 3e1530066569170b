"""Right-looking blocked Cholesky factorisation A = L Lᴴ of interleaved matrices."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.interleaved.tiles import subtract_product
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import ZERO, Number, conjugate, minus_product, real, scaled


def cholesky(p: LaneProgram, x: LaneMatrix, n: Expr, block: int, tile: int) -> None:
    """L in place of the lower triangle of A, whose order is a multiple of the block; NaN from a
    pivot on that is not positive."""
    with p.loop(ZERO, ir.idiv(n, const(block))) as number:
        first = p.let(ir.mul(number, const(block)))
        last = p.let(ir.add(first, const(block)))
        inverses = _factorise(p, x, [ir.add(first, const(r)) for r in range(block)])
        with p.loop(last, n) as i:
            _substitute(p, x, i, first, inverses)
        subtract_product(
            *(p, x, (lambda i, k: x[i, k], lambda k, j: conjugate(x[j, k]))),
            *(((last, n), (last, n)), (first, block), (tile, tile)),
            lower=True,
        )


def _factorise(p: LaneProgram, x: LaneMatrix, at: list[Expr]) -> list[Expr]:
    """A diagonal block, in registers; the reciprocals of its pivots."""
    inverses: list[Expr] = []
    found: list[list[Number]] = []
    for r, i in enumerate(at):
        row: list[Number] = []
        for s in range(r + 1):
            value = x[i, at[s]]
            for t in range(s):
                other = found[s][t] if s < r else row[t]
                value = p.number(minus_product(value, row[t], conjugate(other)))
            if s < r:
                row.append(p.number(scaled(value, inverses[s])))
                x[i, at[s]] = row[s]
        pivot = p.let(value[0])
        positive = pivot > p.constant(0.0)
        root = p.let(select(positive, ir.sqrt(pivot), p.constant(float("nan"))))
        inverses.append(p.let(p.constant(1.0) / root))
        x[i, i] = real(p, root)
        found.append(row)
    return inverses


def _substitute(p: LaneProgram, x: LaneMatrix, i: Expr, first: Expr, inverses: list[Expr]) -> None:
    """Row i of the panel below a diagonal block."""
    at = [ir.add(first, const(r)) for r in range(len(inverses))]
    row: list[Number] = []
    for s, inverse in enumerate(inverses):
        value = x[i, at[s]]
        for t in range(s):
            value = p.number(minus_product(value, row[t], conjugate(x[at[s], at[t]])))
        row.append(p.number(scaled(value, inverse)))
        x[i, at[s]] = row[s]
