"""Gaussian elimination with partial pivoting of a tall panel, in registers of a cluster of a GPU.

A thread holds whole rows, which stay where they are: each knows the position that LAPACK's swaps
would have moved it to. Columns rotate every few steps, so that those of the next pivots are the
first, and the code of these steps the same. Pivots are maxima of bits of numbers, over warps, CTAs
and the cluster; every CTA offers its best row, and all read that of the winner.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const, select
from numus.kernels.factor.program import (
    INT,
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Read,
    chosen,
    division,
    magnitude,
    minus_product,
    real,
    zero,
)

WARP = 32


@dataclass(frozen=True)
class PanelGrid:
    """`ctas` of `threads`, each of which holds `rows` rows of `width` columns."""

    ctas: int
    threads: int
    rows: int
    width: int


@dataclass(frozen=True)
class PanelMemory:
    """Shared memory: the best pivot of each warp, its key and what its place is above; the best of
    a CTA with its row, in turns of two; those of all CTAs."""

    keys: ir.Buffer
    places: ir.Buffer
    own: ir.Buffer
    all: ir.Buffer


UNROLL = 4  # columns, after which they rotate by as many
TAIL = 4  # words beside a row, so that rows begin at vectors: the key and the place are in two
LAST = (1 << 31) - 1  # a place below all others


class PanelElimination:
    """Of an (m, n) matrix; `rank` is the number of a CTA."""

    def __init__(
        self,
        p: Program,
        grid: PanelGrid,
        rank: Expr,
        extents: tuple[Expr, Expr],
        memory: PanelMemory,
    ) -> None:
        self.p, self.grid, self.rank, self.memory = p, grid, rank, memory
        self.m, self.n = extents
        self.threads, self.width = grid.threads, grid.width
        self.steps = p.let(ir.minimum(*extents))
        self.unroll = min(UNROLL, grid.width)
        last = ir.add(self.steps, const(self.unroll - 1))
        self.turns = p.let(ir.idiv(last, const(self.unroll)))
        self.first = p.let(ir.mul(rank, const(grid.threads)))
        self.key = dt.int32 if p.real.itemsize == 4 else dt.int64
        self.rows = [
            [[p.register(lanes=True) for _ in range(p.components)] for _ in range(grid.width)]
            for _ in range(grid.rows)
        ]
        # where rows are after the swaps so far; -1 beyond the matrix
        self.places = [p.register(INT, lanes=True) for _ in range(grid.rows)]
        self.above = p.register(INT, lanes=True)  # the best place of a CTA, negated
        self.swap = p.register(INT, lanes=True)  # thread k: where the row of step k was

    def _number(self, thread: Expr, r: int) -> Expr:
        """Of a row."""
        before = ir.add(self.first, const(r * self.threads * self.grid.ctas))
        return self.p.let(ir.add(thread, before))

    def load(self, a: Read) -> None:
        p = self.p
        with p.lanes(ZERO, const(self.threads)) as thread:
            for r, (row, place) in enumerate(zip(self.rows, self.places, strict=True)):
                i = self._number(thread, r)
                p.do(ir.Set(place, const(-1, INT)), ir.Set(self.swap, const(0, INT)))
                for x in row:
                    p.do(*ir.sets(x, zero(p)))
                with p.when(p.let(i < self.m)):
                    p.do(ir.Set(place, i.cast(INT)))
                    for c, x in enumerate(row):
                        with p.when(p.let(const(c) < self.n)):
                            p.do(*ir.sets(x, a(i, const(c))))

    def eliminate(self) -> None:
        """Nothing is stored in global memory meanwhile: barriers of a cluster would wait for it."""
        p = self.p
        with p.loop(ZERO, self.turns) as turn:
            first = p.let(ir.mul(turn, const(self.unroll)))
            for u in range(self.unroll):
                k = p.let(ir.add(first, const(u)))
                with p.when(p.let(k < self.steps)):
                    self._eliminate(k, u, first.cast(INT))
            more = p.let(ir.add(turn, ONE) < self.turns)
            with p.when(more), p.lanes(ZERO, const(self.threads)):
                for row in self.rows:
                    old = [p.number(ir.reads(x)) for x in row]
                    for x, value in zip(row, [*old[self.unroll :], *old], strict=False):
                        p.do(*ir.sets(x, value))
        if self.grid.ctas > 1:  # until others have read the last row
            p.do(ir.ClusterBarrier())

    def _eliminate(self, k: Expr, u: int, first: Expr) -> None:
        """Column k, which is in register u; in those before are `first` fewer columns of L."""
        p, memory, count = self.p, self.memory, record_words(self.p, self.width)
        step = p.let(k.cast(INT))
        turn = const(u % 2) if self.unroll > 1 else p.let(ir.irem(k, const(2)))
        start = ir.mul(turn, const(count))
        self._share_best_of_warps(step, u)
        self._share_best_of_cta(u, first, start)
        if self.grid.ctas > 1:
            p.do(ir.ClusterGather(memory.all, memory.own, count, start, in_turns=True))
        with p.lanes(ZERO, const(self.threads)) as thread:
            place, at = p.let(-ir.read(self.above)), start
            if self.grid.ctas > 1:
                place, at = self._best_of_all(thread)
            with p.when(p.let(thread.eq(k))):
                p.do(ir.Set(self.swap, place))
            self._update(step, u, place, at)

    def _share_best_of_warps(self, step: Expr, u: int) -> None:
        """The largest element of a column, of rows not yet chosen, the first of such."""
        p = self.p
        with p.lanes(ZERO, const(self.threads)) as thread:
            key, above = const(-1, self.key), const(-LAST, INT)
            for row, own in zip(self.rows, self.places, strict=True):
                size = p.let(magnitude(tuple(ir.reads(row[u]))))
                size = p.let(select(size.eq(size), size, p.constant(float("inf"))))  # NaN wins
                free = p.let(ir.read(own) >= step)
                found = p.let(select(free, size.bitcast(self.key), const(-1, self.key)))
                place = p.let(-ir.read(own))
                better = p.let((found > key) | (found.eq(key) & (place > above) & free))
                key, above = p.let(select(better, found, key)), p.let(select(better, place, above))
            key, above = self._best(key, above)
            with p.when(p.let(ir.irem(thread, const(WARP)).eq(ZERO))):
                warp = p.let(ir.idiv(thread, const(WARP)))
                p.do(ir.Store(self.memory.keys, warp, key))
                p.do(ir.Store(self.memory.places, warp, above))

    def _best(self, key: Expr, above: Expr) -> tuple[Expr, Expr]:
        """Of a warp."""
        p = self.p
        best = p.let(ir.lanes_max(key))
        above = p.let(select(key.eq(best), above, const(-LAST, INT)))
        return best, p.let(ir.lanes_max(above))

    def _share_best_of_cta(self, u: int, first: Expr, start: Expr) -> None:
        """Its row, without columns of L that follow the others."""
        p, memory, count = self.p, self.memory, self.p.components
        with p.lanes(ZERO, const(self.threads)) as thread:
            lane = ir.minimum(ir.irem(thread, const(WARP)), const(self.threads // WARP - 1))
            lane = p.let(lane)
            key, above = (p.let(ir.load(b, lane)) for b in (memory.keys, memory.places))
            key, above = self._best(key, above)
            p.do(ir.Set(self.above, above))
            for row, own in zip(self.rows, self.places, strict=True):
                with p.when(p.let((-ir.read(own)).eq(above))):
                    for c in range(u // UNROLL * UNROLL, self.width):
                        group = const(self.width - c // self.unroll * self.unroll, INT)
                        exists = p.let(first < group)
                        number = chosen(exists, tuple(ir.reads(row[c])), zero(p))
                        for q, part in enumerate(p.number(number)):
                            at = ir.add(start, const(c * count + q))
                            p.do(ir.Store(memory.own, at, part))
            if self.grid.ctas == 1:
                return
            with p.when(p.let(thread.eq(ZERO))):
                end = ir.add(start, const(self.width * count))
                p.do(ir.Store(memory.own, end, key.bitcast(p.real)))
                place = p.let(above.cast(self.key)).bitcast(p.real)
                p.do(ir.Store(memory.own, ir.add(end, ONE), place))

    def _best_of_all(self, thread: Expr) -> tuple[Expr, Expr]:
        """The place of the pivot, and where its row is in shared memory."""
        p, size = self.p, record_words(self.p, self.width)
        lane = ir.irem(thread, const(WARP))
        lane = p.let(ir.minimum(lane, const(self.grid.ctas - 1)))
        end = ir.add(ir.mul(lane, const(size)), const(self.width * p.components))
        key = p.let(ir.load(self.memory.all, end).bitcast(self.key))
        own = p.let(ir.load(self.memory.all, ir.add(end, ONE)).bitcast(self.key).cast(INT))
        _, above = self._best(key, own)
        winner = p.let(select(own.eq(above), lane.cast(INT), const(0, INT)))
        winner = p.let(ir.lanes_max(winner))
        return p.let(-above), p.let(ir.mul(winner.cast(ir.INDEX), const(size)))

    def _update(self, step: Expr, u: int, pivot: Expr, at: Expr) -> None:
        """Both rows swapped; those not yet chosen less their multiples of the pivot's."""
        p = self.p
        pivot_row = self._pivot_row(at, u // UNROLL * UNROLL)
        singular = p.let(magnitude(pivot_row[u]).eq(0.0))
        quotient = division(p, pivot_row[u])
        for row, place in zip(self.rows, self.places, strict=True):
            own = p.let(ir.read(place))
            moved = select(own.eq(step), pivot, own)
            p.do(ir.Set(place, select(own.eq(pivot), step, moved)))
            with p.when(p.let(ir.read(place) > step)):
                factor = quotient(tuple(ir.reads(row[u])))
                factor = p.number(chosen(singular, zero(p), factor))
                p.do(*ir.sets(row[u], factor))
                for c in range(u + 1, self.width):
                    value = minus_product(tuple(ir.reads(row[c])), factor, pivot_row[c])
                    p.do(*ir.sets(row[c], value))

    def _pivot_row(self, at: Expr, first: int) -> dict[int, Number]:
        """From a column on, in vectors."""
        p, count = self.p, self.p.components
        source = self.memory.all if self.grid.ctas > 1 else self.memory.own
        places = range(first * count, self.width * count)
        names = p.vector_loads([ir.load(source, ir.add(at, const(q))) for q in places])
        return {
            first + c: tuple(names[c * count : (c + 1) * count]) for c in range(self.width - first)
        }

    def write(self, out: Matrix, column: Expr) -> None:
        """L and U, in a column the numbers of rows in their order, and in the one after it the
        swaps: none after the last step."""
        p = self.p
        shifted = p.let(ir.mul(ir.sub(self.turns, ONE), const(self.unroll)))
        with p.lanes(ZERO, const(self.threads)) as thread:
            for r, (row, place) in enumerate(zip(self.rows, self.places, strict=True)):
                i = self._number(thread, r)
                with p.when(p.let(i < self.m)):
                    to = p.let(ir.read(place).cast(ir.INDEX))
                    for c, x in enumerate(row):
                        j = p.let(ir.irem(ir.add(const(c), shifted), const(self.width)))
                        with p.when(p.let(j < self.n)):
                            found: Number = tuple(ir.reads(x))
                            out[to, j] = found
                    out[to, column] = real(p, i.cast(p.real))
                    swap = p.constant(0.0)
                    if r == 0:  # all steps are of the first CTA's threads
                        found_swap = ir.read(self.swap).cast(p.real)
                        swap = p.let(select(i < self.steps, found_swap, swap))
                    out[i, p.let(ir.add(column, ONE))] = real(p, swap)


def record_words(p: Program, width: int) -> int:
    """Of a row with its key and place."""
    return width * p.components + TAIL
