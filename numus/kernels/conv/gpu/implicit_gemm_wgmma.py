"""Implicit GEMM convolution on wgmma: bfloat16 and float16, multistage cp.async.

Vectors of 8 channels are copied to swizzled shared memory, zero-filled in padding and between
dilated elements. Accumulators are staged in shared memory so that pixels are stored contiguously.
"""

from __future__ import annotations

from numus import ir
from numus.dtypes import float32
from numus.ir import Expr, Stmt, const
from numus.kernels.common.smem_tiles import SWIZZLE_COLUMNS, VECTOR, ZERO
from numus.kernels.conv.gpu.implicit_gemm import BlockArgs, Im2col
from numus.target import Target

THREADS = 256
K_TILE = SWIZZLE_COLUMNS
M_TILE = 128
STAGES = 4
PREFETCH = STAGES - 1
EPILOGUE_COLUMNS = 32
EPILOGUE_PITCH = M_TILE + 4  # against bank conflicts
MIN_K_TILES_PER_SPLIT = 8


def tile_columns(target: Target, groups: int, rows: int, out_channels: int, k_size: int) -> int:
    """The widest tiles that, with split-K, keep every SM busy."""
    max_tiles = groups * -(-rows // M_TILE) * max(1, -(-k_size // K_TILE) // MIN_K_TILES_PER_SPLIT)
    for columns in (256, 128):
        tiles = max_tiles * -(-out_channels // columns)
        if out_channels > columns // 2 and tiles >= target.num_cores:
            return columns
    return 64 if out_channels > 32 else 32


def split_k(
    target: Target, groups: int, rows: int, out_channels: int, columns: int, k_size: int
) -> int:
    """Splits of K, so that small outputs keep all SMs busy."""
    tiles = groups * -(-rows // M_TILE) * -(-out_channels // columns)
    return max(1, min(target.num_cores // tiles, -(-k_size // K_TILE) // MIN_K_TILES_PER_SPLIT))


class WgmmaKernel(Im2col):
    def __init__(self, columns: int, args: BlockArgs) -> None:
        super().__init__(args, M_TILE, columns, K_TILE)
        self.columns, dtype = columns, args.dtype
        self.a = ir.Buffer("smem_a", dtype, "scratch", const(STAGES * M_TILE * K_TILE))
        self.b = ir.Buffer("smem_b", dtype, "scratch", const(STAGES * columns * K_TILE))
        staged = const(EPILOGUE_COLUMNS * EPILOGUE_PITCH)
        self.stage = ir.Buffer("stage", float32, "scratch", staged)
        self.acc = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]
        self.scratch = [self.a, self.b, self.stage]

    def body(self) -> list[Stmt]:
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in self.acc]
        for i in range(PREFETCH):
            at = self.first + i
            out += [ir.If(at < self.stop, self.load_stage(f"prefetch{i}", at)), ir.AsyncCommit()]
        q = ir.var("k_tile")
        stage, following = q % STAGES, q + PREFETCH
        left = ir.MmaOperand(self.a, stage * (M_TILE * K_TILE), True)
        right = ir.MmaOperand(self.b, stage * (self.columns * K_TILE), True)
        body: list[Stmt] = [
            ir.AsyncWait(PREFETCH - 1, fence=True),
            ir.Wgmma(self.acc, left, right, self.columns, K_TILE),
            ir.If(following < self.stop, self.load_stage("next", following)),
            ir.AsyncCommit(),
            ir.WgmmaWait(self.acc, 0),
        ]
        return [*out, ir.For(q, self.first, self.stop, "serial", body), *self.store_outputs()]

    def load_stage(self, tag: str, q: Expr) -> list[Stmt]:
        """cp.async of the q-th K tile: 8 threads for each row."""
        s = self.s
        lane = ir.var(tag)
        row, vector = lane // (K_TILE // VECTOR), lane % (K_TILE // VECTOR)
        start = q * K_TILE
        k = start + vector * VECTOR
        taps, channel = self.tap_index(start, vector * VECTOR)
        stage, offset0 = q % STAGES, _swizzled(row, vector)
        to0 = stage * (M_TILE * K_TILE) + offset0
        row_step = THREADS * VECTOR // K_TILE
        body: list[Stmt] = []
        for i in range(M_TILE // row_step):
            offset = const(i * row_step)
            m = self.m0 + row + offset
            index, in_bounds = self.input_index(m, taps, channel)
            count = ir.select(in_bounds & (k < self.k), const(VECTOR), ZERO)
            to = to0 + offset * K_TILE
            body.append(ir.AsyncCopy(self.a, to, self.data, index, count))
        to0 = stage * (self.columns * K_TILE) + offset0
        for i in range(self.columns // row_step):
            offset = const(i * row_step)
            o = self.o0 + row + offset
            first_row = self.group * s.out_channels + self.o0
            index = first_row * self.k + (row * self.k + k + offset * self.k)
            count = ir.select((o < s.out_channels) & (k < self.k), const(VECTOR), ZERO)
            to = to0 + offset * K_TILE
            body.append(ir.AsyncCopy(self.b, to, self.weights, index, count))
        return [ir.For(lane, ZERO, const(THREADS), "lanes", body)]

    def store_outputs(self) -> list[Stmt]:
        """Epilogue through shared memory: a thread has one row, and every other column."""
        out: list[Stmt] = []
        for first in range(0, self.columns, EPILOGUE_COLUMNS):
            lane, thread = ir.var(f"stage{first}"), ir.var(f"out{first}")
            stage: list[Stmt] = []
            for i in range(EPILOGUE_COLUMNS // 2):
                row, column = ir.accumulator_element(lane, i)
                to = column * EPILOGUE_PITCH + row
                stage.append(ir.Store(self.stage, to, ir.read(self.acc[first // 2 + i])))
            out.append(ir.For(lane, ZERO, const(THREADS), "lanes", stage))
            row, column0 = thread % M_TILE, thread // M_TILE
            offsets = range(0, EPILOGUE_COLUMNS, THREADS // M_TILE)
            columns = [column0 + i for i in offsets]
            values = [ir.load(self.stage, x * EPILOGUE_PITCH + row) for x in columns]
            channels = [self.o0 + x + first for x in columns]
            stores = self.store_row(self.m0 + row, zip(channels, values, strict=True))
            out.append(ir.For(thread, ZERO, const(THREADS), "lanes", stores))
        return out


def _swizzled(row: Expr, vector: Expr) -> Expr:
    """Offset of a vector in a K tile (128-byte swizzle)."""
    swizzled = vector ^ row % VECTOR
    return row * K_TILE + swizzled * VECTOR
