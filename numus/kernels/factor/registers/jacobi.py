"""One-sided Jacobi rotations of small matrices, each in registers of lanes of a warp.

A lane has a row. In step s of a sweep, the partner of lane l is l xor s: all pairs meet once. Both
lanes of a pair compute its rotation, by arithmetic that gives them the same bits. The first one
gets the longer row (de Rijk 1989): clusters of singular values take half as many sweeps then.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.jacobi import rounding_bound, sweeps
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    fma,
    least_normal,
    negligible_square,
    normal_inverse_root,
    plus_product,
    scaled,
    zero,
)

WARP = 32
ROUNDED = 4  # columns to whose multiples registers are rounded up, so that few kernels are made
_CHAINS = 2  # of additions, whose latencies overlap

Element = Callable[[Expr, Expr, Expr], Number]  # of a matrix, a row and a column


@dataclass(frozen=True)
class WarpRows:
    """Lanes of a matrix, a power of two, and columns that each has registers for: those in which
    rows become orthogonal, and others."""

    lanes: int
    columns: int
    others: int

    @property
    def matrices(self) -> int:
        """Of a warp."""
        return WARP // self.lanes


@dataclass(frozen=True)
class Pair:
    """How a lane sees a step: whether it is the first of its pair, the squared norms of both rows,
    the size of their inner product and the phase of its own row times its partner's conjugate."""

    is_first: Expr
    own: Expr
    other: Expr
    length: Expr
    phase: Number


