"""Right-looking blocked LU factorisation with partial pivoting of interleaved matrices, and what
comes of it: solutions, inverses, determinants.

Each lane has pivots of its own: rows are swapped by gathers. Where L is not wanted, only what is
right of a panel is swapped, and right-hand sides are eliminated along as more columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.interleaved.tiles import subtract_product
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Number,
    chosen,
    divided,
    inverse,
    least_normal,
    magnitude,
    minus_product,
    product,
    real,
    scaled,
)


@dataclass(frozen=True)
class Blocking:
    """`block` columns at a time update the rest by tiles of `tile` rows and columns (`right` of
    right-hand sides)."""

    block: int
    tile: int
    right: int = 1


class Outcome:
    """Of all lanes: whether there was a pivot of zero, and the product of all pivots."""

    def __init__(self, p: LaneProgram) -> None:
        self.singular = p.register(INT)
        self.product = [p.register() for _ in range(p.components)]
        p.do(ir.Set(self.singular, const(0, INT)))
        p.do(*ir.sets(self.product, real(p, p.constant(1.0))))

    def multiply(self, p: LaneProgram, pivot: Number, moved: Expr) -> None:
        one = p.constant(1.0)
        signed = scaled(pivot, select(moved, -one, one))
        total = p.number(product(tuple(ir.reads(self.product)), signed))
        p.do(*ir.sets(self.product, total))


def eliminate(
    p: LaneProgram, x: LaneMatrix, n: Expr, total: Expr, how: Blocking, order: LaneMatrix | None
) -> Outcome:
    """L and U in place of the first n columns of `total`, L⁻¹ P B in place of the others.

    With `order`, whose row 0 has the numbers of the rows then, L is whole; else its panels are not
    swapped by later pivots.
    """
    outcome = Outcome(p)
    with p.loop(ZERO, ir.idiv(n, const(how.block))) as number:
        first = p.let(ir.mul(number, const(how.block)))
        last = p.let(ir.add(first, const(how.block)))
        with p.loop(first, last) as k:
            start = first if order is None else ZERO
            row = _swap(p, x, k, (start, total), n)
            if order is not None:
                upper, lower = p.number(order[ZERO, k]), p.number(order[ZERO, row])
                order[ZERO, k] = lower
                order[ZERO, row] = upper
            pivot = p.number(x[k, k])
            outcome.multiply(p, pivot, row.ne(k))
            _eliminate_column(p, x, k, (last, n), pivot, outcome)
        with p.loop(last, total) as j:
            _substitute(p, x, first, how.block, j)
        reads = (lambda i, k: x[i, k], lambda k, j: x[k, j])
        subtract_product(
            p, x, reads, ((last, n), (last, n)), (first, how.block), (how.tile, how.tile)
        )
        subtract_product(
            p, x, reads, ((last, n), (n, total)), (first, how.block), (how.tile, how.right)
        )
    return outcome


def _swap(p: LaneProgram, x: LaneMatrix, k: Expr, columns: tuple[Expr, Expr], n: Expr) -> Expr:
    """Row k and that of the first largest element of column k, whose number in each lane it is."""
    best, at = p.register(), p.register(INT)
    p.do(ir.Set(best, magnitude(x[k, k])), ir.Set(at, k.cast(INT)))
    with p.loop(ir.add(k, ONE), n) as i:
        size = p.let(magnitude(x[i, k]))
        larger = p.let(size > ir.read(best))
        p.do(ir.Set(best, select(larger, size, ir.read(best))))
        p.do(ir.Set(at, select(larger, i.cast(INT), ir.read(at))))
    row = p.let(ir.read(at).cast(ir.INDEX))
    with p.loop(*columns) as j:
        upper, lower = p.number(x[k, j]), p.number(x[row, j])
        x[k, j] = lower
        x[row, j] = upper
    return row


def _eliminate_column(
    p: LaneProgram, x: LaneMatrix, k: Expr, span: tuple[Expr, Expr], pivot: Number, outcome: Outcome
) -> None:
    """The multipliers of column k, and the columns after it in the panel."""
    last, n = span
    one = p.constant(1.0)
    # a power of two that keeps reciprocals of subnormal pivots finite; multipliers are <= 1
    tiny = least_normal(p)
    raised = magnitude(pivot) < p.constant(tiny)
    raise_by = p.let(select(raised, p.constant(2.0 ** (p.real.mantissa + 5)), one))
    none = p.let(magnitude(pivot).eq(0.0))
    was = ir.read(outcome.singular)
    p.do(ir.Set(outcome.singular, select(none, const(1, INT), was)))
    safe = p.number(chosen(none, real(p, one), scaled(pivot, raise_by)))
    by = inverse(p, safe)
    after = p.let(ir.add(k, ONE))
    with p.loop(after, n) as i:
        factor = p.number(product(scaled(x[i, k], raise_by), by))
        x[i, k] = factor
        with p.loop(after, last) as j:
            x[i, j] = minus_product(x[i, j], factor, x[k, j])


def _substitute(p: LaneProgram, x: LaneMatrix, first: Expr, block: int, j: Expr) -> None:
    """Rows of a panel in column j, by the unit lower triangle of the panel."""
    rows = [ir.add(first, const(r)) for r in range(block)]
    column = [p.number(x[rows[0], j])]
    for r in range(1, block):
        value = x[rows[r], j]
        for s in range(r):
            value = p.number(minus_product(value, x[rows[r], rows[s]], column[s]))
        column.append(value)
        x[rows[r], j] = value


def substitute_back(
    p: LaneProgram, x: LaneMatrix, n: Expr, columns: tuple[Expr, Expr], how: Blocking
) -> None:
    """U⁻¹ of a range of columns, in place."""
    blocks = p.let(ir.idiv(n, const(how.block)))
    with p.loop(ZERO, blocks) as number:
        first = p.let(ir.mul(ir.sub(ir.sub(blocks, ONE), number), const(how.block)))
        rows = [p.let(ir.add(first, const(r))) for r in range(how.block)]
        with p.loop(*columns) as j:
            found: dict[int, Number] = {}
            for r in reversed(range(how.block)):
                value = x[rows[r], j]
                for s in reversed(range(r + 1, how.block)):
                    value = p.number(minus_product(value, x[rows[r], rows[s]], found[s]))
                pivot = p.number(x[rows[r], rows[r]])
                by = pivot if p.components == 1 else inverse(p, pivot)
                found[r] = p.number(divided(value, pivot, by))
                x[rows[r], j] = found[r]
        reads = (lambda i, k: x[i, k], lambda k, j: x[k, j])
        ranges = ((ZERO, first), columns)
        subtract_product(p, x, reads, ranges, (first, how.block), (how.tile, how.right))


def spoil(
    p: LaneProgram, outcome: Outcome, x: LaneMatrix, rows: Expr, columns: tuple[Expr, Expr]
) -> None:
    """NaN in the lanes of singular matrices."""
    singular = p.let(ir.read(outcome.singular).ne(0))
    nan = p.constant(float("nan"))
    with p.loop(ZERO, rows) as i, p.loop(*columns) as j:
        x[i, j] = chosen(singular, tuple(nan for _ in range(p.components)), x[i, j])


def invert_lower(p: LaneProgram, x: LaneMatrix, to: Expr, n: Expr, how: Blocking) -> None:
    """L⁻¹ of the unit lower triangle, as a whole matrix in the columns from `to` on."""
    with p.loop(ZERO, n) as i, p.loop(ZERO, n) as j:
        one = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
        x[i, ir.add(to, j)] = one
    with p.loop(ZERO, ir.idiv(n, const(how.block))) as number:
        first = p.let(ir.mul(number, const(how.block)))
        last = p.let(ir.add(first, const(how.block)))
        end = p.let(ir.add(to, last))
        with p.loop(to, end) as j:
            _substitute(p, x, first, how.block, j)
        reads = (lambda i, k: x[i, k], lambda k, j: x[k, j])
        subtract_product(
            p, x, reads, ((last, n), (to, end)), (first, how.block), (how.tile, how.tile)
        )
