"""Implicit GEMM convolution, SIMT, any dtype: register prefetch of the next K tile.

A thread block computes out_channels × pixels. Weights are contiguous along output channels, the
input along input channels; K tiles go through shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.attention.gpu.simt_tiles import AccumulatorTile, SmemTile, ThreadGrid
from numus.kernels.conv.gpu.implicit_gemm import BlockArgs, Im2col
from numus.target import Target

MIN_K_TILES_PER_SPLIT = 8


@dataclass(frozen=True, slots=True)
class Tiling:
    """Compile-time tile sizes, and split-K."""

    threads: int
    out_channels: int
    pixels: int
    k_tile: int
    splits: int


def choose(
    target: Target, dtype: DType, groups: int, pixels: int, out_channels: int, k_size: int
) -> Tiling:
    """The largest tiles that keep every SM busy, with split-K."""
    threads = ThreadGrid.of(min(target.block_size, 256))
    for per_thread in (8, 4, 2) if dtype.itemsize <= 4 else (4, 2):
        m, n = per_thread * threads.rows, per_thread * threads.columns
        # K tiles are as deep as prefetch registers and shared memory allow
        k_tile = (4 if per_thread == 8 else 8) * threads.count // max(m, n)
        while k_tile > 4 and 2 * SmemTile.bytes(dtype, k_tile, max(m, n)) > target.shared_bytes:
            k_tile //= 2
        tiles = groups * -(-out_channels // m) * -(-pixels // n)
        max_splits = max(1, -(-k_size // k_tile) // MIN_K_TILES_PER_SPLIT)
        splits = max(1, min(2 * target.num_cores // tiles, max_splits))
        tiling = Tiling(threads.count, m, n, k_tile, splits)
        fits = out_channels > m // 2 and pixels > n // 2
        if fits and tiles * splits >= target.num_cores:
            break
    return tiling


class SimtKernel(Im2col):
    def __init__(self, tiling: Tiling, args: BlockArgs) -> None:
        super().__init__(args, tiling.pixels, tiling.out_channels, tiling.k_tile)
        self.tiling, self.threads, dtype = tiling, ThreadGrid.of(tiling.threads), args.dtype
        self.weights_tile = SmemTile("smem_weights", dtype, tiling.k_tile, tiling.out_channels)
        self.data_tile = SmemTile("smem_data", dtype, tiling.k_tile, tiling.pixels)
        self.acc = AccumulatorTile("c", self.threads, dtype, tiling.out_channels, tiling.pixels)

        def prefetch(name: str, count: int) -> list[ir.Register]:
            return [ir.Register(f"{name}{i}", dtype, lanes=True) for i in range(count)]

        k_tile, threads = tiling.k_tile, tiling.threads
        self.next_weights = prefetch("next_w", k_tile * tiling.out_channels // threads)
        self.next_data = prefetch("next_x", k_tile * tiling.pixels // threads)
        self.scratch = [self.weights_tile.buffer, self.data_tile.buffer]

    def body(self) -> list[Stmt]:
        q = ir.var("k_tile")

        def multiply(lane: Expr) -> list[Stmt]:
            fma = self.acc.add(lane, self.weights_tile, self.data_tile)
            return [*self.load_tile(lane, q + 1), fma]

        store = self.threads.loop("store_tile", self.store_tile)
        loop = [store, self.threads.loop("multiply", multiply)]
        return [
            *self.acc.clear(),
            self.threads.loop("first", lambda lane: self.load_tile(lane, self.first)),
            ir.For(q, self.first, self.stop, "serial", loop),
            self.threads.loop("store_outputs", self.store_outputs),
        ]

    # -- K tiles: a thread loads one output channel, several k; one k, several pixels -------------

    def weight_index(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """k within the tile, and the output channel."""
        columns = const(self.tiling.out_channels)
        offset = number * self.tiling.threads // self.tiling.out_channels
        return lane // columns + offset, lane % columns

    def data_index(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """k within the tile, and the pixel."""
        k_tile = const(self.tiling.k_tile)
        offset = number * self.tiling.threads // self.tiling.k_tile
        return lane % k_tile, lane // k_tile + offset

    def load_tile(self, lane: Expr, q: Expr) -> list[Stmt]:
        """Prefetch a K tile to registers; zeros out of bounds."""
        s = self.s
        zero, start = const(0, self.dtype), q * self.tiling.k_tile
        out: list[Stmt] = []
        for number, register in enumerate(self.next_weights):
            k, o = self.weight_index(lane, number)
            k, o = start + k, self.o0 + o
            in_bounds = (k < self.k) & (o < s.out_channels)
            row = self.group * self.k + k
            value = ir.load(self.weights, row * s.out_channels + o, in_bounds)
            out.append(ir.Set(register, ir.select(in_bounds, value.cast(self.dtype), zero)))
        k, _ = self.data_index(lane, 0)
        k_in_bounds = start + k < self.k
        taps, channel = self.tap_index(start, k)
        for number, register in enumerate(self.next_data):
            m = self.m0 + self.data_index(lane, number)[1]
            index, in_bounds = self.input_index(m, taps, channel)
            in_bounds = in_bounds & k_in_bounds
            value = ir.load(self.data, index, in_bounds)
            out.append(ir.Set(register, ir.select(in_bounds, value.cast(self.dtype), zero)))
        return out

    def store_tile(self, lane: Expr) -> list[Stmt]:
        """Prefetched registers to shared memory."""
        out: list[Stmt] = []
        for smem, prefetch, index_of in (
            (self.weights_tile, self.next_weights, self.weight_index),
            (self.data_tile, self.next_data, self.data_index),
        ):
            for number, register in enumerate(prefetch):
                k, index = index_of(lane, number)
                out.append(ir.Store(smem.buffer, smem.at(k, index), ir.read(register)))
        return out

    def store_outputs(self, lane: Expr) -> list[Stmt]:
        out: list[Stmt] = []
        for j in range(self.acc.thread_columns):
            rows = range(self.acc.thread_rows)
            columns = ((self.o0 + self.acc.row(lane, i), self.acc.read(i, j)) for i in rows)
            out += self.store_row(self.m0 + self.acc.column(lane, j), columns)
        return out
