"""Sweeps of plane rotations on neighbouring rows, several in one pass (Van Zee, van de Geijn &
Quintana-Ortí 2014): a row goes through the rotations of all of them in registers.

A sweep keeps one row. The next one comes in, both are rotated, and one of the results goes on to
the next sweep, one row behind. Where a sweep has no rotation, cosines are 1 and sines 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
from numus.kernels.factor.program import ONE, ZERO, Matrix, Program, Span

PASSES = 4  # while columns stay in cache


def depth(registers: int) -> int:
    """Sweeps of a pass, by the number of vector registers."""
    return registers // 4


def angles_of(n: int, depth: int) -> int:
    """Elements of the angles of sweeps on n rows."""
    return PASSES * 2 * depth * (n + 2 * depth + 1)


def plane_turn(p: Program, y: Expr, z: Expr) -> tuple[Expr, Expr, Expr]:
    """Cosine and sine of the rotation of (y, z) to (r, 0), and r. The root and the reciprocal of
    its square are found side by side: steps are a chain of these."""
    one, zero = p.constant(1.0), p.constant(0.0)
    square = p.let(ir.fma(y, y, z * z, allow_unfused=True))
    # squares that underflow: matrices have elements of about 1
    none = square < p.constant(2.0 ** (p.real.mantissa + 2 - (1 << (p.real.exponent - 1))))
    none = p.let(none)
    inverse = p.let(one / select(none, one, square))
    r = p.let(select(none, zero, ir.sqrt(square)))
    cosine = select(none, one, y * inverse * r)
    return p.let(cosine), p.let(z * inverse * r), r


class Strips:
    """A matrix in strips of the columns that rotations turn at a time, one after the other: rows
    are neighbours, which prefetchers and TLBs follow."""

    def __init__(
        self, p: TileProgram, buffer: ir.Buffer, start: Expr, height: Expr, before: int
    ) -> None:
        """Strips have memory for `height` rows, the first `before` of which come before row 0."""
        self.width, self.vectors = p.tile, p.vectors
        self._p, self._buffer = p, buffer
        self._size = p.let(ir.mul(height, const(p.tile)))
        self._start = p.let(ir.add(start, const(before * p.tile)))

    def at(self, number: Expr) -> Planes:
        p = self._p
        start = p.let(ir.add(self._start, ir.mul(number, self._size)))
        return Planes(p, self._buffer, start, const(self.width), ZERO)


class Sweeps:
    """Sweeps on matrices with n rows, from the first one down.

    Rows of the matrices from -depth to n + depth are there. The angles of a pass lie as they come:
    cosine and sine of all its sweeps, for one row after the other.
    """

    def __init__(self, p: Program, angles: Matrix, n: Expr, depth: int) -> None:
        self._p, self._angles, self._n, self._depth = p, angles, n, depth
        self._step = const(2 * depth)
        self._size = p.let(ir.mul(ir.add(n, const(2 * depth + 1)), self._step))
        self._count, self._low, self._high = (p.register(ir.INDEX) for _ in range(3))
        self._clear(const(-depth), ir.add(n, const(depth)))

    def _first(self, number: Expr, row: Expr) -> Expr:
        """The place of the angles of a pass for a row that comes in."""
        start = ir.mul(ir.add(row, const(self._depth)), self._step)
        return self._p.let(ir.add(ir.mul(number, self._size), start))

    def _clear(self, low: Expr, high: Expr) -> None:
        p = self._p
        p.do(ir.Set(self._count, ZERO), ir.Set(self._low, self._n), ir.Set(self._high, ZERO))
        with p.loop(ZERO, const(PASSES)) as number:
            span = self._first(number, low), self._first(number, ir.add(high, ONE))
            with p.lanes(*span) as e:  # passes begin at even places
                cosine = ir.irem(e, const(2)).eq(0)
                self._angles[ZERO, e] = (select(cosine, p.constant(1.0), p.constant(0.0)),)

    def begin(self, first: Expr, last: Expr) -> Expr:
        """A new sweep on the rows from `first` to `last`: where its angles are recorded."""
        p, depth = self._p, const(self._depth)
        count = p.let(ir.read(self._count))
        sweep = p.let(ir.irem(count, depth))
        behind = ir.add(sweep, ONE)
        p.do(
            ir.Set(self._count, ir.add(count, ONE)),
            ir.Set(self._low, ir.minimum(ir.read(self._low), first)),
            ir.Set(self._high, ir.maximum(ir.read(self._high), last)),
        )
        start = self._first(ir.idiv(count, depth), behind)
        return p.let(ir.add(start, ir.mul(sweep, const(2))))

    def record(self, start: Expr, i: Expr, cosine: Expr, sine: Expr) -> None:
        """The rotation of rows i and i + 1."""
        at = self._p.let(ir.add(start, ir.mul(i, self._step)))
        self._angles[ZERO, at] = (cosine,)
        self._angles[ZERO, ir.add(at, ONE)] = (sine,)

    def is_full(self) -> Expr:
        return self._p.let(ir.read(self._count).eq(const(PASSES * self._depth)))

    def apply(self, strips: Sequence[Strips], numbers: Span) -> None:
        """All sweeps on a range of strips."""
        p, depth = self._p, self._depth
        low, high = p.let(ir.read(self._low)), p.let(ir.read(self._high))
        count = p.let(ir.add(ir.read(self._count), const(depth - 1)))
        with p.when(p.let(high > low)):
            for matrix in strips:
                with p.loop(*numbers) as strip:
                    q = matrix.at(strip)
                    with (
                        p.lanes(ZERO, const(matrix.width), unroll=matrix.vectors) as j,
                        p.loop(ZERO, ir.idiv(count, const(depth))) as number,
                    ):
                        self._pass(q, number, (low, high), j)
            self._clear(p.let(ir.sub(low, const(depth))), p.let(ir.add(high, const(depth))))

    def _pass(self, q: Matrix, number: Expr, rows: Span, j: Expr) -> None:
        p, depth, (low, high) = self._p, self._depth, rows
        kept = [p.register(lanes=True) for _ in range(depth)]
        p.do(*(ir.Set(register, p.constant(0.0)) for register in kept))

        def step(t: Expr, stores: bool) -> None:
            row = p.let(ir.add(low, t))
            at = self._first(number, row)
            x = p.let(q[row, j][0])
            for sweep, register in enumerate(kept):
                places = (ir.add(at, const(2 * sweep + part)) for part in range(2))
                cosine, sine = (p.let(self._angles[ZERO, place][0]) for place in places)
                y = p.let(ir.read(register))
                p.do(ir.Set(register, ir.fma(-sine, y, cosine * x, allow_unfused=True)))
                x = p.let(ir.fma(sine, x, cosine * y, allow_unfused=True))
            if stores:
                q[ir.add(row, const(-depth)), j] = (x,)

        last = p.let(ir.add(ir.sub(high, low), const(depth + 1)))
        with p.loop(ZERO, const(depth)) as t:
            step(t, stores=False)
        with p.loop(const(depth), last) as t:
            step(t, stores=True)
