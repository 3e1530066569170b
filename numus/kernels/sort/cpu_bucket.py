"""Sorting a long row in parts: dealt into buckets of neighbouring keys, each sorted by itself.

Five kernels, most of them with blocks of the row in parallel: records are collected; the cells of
their keys counted; cells joined into buckets of about the same size, whatever the distribution; the
records dealt into them; and the buckets, small enough for a core's own cache, sorted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu import (
    Fields,
    Order,
    Read,
    Write,
    block,
    key_dtype,
    largest_number,
    tile_buffers,
)
from numus.kernels.sort.cpu_radix import Limits, Space, radix

ZERO, ONE = const(0), const(1)

BINADES = 16  # powers of two that the cells of floats tell apart
LINE = 64  # bytes of memory that move together
CHUNK = 2048  # records whose cells are found before they are counted


@dataclass(frozen=True, slots=True)
class Partition:
    """The memory that the kernels of a partitioned sort share, and its sizes.

    A *cell* is one of `1 << cell_bits` stretches of the keys; a bucket is a run of neighbouring
    cells that hold about the same number of records together.
    """

    order: Order
    length: Expr
    blocks: Expr  # of a row
    block: Expr  # records of a block
    buckets: Expr
    cell_bits: int
    digit_bits: int
    buffer: Callable[[str], ir.Buffer]

    @property
    def records(self) -> tuple[ir.Buffer, ...]:
        """[row][copy][length]"""
        return tuple(self.buffer(f"records{k}") for k in range(len(self.order.fields)))

    @property
    def limits(self) -> ir.Buffer:
        """[row][block][2]: the least and largest key."""
        return self.buffer("limits")

    @property
    def cells(self) -> ir.Buffer:
        """[row][length]: the cell of each record."""
        return self.buffer("cells")

    @property
    def counts(self) -> ir.Buffer:
        """[row][block][cell]: how many records."""
        return self.buffer("counts")

    @property
    def homes(self) -> ir.Buffer:
        """[row][cell]: the bucket of a cell."""
        return self.buffer("homes")

    @property
    def offsets(self) -> ir.Buffer:
        """[row][block][bucket]: where the block's next record goes."""
        return self.buffer("offsets")

    @property
    def starts(self) -> ir.Buffer:
        """[row][bucket + 1]: where a bucket begins."""
        return self.buffer("starts")

    @property
    def cell_count(self) -> Expr:
        return const(1 << self.cell_bits)

    def first(self, row: Expr) -> Expr:
        """Where a row's records begin."""
        return ir.mul(ir.mul(row, const(2)), self.length)

    def bounds(self, block: Expr) -> tuple[Expr, Expr]:
        start = ir.mul(block, self.block)
        return start, ir.minimum(ir.add(start, self.block), self.length)

    def at_block(self, row: Expr, block: Expr) -> Expr:
        return ir.add(ir.mul(row, self.blocks), block)


