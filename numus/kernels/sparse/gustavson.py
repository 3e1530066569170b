"""Sparse × sparse products row by row (Gustavson 1978), in a symbolic and a numeric phase.

Symbolic: rows of the second operand are compressed to words of a bitmap (Deveci, Trott and
Rajamanickam 2018), so that neighbouring columns are one product; a row of the result is the union
of words, of which those that are not empty are listed, put in order by a bitmap of words, and read
back. Numeric: a row is added up in a dense accumulator, of which only the positions of a mask are
cleared before and read after, so that a product that is wanted in a few places costs no more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const

ZERO, ONE = const(0), const(1)
WORD_BITS = 64
_SHIFT, _MASK = const(6), const(WORD_BITS - 1)
_BIT = const(1, dt.uint64)
_UNROLL = 4  # products of the numeric phase, and columns of a word, at a time

Bounds = Callable[[Expr], tuple[Expr, Expr]]
At = Callable[[Expr], Expr]
Number = tuple[Expr, ...]


@dataclass(frozen=True)
class Matrix:
    """The entries of a row, and the column of an entry."""

    bounds: Bounds
    column: At

    def for_row(self, row: Expr, tag: str, body: Callable[[Expr], list[Stmt]]) -> list[Stmt]:
        low, high, entry = (ir.var(f"{tag}_{name}") for name in ("low", "high", "entry"))
        first, last = self.bounds(row)
        loop = ir.For(entry, low, high, "serial", body(entry))
        return [ir.Let(low, first), ir.Let(high, last), loop]


# -- symbolic -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bitmap:
    """The marked columns of one row."""

    words: ir.Buffer  # a bit per column
    summary: ir.Buffer  # a bit per word

    @staticmethod
    def of(columns: Expr) -> Bitmap:
        words = ir.add(ir.idiv(columns, const(WORD_BITS)), ONE)
        summary = ir.add(ir.idiv(words, const(WORD_BITS)), ONE)
        return Bitmap(
            ir.Buffer("marked", dt.uint64, "scratch", words),
            ir.Buffer("summary", dt.uint64, "scratch", summary),
        )

    def clear(self) -> list[Stmt]:
        i, zero = ir.var("i"), const(0, dt.uint64)
        return [
            ir.For(i, ZERO, b.scratch_size, "lanes", [ir.Store(b, i, zero)])
            for b in (self.words, self.summary)
        ]

    def mark_word(self, word: Expr) -> list[Stmt]:
        """Enter a word that is not empty into the summary."""
        block, bit = ir.var("block"), (word & _MASK).cast(dt.uint64)
        marked = ir.load(self.summary, block) | ir.binary("shl", _BIT, bit)
        return [
            ir.Let(block, ir.binary("ashr", word, _SHIFT)),
            ir.Store(self.summary, block, marked),
        ]

    def drain(self, low: Expr, high: Expr, visit: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        """Visit the marked words of blocks low … high in order, as (number, bits), and clear."""
        block, word = ir.var("drained"), ir.var("drained_word")
        bits = ir.var("drained_bits", dt.uint64)
        zero = const(0, dt.uint64)
        body: list[Stmt] = [
            ir.Let(bits, ir.load(self.words, word)),
            ir.Store(self.words, word, zero),
            *visit(word, bits),
        ]
        each = _for_bits(ir.load(self.summary, block), block, "words", word, body)
        clear = ir.Store(self.summary, block, zero)
        return [ir.For(block, low, ir.add(high, ONE), "serial", [*each, clear])]


def _for_bits(bits: Expr, base: Expr, tag: str, number: Expr, body: list[Stmt]) -> list[Stmt]:
    """For each set bit of a word, from the lowest on, with `number` = 64 base + its position."""
    left = ir.Register(f"{tag}_left", dt.uint64)
    now, lowest = (ir.var(f"{tag}_{n}", dt.uint64) for n in ("now", "lowest"))
    count, start = ir.var(f"{tag}_count"), ir.var(f"{tag}_start", dt.uint64)
    i = ir.var(f"{tag}_i")
    position = ir.unary("popcount", ir.sub(lowest, _BIT)).cast(dt.int64)
    return [
        ir.Let(start, bits),
        ir.Let(count, ir.unary("popcount", start).cast(dt.int64)),
        ir.Set(left, start),
        ir.For(
            *(i, ZERO, count, "serial"),
            [
                ir.Let(now, ir.read(left)),
                ir.Let(lowest, now & ir.sub(const(0, dt.uint64), now)),
                ir.Set(left, now ^ lowest),
                ir.Let(number, ir.add(ir.mul(base, const(WORD_BITS)), position)),
                *body,
            ],
        ),
    ]


@dataclass(frozen=True)
class Words:
    """Rows as words of a bitmap: entry `low` … `end` of a row are (number of the word, bits)."""

    low: At
    end: At
    number: At
    bits: At


def compress(
    b: Matrix, rows: tuple[Expr, Expr], numbers: ir.Buffer, bits: ir.Buffer, ends: ir.Buffer
) -> list[Stmt]:
    """The words of a range of rows, from where each row starts on; one that neighbouring columns
    share is written once for each of them."""
    row = ir.var("row")
    at, number = ir.Register("at", ir.INDEX), ir.Register("number", ir.INDEX)
    marked = ir.Register("marked", dt.uint64)
    column, word, place = ir.var("column"), ir.var("word"), ir.var("place")
    is_new, all_bits = ir.var("is_new", dt.bool_), ir.var("all_bits", dt.uint64)
    bit = ir.binary("shl", _BIT, (column & _MASK).cast(dt.uint64))
    before = ir.select(is_new, const(0, dt.uint64), ir.read(marked))

    def visit(entry: Expr) -> list[Stmt]:
        return [
            ir.Let(column, b.column(entry)),
            ir.Let(word, ir.binary("ashr", column, _SHIFT)),
            ir.Let(is_new, word.ne(ir.read(number))),
            ir.Let(place, ir.add(ir.read(at), is_new.cast(ir.INDEX))),
            ir.Let(all_bits, before | bit),
            ir.Store(numbers, place, word.cast(numbers.dtype)),
            ir.Store(bits, place, all_bits),
            ir.Set(at, place),
            ir.Set(number, word),
            ir.Set(marked, all_bits),
        ]

    first = ir.var("first")
    body = [
        ir.Let(first, b.bounds(row)[0]),
        ir.Set(at, ir.sub(first, ONE)),
        ir.Set(number, const(-1)),
        ir.Set(marked, const(0, dt.uint64)),
        *b.for_row(row, "b", visit),
        ir.Store(ends, row, ir.add(ir.read(at), ONE).cast(ends.dtype)),
    ]
    return [ir.For(row, *rows, "serial", body)]


@dataclass(frozen=True)
class _Union:
    """The words of a row of the product, and a list of those that are not empty."""

    bitmap: Bitmap
    listed: ir.Buffer
    count: ir.Register

    @staticmethod
    def of(columns: Expr) -> _Union:
        bitmap = Bitmap.of(columns)
        room = ir.add(bitmap.words.scratch_size, ONE)
        listed = ir.Buffer("listed", dt.int32, "scratch", room)
        return _Union(bitmap, listed, ir.Register("count", ir.INDEX))

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.bitmap.words, self.bitmap.summary, self.listed]

    def collect(self, a: Matrix, b: Words, row: Expr) -> list[Stmt]:
        k, q, low, high = (ir.var(n) for n in ("k", "q", "b_low", "b_high"))
        word, place = ir.var("word"), ir.var("place")
        held, words = ir.var("held", dt.uint64), self.bitmap.words
        add: list[Stmt] = [
            ir.Let(word, b.number(q)),
            ir.Let(held, ir.load(words, word)),
            ir.Store(words, word, held | b.bits(q)),
            ir.Let(place, ir.read(self.count)),
            # the next word overwrites one that was not new
            ir.Store(self.listed, place, word.cast(self.listed.dtype)),
            ir.Set(self.count, ir.add(place, held.eq(const(0, dt.uint64)).cast(ir.INDEX))),
        ]

        def inner(entry: Expr) -> list[Stmt]:
            return [
                ir.Let(k, a.column(entry)),
                ir.Let(low, b.low(k)),
                ir.Let(high, b.end(k)),
                ir.For(q, low, high, "serial", add),
            ]

        return [ir.Set(self.count, ZERO), *a.for_row(row, "a", inner)]

    def for_listed(self, body: Callable[[Expr], list[Stmt]]) -> Stmt:
        i, word = ir.var("i"), ir.var("listed_word")
        own = ir.load(self.listed, i).cast(ir.INDEX)
        return ir.For(i, ZERO, ir.read(self.count), "serial", [ir.Let(word, own), *body(word)])


def count_columns(
    a: Matrix,
    b: Words,
    rows: tuple[Expr, Expr],
    columns: Expr,
    write: Callable[[Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """write(row, the number of its columns) for a range of rows."""
    union = _Union.of(columns)
    row, total, words = ir.var("row"), ir.Register("total", ir.INDEX), union.bitmap.words

    def add(word: Expr) -> list[Stmt]:
        bits = ir.unary("popcount", ir.load(words, word)).cast(ir.INDEX)
        return [
            ir.Set(total, ir.add(ir.read(total), bits)),
            ir.Store(words, word, const(0, dt.uint64)),
        ]

    body = [
        *union.collect(a, b, row),
        ir.Set(total, ZERO),
        union.for_listed(add),
        *write(row, ir.read(total)),
    ]
    return [*union.bitmap.clear(), ir.For(row, *rows, "serial", body)], union.scratch


def list_columns(
    a: Matrix,
    b: Words,
    rows: tuple[Expr, Expr],
    columns: Expr,
    place: Bounds,
    write: Callable[[Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """write(position, column) for the columns of a range of rows, in order; `place(row)` are the
    positions of a row."""
    union = _Union.of(columns)
    ordered = ir.Buffer("ordered", dt.int32, "scratch", ir.add(columns, const(_UNROLL)))
    row, i = ir.var("row"), ir.var("i")
    low, high, rank = (ir.Register(n, ir.INDEX) for n in ("lowest", "highest", "rank"))
    own, start, room = ir.var("own_block"), ir.var("start"), ir.var("room")

    def mark(word: Expr) -> list[Stmt]:
        return [
            ir.Let(own, ir.binary("ashr", word, _SHIFT)),
            ir.Set(low, ir.minimum(ir.read(low), own)),
            ir.Set(high, ir.maximum(ir.read(high), own)),
            *union.bitmap.mark_word(word),
        ]

    first, last = place(row)
    copy = ir.For(i, ZERO, room, "lanes", write(ir.add(start, i), ir.load(ordered, i)))
    body = [
        *union.collect(a, b, row),
        ir.Set(low, ir.idiv(columns, const(4096))),
        ir.Set(high, const(-1)),
        ir.Set(rank, ZERO),
        union.for_listed(mark),
        *union.bitmap.drain(
            *(ir.read(low), ir.read(high)), lambda word, bits: _expand(word, bits, ordered, rank)
        ),
        ir.Let(start, first),
        ir.Let(room, ir.minimum(ir.read(rank), ir.sub(last, start))),
        copy,
    ]
    scratch = [*union.scratch, ordered]
    return [*union.bitmap.clear(), ir.For(row, *rows, "serial", body)], scratch


def _expand(word: Expr, bits: Expr, out: ir.Buffer, rank: ir.Register) -> list[Stmt]:
    """Columns of a word's bits from `rank` on, a few at a time: what is written beyond the last is
    overwritten by the next word's."""
    left, i, at = ir.Register("left", dt.uint64), ir.var("chunk"), ir.var("at")
    base, count = ir.var("base"), ir.var("bit_count")
    chunk: list[Stmt] = [ir.Let(at, ir.add(ir.read(rank), i))]
    before: Expr = ir.read(left)
    for j in range(_UNROLL):
        now = ir.var(f"now{j}", dt.uint64)
        lowest = now & ir.sub(const(0, dt.uint64), now)
        position = ir.unary("popcount", ir.sub(lowest, _BIT)).cast(dt.int64)
        column = ir.add(base, position).cast(out.dtype)
        chunk += [ir.Let(now, before), ir.Store(out, ir.add(at, const(j)), column)]
        before = now & ir.sub(now, _BIT)
    chunk.append(ir.Set(left, before))
    return [
        ir.Let(base, ir.mul(word, const(WORD_BITS))),
        ir.Let(count, ir.unary("popcount", bits).cast(dt.int64)),
        ir.Set(left, bits),
        ir.For(i, ZERO, count, "serial", chunk, step=const(_UNROLL)),
        ir.Set(rank, ir.add(ir.read(rank), count)),
    ]


