"""Secular equations of divide and conquer on a CPU, and vectors of a merge (Gu & Eisenstat 1995).

Eigenvalues λ are the roots of 1/ρ + Σ z² / (pole - λ), singular values σ those of
1 + Σ z² / (pole² - σ²): the same in squares, whose differences are products of sums and
differences. Lanes are roots, each of which is found by itself as the nearest pole and the distance
from it, so that differences from all poles have small relative errors. Poles come from
`deflation.py`.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.deflation import (
    COUNTS,
    DEFLATED,
    HALF,
    ORIGINS,
    POLES,
    ROWS,
    SHIFTS,
    SOURCES,
    SQUARES,
    VALUES,
    WEIGHTS,
    Merge,
)
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, plus_product_of, update_tiles
from numus.kernels.factor.program import INT, ONE, ZERO, Program

CHUNK = 32  # roots of a task
DEPTH = 64  # rows of the halves that are multiplied at a time

# of the roots of a task
_T, _LOW, _HIGH, _GAP, _SIGN, _OWN, _SQUARE, _OPEN = (const(i) for i in range(8))
ROOT_ROWS = 8
_FREE_STEPS = 8  # after these, every other step halves what is between a root's bounds


def _index(x: Expr) -> Expr:
    return x.cast(ir.INDEX)


def count_of(p: Program, numbers: Planes, at: Merge) -> Expr:
    """How many roots a merge has."""
    return p.let(_index(numbers[COUNTS, at.first][0]))


class Secular:
    """The equation of a merge."""

    def __init__(self, p: TileProgram, numbers: Planes, at: Merge, *, squared: bool) -> None:
        self._p, self._squared = p, squared
        self.x, self.count = numbers.moved(ZERO, at.first), count_of(p, numbers, at)

    def difference(self, a: Expr, b: Expr) -> Expr:
        """Of two poles, or their squares."""
        return (a - b) * (a + b) if self._squared else a - b

    def gap(self, pole: Expr, root: Expr) -> Expr:
        """The difference of a pole and a root that is found, or of their squares."""
        x = self.x
        return self.difference(x[POLES, pole][0], x[ORIGINS, root][0]) - x[SHIFTS, root][0]

    def root(self, origin: Expr, shift: Expr) -> Expr:
        if not self._squared:
            return origin + shift
        return origin + shift / (origin + ir.sqrt(origin * origin + shift))


# -- roots ----------------------------------------------------------------------------------------


def find_roots(p: TileProgram, e: Secular, near: Planes, strength: Expr, top: Expr) -> None:
    """The roots from one on, each as the nearest pole and the distance t from it: the pole's own
    term is exact, all others are a constant and a pole beyond, which have their value and
    derivative (Li 1993). Bounds of t narrow at each step."""
    x, count = e.x, e.count
    inverse = p.let(p.constant(1.0) / strength)
    _begin_roots(p, e, near, (inverse, strength), top)
    still = p.register(INT)
    p.do(ir.Set(still, const(1, INT)))
    with (
        p.loop(ZERO, const(2 * p.real.bits + _FREE_STEPS)) as step,
        p.when(p.let(ir.read(still).ne(0))),
    ):
        halves = p.let((step >= const(_FREE_STEPS)) & ir.irem(step, const(2)).eq(1))
        with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
            _improve_root(p, e, near, inverse, (p.let(ir.add(top, r)), r), halves)
        (found,) = p.reduced(
            "max", ZERO, const(CHUNK), lambda r: [near[_OPEN, r][0]], p.constant(0.0)
        )
        p.do(ir.Set(still, select(found > p.constant(0.0), const(1, INT), const(0, INT))))
    with p.lanes(ZERO, p.let(ir.minimum(const(CHUNK), ir.sub(count, top)))) as r:
        j = p.let(ir.add(top, r))
        shift = p.let(near[_SIGN, r][0] * near[_T, r][0])
        x[SHIFTS, j] = (shift,)
        x[VALUES, j] = (e.root(x[ORIGINS, j][0], shift),)


def _begin_roots(
    p: TileProgram, e: Secular, near: Planes, term: tuple[Expr, Expr], top: Expr
) -> None:
    """The pole nearest to each root, and bounds of the distance: half of the gap."""
    x, count, zero, one = e.x, e.count, p.constant(0.0), p.constant(1.0)
    inverse, strength = term
    (total,) = p.reduced("add", ZERO, count, lambda i: [x[SQUARES, i][0]], zero)
    slack = p.constant(1.0 + 8 * 2.0**-p.real.mantissa)
    bound = p.let(strength * total * slack)
    last = p.let(ir.sub(count, ONE))
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        j = p.let(ir.add(top, r))
        after = p.let(ir.add(j, ONE))
        pole, next_ = p.let(x[POLES, j][0]), p.let(x[POLES, after][0])
        is_last = p.let(j >= last)
        half = p.let(select(is_last, bound, e.difference(next_, pole) * p.constant(0.5)))
        middle = p.register(lanes=True)
        p.do(ir.Set(middle, inverse))
        with p.loop(ZERO, count) as i:
            gap = e.difference(x[POLES, i][0], pole) - half
            p.do(ir.Set(middle, ir.read(middle) + x[SQUARES, i][0] / gap))
        left = p.let(is_last | (ir.read(middle) >= zero))
        x[ORIGINS, j] = (select(left, pole, next_),)
        near[_T, r], near[_LOW, r], near[_HIGH, r] = (half,), (zero,), (half,)
        near[_GAP, r] = (half + half,)
        near[_SIGN, r] = (select(left, one, -one),)
        near[_OWN, r] = (select(left, j.cast(p.real), after.cast(p.real)),)
        near[_SQUARE, r] = (select(left, x[SQUARES, j][0], x[SQUARES, after][0]),)
        near[_OPEN, r] = (select(j < count, one, zero),)


def _improve_root(
    p: TileProgram,
    e: Secular,
    near: Planes,
    inverse: Expr,
    at: tuple[Expr, Expr],
    halves: Expr,
) -> None:
    """A step of a root that is not found yet: g(t) = h(t) - z²/t of the pole's own z increases."""
    x, (j, r), one, zero = e.x, at, p.constant(1.0), p.constant(0.0)
    origin, t, sign = p.let(x[ORIGINS, j][0]), p.let(near[_T, r][0]), p.let(near[_SIGN, r][0])
    own, square = p.let(near[_OWN, r][0]), p.let(near[_SQUARE, r][0])
    distance = p.let(sign * t)
    value, slope, size = (p.register(lanes=True) for _ in range(3))
    p.do(ir.Set(value, inverse), ir.Set(slope, zero), ir.Set(size, inverse))
    with p.loop(ZERO, e.count) as i:
        reciprocal = p.let(one / (e.difference(x[POLES, i][0], origin) - distance))
        other = select(own.eq(i.cast(p.real)), zero, x[SQUARES, i][0])
        term = p.let(other * reciprocal)
        p.do(
            ir.Set(value, ir.read(value) + term),
            ir.Set(slope, p.let(ir.fma(term, reciprocal, ir.read(slope), allow_unfused=True))),
            ir.Set(size, ir.read(size) + ir.unary("abs", term)),
        )
    h, derivative = p.let(sign * ir.read(value)), p.let(ir.read(slope))
    pole = p.let(square / t)
    g = p.let(h - pole)
    negative = p.let(g < zero)
    low = p.let(select(negative, t, near[_LOW, r][0]))
    high = p.let(select(negative, near[_HIGH, r][0], t))
    gap = p.let(near[_GAP, r][0])
    rest = p.let(gap - t)
    beyond = p.let(derivative * rest * rest)
    constant = p.let(h - derivative * rest)
    # constant u² - b u + z² gap = 0, of u = t
    b = p.let(ir.fma(constant, gap, square + beyond, allow_unfused=True))
    product = p.let(square * gap)
    inner = ir.fma(b, b, p.constant(-4.0) * constant * product, allow_unfused=True)
    root = p.let(ir.sqrt(ir.maximum(inner, zero)))
    positive = p.let(b > zero)
    above = select(positive, p.constant(2.0) * product, b - root)
    found = p.let(above / select(positive, b + root, p.constant(2.0) * constant))
    inside = p.let((found > low) & (found < high))
    integer = dt.int64 if p.real.bits == 64 else dt.int32
    bits = [p.let(bound.bitcast(integer)) for bound in (low, high)]
    between = p.let(bits[1] - bits[0])
    middle = p.let(bits[0] + (between >> 1))
    new = p.let(select(inside & ~halves, found, middle.bitcast(p.real)))
    error = p.let(p.constant(2.0 ** (3 - p.real.mantissa)) * (ir.read(size) + pole))
    done = (ir.unary("abs", g) <= error) | (between <= const(1, integer))
    still = p.let(near[_OPEN, r][0])
    moves = p.let(still.ne(zero) & ~done)
    near[_LOW, r], near[_HIGH, r] = (low,), (high,)
    near[_T, r] = (select(moves, new, t),)
    near[_OPEN, r] = (select(moves, one, zero),)


