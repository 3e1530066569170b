"""What groups of threads do in order along an axis: running reductions, and ranks by a digit.

Each thread takes neighbouring elements by itself; what threads come to is put in order by a `Scan`.
Elements pass through the group's memory, so that the device's memory is read and written by
neighbouring threads at neighbouring places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.cpu import combine, identity

ZERO, ONE = const(0), const(1)

EACH = 8  # neighbouring elements that a thread takes
DIGIT = 4  # bits of a digit
DIGITS = 1 << DIGIT
_PAIRS = DIGITS // 2  # registers that hold two counts of 16 bits each


def spread_out(place: Expr) -> Expr:
    """A place in the group's memory with one left free after every 32: threads that each walk their
    own neighbours then meet in no bank."""
    return ir.add(place, ir.idiv(place, const(32)))


def apart(size: int) -> int:
    """What a buffer of so many elements takes when spread out."""
    return size + -(-size // 32)


# -- running reductions ---------------------------------------------------------------------------


class RunningReduction:
    """A running reduction over a span, a chunk at a time, in the kernel of one group."""

    def __init__(self, threads: int, op: str, dtype: DType, each: int = EACH) -> None:
        self.threads = threads
        self.each = each  # neighbouring elements that a thread takes
        self.op = op
        self.complex = dtype.is_complex
        self.real = dt.compute_dtype(dt.real_of(dtype))
        self.parts = 2 if self.complex else 1
        self.chunk = threads * each
        self.start = identity(op, self.real, self.parts)
        self.stages = [
            ir.Buffer(f"stage{p}", self.real, "scratch", const(apart(self.chunk)))
            for p in range(self.parts)
        ]
        self.carry = [ir.Register(f"carry{p}", self.real) for p in range(self.parts)]
        self.heavy = op == "logsumexp"  # so much code to merge two that it is not written out

    def split(self, value: Any) -> list[Expr]:
        return list(value) if self.complex else [value.cast(self.real)]

    def join(self, parts: list[Expr]) -> Any:
        return tuple(parts) if self.complex else parts[0]

    def begin(self, carry: list[Expr] | None = None) -> list[Stmt]:
        """Start from nothing, or from what came before."""
        starts = self.start if carry is None else carry
        return [ir.Set(r, x) for r, x in zip(self.carry, starts, strict=True)]

    def total(
        self, first: Expr, last: Expr, read: Callable[[Expr], Any], results: list[Expr]
    ) -> list[Stmt]:
        """Name what first … last come to, in whichever order."""
        j = ir.var("total_j")
        own = [ir.Register(f"sum{p}", self.real, lanes=True) for p in range(self.parts)]
        names = [ir.var(f"sum_now{p}", self.real) for p in range(self.parts)]
        new = combine(self.op, [ir.read(r) for r in own], self.split(read(j)))
        turn: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
        turn += [ir.Set(r, n) for r, n in zip(own, names, strict=True)]
        left, right = (
            [ir.var(f"{n}{p}", self.real) for p in range(self.parts)] for n in ("left", "right")
        )
        merged = combine(self.op, list(left), list(right))
        return [
            *(ir.Set(r, x) for r, x in zip(own, self.start, strict=True)),
            ir.For(j, first, last, "lanes", turn),
            ir.BlockReduce(own, left, right, merged, results),
        ]

    def body(
        self,
        first: Expr,
        last: Expr,
        read: Callable[[Expr], Any],
        write: Callable[[Expr, Any], list[Stmt]],
    ) -> Stmt:
        """The loop over the chunks of first … last."""
        c = ir.var("scan_c")
        statements, total = self.one_chunk(c, last, read, write, lambda total: [])
        after = [ir.var(f"after{p}", self.real) for p in range(self.parts)]
        new = combine(self.op, [ir.read(r) for r in self.carry], total)
        statements += [ir.Let(n, x) for n, x in zip(after, new, strict=True)]
        statements += [ir.Set(r, n) for r, n in zip(self.carry, after, strict=True)]
        return ir.For(c, first, last, "serial", statements, step=const(self.chunk))

    def one_chunk(
        self,
        c: Expr,
        last: Expr,
        read: Callable[[Expr], Any],
        write: Callable[[Expr, Any], list[Stmt]],
        begin: Callable[[list[Expr]], list[Stmt]],
    ) -> tuple[list[Stmt], list[Expr]]:
        """The chunk that begins at c; what it comes to. `begin`, which is given that, may set
        `carry` to what came before."""
        j, lane, out = (ir.var(f"scan_{n}") for n in ("j", "l", "o"))
        count = ir.minimum(const(self.chunk), ir.sub(last, c))
        fill: list[Stmt] = [
            ir.Store(b, spread_out(j), x)
            for b, x in zip(self.stages, self.split(read(ir.add(c, j))), strict=True)
        ]
        totals = [ir.Register(f"total{p}", self.real, lanes=True) for p in range(self.parts)]
        if self.heavy:
            walk = self._turns(lane, count, totals, self.start)
        else:
            walk, sums = self._walk(lane, count, "run")
            walk += [ir.Set(r, x) for r, x in zip(totals, sums, strict=True)]
        left, right, all_ = (
            [ir.var(f"{n}{p}", self.real) for p in range(self.parts)]
            for n in ("left", "right", "all")
        )
        merged = combine(self.op, list(left), list(right))
        across = ir.BlockScan(totals, left, right, merged, self.start, all_)
        threads = const(self.threads)
        statements: list[Stmt] = [
            ir.For(j, ZERO, count, "lanes", fill),
            ir.For(lane, ZERO, threads, "lanes", walk),
            across,
        ]
        statements += begin(list(all_))
        mine = ir.var("scan_m")
        before = [ir.var(f"before{p}", self.real) for p in range(self.parts)]
        ahead = combine(self.op, [ir.read(r) for r in self.carry], [ir.read(r) for r in totals])
        # walked again: to add a few numbers twice costs less than to keep them in registers
        spread: list[Stmt] = [ir.Let(n, x) for n, x in zip(before, ahead, strict=True)]

        def put(i: int, own: list[Expr]) -> list[Stmt]:
            at = spread_out(ir.add(ir.mul(mine, const(self.each)), const(i)))
            now = combine(self.op, list(before), own)
            return [ir.Store(b, at, x) for b, x in zip(self.stages, now, strict=True)]

        if self.heavy:
            spread += self._turns(mine, count, totals, before, stored=True)
        else:
            spread += self._walk(mine, count, "again", put)[0]
        statements.append(ir.For(mine, ZERO, threads, "lanes", spread))
        value = self.join([ir.load(b, spread_out(out)) for b in self.stages])
        statements.append(ir.For(out, ZERO, count, "lanes", write(ir.add(c, out), value)))
        return statements, list(all_)

    def _turns(
        self,
        lane: Expr,
        count: Expr,
        state: list[ir.Register],
        start: Sequence[Expr],
        stored: bool = False,
    ) -> list[Stmt]:
        """The same by a loop, from `start` on: registers come to what all of them come to, and what
        they are on the way is stored, where that is wanted."""
        i = ir.var(f"{lane.attr}_i")
        at = ir.add(ir.mul(lane, const(self.each)), i)
        there = at < count
        new = [select(there, ir.load(b, spread_out(at)), x) for b, x in self._pairs()]
        now = [ir.var(f"{lane.attr}_now{p}", self.real) for p in range(self.parts)]
        merged = combine(self.op, [ir.read(r) for r in state], new)
        body: list[Stmt] = [ir.Let(n, x) for n, x in zip(now, merged, strict=True)]
        body += [ir.Set(r, n) for r, n in zip(state, now, strict=True)]
        if stored:
            pairs = zip(self.stages, now, strict=True)
            body += [ir.Store(b, spread_out(at), x) for b, x in pairs]
        first: list[Stmt] = [ir.Set(r, x) for r, x in zip(state, start, strict=True)]
        return [*first, ir.For(i, ZERO, const(self.each), "serial", body)]

    def _pairs(self) -> list[tuple[ir.Buffer, Expr]]:
        return list(zip(self.stages, self.start, strict=True))

    def _walk(
        self,
        lane: Expr,
        count: Expr,
        name: str,
        then: Callable[[int, list[Expr]], list[Stmt]] = lambda i, own: [],
    ) -> tuple[list[Stmt], list[Expr]]:
        """Go through a thread's own elements of the chunk, naming what they come to so far, and do
        something `then`; what they all come to."""
        out: list[Stmt] = []
        state: list[Expr] = []
        for i in range(self.each):
            at = ir.add(ir.mul(lane, const(self.each)), const(i))
            there = at < count
            new = [select(there, ir.load(b, spread_out(at)), x) for b, x in self._pairs()]
            state = combine(self.op, state, new) if state else new
            names = [ir.var(f"{name}{i}_{p}", self.real) for p in range(self.parts)]
            out += [ir.Let(n, x) for n, x in zip(names, state, strict=True)]
            state = list(names)
            out += then(i, state)
        return out, state


# -- ranks by a digit -----------------------------------------------------------------------------


def digit_of(key: Expr, shift: Expr) -> Expr:
    """The digit of a key that starts at a bit."""
    bits = ir.binary("lshr", key, shift.cast(key.dtype)) & const(DIGITS - 1, key.dtype)
    return bits.cast(dt.uint32)


def _c(value: int) -> Expr:
    return const(value, dt.uint32)


class Ranks:
    """Where each of a chunk's elements belongs by one digit of its key, ties in order.

    A thread counts the digits of its own elements in fields of 4 bits; a `Scan` adds up counts of
    16 bits, two in a register.
    """

    def __init__(self, threads: int, tag: str) -> None:
        self.threads = threads
        self.tag = tag
        self.chunk = threads * EACH
        assert EACH < 1 << 4
        assert self.chunk < 1 << 16
        self.counts = [ir.Register(f"{tag}n{r}", dt.uint32, lanes=True) for r in range(_PAIRS)]
        self.fields = [ir.Register(f"{tag}f{h}", dt.uint32, lanes=True) for h in (0, 1)]
        self.before = [ir.Register(f"{tag}b{i}", dt.uint32, lanes=True) for i in range(EACH)]
        self.totals = [ir.var(f"{tag}t{r}", dt.uint32) for r in range(_PAIRS)]

    def count(self, size: Expr, key: Callable[[Expr], Expr], shift: Expr) -> list[Stmt]:
        """Count the digits of elements 0 … size - 1 of the chunk."""
        lane = ir.var(f"{self.tag}count")
        body: list[Stmt] = [ir.Set(f, _c(0)) for f in self.fields]
        for i in range(EACH):
            at = ir.add(ir.mul(lane, const(EACH)), const(i))
            d = ir.var(f"{self.tag}d{i}", dt.uint32)
            one = ir.var(f"{self.tag}one{i}", dt.uint32)
            field = (d & _c(7)) << _c(2)
            low = d < _c(8)
            word = select(low, ir.read(self.fields[0]), ir.read(self.fields[1]))
            body += [
                ir.Let(d, digit_of(key(at), shift)),
                ir.Set(self.before[i], ir.binary("lshr", word, field) & _c(15)),
                ir.Let(one, select(at < size, _c(1) << field, _c(0))),
                ir.Set(self.fields[0], ir.read(self.fields[0]) + select(low, one, _c(0))),
                ir.Set(self.fields[1], ir.read(self.fields[1]) + select(low, _c(0), one)),
            ]
        for r, register in enumerate(self.counts):
            word = ir.read(self.fields[2 * r // 8])
            first, second = (_c(4 * ((2 * r + k) % 8)) for k in (0, 1))
            a = ir.binary("lshr", word, first) & _c(15)
            b = ir.binary("lshr", word, second) & _c(15)
            body.append(ir.Set(register, a | (b << _c(16))))
        left, right = (
            [ir.var(f"{self.tag}{n}{r}", dt.uint32) for r in range(_PAIRS)] for n in "xy"
        )
        merged = [x + y for x, y in zip(left, right, strict=True)]
        return [
            ir.For(lane, ZERO, const(self.threads), "lanes", body),
            ir.BlockScan(self.counts, left, right, merged, [_c(0)] * _PAIRS, self.totals),
        ]

    def total(self, d: int) -> Expr:
        """How many elements of the chunk have digit d."""
        word = self.totals[d // 2]
        return (ir.binary("lshr", word, _c(16)) if d % 2 else word & _c(0xFFFF)).cast(dt.int64)

    def starts(self) -> tuple[list[Stmt], list[Expr]]:
        """Where the elements of each digit begin in the ordered chunk, two in a word."""
        lets: list[Stmt] = []
        words = []
        at: Expr = _c(0)
        for r, word in enumerate(self.totals):
            first = at
            second = at + (word & _c(0xFFFF))
            name = ir.var(f"{self.tag}s{r}", dt.uint32)
            lets.append(ir.Let(name, first | (second << _c(16))))
            words.append(name)
            after = ir.var(f"{self.tag}e{r}", dt.uint32)
            lets.append(ir.Let(after, second + ir.binary("lshr", word, _c(16))))
            at = after
        return lets, words

    def place(
        self,
        size: Expr,
        key: Callable[[Expr], Expr],
        shift: Expr,
        words: list[Expr],
        move: Callable[[Expr, Expr], list[Stmt]],
    ) -> Stmt:
        """For each element, `move(element, rank)`."""
        lane = ir.var(f"{self.tag}place")
        sums = [ir.var(f"{self.tag}p{r}", dt.uint32) for r in range(_PAIRS)]
        body: list[Stmt] = [
            ir.Let(n, ir.read(c) + w) for n, c, w in zip(sums, self.counts, words, strict=True)
        ]
        for i in range(EACH):
            at = ir.add(ir.mul(lane, const(EACH)), const(i))
            d = ir.var(f"{self.tag}q{i}", dt.uint32)
            body.append(ir.Let(d, digit_of(key(at), shift)))
            chosen: list[Expr] = list(sums)
            for bit in (2, 4, 8):  # halve the words by each bit of the digit
                odd = (d & _c(bit)).ne(_c(0))
                chosen = [select(odd, y, x) for x, y in zip(chosen[::2], chosen[1::2], strict=True)]
            half = select((d & _c(1)).ne(_c(0)), ir.binary("lshr", chosen[0], _c(16)), chosen[0])
            rank = (half & _c(0xFFFF)) + ir.read(self.before[i])
            name = ir.var(f"{self.tag}r{i}")
            body.append(ir.Let(name, rank.cast(dt.int64)))
            body.append(ir.If(at < size, move(at, name)))
        return ir.For(lane, ZERO, const(self.threads), "lanes", body)
