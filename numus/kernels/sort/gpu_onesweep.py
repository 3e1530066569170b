"""Onesweep radix sort (Adinets & Merrill 2022): LSD, 8 bits a pass, one sweep over memory each.

A histogram kernel counts all digits up front. Then, per pass, a block ranks a tile by warp
multisplit, finds the digit counts of earlier tiles by decoupled look-back, here over a tree of
fan-out 16, sorts the tile in shared memory and writes contiguous runs of equal digits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

RADIX_BITS = 8
RADIX = 1 << RADIX_BITS
WARP = 32
FANOUT = 16  # tiles of a span, and spans of a superspan
COPIES = 4  # of a histogram in shared memory: fewer conflicting atomics


def items_per_thread(nbytes: int) -> int:
    """Items per thread, for keys and payload of that size in bytes."""
    return 16 if nbytes <= 8 else 8


def passes(bits: int) -> int:
    """Passes over keys of so many bits."""
    return -(-bits // RADIX_BITS)


def digit_of(key: Expr, shift: Expr) -> Expr:
    """The digit of a key that starts at bit `shift`."""
    shifted = ir.binary("lshr", key, shift.cast(key.dtype))
    return (shifted & const(RADIX - 1, key.dtype)).cast(dt.uint32)


class StatusWords:
    """Status words of the look-back, for every row and pass, RADIX words per line: the row's
    histogram, then counts of tiles, of spans, and the prefixes before superspans. The highest bit
    of a word marks it as valid."""

    def __init__(self, length: int, tiles: int, passes: int) -> None:
        self.dtype = dt.uint32 if length < 1 << 31 else dt.uint64
        self.spans = -(-tiles // FANOUT)
        self.tiles, self.passes = tiles, passes
        self.lines = 1 + tiles + self.spans + -(-self.spans // FANOUT)

    @property
    def size(self) -> int:
        """Words per row."""
        return self.passes * self.lines * RADIX

    @property
    def valid(self) -> Expr:
        return const(1 << (self.dtype.bits - 1), self.dtype)

    def count(self, word: Expr) -> Expr:
        return word & const((1 << (self.dtype.bits - 1)) - 1, self.dtype)


def histogram(
    status: StatusWords,
    memory: ir.Buffer,
    first: Expr,
    span: tuple[Expr, Expr],
    key: Callable[[Expr], Expr],
    lines: Expr,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Add the digits of elements span[0] … span[1] to the histograms of their row, whose words
    begin at `first`; `lines` are those of the status words."""
    size = status.passes * RADIX
    counters = ir.Buffer("counters", dt.uint32, "scratch", const(size * COPIES))
    z, i, d = ir.var("zero"), ir.var("element"), ir.var("digit")
    found = ir.var("found_key", key(i).dtype)
    count: list[Stmt] = [ir.Let(found, key(i))]
    copy = ir.binary("and", ir.binary("lshr", i, const(2)), const(COPIES - 1))
    for number in range(status.passes):
        digit = digit_of(found, const(number * RADIX_BITS)).cast(dt.int64)
        bin_ = ir.add(digit, const(number * RADIX))
        at = ir.add(ir.mul(bin_, const(COPIES)), copy)
        count.append(ir.AtomicAdd(counters, at, const(1, dt.uint32)))
    total = const(0, dt.uint32)
    for c in range(COPIES):
        total = total + ir.load(counters, ir.add(ir.mul(d, const(COPIES)), const(c)))
    row = ir.mul(ir.idiv(d, const(RADIX)), ir.mul(lines, const(RADIX)))
    to = ir.add(ir.add(first, row), ir.irem(d, const(RADIX)))
    zero = ir.Store(counters, z, const(0, dt.uint32))
    return [
        ir.For(z, ZERO, const(size * COPIES), "lanes", [zero]),
        ir.For(i, *span, "lanes", count),
        ir.For(d, ZERO, const(size), "lanes", [ir.AtomicAdd(memory, to, total.cast(status.dtype))]),
    ], [counters]


