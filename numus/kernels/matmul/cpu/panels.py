"""Operands of a contraction as panels: what a register tile needs, in the order it needs it.

    columns     [panel][k][part][columns of a panel]           rows of vectors
    rows        [panel][k / W][row][part][W]                   W neighbours along k, to be broadcast
            or  [panel][k][part][row]                          where rows are neighbours in memory

Packing reads an operand through the expression that stands for it, once per element. Complex
numbers are packed as two parts, real and imaginary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import Tiles

ZERO, ONE = const(0), const(1)

LINES = 8  # of k that are packed together, from panel to panel
STRETCH = 16  # vectors of a row that are packed together

# read(batch, line, k, mask): the element of row or column `line`, a pair if complex
Read = Callable[[Expr, Expr, Expr, Expr | None], Any]


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand as it is: an expression. Lines are rows of A, columns of B; `extent` of them."""

    read: Read
    extent: Expr

    def row(self, batch: Expr, m0: Expr, ip: Expr, i: int, k: Expr, u: int) -> list[Expr]:
        """Element k + u of row m0 + ip + i, in place; beyond the last row, of that."""
        m = ir.minimum(ir.add(ir.add(m0, ip), const(i)), ir.sub(self.extent, ONE))
        return _parts(self.read(batch, m, ir.add(k, const(u)), None))

    def columns(
        self, batch: Expr, k: Expr, n0: Expr, jp: Expr, lane: Expr, offset: int
    ) -> list[Expr]:
        """Line k of a panel, from column n0 + jp + offset on."""
        n = ir.add(ir.add(ir.add(n0, jp), lane), const(offset))
        return _parts(self.read(batch, n, k, None))


def _parts(value: Any) -> list[Expr]:
    return list(value) if isinstance(value, tuple) else [value]


@dataclass(frozen=True, slots=True)
class Panels:
    """How lines are laid out: `lines` of them side by side, `depth` long."""

    tiles: Tiles
    lines: int
    k: Expr
    rows: bool  # of A; else columns of B

    @staticmethod
    def of_rows(tiles: Tiles, k: Expr) -> Panels:
        return Panels(tiles, tiles.rows, k, True)

    @staticmethod
    def of_columns(tiles: Tiles, k: Expr) -> Panels:
        return Panels(tiles, tiles.columns, k, False)

    @property
    def along(self) -> bool:
        """Whether neighbours are elements of one line."""
        return self.rows and not self.tiles.across

    @property
    def line(self) -> Expr:
        """Elements that a line takes."""
        depth = self.k
        if self.along:
            width = const(self.tiles.width)
            depth = ir.mul(ir.idiv(ir.add(depth, ir.sub(width, ONE)), width), width)
        return ir.mul(depth, const(self.tiles.parts))

    def size(self, lines: Expr) -> Expr:
        """Elements of so many lines, whole panels of them."""
        return ir.mul(lines, self.line)

    def padded(self, lines: Expr) -> Expr:
        """So many lines, filled up to whole panels."""
        own = const(self.lines)
        return ir.mul(ir.idiv(ir.add(lines, ir.sub(own, ONE)), own), own)

    # -- packing ----------------------------------------------------------------------------------

    def pack(
        self,
        buffer: ir.Buffer,
        start: Expr,
        matrix: Matrix,
        batch: Expr,
        first: Expr,
        stop: Expr,
        extent: Expr,
        depth: tuple[Expr, Expr] | None = None,
    ) -> list[Stmt]:
        """Lines `first` … `stop` into a buffer, from `start` on; `extent`: how many there are.
        `depth`: from where to where along k, if not all of it."""
        if self.along:
            assert depth is None
            return self._along(buffer, start, matrix, batch, first, stop, extent)
        return self._across(buffer, start, matrix, batch, first, stop, depth or (ZERO, self.k))

    def _across(
        self,
        buffer: ir.Buffer,
        start: Expr,
        matrix: Matrix,
        batch: Expr,
        first: Expr,
        stop: Expr,
        depth: tuple[Expr, Expr],
    ) -> list[Stmt]:
        """Line by line of k, neighbours side by side; zeros beyond the last."""
        parts, lines = self.tiles.parts, self.lines
        kb, p, k, j = (ir.var(f"pack_{'ab'[not self.rows]}_{x}") for x in ("kb", "p", "k", "j"))
        at = ir.add(start, ir.add(ir.mul(p, self.line), ir.mul(k, const(lines * parts))))
        n = ir.add(first, ir.add(p, j))

        def line(mask: Expr | None, vectors: int) -> list[Stmt]:
            value = _parts(matrix.read(batch, n, k, mask))
            if mask is not None:
                value = [ir.select(mask, x, const(0, x.dtype)) for x in value]
            stores: list[Stmt] = [
                ir.Store(buffer, ir.add(ir.add(at, j), const(i * lines)), x)
                for i, x in enumerate(value)
            ]
            extent = lines if self.rows else vectors * self.tiles.width
            return [ir.For(j, ZERO, const(extent), "lanes", stores, unroll=vectors)]

        end = ir.minimum(ir.add(kb, const(LINES)), depth[1])
        left = ir.sub(stop, ir.add(first, p))
        full = left >= const(lines)
        vectors = 1 if self.rows else self.tiles.vectors
        # several lines at a time, so that a panel is written in longer pieces
        body: list[Stmt] = [ir.If(full, [ir.For(k, kb, end, "serial", line(None, vectors))])]
        rest = ~full
        if vectors > 1:  # of what fits one vector, a tile reads no other
            narrow = left <= const(self.tiles.width)
            body.append(ir.If(narrow, [ir.For(k, kb, end, "serial", line(n < stop, 1))]))
            rest = rest & ~narrow
        body.append(ir.If(rest, [ir.For(k, kb, end, "serial", line(n < stop, vectors))]))
        panels = ir.For(p, ZERO, ir.sub(stop, first), "serial", body, step=const(lines))
        return [ir.For(kb, *depth, "serial", [panels], step=const(LINES))]

    def _along(
        self,
        buffer: ir.Buffer,
        start: Expr,
        matrix: Matrix,
        batch: Expr,
        first: Expr,
        stop: Expr,
        extent: Expr,
    ) -> list[Stmt]:
        """A vector of neighbours along k at a time; zeros beyond the last k.

        A panel's lines beyond the last are that last line again: their results are never stored.
        """
        parts, lines, width = self.tiles.parts, self.lines, self.tiles.width
        p, i, kb, kq, kk = (ir.var(f"pack_a_{x}") for x in ("p", "i", "kb", "kq", "kk"))
        m = ir.minimum(ir.add(first, ir.add(p, i)), ir.sub(extent, ONE))
        whole = ir.idiv(self.k, const(width))

        def vector(kb: Expr, mask: bool) -> Stmt:
            k = ir.add(ir.mul(kb, const(width)), kk)
            inside = k < self.k if mask else None
            value = _parts(matrix.read(batch, m, k, inside))
            if inside is not None:
                value = [ir.select(inside, x, const(0, x.dtype)) for x in value]
            at = ir.add(start, ir.mul(p, self.line))
            at = ir.add(at, ir.mul(kb, const(lines * parts * width)))
            at = ir.add(at, ir.mul(i, const(parts * width)))
            stores: list[Stmt] = [
                ir.Store(buffer, ir.add(ir.add(at, kk), const(q * width)), x)
                for q, x in enumerate(value)
            ]
            return ir.For(kk, ZERO, const(width), "lanes", stores)

        # a stretch of every row at a time, so that what is written stays close together
        end = ir.minimum(ir.add(kq, const(STRETCH)), whole)
        row = ir.For(
            i, ZERO, const(lines), "serial", [ir.For(kb, kq, end, "serial", [vector(kb, False)])]
        )
        stretch = ir.For(kq, ZERO, whole, "serial", [row], step=const(STRETCH))
        rest = ir.If(
            ir.mul(whole, const(width)) < self.k,
            [ir.For(i, ZERO, const(lines), "serial", [vector(whole, True)])],
        )
        return [ir.For(p, ZERO, ir.sub(stop, first), "serial", [stretch, rest], step=const(lines))]


