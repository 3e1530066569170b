"""Products of compressed sparse rows with dense columns (SpMV, SpMM), and over semirings of
extremes, of which they give the entry that attains each.

One column: rows of one length are summed side by side, one product after the other; others are,
too, where they are short, and else gathered by lanes. Many columns: lanes run along them, and
accumulators stay in registers over the entries of a row, so that the products, nnz × columns of
them, are never in memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.ir.visit import post_order

ZERO, ONE = const(0), const(1)
_LONG = 8  # entries of a row from which on lanes gather
_ROWS = 4  # of one length, whose sums do not wait for each other
PANEL_ENTRIES = 1 << 19  # at most: all of the vector is read for each panel, which the L3 holds
BLOCK_COLUMNS = 1 << 15
_LINE_BYTES = 64
_SUMS = 4  # of a row, where loads one by one are faster than gathers

Number = tuple[Expr, ...]  # its real parts


@dataclass(frozen=True)
class Rows:
    """How a kernel sees the matrix and its operand.

    `bounds(row)` are the first and the past-the-last entry of a row; `term(entry, column)` is the
    product of an entry with the operand; `write(row, column, sum)` stores a result.
    """

    dtype: DType  # of the accumulator
    components: int
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    term: Callable[[Expr, Expr], Number]
    write: Callable[[Expr, Expr, Number], list[Stmt]]

    def registers(self, lanes: bool) -> list[ir.Register]:
        return [ir.Register(f"sum{i}", self.dtype, lanes=lanes) for i in range(self.components)]

    def _accumulate(self, sums: list[ir.Register], entry: Expr, column: Expr) -> list[Stmt]:
        return self._add(sums, self.term(entry, column))

    def _add(self, sums: list[ir.Register], term: Number) -> list[Stmt]:
        found: list[Stmt] = []
        for s, t in zip(sums, term, strict=True):
            if t.op == "mul" and t.dtype.is_floating:
                a, b = t.args
                found.append(ir.Set(s, ir.fma(a, b, ir.read(s), allow_unfused=True)))
            else:
                found.append(ir.Set(s, ir.read(s) + t))
        return found

    def _clear(self, sums: list[ir.Register]) -> list[Stmt]:
        return [ir.Set(s, const(0, self.dtype)) for s in sums]

    def _bound(self, row: Expr) -> tuple[list[Stmt], Expr, Expr]:
        low, high = ir.var("low"), ir.var("high")
        first, last = self.bounds(row)
        return [ir.Let(low, first), ir.Let(high, last)], low, high

    def scalar(self, row: Expr, column: Expr, lanes: bool = False) -> list[Stmt]:
        """One entry after the other; with `lanes`, each lane has a row and column of its own."""
        sums, entry = self.registers(lanes), ir.var("entry")
        lets, low, high = self._bound(row)
        loop = ir.For(entry, low, high, "serial", self._accumulate(sums, entry, column))
        return [*lets, *self._clear(sums), loop, *self.write(row, column, tuple(ir.reads(sums)))]

    def in_turn(self, start: Expr, stop: Expr, gathers: bool) -> list[Stmt]:
        """A range of rows, a few that are as long as each other side by side, others one after the
        other; the end of a row is where the next starts."""
        at, row = ir.Register("at", ir.INDEX), ir.var("row")
        ends = [ir.var(f"end{i}") for i in range(_ROWS + 1)]
        lengths = [ir.sub(b, a) for a, b in pairwise(ends)]
        last = ir.sub(stop, ONE)
        lets: list[Stmt] = [ir.Let(ends[0], ir.read(at))]
        for i, end in enumerate(ends[1:]):
            own = ir.minimum(ir.add(row, const(i)), last)
            lets.append(ir.Let(end, self.bounds(own)[1]))
        inside = ir.add(row, const(_ROWS - 1)) < stop
        equal_lengths = ir.var("equal_lengths", dt.bool_)
        same = functools.reduce(lambda x, y: x & y, [n.eq(lengths[0]) for n in lengths[1:]])
        following = ir.var("following")
        single = self._single(at, following, gathers)
        until = ir.minimum(ir.add(row, const(_ROWS)), stop)
        body = [
            *lets,
            ir.Let(equal_lengths, inside & same),
            ir.If(equal_lengths, [*self._abreast(row, ends, lengths[0]), ir.Set(at, ends[-1])]),
            ir.If(~equal_lengths, [ir.For(following, row, until, "serial", single)]),
        ]
        loop = ir.For(row, start, stop, "serial", body, step=const(_ROWS))
        return [ir.Set(at, self.bounds(start)[0]), loop]

    def _abreast(self, row: Expr, starts: list[Expr], length: Expr) -> list[Stmt]:
        """Rows of one length, a sum of each."""
        sums = [
            [ir.Register(f"sum{i}_{r}", self.dtype) for i in range(self.components)]
            for r in range(_ROWS)
        ]
        j = ir.var("j")
        step: list[Stmt] = []
        out: list[Stmt] = []
        for r, own in enumerate(sums):
            step += self._accumulate(own, ir.add(starts[r], j), ZERO)
            out += self.write(ir.add(row, const(r)), ZERO, tuple(ir.reads(own)))
        clear = [x for own in sums for x in self._clear(own)]
        return [*clear, ir.For(j, ZERO, length, "serial", step), *out]

    def _single(self, at: ir.Register, row: Expr, gathers: bool) -> list[Stmt]:
        """The row whose entries start at a register's number: two at a time, in parts if many."""
        sums, entry = self.registers(False), ir.var("entry")
        low, high = ir.var("low"), ir.var("high")
        last = ir.sub(high, ONE)
        pair = [x for i in (entry, ir.add(entry, ONE)) for x in self._accumulate(sums, i, ZERO)]
        is_odd = (low < high) & (ir.sub(high, low) & ONE).eq(ONE)
        is_long = ~(ir.sub(high, low) < const(_LONG))
        short: list[Stmt] = [
            ir.For(entry, low, last, "serial", pair, step=const(2)),
            ir.If(is_odd, self._accumulate(sums, last, ZERO)),
        ]
        long = (self._by_lanes if gathers else self._in_parts)(sums, low, high)
        return [
            ir.Let(low, ir.read(at)),
            ir.Let(high, self.bounds(row)[1]),
            *self._clear(sums),
            ir.If(is_long, long),
            ir.If(~is_long, short),
            *self.write(row, ZERO, tuple(ir.reads(sums))),
            ir.Set(at, high),
        ]

    def _by_lanes(self, sums: list[ir.Register], low: Expr, high: Expr) -> list[Stmt]:
        lanes = [ir.Register(f"lanes{i}", self.dtype, lanes=True) for i in range(self.components)]
        own = self._accumulate(lanes, ir.var("entry"), ZERO)
        return [
            *self._clear(lanes),
            ir.For(ir.var("entry"), low, high, "lanes", own),
            *ir.sets(sums, [ir.lanes_reduce("add", s) for s in lanes]),
        ]

    def _in_parts(self, sums: list[ir.Register], low: Expr, high: Expr) -> list[Stmt]:
        """Several sums that do not wait for each other. Entries past the end of a row are those of
        its last one, and not added: lengths change from row to row, and a branch by what is left
        would be mispredicted."""
        entry, whole, last = ir.var("entry"), ir.var("whole"), ir.sub(high, ONE)
        own = [
            [ir.Register(f"sum{i}_{k}", self.dtype) for i in range(self.components)]
            for k in range(_SUMS)
        ]
        none = const(0, self.dtype)
        step: list[Stmt] = []
        rest: list[Stmt] = []
        for k, part in enumerate(own):
            step += self._accumulate(part, ir.add(entry, const(k)), ZERO)
        for k, part in enumerate(own[:-1]):
            i = ir.add(whole, const(k))
            term = self.term(ir.minimum(i, last), ZERO)
            rest += [
                ir.Set(s, ir.read(s) + ir.select(i < high, t, none))
                for s, t in zip(part, term, strict=True)
            ]
        total = [functools.reduce(lambda a, b: a + b, ir.reads(s)) for s in zip(*own, strict=True)]
        return [
            *(x for part in own for x in self._clear(part)),
            ir.Let(whole, ir.sub(high, ir.irem(ir.sub(high, low), const(_SUMS)))),
            ir.For(entry, low, whole, "serial", step, step=const(_SUMS)),
            ir.If(whole < high, rest),
            *ir.sets(sums, total),
        ]

    def in_run(
        self, start: Expr, stop: Expr, first: Expr, length: Expr, abreast: int,
        column: Callable[[Expr], Expr], term: Callable[[Expr, Expr], Number],
    ) -> list[Stmt]:  # fmt: skip
        """Rows of one length whose columns move with the row, some side by side. `column(j)` is
        that of entry j of the first row, `term(entry, column)` a product."""
        row, rest, j, at = (ir.var(name) for name in ("row", "rest", "j", "at"))

        def several(row: Expr, count: int) -> list[Stmt]:
            sums = [
                [ir.Register(f"sum{i}_{r}", self.dtype) for i in range(self.components)]
                for r in range(count)
            ]
            begins = [ir.var(f"begin{r}") for r in range(count)]
            inside = ir.sub(row, start)
            lets: list[Stmt] = [ir.Let(begins[0], ir.add(first, ir.mul(inside, length)))]
            lets += [ir.Let(b, ir.add(a, length)) for a, b in pairwise(begins)]
            step: list[Stmt] = [ir.Let(at, ir.add(column(j), inside))]
            out: list[Stmt] = []
            for r, own in enumerate(sums):
                step += self._add(own, term(ir.add(begins[r], j), ir.add(at, const(r))))
                out += self.write(ir.add(row, const(r)), ZERO, tuple(ir.reads(own)))
            clear = [x for own in sums for x in self._clear(own)]
            return [*lets, *clear, ir.For(j, ZERO, length, "serial", step), *out]

        middle = ir.var("middle")
        left = ir.irem(ir.sub(stop, start), const(abreast))
        return [
            ir.Let(middle, ir.sub(stop, left)),
            ir.For(row, start, middle, "serial", several(row, abreast), step=const(abreast)),
            ir.For(rest, middle, stop, "serial", several(rest, 1)),
        ]

    def along_columns(self, row: Expr, columns: Expr, unroll: int) -> list[Stmt]:
        """`unroll` vectors of columns are summed side by side over the entries of the row."""
        sums, entry, column = self.registers(True), ir.var("entry"), ir.var("column")
        lets, low, high = self._bound(row)
        loop = ir.For(entry, low, high, "serial", self._accumulate(sums, entry, column))
        body = [*self._clear(sums), loop, *self.write(row, column, tuple(ir.reads(sums)))]
        return [*lets, ir.For(column, ZERO, columns, "lanes", body, unroll=unroll)]


