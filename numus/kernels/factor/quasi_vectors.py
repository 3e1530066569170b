"""Eigenvectors of real quasi-triangular matrices by back substitution, an eigenvalue per lane.

All lanes take the same row at a time, or both rows of a block of order 2: its elements are read
once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus import ir
from numus.ir import INDEX, Expr, const, select
from numus.kernels.factor.blocked.tiles import TileProgram
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Span,
    chosen,
    inverse,
    magnitude,
    minus_product,
    product,
    scaled,
)
from numus.kernels.factor.substitution import GROWTH

TWO = const(2)
_REAL, _IMAGINARY, _START = (const(i) for i in range(3))
EIGENVALUES = 3  # rows: their parts, and the first row of their blocks

Element = Callable[[Expr, Expr], Expr]
Pair = Callable[[Expr, Expr], Number]  # of a row and a lane


def lanes_of(p: TileProgram) -> int:
    """Eigenvectors of a task."""
    return p.vectors * p.width


def vectors(
    p: TileProgram, x: Matrix, own: Matrix, t: Element, span: Span, n: Expr, smallest: Expr
) -> None:
    """Columns of x, real parts beside imaginary ones: the v with T v = λ v of the eigenvalues of a
    range of rows; `own` is memory for these. Differences of nearly equal eigenvalues are at least
    `smallest`; columns that grow beyond bounds are scaled down."""
    first, stop = span
    end = p.let(ir.minimum(ir.add(stop, ONE), n))  # a block may end after the range
    count, size = lanes_of(p), const(lanes_of(p))

    def pair(i: Expr, lane: Expr) -> Number:
        return x[i, lane][0], x[i, ir.add(lane, size)][0]

    with p.loop(ZERO, end) as i, p.lanes(ZERO, const(2 * count)) as lane:
        x[i, lane] = (p.constant(0.0),)
    with p.lanes(ZERO, size) as lane:
        for row in (_REAL, _IMAGINARY, _START):
            own[row, lane] = (p.constant(0.0),)
    with p.loop(first, stop) as k:
        _begin(p, x, own, t, k, ir.sub(k, first), n)
    left = p.register(INT)
    p.do(ir.Set(left, end.cast(INT)))
    with p.loop(ZERO, end), p.when(p.let(ir.read(left) > 0)):
        last = p.let(ir.sub(ir.read(left).cast(INDEX), ONE))
        above = p.let(ir.maximum(ir.sub(last, ONE), ZERO))
        below = p.let(select(last > above, t(last, above), p.constant(0.0)))
        double = p.let(below.ne(0.0))
        with p.when(double):
            _rows(p, x, own, t, (above, last), end, (pair, smallest))
            p.do(ir.Set(left, ir.read(left) - const(2, INT)))
        with p.when(p.let(~double)):
            _rows(p, x, own, t, (last,), end, (pair, smallest))
            p.do(ir.Set(left, ir.read(left) - const(1, INT)))


def _begin(
    p: TileProgram, x: Matrix, own: Matrix, t: Element, k: Expr, lane: Expr, n: Expr
) -> None:
    """An eigenvalue, and its vector in the rows of its block."""
    zero = p.constant(0.0)
    before, next_ = p.let(ir.maximum(ir.sub(k, ONE), ZERO)), p.let(ir.add(k, ONE))
    inside = p.let(ir.minimum(next_, ir.sub(n, ONE)))
    under = p.let(select(k > before, t(k, before), zero))
    follows = p.let(under.ne(0.0))
    leads = p.let(select(inside > k, t(inside, k), zero).ne(0.0) & ~follows)
    own[_REAL, lane] = (t(k, k),)
    own[_START, lane] = (select(follows, before, k).cast(p.real),)
    with p.when(p.let(~follows & ~leads)):
        x[k, lane] = (p.constant(1.0),)
    with p.when(p.let(follows | leads)):
        top = p.let(select(follows, before, k))
        bottom = p.let(ir.add(top, ONE))
        b, c = p.let(t(top, bottom)), p.let(t(bottom, top))
        size = ir.sqrt(ir.unary("abs", b)) * ir.sqrt(ir.unary("abs", c))
        size = p.let(select(follows, -size, size))
        own[_IMAGINARY, lane] = (size,)
        # (1, i size / b), or i size / c times it
        wide = p.let(ir.unary("abs", b) >= ir.unary("abs", c))
        safe = p.let(select(b.eq(0.0), p.constant(1.0), b))
        x[top, lane] = (select(wide, p.constant(1.0), -size / c),)
        imaginary = ir.add(lane, const(lanes_of(p)))
        x[bottom, imaginary] = (select(wide, size / safe, p.constant(1.0)),)


def _rows(
    p: TileProgram,
    x: Matrix,
    own: Matrix,
    t: Element,
    rows: Sequence[Expr],
    end: Expr,
    given: tuple[Pair, Expr],
) -> None:
    """The elements of all vectors in a row or two, from those below."""
    pair, smallest = given
    size = const(lanes_of(p))
    below = p.let(ir.add(rows[-1], ONE))
    grown = p.register(lanes=True)
    p.do(ir.Set(grown, p.constant(0.0)))
    with p.lanes(ZERO, size, unroll=p.vectors) as lane:
        sums = [[p.register(lanes=True) for _ in range(2)] for _ in rows]
        for registers in sums:
            p.do(*(ir.Set(r, p.constant(0.0)) for r in registers))
        with p.loop(below, end) as j:
            value = p.number(pair(j, lane))
            for i, registers in zip(rows, sums, strict=True):
                element = p.let(t(i, j))
                for r, part in zip(registers, value, strict=True):
                    p.do(ir.Set(r, ir.fma(-element, part, ir.read(r), allow_unfused=True)))
        right = [p.number(tuple(ir.reads(registers))) for registers in sums]
        value = p.number((own[_REAL, lane][0], own[_IMAGINARY, lane][0]))
        gaps = [p.number((t(i, i) - value[0], -value[1])) for i in rows]
        if len(rows) == 1:
            found = [product(right[0], inverse(p, _at_least(p, gaps[0], smallest)))]
        else:
            couplings = p.let(t(rows[0], rows[1])), p.let(t(rows[1], rows[0]))
            found = _block(p, gaps, couplings, right, smallest)
        before = p.let(rows[0].cast(p.real) < own[_START, lane][0])
        for i, new in zip(rows, found, strict=True):
            kept = p.number(chosen(before, p.number(new), pair(i, lane)))
            x[i, lane], x[i, ir.add(lane, size)] = (kept[0],), (kept[1],)
            p.do(ir.Set(grown, ir.maximum(ir.read(grown), magnitude(kept))))
    with p.when(p.let(ir.lanes_reduce("max", grown) > p.constant(GROWTH))):
        _scale_down(p, x, rows, end, pair)


def _at_least(p: TileProgram, a: Number, smallest: Expr) -> Number:
    tiny = p.let(magnitude(a) < smallest)  # NaN stays NaN
    return p.number(chosen(tiny, (smallest, p.constant(0.0)), a))


def _block(
    p: TileProgram,
    gaps: Sequence[Number],
    couplings: tuple[Expr, Expr],
    right: Sequence[Number],
    smallest: Expr,
) -> list[Number]:
    """Two equations, by elimination with the larger pivot."""
    (a, d), (b, c), zero = gaps, couplings, p.constant(0.0)
    swapped = p.let(ir.unary("abs", c) > magnitude(a))
    pivot = _at_least(p, p.number(chosen(swapped, (c, zero), a)), smallest)
    low = p.number(chosen(swapped, a, (c, zero)))
    across = p.number(chosen(swapped, d, (b, zero)))
    corner = p.number(chosen(swapped, (b, zero), d))
    one = p.number(chosen(swapped, right[1], right[0]))
    other = p.number(chosen(swapped, right[0], right[1]))
    by = p.number(inverse(p, pivot))
    factor = p.number(product(low, by))
    rest = _at_least(p, p.number(minus_product(corner, factor, across)), smallest)
    lower = p.number(product(p.number(minus_product(other, factor, one)), inverse(p, rest)))
    upper = p.number(minus_product(one, across, lower))
    return [product(upper, by), lower]


def _scale_down(p: TileProgram, x: Matrix, rows: Sequence[Expr], end: Expr, pair: Pair) -> None:
    size = const(lanes_of(p))
    with p.lanes(ZERO, size) as lane:
        sizes = [p.let(magnitude(pair(i, lane))) for i in rows]
        largest = sizes[0] if len(rows) == 1 else p.let(ir.maximum(*sizes))
        one = p.constant(1.0)
        by = p.let(select(largest > p.constant(GROWTH), one / largest, one))
        with p.loop(rows[0], end) as i:
            low, high = p.number(scaled(pair(i, lane), by))
            x[i, lane], x[i, ir.add(lane, size)] = (low,), (high,)
