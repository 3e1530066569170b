"""Sorting, as the ordering of unsigned integers.

Every element becomes a key that orders as it does (`encode`), with its place beside it where places
are asked for; an `Order` says how the two are packed into a record. There are three schedules:

    networks    many short rows, one per lane, or one row in a core's cache: this file, `bitonic`
    radix       rows too long for that, one after another: `radix`
    partition   few long rows, in parallel, in buckets that one of the others sorts: `partition`

Ties are ordered by place, so results depend neither on the schedule nor on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu_bitonic import GROUP, Tile, merge_lanes, sort_columns

ZERO, ONE = const(0), const(1)

Fields = list[Expr]


# -- keys -----------------------------------------------------------------------------------------


def key_dtype(dtype: DType) -> DType:
    """The unsigned integer that keys of a dtype are."""
    return dt.uint8 if dtype is dt.bool_ else dt.BY_NAME[f"uint{dtype.bits}"]


def largest_number(dtype: DType) -> int:
    """The bits of infinity, or of the largest finite number where there is none: NaN is above."""
    with np.errstate(all="ignore"):
        infinite = np.array(np.inf).astype(dtype.np)
    bits = int.from_bytes(infinite.tobytes(), "little")
    return bits if infinite == np.inf else bits - 1


def encode(x: Expr, descending: bool, ties: bool) -> Expr:
    """A key that orders as the value does, NaN last.

    With `ties`, what compares equal has one key: both zeros, all NaNs. Without, the key tells all
    values apart (but for the sign of NaN), so that `decode` gives them back.
    """
    unsigned = key_dtype(x.dtype)
    if x.dtype is dt.bool_:
        key = x.cast(unsigned)
    elif x.dtype.kind == "uint":
        key = x
    elif x.dtype.kind == "int":
        key = x.bitcast(unsigned) ^ const(1 << (x.dtype.bits - 1), unsigned)
    else:
        bits = x.bitcast(unsigned)
        top = const(1 << (x.dtype.bits - 1), unsigned)
        size = bits & ~top
        key = select((bits & top).ne(0), ~bits, bits | top)
        if ties:
            key = select(size.eq(0), top, key)
        nan = const(-1, unsigned) if ties else size | top
        key = select(size > largest_number(x.dtype), nan, key)
    return ~key if descending else key


def decode(key: Expr, dtype: DType, descending: bool) -> Expr:
    """The value of a key that was made without `ties`."""
    if descending:
        key = ~key
    if dtype is dt.bool_:
        return key.ne(0)
    if dtype.kind == "uint":
        return key
    top = const(1 << (dtype.bits - 1), key.dtype)
    if dtype.kind == "int":
        return (key ^ top).bitcast(dtype)
    return select((key & top).eq(0), ~key, key ^ top).bitcast(dtype)


@dataclass(frozen=True, slots=True)
class Order:
    """What is sorted, and the records that are moved for it: a key; a key with its place in the
    bits below it; or a key and a place."""

    dtype: DType  # of the values
    descending: bool
    places: bool  # whether places are asked for, not values
    fields: tuple[DType, ...]
    low: int  # bits of the first field that belong to the place
    floats: bool  # whether networks compare values instead of keys: NaN is put in by hand

    @property
    def key(self) -> DType:
        return self.fields[0]

    @property
    def itemsize(self) -> int:
        return sum(f.itemsize for f in self.fields)

    def record(self, value: Expr, place: Expr) -> Fields:
        key = encode(value, self.descending, self.places)
        if self.low:
            return [key.cast(self.key) << self.low | place.cast(self.key)]
        return [key, *(place.cast(f) for f in self.fields[1:])]

    def result(self, record: Fields) -> Expr:
        """What was asked for: the value of a record, or its place."""
        if not self.places:
            return decode(record[0], self.dtype, self.descending)
        if self.low:
            return (record[0] & ((1 << self.low) - 1)).cast(ir.INDEX)
        return record[1].cast(ir.INDEX)

    # -- in the tiles of networks: records, or floats among which NaN is an infinity

    @property
    def tile_fields(self) -> tuple[DType, ...]:
        return (self.dtype,) if self.floats else self.fields

    @property
    def last(self) -> Fields:
        """What comes after all others (or equals the last of them)."""
        if self.floats:
            return [const(float("inf"), self.dtype)]
        return [const(-1, f) for f in self.fields]

    def tiled_value(self, value: Expr, place: Expr) -> Fields:
        if not self.floats:
            return self.record(value, place)
        return [-value if self.descending else value]

    def tiled_record(self, record: Fields) -> Fields:
        return [decode(record[0], self.dtype, False)] if self.floats else record

    def tile_result(self, tiled: Fields) -> Expr:
        if not self.floats:
            return self.result(tiled)
        return -tiled[0] if self.descending else tiled[0]


def order(dtype: DType, length: int, descending: bool, places: bool, floats: bool) -> Order:
    """The order of rows of `length`, by the smallest records that do.

    `floats`: whether networks should compare floats as such, where they can.
    """
    key = key_dtype(dtype)
    fields: tuple[DType, ...] = (key,)
    low = 0
    if places and key.bits <= 16 and length <= 1 << 16:
        fields, low = (dt.uint32,), 16
    elif places and key.bits <= 32 and length <= 1 << 32:
        fields, low = (dt.uint64,), 32
    elif places:
        fields = (key, dt.uint32 if length <= 1 << 32 else dt.uint64)
    floats = floats and not places and dtype in (dt.float32, dt.float64)
    return Order(dtype, descending, places, fields, low, floats)


Read = Callable[[Expr], Fields]  # what stands at a place of the row
Write = Callable[[Expr, Expr], list[Stmt]]  # what is done with the result of a rank


# -- networks -------------------------------------------------------------------------------------


class _Nans:
    """The NaNs that stand aside while floats are compared: counted, then put at their end."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.count = ir.Register("nans", dt.BY_NAME[f"int{order.dtype.bits}"], lanes=True)

    def put(self, tiled: Fields) -> tuple[list[Stmt], Fields]:
        (x,) = tiled
        nan = ir.isnan(x)
        end = const(float("-inf" if self.order.descending else "inf"), x.dtype)
        more = ir.Set(self.count, ir.read(self.count) + nan.cast(self.count.dtype))
        return [more], [select(nan, end, x)]

    def start(self) -> list[Stmt]:
        return [ir.Set(self.count, const(0, self.count.dtype))]

    @property
    def value(self) -> Expr:
        return const(float("nan"), self.order.dtype)


