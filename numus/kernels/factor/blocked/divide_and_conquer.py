"""Merges of divide and conquer on symmetric tridiagonal matrices of a CPU (Cuppen 1981; LAPACK's
stedc), with deflation and the vectors of Gu & Eisenstat (1995).

Eigenvectors are rows. A merge first deflates and orders what is left so that rows of either half,
which have zeros in the other, stand together; lanes are roots of the secular equation, each of
which is found by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor import placing
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, plus_product_of, update_tiles
from numus.kernels.factor.program import INT, ONE, ZERO, Program

CHUNK = 32  # roots of a task
DEPTH = 64  # rows of the halves that are multiplied at a time

# Rows of the numbers of a merge, from its first index on. By row of the halves: the eigenvalue, the
# element of z, the half (0, 2, or 1 for both), and keys of the order. By pole, ascending: itself,
# z², the weight of Gu & Eisenstat, and the row; by root: the nearest pole and the distance to it.
# Then the rows in the order of the product, with the numbers of their poles; those that are
# deflated, with their eigenvalues; and how many there are.
KEYS_ROW = 3
NUMBERS = 16
VALUES, Z, HALF, KEYS, PLACES, POLES, SQUARES, WEIGHTS, KEPT, ORIGINS, SHIFTS, ROWS, SOURCES = (
    const(i) for i in range(13)
)
DEFLATED, DEFLATED_VALUES, COUNTS = (const(i) for i in range(13, NUMBERS))

# of the roots of a task
_T, _LOW, _HIGH, _GAP, _SIGN, _OWN, _SQUARE, _OPEN = (const(i) for i in range(8))
ROOT_ROWS = 8
_FREE_STEPS = 8  # after these, every other step halves what is between a root's bounds


@dataclass(frozen=True)
class Merge:
    """Two neighbouring blocks: the first index, how many rows the first of them and both have, and
    both with their padding."""

    first: Expr
    half: Expr
    size: Expr
    padded: Expr


def rotate(
    p: Program, rows: Planes, pair: tuple[Expr, Expr], turn: tuple[Expr, Expr], columns: Expr
) -> None:
    """Two rows x and y become c x + s y and c y - s x."""
    (a, b), (cosine, sine) = pair, turn
    with p.lanes(ZERO, columns) as j:
        x, y = p.let(rows[a, j][0]), p.let(rows[b, j][0])
        rows[a, j] = (ir.fma(cosine, x, sine * y, allow_unfused=True),)
        rows[b, j] = (ir.fma(cosine, y, -(sine * x), allow_unfused=True),)


def _index(x: Expr) -> Expr:
    return x.cast(ir.INDEX)


# -- deflation ------------------------------------------------------------------------------------


def deflate(p: TileProgram, numbers: Planes, vectors: Planes, coupling: Expr, at: Merge) -> None:
    """The rank-one problem of a merge, without poles whose weight is negligible and those that are
    as good as equal to another, whose rows are rotated until it is (LAPACK's laed2). `coupling` is
    the element beside the diagonal between the halves."""
    x, rows = numbers.moved(ZERO, at.first), vectors.moved(at.first, at.first)
    with p.lanes(ZERO, at.size) as i:
        x[KEYS, i] = x[VALUES, i]
    placing.places(p, x, KEYS_ROW, at.size)
    with p.loop(ZERO, at.size) as i:
        x[KEYS, p.let(_index(x[PLACES, i][0]))] = (i.cast(p.real),)
    root = p.constant(0.5**0.5)
    with p.loop(ZERO, at.half) as i:
        x[Z, i] = (rows[i, p.let(ir.sub(at.half, ONE))][0] * root,)
        x[HALF, i] = (p.constant(0.0),)
    below = p.let(ir.binary("copysign", root, coupling))
    with p.loop(at.half, at.size) as i:
        x[Z, i] = (rows[i, at.half][0] * below,)
        x[HALF, i] = (p.constant(2.0),)
    largest = p.reduced(
        "max",
        ZERO,
        at.size,
        lambda i: [ir.unary("abs", x[row, i][0]) for row in (VALUES, Z)],
        p.constant(0.0),
    )
    least = p.let(ir.maximum(*largest) * p.constant(2.0 ** (2 - p.real.mantissa)))
    strength = strength_of(p, coupling)
    kept, gone, current = (p.register(ir.INDEX) for _ in range(3))
    p.do(*(ir.Set(count, ZERO) for count in (kept, gone)), ir.Set(current, const(-1)))

    def keep(row: Expr) -> None:
        at, z = p.let(ir.read(kept)), p.let(x[Z, row][0])
        x[POLES, at] = x[VALUES, row]
        x[SQUARES, at], x[WEIGHTS, at] = (z * z,), (z,)
        x[KEPT, at] = (row.cast(p.real),)
        p.do(ir.Set(kept, ir.add(at, ONE)))

    def drop(row: Expr) -> None:
        at = p.let(ir.read(gone))
        x[DEFLATED, at] = (row.cast(p.real),)
        x[DEFLATED_VALUES, at] = x[VALUES, row]
        p.do(ir.Set(gone, ir.add(at, ONE)))

    with p.loop(ZERO, at.size) as k:
        row, before = p.let(_index(x[KEYS, k][0])), p.let(ir.read(current))
        negligible = p.let(strength * ir.unary("abs", x[Z, row][0]) <= least)
        with p.when(negligible):
            drop(row)
        with p.when(p.let(~negligible)):
            with p.when(p.let(before >= ZERO)):
                close = _joined(p, x, rows, (before, row), least, at)
                with p.when(close):
                    drop(before)
                with p.when(p.let(~close)):
                    keep(before)
            p.do(ir.Set(current, row))
    with p.when(p.let(ir.read(current) >= ZERO)):
        keep(p.let(ir.read(current)))
    count = p.let(ir.read(kept))
    with p.lanes(ZERO, p.let(ir.read(gone))) as i:
        x[VALUES, ir.add(count, i)] = x[DEFLATED_VALUES, i]
    _group(p, x, count)


def keep_as_is(p: TileProgram, numbers: Planes, at: Merge) -> None:
    """A block without a second half: all of it is deflated."""
    x = numbers.moved(ZERO, at.first)
    with p.lanes(ZERO, at.size) as i:
        x[DEFLATED, i], x[HALF, i] = (i.cast(p.real),), (p.constant(0.0),)
    for place in range(3):
        x[COUNTS, const(place)] = (p.constant(0.0),)


def strength_of(p: Program, coupling: Expr) -> Expr:
    """Of the rank-one term, whose vector z has a norm of 1."""
    return p.let(ir.unary("abs", coupling) * p.constant(2.0))


def _joined(
    p: TileProgram, x: Planes, rows: Planes, pair: tuple[Expr, Expr], least: Expr, at: Merge
) -> Expr:
    """Whether two neighbouring poles are as good as equal: then all of z is in the second."""
    before, row = pair
    z_before, z_row = p.let(x[Z, before][0]), p.let(x[Z, row][0])
    size = p.let(ir.sqrt(ir.fma(z_row, z_row, z_before * z_before, allow_unfused=True)))
    cosine, sine = p.let(z_row / size), p.let(-z_before / size)
    low, high = p.let(x[VALUES, before][0]), p.let(x[VALUES, row][0])
    close = p.let(ir.unary("abs", (high - low) * cosine * sine) <= least)
    with p.when(close):
        x[Z, row], x[Z, before] = (size,), (p.constant(0.0),)
        c2, s2 = p.let(cosine * cosine), p.let(sine * sine)
        x[VALUES, before] = (low * c2 + high * s2,)
        x[VALUES, row] = (low * s2 + high * c2,)
        halves = [p.let(x[HALF, r][0]) for r in pair]
        with p.when(p.let(halves[0].ne(halves[1]))):
            for r, half in zip(pair, halves, strict=True):
                for number, span in ((0.0, (at.half, at.padded)), (2.0, (ZERO, at.half))):
                    with p.when(p.let(half.eq(number))), p.lanes(*span) as j:
                        rows[r, j] = (p.constant(0.0),)
                x[HALF, r] = (p.constant(1.0),)
        rotate(p, rows, (before, row), (cosine, sine), at.padded)
    return close


def _group(p: TileProgram, x: Planes, count: Expr) -> None:
    """The rows of the product: those of the first half, of both, and of the second."""
    ends = [p.register(ir.INDEX) for _ in range(3)]
    p.do(*(ir.Set(end, ZERO) for end in ends))
    with p.loop(ZERO, count) as i:
        half = p.let(x[HALF, p.let(_index(x[KEPT, i][0]))][0])
        for kind, end in enumerate(ends):
            with p.when(p.let(half.eq(float(kind)))):
                p.do(ir.Set(end, ir.add(ir.read(end), ONE)))
    first = p.let(ir.read(ends[0]))
    both = p.let(ir.add(first, ir.read(ends[1])))
    for place, number in enumerate((count, first, both)):
        x[COUNTS, const(place)] = (number.cast(p.real),)
    p.do(*(ir.Set(end, start) for end, start in zip(ends, (ZERO, first, both), strict=True)))
    with p.loop(ZERO, count) as i:
        row = p.let(x[KEPT, i][0])
        half = p.let(x[HALF, p.let(_index(row))][0])
        for kind, end in enumerate(ends):
            with p.when(p.let(half.eq(float(kind)))):
                to = p.let(ir.read(end))
                x[ROWS, to], x[SOURCES, to] = (row,), (i.cast(p.real),)
                p.do(ir.Set(end, ir.add(to, ONE)))


# -- roots ----------------------------------------------------------------------------------------


def count_of(p: Program, numbers: Planes, at: Merge) -> Expr:
    """How many roots a merge has."""
    return p.let(_index(numbers[COUNTS, at.first][0]))


def find_roots(
    p: TileProgram, numbers: Planes, near: Planes, coupling: Expr, at: Merge, top: Expr
) -> None:
    """The roots of 1/ρ + Σ z² / (pole - x) from one on, each as the nearest pole and the distance t
    from it: the pole's own term is exact, all others are a constant and a pole beyond, which have
    their value and derivative (Li 1993). Bounds of t narrow at each step."""
    x, count = numbers.moved(ZERO, at.first), count_of(p, numbers, at)
    inverse = p.let(p.constant(1.0) / strength_of(p, coupling))
    _begin_roots(p, x, near, (inverse, coupling), count, top)
    still = p.register(INT)
    p.do(ir.Set(still, const(1, INT)))
    with (
        p.loop(ZERO, const(2 * p.real.bits + _FREE_STEPS)) as step,
        p.when(p.let(ir.read(still).ne(0))),
    ):
        halves = p.let((step >= const(_FREE_STEPS)) & ir.irem(step, const(2)).eq(1))
        with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
            _improve_root(p, x, near, (inverse, count), p.let(ir.add(top, r)), r, halves)
        (found,) = p.reduced(
            "max", ZERO, const(CHUNK), lambda r: [near[_OPEN, r][0]], p.constant(0.0)
        )
        p.do(ir.Set(still, select(found > p.constant(0.0), const(1, INT), const(0, INT))))
    with p.lanes(ZERO, p.let(ir.minimum(const(CHUNK), ir.sub(count, top)))) as r:
        j = p.let(ir.add(top, r))
        shift = p.let(near[_SIGN, r][0] * near[_T, r][0])
        x[SHIFTS, j] = (shift,)
        x[VALUES, j] = (x[ORIGINS, j][0] + shift,)


def _begin_roots(
    p: TileProgram, x: Planes, near: Planes, term: tuple[Expr, Expr], count: Expr, top: Expr
) -> None:
    """The pole nearest to each root, and bounds of the distance: half of the gap."""
    zero, one = p.constant(0.0), p.constant(1.0)
    inverse, coupling = term
    (total,) = p.reduced("add", ZERO, count, lambda i: [x[SQUARES, i][0]], zero)
    slack = p.constant(1.0 + 8 * 2.0**-p.real.mantissa)
    bound = p.let(strength_of(p, coupling) * total * slack)
    last = p.let(ir.sub(count, ONE))
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        j = p.let(ir.add(top, r))
        after = p.let(ir.add(j, ONE))
        pole, next_ = p.let(x[POLES, j][0]), p.let(x[POLES, after][0])
        is_last = p.let(j >= last)
        half = p.let(select(is_last, bound, (next_ - pole) * p.constant(0.5)))
        middle = p.register(lanes=True)
        p.do(ir.Set(middle, inverse))
        with p.loop(ZERO, count) as i:
            term_ = x[SQUARES, i][0] / ((x[POLES, i][0] - pole) - half)
            p.do(ir.Set(middle, ir.read(middle) + term_))
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
    x: Planes,
    near: Planes,
    given: tuple[Expr, Expr],
    j: Expr,
    r: Expr,
    halves: Expr,
) -> None:
    """A step of a root that is not found yet: g(t) = h(t) - z²/t of the pole's own z increases."""
    (inverse, count), one, zero = given, p.constant(1.0), p.constant(0.0)
    origin, t, sign = p.let(x[ORIGINS, j][0]), p.let(near[_T, r][0]), p.let(near[_SIGN, r][0])
    own, square = p.let(near[_OWN, r][0]), p.let(near[_SQUARE, r][0])
    distance = p.let(sign * t)
    value, slope, size = (p.register(lanes=True) for _ in range(3))
    p.do(ir.Set(value, inverse), ir.Set(slope, zero), ir.Set(size, inverse))
    with p.loop(ZERO, count) as i:
        reciprocal = p.let(one / ((x[POLES, i][0] - origin) - distance))
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


def find_weights(p: TileProgram, numbers: Planes, at: Merge, top: Expr) -> None:
    """The z, from a pole on, of the problem whose roots are exactly those that were found."""
    x, count = numbers.moved(ZERO, at.first), count_of(p, numbers, at)
    one = p.constant(1.0)
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        i = p.let(ir.add(top, r))
        pole, product = p.let(x[POLES, i][0]), p.register(lanes=True)
        p.do(ir.Set(product, one))
        with p.loop(ZERO, count) as j:
            gap = (x[ORIGINS, j][0] - pole) + x[SHIFTS, j][0]
            between = select(i.eq(j), one, x[POLES, j][0] - pole)
            p.do(ir.Set(product, ir.read(product) * (gap / between)))
        size = ir.sqrt(ir.unary("abs", ir.read(product)))
        x[WEIGHTS, i] = (ir.binary("copysign", size, x[WEIGHTS, i][0]),)


# -- vectors --------------------------------------------------------------------------------------


def merge_vectors(
    p: TileProgram,
    numbers: Planes,
    vectors: tuple[Planes, Planes],
    near: tuple[Planes, Planes],
    at: Merge,
    top: Expr,
) -> None:
    """Rows of the merged block, from one on: products of the eigenvectors of the rank-one problem
    with the rows of the halves, then rows that were deflated. `near` has memory for a block of
    those eigenvectors, and for their norms and the numbers of rows."""
    x, (source, target) = numbers.moved(ZERO, at.first), vectors
    source, target = (m.moved(at.first, at.first) for m in (source, target))
    size = const(CHUNK)
    count, first, both = (p.let(_index(x[COUNTS, const(i)][0])) for i in range(3))
    roots = p.let(ir.minimum(size, ir.sub(count, top)))
    with p.when(p.let(roots > ZERO)):
        _norms(p, x, near[1], count, top)
        height = p.let(
            ir.mul(ir.idiv(ir.add(roots, const(p.rows - 1)), const(p.rows)), const(p.rows))
        )
        own = target.moved(top, ZERO)
        for span, columns in (
            ((ZERO, both), (ZERO, at.half)),
            ((first, count), (at.half, at.padded)),
        ):
            with p.loop(ZERO, height) as i, p.lanes(*columns) as j:
                own[i, j] = (p.constant(0.0),)
            _multiply(p, x, (source, own), near, (top, roots, height), span, columns)
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


def _gap(x: Planes, pole: Expr, root: Expr) -> Expr:
    return (x[POLES, pole][0] - x[ORIGINS, root][0]) - x[SHIFTS, root][0]


def _norms(p: TileProgram, x: Planes, near: Planes, count: Expr, top: Expr) -> None:
    """The reciprocals of the norms of eigenvectors, and 0 beyond the last."""
    with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
        root, total = p.let(ir.add(top, r)), p.register(lanes=True)
        p.do(ir.Set(total, p.constant(0.0)))
        with p.loop(ZERO, count) as i:
            element = p.let(x[WEIGHTS, i][0] / _gap(x, i, root))
            p.do(ir.Set(total, ir.fma(element, element, ir.read(total), allow_unfused=True)))
        near[ZERO, r] = (p.constant(1.0) / ir.sqrt(ir.read(total)),)


def _multiply(
    p: TileProgram,
    x: Planes,
    vectors: tuple[Planes, Planes],
    near: tuple[Planes, Planes],
    rows: tuple[Expr, Expr, Expr],
    span: tuple[Expr, Expr],
    columns: tuple[Expr, Expr],
) -> None:
    """The product of eigenvectors with a range of the rows of a half, in its columns."""
    (source, own), (block, more), (top, roots, height) = vectors, near, rows
    start, stop = span
    left, width = columns[0], p.let(ir.sub(columns[1], columns[0]))
    size, unroll = const(DEPTH), p.depth_unroll
    steps = p.let(ir.idiv(ir.add(ir.sub(stop, start), const(DEPTH - 1)), size))
    with p.loop(ZERO, steps) as step:
        base = p.let(ir.add(start, ir.mul(step, size)))
        depth = p.let(ir.minimum(size, ir.sub(stop, base)))
        whole = p.let(
            ir.mul(ir.idiv(ir.add(depth, const(unroll - 1)), const(unroll)), const(unroll))
        )
        with p.loop(ZERO, whole) as k:
            place = p.let(ir.minimum(ir.add(base, k), ir.sub(stop, ONE)))
            more[ONE, k] = x[ROWS, place]
            pole = p.let(_index(x[SOURCES, place][0]))
            weight = p.let(select(k < depth, x[WEIGHTS, pole][0], p.constant(0.0)))
            with p.lanes(ZERO, const(CHUNK), unroll=p.vectors) as r:
                element = weight / _gap(x, pole, p.let(ir.add(top, r))) * more[ZERO, r][0]
                block[k, r] = (select(r < roots, element, p.constant(0.0)),)
        factors = (
            lambda i, k: block[k, i],
            lambda k, j: source[_index(more[ONE, k][0]), ir.add(left, j)],
        )
        update_tiles(p, own.moved(ZERO, left), factors, (height, width, whole), plus_product_of)
