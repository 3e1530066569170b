"""Products of small orthogonal matrices with rows and columns of a large one, in place."""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.blocked.tiles import TileProgram
from numus.kernels.factor.program import ONE, ZERO, Matrix, Read, Span, plus_product


def times_rows(
    p: TileProgram, x: Matrix, q: Read, rows: tuple[Expr, Expr], columns: Span, near: Matrix
) -> None:
    """q x of `count` rows from `top` on, of which `near` has a copy meanwhile."""
    top, count = rows
    with p.loop(ZERO, count) as k, p.lanes(*columns) as j:
        near[k, j] = x[ir.add(top, k), j]
    with p.lanes(*columns, unroll=p.vectors) as j, p.loop(ZERO, _tiles(p, count)) as tile:
        own = _rows(p, tile, count)
        found = _sums(p, count, own, q, lambda k: near[k, j][0])
        for i, value in zip(own, found, strict=True):
            x[ir.add(top, i), j] = (value,)


def rows_times(
    p: TileProgram, x: Matrix, q: Matrix, rows: Expr, columns: tuple[Expr, Expr], near: Matrix
) -> None:
    """x q of rows above `rows`, for `count` columns from `left` on; `near`: memory for a tile."""
    left, count = columns
    with p.loop(ZERO, _tiles(p, rows)) as tile:
        own = _rows(p, tile, rows)
        for r, i in enumerate(own):
            with p.lanes(ZERO, count) as k:
                near[const(r), k] = x[i, ir.add(left, k)]
        numbers = [const(r) for r in range(p.rows)]
        with p.lanes(ZERO, count, unroll=p.vectors) as j:
            found = _sums(p, count, numbers, lambda r, k: near[r, k], lambda k: q[k, j][0])
            for i, value in zip(own, found, strict=True):
                x[i, ir.add(left, j)] = (value,)


def _tiles(p: TileProgram, count: Expr) -> Expr:
    return p.let(ir.idiv(ir.add(count, const(p.rows - 1)), const(p.rows)))


def _rows(p: TileProgram, tile: Expr, count: Expr) -> list[Expr]:
    """Those of a tile; past the end the last one again, which has the same result."""
    first, last = p.let(ir.mul(tile, const(p.rows))), ir.sub(count, ONE)
    return [p.let(ir.minimum(ir.add(first, const(r)), last)) for r in range(p.rows)]


def _sums(
    p: TileProgram, depth: Expr, rows: list[Expr], a: Read, b: Callable[[Expr], Expr]
) -> list[Expr]:
    """Σ a(row, k) b(k) of each row, in registers."""
    sums = [p.register(lanes=True) for _ in rows]
    p.do(*(ir.Set(r, p.constant(0.0)) for r in sums))
    with p.loop(ZERO, depth) as k:
        across = p.let(b(k))
        for r, i in zip(sums, rows, strict=True):
            p.do(*ir.sets([r], plus_product((ir.read(r),), a(i, k), (across,))))
    return [ir.read(r) for r in sums]
