"""Register tiles and transposes of blocked factorisations on a CPU.

Blocks are updated in place, in workspaces whose extents are multiples of a tile: loops of tiles
have no remainders. Parts of complex numbers lie in planes of their own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.factor.program import (
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    Span,
    minus_product,
    plus_product,
)

_MAX_UNROLL = 4  # steps of the inner index


class TileProgram(Program):
    """Statements of a task, whose tiles have `rows` rows and `vectors` vectors of `width` lanes."""

    def __init__(self, real: DType, components: int, width: int, registers: int) -> None:
        super().__init__(real, components, simt=False)
        self.width, self.vectors = width, 2
        self.rows = (8 if registers >= 32 else 4) // components
        # ranges of the inner index end at tiles: complex ones of 16 registers have two rows
        self.depth_unroll = min(_MAX_UNROLL, self.rows)

    @property
    def tile(self) -> int:
        """Extents are multiples of it."""
        return max(self.vectors * self.width, 8)

    @contextlib.contextmanager
    def vector(self) -> Iterator[Expr]:
        lane = ir.var(self._name())
        with self._nested() as body:
            yield lane
        self.do(ir.For(lane, ZERO, const(self.width), "lanes", body, width=self.width))


class Planes(Matrix):
    """A row-major matrix whose parts lie in planes, one after the other."""

    rows = 0  # of memory of a worker

    def __init__(
        self, p: Program, buffer: ir.Buffer, start: Expr, stride: Expr, plane: Expr
    ) -> None:
        super().__init__(p, buffer, start, stride)
        self._plane = plane
        self._starts = [start, ir.add(start, plane)][: p.components]

    def moved(self, row: Expr, column: Expr) -> Planes:
        """The matrix from an element on."""
        start = self._p.let(ir.add(self._start, ir.add(ir.mul(row, self._stride), column)))
        return Planes(self._p, self.buffer, start, self._stride, self._plane)

    def _at(self, i: Expr, j: Expr) -> list[Expr]:
        at = ir.add(ir.mul(i, self._stride), j)
        return [ir.add(start, at) for start in self._starts]

    def places(self, i: Expr, j: Expr) -> list[Expr]:
        return self._at(i, j)

    def plane(self, i: Expr, j: Expr, part: int) -> Expr:
        """The place of one part."""
        return self._at(i, j)[part]


class Chunks:
    """A panel, transposed, in chunks of `rows` of its rows: each a matrix of few pages."""

    def __init__(self, p: Program, buffer: ir.Buffer, start: Expr, rows: int, pitch: int) -> None:
        self._p, self._buffer, self._start, self._pitch = p, buffer, start, pitch
        self.rows = rows

    def at(self, number: Expr) -> Planes:
        plane = self.rows * self._pitch
        size = const(plane * self._p.components)
        start = self._p.let(ir.add(self._start, ir.mul(number, size)))
        return Planes(self._p, self._buffer, start, const(self._pitch), const(plane))

    def count(self, start: Expr, end: Expr) -> Expr:
        """How many hold a range of rows."""
        rounded = ir.add(ir.sub(end, start), const(self.rows - 1))
        return self._p.let(ir.idiv(rounded, const(self.rows)))


# of a program, c, a row, a column, the factors, and the depth
Product = Callable[[TileProgram, Planes, Expr, Expr, tuple[Read, Read], Expr], list[Number]]


def less_product(
    p: TileProgram, c: Planes, top: Expr, j: Expr, factors: tuple[Read, Read], depth: Expr
) -> list[Number]:
    """Rows from `top` on of c - a b in a vector of columns, of factors a(row, k) and b(k, j)."""
    return _with_product(p, c, top, j, factors, depth, minus_product)


def plus_product_of(
    p: TileProgram, c: Planes, top: Expr, j: Expr, factors: tuple[Read, Read], depth: Expr
) -> list[Number]:
    """As `less_product`, of c + a b."""
    return _with_product(p, c, top, j, factors, depth, plus_product)


def _with_product(
    p: TileProgram,
    c: Planes,
    top: Expr,
    j: Expr,
    factors: tuple[Read, Read],
    depth: Expr,
    accumulate: Callable[[Number, Number, Number], Number],
) -> list[Number]:
    a, b = factors
    tile = [[p.register(lanes=True) for _ in range(p.components)] for _ in range(p.rows)]
    for r, registers in enumerate(tile):
        p.do(*ir.sets(registers, c[ir.add(top, const(r)), j]))
    below = ir.add(top, const(p.rows))
    with p.loop(ZERO, ir.idiv(depth, const(p.depth_unroll))) as step:
        coming = ir.add(below, ir.irem(step, const(p.rows)))
        for v in range(p.vectors):  # what the next tile updates
            for at in c.places(coming, ir.add(j, const(v * p.width))):
                p.do(ir.Prefetch(c.buffer, at, write=True))
        for u in range(p.depth_unroll):
            k = p.let(ir.add(ir.mul(step, const(p.depth_unroll)), const(u)))
            across = p.number(b(k, j))
            for r, registers in enumerate(tile):
                old = tuple(ir.reads(registers))
                new = accumulate(old, a(ir.add(top, const(r)), k), across)
                p.do(*ir.sets(registers, new if len(new) == 1 else p.number(new)))
    return [tuple(ir.reads(registers)) for registers in tile]


def update_tiles(
    p: TileProgram,
    c: Planes,
    factors: tuple[Read, Read],
    extents: tuple[Expr, Expr, Expr],
    product: Product = less_product,
) -> None:
    """c -= a b in place, or c += a b, of (rows, columns, depth) that are multiples of a tile."""
    height, width, depth = extents
    with (
        p.lanes(ZERO, width, unroll=p.vectors) as j,
        p.loop(ZERO, ir.idiv(height, const(p.rows))) as tile,
    ):
        top = p.let(ir.mul(tile, const(p.rows)))
        for r, value in enumerate(product(p, c, top, j, factors, depth)):
            c[ir.add(top, const(r)), j] = value


def transposed(p: TileProgram, source: Planes, to: Planes, rows: Span, columns: Span) -> None:
    """to[j, i] = source[i, j] in ranges whose extents are multiples of the width."""
    width = const(p.width)
    with (
        p.loop(ZERO, ir.idiv(ir.sub(rows[1], rows[0]), width)) as down,
        p.loop(ZERO, ir.idiv(ir.sub(columns[1], columns[0]), width)) as across,
    ):
        i = p.let(ir.add(rows[0], ir.mul(down, width)))
        j = p.let(ir.add(columns[0], ir.mul(across, width)))
        for part in range(p.components):
            with p.vector() as v:
                read = [
                    p.let(ir.load(source.buffer, source.plane(ir.add(i, const(r)), j + v, part)))
                    for r in range(p.width)
                ]
                lets, read = transpose_registers(read, v, p.real)
                p.do(*lets)
                for r, value in enumerate(read):
                    p.do(ir.Store(to.buffer, to.plane(ir.add(j, const(r)), i + v, part), value))