class Tile:
    """One pass over one tile."""

    def __init__(
        self,
        threads: int,
        dtypes: Sequence[DType],
        status: StatusWords,
        memory: ir.Buffer,
        shift: Expr,
    ) -> None:
        """`dtypes` of keys and payload; the `memory` of status words; `shift` to the digit."""
        self.threads, self.status, self.memory, self.shift = threads, status, memory, shift
        self.items = items_per_thread(sum(k.itemsize for k in dtypes))
        self.warps = threads // WARP
        size = const(threads * self.items)
        self.sorted = [ir.Buffer(f"sorted{i}", k, "scratch", size) for i, k in enumerate(dtypes)]
        self.registers = [
            [ir.Register(f"item{i}_{n}", k, lanes=True) for n in range(self.items)]
            for i, k in enumerate(dtypes)
        ]
        self.ranks = [ir.Register(f"rank{n}", dt.uint32, lanes=True) for n in range(self.items)]
        self.counters = ir.Buffer("counters", dt.uint32, "scratch", const(self.warps * RADIX))
        self.tile_starts = ir.Buffer("local", dt.uint32, "scratch", const(RADIX))
        self.row_offsets = ir.Buffer("goes", dt.int64, "scratch", const(RADIX))

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [*self.sorted, self.counters, self.tile_starts, self.row_offsets]

    def _element(self, t: Expr, n: int) -> Expr:
        """The n-th item of a thread, striped over the warp: coalesced loads."""
        warp, lane = ir.idiv(t, const(WARP)), ir.irem(t, const(WARP))
        return ir.add(ir.add(ir.mul(warp, const(WARP * self.items)), lane), const(n * WARP))

    def _column(self, t: Expr) -> Expr:
        return ir.mul(ir.idiv(t, const(WARP)), const(RADIX))

    def load(self, size: Expr, read: Callable[[Expr], Sequence[Expr]]) -> list[Stmt]:
        """Load the tile's `size` items, padded by keys that sort last, and rank them per warp."""
        z, t = ir.var("zero"), ir.var("load")
        full = size.eq(self.threads * self.items)
        body: list[Stmt] = [
            ir.If(full, self._load_items(t, read)),
            ir.If(~full, self._load_items(t, read, size)),
        ]
        for n in range(self.items):
            rank = ir.var(f"rank{n}", dt.uint32)
            digit = digit_of(ir.read(self.registers[0][n]), self.shift)
            body.append(ir.WarpMultisplit(self.counters, self._column(t), digit, RADIX_BITS, rank))
            body.append(ir.Set(self.ranks[n], rank))
        zero: list[Stmt] = [ir.Store(self.counters, z, const(0, dt.uint32))]
        return [
            ir.For(z, ZERO, const(self.warps * RADIX), "lanes", zero),
            ir.For(t, ZERO, const(self.threads), "lanes", body),
        ]

    def _load_items(
        self, t: Expr, read: Callable[[Expr], Sequence[Expr]], size: Expr | None = None
    ) -> list[Stmt]:
        """Load a thread's items into registers, padded by the largest key past `size`."""
        out: list[Stmt] = []
        for n in range(self.items):
            at = self._element(t, n)
            registers = [item[n] for item in self.registers]
            load = ir.sets(registers, read(at))
            if size is None:
                out += load
                continue
            out += [ir.Set(r, const(-1, r.dtype)) for r in registers]
            out.append(ir.If(at < size, load))
        return out

    def _word(self, line: Expr, d: Expr) -> Expr:
        return ir.add(ir.mul(ir.add(self.first, line), const(RADIX)), d)

    def find_offsets(self, first: Expr, tile: Expr, tiles: Expr, spans: Expr) -> list[Stmt]:
        """The tile's digit offsets, within it and in the row. `first` is the first status line of
        this row and pass."""
        self.first = first
        status, word = self.status, self.status.dtype
        d = ir.var("digit")
        own = ir.Register("own", dt.uint32, lanes=True)
        starts = ir.Register("starts", dt.uint32, lanes=True)
        totals = ir.Register("totals", word, lanes=True)
        columns = [ir.add(d, const(w * RADIX)) for w in range(self.warps)]
        names = [ir.var(f"column{w}", dt.uint32) for w in range(self.warps)]
        count = ir.lets(names, [ir.load(self.counters, at) for at in columns])
        total: Expr = const(0, dt.uint32)
        for x, at in zip(names, columns, strict=True):
            count.append(ir.Store(self.counters, at, total))
            total = total + x
        in_tile, own_word = ir.var("in_tile", dt.uint32), self._word(ir.add(ONE, tile), d)
        count += [
            ir.Let(in_tile, total),
            ir.SetFlag(self.memory, own_word, in_tile.cast(word) | status.valid),
            ir.Set(own, in_tile),
            ir.Set(starts, in_tile),
            ir.Set(totals, ir.load(self.memory, self._word(ZERO, d))),
        ]
        zero = [ir.Set(r, const(0, r.dtype)) for r in (own, starts, totals)]
        kinds = (dt.uint32, word)
        left, right, both = (
            [ir.var(f"{n}{i}", k) for i, k in enumerate(kinds)] for n in ("before", "after", "all")
        )
        merged = [x + y for x, y in zip(left, right, strict=True)]
        digits = const(RADIX)
        s = ir.var("start_digit")
        return [
            *zero,
            ir.For(d, ZERO, digits, "lanes", count),
            ir.BlockScan([starts, totals], left, right, merged, [const(0, k) for k in kinds], both),
            ir.For(s, ZERO, digits, "lanes", [ir.Store(self.tile_starts, s, ir.read(starts))]),
            self._sort_tile(),
            self._look_back(tile, tiles, spans, own, starts, totals),
        ]

    def _look_back(self, tile: Expr, tiles: Expr, spans: Expr, *counts: ir.Register) -> Stmt:
        """`counts` are the tile's own, its exclusive scan, and that of the row's histogram."""
        own, starts, totals = counts
        status, word = self.status, self.status.dtype
        d = ir.var("back_digit")
        base = const(FANOUT)
        span = ir.idiv(tile, base)
        superspan = ir.idiv(span, base)
        first_tile, first_span = ONE, ir.add(ONE, tiles)
        first_superspan = ir.add(first_span, spans)
        one = ir.var("own_count", word)

        def line_of(first: Expr, parent: Expr, number: Expr, name: str) -> tuple[ir.FlagRead, Expr]:
            """The counts of earlier siblings, and their sum."""
            start = ir.mul(parent, base)
            names = [ir.var(f"{name}{k}", word) for k in range(FANOUT - 1)]
            at = self._word(ir.add(first, start), d)
            return ir.FlagRead(at, RADIX, ir.sub(number, start), list(names)), self._sum(names)

        def is_last(number: Expr) -> Expr:
            return ir.irem(number, base).eq(FANOUT - 1)

        near, in_span = line_of(first_tile, span, tile, "tile")
        far, in_superspan = line_of(first_span, superspan, span, "span")
        before = ir.var("wide_before", word)
        word_before = self._word(ir.add(first_superspan, superspan), d)
        start = ir.FlagRead(word_before, 1, ir.minimum(superspan, ONE), [before])
        near_sum, far_sum = ir.var("near_sum", word), ir.var("far_sum", word)
        rank = ir.read(totals) + far_sum + near_sum
        offset = ir.sub(rank.cast(dt.int64), ir.read(starts).cast(dt.int64))
        inclusive = far_sum + near_sum + one
        ends_span = is_last(tile)
        ends_superspan = ends_span & is_last(span) & (ir.add(tile, ONE) < tiles)
        span_word = self._word(ir.add(first_span, span), d)
        superspan_word = self._word(ir.add(first_superspan, ir.add(superspan, ONE)), d)
        publish = ir.SetFlag(self.memory, superspan_word, inclusive | status.valid)
        body: list[Stmt] = [
            ir.Let(one, ir.read(own).cast(word)),
            ir.SpinWait(self.memory, [near]),
            ir.Let(near_sum, in_span),
            ir.If(ends_span, [ir.SetFlag(self.memory, span_word, (near_sum + one) | status.valid)]),
            ir.SpinWait(self.memory, [far, start]),
            ir.Let(far_sum, in_superspan + status.count(before)),
            ir.If(ends_superspan, [publish]),
            ir.Store(self.row_offsets, d, offset),
        ]
        return ir.For(d, ZERO, const(RADIX), "lanes", body)

    def _sum(self, words: Sequence[Expr]) -> Expr:
        total: Expr = const(0, self.status.dtype)
        for word in words:
            total = total + self.status.count(word)
        return total

    def _sort_tile(self) -> Stmt:
        """Sort the tile in shared memory."""
        t = ir.var("put")
        body: list[Stmt] = []
        for n in range(self.items):
            key = ir.read(self.registers[0][n])
            digit = digit_of(key, self.shift).cast(dt.int64)
            column = ir.load(self.counters, ir.add(self._column(t), digit))
            to = ir.read(self.ranks[n]) + column + ir.load(self.tile_starts, digit)
            name = ir.var(f"to{n}")
            body.append(ir.Let(name, to.cast(dt.int64)))
            for buffer, item in zip(self.sorted, self.registers, strict=True):
                body.append(ir.Store(buffer, name, ir.read(item[n])))
        return ir.For(t, ZERO, const(self.threads), "lanes", body)

    def write(self, size: Expr, out: Callable[[Expr, list[Expr]], list[Stmt]]) -> Stmt:
        """`out(rank in the row, item)` for every item of the tile."""
        t = ir.var("write")
        full = size.eq(self.threads * self.items)

        def write_item(n: int) -> list[Stmt]:
            at = ir.add(t, const(n * self.threads))
            found = [ir.var(f"out{i}_{n}", b.dtype) for i, b in enumerate(self.sorted)]
            there = ir.var(f"there{n}")
            lets = ir.lets(found, [ir.load(b, at) for b in self.sorted])
            goes = ir.load(self.row_offsets, digit_of(found[0], self.shift).cast(dt.int64))
            lets.append(ir.Let(there, ir.add(goes, at)))
            return [*lets, *out(there, list(found))]

        all_ = [s for n in range(self.items) for s in write_item(n)]
        some: list[Stmt] = [
            ir.If(ir.add(t, const(n * self.threads)) < size, write_item(n))
            for n in range(self.items)
        ]
        body: list[Stmt] = [ir.If(full, all_), ir.If(~full, some)]
        return ir.For(t, ZERO, const(self.threads), "lanes", body)
