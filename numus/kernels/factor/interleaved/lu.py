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
    right-hand sides); of `few_rows`, those that are exchanged are selected, not gathered."""

    block: int
    tile: int
    right: int = 1
    few_rows: bool = False


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
            row = _swap(p, x, k, (start, total), n, how.few_rows)
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


def _swap(
    p: LaneProgram, x: LaneMatrix, k: Expr, columns: tuple[Expr, Expr], n: Expr, selected: bool
) -> Expr:
    """Row k and that of the first largest element of column k, whose number in each lane it is."""
    best, at = p.register(), p.register(INT)
    p.do(ir.Set(best, magnitude(x[k, k])), ir.Set(at, k.cast(INT)))
    two = const(2)
    with p.loop(ir.idiv(ir.add(k, ONE), two), ir.idiv(n, two)) as pair:  # half the latency
        i = p.let(ir.mul(pair, two))
        j = p.let(ir.add(i, ONE))
        upper, lower = p.let(magnitude(x[i, k])), p.let(magnitude(x[j, k]))
        is_lower = p.let((lower > upper) | ir.isnan(upper))
        size = p.let(select(is_lower, lower, upper))
        larger = p.let(size > ir.read(best))
        row = select(is_lower, j.cast(INT), i.cast(INT))
        p.do(ir.Set(best, select(larger, size, ir.read(best))))
        p.do(ir.Set(at, select(larger, row, ir.read(at))))
    row = p.let(ir.read(at).cast(ir.INDEX))
    exchange = _exchange_by_selection if selected else _exchange
    exchange(p, x, (k, row), columns, n)
    return row


def _exchange(
    p: LaneProgram, x: LaneMatrix, rows: tuple[Expr, Expr], columns: tuple[Expr, Expr], _: Expr
) -> None:
    """A row of all lanes, and one of each lane, which is gathered."""
    k, row = rows
    with p.loop(*columns) as j:
        upper, lower = p.number(x[k, j]), p.number(x[row, j])
        x[k, j] = lower
        x[row, j] = upper


def _exchange_by_selection(
    p: LaneProgram, x: LaneMatrix, rows: tuple[Expr, Expr], columns: tuple[Expr, Expr], n: Expr
) -> None:
    """The same of few rows, each of which is looked at."""
    k, row = rows
    found = [p.register() for _ in range(p.components)]
    with p.loop(*columns) as j:
        upper = p.number(x[k, j])
        p.do(*ir.sets(found, upper))
        with p.loop(ir.add(k, ONE), n) as i:
            here, lower = p.let(row.eq(i)), p.number(x[i, j])
            x[i, j] = chosen(here, upper, lower)
            p.do(*ir.sets(found, p.number(chosen(here, lower, tuple(ir.reads(found))))))
        x[k, j] = tuple(ir.reads(found))


def _eliminate_column(
    p: LaneProgram, x: LaneMatrix, k: Expr, span: tuple[Expr, Expr], pivot: Number, outcome: Outcome
) -> None:
    """The multipliers of column k, and the columns after it in the panel."""
    last, n = span
    none = p.let(magnitude(pivot).eq(0.0))
    was = ir.read(outcome.singular)
    p.do(ir.Set(outcome.singular, select(none, const(1, INT), was)))
    raise_by, by = _reciprocal(p, p.number(chosen(none, real(p, p.constant(1.0)), pivot)))
    after = p.let(ir.add(k, ONE))
    with p.loop(after, n) as i:
        factor = p.number(product(scaled(x[i, k], raise_by), by))
        x[i, k] = factor
        with p.loop(after, last) as j:
            x[i, j] = minus_product(x[i, j], factor, x[k, j])


def _reciprocal(p: LaneProgram, pivot: Number) -> tuple[Expr, Number]:
    """A power of two, and the reciprocal of the pivot times it, which is finite for subnormal
    pivots, too."""
    raised = magnitude(pivot) < p.constant(least_normal(p))
    one = p.constant(1.0)
    by = p.let(select(raised, p.constant(2.0 ** (p.real.mantissa + 5)), one))
    return by, inverse(p, p.number(scaled(pivot, by)))


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
        raises, inverses = zip(*(_reciprocal(p, p.number(x[k, k])) for k in rows), strict=True)
        with p.loop(*columns) as j:
            found: dict[int, Number] = {}
            for r in reversed(range(how.block)):
                value = x[rows[r], j]
                for s in reversed(range(r + 1, how.block)):
                    value = p.number(minus_product(value, x[rows[r], rows[s]], found[s]))
                found[r] = p.number(product(scaled(value, raises[r]), inverses[r]))
                x[rows[r], j] = found[r]
        reads = (lambda i, k: x[i, k], lambda k, j: x[k, j])
        ranges = ((ZERO, first), columns)
        subtract_product(p, x, reads, ranges, (first, how.block), (how.tile, how.right))


def spoil(
    p: LaneProgram, outcome: Outcome, x: LaneMatrix, rows: Expr, columns: tuple[Expr, Expr]
) -> None:
    """NaN in the lanes of singular matrices."""
    by = nan_where_singular(p, outcome)
    with p.loop(ZERO, rows) as i, p.loop(*columns) as j:
        x[i, j] = scaled(x[i, j], by)


def nan_where_singular(p: LaneProgram, outcome: Outcome) -> Expr:
    """A factor of each lane: NaN or 1."""
    singular = p.let(ir.read(outcome.singular).ne(0))
    return p.let(select(singular, p.constant(float("nan")), p.constant(1.0)))


def fill_identity(p: LaneProgram, x: LaneMatrix, to: Expr, n: Expr) -> None:
    """An identity in the columns from `to` on."""
    with p.loop(ZERO, n) as i, p.loop(ZERO, n) as j:
        x[i, ir.add(to, j)] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))


def invert_lower(p: LaneProgram, x: LaneMatrix, to: Expr, n: Expr, how: Blocking) -> None:
    """L⁻¹ of the unit lower triangle, as a whole matrix in the columns from `to` on."""
    fill_identity(p, x, to, n)
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
