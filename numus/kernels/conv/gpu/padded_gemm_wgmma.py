"""Convolution on a grid of cells (`cells.py`) by units that multiply whole tiles: an engine brings
windows as it brings any tile."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, const
from numus.kernels.conv.gpu.padded_gemm import Cells
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes, tile_coordinates
from numus.kernels.matmul.gpu.wgmma import MMA_THREADS, TILE_M, TileShape, tile_k

ZERO = const(0)


@dataclass(slots=True)
class Lines:
    """Lines of neighbours one after the other, so many for each group of channels."""

    buffer: ir.Buffer
    width: Expr
    step: Expr  # elements from one to the next
    count: Expr
    all: Expr  # elements of a group
    along: bool = True  # whether neighbours follow each other along k
    short: bool = False  # whether a tap has more places along k than a line

    def source(
        self,
        groups: Expr,
        first: Expr,
        lines: int,
        group: Expr,
        number: Expr | None = None,
        at: tuple[Expr, Expr] | None = None,
    ) -> ir.TmaTensor:
        ends = (self.width, self.count, groups)
        matrix = ZERO if groups.op == "const" else group
        strides = (self.step, self.all)
        return ir.TmaTensor(
            self.buffer, self.along, ends, strides, first, lines, matrix, number, at
        )


def convolution(
    tiles: TileShape,
    s: SplitKSizes,
    cells: Cells,
    dtype: DType,
    g: Expr,
    data: Lines,
    weights: Lines,
) -> Accumulators:
    """The sums of group g. Data are lines of channels, one for each cell; weights lines of all
    taps, one for each output."""
    columns, depth = tiles.n, tile_k(dtype)
    tile, body = tile_coordinates(s, g, TILE_M, columns)
    which, m0, n0 = tile
    group, first, mine = s.k_range(which, depth)
    number = ir.var("number")
    tap, block = cells.split(ir.add(first, number))
    at = (ir.mul(block, const(depth)), ir.add(m0, cells.hop(tap)))
    a = data.source(cells.groups, m0, TILE_M, group, number, at)
    b = weights.source(cells.groups, n0, columns, group)
    return _summed(tiles, dtype, tile, body, a, b, ir.mul(first, const(depth)), mine)


def correlation(
    tiles: TileShape,
    s: SplitKSizes,
    cells: Cells,
    dtype: DType,
    g: Expr,
    data: Lines,
    weights: Lines,
) -> Accumulators:
    """The same for windows that are larger than what slides: gradients by weights. The sum runs
    over the cells of windows, of all channels; a result's place is what displaces the data. Lines
    are of images, and of outputs, one for each channel and cell, or the other way round. Rows of
    the product are images, and there is a product for each group and place of a result."""
    columns, depth = tiles.n, tile_k(dtype)
    tile, body = tile_coordinates(s, g, TILE_M, columns)
    which, m0, n0 = tile
    matrix, first, mine = s.k_range(which, depth)
    group, place = cells.apart(matrix)
    number = ir.var("number")
    k = ir.add(ir.mul(ir.add(first, number), const(depth)), cells.hop(place))
    at = (k, m0) if data.along else (m0, k)
    a = data.source(cells.groups, m0, TILE_M, group, number, at)
    b = weights.source(cells.groups, n0, columns, group)
    return _summed(tiles, dtype, tile, body, a, b, ir.mul(first, const(depth)), mine)


def _summed(
    tiles: TileShape,
    dtype: DType,
    tile: tuple[Expr, Expr, Expr],
    body: list[ir.Stmt],
    left: ir.TmaTensor,
    right: ir.TmaTensor,
    start: Expr,
    slices: Expr,
) -> Accumulators:
    size = ir.pipeline_smem_elements(dtype, TILE_M, tiles.n, tiles.stages)
    scratch = ir.Buffer("slices", dtype, "scratch", const(size))
    sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(tiles.n // 2)]
    body += [ir.Set(c, const(0.0, float32)) for c in sums]
    body.append(ir.WgmmaMainloop(sums, left, right, start, slices, tiles.stages, scratch))
    shape = (TILE_M, tiles.n)
    return Accumulators(
        body, tile, shape, MMA_THREADS, sums, ir.accumulator_element, [scratch], size
    )
