"""A stable sort by one digit of 8 bits after the other, each in one pass over memory.

A block takes a tile of neighbouring elements. Its threads find the elements' ranks among those of
the same digit (`ir.Tally`), it learns how many of each digit earlier tiles have (a look-back over
a tree of tiles, by 16s), puts its tile in order in the group's memory and writes runs of equal
digits. How many elements have which digit in all was counted before, for all digits at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)

BITS = 8
DIGITS = 1 << BITS
TEAM = 32  # threads that `ir.Tally` counts in order
BASE = 16  # tiles of a span, and spans of a wide one
_COPIES = 4  # of the counters of a histogram: threads that meet in one of them wait


def each(nbytes: int) -> int:
    """Elements that a thread takes, of keys and whatever goes with them."""
    return 16 if nbytes <= 8 else 8


def passes(key: DType) -> int:
    return -(-key.bits // BITS)


def digit_of(key: Expr, shift: Expr) -> Expr:
    """The digit of a key that starts at a bit."""
    shifted = ir.binary("lshr", key, shift.cast(key.dtype))
    return (shifted & const(DIGITS - 1, key.dtype)).cast(dt.uint32)


class Board:
    """For every row and digit: counts of the whole row, then of tiles, of spans of tiles, and of
    all that comes before wide spans. Words have their highest bit set where they are there."""

    def __init__(self, length: int, tiles: int, digits: int) -> None:
        self.dtype = dt.uint32 if length < 1 << 31 else dt.uint64
        self.spans = -(-tiles // BASE)
        self.tiles, self.digits = tiles, digits
        self.lines = 1 + tiles + self.spans + -(-self.spans // BASE)

    @property
    def size(self) -> int:
        """Words for each row."""
        return self.digits * self.lines * DIGITS

    @property
    def here(self) -> Expr:
        return const(1 << (self.dtype.bits - 1), self.dtype)

    def told(self, word: Expr) -> Expr:
        return word & const((1 << (self.dtype.bits - 1)) - 1, self.dtype)


def histogram(
    board: Board,
    memory: ir.Buffer,
    first: Expr,
    span: tuple[Expr, Expr],
    key: Callable[[Expr], Expr],
    lines: Expr,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Add the digits of elements span[0] … span[1] to the counts of their row, whose words begin
    at `first`; `lines` is the board's."""
    size = board.digits * DIGITS
    counters = ir.Buffer("counters", dt.uint32, "scratch", const(size * _COPIES))
    z, i, d = ir.var("zero"), ir.var("element"), ir.var("digit")
    found = ir.var("found_key", key(i).dtype)
    count: list[Stmt] = [ir.Let(found, key(i))]
    copy = ir.binary("and", ir.binary("lshr", i, const(2)), const(_COPIES - 1))
    for number in range(board.digits):
        place = ir.add(digit_of(found, const(number * BITS)).cast(dt.int64), const(number * DIGITS))
        at = ir.add(ir.mul(place, const(_COPIES)), copy)
        count.append(ir.AtomicAdd(counters, at, const(1, dt.uint32)))
    total = const(0, dt.uint32)
    for c in range(_COPIES):
        total = total + ir.load(counters, ir.add(ir.mul(d, const(_COPIES)), const(c)))
    row = ir.mul(ir.idiv(d, const(DIGITS)), ir.mul(lines, const(DIGITS)))
    to = ir.add(ir.add(first, row), ir.irem(d, const(DIGITS)))
    return [
        ir.For(
            z, ZERO, const(size * _COPIES), "lanes", [ir.Store(counters, z, const(0, dt.uint32))]
        ),
        ir.For(i, *span, "lanes", count),
        ir.For(d, ZERO, const(size), "lanes", [ir.AtomicAdd(memory, to, total.cast(board.dtype))]),
    ], [counters]


