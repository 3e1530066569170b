"""Tensor-core operations: cp.async copies, mma.sync, wgmma, and the TMA-fed wgmma mainloop.

Only on targets with `Target.mma_sync` or `Target.wgmma`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus.dtypes import DType
from numus.ir.expressions import Buffer, Expr, Register, add, binary, const, idiv, irem, mul
from numus.ir.statements import Stmt

SWIZZLE_BYTES = 128  # row of a swizzled tile
SPARSE_SWIZZLE_BYTES = 64  # of A with 2:4 sparsity, which has half of the elements


@dataclass(eq=False, slots=True)
class AsyncCopy(Stmt):
    """cp.async of 4, 8 or 16 aligned bytes from global to shared memory; elements from
    `valid_elements` on become zero. Inside a lanes loop; complete after an `AsyncWait`."""

    dst: Buffer  # scratch
    dst_index: Expr
    src: Buffer
    src_index: Expr
    valid_elements: Expr
    nbytes: int = 16


@dataclass(eq=False, slots=True)
class AsyncCommit(Stmt):
    """cp.async.commit_group. Outside lanes loops."""


@dataclass(eq=False, slots=True)
class AsyncFence(Stmt):
    """fence.proxy.async: shared-memory stores of this thread become visible to wgmma after the next
    `AsyncWait`, and those that it has waited for at once."""


@dataclass(eq=False, slots=True)
class AsyncWait(Stmt):
    """Block-wide wait for all but the last `pending` committed groups of copies; with a `fence`,
    copies and stores are visible to wgmma."""

    pending: int
    fence: bool = False


@dataclass(eq=False, slots=True)
class MmaOperand:
    """A 128-byte swizzled tile in shared memory, K-major or MN-major in blocks of 64 columns.

    A matrix stored in blocks of 64 columns serves as both: with its columns as k, `tile_mn` rows
    separate consecutive blocks; with its rows as k, Wgmma.k rows do.
    """

    buffer: Buffer
    offset: Expr  # in elements
    k_major: bool
    tile_mn: int = 0  # rows of a block, where k exceeds 64


@dataclass(eq=False, slots=True)
class Wgmma(Stmt):
    """Asynchronous m64 wgmma per warpgroup, complete after a `WgmmaWait`. Outside lanes loops.

    An A operand in registers has the accumulator layout (`accumulator_element`): float32 is rounded
    to the dtype of B, int32 are `PackFragments`. With `zero_init` the accumulators are overwritten.
    Warpgroups have 64 rows of A each, or `by_columns` the same rows, and n columns of B each.
    """

    accumulators: list[Register]  # per lane, float32
    a: MmaOperand | list[Register]
    b: MmaOperand
    n: int
    k: int
    zero_init: bool = False
    by_columns: bool = False


@dataclass(eq=False, slots=True)
class PackFragments(Stmt):
    """Round accumulators to the A operand of a wgmma: pairs of 16 bits in int32 registers. Outside
    lanes loops."""

    words: list[Register]  # per lane, int32
    accumulators: list[Register]  # per lane, float32: twice as many
    dtype: DType


@dataclass(eq=False, slots=True)
class WgmmaWait(Stmt):
    """Wait for all but the last `pending` wgmmas into these accumulators. Other registers may be
    listed: they are computed before."""

    accumulators: list[Register]
    pending: int


def accumulator_element(thread: Expr, index: int) -> tuple[Expr, Expr]:
    """(row, column) of a thread's accumulator `index`: the wgmma fragment layout."""
    warp, lane = idiv(thread, const(32)), irem(thread, const(32))
    row = add(mul(warp, const(16)), idiv(lane, const(4)))
    column = mul(irem(lane, const(4)), const(2))
    row_offset, column_offset = index // 2 % 2 * 8, index // 4 * 8 + index % 2
    return add(row, const(row_offset)), add(column, const(column_offset))


@dataclass(eq=False, slots=True)
class Im2col:
    """Channels-last images whose pixels, under a tap of windows, are the rows of a tile: TMA's
    im2col mode. Axes of space are listed from the last to the first.

    The rows are the pixels at which windows begin, `steps` apart, from `lower` at the first to
    `upper` behind the last one of every axis, image after image; `at` has, by the variable `k`, a
    tile's first channel, its first pixel, its image, and the displacements of the tap: of a K-major
    tile, or of each 64 rows of an MN-major one.
    """

    extents: tuple[Expr, ...]  # channels, space, images
    strides: tuple[Expr, ...]  # of space and images; in elements
    lower: tuple[int, ...]
    upper: tuple[int, ...]
    steps: tuple[int, ...]
    k: Expr
    at: list[tuple[Expr, ...]]


