"""Sorts on CPUs: sorting networks, bucket sort, radix sort.

Many short rows are sorted one per lane, few long rows in buckets, in parallel, and others by one
thread each: by quicksort where the target compresses lanes (few rows by several threads, a range of
keys each); else by a network over all lanes where they fit the L2 cache, and by radix where they do
not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, RowIndex, SortProblem, rows_in_lanes, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Candidate, family
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.sort import cpu_bucket, cpu_quick, cpu_tile, keys
from numus.kernels.sort.cpu_bitonic import UNROLL_ROWS
from numus.kernels.sort.cpu_radix import radix_sort_row
from numus.shapes import Shape

CACHE_LINE_BYTES = 64

Body = tuple[list[Stmt], list[ir.Buffer]]  # and its scratch memory


@dataclass(frozen=True)
class SortTuning:
    """Measured on 2-core machines: Neoverse N1 and x86-64 (Cascade Lake, Sapphire Rapids)."""

    small_elements: int = 1 << 9  # up to which code is kept short
    min_parallel_elements: int = 1 << 14  # of a row that is worth several threads,
    quick_cache_fraction: float = 1.0  # or, by quicksort, whose two copies are more than L2
    min_shared_elements: int = 1500  # of a row whose keys' ranges are worth several tasks,
    share_elements: int = 5000  # about so many each,
    max_shares: int = 4  # which read all of the row each,
    max_shared_rows: int = 3  # where rows are few; signed zeros must not depend on the cores
    bucket_fill: float = 0.85  # of a bucket's capacity on average, so that few overflow
    bins_per_bucket: int = 16  # of the histogram that buckets are cut from


TUNING = SortTuning()


class CpuSortProblem(SortProblem):
    """A sort with its records and cache blocking."""

    @cached_property
    def records(self) -> keys.RecordLayout:
        # the widest vectors compare twice as many floats as integers, others lack 64-bit compares
        floats = self.target.vector_bytes >= 64 or self.source.dtype is dt.float64
        return keys.record_layout(
            self.source.dtype, self.length, self.val.params[1], self.argsort, floats
        )

    @property
    def lanes(self) -> int:
        return self.target.vector_bytes // max(f.itemsize for f in self.records.fields)

    @property
    def tile(self) -> int:
        """Records of a tile that stays in L2 together with its source."""
        return 1 << (self.target.l2_bytes // 4 // self.records.itemsize).bit_length() - 1

    @property
    def radix_bits(self) -> int:
        """One open cache line of L1 per digit."""
        return (self.target.l1_bytes // CACHE_LINE_BYTES).bit_length() - 1

    def emitter(self) -> Emitter:
        return Emitter(self.layouts, self.val.size <= TUNING.small_elements)

    def read(self, e: Emitter, index: RowIndex, tiled: bool) -> keys.Read:
        make = self.records.tile_record if tiled else self.records.record
        return lambda i: make(e.value(self.source, index(i)), i)

    def write(self, e: Emitter, index: RowIndex) -> keys.Write:
        return lambda rank, value: e.store(self.val, index(rank), value)

    def kernel(self, e: Emitter, name: str, g: Expr, body: list[Stmt], grid: int) -> LoweredKernel:
        return e.grid_kernel(f"{self.val.op}_{name}", g, body, grid, (self.val.op,))


def _row_bits(rows: int) -> int:
    """log2 of the rows of a network."""
    return max((rows - 1).bit_length(), (UNROLL_ROWS - 1).bit_length())


def _fits_lanes(p: CpuSortProblem) -> bool:
    nbytes = p.length * p.lanes * p.records.itemsize
    return 2 * p.rows >= p.lanes and nbytes <= p.target.l2_bytes // 4


def _lane_sort(p: CpuSortProblem) -> Kernels:
    """A row per lane, by sorting networks."""
    e = p.emitter()
    g, lane = ir.var("g"), ir.var("lane")
    index, _, count, grid = rows_in_lanes(e, p.source.shape, p.axis, g, lane, p.lanes)
    row_bits = e.scalar_arg(_row_bits(p.length))
    body, scratch = cpu_tile.sort_lanes(
        *(e.dim(p.length), row_bits, p.records, p.lanes, lane, count),
        *(p.read(e, index, tiled=True), p.write(e, index)),
    )
    e.scratch += scratch
    return [p.kernel(e, "lanes", g, body, grid)]


def _quick(p: CpuSortProblem, capacity: Expr) -> cpu_quick.QuickSort:
    return cpu_quick.QuickSort(p.records, p.lanes, capacity)


def _sorts_quickly(p: CpuSortProblem) -> bool:
    """Records of one field, of which an instruction compresses lanes."""
    return len(p.records.fields) == 1 and p.records.itemsize >= p.target.compress_min_bytes


def _needs_buckets(p: CpuSortProblem) -> bool:
    if p.rows >= 4 * p.target.num_cores:
        return False
    if _sorts_quickly(p):
        return 2 * p.length * p.records.itemsize > TUNING.quick_cache_fraction * p.target.l2_bytes
    return p.length >= TUNING.min_parallel_elements


def _bucket_sort(p: CpuSortProblem) -> Kernels:
    """Few long rows: buckets that are sorted in parallel."""
    rows, cores = p.rows, p.target.num_cores
    blocks = -(-2 * cores // rows)
    # a bucket fills most of L1; no more buckets than L1 has lines to write to
    capacity = (1 << (p.target.l1_bytes // 2).bit_length() - 1) // p.records.itemsize
    wanted = -(-p.length // int(TUNING.bucket_fill * capacity))
    buckets = max(4 * cores, min(wanted, 1 << p.radix_bits))
    bin_bits = (TUNING.bins_per_bucket * buckets - 1).bit_length()
    memory = _bucket_memory(p, blocks, buckets, 1 << bin_bits)
    block = -(-p.length // blocks)

    Build = Callable[[Emitter, cpu_bucket.BucketSort, Expr, Expr], list[Stmt]]

    def kernel(name: str, writes: tuple[str, ...], per_row: int, build: Build) -> LoweredKernel:
        e = p.emitter()
        s = cpu_bucket.BucketSort(
            *(p.records, e.dim(p.length), e.scalar_arg(blocks), e.scalar_arg(block)),
            *(e.scalar_arg(buckets), bin_bits, p.radix_bits),
            lambda name: e.buffer(memory[name], "write" if name in writes else "read"),
        )
        g = ir.var("g")
        count = e.scalar_arg(per_row)
        row, part = divmod(g, count) if rows > 1 else (ZERO, g)
        return p.kernel(e, name, g, build(e, s, row, part), rows * per_row)

    def encode(e: Emitter, s: cpu_bucket.BucketSort, row: Expr, part: Expr) -> list[Stmt]:
        read = p.read(e, p.index(e, row), tiled=False)
        return cpu_bucket.encode_records(s, row, part, read)

    def sort(e: Emitter, s: cpu_bucket.BucketSort, row: Expr, bucket: Expr) -> list[Stmt]:
        write = p.write(e, p.index(e, row))
        tile = e.scalar_arg(p.tile)

        def sort(count: Expr, read: keys.Read, write: keys.Write) -> Body:
            if _sorts_quickly(p):
                return cpu_quick.quick_sort(_quick(p, tile), count, read, write)
            buffers = cpu_tile.tile_buffers(p.records, tile)
            return cpu_tile.sort_tile(buffers, p.records, count, p.lanes, read, write), [*buffers]

        body, scratch = cpu_bucket.sort_bucket(s, row, bucket, tile, sort, write)
        e.scratch += scratch
        return body

    records = tuple(f"records{k}" for k in range(len(p.records.fields)))
    histogram, scatter = cpu_bucket.histogram, cpu_bucket.scatter_records
    assigned = ("bucket_of_bin", "offsets", "starts")
    return [
        kernel("encode", (*records, "ranges"), blocks, encode),
        kernel("histogram", ("bins", "counts"), blocks, lambda e, *at: histogram(*at)),
        kernel("assign", assigned, 1, lambda e, s, row, _: cpu_bucket.assign_bins(s, row)),
        kernel("scatter", (*records, "offsets"), blocks, lambda e, *at: scatter(*at)),
        kernel("bucket", records, buckets, sort),
    ]


def _bucket_memory(p: CpuSortProblem, blocks: int, buckets: int, bins: int) -> dict[str, Value]:
    rows, length = p.rows, p.length
    counter = dt.uint32 if length < 1 << 32 else dt.uint64
    buffers: dict[str, tuple[Shape, DType]] = {
        **{f"records{k}": ((rows, 2, length), f) for k, f in enumerate(p.records.fields)},
        "ranges": ((rows, blocks, 2), p.key),
        "bins": ((rows, length), dt.uint16),
        "counts": ((rows, blocks, bins), counter),
        "bucket_of_bin": ((rows, bins), dt.uint16),
        "offsets": ((rows, blocks, buckets), dt.int64),
        "starts": ((rows, buckets + 1), dt.int64),
    }
    return {name: temporary(shape, dtype) for name, (shape, dtype) in buffers.items()}


def _quick_sort(p: CpuSortProblem) -> Kernels:
    """A row per thread, by quicksort."""
    e = p.emitter()
    g, length = ir.var("g"), e.dim(p.length)
    index = p.index(e, g)
    access = p.read(e, index, tiled=True), p.write(e, index)
    body, scratch = cpu_quick.quick_sort(_quick(p, length), length, *access)
    e.scratch += scratch
    return [p.kernel(e, "quick", g, body, p.rows)]


def _shares(p: CpuSortProblem) -> int:
    """Tasks that sort a row together."""
    if not _sorts_quickly(p) or p.rows > TUNING.max_shared_rows:
        return 1
    if p.length < TUNING.min_shared_elements:
        return 1
    return min(max(2, p.length // TUNING.share_elements), TUNING.max_shares)


def _shared_quick_sort(p: CpuSortProblem) -> Kernels:
    """A range of a row's keys per thread, by quicksort."""
    e = p.emitter()
    g, length, shares = ir.var("g"), e.dim(p.length), e.scalar_arg(_shares(p))
    row, share = divmod(g, shares) if p.rows > 1 else (ZERO, g)
    index = p.index(e, row)
    access = p.read(e, index, tiled=True), p.write(e, index)
    quick = _quick(p, length)
    body, scratch = cpu_quick.quick_sort_share(quick, length, share, shares, *access)
    e.scratch += scratch
    return [p.kernel(e, "quick_shares", g, body, p.rows * _shares(p))]


