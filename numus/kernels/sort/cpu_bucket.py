"""Parallel bucket sort of long rows, with splitters from a fine histogram of all keys.

Five kernels, all but the third parallel over blocks of the row: encode records; histogram their
bins; join bins into buckets of about equal size, whatever the distribution; scatter records into
buckets; sort each bucket, which fits a core's cache, by quicksort, network or radix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu_radix import DoubleBuffer, KeyRange, radix_sort
from numus.kernels.sort.keys import Read, Record, RecordLayout, Write, infinity_bits, key_dtype

ZERO, ONE = const(0), const(1)

BINADES = 16  # below the largest finite float that bins resolve
LINE_BYTES = 64  # of a cache line
CHUNK_RECORDS = 2048  # binned by vectors before they are counted serially


class _NamedBuffer:
    """The buffer of an attribute's name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, s: BucketSort, owner: type) -> ir.Buffer:
        return s.buffer(self.name)


@dataclass(frozen=True, slots=True)
class BucketSort:
    """The buffers and sizes that the kernels share.

    A *bin* is one of `1 << bin_bits` intervals of the keys; a bucket is a range of bins that hold
    about the same number of records together.
    """

    layout: RecordLayout
    length: Expr
    blocks: Expr  # of a row
    block: Expr  # records of a block
    buckets: Expr
    bin_bits: int
    radix_bits: int
    buffer: Callable[[str], ir.Buffer]

    @property
    def records(self) -> tuple[ir.Buffer, ...]:
        """[row][copy][length]"""
        return tuple(self.buffer(f"records{k}") for k in range(len(self.layout.fields)))

    ranges = _NamedBuffer()  # [row][block][2]: the minimum and maximum key
    bins = _NamedBuffer()  # [row][length]: the bin of each record
    counts = _NamedBuffer()  # [row][block][bin]: the histogram
    bucket_of_bin = _NamedBuffer()  # [row][bin]: the bucket of a bin
    offsets = _NamedBuffer()  # [row][block][bucket]: the destination of the block's next record
    starts = _NamedBuffer()  # [row][bucket + 1]: the first record of a bucket

    @property
    def bin_count(self) -> Expr:
        return const(1 << self.bin_bits)

    def first(self, row: Expr) -> Expr:
        """The address of a row's records."""
        return ir.mul(ir.mul(row, const(2)), self.length)

    def bounds(self, block: Expr) -> tuple[Expr, Expr]:
        return ir.block_range(block, self.block, self.length)

    def at_block(self, row: Expr, block: Expr) -> Expr:
        return ir.add(ir.mul(row, self.blocks), block)


class _Bins:
    """The map from keys to bins, from the range of all keys.

    Integers: bins of equal width between minimum and maximum. Floats: their keys are logarithmic on
    both sides of zero, so bins of equal width cover `BINADES` powers of two below the largest
    finite magnitude; smaller and non-finite values fall into the outermost bins.
    """

    def __init__(self, s: BucketSort) -> None:
        self.s, self.layout = s, s.layout
        self.dtype = s.layout.dtype
        self.key = key_dtype(self.dtype)
        self.is_float = self.dtype.kind == "float"
        self.range = KeyRange("range", self.key)

    def _key(self, record: Expr) -> Expr:
        bits = self.layout.index_bits
        return (record >> bits).cast(self.key) if bits else record

    def _magnitude(self, key: Expr) -> tuple[Expr, Expr]:
        """The sign (true: positive) and the magnitude bits of a float."""
        top = const(1 << (self.key.bits - 1), self.key)
        positive = (key & top).ne(0)
        return positive, select(positive, key, ~key) & ~top

    def update(self, record: Expr) -> list[Stmt]:
        key = self._key(record)
        if not self.is_float:
            return self.range.update(key)
        _, magnitude = self._magnitude(key)
        finite = select(magnitude < infinity_bits(self.dtype), magnitude, const(0, self.key))
        return self.range.update(magnitude, finite)

    def store(self, row: Expr, block: Expr) -> list[Stmt]:
        at = ir.mul(self.s.at_block(row, block), const(2))
        low, high = self.range.results()
        ranges = self.s.ranges
        return [ir.Store(ranges, at, low), ir.Store(ranges, ir.add(at, ONE), high)]

    def mapping(self, row: Expr) -> tuple[list[Stmt], Callable[[Expr], Expr]]:
        """Statements that combine the ranges of a row's blocks, and the map to bins."""
        s, key = self.s, self.key
        whole = KeyRange("row", key, lanes=False)
        b, first, last = ir.var("limit_b"), ir.var("first_key", key), ir.var("last_key", key)
        at = ir.mul(s.at_block(row, b), const(2))
        ranges = ir.load(s.ranges, at), ir.load(s.ranges, ir.add(at, ONE))
        found = [
            *whole.start(),
            ir.For(b, ZERO, s.blocks, "serial", whole.update(*ranges)),
            *ir.lets([first, last], ir.reads([whole.low, whole.high])),
        ]
        return found, lambda record: self._bin(self._key(record), first, last)

    def _bin(self, key: Expr, first: Expr, last: Expr) -> Expr:
        if not self.is_float:
            width = const(self.key.bits) - ir.unary("clz", last - first).cast(ir.INDEX)
            shift = ir.maximum(width - self.s.bin_bits, 0).cast(self.key)
            return (key - first) >> shift
        limit = 1 << self.resolved_bits
        positive, magnitude = self._magnitude(key)
        floor = ir.maximum(last, limit) - limit
        within = ir.minimum(ir.maximum(magnitude, floor) - floor, limit - 1)
        linear = select(positive, within + limit, const(limit - 1, key.dtype) - within)
        return linear >> max(self.resolved_bits + 1 - self.s.bin_bits, 0)

    @property
    def resolved_bits(self) -> int:
        binades = (BINADES - 1).bit_length()
        return min(self.dtype.mantissa + binades, self.dtype.bits - 2)


