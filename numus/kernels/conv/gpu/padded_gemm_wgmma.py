"""Padded implicit GEMM on wgmma: TMA loads the shifted rows of a tap as it loads any tile."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, const
from numus.kernels.conv.gpu.padded_gemm import PaddedGrid
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes, tile_coordinates
from numus.kernels.matmul.gpu.wgmma import MMA_THREADS, TILE_M, TileShape, tile_k

ZERO = const(0)


@dataclass(slots=True)
class RowMatrix:
    """A batch of matrices, one for each group of channels; rows may overlap."""

    buffer: ir.Buffer
    width: Expr
    row_stride: Expr
    rows: Expr
    group_stride: Expr
    k_major: bool = True
    padded_taps: bool = False  # the K tiles of a tap are longer than a row

    def tma(
        self,
        groups: Expr,
        first: Expr,
        tile_rows: int,
        group: Expr,
        number: Expr | None = None,
        at: tuple[Expr, Expr] | None = None,
    ) -> ir.TmaTensor:
        extents = (self.width, self.rows, groups)
        matrix = ZERO if groups.op == "const" else group
        strides = (self.row_stride, self.group_stride)
        return ir.TmaTensor(
            self.buffer, self.k_major, extents, strides, first, tile_rows, matrix, number, at
        )


def mainloop(
    tiles: TileShape,
    s: SplitKSizes,
    grid: PaddedGrid,
    dtype: DType,
    g: Expr,
    data: RowMatrix,
    weights: RowMatrix,
    wgrad: bool,
) -> Accumulators:
    """Accumulators of thread block g. Forward, rows are pixels and K is (tap, channel). The weight
    gradient has a matrix for each group and tap, whose shift applies along K (pixels)."""
    columns, depth = tiles.n, tile_k(dtype)
    tile, body = tile_coordinates(s, g, TILE_M, columns)
    outer, m0, n0 = tile
    matrix, first, k_tiles = s.k_range(outer, depth)
    number = ir.var("number")
    k_tile, group = first + number, matrix
    if wgrad:
        group, tap = grid.group_and_tap(matrix)
        k = k_tile * depth + grid.row_shift(tap)
        at = (k, m0) if data.k_major else (m0, k)
    else:
        tap, channels = grid.tap_and_channels(k_tile)
        at = (channels * depth, m0 + grid.row_shift(tap))
    a = data.tma(grid.groups, m0, TILE_M, group, number, at)
    b = weights.tma(grid.groups, n0, columns, group)
    size = ir.pipeline_smem_elements(dtype, TILE_M, columns, tiles.stages)
    scratch = ir.Buffer("k_tiles", dtype, "scratch", const(size))
    acc = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]
    body += [ir.Set(c, const(0.0, float32)) for c in acc]
    start = first * depth
    body.append(ir.WgmmaMainloop(acc, a, b, start, k_tiles, tiles.stages, scratch))
    shape = (TILE_M, columns)
    return Accumulators(
        body, tile, shape, MMA_THREADS, acc, ir.accumulator_element, [scratch], size
    )