# -- numeric --------------------------------------------------------------------------------------


def numeric(
    a: Matrix,
    b: Matrix,
    mask: Matrix,
    rows: tuple[Expr, Expr],
    columns: Expr,
    accumulator: tuple[DType, int],
    value: Callable[[Expr], Number],
    term: Callable[[Number, Expr], Number],
    write: Callable[[Expr, Number], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Elements of a range of rows at the mask's positions; value(entry of a), term(value, entry of
    b), write(entry of the mask, sum)."""
    dtype, components = accumulator
    sums = [ir.Buffer(f"sums{i}", dtype, "scratch", columns) for i in range(components)]
    row = ir.var("row")

    def clear(entry: Expr) -> list[Stmt]:
        at = ir.var("cleared")
        zero = const(0, dtype)
        return [ir.Let(at, mask.column(entry)), *(ir.Store(s, at, zero) for s in sums)]

    def add(entry: Expr) -> list[Stmt]:
        k = ir.var("k")
        lets, factor = ir.bind(value(entry), "factor")

        def some(q: Expr, count: int) -> list[Stmt]:
            """Products first, then sums, one after the other: two may be of one column."""
            products: list[Stmt] = []
            updates: list[Stmt] = []
            for i in range(count):
                own, at = ir.add(q, const(i)), ir.var(f"at{i}")
                bound, terms = ir.bind(term(tuple(factor), own), f"term{i}_")
                products += [ir.Let(at, b.column(own)), *bound]
                total = [ir.load(s, at) + t for s, t in zip(sums, terms, strict=True)]
                bound, names = ir.bind(total, f"total{i}_")
                updates += [*bound, *_stores(sums, at, names)]
            return products + updates

        low, high, middle, q = (ir.var(f"b_{name}") for name in ("low", "high", "middle", "entry"))
        first, last = b.bounds(k)
        whole = ir.mul(ir.idiv(ir.sub(high, low), const(_UNROLL)), const(_UNROLL))
        return [
            ir.Let(k, a.column(entry)),
            *lets,
            ir.Let(low, first),
            ir.Let(high, ir.maximum(last, low)),
            ir.Let(middle, ir.add(low, whole)),
            ir.For(q, low, middle, "serial", some(q, _UNROLL), step=const(_UNROLL)),
            ir.For(q, middle, high, "serial", some(q, 1)),
        ]

    def read(entry: Expr) -> list[Stmt]:
        at = ir.var("found")
        return [ir.Let(at, mask.column(entry)), *write(entry, tuple(ir.load(s, at) for s in sums))]

    body = [
        *mask.for_row(row, "clear", clear),
        *a.for_row(row, "a", add),
        *mask.for_row(row, "mask", read),
    ]
    return [ir.For(row, *rows, "serial", body)], sums


def _stores(buffers: Sequence[ir.Buffer], at: Expr, values: Sequence[Expr]) -> list[Stmt]:
    return [ir.Store(b, at, v) for b, v in zip(buffers, values, strict=True)]


# -- an element per thread ------------------------------------------------------------------------


def lower_bound(
    read: Callable[[Expr], Expr], low: Expr, high: Expr, wanted: Expr, steps: Expr, tag: str,
    lanes: bool = True,
) -> tuple[list[Stmt], Expr]:  # fmt: skip
    """A binary search per thread, or of a block, in ascending numbers low … high - 1: the first
    that is not below `wanted`; `steps` suffice for the longest range."""
    left, right = (ir.Register(f"{tag}_{n}", ir.INDEX, lanes=lanes) for n in ("left", "right"))
    a, b, middle, step = (ir.var(f"{tag}_{n}") for n in ("a", "b", "middle", "step"))
    below = ir.var(f"{tag}_below", dt.bool_)
    inside = ir.minimum(middle, ir.maximum(ir.sub(high, ONE), ZERO))
    body: list[Stmt] = [
        ir.Let(a, ir.read(left)),
        ir.Let(b, ir.read(right)),
        ir.Let(middle, ir.binary("ashr", ir.add(a, b), ONE)),
        ir.Let(below, (a < b) & (read(inside) < wanted)),
        ir.Set(left, ir.select(below, ir.add(middle, ONE), a)),
        ir.Set(right, ir.select(below, b, ir.minimum(middle, b))),
    ]
    search = ir.For(step, ZERO, steps, "serial", body)
    return [ir.Set(left, low), ir.Set(right, high), search], ir.read(left)