def encode_records(s: BucketSort, row: Expr, block: Expr, read: Read) -> list[Stmt]:
    """Encode a block's records and find the range of their keys."""
    bins = _Bins(s)
    i = ir.var("in_i")
    fields = read(i)
    to = ir.add(s.first(row), i)
    fill = ir.stores(s.records, to, fields)
    loop = ir.For(i, *s.bounds(block), "lanes", [*fill, *bins.update(fields[0])])
    return [*bins.range.start(), loop, *bins.store(row, block)]


def histogram(s: BucketSort, row: Expr, block: Expr) -> list[Stmt]:
    """The bins of a block's records and their histogram."""
    ranges, bin_of = _Bins(s).mapping(row)
    z, c, i, k, at = (ir.var(n) for n in ("zero_i", "chunk", "i", "k", "at"))
    mine = ir.var("mine")
    start, stop = s.bounds(block)
    end = ir.minimum(ir.add(c, const(CHUNK_RECORDS)), stop)
    found = bin_of(ir.load(s.records[0], ir.add(s.first(row), i)))
    bins = ir.mul(row, s.length)
    zero = const(0, s.counts.dtype)
    store = ir.Store(s.bins, ir.add(bins, i), found.cast(s.bins.dtype))
    count: list[Stmt] = [
        ir.Let(at, ir.add(mine, _index(s.bins, ir.add(bins, k)))),
        ir.Store(s.counts, at, ir.load(s.counts, at) + 1),
    ]
    chunk: list[Stmt] = [ir.For(i, c, end, "lanes", [store]), ir.For(k, c, end, "serial", count)]
    return [
        *ranges,
        ir.Let(mine, ir.mul(s.at_block(row, block), s.bin_count)),
        ir.For(z, ZERO, s.bin_count, "lanes", [ir.Store(s.counts, ir.add(mine, z), zero)]),
        ir.For(c, start, stop, "serial", chunk, step=const(CHUNK_RECORDS)),
    ]


def _index(buffer: ir.Buffer, at: Expr) -> Expr:
    return ir.load(buffer, at).cast(ir.INDEX)


