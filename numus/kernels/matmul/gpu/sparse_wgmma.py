"""Warp-specialised wgmma GEMM whose A has 2:4 sparsity (Mishra et al. 2021), persistent.

The mainloop is that of the dense GEMM (`wgmma.py`); a k tile of A takes half of the bytes, and half
of the instructions multiply it. Operands that TMA finds misaligned at run time are written to
shared memory element by element, with the zeros between, and multiplied as dense tiles. (Code that
has the accumulators otherwise makes ptxas wait after each instruction of the mainloop.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import epilogue, wgmma
from numus.kernels.matmul.gpu.cost_model import Candidate, fastest
from numus.kernels.matmul.gpu.mainloop import tile_coordinates, zero
from numus.kernels.matmul.gpu.problem import Emitted
from numus.kernels.matmul.gpu.wgmma import TILE_M, Call, TileShape
from numus.target import Target

ZERO = const(0)
GROUP, KEPT = 4, 2  # elements along k, and those of them that are stored
K_OF_BYTE = 2 * GROUP  # whose positions a byte has
TILE_K = ir.SWIZZLE_BYTES // 2  # elements of 16 bits


@dataclass(frozen=True, slots=True)
class SparseWgmmaTuning:
    """Measured on one H200, in bfloat16.

    Tiles are bound by shared memory: B is read for every 64 rows, and all of a tile is written
    once, in 1.75 times the cycles of the tensor cores by 128 x 256, and twice by 128 x 128.
    """

    min_extent: int = 256  # of m, n and k: below, dense products are as fast
    cluster_blocks: int = 2  # that share a tile of B
    max_stages: int = 8
    row_bytes: int = 128  # of C that a warp stores at a time: of more, a stage less fits
    wide_cycles: tuple[int, int] = (900, 4000)  # of a k tile by 256 columns; of a block besides
    narrow_cycles: tuple[int, int] = (520, 2500)  # by 128


TUNING = SparseWgmmaTuning()


def choose_tile(target: Target, batch: int, m: int, n: int, k: int) -> TileShape:
    """The cheaper one in whole waves, with as many stages as fit into shared memory."""
    k_tiles, candidates = -(-k // TILE_K), []
    for columns, (cycles, overhead) in ((256, TUNING.wide_cycles), (128, TUNING.narrow_cycles)):
        blocks = batch * -(-m // TILE_M) * -(-n // columns)
        candidates.append(Candidate(columns, blocks, k_tiles, (cycles,), overhead, k_tiles))
    columns = fastest(target, candidates, 0)[0].tile
    stage_bytes = TILE_M * ir.SPARSE_SWIZZLE_BYTES + columns * ir.SWIZZLE_BYTES + 16
    staged = epilogue.smem_bytes(TUNING.row_bytes) + 512  # besides; what a block takes itself
    stages = min(TUNING.max_stages, (target.shared_bytes - staged) // stage_bytes)
    return TileShape(columns, max(2, stages), TILE_M, True, TUNING.row_bytes)


def supports(target: Target, dtype: DType, m: int, n: int, k: int) -> bool:
    """Rows of operands and results begin at multiples of 16 bytes, and k tiles are whole."""
    whole = n % 8 == 0 and k % TILE_K == 0
    large = min(m, n, k) >= TUNING.min_extent
    return target.wgmma and dtype in (dt.float16, dt.bfloat16) and whole and large


def sparse_wgmma_gemm(
    call: Call, metadata: Callable[[Expr], ir.SparseMetadata], block: Expr, sharing: int = 1
) -> Emitted:
    """`metadata` is that of a matrix of the batch; `sharing` the blocks of a cluster."""
    s, t, dtype = call.sizes, call.tile, call.dtype
    origin, out = tile_coordinates(s, block, t.m, t.n, index32=True)
    which, m0, n0 = origin
    batch, first, k_tiles = s.k_range(which, TILE_K)
    positions = metadata(batch)
    a, b = call.a.tensor(m0, t.m, batch), call.b.tensor(n0, t.n, batch)
    a.row_bytes = ir.SPARSE_SWIZZLE_BYTES
    b.sharing = sharing
    count = ir.pipeline_smem_elements(dtype, t.m, t.n, t.stages, a.row_bytes)
    scratch = ir.Buffer("k_tiles", dtype, "scratch", const(count))
    sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(t.warp_n // 2)]
    misaligned = ir.address(positions.buffer) & const(positions.load_bytes - 1)
    aligned = call.a.aligned & call.b.aligned & misaligned.eq(0)
    start = first * TILE_K
    body = ir.WgmmaMainloop(sums, a, b, start, k_tiles, t.stages, scratch, True, metadata=positions)
    out += [
        ir.If(aligned, [body]),
        ir.If(~aligned, [_dense_tiles(call, positions, body, batch)]),
    ]
    about = ((t.m, t.n), t.warp_n, t.row_bytes, sums, origin)
    stores, buffers = epilogue.WarpEpilogue(call, *about).store()
    return [*out, *stores], [scratch, *buffers]


def _dense_tiles(
    call: Call, metadata: ir.SparseMetadata, mainloop: ir.WgmmaMainloop, batch: Expr
) -> Stmt:
    """The mainloop, of tiles that threads fill."""
    s, t, a, b = call.sizes, call.tile, mainloop.a, mainloop.b
    q, scratch, dtype = ir.var("k_tile"), mainloop.scratch, call.dtype
    start = mainloop.k_start + q * TILE_K

    def expanded(row: Expr, k: Expr) -> Expr:
        """An element of A: one that is stored where its position is that, else zero."""
        inside = ir.minimum(row, s.m - 1)
        group, place = k // GROUP, k % GROUP
        found: Expr = zero(dtype)
        for kept in range(KEPT):
            p = group * KEPT + kept
            at = metadata.first_byte + inside * metadata.row_bytes + p // GROUP
            byte = ir.load(metadata.buffer, at).cast(dt.int64)
            is_here = (byte // _power_of_four(p % GROUP) % GROUP).eq(place) & (row < s.m)
            found = ir.select(is_here, call.a.read(batch, inside, p, None), found)
        return found

    element = wgmma.existing(call.b, batch, s.k, dtype)
    mma = ir.WgmmaTile(
        mainloop.accumulators, scratch, t.m, t.n, (a.k_major, b.k_major), q, b_dtype=None
    )
    body: list[Stmt] = [
        wgmma.filled_tile(a, scratch, 0, start, TILE_K, expanded),
        wgmma.filled_tile(b, scratch, t.m * TILE_K, start, TILE_K, element),
        *(ir.AsyncFence(), ir.AsyncWait(0), mma, ir.AsyncWait(0)),
    ]
    return ir.For(q, ZERO, mainloop.k_tiles, "serial", body)


def _power_of_four(exponent: Expr) -> Expr:
    """4 ** exponent, of an exponent below 4."""
    found: Expr = const(1)
    for value in range(1, GROUP):
        found = ir.select(exponent.eq(value), const(4**value), found)
    return found
