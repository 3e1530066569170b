"""Warp-specialised wgmma GEMM whose A has 2:4 sparsity (Mishra et al. 2021), persistent.

The mainloop is that of the dense GEMM (`wgmma.py`); a k tile of A takes half of the bytes, and half
of the instructions multiply it. Operands that TMA finds misaligned at run time are multiplied
element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import epilogue, wgmma
from numus.kernels.matmul.gpu.mainloop import tile_coordinates
from numus.kernels.matmul.gpu.problem import Emitted, multiply_add
from numus.kernels.matmul.gpu.wgmma import MMA_THREADS, TILE_M, Call, TileShape
from numus.target import Target

ZERO = const(0)
GROUP, KEPT = 4, 2  # elements along k, and those of them that are stored
K_OF_BYTE = 2 * GROUP  # whose positions a byte has
TILE_K = ir.SWIZZLE_BYTES // 2  # elements of 16 bits


@dataclass(frozen=True, slots=True)
class SparseWgmmaTuning:
    """Expected on one H200, from the bytes that tensor cores read of shared memory."""

    min_extent: int = 256  # of m, n and k: below, dense products are as fast
    wide_cycles: int = 900  # of a k tile of 256 columns,
    narrow_cycles: int = 500  # and of 128
    tile_cycles: int = 3500  # of a tile besides
    max_stages: int = 8


TUNING = SparseWgmmaTuning()


def choose_tile(target: Target, batch: int, m: int, n: int, k: int) -> TileShape:
    """128 x 256 where that takes fewer cycles than 128 x 128, by waves of tiles."""

    def cycles(columns: int) -> int:
        waves = -(-batch * -(-m // TILE_M) * -(-n // columns) // target.num_cores)
        each = TUNING.wide_cycles if columns == 256 else TUNING.narrow_cycles
        return waves * (k // TILE_K * each + TUNING.tile_cycles)

    columns = min((256, 128), key=cycles)
    stage_bytes = TILE_M * ir.SPARSE_SWIZZLE_BYTES + columns * ir.SWIZZLE_BYTES + 16
    staged = epilogue.smem_bytes(epilogue.ROW_BYTES) + 512  # besides; what a block takes itself
    stages = min(TUNING.max_stages, (target.shared_bytes - staged) // stage_bytes)
    return TileShape(columns, max(2, stages), TILE_M, True, epilogue.ROW_BYTES)


def supports(target: Target, dtype: DType, m: int, n: int, k: int) -> bool:
    """Rows of operands and results begin at multiples of 16 bytes, and k tiles are whole."""
    whole = n % 8 == 0 and k % TILE_K == 0
    large = min(m, n, k) >= TUNING.min_extent
    return target.wgmma and dtype in (dt.float16, dt.bfloat16) and whole and large


def sparse_wgmma_gemm(
    call: Call, metadata: Callable[[Expr], ir.SparseMetadata], block: Expr
) -> Emitted:
    """`metadata` is that of a matrix of the batch."""
    s, t, dtype = call.sizes, call.tile, call.dtype
    origin, out = tile_coordinates(s, block, t.m, t.n, index32=True)
    which, m0, n0 = origin
    batch, first, k_tiles = s.k_range(which, TILE_K)
    positions = metadata(batch)
    a, b = call.a.tensor(m0, t.m, batch), call.b.tensor(n0, t.n, batch)
    a.row_bytes = ir.SPARSE_SWIZZLE_BYTES
    count = ir.pipeline_smem_elements(dtype, t.m, t.n, t.stages, a.row_bytes)
    scratch = ir.Buffer("k_tiles", dtype, "scratch", const(count))
    sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(t.warp_n // 2)]
    misaligned = ir.address(positions.buffer) & const(positions.load_bytes - 1)
    aligned = call.a.aligned & call.b.aligned & misaligned.eq(0)
    start = first * TILE_K
    body = ir.WgmmaMainloop(sums, a, b, start, k_tiles, t.stages, scratch, True, metadata=positions)
    out += [
        ir.If(aligned, [body]),
        ir.If(~aligned, [_element_by_element(call, positions, sums, (batch, m0, n0))]),
    ]
    about = ((t.m, t.n), t.warp_n, t.row_bytes, sums, origin)
    stores, buffers = epilogue.WarpEpilogue(call, *about).store()
    return [*out, *stores], [scratch, *buffers]


def _element_by_element(
    call: Call, metadata: ir.SparseMetadata, sums: list[ir.Register], origin: tuple[Expr, ...]
) -> Stmt:
    """Each thread multiplies what its accumulators are of."""
    batch, m0, n0 = origin
    s, lane, p = call.sizes, ir.var("slow_lane"), ir.var("slow_k")
    rows = [m0 + wgmma.coordinates(call.tile, lane, 2 * half)[0] for half in range(2)]
    body: list[Stmt] = []
    found: list[tuple[Expr, Expr]] = []  # an element of A and its k, by rows
    for half, row in enumerate(rows):
        name, k = ir.var(f"slow_a{half}", float32), ir.var(f"slow_k{half}")
        inside = ir.minimum(row, s.m - 1)
        at = metadata.first_byte + inside * metadata.row_bytes + p // GROUP
        byte = ir.load(metadata.buffer, at).cast(dt.int64)
        position = byte // _power_of_four(p % GROUP) % GROUP
        body.append(ir.Let(k, p // KEPT * GROUP + position))
        body.append(ir.Let(name, call.a.read(batch, inside, p, None).cast(float32)))
        found.append((name, k))
    for i, c in enumerate(sums):
        _, column = wgmma.coordinates(call.tile, lane, i)
        a, k = found[i // 2 % 2]
        b = call.b.read(batch, ir.minimum(n0 + column, s.n - 1), k, None).cast(float32)
        body.append(ir.Set(c, multiply_add(a, b, ir.read(c))))
    clear: list[Stmt] = [ir.Set(c, const(0, float32)) for c in sums]
    loop = ir.For(p, ZERO, s.k // KEPT, "serial", body)
    return ir.For(lane, ZERO, const(MMA_THREADS), "lanes", [*clear, loop])


def _power_of_four(exponent: Expr) -> Expr:
    """4 ** exponent, of an exponent below 4."""
    found: Expr = const(1)
    for value in range(1, GROUP):
        found = ir.select(exponent.eq(value), const(4**value), found)
    return found
