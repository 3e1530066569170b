"""Winograd F(4×4, 3×3) convolution (Lavin & Gray 2016), and its weight gradient F(3×3, 4×4).

Input tiles of 6 × 6 and filters are transformed, multiplied in the Winograd domain by 36 GEMMs over
the channels, and transformed back: 36 multiplications instead of 144. The interpolation points were
chosen for accuracy: in float32, errors are 1.5 times those of a direct convolution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import NamedTuple

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu.implicit_gemm import u32

INPUT_TILE = 6
OUTPUT_TILE = 4  # also the step from tile to tile
THREADS = 128
POINTS = (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2))

Transform = list[list[Fraction]]


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


def _with_roots(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients, the lowest first, of the polynomial with these roots."""
    found = [Fraction(1)]
    for root in roots:
        pairs = zip([Fraction(0), *found], [*found, Fraction(0)], strict=True)
        found = [a - root * b for a, b in pairs]
    return found


def input_transform() -> Transform:
    """B', 6 × 6."""
    others = [[*_with_roots([q for q in POINTS if q != p]), Fraction(0)] for p in POINTS]
    return [*others, _with_roots(POINTS)]


def filter_transform(taps: int) -> Transform:
    """G, 6 × taps."""
    scales = [prod((p - q for q in POINTS if q != p), start=Fraction(1)) for p in POINTS]
    found = [[p**k / c for k in range(taps)] for p, c in zip(POINTS, scales, strict=True)]
    return [*found, [Fraction(int(k == taps - 1)) for k in range(taps)]]


def output_transform(outputs: int) -> Transform:
    """A', outputs × 6."""
    last = outputs - 1
    return [[*(p**i for p in POINTS), Fraction(int(i == last))] for i in range(outputs)]


def _times(
    body: list[Stmt], tag: str, matrix: Transform, values: list[list[Expr]], dtype: DType
) -> list[list[Expr]]:
    """A constant matrix times one of values, as Lets."""
    found: list[list[Expr]] = []
    for i, row in enumerate(matrix):
        found.append([])
        for j, column in enumerate(zip(*values, strict=True)):
            (factor, value), *rest = [x for x in zip(row, column, strict=True) if x[0]]
            total = value if factor == 1 else value * float(factor)
            for factor, value in rest:
                total = ir.fma(value, const(float(factor), dtype), total)
            found[-1].append(ir.var(f"{tag}{i}_{j}", dtype))
            body.append(ir.Let(found[-1][-1], total))
    return found


def _transpose(values: list[list[Expr]]) -> list[list[Expr]]:
    return [list(row) for row in zip(*values, strict=True)]


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
        lane, dtype, size = ir.var("lane"), self.buffer.dtype, range(len(matrix[0]))
        thread = g * THREADS + lane
        row, column = u32(thread) // u32(self.columns), u32(thread) % u32(self.columns)
        down, across = (u32(n) for n in self.tiles)
        rest = column // across
        y, x = rest % down * OUTPUT_TILE, column % across * OUTPUT_TILE
        tile = Tile(row, column, rest // down, y, x)
        values = [[ir.var(f"value{i}_{j}", dtype) for j in size] for i in size]
        body: list[Stmt] = [ir.Let(values[i][j], load(tile, i, j)) for i in size for j in size]
        half = _times(body, "half", matrix, values, dtype)
        found = _transpose(_times(body, "out", matrix, _transpose(half), dtype))
        for i, line in enumerate(found):
            for j, value in enumerate(line):
                body += store(tile, i, j, value)
        work: list[Stmt] = [ir.If(thread < self.rows * self.columns, body)]
        return [ir.For(lane, const(0), const(THREADS), "lanes", work)]
