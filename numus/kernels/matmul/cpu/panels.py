"""Panel packing of the CPU GEMM (BLIS): operands in the order in which register tiles read them.

    B, columns      [panel][k][part][columns of a panel]           rows of vectors
    A, rows         [panel][k / W][row][part][W]                   K-major: W elements to broadcast
            or      [panel][k][part][row]                          MN-major

Operands are evaluated once per element. Complex numbers are packed as real and imaginary parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import Blocking

ZERO, ONE = const(0), const(1)

BLOCK_ROWS = 8  # rows of k that are packed together, so that panels are written in longer pieces
BLOCK_VECTORS = 16  # vectors of a row that are packed together, so that writes stay close

# read(batch, mn, k, mask): an element of row or column `mn`, a pair if complex
Read = Callable[[Expr, Expr, Expr, Expr | None], Any]


@dataclass(frozen=True, slots=True)
class Matrix:
    """An operand as an expression; `extent` is m or n, `k_major`: its elements in memory are
    adjacent along k."""

    read: Read
    extent: Expr
    k_major: bool = False

    def row(self, batch: Expr, m: Expr, ip: Expr, i: int, k: Expr, u: int) -> list[Expr]:
        """Element k + u of row m + i, in place; rows past the end repeat the last one."""
        return _parts(self.read(batch, ir.minimum(m + i, self.extent - 1), k + u, None))

    def columns(self, batch: Expr, k: Expr, n: Expr, jp: Expr, lane: Expr, by: int) -> list[Expr]:
        """Row k of a panel, from column n + by on."""
        return _parts(self.read(batch, n + lane + by, k, None))


class MatrixRows(NamedTuple):
    """Rows (of A) or columns (of B) from `first` to `stop`."""

    matrix: Matrix
    batch: Expr
    first: Expr
    stop: Expr


Pair = tuple[Expr, Expr]


def _parts(value: Any, mask: Expr | None = None) -> list[Expr]:
    """Real and imaginary part, if complex; zeros where the mask is false."""
    parts = list(value) if isinstance(value, tuple) else [value]
    return parts if mask is None else [ir.select(mask, x, const(0, x.dtype)) for x in parts]


@dataclass(frozen=True, slots=True)
class Panels:
    """Layout of panels: `extent` rows of A, or columns of B, by all of k."""

    blocking: Blocking
    k: Expr
    of_a: bool

    @property
    def extent(self) -> int:
        return self.blocking.rows if self.of_a else self.blocking.columns

    @property
    def k_major(self) -> bool:
        return self.of_a and not self.blocking.a_mn_major

    @property
    def stride(self) -> Expr:
        """Elements per row or column."""
        k, width = self.k, self.blocking.width
        k = (k + (width - 1)) // width * width if self.k_major else k
        return k * self.blocking.parts

    def size(self, extent: Expr) -> Expr:
        """Elements of `extent` rows or columns, in whole panels."""
        return extent * self.stride

    def padded(self, extent: Expr) -> Expr:
        """Rounded up to whole panels."""
        return (extent + (self.extent - 1)) // self.extent * self.extent

    def pack(
        self, buffer: ir.Buffer, start: Expr, source: MatrixRows, k_range: Pair | None = None
    ) -> list[Stmt]:
        """Rows of A, or columns of B, to `start` in a buffer; all of k, or of a range of it."""
        if self.k_major:
            assert k_range is None
            return self._pack_k_major(buffer, start, source)
        if source.matrix.k_major and self.blocking.parts == 1 and not self.of_a:
            return self._pack_transposed(buffer, start, source, k_range or (ZERO, self.k))
        return self._pack_mn_major(buffer, start, source, k_range or (ZERO, self.k))

    def _pack_mn_major(
        self, buffer: ir.Buffer, start: Expr, source: MatrixRows, k_range: Pair
    ) -> list[Stmt]:
        """Row by row of k; zeros past the last column."""
        matrix, batch, first, stop = source
        parts, extent = self.blocking.parts, self.extent
        kb, p, k, j = (ir.var(f"pack_{'ab'[not self.of_a]}_{x}") for x in ("kb", "p", "k", "j"))
        at = start + p * self.stride + k * (extent * parts)
        mn = first + p + j
        end = ir.minimum(kb + BLOCK_ROWS, k_range[1])

        def rows(mask: Expr | None, vectors: int) -> list[Stmt]:
            value = _parts(matrix.read(batch, mn, k, mask), mask)
            stores: list[Stmt] = [
                ir.Store(buffer, at + j + i * extent, x) for i, x in enumerate(value)
            ]
            count = extent if self.of_a else vectors * self.blocking.width
            row = ir.For(j, ZERO, const(count), "lanes", stores, unroll=vectors)
            return [ir.For(k, kb, end, "serial", [row])]

        left = stop - (first + p)
        full = left >= extent
        vectors = 1 if self.of_a else self.blocking.vectors
        body: list[Stmt] = [ir.If(full, rows(None, vectors))]
        rest = ~full
        if vectors > 1:  # a tile reads no more than the one vector
            one = left <= self.blocking.width
            body.append(ir.If(one, rows(mn < stop, 1)))
            rest = rest & ~one
        body.append(ir.If(rest, rows(mn < stop, vectors)))
        panels = ir.For(p, ZERO, stop - first, "serial", body, step=const(extent))
        return [ir.For(kb, *k_range, "serial", [panels], step=const(BLOCK_ROWS))]

    def _pack_transposed(
        self, buffer: ir.Buffer, start: Expr, source: MatrixRows, k_range: Pair
    ) -> list[Stmt]:
        """Columns that lie along k in memory: squares of vectors, which are transposed in
        registers. Gathering the vectors of the panel would take several times as long."""
        matrix, batch, first, stop = source
        extent, width = self.extent, self.blocking.width
        kb, p, k, v, j = (ir.var(f"pack_b_{x}") for x in ("kb", "p", "k", "v", "j"))
        mn = first + p + v + j

        def row(k: Expr, mask: Expr | None) -> Stmt:
            (value,) = _parts(matrix.read(batch, mn, k, mask), mask)
            return ir.Store(buffer, start + p * self.stride + k * extent + v + j, value)

        def lanes(body: list[Stmt]) -> Stmt:
            return ir.For(j, ZERO, const(width), "lanes", body)

        left = stop - (first + p)
        end = ir.minimum(kb + width, k_range[1])
        whole = (left >= v + width) & (kb + width <= k_range[1])
        square = lanes([row(kb + u, None) for u in range(width)])
        rest = ir.For(k, kb, end, "serial", [lanes([row(k, mn < stop)])])
        # a tile reads no more than the one vector
        columns = ir.select(left <= width, const(width), const(extent))
        vectors = ir.For(
            *(v, ZERO, columns, "serial"),
            [ir.If(whole, [square]), ir.If(~whole, [rest])],
            step=const(width),
        )
        blocks = ir.For(kb, *k_range, "serial", [vectors], step=const(width))
        return [ir.For(p, ZERO, stop - first, "serial", [blocks], step=const(extent))]

    def _pack_k_major(self, buffer: ir.Buffer, start: Expr, source: MatrixRows) -> list[Stmt]:
        """A vector along k at a time; zeros past the end of k. Rows past the end repeat the last
        one: their results are never stored."""
        matrix, batch, first, stop = source
        parts, rows, width = self.blocking.parts, self.extent, self.blocking.width
        p, i, kb, kq, kk = (ir.var(f"pack_a_{x}") for x in ("p", "i", "kb", "kq", "kk"))
        m = ir.minimum(first + p + i, matrix.extent - 1)
        whole = self.k // width

        def vector(kb: Expr, masked: bool) -> Stmt:
            k = kb * width + kk
            mask = k < self.k if masked else None
            value = _parts(matrix.read(batch, m, k, mask), mask)
            at = start + p * self.stride + kb * (rows * parts * width) + i * (parts * width)
            stores: list[Stmt] = [
                ir.Store(buffer, at + kk + q * width, x) for q, x in enumerate(value)
            ]
            return ir.For(kk, ZERO, const(width), "lanes", stores)

        end = ir.minimum(kq + BLOCK_VECTORS, whole)
        row = ir.For(kb, kq, end, "serial", [vector(kb, False)])
        block = ir.For(i, ZERO, const(rows), "serial", [row])
        blocks = ir.For(kq, ZERO, whole, "serial", [block], step=const(BLOCK_VECTORS))
        last = ir.For(i, ZERO, const(rows), "serial", [vector(whole, True)])
        rest = ir.If(whole * width < self.k, [last])
        return [ir.For(p, ZERO, stop - first, "serial", [blocks, rest], step=const(rows))]


@dataclass(frozen=True, slots=True)
class Packed:
    """An operand in panels; the task's first one is at `offset`."""

    buffer: ir.Buffer
    offset: Expr
    panels: Panels

    def moved(self, batch: Expr, first: Expr, extent: Expr) -> Packed:
        """From row or column `first` of a matrix of the batch on."""
        before = batch * self.panels.padded(extent) + first
        return replace(self, offset=self.offset + self.panels.size(before))

    def row(self, batch: Expr, m: Expr, ip: Expr, i: int, k: Expr, u: int) -> list[Expr]:
        b = self.panels.blocking
        rows, parts, width = b.rows, b.parts, b.width
        at = self.offset + ip * self.panels.stride
        if b.a_mn_major:
            at = at + k * (rows * parts)
            offsets = [u * rows * parts + p * rows + i for p in range(parts)]
        else:
            at = at + k // width * (rows * parts * width) + k % width
            offsets = [(i * parts + p) * width + u for p in range(parts)]
        return [ir.load(self.buffer, at + x) for x in offsets]

    def columns(self, batch: Expr, k: Expr, n: Expr, jp: Expr, lane: Expr, by: int) -> list[Expr]:
        b = self.panels.blocking
        at = self.offset + jp * self.panels.stride + k * (b.columns * b.parts) + lane
        return [ir.load(self.buffer, at + p * b.columns + by) for p in range(b.parts)]