class _Cells:
    """Which cell a key falls into: what has to be known of all keys, and the rule.

    Integers have cells of equal width between the least and the largest key. Keys of floats grow
    with the logarithm of their size, on both sides of zero, and most of that range is far below
    what matters: cells of equal width cover `BINADES` powers of two below the largest finite
    number; what is smaller, and what is not finite, falls into the cells at the ends.
    """

    def __init__(self, s: Partition) -> None:
        self.s, self.order = s, s.order
        self.dtype = s.order.dtype
        self.key = key_dtype(self.dtype)
        self.is_float = self.dtype.kind == "float"
        self.low, self.high = (
            ir.Register(f"cells_{k}", self.key, lanes=True) for k in ("low", "high")
        )

    def _key(self, record: Expr) -> Expr:
        return (record >> self.order.low).cast(self.key) if self.order.low else record

    def _size(self, key: Expr) -> tuple[Expr, Expr]:
        """Whether a float is positive, and the bits of its size."""
        top = const(1 << (self.key.bits - 1), self.key)
        positive = (key & top).ne(0)
        return positive, select(positive, key, ~key) & ~top

    def start(self) -> list[Stmt]:
        return [ir.Set(self.low, const(-1, self.key)), ir.Set(self.high, const(0, self.key))]

    def take(self, record: Expr) -> list[Stmt]:
        key = self._key(record)
        if not self.is_float:
            return [
                ir.Set(self.low, ir.minimum(ir.read(self.low), key)),
                ir.Set(self.high, ir.maximum(ir.read(self.high), key)),
            ]
        _, size = self._size(key)
        finite = select(size < largest_number(self.dtype), size, const(0, self.key))
        return [
            ir.Set(self.low, ir.minimum(ir.read(self.low), size)),
            ir.Set(self.high, ir.maximum(ir.read(self.high), finite)),
        ]

    def store(self, row: Expr, block: Expr) -> list[Stmt]:
        at = ir.mul(self.s.at_block(row, block), const(2))
        return [
            ir.Store(self.s.limits, at, ir.lanes_reduce("min", self.low)),
            ir.Store(self.s.limits, ir.add(at, ONE), ir.lanes_reduce("max", self.high)),
        ]

    def rule(self, row: Expr) -> tuple[list[Stmt], Callable[[Expr], Expr]]:
        """Statements that gather the limits of a row's blocks, and the cell of a record."""
        s, key = self.s, self.key
        low, high = (ir.Register(f"row_{k}", key) for k in ("low", "high"))
        b, first, last = ir.var("limit_b"), ir.var("first_key", key), ir.var("last_key", key)
        at = ir.mul(s.at_block(row, b), const(2))
        limits = [ir.load(s.limits, at), ir.load(s.limits, ir.add(at, ONE))]
        found: list[Stmt] = [
            ir.Set(low, const(-1, key)),
            ir.Set(high, const(0, key)),
            ir.For(
                b,
                ZERO,
                s.blocks,
                "serial",
                [
                    ir.Set(low, ir.minimum(ir.read(low), limits[0])),
                    ir.Set(high, ir.maximum(ir.read(high), limits[1])),
                ],
            ),
            ir.Let(first, ir.read(low)),
            ir.Let(last, ir.read(high)),
        ]
        return found, lambda record: self._cell(self._key(record), first, last)

    def _cell(self, key: Expr, first: Expr, last: Expr) -> Expr:
        if not self.is_float:
            width = const(self.key.bits) - ir.unary("clz", last - first).cast(ir.INDEX)
            shift = ir.maximum(width - self.s.cell_bits, 0).cast(self.key)
            return (key - first) >> shift
        reach = 1 << self.reach_bits
        positive, size = self._size(key)
        floor = ir.maximum(last, reach) - reach
        within = ir.minimum(ir.maximum(size, floor) - floor, reach - 1)
        place = select(positive, within + reach, const(reach - 1, key.dtype) - within)
        return place >> max(self.reach_bits + 1 - self.s.cell_bits, 0)

    @property
    def reach_bits(self) -> int:
        binades = (BINADES - 1).bit_length()
        return min(self.dtype.mantissa + binades, self.dtype.bits - 2)


def collect(s: Partition, row: Expr, block: Expr, read: Read) -> list[Stmt]:
    """A block's records, and the limits of their keys."""
    cells = _Cells(s)
    i = ir.var("in_i")
    fields = read(i)
    to = ir.add(s.first(row), i)
    fill: list[Stmt] = [ir.Store(b, to, v) for b, v in zip(s.records, fields, strict=True)]
    loop = ir.For(i, *s.bounds(block), "lanes", [*fill, *cells.take(fields[0])])
    return [*cells.start(), loop, *cells.store(row, block)]


def count_cells(s: Partition, row: Expr, block: Expr) -> list[Stmt]:
    """The cells of a block's records, and how many fall into each."""
    limits, cell = _Cells(s).rule(row)
    z, c, i, k, at = (ir.var(n) for n in ("zero_i", "chunk", "i", "k", "at"))
    mine = ir.var("mine")
    start, stop = s.bounds(block)
    end = ir.minimum(ir.add(c, const(CHUNK)), stop)
    found = cell(ir.load(s.records[0], ir.add(s.first(row), i)))
    cells = ir.mul(row, s.length)
    zero = const(0, s.counts.dtype)
    return [
        *limits,
        ir.Let(mine, ir.mul(s.at_block(row, block), s.cell_count)),
        ir.For(z, ZERO, s.cell_count, "lanes", [ir.Store(s.counts, ir.add(mine, z), zero)]),
        ir.For(
            c,
            start,
            stop,
            "serial",
            [
                ir.For(
                    i,
                    c,
                    end,
                    "lanes",
                    [ir.Store(s.cells, ir.add(cells, i), found.cast(s.cells.dtype))],
                ),
                ir.For(
                    k,
                    c,
                    end,
                    "serial",
                    [
                        ir.Let(at, ir.add(mine, _index(s.cells, ir.add(cells, k)))),
                        ir.Store(s.counts, at, ir.load(s.counts, at) + 1),
                    ],
                ),
            ],
            step=const(CHUNK),
        ),
    ]


def _index(buffer: ir.Buffer, at: Expr) -> Expr:
    return ir.load(buffer, at).cast(ir.INDEX)