def prefetch_block(width: Expr, itemsize: int, element: Callable[[Expr], Number]) -> list[Stmt]:
    """Prefetch what the elements of a block are computed from, in order: gathers would wait."""
    offset = ir.var("offset")
    loads = (x for x in post_order(element(offset), set()) if x.op == "load")
    places = {(x.attr, x.args[0]): None for x in loads if not _is_loaded(x.args[0])}
    fetches: list[Stmt] = [ir.Prefetch(buffer, at, False, 2) for buffer, at in places]
    step = const(max(1, _LINE_BYTES // itemsize))
    return [ir.For(offset, ZERO, width, "serial", fetches, step=step)]


def _is_loaded(index: Expr) -> bool:
    return any(e.op == "load" for e in post_order([index], set()))


def gather_block(
    low: Expr, high: Expr, gathers: bool, element: Callable[[Expr], Number],
    store: Callable[[Expr, Number], list[Stmt]],
) -> list[Stmt]:  # fmt: skip
    """Elements of a vector's block, by lanes or a few at a time."""
    k, rest, whole = ir.var("k"), ir.var("rest"), ir.var("whole")
    if gathers:
        return [ir.For(k, low, high, "lanes", store(k, element(k)))]
    several: list[Stmt] = []
    stores: list[Stmt] = []
    for i in range(_SUMS):
        at = ir.add(k, const(i))
        parts = element(at)
        found = tuple(ir.var(f"found{i}_{j}", part.dtype) for j, part in enumerate(parts))
        several += [ir.Let(f, part) for f, part in zip(found, parts, strict=True)]
        stores += store(at, found)
    return [
        ir.Let(whole, ir.sub(high, ir.irem(ir.sub(high, low), const(_SUMS)))),
        ir.For(k, low, whole, "serial", [*several, *stores], step=const(_SUMS)),
        ir.For(rest, whole, high, "serial", store(rest, element(rest))),
    ]


@dataclass(frozen=True)
class Extremes:
    """Which entry of each row has the largest or smallest term; arguments as of `Rows`."""

    dtype: DType  # of terms
    position: DType  # of entries
    largest: bool
    bounds: Callable[[Expr], tuple[Expr, Expr]]
    term: Callable[[Expr, Expr], Expr]
    write: Callable[[Expr, Expr, Expr], list[Stmt]]

    def _search(self, row: Expr, column: Expr) -> tuple[list[Stmt], list[Stmt]]:
        """The bounds of a row, and the walk over its entries."""
        best = ir.Register("best", self.dtype, lanes=True)
        where = ir.Register("where", self.position, lanes=True)
        low, high, entry = ir.var("low"), ir.var("high"), ir.var("entry")
        term, held = ir.var("term", self.dtype), ir.var("held", self.dtype)
        at, take = ir.var("at", self.position), ir.var("take", dt.bool_)
        better = term > held if self.largest else term < held
        if self.dtype.is_floating:  # a NaN stays
            better = better | (term.ne(term) & held.eq(held))
        first, last = self.bounds(row)
        none = const(-1, self.position)
        body: list[Stmt] = [
            ir.Let(term, self.term(entry, column)),
            ir.Let(held, ir.read(best)),
            ir.Let(at, ir.read(where)),
            ir.Let(take, better | at.eq(none)),
            ir.Set(best, ir.select(take, term, held)),
            ir.Set(where, ir.select(take, entry.cast(self.position), at)),
        ]
        found = ir.maximum(ir.read(where), const(0, self.position))
        walk = [
            ir.Set(best, const(0, self.dtype)),
            ir.Set(where, none),
            ir.For(entry, low, high, "serial", body),
            *self.write(row, column, found),
        ]
        return [ir.Let(low, first), ir.Let(high, last)], walk

    def along_columns(self, row: Expr, columns: Expr) -> list[Stmt]:
        """Lanes run along the columns."""
        column = ir.var("column")
        lets, walk = self._search(row, column)
        return [*lets, ir.For(column, ZERO, columns, "lanes", walk)]

    def per_lane(self, row: Expr, column: Expr) -> list[Stmt]:
        """Each lane has a row and column of its own."""
        lets, walk = self._search(row, column)
        return [*lets, *walk]