@dataclass(eq=False, slots=True)
class TmaTensor:
    """A batch of matrices in global memory loaded tile by tile through TMA.

    Extents and strides are scalars or constants; rows are 16-byte aligned. Tiles follow each other
    along k, unless `origin` gives the (inner, outer) coordinate of each by the variable `k_tile`.
    Out-of-bounds elements are zero.
    """

    buffer: Buffer
    k_major: bool
    extents: tuple[Expr, Expr, Expr]  # inner, outer, batch
    strides: tuple[Expr, Expr]  # outer, batch; in elements
    mn_offset: Expr  # first row of A, or column of B
    tile_mn: int  # rows of A, or columns of B
    batch: Expr
    k_tile: Expr | None = None
    origin: tuple[Expr, Expr] | None = None
    row_bytes: int = SWIZZLE_BYTES  # of a K-major tile
    im2col: Im2col | None = None  # instead of matrices: extents, strides and batch have no meaning
    sharing: int = 1  # blocks of a cluster, that have the same tile: each loads a part for all


@dataclass(eq=False, slots=True)
class SparseMetadata:
    """2:4 sparsity of A: its tensor has the two elements of every four along k that are stored, a
    k tile in rows of SPARSE_SWIZZLE_BYTES; `buffer` has their positions, two bits each, 8 bytes for
    a row of a k tile."""

    buffer: Buffer  # of bytes
    first_byte: Expr  # of the matrix of the batch
    rows: Expr  # of A
    row_bytes: Expr  # from one row to the next
    load_bytes: int  # 8, or 16 of an even number of k tiles; the buffer and rows are aligned to it


@dataclass(eq=False, slots=True)
class KTileScales:
    """Factors of the products of a k tile, as thread `lane` of the consumers has them: of its even
    rows of accumulators, and of those 8 below. Float32."""

    lane: Expr  # variables
    k_tile: Expr
    rows: tuple[Expr, Expr]


@dataclass(eq=False, slots=True)
class WgmmaMainloop(Stmt):
    """Warp-specialised GEMM mainloop: two consumer warpgroups accumulate `k_tiles` tiles of
    SWIZZLE_BYTES along k, a producer warp loads them by TMA `stages` ahead.

    Each warpgroup has 64 rows, or half of the columns where there are only 64. Products of float8
    are added to the accumulators tile by tile, and may be scaled on the way. In a persistent
    kernel the producer loads the next output tile during the epilogue. `scratch` is clobbered.
    Outside lanes loops.
    """

    accumulators: list[Register]  # per lane, as of `Wgmma`
    a: TmaTensor
    b: TmaTensor
    k_start: Expr  # in elements
    k_tiles: Expr
    stages: int
    scratch: Buffer
    zero_init: bool = False  # requires k_tiles > 0
    scales: KTileScales | None = None
    metadata: SparseMetadata | None = None  # of A, whose tiles have 128 rows


@dataclass(eq=False, slots=True)
class WgmmaTile(Stmt):
    """Synchronous wgmma of one k tile that threads have stored to `scratch` by `swizzle`: m rows of
    A, then n columns of B."""

    accumulators: list[Register]
    scratch: Buffer
    m: int
    n: int
    k_major: tuple[bool, bool]
    accumulate: Expr | None = None  # 0: the accumulators are overwritten
    b_dtype: DType | None = None  # of elements of B, where `scratch` has that of A


@dataclass(eq=False, slots=True)
class MmaSync(Stmt):
    """Warp-level m16n8 MMA. Thread t holds words t % 4 and t % 4 + 4 along k of row t / 4 (of A
    also of row t / 4 + 8), and two adjacent columns of C in each of these rows. A word is 4 bytes
    of elements, or one float64. Inside a lanes loop of one iteration per thread."""

    accumulators: list[Register]  # 4, per lane
    a: list[Expr]  # 4: rows first, then words along k
    b: list[Expr]  # 2
    dtype: DType  # of elements


def pipeline_smem_elements(
    dtype: DType, tile_m: int, tile_n: int, stages: int, a_row_bytes: int = SWIZZLE_BYTES
) -> int:
    """Scratch elements of a `WgmmaMainloop`: tiles and mbarriers."""
    return stages * (tile_m * a_row_bytes + tile_n * SWIZZLE_BYTES + 16) // dtype.itemsize


def swizzle(k_major: bool, mn: Expr, k: Expr, tile_k: int, itemsize: int) -> Expr:
    """Element offset of the 16-byte chunk at (mn, k) in a tile with the 128-byte XOR swizzle."""
    chunk, row = const(16 // itemsize), const(SWIZZLE_BYTES // itemsize)
    eight = const(8)
    if k_major:
        at = binary("xor", idiv(k, chunk), irem(mn, eight))
        return add(mul(mn, row), mul(at, chunk))
    at = binary("xor", idiv(irem(mn, row), chunk), irem(k, eight))
    block = mul(idiv(mn, row), const(SWIZZLE_BYTES // itemsize * tile_k))
    return add(add(block, mul(k, row)), mul(at, chunk))
