"""Substitution with triangular matrices on a CPU: of blocks of right-hand sides, and of vectors."""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, less_product, update_tiles
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Read,
    Span,
    division,
    magnitude,
    minus_product,
    plus_product,
    zero,
)

Row = tuple[Matrix, Expr]  # a vector: a row of a matrix


class Triangle(NamedTuple):
    """Which triangle of a matrix is read, and whether its diagonal is taken as ones."""

    lower: bool
    unit: bool


# -- blocks of columns ----------------------------------------------------------------------------


def substitute(
    p: TileProgram,
    work: Planes,
    near: Planes,
    n: Expr,
    sides: tuple[Planes, Expr],
    triangle: Triangle,
    spoiled: Expr | None = None,
) -> None:
    """The x of T x = b in place of b, of right-hand sides and their number, block by block, and
    `spoiled` added to each element. `near` has memory for the x of a block."""
    size, (right, width) = const(near.rows), sides
    blocks = p.let(ir.idiv(ir.add(n, const(near.rows - 1)), size))
    with p.loop(ZERO, blocks) as done:
        number = done if triangle.lower else ir.sub(ir.sub(blocks, ONE), done)
        first = p.let(ir.mul(number, size))
        count = p.let(ir.minimum(size, ir.sub(n, first)))
        after = p.let(ir.add(first, count))
        own, here = work.moved(first, first), right.moved(first, ZERO)
        with (
            p.lanes(ZERO, width, unroll=p.vectors) as j,
            p.loop(ZERO, ir.idiv(count, const(p.rows))) as tile,
        ):
            top = ir.mul(tile, const(p.rows))
            if not triangle.lower:
                top = ir.sub(count, ir.add(top, const(p.rows)))
            _solve_tile(p, (own, here, near), (p.let(top), count), j, triangle, spoiled)
        start, end = (after, n) if triangle.lower else (ZERO, first)
        with p.loop(ZERO, _quotient_up(p, ir.sub(end, start), near.rows)) as block:
            top = p.let(ir.add(start, ir.mul(block, size)))
            height = p.let(ir.minimum(size, ir.sub(end, top)))
            source = work.moved(top, first)
            factors = (lambda i, k, x=source: x[i, k], lambda k, j: near[k, j])
            update_tiles(p, right.moved(top, ZERO), factors, (height, width, count))


def _quotient_up(p: TileProgram, n: Expr, size: int) -> Expr:
    return p.let(ir.idiv(ir.add(n, const(size - 1)), const(size)))


def _solve_tile(
    p: TileProgram,
    matrices: tuple[Planes, Planes, Planes],
    rows: Span,
    j: Expr,
    triangle: Triangle,
    spoiled: Expr | None,
) -> None:
    """Rows of x in a block of the diagonal, from those that are known."""
    own, right, near = matrices
    top, count = rows
    start = ZERO if triangle.lower else p.let(ir.add(top, const(p.rows)))
    depth = top if triangle.lower else p.let(ir.sub(count, start))
    factors = (
        lambda i, k: own[i, ir.add(start, k)],
        lambda k, j: near[ir.add(start, k), j],
    )
    found = less_product(p, right, top, j, factors, depth)
    for r, x in _in_order(p, lambda i, k: own[i, k], top, found, triangle):
        value = x if spoiled is None else p.number([part + spoiled for part in x])
        row = ir.add(top, const(r))
        right[row, j] = value
        near[row, j] = value


def _in_order(
    p: TileProgram, a: Read, top: Expr, values: list[Number], triangle: Triangle
) -> list[tuple[int, Number]]:
    """The x of a tile of the diagonal, of what is left of its right-hand sides."""
    done: list[tuple[int, Number]] = []
    numbers = range(len(values))
    for r in numbers if triangle.lower else reversed(numbers):
        row, value = ir.add(top, const(r)), values[r]
        for s, other in done:
            value = p.number(minus_product(value, a(row, ir.add(top, const(s))), other))
        if not triangle.unit:
            value = p.number(division(p, p.number(a(row, row)))(value))
        done.append((r, value))
    return done


def spoil_of_singular(p: TileProgram, work: Planes, n: Expr) -> Expr:
    """NaN where an element of the diagonal is zero, else 0."""
    singular = p.register(INT)
    p.do(ir.Set(singular, const(0, INT)))
    with p.loop(ZERO, n) as i:
        none = magnitude(p.number(work[i, i])).eq(0.0)
        p.do(ir.Set(singular, select(none, const(1, INT), ir.read(singular))))
    return p.let(select(ir.read(singular).ne(0), p.constant(float("nan")), p.constant(0.0)))


# -- a vector -------------------------------------------------------------------------------------


def substitute_vector(
    p: TileProgram, a: Read, x: Row, n: Expr, triangle: Triangle, by_columns: bool
) -> None:
    """The x of T x = b in place of b. Of a matrix whose rows are contiguous, rows are multiplied by
    what is known of x; of one whose columns are, columns are subtracted. Each element of the matrix
    is read once."""
    tile = _tile_of_columns if by_columns else _tile_of_rows
    rest = p.let(ir.irem(n, const(p.rows)))

    def start(done: Expr, size: int) -> Expr:
        """The first row of a tile that comes after `done` rows."""
        return p.let(done if triangle.lower else ir.sub(n, ir.add(done, const(size))))

    with p.loop(ZERO, rest) as done:
        tile(p, a, x, (start(done, 1), 1), n, triangle)
    with p.loop(ZERO, ir.idiv(n, const(p.rows))) as number:
        done = ir.add(rest, ir.mul(number, const(p.rows)))
        tile(p, a, x, (start(done, p.rows), p.rows), n, triangle)


def _tile_of_rows(
    p: TileProgram, a: Read, x: Row, at: tuple[Expr, int], n: Expr, triangle: Triangle
) -> None:
    (vectors, v), (top, size) = x, at
    rows = [p.let(ir.add(top, const(r))) for r in range(size)]
    known = (ZERO, top) if triangle.lower else (p.let(ir.add(top, const(size))), n)
    sums = [[p.register(lanes=True) for _ in range(p.components)] for _ in rows]
    for registers in sums:
        p.do(*ir.sets(registers, zero(p)))
    with p.lanes(*known) as k:
        value = p.number(vectors[v, k])
        for row, registers in zip(rows, sums, strict=True):
            new = plus_product(tuple(ir.reads(registers)), p.number(a(row, k)), value)
            p.do(*ir.sets(registers, p.number(new)))
    left: list[Number] = []
    for row, registers in zip(rows, sums, strict=True):
        found = [p.let(ir.lanes_reduce("add", register)) for register in registers]
        left.append(p.number([b - s for b, s in zip(vectors[v, row], found, strict=True)]))
    for r, value in _in_order(p, a, top, left, triangle):
        vectors[v, rows[r]] = value


def _tile_of_columns(
    p: TileProgram, a: Read, x: Row, at: tuple[Expr, int], n: Expr, triangle: Triangle
) -> None:
    (vectors, v), (top, size) = x, at
    columns = [p.let(ir.add(top, const(r))) for r in range(size)]
    left = [p.number(vectors[v, k]) for k in columns]
    found = _in_order(p, a, top, left, triangle)
    for r, value in found:
        vectors[v, columns[r]] = value
    rest = (p.let(ir.add(top, const(size))), n) if triangle.lower else (ZERO, top)
    with p.lanes(*rest) as i:
        total = p.number(vectors[v, i])
        for r, value in found:
            total = p.number(minus_product(total, a(i, columns[r]), value))
        vectors[v, i] = total