class Tile:
    """One pass over one tile by one digit."""

    def __init__(
        self, threads: int, kinds: Sequence[DType], board: Board, memory: ir.Buffer, shift: Expr
    ) -> None:
        """`kinds`: of keys, and of what goes with them; `memory` is the board's; `shift` is
        where the digit starts."""
        self.threads, self.board, self.memory, self.shift = threads, board, memory, shift
        self.each = each(sum(k.itemsize for k in kinds))
        self.teams = threads // TEAM
        size = const(threads * self.each)
        self.sorted = [ir.Buffer(f"sorted{i}", k, "scratch", size) for i, k in enumerate(kinds)]
        self.held = [
            [ir.Register(f"held{i}_{n}", k, lanes=True) for n in range(self.each)]
            for i, k in enumerate(kinds)
        ]
        self.ranks = [ir.Register(f"rank{n}", dt.uint32, lanes=True) for n in range(self.each)]
        self.counters = ir.Buffer("counters", dt.uint32, "scratch", const(self.teams * DIGITS))
        self.local = ir.Buffer("local", dt.uint32, "scratch", const(DIGITS))
        self.goes = ir.Buffer("goes", dt.int64, "scratch", const(DIGITS))

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [*self.sorted, self.counters, self.local, self.goes]

    def _element(self, t: Expr, n: int) -> Expr:
        """The n-th element of a thread: neighbouring threads of a team take neighbours."""
        team, lane = ir.idiv(t, const(TEAM)), ir.irem(t, const(TEAM))
        return ir.add(ir.add(ir.mul(team, const(TEAM * self.each)), lane), const(n * TEAM))

    def _column(self, t: Expr) -> Expr:
        return ir.mul(ir.idiv(t, const(TEAM)), const(DIGITS))

    def load(self, size: Expr, read: Callable[[Expr], Sequence[Expr]]) -> list[Stmt]:
        """Read the tile, of which `size` elements exist (the others come last in any order), and
        count digits team by team."""
        z, t = ir.var("zero"), ir.var("take")
        full = size.eq(self.threads * self.each)
        body: list[Stmt] = [
            ir.If(full, self._take(t, read)),
            ir.If(~full, self._take(t, read, size)),
        ]
        for n in range(self.each):
            rank = ir.var(f"rank{n}", dt.uint32)
            digit = digit_of(ir.read(self.held[0][n]), self.shift)
            body.append(ir.WarpMultisplit(self.counters, self._column(t), digit, BITS, rank))
            body.append(ir.Set(self.ranks[n], rank))
        zero: list[Stmt] = [ir.Store(self.counters, z, const(0, dt.uint32))]
        return [
            ir.For(z, ZERO, const(self.teams * DIGITS), "lanes", zero),
            ir.For(t, ZERO, const(self.threads), "lanes", body),
        ]

    def _take(
        self, t: Expr, read: Callable[[Expr], Sequence[Expr]], size: Expr | None = None
    ) -> list[Stmt]:
        """Fill the registers of a thread; with keys above all others where no elements are."""
        out: list[Stmt] = []
        for n in range(self.each):
            at = self._element(t, n)
            registers = [held[n] for held in self.held]
            take: list[Stmt] = [ir.Set(r, x) for r, x in zip(registers, read(at), strict=True)]
            if size is None:
                out += take
                continue
            out += [ir.Set(r, const(-1, r.dtype)) for r in registers]
            out.append(ir.If(at < size, take))
        return out

    def _word(self, line: Expr, d: Expr) -> Expr:
        return ir.add(ir.mul(ir.add(self.first, line), const(DIGITS)), d)

    def find(self, first: Expr, tile: Expr, tiles: Expr, spans: Expr) -> list[Stmt]:
        """Where the tile's elements go: within it, and in the row. `first` is the board's first
        line for this row and digit."""
        self.first = first
        board, word = self.board, self.board.dtype
        d = ir.var("digit")
        own = ir.Register("own", dt.uint32, lanes=True)
        starts = ir.Register("starts", dt.uint32, lanes=True)
        totals = ir.Register("totals", word, lanes=True)
        columns = [ir.add(d, const(w * DIGITS)) for w in range(self.teams)]
        names = [ir.var(f"column{w}", dt.uint32) for w in range(self.teams)]
        count: list[Stmt] = [
            ir.Let(x, ir.load(self.counters, at)) for x, at in zip(names, columns, strict=True)
        ]
        total: Expr = const(0, dt.uint32)
        for x, at in zip(names, columns, strict=True):
            count.append(ir.Store(self.counters, at, total))
            total = total + x
        in_tile = ir.var("in_tile", dt.uint32)
        count += [
            ir.Let(in_tile, total),
            ir.SetFlag(
                self.memory, self._word(ir.add(ONE, tile), d), in_tile.cast(word) | board.here
            ),
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
        digits = const(DIGITS)
        s = ir.var("start_digit")
        return [
            *zero,
            ir.For(d, ZERO, digits, "lanes", count),
            ir.BlockScan([starts, totals], left, right, merged, [const(0, k) for k in kinds], both),
            ir.For(s, ZERO, digits, "lanes", [ir.Store(self.local, s, ir.read(starts))]),
            self._order(),
            self._look_back(tile, tiles, spans, own, starts, totals),
        ]

    def _look_back(
        self,
        tile: Expr,
        tiles: Expr,
        spans: Expr,
        own: ir.Register,
        starts: ir.Register,
        totals: ir.Register,
    ) -> Stmt:
        board, word = self.board, self.board.dtype
        d = ir.var("back_digit")
        base = const(BASE)
        span = ir.idiv(tile, base)
        wide = ir.idiv(span, base)
        first_tile, first_span = ONE, ir.add(ONE, tiles)
        first_wide = ir.add(first_span, spans)
        one = ir.var("own_count", word)

        def line_of(first: Expr, parent: Expr, number: Expr, name: str) -> tuple[ir.FlagRead, Expr]:
            """The counts of those before a number that have its parent; what they come to."""
            start = ir.mul(parent, base)
            names = [ir.var(f"{name}{k}", word) for k in range(BASE - 1)]
            place = self._word(ir.add(first, start), d)
            return ir.FlagRead(place, DIGITS, ir.sub(number, start), list(names)), self._sum(names)

        def is_last(number: Expr) -> Expr:
            return ir.irem(number, base).eq(BASE - 1)

        near, in_span = line_of(first_tile, span, tile, "tile")
        far, in_wide = line_of(first_span, wide, span, "span")
        before = ir.var("wide_before", word)
        start = ir.FlagRead(
            self._word(ir.add(first_wide, wide), d), 1, ir.minimum(wide, ONE), [before]
        )
        near_sum, far_sum = ir.var("near_sum", word), ir.var("far_sum", word)
        goes = ir.read(totals) + far_sum + near_sum
        span_ends = is_last(tile)
        wide_ends = span_ends & is_last(span) & (ir.add(tile, ONE) < tiles)
        of_span = self._word(ir.add(first_span, span), d)
        of_wide = self._word(ir.add(first_wide, ir.add(wide, ONE)), d)
        body: list[Stmt] = [
            ir.Let(one, ir.read(own).cast(word)),
            ir.SpinWait(self.memory, [near]),
            ir.Let(near_sum, in_span),
            ir.If(span_ends, [ir.SetFlag(self.memory, of_span, (near_sum + one) | board.here)]),
            ir.SpinWait(self.memory, [far, start]),
            ir.Let(far_sum, in_wide + board.told(before)),
            ir.If(
                wide_ends,
                [ir.SetFlag(self.memory, of_wide, (far_sum + near_sum + one) | board.here)],
            ),
            ir.Store(self.goes, d, ir.sub(goes.cast(dt.int64), ir.read(starts).cast(dt.int64))),
        ]
        return ir.For(d, ZERO, const(DIGITS), "lanes", body)

    def _sum(self, words: Sequence[Expr]) -> Expr:
        total: Expr = const(0, self.board.dtype)
        for word in words:
            total = total + self.board.told(word)
        return total

    def _order(self) -> Stmt:
        """Put the tile in order in the group's memory."""
        t = ir.var("put")
        body: list[Stmt] = []
        for n in range(self.each):
            key = ir.read(self.held[0][n])
            digit = digit_of(key, self.shift).cast(dt.int64)
            column = ir.load(self.counters, ir.add(self._column(t), digit))
            to = ir.read(self.ranks[n]) + column + ir.load(self.local, digit)
            name = ir.var(f"to{n}")
            body.append(ir.Let(name, to.cast(dt.int64)))
            for buffer, held in zip(self.sorted, self.held, strict=True):
                body.append(ir.Store(buffer, name, ir.read(held[n])))
        return ir.For(t, ZERO, const(self.threads), "lanes", body)

    def write(self, size: Expr, out: Callable[[Expr, list[Expr]], list[Stmt]]) -> Stmt:
        """`out(place in the row, element)` for every element of the tile."""
        t = ir.var("write")
        full = size.eq(self.threads * self.each)

        def turn(n: int) -> list[Stmt]:
            at = ir.add(t, const(n * self.threads))
            found = [ir.var(f"out{i}_{n}", b.dtype) for i, b in enumerate(self.sorted)]
            there = ir.var(f"there{n}")
            lets: list[Stmt] = [
                ir.Let(x, ir.load(b, at)) for x, b in zip(found, self.sorted, strict=True)
            ]
            goes = ir.load(self.goes, digit_of(found[0], self.shift).cast(dt.int64))
            lets.append(ir.Let(there, ir.add(goes, at)))
            return [*lets, *out(there, list(found))]

        all_ = [s for n in range(self.each) for s in turn(n)]
        some: list[Stmt] = [
            ir.If(ir.add(t, const(n * self.threads)) < size, turn(n)) for n in range(self.each)
        ]
        body: list[Stmt] = [ir.If(full, all_), ir.If(~full, some)]
        return ir.For(t, ZERO, const(self.threads), "lanes", body)