def tile_buffers(order: Order, size: Expr) -> tuple[ir.Buffer, ...]:
    """A worker's own memory for a network: `size` is a power of two, of at least eight vectors."""
    fields = enumerate(order.tile_fields)
    return tuple(ir.Buffer(f"tile{k}", f, "scratch", size) for k, f in fields)


def side_by_side(
    length: Expr,
    row_bits: Expr,
    order: Order,
    lanes: int,
    lane: Expr,
    count: Expr,
    read: Read,
    write: Write,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort `count` rows, one per lane. Lanes beyond them sort what happens to be there."""
    buffers = tile_buffers(order, ir.mul(ONE << row_bits, const(lanes)))
    tile, nans = Tile(buffers, lanes, lane, row_bits, length), _Nans(order)
    i, pad, rank = (ir.var(n) for n in ("in_i", "pad_i", "rank"))
    counted, tiled = nans.put(read(i)) if order.floats else ([], read(i))
    value = order.tile_result([ir.load(b, tile.at(rank)) for b in buffers])
    if order.floats:
        among = ir.read(nans.count)
        place, end = rank.cast(among.dtype), length.cast(among.dtype)
        here = place < among if order.descending else place + among >= end
        value = select(here, nans.value, value)
    fill = ir.For(i, ZERO, length, "serial", [*counted, *tile.store(tile.at(i), tiled)])
    blank = ir.For(pad, length, ONE << row_bits, "serial", tile.store(tile.at(pad), order.last))
    out = ir.For(rank, ZERO, length, "serial", write(rank, value))
    return [
        *(nans.start() if order.floats else []),
        ir.For(lane, ZERO, count, "lanes", [fill]),
        ir.For(lane, ZERO, const(lanes), "lanes", [blank, *sort_columns(tile)]),
        ir.For(lane, ZERO, count, "lanes", [out]),
    ], list(buffers)


def block(
    buffers: tuple[ir.Buffer, ...], order: Order, count: Expr, lanes: int, read: Read, write: Write
) -> list[Stmt]:
    """Sort `count` elements of one row in a tile that has room for them."""
    lane, row_bits, rows = ir.var("lane"), ir.var("row_bits"), ir.var("rows")
    width = lanes.bit_length() - 1
    bits = const(64) - ir.unary("clz", ir.maximum(rows, GROUP) - 1)
    tile, nans = Tile(buffers, lanes, lane, row_bits, rows), _Nans(order)
    i, j, r, pad, n = (ir.var(n) for n in ("in_i", "column", "out_r", "pad_i", "nan_i"))
    counted, tiled = nans.put(read(i)) if order.floats else ([], read(i))
    column = j << row_bits
    stop = ir.minimum(ir.sub(count, column), ONE << row_bits)
    value = order.tile_result([ir.load(b, ir.add(ir.mul(r, const(lanes)), j)) for b in buffers])
    out: list[Stmt] = [
        ir.Let(rows, ir.add(count, const(lanes - 1)) >> width),
        ir.Let(row_bits, bits),
        *(nans.start() if order.floats else []),
        ir.For(i, ZERO, count, "lanes", [*counted, *_stores(buffers, i, tiled)]),
        ir.For(pad, count, ONE << (row_bits + width), "lanes", _stores(buffers, pad, order.last)),
        ir.For(lane, ZERO, const(lanes), "lanes", [*sort_columns(tile), *merge_lanes(tile)]),
        ir.For(
            j,
            ZERO,
            const(lanes),
            "serial",
            [ir.For(r, ZERO, stop, "lanes", write(ir.add(column, r), value))],
        ),
    ]
    if order.floats:
        among = ir.lanes_reduce("add", nans.count).cast(ir.INDEX)
        first = ZERO if order.descending else ir.sub(count, among)
        out.append(ir.For(n, ZERO, among, "lanes", write(ir.add(first, n), nans.value)))
    return out


def _stores(buffers: Sequence[ir.Buffer], at: Expr, values: Fields) -> list[Stmt]:
    return [ir.Store(b, at, v) for b, v in zip(buffers, values, strict=True)]
