"""Householder QR of one matrix per block, in registers of a GPU.

Threads of a column are adjacent: products with a reflector are shuffles among them.
"""

from __future__ import annotations

from collections.abc import Sequence

from numus import ir
from numus.ir import Expr, select
from numus.kernels.factor.program import (
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    conjugate,
    inverse,
    magnitude,
    minus_product,
    plus_product,
    power_near,
    product,
    real,
    scaled,
    squared,
    zero,
)
from numus.kernels.factor.reflector import reflector
from numus.kernels.factor.registers.tiles import (
    RegisterMatrix,
    Thread,
    ThreadGrid,
    all_threads,
    steps_of,
)


class Triangularisation:
    """Of a matrix of m rows and n columns, m >= n; `column` and `taus` are in shared memory."""

    def __init__(
        self, p: Program, grid: ThreadGrid, extents: tuple[Expr, Expr], column: Matrix, taus: Matrix
    ) -> None:
        self.p, self.grid, self.column, self.taus = p, grid, column, taus
        self.m, self.n = extents
        self.a = RegisterMatrix(p, grid, grid.columns)
        self.scales = [p.register(lanes=True) for _ in range(grid.columns)]

    def load(self, a: Read) -> None:
        """Columns divided by powers of two, which leave Q as it is: squares neither overflow nor
        underflow, and small columns keep their directions."""
        p = self.p
        with all_threads(p, self.grid) as t:
            self.a.fill(t, a, (self.m, self.n))
            for c, scale in enumerate(self.scales):
                largest = p.constant(0.0)
                for r in range(self.grid.rows):
                    size = p.let(magnitude(self.a[r, c]))
                    largest = p.let(select(size > largest, size, largest))  # NaN never is
                for mask in self._masks():
                    largest = p.let(ir.maximum(largest, p.let(ir.lanes_xor(largest, mask))))
                p.do(ir.Set(scale, power_near(p, largest)))
                by = p.let(p.constant(1.0) / ir.read(scale))
                for r in range(self.grid.rows):
                    self.a[r, c] = scaled(self.a[r, c], by)

    def triangularise(self) -> None:
        """R above the diagonal, reflectors without their first elements below it."""
        p = self.p
        for tile, own, k in steps_of(p, self.grid, self.n):
            self._share_column(tile, own)
            with all_threads(p, self.grid) as t:
                x = [p.number(self.column[ZERO, i]) for i in t.rows]
                below = [p.let(i > k) for i in t.rows]
                alpha = p.number(self.column[ZERO, k])
                sizes = [
                    select(b, squared(v), p.constant(0.0)) for b, v in zip(below, x, strict=True)
                ]
                (rest,) = self._over_column([sum(sizes[1:], sizes[0])])
                trivial, beta, tau = reflector(p, alpha, rest)
                distance = (alpha[0] - beta, *alpha[1:])
                one = real(p, p.constant(1.0))
                factor = inverse(p, p.number(chosen(trivial, one, distance)))
                v = [product(value, factor) for value in x]
                v = self._reflector(t, k, below, v)
                self._reflect(
                    self.a, v, conjugate(tau), range(tile, self.grid.columns), (tile, own, t)
                )
                with p.when(p.let(t.y.eq(own))):
                    for r, i in enumerate(t.rows):
                        found = chosen(below[r], v[r], self.a[r, tile])
                        self.a[r, tile] = chosen(p.let(i.eq(k)), real(p, beta), found)
                with p.when(p.let(t.number.eq(0))):
                    self.taus[ZERO, k] = tau

    def _share_column(self, tile: int, own: Expr) -> None:
        p = self.p
        with all_threads(p, self.grid) as t, p.when(p.let(t.y.eq(own))):
            for r, i in enumerate(t.rows):
                self.column[ZERO, i] = self.a[r, tile]

    def _reflector(
        self, t: Thread, k: Expr, below: Sequence[Expr], x: Sequence[Number]
    ) -> list[Number]:
        """What is below row k, 1 in it and zeros above."""
        p = self.p
        one, none = real(p, p.constant(1.0)), zero(p)
        return [
            p.number(chosen(b, value, chosen(p.let(i.eq(k)), one, none)))
            for b, value, i in zip(below, x, t.rows, strict=True)
        ]

    def _over_column(self, parts: Sequence[Expr]) -> list[Expr]:
        """Sums over the threads of a column, in all of them."""
        p, sums = self.p, [self.p.let(part) for part in parts]
        for mask in self._masks():
            sums = [p.let(x + p.let(ir.lanes_xor(x, mask))) for x in sums]
        return sums

    def _masks(self) -> list[int]:
        """Of exchanges after which all threads of a column have what each of them had."""
        return [1 << i for i in reversed(range(self.grid.down.bit_length() - 1))]

    def _reflect(
        self,
        x: RegisterMatrix,
        v: Sequence[Number],
        factor: Number,
        columns: range,
        after: tuple[int, Expr, Thread] | None,
    ) -> None:
        """x less factor v (vᴴ x) in tiles of columns; in a first tile after one of its columns."""
        p = self.p
        for c in columns:
            total = zero(p)
            for r, value in enumerate(v):
                total = plus_product(total, conjugate(value), x[r, c])
            w = p.number(product(factor, tuple(self._over_column(total))))
            if after is not None and c == after[0]:
                w = p.number(chosen(p.let(after[2].y > after[1]), w, zero(p)))
            for r, value in enumerate(v):
                x[r, c] = minus_product(x[r, c], value, w)

    def form_q(self) -> RegisterMatrix:
        """The first n columns of the product of the reflectors."""
        p = self.p
        q = RegisterMatrix(p, self.grid, self.grid.columns)
        with all_threads(p, self.grid) as t:
            q.fill_identity(t)
        for tile, own, k in steps_of(p, self.grid, self.n, backwards=True):
            self._share_column(tile, own)
            with all_threads(p, self.grid) as t:
                x = [self.column[ZERO, i] for i in t.rows]
                v = self._reflector(t, k, [p.let(i > k) for i in t.rows], x)
                tau = p.number(self.taus[ZERO, k])
                self._reflect(q, v, tau, range(tile, self.grid.columns), None)
        return q

    def write(self, out: Matrix, q: RegisterMatrix | None) -> None:
        """Q, where it is given, above R."""
        p = self.p
        above = ZERO if q is None else self.m
        with all_threads(p, self.grid) as t:
            for r, c in self.a.tiles:
                i, j = t.rows[r], t.columns[c]
                if q is not None:
                    with p.when(p.let((i < self.m) & (j < self.n))):
                        out[i, j] = q[r, c]
                with p.when(p.let((i < self.n) & (j < self.n))):
                    found = chosen(j >= i, self.a[r, c], zero(p))
                    found = scaled(found, ir.read(self.scales[c]))
                    out[ir.add(above, i), j] = found
