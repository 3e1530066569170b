"""Sorting networks on CPUs: short rows, one per lane, or one row in a tile that fits the cache."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu_bitonic import UNROLL_ROWS, Tile, merge_lanes, sort_columns
from numus.kernels.sort.keys import Read, Record, RecordLayout, Write

ZERO, ONE = const(0), const(1)


class NanCounter:
    """NaNs among compared floats: sorted as infinities, counted, and written over the end."""

    def __init__(self, layout: RecordLayout) -> None:
        self.layout = layout
        self.count = ir.Register("nans", dt.BY_NAME[f"int{layout.dtype.bits}"], lanes=True)

    def replace(self, tiled: Record) -> tuple[list[Stmt], Record]:
        (x,) = tiled
        nan = ir.isnan(x)
        end = const(float("-inf" if self.layout.descending else "inf"), x.dtype)
        more = ir.Set(self.count, ir.read(self.count) + nan.cast(self.count.dtype))
        return [more], [select(nan, end, x)]

    def start(self) -> list[Stmt]:
        return [ir.Set(self.count, const(0, self.count.dtype))]

    @property
    def value(self) -> Expr:
        return const(float("nan"), self.layout.dtype)

    def write_last(
        self, i: Expr, count: Expr, write: Write, within: tuple[Expr, Expr] | None = None
    ) -> list[Stmt]:
        """Write the NaNs of all lanes over the end of a sorted row, or the start, if descending;
        those whose positions are `within` a range."""
        among = ir.lanes_reduce("add", self.count).cast(ir.INDEX)
        first = ZERO if self.layout.descending else ir.sub(count, among)
        last = ir.add(first, among)
        if within is not None:
            first, last = ir.maximum(first, within[0]), ir.minimum(last, within[1])
        return [ir.For(i, first, last, "lanes", write(i, self.value))]


def tile_buffers(layout: RecordLayout, size: Expr) -> tuple[ir.Buffer, ...]:
    """A worker's scratch for a network: `size` is a power of two, at least eight vectors."""
    fields = enumerate(layout.tile_fields)
    return tuple(ir.Buffer(f"tile{k}", f, "scratch", size) for k, f in fields)


def sort_lanes(
    length: Expr,
    row_bits: Expr,
    layout: RecordLayout,
    lanes: int,
    lane: Expr,
    count: Expr,
    read: Read,
    write: Write,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort `count` rows, one per lane; lanes past them sort stale data."""
    buffers = tile_buffers(layout, ir.mul(ONE << row_bits, const(lanes)))
    tile, nans = Tile(buffers, lanes, lane, row_bits, length), NanCounter(layout)
    i, pad, rank = (ir.var(n) for n in ("in_i", "pad_i", "rank"))
    counted, tiled = nans.replace(read(i)) if layout.compare_floats else ([], read(i))
    value = layout.tile_result([ir.load(b, tile.at(rank)) for b in buffers])
    if layout.compare_floats:
        among = ir.read(nans.count)
        at, end = rank.cast(among.dtype), length.cast(among.dtype)
        is_nan = at < among if layout.descending else at + among >= end
        value = select(is_nan, nans.value, value)
    fill = ir.For(i, ZERO, length, "serial", [*counted, *tile.store(tile.at(i), tiled)])
    padding = tile.store(tile.at(pad), layout.padding)
    pads = ir.For(pad, length, ONE << row_bits, "serial", padding)
    out = ir.For(rank, ZERO, length, "serial", write(rank, value))
    return [
        *(nans.start() if layout.compare_floats else []),
        ir.For(lane, ZERO, count, "lanes", [fill]),
        ir.For(lane, ZERO, const(lanes), "lanes", [pads, *sort_columns(tile)]),
        ir.For(lane, ZERO, count, "lanes", [out]),
    ], list(buffers)


def sort_tile(
    buffers: tuple[ir.Buffer, ...],
    layout: RecordLayout,
    count: Expr,
    lanes: int,
    read: Read,
    write: Write,
) -> list[Stmt]:
    """Sort `count` elements of one row in a tile that has room for them."""
    lane, row_bits, rows = ir.var("lane"), ir.var("row_bits"), ir.var("rows")
    lane_bits = lanes.bit_length() - 1
    bits = const(64) - ir.unary("clz", ir.maximum(rows, UNROLL_ROWS) - 1)
    tile, nans = Tile(buffers, lanes, lane, row_bits, rows), NanCounter(layout)
    i, j, r, pad, n = (ir.var(n) for n in ("in_i", "column", "out_r", "pad_i", "nan_i"))
    counted, tiled = nans.replace(read(i)) if layout.compare_floats else ([], read(i))
    column = j << row_bits
    stop = ir.minimum(ir.sub(count, column), ONE << row_bits)
    value = layout.tile_result([ir.load(b, ir.add(ir.mul(r, const(lanes)), j)) for b in buffers])
    padding = ir.stores(buffers, pad, layout.padding)
    write_column = ir.For(r, ZERO, stop, "lanes", write(ir.add(column, r), value))
    out: list[Stmt] = [
        ir.Let(rows, ir.add(count, const(lanes - 1)) >> lane_bits),
        ir.Let(row_bits, bits),
        *(nans.start() if layout.compare_floats else []),
        ir.For(i, ZERO, count, "lanes", [*counted, *ir.stores(buffers, i, tiled)]),
        ir.For(pad, count, ONE << (row_bits + lane_bits), "lanes", padding),
        ir.For(lane, ZERO, const(lanes), "lanes", [*sort_columns(tile), *merge_lanes(tile)]),
        ir.For(j, ZERO, const(lanes), "serial", [write_column]),
    ]
    if layout.compare_floats:
        out += nans.write_last(n, count, write)
    return out
