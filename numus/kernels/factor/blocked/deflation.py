"""Deflation of divide and conquer on a CPU: of symmetric tridiagonal matrices (Cuppen 1981;
LAPACK's laed2) and of bidiagonal ones (Gu & Eisenstat 1995; lasd2).

Vectors are rows. A merge drops poles whose weight is negligible, rotates rows of poles that are as
good as equal until one of them is, and orders what is left so that rows of either half, which have
zeros in the other, stand together (`secular.py` goes on from there).

The blocks of a bidiagonal matrix, but for the last, have a column more than rows: the last place of
each has the vector of its null space on the right, and on the left the unit vector of the row that
couples it to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor import placing
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
from numus.kernels.factor.program import ONE, ZERO, Program, least_size
from numus.kernels.factor.rotations import plane_turn

# Rows of the numbers of a merge, from its first index on. By row of the halves: the value, the
# element of z, the half (0, 2, or 1 for both), and keys of the order. By pole, ascending: itself,
# z², the weight, and the row; by root: the nearest pole and the distance to it. Then the rows in
# the order of the product, with the numbers of their poles; those that are deflated, with their
# values; and how many there are.
KEYS_ROW = 3
NUMBERS = 16
VALUES, Z, HALF, KEYS, PLACES, POLES, SQUARES, WEIGHTS, KEPT, ORIGINS, SHIFTS, ROWS, SOURCES = (
    const(i) for i in range(13)
)
DEFLATED, DEFLATED_VALUES, COUNTS = (const(i) for i in range(13, NUMBERS))


@dataclass(frozen=True)
class Merge:
    """Two neighbouring blocks: the first index, how many rows the first of them and both have, both
    with their padding, and how many values; of singular values, a row less where blocks follow."""

    first: Expr
    half: Expr
    size: Expr
    padded: Expr
    values: Expr


def rotate(
    p: Program, rows: Planes, pair: tuple[Expr, Expr], turn: tuple[Expr, Expr], columns: Expr
) -> None:
    """Two rows x and y become c x + s y and c y - s x."""
    (a, b), (cosine, sine) = pair, turn
    with p.lanes(ZERO, columns) as j:
        x, y = p.let(rows[a, j][0]), p.let(rows[b, j][0])
        rows[a, j] = (ir.fma(cosine, x, sine * y, allow_unfused=True),)
        rows[b, j] = (ir.fma(cosine, y, -(sine * x), allow_unfused=True),)


def strength_of(p: Program, coupling: Expr) -> Expr:
    """Of the rank-one term of eigenvalues, whose vector z has a norm of 1."""
    return p.let(ir.unary("abs", coupling) * p.constant(2.0))


def deflate_eigenvalues(
    p: TileProgram, numbers: Planes, vectors: Planes, coupling: Expr, at: Merge
) -> None:
    """`coupling` is the element beside the diagonal between the halves."""
    x, rows = numbers.moved(ZERO, at.first), vectors.moved(at.first, at.first)
    root = p.constant(0.5**0.5)
    _couple(p, x, rows, (root, p.let(ir.binary("copysign", root, coupling))), at)
    with p.lanes(ZERO, at.size) as i:
        x[KEYS, i] = x[VALUES, i]
    largest = p.reduced(
        "max",
        ZERO,
        at.size,
        lambda i: [ir.unary("abs", x[row, i][0]) for row in (VALUES, Z)],
        p.constant(0.0),
    )
    least = p.let(ir.maximum(*largest) * p.constant(2.0 ** (2 - p.real.mantissa)))
    found = _Deflation(p, x, [rows], at, least)
    found.scan(ZERO, strength_of(p, coupling), moves=True)
    found.finish()


def deflate_singular_values(
    p: TileProgram,
    numbers: Planes,
    vectors: tuple[Planes, Planes],
    couplings: tuple[Expr, Expr],
    at: Merge,
) -> None:
    """`couplings` are the elements of the row between the halves, which has a pole at 0; vectors
    those of the right, then of the left."""
    x = numbers.moved(ZERO, at.first)
    both = [rows.moved(at.first, at.first) for rows in vectors]
    right = both[0]
    zero, middle = p.constant(0.0), p.let(ir.sub(at.half, ONE))
    last = p.let(ir.sub(at.size, ONE))
    x[VALUES, middle] = (zero,)
    with p.when(p.let(at.values < at.size)):
        x[VALUES, last] = (zero,)
    sizes = [ir.unary("abs", coupling) for coupling in couplings]
    (largest,) = p.reduced("max", ZERO, at.values, lambda i: [x[VALUES, i][0]], zero)
    largest = p.let(ir.maximum(largest, ir.maximum(*sizes)))
    zeros = p.let(largest <= least_size(p))
    with p.when(zeros):
        keep_all(p, numbers, at)
    with p.when(p.let(~zeros)):
        _couple(p, x, right, couplings, at)
        # a root may be the square of `least`, and its square is what is found
        digits, exponent = p.real.mantissa, 1 << (p.real.exponent - 1)
        floor = p.constant(2.0 ** -min(digits * 3 // 2, exponent // 4 - digits - 1))
        least = p.let(ir.maximum(largest, floor) * p.constant(2.0 ** (2 - digits)))
        x[HALF, middle] = (p.constant(1.0),)
        for rows in both:
            _clear(p, rows, middle, (at.half, at.padded))
        with p.when(p.let(at.values < at.size)):
            x[HALF, last] = (p.constant(1.0),)
            for rows in both:
                _clear(p, rows, last, (ZERO, at.half))
            cosine, sine, size = plane_turn(p, p.let(x[Z, middle][0]), p.let(x[Z, last][0]))
            rotate(p, right, (middle, last), (cosine, sine), at.padded)
            x[Z, middle] = (size,)
        z = p.let(x[Z, middle][0])
        x[Z, middle] = (select(ir.unary("abs", z) > least, z, least),)
        with p.lanes(ZERO, at.values) as i:
            x[KEYS, i] = x[VALUES, i]
        x[KEYS, middle] = (p.constant(-1.0),)  # first of all
        found = _Deflation(p, x, both, at, least)
        found.keep(middle)
        found.scan(ONE, p.constant(1.0), moves=False)
        with p.when(p.let(ir.read(found.kept) > ONE)):
            x[POLES, ONE] = (ir.maximum(x[POLES, ONE][0], least * p.constant(0.5)),)
        with p.when(p.let(at.values < at.size)):
            found.drop(last)
        found.finish()


def keep_all(p: TileProgram, numbers: Planes, at: Merge) -> None:
    """A block without a second half, or without a term between its halves: all is deflated."""
    x = numbers.moved(ZERO, at.first)
    with p.lanes(ZERO, at.size) as i:
        x[DEFLATED, i] = (i.cast(p.real),)
        x[HALF, i] = (select(i < at.half, p.constant(0.0), p.constant(2.0)),)
    for place in range(3):
        x[COUNTS, const(place)] = (p.constant(0.0),)


def _couple(p: TileProgram, x: Planes, rows: Planes, by: tuple[Expr, Expr], at: Merge) -> None:
    """z: the last elements of vectors of the first half and the first ones of the second, each
    times a factor."""
    last = p.let(ir.sub(at.half, ONE))
    for half, column, span, factor in (
        (0.0, last, (ZERO, at.half), by[0]),
        (2.0, at.half, (at.half, at.size), by[1]),
    ):
        with p.loop(*span) as i:
            x[Z, i] = (rows[i, column][0] * factor,)
            x[HALF, i] = (p.constant(half),)


def _clear(p: TileProgram, rows: Planes, row: Expr, columns: tuple[Expr, Expr]) -> None:
    """Zeros in a row of one half, whose place in the other has any numbers."""
    with p.lanes(*columns) as j:
        rows[row, j] = (p.constant(0.0),)


class _Deflation:
    """Poles that are kept and those that are dropped, of a merge whose keys are set."""

    def __init__(
        self, p: TileProgram, x: Planes, vectors: Sequence[Planes], at: Merge, least: Expr
    ) -> None:
        self._p, self._x, self._vectors, self._at, self._least = p, x, vectors, at, least
        self.kept, self._gone, self._current = (p.register(ir.INDEX) for _ in range(3))
        p.do(*(ir.Set(count, ZERO) for count in (self.kept, self._gone)))
        p.do(ir.Set(self._current, const(-1)))
        placing.places(p, x, KEYS_ROW, at.values)
        with p.loop(ZERO, at.values) as i:
            x[KEYS, p.let(x[PLACES, i][0].cast(ir.INDEX))] = (i.cast(p.real),)

    def keep(self, row: Expr) -> None:
        p, x = self._p, self._x
        at, z = p.let(ir.read(self.kept)), p.let(x[Z, row][0])
        x[POLES, at] = x[VALUES, row]
        x[SQUARES, at], x[WEIGHTS, at] = (z * z,), (z,)
        x[KEPT, at] = (row.cast(p.real),)
        p.do(ir.Set(self.kept, ir.add(at, ONE)))

    def drop(self, row: Expr) -> None:
        p, x = self._p, self._x
        at = p.let(ir.read(self._gone))
        x[DEFLATED, at] = (row.cast(p.real),)
        x[DEFLATED_VALUES, at] = x[VALUES, row]
        p.do(ir.Set(self._gone, ir.add(at, ONE)))

    def scan(self, first: Expr, strength: Expr, *, moves: bool) -> None:
        """All poles from one on, as they ascend. Those of two rows that are rotated move, unless
        they are taken as equal."""
        p, x = self._p, self._x
        with p.loop(first, self._at.values) as k:
            row = p.let(x[KEYS, k][0].cast(ir.INDEX))
            before = p.let(ir.read(self._current))
            negligible = p.let(strength * ir.unary("abs", x[Z, row][0]) <= self._least)
            with p.when(negligible):
                self.drop(row)
            with p.when(p.let(~negligible)):
                with p.when(p.let(before >= ZERO)):
                    close = self._joined((before, row), moves)
                    with p.when(close):
                        self.drop(before)
                    with p.when(p.let(~close)):
                        self.keep(before)
                p.do(ir.Set(self._current, row))
        with p.when(p.let(ir.read(self._current) >= ZERO)):
            self.keep(p.let(ir.read(self._current)))

    def _joined(self, pair: tuple[Expr, Expr], moves: bool) -> Expr:
        """Whether two neighbouring poles are as good as equal: then all of z is in the second."""
        p, x, at = self._p, self._x, self._at
        before, row = pair
        z_before, z_row = p.let(x[Z, before][0]), p.let(x[Z, row][0])
        size = p.let(ir.sqrt(ir.fma(z_row, z_row, z_before * z_before, allow_unfused=True)))
        cosine, sine = p.let(z_row / size), p.let(-z_before / size)
        low, high = p.let(x[VALUES, before][0]), p.let(x[VALUES, row][0])
        error = (high - low) * cosine * sine if moves else high - low
        close = p.let(ir.unary("abs", error) <= self._least)
        with p.when(close):
            x[Z, row], x[Z, before] = (size,), (p.constant(0.0),)
            if moves:
                c2, s2 = p.let(cosine * cosine), p.let(sine * sine)
                x[VALUES, before] = (low * c2 + high * s2,)
                x[VALUES, row] = (low * s2 + high * c2,)
            halves = [p.let(x[HALF, r][0]) for r in pair]
            with p.when(p.let(halves[0].ne(halves[1]))):
                for r, half in zip(pair, halves, strict=True):
                    for number, span in ((0.0, (at.half, at.padded)), (2.0, (ZERO, at.half))):
                        with p.when(p.let(half.eq(number))):
                            for rows in self._vectors:
                                _clear(p, rows, r, span)
                    x[HALF, r] = (p.constant(1.0),)
            for rows in self._vectors:
                rotate(p, rows, (before, row), (cosine, sine), at.padded)
        return close

    def finish(self) -> None:
        """Values of what is deflated stand after those of roots."""
        p, x = self._p, self._x
        count = p.let(ir.read(self.kept))
        with p.lanes(ZERO, p.let(ir.read(self._gone))) as i:
            x[VALUES, ir.add(count, i)] = x[DEFLATED_VALUES, i]
        _group(p, x, count)


def _group(p: TileProgram, x: Planes, count: Expr) -> None:
    """The rows of the product: those of the first half, of both, and of the second."""
    ends = [p.register(ir.INDEX) for _ in range(3)]
    p.do(*(ir.Set(end, ZERO) for end in ends))
    with p.loop(ZERO, count) as i:
        half = p.let(x[HALF, p.let(x[KEPT, i][0].cast(ir.INDEX))][0])
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
        half = p.let(x[HALF, p.let(row.cast(ir.INDEX))][0])
        for kind, end in enumerate(ends):
            with p.when(p.let(half.eq(float(kind)))):
                to = p.let(ir.read(end))
                x[ROWS, to], x[SOURCES, to] = (row,), (i.cast(p.real),)
                p.do(ir.Set(end, ir.add(to, ONE)))
