"""Vectorised quicksort (Bramas 2017) of a row on one thread, for targets that compress lanes.

Ranges of the row are partitioned level by level from one buffer to another: lanes below the pivot
are stored from a range's start on, the others down from its end. Ranges that fit a few vectors are
sorted by a network in registers. The pivot is a median of a sample; a range whose minimum it is
loses all elements that equal it. Past a number of levels, ranges are cut in the middle of their
keys (radix exchange), so that no input takes quadratic time. A longer row is shared among tasks by
ranges of its keys.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const, select
from numus.kernels.sort.cpu_bitonic import sort_vectors
from numus.kernels.sort.cpu_radix import KeyRange
from numus.kernels.sort.cpu_tile import NanCounter
from numus.kernels.sort.keys import Read, Record, RecordLayout, Write, decode, encode

ZERO, ONE = const(0), const(1)

ROWS = (8, 16)  # vectors of ranges that are sorted in registers
SAMPLED = 8  # vectors of which a pivot is the median


@dataclass(frozen=True, slots=True)
class QuickSort:
    """Scratch memory of a worker, for rows of up to `capacity` records of one field."""

    layout: RecordLayout
    lanes: int
    capacity: Expr
    sampled_levels: int = 2  # for each bit of the count, before ranges are cut in the middle

    @property
    def range_records(self) -> int:
        """Records of a range that is sorted in registers."""
        return ROWS[-1] * self.lanes

    @property
    def pitch(self) -> Expr:
        """Records from one buffer to the other: loads of whole vectors go past the end."""
        return ir.add(self.capacity, const(self.range_records))

    @property
    def max_ranges(self) -> Expr:
        """Of a level: two for each longer one of the level before."""
        return ir.add(ir.idiv(self.capacity, const(self.range_records)), ONE) * 2

    def scratch(self) -> tuple[ir.Buffer, ir.Buffer, ir.Buffer]:
        """Records [2][pitch], ranges [2][max_ranges][start, end], the records of some vectors."""
        (field,) = self.layout.tile_fields
        return (
            ir.Buffer("records", field, "scratch", self.pitch * 2),
            ir.Buffer("ranges", dt.int64, "scratch", self.max_ranges * 4),
            ir.Buffer("vectors", field, "scratch", const(self.range_records)),
        )


def quick_sort(
    s: QuickSort, count: Expr, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort `count` elements of a row."""
    buffers = s.scratch()
    work = _Work(s, buffers, write)
    nans = NanCounter(s.layout)
    out = [*_fill(work.records, nans, ZERO, count, read), *_sort(work, count)]
    if s.layout.compare_floats:
        out += nans.write_last(ir.var("nan_i"), count, write)
    return out, list(buffers)