def assign_buckets(s: Partition, row: Expr) -> list[Stmt]:
    """Which cells make a bucket, and where each block's share of it goes."""
    z, c, b, k = (ir.var(n) for n in ("zero_i", "c", "b", "k"))
    total = ir.Register("total", dt.int64)
    home, count, slot, before = (ir.var(n) for n in ("home", "count", "slot", "before"))
    share = s.buckets.cast(dt.float64) / s.length.cast(dt.float64)
    wanted = (ir.read(total).cast(dt.float64) * share).cast(ir.INDEX)
    mine = ir.mul(row, s.blocks)
    cell_at = ir.add(ir.mul(ir.add(mine, b), s.cell_count), c)
    offset_at = ir.mul(ir.add(mine, b), s.buckets)
    starts = ir.mul(row, ir.add(s.buckets, ONE))
    blank = ir.add(ir.mul(mine, s.buckets), z)
    return [
        ir.For(z, ZERO, ir.mul(s.blocks, s.buckets), "lanes", [ir.Store(s.offsets, blank, ZERO)]),
        ir.Set(total, ZERO),
        ir.For(
            c,
            ZERO,
            s.cell_count,
            "serial",
            [
                ir.Let(home, ir.minimum(wanted, s.buckets - 1)),
                ir.Store(s.homes, ir.add(ir.mul(row, s.cell_count), c), home.cast(s.homes.dtype)),
                ir.For(
                    b,
                    ZERO,
                    s.blocks,
                    "serial",
                    [
                        ir.Let(count, _index(s.counts, cell_at)),
                        ir.Let(slot, ir.add(offset_at, home)),
                        ir.Store(s.offsets, slot, ir.add(ir.load(s.offsets, slot), count)),
                        ir.Set(total, ir.add(ir.read(total), count)),
                    ],
                ),
            ],
        ),
        ir.Set(total, ZERO),
        ir.For(
            k,
            ZERO,
            s.buckets,
            "serial",
            [
                ir.Store(s.starts, ir.add(starts, k), ir.read(total)),
                ir.For(
                    b,
                    ZERO,
                    s.blocks,
                    "serial",
                    [
                        ir.Let(slot, ir.add(offset_at, k)),
                        ir.Let(before, ir.read(total)),
                        ir.Set(total, ir.add(before, ir.load(s.offsets, slot))),
                        ir.Store(s.offsets, slot, before),
                    ],
                ),
            ],
        ),
        ir.Store(s.starts, ir.add(starts, s.buckets), s.length),
    ]


def deal(s: Partition, row: Expr, block: Expr) -> list[Stmt]:
    """A block's records into their buckets, in the second copy."""
    i, at, slot, mine, homes = (ir.var(n) for n in ("i", "at", "slot", "mine", "homes"))
    fields = [ir.load(b, ir.add(s.first(row), i)) for b in s.records]
    to = ir.add(ir.add(s.first(row), s.length), slot)
    cell = _index(s.cells, ir.add(ir.mul(row, s.length), i))
    body: list[Stmt] = [
        ir.Let(at, ir.add(mine, _index(s.homes, ir.add(homes, cell)))),
        ir.Let(slot, ir.load(s.offsets, at)),
        ir.Store(s.offsets, at, ir.add(slot, ONE)),
        *(ir.Store(b, to, f) for b, f in zip(s.records, fields, strict=True)),
        *(ir.Prefetch(b, ir.add(to, const(2 * LINE // b.dtype.itemsize))) for b in s.records),
    ]
    return [
        ir.Let(mine, ir.mul(s.at_block(row, block), s.buckets)),
        ir.Let(homes, ir.mul(row, s.cell_count)),
        ir.For(i, *s.bounds(block), "serial", body),
    ]


def sort_bucket(
    s: Partition, row: Expr, bucket: Expr, lanes: int, tile_size: Expr, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """A bucket's records in order: in a tile, or by radix where one value is so common, or the keys
    so unevenly spread, that the bucket is larger than that."""
    counts = ir.Buffer("counts", dt.int64, "scratch", const(1 << s.digit_bits))
    tile = tile_buffers(s.order, tile_size)
    start, count, first = ir.var("start"), ir.var("count"), ir.var("first")
    at = ir.add(ir.mul(row, ir.add(s.buckets, ONE)), bucket)
    limits = Limits("bucket", s.order.key)
    i = ir.var("limit_i")
    space = Space(s.records, counts, ir.sub(ZERO, s.length), s.digit_bits)

    def read(i: Expr) -> Fields:
        return [ir.load(b, ir.add(first, i)) for b in s.records]

    def tiled(i: Expr) -> Fields:
        return s.order.tiled_record(read(i))

    def finish(i: Expr, value: Expr) -> list[Stmt]:
        return write(ir.add(start, i), value)

    return [
        ir.Let(start, ir.load(s.starts, at)),
        ir.Let(count, ir.sub(ir.load(s.starts, ir.add(at, ONE)), start)),
        ir.Let(first, ir.add(ir.add(s.first(row), s.length), start)),
        ir.If(count <= tile_size, block(tile, s.order, count, lanes, tiled, finish)),
        ir.If(
            count > tile_size,
            [
                *limits.start(),
                ir.For(i, ZERO, count, "lanes", limits.take(read(i)[0])),
                *radix(space, s.order, first, count, *limits.results(), finish),
            ],
        ),
    ], [counts, *tile]
