"""Padded implicit GEMM for mma.sync and SIMT main loops: K tiles by cp.async, or by loads."""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const
from numus.kernels.conv.gpu.implicit_gemm import u32
from numus.kernels.conv.gpu.padded_gemm import PaddedGrid
from numus.kernels.conv.gpu.padded_gemm_wgmma import RowMatrix
from numus.kernels.matmul.gpu.mainloop import StagedOperand, zero

ZERO, YES, NO = const(0), const(True, dt.bool_), const(False, dt.bool_)


def _operand(
    rows: RowMatrix, extent: Expr, group_of: Callable[[Expr], Expr], mn_major: bool, copies: bool
) -> StagedOperand:
    """An operand whose group follows from the matrix; `mn_major`: in shared memory."""

    def location(matrix: Expr, mn: Expr, k: Expr) -> tuple[ir.Buffer, Expr]:
        row, column = (mn, k) if rows.k_major else (k, mn)
        return rows.buffer, _index(rows, group_of(matrix), row, column)

    def read(matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
        return ir.load(*location(matrix, mn, k), mask)

    if not copies:
        return StagedOperand(read, extent, True, None, NO)
    transposed = rows.k_major and mn_major
    k_major = rows.k_major and not mn_major
    return StagedOperand(read, extent, k_major, location, YES, rows.row_stride, transposed)


def _index(rows: RowMatrix, group: Expr, mn: Expr, column: Expr) -> Expr:
    at = mn * rows.row_stride + column
    return group * rows.group_stride + at


def _read(rows: RowMatrix, group: Expr, mn: Expr, column: Expr, mask: Expr | None) -> Expr:
    """An element; zero out of bounds."""
    inside = (mn >= 0) & (mn < rows.rows)
    inside = inside if mask is None else inside & mask
    value = ir.load(rows.buffer, _index(rows, group, mn, column), inside)
    return ir.select(inside, value, zero(rows.buffer.dtype))


def forward_operands(
    grid: PaddedGrid,
    data: RowMatrix,
    weights: RowMatrix,
    sizes: tuple[Expr, Expr],
    mn_major: bool,
    copies: bool,
) -> tuple[StagedOperand, StagedOperand]:
    """A: pixels × (tap, channel), shifted by the tap. B: weights, K-major or MN-major."""

    def tile_shift(matrix: Expr, number: Expr) -> tuple[Expr, Expr]:
        tap, _ = grid.tap_and_channels(number)
        shift, tap_start = grid.row_shift(tap), tap.cast(ir.INDEX) * grid.k_per_tap
        return shift, shift * data.row_stride - tap_start

    def k_end(number: Expr) -> Expr:
        tap, _ = grid.tap_and_channels(number)
        return tap.cast(ir.INDEX) * grid.k_per_tap + data.width

    def group_of(matrix: Expr) -> Expr:
        return ZERO if grid.groups.op == "const" else matrix

    def read(matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
        tap, channel = u32(k) // u32(grid.k_per_tap), k % grid.k_per_tap
        if data.padded_taps:
            mask = channel < data.width if mask is None else mask & (channel < data.width)
        return _read(data, group_of(matrix), mn + grid.row_shift(tap), channel, mask)

    left = _operand(data, sizes[0], group_of, mn_major, copies)
    if copies:
        left.tile_shift, left.shift_extent = tile_shift, data.rows
        left.k_end = k_end if data.padded_taps else None
    else:
        left.read = read
    return left, _operand(weights, sizes[1], group_of, mn_major, copies)


def wgrad_operands(
    grid: PaddedGrid,
    data: RowMatrix,
    weights: RowMatrix,
    sizes: tuple[Expr, Expr],
    mn_major: bool,
    copies: bool,
) -> tuple[StagedOperand, StagedOperand]:
    """A: input channels × pixels, shifted by the matrix' tap. B: output channels × pixels.
    Elements of less than 4 bytes are loaded: cp.async would need them contiguous along K."""
    copies = copies and data.buffer.dtype.itemsize >= 4

    def group_of(matrix: Expr) -> Expr:
        return ZERO if grid.groups.op == "const" else grid.group_and_tap(matrix)[0]

    def shift_of(matrix: Expr) -> Expr:
        return grid.row_shift(grid.group_and_tap(matrix)[1])

    def tile_shift(matrix: Expr, _: Expr) -> tuple[Expr, Expr]:
        shift = shift_of(matrix)
        return shift, shift * data.row_stride

    def read(matrix: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
        return _read(data, group_of(matrix), k + shift_of(matrix), mn, mask)

    left = _operand(data, sizes[0], group_of, mn_major, copies)
    if copies:
        left.tile_shift, left.shift_extent = tile_shift, data.rows
    else:
        left.read = read
    return left, _operand(weights, sizes[1], group_of, mn_major, copies)