@dataclass(frozen=True, slots=True)
class Packed:
    """An operand in panels; the task's first lies at `start`."""

    buffer: ir.Buffer
    start: Expr
    panels: Panels

    def moved(self, batch: Expr, first: Expr, extent: Expr) -> Packed:
        """Seen from line `first` of a batch of such operands."""
        lines = ir.add(ir.mul(batch, self.panels.padded(extent)), first)
        return replace(self, start=ir.add(self.start, self.panels.size(lines)))

    def row(self, batch: Expr, m0: Expr, ip: Expr, i: int, k: Expr, u: int) -> list[Expr]:
        tiles = self.panels.tiles
        rows, parts, width = tiles.rows, tiles.parts, tiles.width
        at = ir.add(self.start, ir.mul(ip, self.panels.line))
        if tiles.across:
            at = ir.add(at, ir.mul(k, const(rows * parts)))
            place = [u * rows * parts + p * rows + i for p in range(parts)]
        else:
            at = ir.add(at, ir.mul(ir.idiv(k, const(width)), const(rows * parts * width)))
            at = ir.add(at, ir.irem(k, const(width)))
            place = [(i * parts + p) * width + u for p in range(parts)]
        return [ir.load(self.buffer, ir.add(at, const(x))) for x in place]

    def columns(
        self, batch: Expr, k: Expr, n0: Expr, jp: Expr, lane: Expr, offset: int
    ) -> list[Expr]:
        tiles = self.panels.tiles
        at = ir.add(self.start, ir.mul(jp, self.panels.line))
        at = ir.add(ir.add(at, ir.mul(k, const(tiles.columns * tiles.parts))), lane)
        return [
            ir.load(self.buffer, ir.add(at, const(p * tiles.columns + offset)))
            for p in range(tiles.parts)
        ]
