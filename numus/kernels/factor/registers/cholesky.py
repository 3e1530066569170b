"""Right-looking Cholesky factorisation of one matrix per block, in registers of a GPU.

A step eliminates `RANK` columns: threads factorise the block on the diagonal that these share, each
for itself, and find a row of L by forward substitution with it. So there are two barriers for
several columns, and square roots follow each other without waiting for other threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const
from numus.kernels.factor.program import (
    VECTOR_BYTES,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    conjugate,
    fma,
    minus_product,
    over_exact_root,
    over_root,
    real,
    scaled,
    zero,
)
from numus.kernels.factor.registers.tiles import RegisterMatrix, Thread, ThreadGrid, all_threads

TINY = 2.0**-1000
RANK = 4  # columns of a step, a divisor of the sides of all grids of threads


@dataclass(frozen=True)
class Shared:
    """What passes through shared memory in a step, the numbers of one row or column side by side:
    columns of what is left of the matrix, rows of what is left of the inverse, and what they become
    by substitution."""

    column: Matrix
    row: Matrix
    left: Matrix
    across: Matrix


def cholesky(
    p: Program, grid: ThreadGrid, a: Read, n: Expr, shared: Shared, inverse: bool
) -> tuple[RegisterMatrix, RegisterMatrix | None]:
    """L of the lower triangle of a, and its inverse on demand; columns of L are NaN from a pivot on
    that is not positive."""
    l = RegisterMatrix(p, grid, grid.rows, lower=True)  # noqa: E741
    x = RegisterMatrix(p, grid, grid.rows, lower=True) if inverse else None
    with all_threads(p, grid) as t:
        l.fill(t, lambda i, j: chosen(j <= i, a(i, j), zero(p)), (n, n))
        invertible(p, t, l, n)
        if x is not None:
            x.fill_identity(t)
    factorise(p, grid, (l, x), n, shared)
    return l, x


def invertible(p: Program, t: Thread, l: RegisterMatrix, n: Expr) -> None:  # noqa: E741
    """Ones on the diagonal beyond n, as the last step may go there."""
    for r, i in enumerate(t.rows):
        with p.when(p.let((i >= n) & t.x.eq(t.y))):
            l[r, r] = real(p, p.constant(1.0))


def factorise(
    p: Program,
    grid: ThreadGrid,
    matrices: tuple[RegisterMatrix, RegisterMatrix | None],
    n: Expr,
    shared: Shared,
) -> None:
    """L in place of a lower triangle, and its inverse in place of an identity."""
    for tile, first in _steps(p, grid, n):
        _Step(p, grid, matrices, shared, tile, first).run()


def _steps(p: Program, grid: ThreadGrid, n: Expr) -> Iterator[tuple[int, Expr]]:
    """The steps: each with the tile of its columns, and the first thread across the grid that holds
    one."""
    for tile in range(grid.columns):
        rest = ir.maximum(ir.sub(n, const(grid.across * tile)), ZERO)
        rest = ir.minimum(const(grid.across), rest)
        count = p.let(ir.idiv(ir.add(rest, const(RANK - 1)), const(RANK)))
        with p.loop(ZERO, count) as number:
            yield tile, p.let(ir.mul(number, const(RANK)))


class _Step:
    """Columns from k on, those of threads from the `first` on across a tile."""

    def __init__(
        self,
        p: Program,
        grid: ThreadGrid,
        matrices: tuple[RegisterMatrix, RegisterMatrix | None],
        shared: Shared,
        tile: int,
        first: Expr,
    ) -> None:
        self.p, self.grid, (self.l, self.x), self.shared = p, grid, matrices, shared
        self.tile, self.first = tile, first
        self.k = p.let(ir.add(const(grid.across * tile), first))

    def run(self) -> None:
        p, tile, rows = self.p, self.tile, range(self.tile, self.grid.rows)
        with all_threads(p, self.grid) as t:
            self._share(t)
        self._substitute()
        with all_threads(p, self.grid) as t:
            left = {r: self._loaded(self.shared.left, t.rows[r]) for r in rows}
            self._keep(t, left)
            for c in rows:
                right = p.let(t.y >= self._thread(RANK))
                for q, number in enumerate(self._loaded(self.shared.left, t.columns[c])):
                    factor = conjugate(number)
                    if c == tile:
                        factor = p.number(chosen(right, factor, zero(p)))
                    for r in range(c, self.grid.rows):
                        self.l[r, c] = minus_product(self.l[r, c], left[r][q], factor)
            if self.x is not None:
                self._invert(t, self.x, left)

    def _thread(self, q: int) -> Expr:
        """That holds column k + q, or row k + q."""
        return ir.add(self.first, const(q))

    def _is_mine(self, place: Expr) -> Expr:
        return self.p.let((place >= self.first) & (place < self._thread(RANK)))

    def _place(self, i: Expr, q: Expr | int) -> Expr:
        """Numbers of a vector are side by side, and those vectors that threads load together."""
        size = self.p.components * self.p.real.itemsize
        width = min(RANK, max(1, VECTOR_BYTES // size))
        line = self.grid.extents[0] * width
        own = ir.mul(i, const(width))
        if isinstance(q, int):
            return ir.add(own, const(q // width * line + q % width))
        first = ir.mul(ir.idiv(q, const(width)), const(line))
        return ir.add(ir.add(first, own), ir.irem(q, const(width)))

    def _share(self, t: Thread) -> None:
        p = self.p
        with p.when(self._is_mine(t.y)):
            q = p.let(ir.sub(t.y, self.first))
            for r in range(self.tile, self.grid.rows):
                self.shared.column[ZERO, self._place(t.rows[r], q)] = self.l[r, self.tile]
        if self.x is not None:
            with p.when(self._is_mine(t.x)):
                q = p.let(ir.sub(t.x, self.first))
                for c in range(self.tile + 1):
                    self.shared.row[ZERO, self._place(t.columns[c], q)] = self.x[self.tile, c]

    def _substitute(self) -> None:
        """Rows of L, a thread for each; zeros above the diagonal. Then columns of the inverse."""
        p, extent, before = self.p, self.grid.extents[0], self.grid.down * self.tile
        inverted = before + self.grid.down if self.x is not None else 0
        with p.lanes(ZERO, const(extent - before + inverted)) as e:
            block, by = self._block()
            is_row = p.let(e < const(extent - before))
            with p.when(is_row):
                i = p.let(ir.add(e, const(before)))
                numbers = self._substituted(self._loaded(self.shared.column, i), block, by)
                for q, number in enumerate(numbers):
                    is_below = p.let(i >= ir.add(self.k, const(q)))
                    found = chosen(is_below, number, zero(p))
                    self.shared.left[ZERO, self._place(i, q)] = found
            if inverted:
                with p.when(~is_row):
                    j = p.let(ir.sub(e, const(extent - before)))
                    self._substitute_inverse(j, block, by)

    def _substitute_inverse(self, j: Expr, block: list[list[Number]], by: list[Expr]) -> None:
        p = self.p
        found: list[Number] = []
        for q, number in enumerate(self._loaded(self.shared.row, j)):
            for i, known in enumerate(found):
                number = p.number(minus_product(number, block[q][i], known))
            found.append(p.number(scaled(number, by[q])))
            self.shared.across[ZERO, self._place(j, q)] = found[q]

    def _loaded(self, source: Matrix, i: Expr) -> list[Number]:
        """What is side by side in shared memory, in vectors."""
        p = self.p
        parts = [part for q in range(RANK) for part in source[ZERO, self._place(i, q)]]
        names = p.vector_loads(parts)
        return [tuple(names[i : i + p.components]) for i in range(0, len(names), p.components)]

    def _block(self) -> tuple[list[list[Number]], list[Expr]]:
        """L of the block on the diagonal, below its own, and the inverses of that."""
        p = self.p
        rows = [
            self._loaded(self.shared.column, p.let(ir.add(self.k, const(i)))) for i in range(RANK)
        ]
        pivots, block, by = self._factorised(rows, lambda pivot: over_root(p, pivot))
        if p.real is dt.float32:
            return block, by
        # subnormal numbers are zero to the approximation
        is_tiny = pivots[0] < p.constant(TINY)
        for pivot in pivots[1:]:
            is_tiny = is_tiny | (pivot < p.constant(TINY))
        found = [part for row in block for number in row for part in number] + by
        registers = [p.register(lanes=True) for _ in found]
        p.do(*ir.sets(registers, found))
        with p.when(p.let(is_tiny)):
            _, block, by = self._factorised(rows, lambda pivot: over_exact_root(p, pivot))
            p.do(*ir.sets(registers, [part for row in block for x in row for part in x] + by))
        names = iter(p.number(ir.reads(registers)))
        block = [[tuple(next(names) for _ in x) for x in row] for row in block]
        return block, list(names)

    def _factorised(
        self, rows: list[list[Number]], over_root: Callable[[Expr], Callable[[Expr], Expr]]
    ) -> tuple[list[Expr], list[list[Number]], list[Expr]]:
        """The pivots of a block, its L below the diagonal, and their inverse roots. A number is
        multiplied by a root before that is known in full, as the next pivot waits for it."""
        p = self.p
        pivots: list[Expr] = []
        block: list[list[Number]] = []
        roots: list[Callable[[Expr], Expr]] = []
        for i, numbers in enumerate(rows):
            row: list[Number] = []
            for q, number in enumerate(numbers[:i]):
                for j, known in enumerate(row):
                    number = p.number(minus_product(number, known, conjugate(block[q][j])))
                row.append(p.number([roots[q](part) for part in number]))
            pivot = numbers[i][0]
            for number in row:
                for part in number:
                    pivot = p.let(fma(-part, part, pivot))
            pivots.append(pivot)
            roots.append(over_root(pivot))
            block.append(row)
        return pivots, block, [p.let(root(p.constant(1.0))) for root in roots]

    def _substituted(
        self, numbers: Sequence[Number], block: Sequence[Sequence[Number]], by: Sequence[Expr]
    ) -> list[Number]:
        """A row of L, of what is left of that of the matrix."""
        p = self.p
        found: list[Number] = []
        for q, number in enumerate(numbers):
            for j, known in enumerate(found):
                number = p.number(minus_product(number, known, conjugate(block[q][j])))
            found.append(p.number(scaled(number, by[q])))
        return found

    def _keep(self, t: Thread, left: dict[int, list[Number]]) -> None:
        """The columns of L."""
        p = self.p
        with p.when(self._is_mine(t.y)):
            for r in range(self.tile, self.grid.rows):
                self.l[r, self.tile] = self._own(t.y, left[r])

    def _own(self, place: Expr, numbers: Sequence[Number]) -> Number:
        """That of the column or row that a thread holds."""
        found = numbers[0]
        for q in range(1, RANK):
            found = chosen(place.eq(self._thread(q)), numbers[q], found)
        return found

    def _invert(self, t: Thread, x: RegisterMatrix, left: dict[int, list[Number]]) -> None:
        p, tile = self.p, self.tile
        mine = self._is_mine(t.x)
        for c in range(tile + 1):
            across = self._loaded(self.shared.across, t.columns[c])
            own = p.number(chosen(mine, self._own(t.x, across), x[tile, c]))
            for q, number in enumerate(across):
                for r in range(tile, self.grid.rows):
                    x[r, c] = minus_product(x[r, c], left[r][q], number)
            x[tile, c] = chosen(mine, own, x[tile, c])


def write_lower(
    p: Program, grid: ThreadGrid, x: RegisterMatrix, out: Matrix, n: Expr, first: Expr = ZERO
) -> None:
    """A lower triangle, zeros above it, in columns of a result from `first` on."""
    with all_threads(p, grid) as t:
        for r in range(grid.rows):
            for c in range(grid.rows):
                i, j = t.rows[r], t.columns[c]
                with p.when(p.let((i < n) & (j < n))):
                    found = chosen(j <= i, x[r, c], zero(p)) if c <= r else zero(p)
                    out[i, ir.add(first, j)] = found
