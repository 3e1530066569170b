"""Convolution on a grid of cells (`cells.py`) whose slices are copied by threads, or read where
nothing copies by itself: operands for the contractions of `thread_contraction.py` and
`warp_contraction.py`."""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const
from numus.kernels.conv.gpu.implicit_gemm import small
from numus.kernels.conv.gpu.padded_gemm import Cells
from numus.kernels.conv.gpu.padded_gemm_wgmma import Lines
from numus.kernels.matmul.gpu.mainloop import StagedOperand, zero

ZERO, YES, NO = const(0), const(True, dt.bool_), const(False, dt.bool_)


def _operand(
    lines: Lines,
    extent: Expr,
    group_of: Callable[[Expr], Expr],
    across: bool,
    copies: bool,
) -> StagedOperand:
    """What lies as it is multiplied, in lines along k or across it, for a group of channels by the
    number of the matrix; `across`: in the group's memory they always lie so."""

    def where(matrix: Expr, line: Expr, k: Expr) -> tuple[ir.Buffer, Expr]:
        slow, quick = (line, k) if lines.along else (k, line)
        return lines.buffer, _place(lines, group_of(matrix), slow, quick)

    def read(matrix: Expr, line: Expr, k: Expr, mask: Expr | None) -> Expr:
        return ir.load(*where(matrix, line, k), mask)

    if not copies:
        return StagedOperand(read, extent, True, None, NO)
    turned = lines.along and across
    along = lines.along and not across
    return StagedOperand(read, extent, along, where, YES, lines.step, turned)


def _place(lines: Lines, group: Expr, line: Expr, neighbour: Expr) -> Expr:
    at = ir.add(ir.mul(line, lines.step), neighbour)
    return ir.add(ir.mul(group, lines.all), at)


def _read(lines: Lines, group: Expr, line: Expr, neighbour: Expr, mask: Expr | None) -> Expr:
    """An element of a line that need not exist."""
    there = (line >= 0) & (line < lines.count)
    there = there if mask is None else there & mask
    value = ir.load(lines.buffer, _place(lines, group, line, neighbour), there)
    return ir.select(there, value, zero(lines.buffer.dtype))


def by_taps(
    cells: Cells,
    data: Lines,
    weights: Lines,
    sizes: tuple[Expr, Expr],
    across: bool,
    copies: bool,
) -> tuple[StagedOperand, StagedOperand]:
    """Operands of a convolution: data are lines of channels, weights lines of all taps, or lines of
    outputs, one for each tap and channel."""

    def displaced(matrix: Expr, number: Expr) -> tuple[Expr, Expr]:
        tap, _ = cells.split(number)
        hop, before = cells.hop(tap), ir.mul(tap.cast(ir.INDEX), cells.width)
        return hop, ir.sub(ir.mul(hop, data.step), before)

    def ends(number: Expr) -> Expr:
        tap, _ = cells.split(number)
        return ir.add(ir.mul(tap.cast(ir.INDEX), cells.width), data.width)

    def group_of(matrix: Expr) -> Expr:
        return ZERO if cells.groups.op == "const" else matrix

    def read(matrix: Expr, line: Expr, k: Expr, mask: Expr | None) -> Expr:
        tap, channel = ir.idiv(small(k), small(cells.width)), ir.irem(k, cells.width)
        if data.short:
            mask = channel < data.width if mask is None else mask & (channel < data.width)
        return _read(data, group_of(matrix), ir.add(line, cells.hop(tap)), channel, mask)

    left = _operand(data, sizes[0], group_of, across, copies)
    if copies:
        left.tile_shift, left.shift_extent = displaced, data.count
        left.k_end = ends if data.short else None
    else:
        left.read = read
    return left, _operand(weights, sizes[1], group_of, across, copies)


def by_results(
    cells: Cells,
    data: Lines,
    weights: Lines,
    sizes: tuple[Expr, Expr],
    across: bool,
    copies: bool,
) -> tuple[StagedOperand, StagedOperand]:
    """Operands of a correlation: lines of images, and of outputs, one for each cell. Elements of
    less than a word would have to be neighbours along k to be copied: they are read."""
    copies = copies and data.buffer.dtype.itemsize >= 4

    def group_of(matrix: Expr) -> Expr:
        return ZERO if cells.groups.op == "const" else cells.apart(matrix)[0]

    def hop_of(matrix: Expr) -> Expr:
        return cells.hop(cells.apart(matrix)[1])

    def displaced(matrix: Expr, _: Expr) -> tuple[Expr, Expr]:
        hop = hop_of(matrix)
        return hop, ir.mul(hop, data.step)

    def read(matrix: Expr, line: Expr, k: Expr, mask: Expr | None) -> Expr:
        return _read(data, group_of(matrix), ir.add(k, hop_of(matrix)), line, mask)

    left = _operand(data, sizes[0], group_of, across, copies)
    if copies:
        left.tile_shift, left.shift_extent = displaced, data.count
    else:
        left.read = read
    return left, _operand(weights, sizes[1], group_of, across, copies)