def assign_bins(s: BucketSort, row: Expr) -> list[Stmt]:
    """Buckets of about equal size from the histogram, and each block's offsets into them."""
    z, c, b, k = (ir.var(n) for n in ("zero_i", "c", "b", "k"))
    total = ir.Register("total", dt.int64)
    bucket, count, slot, before = (ir.var(n) for n in ("bucket", "count", "slot", "before"))
    share = s.buckets.cast(dt.float64) / s.length.cast(dt.float64)
    wanted = (ir.read(total).cast(dt.float64) * share).cast(ir.INDEX)
    mine = ir.mul(row, s.blocks)
    bin_at = ir.add(ir.mul(ir.add(mine, b), s.bin_count), c)
    offset_at = ir.mul(ir.add(mine, b), s.buckets)
    starts = ir.mul(row, ir.add(s.buckets, ONE))
    bins = ir.add(ir.mul(row, s.bin_count), c)
    zero_at = ir.add(ir.mul(mine, s.buckets), z)
    clear = ir.Store(s.offsets, zero_at, ZERO)
    assign: list[Stmt] = [
        ir.Let(bucket, ir.minimum(wanted, s.buckets - 1)),
        ir.Store(s.bucket_of_bin, bins, bucket.cast(s.bucket_of_bin.dtype)),
    ]
    add: list[Stmt] = [
        ir.Let(count, _index(s.counts, bin_at)),
        ir.Let(slot, ir.add(offset_at, bucket)),
        ir.Store(s.offsets, slot, ir.add(ir.load(s.offsets, slot), count)),
        ir.Set(total, ir.add(ir.read(total), count)),
    ]
    first = ir.Store(s.starts, ir.add(starts, k), ir.read(total))
    scan: list[Stmt] = [
        ir.Let(slot, ir.add(offset_at, k)),
        ir.Let(before, ir.read(total)),
        ir.Set(total, ir.add(before, ir.load(s.offsets, slot))),
        ir.Store(s.offsets, slot, before),
    ]
    blocks = (b, ZERO, s.blocks, "serial")
    return [
        ir.For(z, ZERO, ir.mul(s.blocks, s.buckets), "lanes", [clear]),
        ir.Set(total, ZERO),
        ir.For(c, ZERO, s.bin_count, "serial", [*assign, ir.For(*blocks, add)]),
        ir.Set(total, ZERO),
        ir.For(k, ZERO, s.buckets, "serial", [first, ir.For(*blocks, scan)]),
        ir.Store(s.starts, ir.add(starts, s.buckets), s.length),
    ]


def scatter_records(s: BucketSort, row: Expr, block: Expr) -> list[Stmt]:
    """Move a block's records into their buckets in the second buffer."""
    i, at, slot, mine, bins = (ir.var(n) for n in ("i", "at", "slot", "mine", "bins"))
    fields = [ir.load(b, ir.add(s.first(row), i)) for b in s.records]
    to = ir.add(ir.add(s.first(row), s.length), slot)
    bin_of = _index(s.bins, ir.add(ir.mul(row, s.length), i))
    body: list[Stmt] = [
        ir.Let(at, ir.add(mine, _index(s.bucket_of_bin, ir.add(bins, bin_of)))),
        ir.Let(slot, ir.load(s.offsets, at)),
        ir.Store(s.offsets, at, ir.add(slot, ONE)),
        *ir.stores(s.records, to, fields),
        *(ir.Prefetch(b, ir.add(to, const(2 * LINE_BYTES // b.dtype.itemsize))) for b in s.records),
    ]
    return [
        ir.Let(mine, ir.mul(s.at_block(row, block), s.buckets)),
        ir.Let(bins, ir.mul(row, s.bin_count)),
        ir.For(i, *s.bounds(block), "serial", body),
    ]


SortInCache = Callable[[Expr, Read, Write], tuple[list[Stmt], list[ir.Buffer]]]  # of a count


def sort_bucket(
    s: BucketSort, row: Expr, bucket: Expr, tile_size: Expr, sort: SortInCache, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort a bucket by `sort`, or by radix where repeated keys make it larger than a tile."""
    counts = ir.Buffer("counts", dt.int64, "scratch", const(1 << s.radix_bits))
    start, count, first = ir.var("start"), ir.var("count"), ir.var("first")
    at = ir.add(ir.mul(row, ir.add(s.buckets, ONE)), bucket)
    key_range = KeyRange("bucket", s.layout.key)
    i = ir.var("limit_i")
    data = DoubleBuffer(s.records, counts, ir.sub(ZERO, s.length), s.radix_bits)

    def read(i: Expr) -> Record:
        return [ir.load(b, ir.add(first, i)) for b in s.records]

    def finish(i: Expr, value: Expr) -> list[Stmt]:
        return write(ir.add(start, i), value)

    bounds = [
        ir.Let(start, ir.load(s.starts, at)),
        ir.Let(count, ir.sub(ir.load(s.starts, ir.add(at, ONE)), start)),
        ir.Let(first, ir.add(ir.add(s.first(row), s.length), start)),
    ]
    in_cache, scratch = sort(count, lambda i: s.layout.to_tile(read(i)), finish)
    large: list[Stmt] = [
        *key_range.start(),
        ir.For(i, ZERO, count, "lanes", key_range.update(read(i)[0])),
        *radix_sort(data, s.layout, first, count, *key_range.results(), finish),
    ]
    return [
        *bounds,
        ir.If(count <= tile_size, in_cache),
        ir.If(count > tile_size, large),
    ], [counts, *scratch]
