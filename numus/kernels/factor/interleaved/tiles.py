"""Register tiles of products of interleaved matrices: an element of all matrices is a vector."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.lanes import LaneProgram
from numus.kernels.factor.program import Matrix, Number, Read, Span, minus_product

STRIP = 4  # tiles of columns whose factor stays in L1


def subtract_product(
    p: LaneProgram,
    c: Matrix,
    factors: tuple[Read, Read],
    ranges: tuple[Span, Span],
    depth: tuple[Expr, int],
    tile: tuple[int, int],
    lower: bool = False,
) -> None:
    """c -= a b over ranges of rows and columns that are multiples of the tile, and `depth` (the
    first, how many) of the inner index; with `lower`, tiles on and below the diagonal."""
    (a, b), (rows, columns), (height, width) = factors, ranges, tile
    first, count = depth
    down = p.let(ir.idiv(ir.sub(rows[1], rows[0]), const(height)))
    across = p.let(ir.idiv(ir.sub(columns[1], columns[0]), const(width)))
    strip = const(STRIP)
    with (
        p.loop(const(0), p.let(ir.idiv(ir.add(across, const(STRIP - 1)), strip))) as number,
        p.loop(const(0), down) as tile_i,
    ):
        start = p.let(ir.mul(number, strip))
        end = ir.minimum(ir.add(start, strip), ir.add(tile_i, const(1)) if lower else across)
        top = p.let(ir.add(rows[0], ir.mul(tile_i, const(height))))
        with p.loop(start, p.let(end)) as tile_j:
            left = p.let(ir.add(columns[0], ir.mul(tile_j, const(width))))
            at = [
                [(ir.add(top, const(r)), ir.add(left, const(s))) for s in range(width)]
                for r in range(height)
            ]
            total = [[p.number(c[i, j]) for i, j in row] for row in at]
            for step in range(count):
                k = ir.add(first, const(step))
                along = [p.number(a(row[0][0], k)) for row in at]
                for s in range(width):
                    down_column: Number = p.number(b(k, at[0][s][1]))
                    for r in range(height):
                        total[r][s] = p.number(minus_product(total[r][s], along[r], down_column))
            for row, values in zip(at, total, strict=True):
                for place, value in zip(row, values, strict=True):
                    c[place] = value
