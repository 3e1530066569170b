"""Main loops of padded implicit GEMM: TMA and wgmma, or K tiles by cp.async (or loads) for mma.sync
and SIMT. The shifted rows of a tap are loaded as any tile is."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, const
from numus.kernels.conv.gpu.implicit_gemm import u32
from numus.kernels.conv.gpu.padded_gemm import PaddedGrid
from numus.kernels.matmul.gpu.mainloop import (
    Accumulators,
    SplitKSizes,
    StagedOperand,
    tile_coordinates,
    zero,
)
from numus.kernels.matmul.gpu.wgmma import MMA_THREADS, TILE_M, TileShape, tile_k

ZERO, YES, NO = const(0), const(True, dt.bool_), const(False, dt.bool_)


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

    def index(self, group: Expr, row: Expr, column: Expr) -> Expr:
        return group * self.group_stride + (row * self.row_stride + column)

    def read(self, group: Expr, row: Expr, column: Expr, mask: Expr | None) -> Expr:
        """An element; zero out of bounds."""
        in_bounds = (row >= 0) & (row < self.rows)
        in_bounds = in_bounds if mask is None else in_bounds & mask
        value = ir.load(self.buffer, self.index(group, row, column), in_bounds)
        return ir.select(in_bounds, value, zero(self.buffer.dtype))


@dataclass(frozen=True, slots=True)
class PaddedOperands:
    """Forward, A is pixels × (tap, channel), shifted by the tap, and B the weights, K-major or
    MN-major. The weight gradient has a matrix for each group and tap: A is input channels × pixels,
    shifted by the tap, and B output channels × pixels."""

    grid: PaddedGrid
    data: RowMatrix
    weights: RowMatrix
    wgrad: bool

    def _group(self, matrix: Expr) -> Expr:
        if self.grid.groups.op == "const":
            return ZERO
        return self.grid.group_and_tap(matrix)[0] if self.wgrad else matrix

    def staged(
        self, sizes: tuple[Expr, Expr], mn_major: bool, copies: bool
    ) -> tuple[StagedOperand, StagedOperand]:
        """Operands of mma.sync and SIMT; `mn_major`: in shared memory. For weight gradients,
        elements of less than 4 bytes are loaded: cp.async would need them contiguous along K."""
        copies = copies and not (self.wgrad and self.data.buffer.dtype.itemsize < 4)
        left, right = (
            self._staged(x, extent, mn_major, copies)
            for x, extent in zip((self.data, self.weights), sizes, strict=True)
        )
        if not copies:
            left.read = self._read_wgrad if self.wgrad else self._read
            return left, right
        left.tile_shift, left.shift_extent = self._tile_shift, self.data.rows
        left.k_end = self._k_end if self.data.padded_taps and not self.wgrad else None
        return left, right

    def _staged(self, rows: RowMatrix, extent: Expr, mn_major: bool, copies: bool) -> StagedOperand:
        def location(matrix: Expr, mn: Expr, k: Expr) -> tuple[ir.Buffer, Expr]:
            row, column = (mn, k) if rows.k_major else (k, mn)
            return rows.buffer, rows.index(self._group(matrix), row, column)

        def read(matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
            return ir.load(*location(matrix, mn, k), mask)

        if not copies:
            return StagedOperand(read, extent, True, None, NO)
        transposed = rows.k_major and mn_major
        k_major = rows.k_major and not mn_major
        return StagedOperand(read, extent, k_major, location, YES, rows.row_stride, transposed)

    def _tile_shift(self, matrix: Expr, number: Expr) -> tuple[Expr, Expr]:
        grid = self.grid
        if self.wgrad:
            shift = grid.row_shift(grid.group_and_tap(matrix)[1])
            return shift, shift * self.data.row_stride
        tap, _ = grid.tap_and_channels(number)
        shift = grid.row_shift(tap)
        return shift, shift * self.data.row_stride - tap.cast(ir.INDEX) * grid.k_per_tap

    def _k_end(self, number: Expr) -> Expr:
        tap, _ = self.grid.tap_and_channels(number)
        return tap.cast(ir.INDEX) * self.grid.k_per_tap + self.data.width

    def _read(self, matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
        data, per_tap = self.data, self.grid.k_per_tap
        tap, channel = u32(k) // u32(per_tap), k % per_tap
        if data.padded_taps:
            mask = channel < data.width if mask is None else mask & (channel < data.width)
        return data.read(self._group(matrix), mn + self.grid.row_shift(tap), channel, mask)

    def _read_wgrad(self, matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
        shift = self.grid.row_shift(self.grid.group_and_tap(matrix)[1])
        return self.data.read(self._group(matrix), k + shift, mn, mask)

    def wgmma(self, tiles: TileShape, s: SplitKSizes, dtype: DType, g: Expr) -> Accumulators:
        """Accumulators of thread block g, of which TMA loads the operands."""
        columns, depth, grid, data = tiles.n, tile_k(dtype), self.grid, self.data
        tile, body = tile_coordinates(s, g, TILE_M, columns)
        outer, m0, n0 = tile
        matrix, first, k_tiles = s.k_range(outer, depth)
        number = ir.var("number")
        k_tile, group = first + number, matrix
        if self.wgrad:
            group, tap = grid.group_and_tap(matrix)
            k = k_tile * depth + grid.row_shift(tap)
            at = (k, m0) if data.k_major else (m0, k)
        else:
            tap, channels = grid.tap_and_channels(k_tile)
            at = (channels * depth, m0 + grid.row_shift(tap))
        a = data.tma(grid.groups, m0, TILE_M, group, number, at)
        b = self.weights.tma(grid.groups, n0, columns, group)
        size = ir.pipeline_smem_elements(dtype, TILE_M, columns, tiles.stages)
        scratch = ir.Buffer("k_tiles", dtype, "scratch", const(size))
        acc = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]
        body += [ir.Set(c, const(0.0, float32)) for c in acc]
        body.append(ir.WgmmaMainloop(acc, a, b, first * depth, k_tiles, tiles.stages, scratch))
        layout = ((TILE_M, columns), MMA_THREADS, acc, ir.accumulator_element, [scratch], size)
        return Accumulators(body, tile, *layout)
