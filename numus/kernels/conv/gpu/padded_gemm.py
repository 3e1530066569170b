"""Padded implicit GEMM: convolution as shifted GEMMs over a zero-padded channels-last grid.

Rows of the grid are pixels with all their channels; input and output share it, and zeros follow
every image row and image. A tap is then one fixed shift of rows, so plain GEMM main loops (TMA,
cp.async) load its operand. A stride splits the grid into phases, and a tap's shift selects its own.
Outputs of padding pixels are computed and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import bool_, uint32
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import Triple, delinearize, u32, volume
from numus.kernels.matmul.gpu.mainloop import Accumulators

ZERO = const(0)
COLUMNS_PER_THREAD = 8  # of an epilogue iteration
PAD = 4  # elements after columns of the staged tile, against bank conflicts


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of space."""

    in_size: int
    taps: int
    out_size: int
    stride: int
    dilation: int
    padding_low: int

    @property
    def halo_low(self) -> int:
        """Rows of the grid by which the first tap precedes its output, at most."""
        return max(0, -(-self.padding_low // self.stride))

    @property
    def grid(self) -> int:
        """Padded size of a phase: input and zeros after it, and outputs."""
        first, last = (
            (t * self.dilation - self.padding_low) // self.stride for t in (0, self.taps - 1)
        )
        used = -(-self.in_size // self.stride)
        return max(used + max(0, -first), self.out_size + max(0, last), used, self.out_size)


@dataclass(slots=True)
class PaddedGrid:
    """Launch arguments; triples are (z, y, x)."""

    groups: Expr
    k_tiles_per_tap: Expr
    k_per_tap: Expr
    taps: Triple
    out_size: Triple
    grid: Triple
    stride: Triple
    dilation: Triple
    halo_low: Triple
    phase_offset: Triple  # input elements from the halo's first to the first tap
    phase_rows: Expr

    def output_index(self, m: Expr) -> tuple[Expr, Triple, Expr]:
        """The image and the pixel of a row (32 bits), and whether it is an output."""
        a, b, c = (u32(n) for n in self.grid)
        image = a * b * c
        at = delinearize(u32(m) % image, self.grid)
        in_bounds = const(True, bool_)
        for i, n in zip(at, self.out_size, strict=True):
            in_bounds = in_bounds & (i < u32(n))
        return u32(m) // image, at, in_bounds

    def group_and_tap(self, matrix: Expr) -> tuple[Expr, Expr]:
        """The group and the tap (32 bits) of a matrix of wgrad."""
        taps = u32(volume(self.taps))
        return (u32(matrix) // taps).cast(ir.INDEX), u32(matrix) % taps

    def tap_and_channels(self, k_tile: Expr) -> tuple[Expr, Expr]:
        """The tap (32 bits) of a K tile, and its number among the tap's."""
        per_tap = self.k_tiles_per_tap
        return u32(k_tile) // u32(per_tap), k_tile % per_tap

    def row_shift(self, tap: Expr) -> Expr:
        """Rows of the grid from an output to a tap (32 bits), phases included."""
        phase, shift, halo = const(0, uint32), const(0, uint32), ZERO
        axes = zip(
            *(delinearize(tap, self.taps), self.grid, self.stride, self.dilation),
            *(self.halo_low, self.phase_offset),
            strict=True,
        )
        for t, grid, stride, dilation, low, offset in axes:
            at = t * u32(dilation) + u32(offset)
            phase = phase * u32(stride) + at % u32(stride)
            shift = shift * u32(grid) + at // u32(stride)
            halo = halo * grid + low
        return shift.cast(ir.INDEX) - halo + phase.cast(ir.INDEX) * self.phase_rows


StoreElement = Callable[[Expr, Expr], list[Stmt]]  # (column, value)
OutputRow = Callable[[Expr], tuple[Expr, StoreElement]]


def epilogue(
    acc: Accumulators,
    columns: Expr,
    smem_bytes: int,
    output_row: OutputRow,
    channels_last: bool = False,
) -> list[Stmt]:
    """Epilogue through shared memory: as many columns at a time as fit. Adjacent threads store
    adjacent rows, or adjacent columns if these are `channels_last`. `output_row(m)` tells whether a
    row is an output, and how its columns are stored.
    """
    rows, all_columns = acc.shape
    memory, dtype = acc.scratch[0], acc.registers[0].dtype
    chunks, smem_bytes = 1, max(smem_bytes, acc.smem_words * memory.dtype.itemsize)

    def words(width: int) -> int:
        return rows * (width + PAD) if channels_last else width * (rows + PAD)

    while words(all_columns // chunks) * dtype.itemsize > smem_bytes or (
        channels_last and all_columns // chunks > acc.threads
    ):
        chunks *= 2
    width = all_columns // chunks
    staged = words(width)
    needed = -(-staged * dtype.itemsize // memory.dtype.itemsize)
    memory.size = const(max(acc.smem_words, needed))
    stage = ir.Buffer("stage", dtype, "scratch", const(staged), aliases=memory)
    acc.scratch.append(stage)
    pitches = (width + PAD, 1) if channels_last else (1, rows + PAD)
    store = _store_columns if channels_last else _store_rows
    out = list(acc.body)
    for chunk in range(chunks):
        lane = ir.var(f"staging{chunk}")
        staging: list[Stmt] = []
        for number, c in enumerate(acc.registers):
            row, column = acc.coordinates(lane, number)
            column = column + -chunk * width
            to = row * pitches[0] + column * pitches[1]
            staged_value = ir.Store(stage, to, ir.read(c))
            in_chunk = (column >= 0) & (column < const(width))
            staging.append(staged_value if chunks == 1 else ir.If(in_chunk, [staged_value]))
        out.append(ir.For(lane, ZERO, const(acc.threads), "lanes", staging))
        out += store(acc, columns, (stage, *pitches), (chunk, width), output_row)
    return out


Stage = tuple[ir.Buffer, int, int]  # with the distances of rows and of columns


def _store_rows(
    acc: Accumulators, columns: Expr, stage: Stage, part: tuple[int, int], output_row: OutputRow
) -> list[Stmt]:
    """A thread has one row, and some columns at a time."""
    rows, (_, m0, n0), (chunk, width) = acc.shape[0], acc.origin, part
    thread_columns = max(1, acc.threads // rows)
    per_thread = min(COLUMNS_PER_THREAD, width // thread_columns)
    out: list[Stmt] = []
    for first in range(0, rows, acc.threads):
        thread, j = ir.var(f"out{chunk}_{first}"), ir.var(f"columns{chunk}_{first}")
        row = thread % rows + first
        column0 = thread // rows
        in_bounds, store_element = output_row(m0 + row)
        loads: list[Stmt] = []
        stores: list[Stmt] = []
        for u in range(per_thread):
            value = ir.var(f"v{chunk}_{first}_{u}", stage[0].dtype)
            linear = j * per_thread + u
            column = linear * thread_columns + column0
            loads.append(ir.Let(value, ir.load(stage[0], row * stage[1] + column * stage[2])))
            n = n0 + column + chunk * width
            stores.append(ir.If(n < columns, store_element(n, value)))
        iterations = const(width // thread_columns // per_thread)
        loop = ir.For(j, ZERO, iterations, "serial", [*loads, *stores])
        body: list[Stmt] = [ir.If(in_bounds, [loop])]
        out.append(ir.For(thread, ZERO, const(acc.threads), "lanes", body))
    return out


def _store_columns(
    acc: Accumulators, columns: Expr, stage: Stage, part: tuple[int, int], output_row: OutputRow
) -> list[Stmt]:
    """A thread has one column, and one row after the other."""
    rows, (_, m0, n0), (chunk, width) = acc.shape[0], acc.origin, part
    thread, j = ir.var(f"out{chunk}"), ir.var(f"rows{chunk}")
    row, column = thread // width + j * (acc.threads // width), thread % width
    in_bounds, store_element = output_row(m0 + row)
    value, n = ir.var(f"v{chunk}", stage[0].dtype), n0 + column + chunk * width
    body: list[Stmt] = [ir.Let(value, ir.load(stage[0], row * stage[1] + column * stage[2]))]
    body.append(ir.If(in_bounds & (n < columns), store_element(n, value)))
    loop = ir.For(j, ZERO, const(rows * width // acc.threads), "serial", body)
    return [ir.For(thread, ZERO, const(acc.threads), "lanes", [loop])]