class Rotations:
    """Of matrices of some rows, orthogonal in their first `width` columns of `total`."""

    def __init__(self, p: Program, shape: WarpRows, extents: tuple[Expr, Expr, Expr]) -> None:
        self.p, self.shape = p, shape
        self.rows, self.width, self.total = extents
        self.columns, self.others = (
            [[p.register(lanes=True) for _ in range(p.components)] for _ in range(count)]
            for count in (shape.columns, shape.others)
        )
        self.size = p.register(lanes=True)  # the squared norm of the row
        self.rotated = p.register(INT, lanes=True)

    # -- memory -----------------------------------------------------------------------------------

    def load(self, a: Element, first: Expr, batch: Expr) -> None:
        """Matrices from the `first` of the warp on. Lanes beyond them have zeros, which are
        orthogonal to all."""
        p = self.p
        with p.lanes(ZERO, const(WARP)) as lane:
            for column in (*self.columns, *self.others):
                p.do(*ir.sets(column, zero(p)))
            with self._row(lane, first, batch) as (k, i):
                for column, j in self._elements():
                    p.do(*ir.sets(column, a(k, i, j)))

    def store(self, out: Callable[[Expr], Matrix], first: Expr, batch: Expr) -> None:
        p = self.p
        with p.lanes(ZERO, const(WARP)) as lane, self._row(lane, first, batch) as (k, i):
            matrix = out(k)
            for column, j in self._elements():
                matrix[i, j] = tuple(ir.reads(column))

    @contextlib.contextmanager
    def _row(self, lane: Expr, first: Expr, batch: Expr) -> Iterator[tuple[Expr, Expr]]:
        """The matrix and the row of a lane that has one."""
        p, lanes = self.p, const(self.shape.lanes)
        k = p.let(ir.add(first, ir.idiv(lane, lanes)))
        i = p.let(ir.irem(lane, lanes))
        with p.when(p.let((k < batch) & (i < self.rows))):
            yield k, i

    def _elements(self) -> Iterator[tuple[list[ir.Register], Expr]]:
        """Registers of a row, with their columns."""
        p, rest = self.p, ir.sub(self.total, self.width)
        for registers, start, count in (
            (self.columns, ZERO, self.width),
            (self.others, self.width, rest),
        ):
            last = len(registers) - ROUNDED
            for c in range(0, len(registers), ROUNDED):
                # branches keep apart what operands are computed from: all at once takes registers
                with p.when(p.let(const(c) < count)):
                    yield registers[c], ir.add(start, const(c))
                    for k in range(c + 1, c + ROUNDED):
                        j = ir.add(start, const(k))
                        if c < last:
                            yield registers[k], j
                            continue
                        with p.when(p.let(const(k) < count)):
                            yield registers[k], j

    # -- rotations --------------------------------------------------------------------------------

    def orthogonalize(self) -> None:
        p = self.p
        bound = rounding_bound(p, self.width)
        with sweeps(p, self.rotated):
            with p.lanes(ZERO, const(WARP)):
                parts = [ir.read(part) for column in self.columns for part in column]
                parts = [p.let(x) for x in parts]
                p.do(ir.Set(self.size, self._sum((x, x) for x in parts)))
                p.do(ir.Set(self.rotated, const(0, INT)))
            steps = p.loop(ONE, const(self.shape.lanes))
            with steps as step, p.lanes(ZERO, const(WARP)) as lane:
                self._step(lane, step, bound)

    def _step(self, lane: Expr, step: Expr, bound: Expr) -> None:
        p = self.p
        rows = [self._exchanged(column, step) for column in self.columns]
        own = p.let(ir.read(self.size))
        # norms follow the rotations of a sweep: where digits cancel, they may be below zero
        root = p.let(ir.rough_rsqrt(ir.maximum(own, p.constant(least_normal(p)))))
        roots = p.let(root * ir.lanes_xor(root, step))
        length, phase = self._inner(rows)
        # below the least, digits of the sums are lost to underflow; matrices are scaled to 1
        overlapping = p.let((length * roots > bound) & (length > negligible_square(p)))
        turn = p.let(select(overlapping, const(1, INT), const(0, INT)))
        other = p.let(ir.lanes_xor(own, step))
        with p.when(p.let(ir.lanes_max(turn)).ne(0)):  # for all lanes, which exchange more
            number, mask = lane.cast(INT), step.cast(INT)
            pair = Pair(p.let(number < (number ^ mask)), own, other, length, phase)
            self._rotate(pair, overlapping, rows, step)
            p.do(ir.Set(self.rotated, ir.read(self.rotated) + turn))

    def _exchanged(self, column: list[ir.Register], step: Expr) -> tuple[Number, Number]:
        """An element of the lane's own row and that of its partner's."""
        p = self.p
        own = p.number(ir.reads(column))
        return own, p.number([ir.lanes_xor(part, step) for part in own])

    def _sum(self, factors: Iterable[tuple[Expr, Expr]]) -> Expr:
        """Of products, whose factors may be exchanged."""
        p, sums = self.p, list[Expr]()
        for c, (a, b) in enumerate(factors):
            if c < _CHAINS:
                sums.append(p.let(a * b))
            else:
                sums[c % _CHAINS] = p.let(fma(a, b, sums[c % _CHAINS]))
        return p.let(sum(sums[1:], sums[0]))

    def _inner(self, rows: list[tuple[Number, Number]]) -> tuple[Expr, Number]:
        """The size of the inner product of the lane's own row and its partner's, and its phase."""
        p, one = self.p, self.p.constant(1.0)
        real = self._sum(pair for x, y in rows for pair in zip(x, y, strict=True))
        if p.components == 1:
            phase = ir.binary("copysign", one, real)
            return p.let(ir.unary("abs", real)), p.number([phase])
        # the partner has these two exchanged
        sums = [self._sum((x[i], y[1 - i]) for x, y in rows) for i in (1, 0)]
        imaginary = p.let(sums[0] - sums[1])
        largest = p.let(ir.maximum(ir.unary("abs", real), ir.unary("abs", imaginary)))
        is_normal = largest > p.constant(least_normal(p))
        by = p.let(ir.approx_div(one, select(is_normal, largest, one)))
        x, y = p.number([real * by, imaginary * by])
        square = p.let(ir.maximum(fma(y, y, x * x), p.constant(0.5)))
        root = normal_inverse_root(p, square)
        return p.let(largest * (square * root)), p.number([x * root, y * root])

    def _rotate(
        self, pair: Pair, overlapping: Expr, rows: list[tuple[Number, Number]], step: Expr
    ) -> None:
        """The lane's own row of a pair made orthogonal, or as it is."""
        p, one = self.p, self.p.constant(1.0)
        first = select(pair.is_first, pair.own, pair.other)
        second = select(pair.is_first, pair.other, pair.own)
        gap = p.let(second - first)
        cosine, sine, tangent = self._angle(p.let(ir.unary("abs", gap)), pair.length)

        # the first row becomes the longer one: by the larger angle if it is the shorter
        swaps = p.let(gap > p.constant(0.0))
        kept = p.let(select(overlapping, select(swaps, sine, cosine), one))
        added = select(overlapping, select(swaps, cosine, sine), p.constant(0.0))
        added = p.let(select(pair.is_first, added, -added))
        factor = p.number(scaled(pair.phase, added))
        for column, (x, y) in zip(self.columns, rows, strict=True):
            p.do(*ir.sets(column, p.number(plus_product(scaled(x, kept), factor, y))))
        for column in self.others:
            x, y = self._exchanged(column, step)
            p.do(*ir.sets(column, p.number(plus_product(scaled(x, kept), factor, y))))

        longer = fma(tangent, pair.length, ir.maximum(first, second))
        shorter = fma(-tangent, pair.length, ir.minimum(first, second))
        size = select(pair.is_first, longer, shorter)
        p.do(ir.Set(self.size, p.let(select(overlapping, size, pair.own))))

    def _angle(self, gap: Expr, length: Expr) -> tuple[Expr, Expr, Expr]:
        """Cosine, sine and tangent of the smaller angle by which two rows are rotated, of squared
        norms `gap` apart: it may be rough where the first two are of one angle."""
        p, one = self.p, self.p.constant(1.0)
        twice = p.let(length + length)
        by = p.let(ir.approx_div(one, p.let(ir.maximum(gap, twice))))
        x, y = p.number([gap * by, twice * by])
        square = p.let(fma(x, x, y * y))
        inverse = ir.rough_rsqrt(square)
        if p.real is not dt.float32:  # of too few bits
            inverse = normal_inverse_root(p, square)
        divisor = p.let(fma(square, inverse, x))
        tangent = p.let(y * ir.approx_div(one, divisor))
        cosine = normal_inverse_root(p, p.let(fma(tangent, tangent, one)))
        return cosine, p.let(cosine * tangent), tangent
