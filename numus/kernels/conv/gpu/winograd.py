"""Winograd F(4×4, 3×3) convolution (Lavin & Gray 2016), and its weight gradient F(3×3, 4×4).

Input tiles of 6 × 6 and filters are transformed, multiplied in the Winograd domain by 36 GEMMs over
the channels, and transformed back: 36 multiplications instead of 144.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import u32
from numus.kernels.conv.winograd import INPUT_TILE, OUTPUT_TILE, Transform, transformed

THREADS = 128


class Tile(NamedTuple):
    """The tile of a thread (32 bits): its row (channel) and column, its image and its origin."""

    row: Expr
    column: Expr
    image: Expr
    y: Expr
    x: Expr


Read = Callable[[Expr, Expr, Expr, Expr], Expr]  # (row, image, y, x), zero out of bounds
Load = Callable[[Tile, int, int], Expr]  # the element at an offset in y and x
Store = Callable[[Tile, int, int, Expr], list[Stmt]]


@dataclass(frozen=True, slots=True)
class Domain:
    """The Winograd domain: 36 matrices of rows × columns, which are the tiles of all images."""

    buffer: ir.Buffer
    rows: Expr
    columns: Expr
    tiles: tuple[Expr, Expr]  # of an image, down and across

    def enter(self, g: Expr, matrix: Transform, read: Read) -> list[Stmt]:
        """Body of thread block g: the input or filter transform."""

        def load(t: Tile, i: int, j: int) -> Expr:
            return read(t.row, t.image, t.y + i, t.x + j)

        def store(t: Tile, i: int, j: int, value: Expr) -> list[Stmt]:
            return [ir.Store(self.buffer, self._index(t, i, j), value)]

        return self._transform(g, matrix, load, store)

    def output_transform(self, g: Expr, matrix: Transform, store: Store) -> list[Stmt]:
        """Body of thread block g: the output transform."""

        def load(t: Tile, i: int, j: int) -> Expr:
            return ir.load(self.buffer, self._index(t, i, j))

        return self._transform(g, matrix, load, store)

    def _index(self, t: Tile, i: int, j: int) -> Expr:
        row = const(INPUT_TILE * i + j) * self.rows + t.row.cast(ir.INDEX)
        return row * self.columns + t.column.cast(ir.INDEX)

    def _transform(self, g: Expr, matrix: Transform, load: Load, store: Store) -> list[Stmt]:
        """T X T' of a tile by each thread, columns fastest."""
        lane = ir.var("lane")
        thread = g * THREADS + lane
        row, column = u32(thread) // u32(self.columns), u32(thread) % u32(self.columns)
        down, across = (u32(n) for n in self.tiles)
        rest = column // across
        y, x = rest % down * OUTPUT_TILE, column % across * OUTPUT_TILE
        tile = Tile(row, column, rest // down, y, x)
        body: list[Stmt] = []
        found = transformed(body, matrix, lambda i, j: load(tile, i, j), self.buffer.dtype)
        for k, value in enumerate(found):
            body += store(tile, *divmod(k, len(matrix)), value)
        work: list[Stmt] = [ir.If(thread < self.rows * self.columns, body)]
        return [ir.For(lane, const(0), const(THREADS), "lanes", work)]
