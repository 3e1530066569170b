"""Sparse × sparse products row by row (Gustavson 1978), in a symbolic and a numeric phase.

Symbolic: a table has for each column the last row that it was found in, so that new ones are known
without clearing it. To be put in order, those of a row are marked in a bitmap, and in one of its
words, and read back. Numeric: a row is added up in a dense accumulator, of which only the positions
of a mask are cleared before and read after, so that a product that is wanted in a few places costs
no more.
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

    def mark(self, column: Expr) -> list[Stmt]:
        at, word, block = ir.var("at"), ir.var("word"), ir.var("block")

        def marked(buffer: ir.Buffer, index: Expr, number: Expr) -> Stmt:
            bit = ir.binary("shl", _BIT, (number & _MASK).cast(dt.uint64))
            return ir.Store(buffer, index, ir.load(buffer, index) | bit)

        return [
            ir.Let(at, column),
            ir.Let(word, ir.binary("ashr", at, _SHIFT)),
            ir.Let(block, ir.binary("ashr", word, _SHIFT)),
            marked(self.words, word, at),
            marked(self.summary, block, word),
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
class _Found:
    """The different columns of a row: a table of the last row of each, and a list."""

    last: ir.Buffer
    listed: ir.Buffer | None

    def clear(self) -> Stmt:
        i = ir.var("i")
        empty = ir.Store(self.last, i, const(-1, self.last.dtype))
        return ir.For(i, ZERO, self.last.scratch_size, "lanes", [empty])

    def add(self, count: ir.Register, row: Expr, column: Expr) -> list[Stmt]:
        at, place, is_new = ir.var("at"), ir.var("place"), ir.var("is_new", dt.bool_)
        own = row.cast(self.last.dtype)
        out: list[Stmt] = [
            ir.Let(at, column),
            ir.Let(is_new, ir.load(self.last, at).ne(own)),
            ir.Store(self.last, at, own),
            ir.Let(place, ir.read(count)),
        ]
        if self.listed is not None:  # the next column overwrites one that was not new
            out.append(ir.Store(self.listed, place, at.cast(self.listed.dtype)))
        return [*out, ir.Set(count, ir.add(place, is_new.cast(ir.INDEX)))]


def _for_products(
    a: Matrix, b: Matrix, row: Expr, body: Callable[[Expr], list[Stmt]]
) -> list[Stmt]:
    """For the column of each product of a row."""

    def inner(entry: Expr) -> list[Stmt]:
        k = ir.var("k")
        return [ir.Let(k, a.column(entry)), *b.for_row(k, "b", lambda q: body(b.column(q)))]

    return a.for_row(row, "a", inner)


def count_columns(
    a: Matrix,
    b: Matrix,
    rows: tuple[Expr, Expr],
    columns: Expr,
    write: Callable[[Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """write(row, the number of its columns) for a range of rows."""
    found = _Found(ir.Buffer("last", dt.int32, "scratch", columns), None)
    row, count = ir.var("row"), ir.Register("count", ir.INDEX)
    body = [
        ir.Set(count, ZERO),
        *_for_products(a, b, row, lambda column: found.add(count, row, column)),
        *write(row, ir.read(count)),
    ]
    return [found.clear(), ir.For(row, *rows, "serial", body)], [found.last]


def list_columns(
    a: Matrix,
    b: Matrix,
    rows: tuple[Expr, Expr],
    columns: Expr,
    write: Callable[[Expr, Expr, Expr], list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """write(row, rank, column) for the columns of a range of rows, in order."""
    bitmap = Bitmap.of(columns)
    listed = ir.Buffer("listed", dt.int32, "scratch", ir.add(columns, ONE))
    found = _Found(ir.Buffer("last", dt.int32, "scratch", columns), listed)
    row, i, column = ir.var("row"), ir.var("i"), ir.var("column")
    count, low, high, rank = (
        ir.Register(n, ir.INDEX) for n in ("count", "lowest", "highest", "rank")
    )
    own, block, now = ir.var("own"), ir.var("own_block"), ir.var("now")
    mark: list[Stmt] = [
        ir.Let(own, ir.load(listed, i).cast(ir.INDEX)),
        ir.Let(block, ir.binary("ashr", own, const(12))),
        ir.Set(low, ir.minimum(ir.read(low), block)),
        ir.Set(high, ir.maximum(ir.read(high), block)),
        *bitmap.mark(own),
    ]

    def visit(word: Expr, bits: Expr) -> list[Stmt]:
        body = [
            ir.Let(now, ir.read(rank)),
            *write(row, now, column),
            ir.Set(rank, ir.add(now, ONE)),
        ]
        return _for_bits(bits, word, "columns", column, body)

    body = [
        ir.Set(count, ZERO),
        *_for_products(a, b, row, lambda column: found.add(count, row, column)),
        ir.Set(low, ir.idiv(columns, const(4096))),
        ir.Set(high, const(-1)),
        ir.Set(rank, ZERO),
        ir.For(i, ZERO, ir.read(count), "serial", mark),
        *bitmap.drain(ir.read(low), ir.read(high), visit),
    ]
    scratch = [bitmap.words, bitmap.summary, listed, found.last]
    return [*bitmap.clear(), found.clear(), ir.For(row, *rows, "serial", body)], scratch


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
        k, at = ir.var("k"), ir.var("at")
        lets, factor = ir.bind(value(entry), "factor")

        def one(q: Expr) -> list[Stmt]:
            terms = term(tuple(factor), q)
            lets, names = ir.bind(
                [ir.load(s, at) + t for s, t in zip(sums, terms, strict=True)], "t"
            )
            return [ir.Let(at, b.column(q)), *lets, *_stores(sums, at, names)]

        return [ir.Let(k, a.column(entry)), *lets, *b.for_row(k, "b", one)]

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
    read: Callable[[Expr], Expr], low: Expr, high: Expr, wanted: Expr, steps: Expr, tag: str
) -> tuple[list[Stmt], Expr]:
    """A binary search per thread in ascending numbers low … high - 1: the first that is not below
    `wanted`; `steps` suffice for the longest range."""
    left, right = (ir.Register(f"{tag}_{n}", ir.INDEX, lanes=True) for n in ("left", "right"))
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