def quick_sort_share(
    s: QuickSort, count: Expr, share: Expr, shares: Expr, read: Read, write: Write
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Sort one of the ranges of keys that quantiles of a sample cut a row into (sample sort).

    Tasks exchange nothing: each reads the whole row, keeps its range and counts what is below.
    """
    buffers = records, _, vectors = s.scratch()
    lanes, lane, v, whole = s.lanes, ir.var("share_lane"), ir.var("share_v"), ir.var("whole_row")
    below, kept = (ir.Register(name, dt.int64) for name in ("below", "kept"))
    start, number = ir.var("share_start"), ir.var("share_count")
    work = _Work(s, buffers, lambda i, value: write(start + i, value))
    nans = NanCounter(s.layout)
    floor, ceiling = (ir.var(name, records.dtype) for name in ("floor", "ceiling"))
    sample = SAMPLED * lanes  # whose quantiles are the bounds

    def bound(j: Expr) -> Expr:
        return ir.load(vectors, ir.minimum(j * const(sample) // shares, const(sample - 1)))

    def keep(tag: str, at: Expr, left: Expr | None) -> list[Stmt]:
        """Of a vector, or the first `left` lanes of the last one."""
        x = ir.var(f"share_x{tag}", records.dtype)
        low, within = ir.var(f"under{tag}", dt.bool_), ir.var(f"within{tag}", dt.bool_)
        under, inside = (x < floor) & (share > 0), (x < ceiling) | share.eq(shares - 1)
        if left is not None:
            here = lane.cast(dt.int32) < left.cast(dt.int32)
            under, inside = under & here, inside & here
        return [
            ir.Let(x, ir.load(records, s.pitch + at + lane)),
            ir.Let(low, under),
            ir.Let(within, inside & ~low),
            ir.Store(records, ir.read(kept) + lane, ir.lanes_compress(x, within)),
            ir.Set(below, ir.read(below) + ir.lanes_count(low)),
            ir.Set(kept, ir.read(kept) + ir.lanes_count(within)),
        ]

    loop = ir.For(v, ZERO, whole, "serial", keep("", v, None), step=const(lanes))
    last = ir.If(whole < count, keep("_last", whole, count - whole))
    out: list[Stmt] = [
        *_fill(records, nans, s.pitch, count, read),
        *work.sort_sample(s.pitch, ZERO, count),
        *ir.lets([floor, ceiling], [bound(share), bound(share + 1)]),
        *ir.sets([below, kept], [ZERO, ZERO]),
        ir.Let(whole, count - count % lanes),
        ir.For(lane, ZERO, const(lanes), "lanes", [loop, last], width=lanes),
        ir.Let(start, ir.read(below)),
        ir.Let(number, ir.read(kept)),
        *_sort(work, number),
    ]
    if s.layout.compare_floats:
        out += nans.write_last(ir.var("nan_i"), count, write, (start, start + number))
    return out, list(buffers)


def _fill(records: ir.Buffer, nans: NanCounter, to: Expr, count: Expr, read: Read) -> list[Stmt]:
    """Copy a row into a buffer, and count its NaNs."""
    i = ir.var("in_i")
    floats = nans.layout.compare_floats
    counted, tiled = nans.replace(read(i)) if floats else ([], read(i))
    copy = ir.stores([records], to + i, tiled)
    loop = ir.For(i, ZERO, count, "lanes", [*counted, *copy])
    return [*nans.start(), loop] if floats else [loop]


def _sort(work: _Work, count: Expr) -> list[Stmt]:
    """Sort the records of the first buffer."""
    s, ranges = work.s, work.ranges
    level, r, levels, number = (ir.var(x) for x in ("level", "r", "levels", "number"))
    source, list_at = ir.var("source"), ir.var("list_at")
    first, stop = ir.var("first"), ir.var("stop")
    bits = const(64) - ir.unary("clz", ir.maximum(count, ONE))
    even = (level & 1).eq(0)
    target = ir.sub(s.pitch, source)
    at = list_at + r * 2
    one_range: list[Stmt] = [
        ir.Let(first, ir.load(ranges, at)),
        ir.Let(stop, ir.load(ranges, at + 1)),
        *work.sort_short(source, first, stop),
        ir.If(
            stop - first > s.range_records,
            [
                ir.If(level < levels, work.sample_pivot(source, first, stop)),
                ir.If(level >= levels, work.middle_pivot(source, first, stop)),
                *work.split(source, target, first, stop, s.max_ranges * 2 - list_at),
            ],
        ),
    ]
    body: list[Stmt] = [
        ir.Let(source, select(even, ZERO, s.pitch)),
        ir.Let(list_at, select(even, ZERO, s.max_ranges * 2)),
        ir.Let(number, ir.read(work.count)),
        ir.Set(work.count, ZERO),
        ir.For(r, ZERO, number, "serial", one_range),
    ]
    return [
        ir.Let(levels, bits * s.sampled_levels),
        ir.Store(ranges, ZERO, ZERO),
        ir.Store(ranges, ONE, count),
        ir.Set(work.count, ONE),
        ir.For(level, ZERO, levels + (s.layout.key.bits + 1), "serial", body),
    ]


class _Work:
    """The steps of a sort, from `source` to `target`: where the two buffers begin."""

    def __init__(self, s: QuickSort, buffers: Sequence[ir.Buffer], write: Write) -> None:
        self.s, self.write = s, write
        self.records, self.ranges, self.vectors = buffers
        self.count = ir.Register("count", dt.int64)  # of the next level's ranges
        self.pivot = ir.Register("pivot", self.records.dtype)
        self.low, self.high = (ir.Register(name, dt.int64) for name in ("low", "high"))

    def _vectors(self, lane: Expr, body: list[Stmt]) -> Stmt:
        """A loop of one vector, in which lanes may be permuted."""
        return ir.For(lane, ZERO, const(self.s.lanes), "lanes", body, width=self.s.lanes)

    def sort_short(self, source: Expr, first: Expr, stop: Expr) -> list[Stmt]:
        """Sort a range in registers, if they have room for it."""
        out: list[Stmt] = []
        past = ZERO
        for rows in ROWS:
            most = const(rows * self.s.lanes)
            fits = (stop - first > past) & (stop - first <= most)
            out.append(ir.If(fits, self._sort_range(rows, source, first, stop)))
            past = most
        return out

    def _sort_range(self, rows: int, source: Expr, first: Expr, stop: Expr) -> list[Stmt]:
        """Sort a range of a few vectors, and write it."""
        lanes, lane, i = self.s.lanes, ir.var(f"lane{rows}"), ir.var(f"out_i{rows}")
        (padding,) = self.s.layout.padding
        names = [ir.var(f"x{rows}_{k}", self.records.dtype) for k in range(rows)]
        body: list[Stmt] = []
        for k, name in enumerate(names):
            at = first + k * lanes + lane
            body.append(
                ir.Let(name, select(at < stop, ir.load(self.records, source + at), padding))
            )
        ordered = sort_vectors([[name] for name in names], lane, lanes)
        body += [
            ir.Store(self.vectors, lane * rows + k, record[0]) for k, record in enumerate(ordered)
        ]
        value = self.s.layout.tile_result([ir.load(self.vectors, i)])
        return [
            self._vectors(lane, body),
            ir.For(i, ZERO, stop - first, "lanes", self.write(first + i, value)),
        ]

    def _sample(
        self, lane: Expr, source: Expr, first: Expr, stop: Expr
    ) -> tuple[list[Stmt], list[Record]]:
        """Some vectors of a range that has as many; inside a loop of one vector."""
        lanes, tag = self.s.lanes, lane.attr
        step = ir.var(f"{tag}_step")
        names = [ir.var(f"{tag}{k}", self.records.dtype) for k in range(SAMPLED)]
        loads = [ir.load(self.records, source + first + step * k + lane) for k in range(SAMPLED)]
        lets = [ir.Let(step, (stop - first - lanes) // (SAMPLED - 1)), *ir.lets(names, loads)]
        return lets, [[name] for name in names]

    def sort_sample(self, source: Expr, first: Expr, stop: Expr) -> list[Stmt]:
        """A sorted sample of a range in `vectors`."""
        lanes, lane = self.s.lanes, ir.var("quantile")
        lets, columns = self._sample(lane, source, first, stop)
        ordered = sort_vectors(columns, lane, lanes)
        stores = [
            ir.Store(self.vectors, lane * SAMPLED + k, record[0])
            for k, record in enumerate(ordered)
        ]
        return [self._vectors(lane, [*lets, *stores])]

    def sample_pivot(self, source: Expr, first: Expr, stop: Expr) -> list[Stmt]:
        """The median of the medians of some vectors' lanes."""
        lanes, lane = self.s.lanes, ir.var("sample")
        lets, columns = self._sample(lane, source, first, stop)
        columns = sort_vectors(columns, lane, 1)
        ((median,),) = sort_vectors([columns[SAMPLED // 2]], lane, lanes)
        return [
            self._vectors(lane, [*lets, ir.Store(self.vectors, lane, median)]),
            ir.Set(self.pivot, ir.load(self.vectors, const(lanes // 2))),
        ]

    def middle_pivot(self, source: Expr, first: Expr, stop: Expr) -> list[Stmt]:
        """The middle of the range's keys, rounded up."""
        dtype, i = self.records.dtype, ir.var("limit_i")
        floats = dtype.kind == "float"
        keys = KeyRange("range", self.s.layout.key)
        x = ir.load(self.records, source + i)
        low, high = ir.var("lowest", keys.key), ir.var("highest", keys.key)
        middle = low + ((high - low) >> 1) + ((high - low) & 1)
        return [
            *keys.start(),
            ir.For(i, first, stop, "lanes", keys.update(encode(x, False, False) if floats else x)),
            *ir.lets([low, high], keys.results()),
            ir.Set(self.pivot, decode(middle, dtype, False) if floats else middle),
        ]

    def split(
        self, source: Expr, target: Expr, first: Expr, stop: Expr, next_list: Expr
    ) -> list[Stmt]:
        """Part a range in two, or off it all that equals its minimum."""
        cut, equal, i = ir.var("cut"), ir.var("equal"), ir.var("equal_i")
        pivot = ir.read(self.pivot)
        done = self.s.layout.tile_result([ir.load(self.records, target + i)])

        def push(start: Expr, end: Expr) -> list[Stmt]:
            at = next_list + ir.read(self.count) * 2
            return [
                ir.Store(self.ranges, at, start),
                ir.Store(self.ranges, at + 1, end),
                ir.Set(self.count, ir.read(self.count) + 1),
            ]

        return [
            *self._partition("a", source, target, first, stop, lambda x: x < pivot),
            ir.Let(cut, ir.read(self.low)),
            ir.If(cut > first, [*push(first, cut), *push(cut, stop)]),
            ir.If(
                cut.eq(first),
                [
                    *self._partition("b", source, target, first, stop, lambda x: x <= pivot),
                    ir.Let(equal, ir.read(self.low)),
                    ir.For(i, first, equal, "lanes", self.write(i, done)),
                    ir.If(equal < stop, push(equal, stop)),
                ],
            ),
        ]

    def _partition(
        self,
        tag: str,
        source: Expr,
        target: Expr,
        first: Expr,
        stop: Expr,
        is_low: Callable[[Expr], Expr],
    ) -> list[Stmt]:
        """Move a range to the target: from its start on what is low, from its end down the rest."""
        lanes, lane = self.s.lanes, ir.var(f"lane_{tag}")
        number = lane.cast(dt.int32)
        v, whole = ir.var(f"v_{tag}"), ir.var(f"whole_{tag}")

        def move(tag: str, at: Expr, left: Expr | None) -> list[Stmt]:
            """A vector, or the first `left` lanes of the last one."""
            x, below = ir.var(f"x_{tag}", self.records.dtype), ir.var(f"below_{tag}", dt.bool_)
            count, others = ir.var(f"count_{tag}"), ir.var(f"others_{tag}")
            low, rest = is_low(x), ~below
            if left is not None:
                inside = number < left.cast(dt.int32)
                low, rest = low & inside, rest & inside
            high, to = ir.read(self.high) - others, target + ir.read(self.low)

            def first_lanes(count: Expr) -> Expr:
                return number < count.cast(dt.int32)

            return [
                ir.Let(x, ir.load(self.records, source + at + lane)),
                ir.Let(below, low),
                ir.Let(count, ir.lanes_count(below)),
                ir.Let(others, (const(lanes) if left is None else left) - count),
                # the space between both ends is that of the records to come, this vector's too
                ir.Store(
                    *(self.records, to + lane, ir.lanes_compress(x, below)),
                    None if left is None else first_lanes(count),
                ),
                ir.Store(
                    *(self.records, target + high + lane, ir.lanes_compress(x, rest)),
                    first_lanes(others),
                ),
                ir.Set(self.low, ir.read(self.low) + count),
                ir.Set(self.high, high),
            ]

        loop = ir.For(v, first, whole, "serial", move(tag, v, None), step=const(lanes))
        rest = ir.If(whole < stop, move(f"{tag}r", whole, stop - whole))
        return [
            *ir.sets([self.low, self.high], [first, stop]),
            ir.Let(whole, stop - (stop - first) % lanes),
            self._vectors(lane, [loop, rest]),
        ]