def find_weights(p: TileProgram, e: Secular, top: Expr) -> None:
    """The z, from a pole on, of the problem whose roots are exactly those that were found."""
    x, count, one = e.x, e.count, p.constant(1.0)
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        i = p.let(ir.add(top, r))
        pole, product = p.let(x[POLES, i][0]), p.register(lanes=True)
        p.do(ir.Set(product, one))
        with p.loop(ZERO, count) as j:
            gap = e.difference(x[ORIGINS, j][0], pole) + x[SHIFTS, j][0]
            between = select(i.eq(j), one, e.difference(x[POLES, j][0], pole))
            p.do(ir.Set(product, ir.read(product) * (gap / between)))
        size = ir.sqrt(ir.unary("abs", ir.read(product)))
        x[WEIGHTS, i] = (ir.binary("copysign", size, x[WEIGHTS, i][0]),)


# -- vectors --------------------------------------------------------------------------------------


def element(p: Program, e: Secular, pole: Expr, root: Expr, *, left: bool) -> Expr:
    """Of a vector of the rank-one problem, that of the left of singular values on demand."""
    found = e.x[WEIGHTS, pole][0] / e.gap(pole, root)
    if not left:
        return found
    return select(pole.eq(0), p.constant(-1.0), e.x[POLES, pole][0] * found)


