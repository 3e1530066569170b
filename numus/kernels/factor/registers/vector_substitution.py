"""Forward substitution of few vectors as dataflow: a block of a GPU per 64 rows, which waits by
flags for what blocks before it have found.

A block loads its tiles before it waits. Those on the diagonal are multiplied by their inverses, and
what they find is refined once, for residuals of the size of substitution's (Du Croz & Higham 1992).
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import (
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    minus_product,
    plus_product,
    zero,
)
from numus.kernels.factor.registers.tiles import RegisterMatrix, Thread, ThreadGrid, all_threads

SIDE = 64  # rows of a block
GRID = ThreadGrid(16, 16, SIDE // 16, SIDE // 16)
WARP = 32


@dataclass(frozen=True)
class Operands:
    """The lower triangle, the inverse on the diagonal of a block, and vectors in rows."""

    a: Read
    inverse: Read
    b: Read


class VectorSubstitution:
    """Of `count` vectors of n numbers; `shared` are three matrices of as many rows."""

    def __init__(
        self, p: Program, n: Expr, count: int, out: Matrix, shared: tuple[Matrix, Matrix, Matrix]
    ) -> None:
        self.p, self.n, self.out = p, n, out
        self.vectors = range(count)
        self.right, self.found, self.rest = shared
        self.sums = [
            [[p.register(lanes=True) for _ in range(p.components)] for _ in range(GRID.rows)]
            for _ in self.vectors
        ]

    def run(self, i: Expr, flags: ir.Buffer, first: Expr, x: Operands, unit_diagonal: bool) -> None:
        """The rows of block i; `first` is the number of the first flag."""
        p = self.p
        start = p.let(ir.mul(i, const(SIDE)))
        height = p.let(ir.sub(self.n, start))
        diagonal, inverse, tile = (RegisterMatrix(p, GRID, GRID.columns) for _ in range(3))
        with all_threads(p, GRID) as t:
            inverse.fill(t, x.inverse)
            self._fill_diagonal(t, diagonal, start, height, x.a, unit_diagonal)
            self._fill_sums(t, start, height, x.b)
        with p.loop(ZERO, i) as j:
            column = p.let(ir.mul(j, const(SIDE)))
            with all_threads(p, GRID) as t:

                def element(r: Expr, c: Expr) -> Number:
                    return x.a(ir.add(start, r), ir.add(column, c))

                tile.fill(t, element, (height, const(SIDE)))
                with p.when(p.let(t.number < const(WARP))):
                    read = ir.FlagRead(ir.add(first, j), 1, const(1), [p.variable(flags.dtype)])
                    p.do(ir.SpinWait(flags, [read], acquire=True))
            p.do(ir.AsyncWait(0))
            with all_threads(p, GRID) as t:
                for v in self.vectors:
                    known = [self.out[const(v), ir.add(column, c)] for c in t.columns]
                    self._accumulate(self.sums[v], tile, known, subtract=True)
        self._solve(start, height, diagonal, inverse, refined=not unit_diagonal)
        p.do(ir.AsyncWait(0))  # all threads have stored what the flag tells of
        with all_threads(p, GRID) as t, p.when(p.let(t.number.eq(0))):
            flag = const(1, flags.dtype)
            p.do(ir.SetFlag(flags, ir.add(first, i), flag, release=True))

    def _fill_diagonal(
        self, t: Thread, to: RegisterMatrix, start: Expr, height: Expr, a: Read, unit: bool
    ) -> None:
        if unit:  # nothing is refined
            return
        p = self.p

        def element(r: Expr, c: Expr) -> Number:
            return chosen(c <= r, a(ir.add(start, r), ir.add(start, c)), zero(p))

        to.fill(t, element, (height, height))

    def _fill_sums(self, t: Thread, start: Expr, height: Expr, b: Read) -> None:
        """The first thread of a row begins with the right-hand sides."""
        p = self.p
        for v in self.vectors:
            for r, x in enumerate(t.rows):
                p.do(*ir.sets(self.sums[v][r], zero(p)))
                with p.when(p.let((x < height) & t.y.eq(ZERO))):
                    p.do(*ir.sets(self.sums[v][r], b(const(v), ir.add(start, x))))

    def _accumulate(
        self,
        sums: list[list[ir.Register]],
        a: RegisterMatrix,
        x: list[Number],
        subtract: bool = False,
    ) -> None:
        combine = minus_product if subtract else plus_product
        for r, total in enumerate(sums):
            for c, number in enumerate(x):
                self.p.do(*ir.sets(total, combine(tuple(ir.reads(total)), a[r, c], number)))

    def _solve(
        self,
        start: Expr,
        height: Expr,
        diagonal: RegisterMatrix,
        inverse: RegisterMatrix,
        refined: bool,
    ) -> None:
        p = self.p
        with all_threads(p, GRID) as t:
            for v in self.vectors:
                self._share(t, self.right, v, self._totals(v))
        with all_threads(p, GRID) as t:
            for v in self.vectors:
                self._share(t, self.found, v, self._product(t, v, inverse, self.right))
        if refined:
            with all_threads(p, GRID) as t:
                for v in self.vectors:
                    products = self._product(t, v, diagonal, self.found)
                    right = [self.right[const(v), r] for r in t.rows]
                    pairs = zip(right, products, strict=True)
                    rest = [tuple(x - y for x, y in zip(*pair, strict=True)) for pair in pairs]
                    self._share(t, self.rest, v, rest)
            with all_threads(p, GRID) as t:
                for v in self.vectors:
                    products = self._product(t, v, inverse, self.rest)
                    found = [self.found[const(v), r] for r in t.rows]
                    pairs = zip(found, products, strict=True)
                    sums = [tuple(x + y for x, y in zip(*pair, strict=True)) for pair in pairs]
                    self._write(t, v, start, height, sums)
            return
        with all_threads(p, GRID) as t:
            for v in self.vectors:
                found = [self.found[const(v), r] for r in t.rows]
                self._write(t, v, start, height, found)

    def _totals(self, v: int) -> list[Number]:
        """The sums of a thread's rows, over the threads that share them."""
        p, found = self.p, []
        for total in self.sums[v]:
            parts = p.number(ir.reads(total))
            mask = GRID.across // 2
            while mask:
                parts = p.number([x + p.let(ir.lanes_xor(x, mask)) for x in parts])
                mask //= 2
            found.append(parts)
        return found

    def _product(self, t: Thread, v: int, a: RegisterMatrix, x: Matrix) -> list[Number]:
        p = self.p
        for total in self.sums[v]:
            p.do(*ir.sets(total, zero(p)))
        numbers = [p.number(x[const(v), c]) for c in t.columns]
        self._accumulate(self.sums[v], a, numbers)
        return self._totals(v)

    def _share(self, t: Thread, to: Matrix, v: int, numbers: list[Number]) -> None:
        p = self.p
        with p.when(p.let(t.y.eq(ZERO))):
            for r, number in zip(t.rows, numbers, strict=True):
                to[const(v), r] = number

    def _write(self, t: Thread, v: int, start: Expr, height: Expr, numbers: list[Number]) -> None:
        p = self.p
        for r, number in zip(t.rows, numbers, strict=True):
            with p.when(p.let(t.y.eq(ZERO) & (r < height))):
                self.out[const(v), ir.add(start, r)] = number