def _tile_sort(p: CpuSortProblem) -> Kernels:
    """A row per thread in a tile of L2, by a network over all lanes."""
    e = p.emitter()
    g = ir.var("g")
    index = p.index(e, g)
    rows = -(-p.length // p.lanes)
    tile = cpu_tile.tile_buffers(p.records, e.scalar_arg(p.lanes << _row_bits(rows)))
    access = p.read(e, index, tiled=True), p.write(e, index)
    body = cpu_tile.sort_tile(tile, p.records, e.dim(p.length), p.lanes, *access)
    e.scratch += tile
    return [p.kernel(e, "tile", g, body, p.rows)]


def _radix_sort(p: CpuSortProblem) -> Kernels:
    """A row per thread, by LSD radix sort."""
    e = p.emitter()
    g = ir.var("g")
    index = p.index(e, g)
    access = p.read(e, index, tiled=False), p.write(e, index)
    body, scratch = radix_sort_row(e.dim(p.length), p.records, p.radix_bits, *access)
    e.scratch += scratch
    return [p.kernel(e, "radix", g, body, p.rows)]


lower_sort = family(
    CpuSortProblem,
    Candidate("row per lane", _lane_sort, _fits_lanes),
    Candidate("bucket sort", _bucket_sort, _needs_buckets),
    Candidate("shared quicksort", _shared_quick_sort, lambda p: _shares(p) > 1),
    Candidate("quicksort", _quick_sort, _sorts_quickly),
    Candidate("row per tile", _tile_sort, lambda p: p.length <= p.tile),
    Candidate("radix sort", _radix_sort),
)