def merge_vectors(
    p: TileProgram,
    e: Secular,
    vectors: tuple[Planes, Planes],
    near: tuple[Planes, Planes],
    at: Merge,
    top: Expr,
    *,
    left: bool = False,
) -> None:
    """Rows of the merged block, from one on: products of the vectors of the rank-one problem with
    the rows of the halves, then rows that were deflated. `near` has memory for a block of those
    vectors, and for their norms and the numbers of rows."""
    x, count, (source, target) = e.x, e.count, vectors
    source, target = (m.moved(at.first, at.first) for m in (source, target))
    size = const(CHUNK)
    first, both = (p.let(_index(x[COUNTS, const(i)][0])) for i in (1, 2))
    roots = p.let(ir.minimum(size, ir.sub(count, top)))
    with p.when(p.let(roots > ZERO)):
        _norms(p, e, near[1], top, left)
        height = p.let(_rounded_up(roots, p.rows))
        own = target.moved(top, ZERO)
        for span, columns in (
            ((ZERO, both), (ZERO, at.half)),
            ((first, count), (at.half, at.padded)),
        ):
            with p.loop(ZERO, height) as i, p.lanes(*columns) as j:
                own[i, j] = (p.constant(0.0),)
            _multiply(p, e, (source, own), near, (top, roots, height), span, columns, left)
    with p.loop(
        p.let(ir.maximum(top, count)), p.let(ir.minimum(ir.add(top, size), at.size))
    ) as slot:
        row = p.let(_index(x[DEFLATED, p.let(ir.sub(slot, count))][0]))
        half = p.let(x[HALF, row][0])
        for other, columns in ((2.0, (ZERO, at.half)), (0.0, (at.half, at.padded))):
            empty = p.let(half.eq(other))
            with p.when(empty), p.lanes(*columns) as j:
                target[slot, j] = (p.constant(0.0),)
            with p.when(p.let(~empty)), p.lanes(*columns) as j:
                target[slot, j] = source[row, j]


def _rounded_up(x: Expr, unit: int) -> Expr:
    return ir.mul(ir.idiv(ir.add(x, const(unit - 1)), const(unit)), const(unit))


def _norms(p: TileProgram, e: Secular, near: Planes, top: Expr, left: bool) -> None:
    """The reciprocals of the norms of vectors of the rank-one problem, whose squares are scaled:
    roots that are nearly poles of weak terms have elements of 1e19 and more in float32."""
    scale = p.constant(2.0 ** -(1 << (p.real.exponent - 3)))
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        root, total = p.let(ir.add(top, r)), p.register(lanes=True)
        p.do(ir.Set(total, p.constant(0.0)))
        with p.loop(ZERO, e.count) as i:
            x = p.let(element(p, e, i, root, left=left) * scale)
            p.do(ir.Set(total, ir.fma(x, x, ir.read(total), allow_unfused=True)))
        near[ZERO, r] = (scale / ir.sqrt(ir.read(total)),)


def _multiply(
    p: TileProgram,
    e: Secular,
    vectors: tuple[Planes, Planes],
    near: tuple[Planes, Planes],
    rows: tuple[Expr, Expr, Expr],
    span: tuple[Expr, Expr],
    columns: tuple[Expr, Expr],
    left: bool,
) -> None:
    """The product of vectors of the rank-one problem with a range of the rows of a half, in its
    columns."""
    x, (source, own), (block, more), (top, roots, height) = e.x, vectors, near, rows
    start, stop = span
    first, width = columns[0], p.let(ir.sub(columns[1], columns[0]))
    size = const(DEPTH)
    steps = p.let(ir.idiv(_rounded_up(ir.sub(stop, start), DEPTH), size))
    with p.loop(ZERO, steps) as step:
        base = p.let(ir.add(start, ir.mul(step, size)))
        depth = p.let(ir.minimum(size, ir.sub(stop, base)))
        whole = p.let(_rounded_up(depth, p.depth_unroll))
        with p.loop(ZERO, whole) as k:
            place = p.let(ir.minimum(ir.add(base, k), ir.sub(stop, ONE)))
            more[ONE, k] = x[ROWS, place]
            pole, inside = p.let(_index(x[SOURCES, place][0])), p.let(k < depth)
            with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
                value = element(p, e, pole, p.let(ir.add(top, r)), left=left) * more[ZERO, r][0]
                block[k, r] = (select(inside & (r < roots), value, p.constant(0.0)),)
        factors = (
            lambda i, k: block[k, i],
            lambda k, j: source[_index(more[ONE, k][0]), ir.add(first, j)],
        )
        update_tiles(p, own.moved(ZERO, first), factors, (height, width, whole), plus_product_of)
