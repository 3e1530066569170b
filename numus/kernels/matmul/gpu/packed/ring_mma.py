"""Split-K skinny GEMM with packed codes: a cp.async ring feeds mma.sync (as in Marlin, Frantar et
al. 2024), for 1 to 64 vectors of 16-bit floats.

The blocks of a cluster have a slice of k each, and the warps of a block parts of it: a warp keeps
its part of all vectors in registers as fragments, and meets with it one tile of 16 rows after the
other. Codes and the numbers of their groups come through a ring of tiles in shared memory, which
takes no registers: the ring of the next kernel is filled while this one runs. Sums of warps meet in
shared memory for every tile, those of a cluster at the end. Codes become floats as in
`mma_sync.py`.
"""

from __future__ import annotations

from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.gemv_mma_sync import pair
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.packed.gemv import QUAD
from numus.kernels.matmul.gpu.packed.mma_sync import (
    HALF_ROWS,
    MMA_ROWS,
    MMA_VECTORS,
    OFFSET,
    ONE_BITS,
    THREADS_ALONG_K,
    words_of_floats,
)
from numus.kernels.matmul.gpu.packed.ring import Ring
from numus.kernels.matmul.gpu.packed.ring_tile import PADDING, TUNING, WARP, RingTile
from numus.kernels.matmul.gpu.problem import Epilogue, VectorOperand
from numus.kernels.matmul.packed import Packing

ZERO = const(0)
LOAD = 8  # elements of a vector, of an access
_HALVES = 0x00010001  # a word of two equal halves, times one

Fragment = list[ir.Register]
Unit = tuple[int, int]  # 16 rows of a tile, a step of a warp


class RingMma:
    """A block's rows, part of k, and vectors."""

    def __init__(
        self,
        packing: Packing,
        tile: RingTile,
        ring: Ring,
        vectors: VectorOperand,
        count: tuple[Expr, int],  # of vectors: at run time, and known
        first_vector: Expr,
    ) -> None:
        p, t = self.packing, self.tile = packing, tile
        self.ring, self.vectors, self.first_vector = ring, vectors, first_vector
        self.dtype, (self.end_vector, self.count) = vectors.dtype, count
        self.first_chunk = ring.rank * t.span
        self.ld = t.tile_rows + PADDING
        self.stage_size = t.stage_vectors(self.count) * self.ld
        self.outputs = t.tile_rows * min(self.count, t.vectors * MMA_VECTORS)
        self.share = -(-t.tiles * self.outputs // t.splits)  # of a block of the cluster

        def scratch(name: str, size: int) -> ir.Buffer:
            return ir.Buffer(name, float32, "scratch", const(size), stored_once=True)

        self.stage = scratch("stage", t.warps * self.stage_size)
        self.gathered = scratch("gathered", self.share * t.splits)

        def registers(name: str, size: int, kind: DType) -> list[list[Fragment]]:
            return [
                [
                    [ir.Register(f"{name}{u}_{i}_{j}", kind, lanes=True) for j in range(size)]
                    for i in range(t.vectors)
                ]
                for u in range(t.steps)
            ]

        self.kept = registers("x", QUAD * p.values // 2, dt.uint32)
        self.ones = registers("ones", 4, float32)
        self.totals = [
            problem.register_tile(t.vectors, 4, float32, f"total{r}_") for r in range(t.rows)
        ]

    @property
    def scratch(self) -> list[ir.Buffer]:
        of_cluster = [self.gathered] if self.tile.splits > 1 else []
        return [*self.ring.scratch, self.stage, *of_cluster]

    # -- a block ----------------------------------------------------------------------------------

    def emit(self, epilogue: Epilogue) -> list[Stmt]:
        """After the first loads. The epilogue takes (batch, vector, row, value)."""
        t, out = self.tile, list[Stmt]()
        x = self.vectors.aligned
        out += problem.when(x, partial(self._keep, True))
        out += problem.when(~x, partial(self._keep, False))
        if t.splits > 1:
            out.append(ir.ClusterBarrier(begun=True))
        tile = ir.var("tile")
        body = self._tile(tile, epilogue)
        out.append(ir.For(tile, ZERO, const(t.tiles), "serial", body))
        return out if t.splits == 1 else [*out, *self._combine(epilogue)]

    def _tile(self, tile: Expr, epilogue: Epilogue) -> list[Stmt]:
        """Products of a tile, whose place in the ring is filled with a later one."""
        t, lane = self.tile, ir.var("lane")
        slot = tile % t.stages if t.tiles > t.stages else tile
        out: list[Stmt] = [
            ir.AsyncWait(t.stages - 1),
            ir.For(lane, ZERO, const(t.threads), "lanes", self._products(lane, tile, slot)),
        ]
        if t.tiles > t.stages:
            after = tile + t.stages
            out.append(ir.If(after < t.tiles, self.ring.fill(after, slot, "next")))
        out.append(ir.AsyncCommit())
        lane, total = ir.var("sum_lane"), ir.var("sum", float32)
        vector, row = divmod(lane, t.tile_rows)
        at = vector * self.ld + row
        parts = [ir.load(self.stage, at + w * self.stage_size) for w in range(t.warps)]
        body: list[Stmt] = [ir.Let(total, _tree(parts))]
        n, v = self.ring.first_row + tile * t.tile_rows + row, self.first_vector + vector
        if t.splits > 1:
            rank, own = divmod(tile * self.outputs + lane, self.share)
            place = self.ring.rank * self.share + own
            body.append(ir.ClusterStore(self.gathered, rank, place, total))
        else:
            exists = n < self.ring.rows
            exists = exists & (v < self.end_vector) if t.vector_blocks > 1 else exists
            body.append(ir.If(exists, epilogue(ZERO, v, n, total)))
        return [*out, ir.For(lane, ZERO, const(self.outputs), "lanes", body)]

    def _combine(self, epilogue: Epilogue) -> list[Stmt]:
        """Sums over the blocks of a cluster, a share of them by each."""
        t, lane, total = self.tile, ir.var("share_lane"), ir.var("whole", float32)
        first = self.ring.rank * self.share
        parts = [ir.load(self.gathered, lane + s * self.share) for s in range(t.splits)]
        which = first + lane
        tile, rest = which // self.outputs, which % self.outputs
        vector, row = divmod(rest, t.tile_rows)
        n, v = self.ring.first_row + tile * t.tile_rows + row, self.first_vector + vector
        exists = (tile < t.tiles) & (n < self.ring.rows) & (v < self.end_vector)
        body = [ir.Let(total, _tree(parts)), ir.If(exists, epilogue(ZERO, v, n, total))]
        return [
            ir.ClusterBarrier(),
            ir.For(lane, ZERO, const(self.share), "lanes", body),
        ]

    # -- vectors ----------------------------------------------------------------------------------

    def _step(self, lane: Expr, u: int) -> Expr:
        """A step of a warp, in its block."""
        return lane // WARP + u * self.tile.warps

    def _keep(self, vectorised: bool) -> list[Stmt]:
        """A warp's part of the vectors as pairs of each word's values, and their sums."""
        t, p = self.tile, self.packing
        tag = "" if vectorised else "slow_"
        lane, body, mmas = ir.var(f"{tag}vector_lane"), list[Stmt](), list[Stmt]()
        last, apart = self.end_vector - 1, p.values // 2
        count = QUAD * p.values
        for u in range(t.steps):
            at = self.first_chunk + self.ring.chunk(lane, self._step(lane, u))
            end = const(self.ring.chunks - QUAD)
            begin = at if self.ring.whole else ir.minimum(at, end)
            for i in range(t.vectors):
                own = self.first_vector + (lane % WARP // THREADS_ALONG_K + i * MMA_VECTORS)
                mn, values = ir.minimum(own, last), list[Expr]()
                for part in range(0, count, LOAD):
                    how = (LOAD, f"{tag}load{u}_{i}_{part}", vectorised)
                    first = begin * p.values + part
                    values += self.vectors.load_along_k(body, ZERO, mn, first, *how)
                if not self.ring.whole:
                    exists, none = at < self.ring.chunks, zero(self.dtype)
                    values = [ir.select(exists, x, none) for x in values]
                found = [
                    pair(values[q + j], values[q + j + apart])
                    for q in range(0, count, p.values)
                    for j in range(apart)
                ]
                mmas += ir.sets(self.kept[u][i], found)
        for u in range(t.steps):
            for i in range(t.vectors):
                mmas += self._ones(u, i)
        return [ir.For(lane, ZERO, const(t.threads), "lanes", [*body, *mmas])]

    def _ones(self, u: int, i: int) -> list[Stmt]:
        """Sums of the vectors over a step, by MMAs with ones."""
        one = [const(ONE_BITS[self.dtype] * _HALVES, dt.uint32)] * 4
        registers, kept = self.ones[u][i], ir.reads(self.kept[u][i])
        out: list[Stmt] = list(ir.sets(registers, [const(0.0, float32)] * len(registers)))
        for j in range(0, len(kept), 2):
            out.append(ir.MmaSync(registers, one, kept[j : j + 2], self.dtype))
        return out

    # -- products ---------------------------------------------------------------------------------

    def _products(self, lane: Expr, tile: Expr, slot: Expr) -> list[Stmt]:
        """Of a tile with a warp's part of the vectors, and their sums to shared memory."""
        t, out = self.tile, list[Stmt]()
        for total in self.totals:
            out += [ir.Set(c, const(0.0, float32)) for own in total for c in own]
        units = [(r, u) for u in range(t.steps) for r in range(t.rows)]
        at_once = max(1, TUNING.chains // t.vectors)
        for begin in range(0, len(units), at_once):
            out += self._units(lane, tile, slot, units[begin : begin + at_once])
        warp, thread = divmod(lane, WARP)
        row, vector = thread // THREADS_ALONG_K, thread % THREADS_ALONG_K * 2
        base = warp * self.stage_size
        stores: list[Stmt] = []
        for r, total in enumerate(self.totals):
            for i, own in enumerate(total):
                for c, register in enumerate(own):
                    if i * MMA_VECTORS + c % 2 < self.count:
                        at = (vector + (i * MMA_VECTORS + c % 2)) * self.ld
                        at = base + at + row + (r * MMA_ROWS + c // 2 * HALF_ROWS)
                        stores.append(ir.Store(self.stage, at, ir.read(register)))
        if self.count <= 2:
            return [*out, ir.If((lane % THREADS_ALONG_K).eq(0), stores)]
        return out + stores

    def _units(self, lane: Expr, tile: Expr, slot: Expr, units: list[Unit]) -> list[Stmt]:
        """Steps of tiles of 16 rows, whose MMAs take turns."""
        out: list[Stmt] = []
        words = [self._words(out, lane, slot, *unit) for unit in units]
        numbers = [self._numbers(out, lane, tile, slot, *unit) for unit in units]
        sums = [
            [
                [ir.Register(f"sum{u}_{r}_{i}_{c}", float32, lanes=True) for c in range(4)]
                for i in range(self.tile.vectors)
            ]
            for r, u in units
        ]
        every = (c for own in sums for fragment in own for c in fragment)
        out += [ir.Set(c, const(0.0, float32)) for c in every]
        for q in range(QUAD):
            out += self._multiply(units, [[w[q] for w in both] for both in words], sums, q)
        for unit, own_numbers, own_sums in zip(units, numbers, sums, strict=True):
            out += self._scaled(own_numbers, own_sums, *unit)
        return out

    def _words(self, out: list[Stmt], lane: Expr, slot: Expr, r: int, u: int) -> list[list[Expr]]:
        """Four words of each of a thread's two rows."""
        step = self._step(lane, u)
        return [
            self.ring.words(out, slot, self._row(lane, r, half), lane, step, f"{u}_{r}_{half}")
            for half in range(2)
        ]

    def _numbers(
        self, out: list[Stmt], lane: Expr, tile: Expr, slot: Expr, r: int, u: int
    ) -> list[list[Expr]]:
        """Of each of a thread's two rows, the numbers of a group as they are in memory."""
        group, found = self.ring.group(self._step(lane, u)), []
        for half in range(2):
            place = tile, slot, self._row(lane, r, half), group
            found.append(self.ring.stored_numbers(out, *place, f"{u}_{r}_{half}"))
        return found

    def _row(self, lane: Expr, r: int, half: int) -> Expr:
        return lane % WARP // THREADS_ALONG_K + (r * MMA_ROWS + half * HALF_ROWS)

    def _multiply(
        self,
        units: list[Unit],
        words: list[list[Expr]],  # of a unit's two rows
        sums: list[list[Fragment]],
        q: int,
    ) -> list[Stmt]:
        """MMAs of one of a thread's words of each row."""
        p, out = self.packing, list[Stmt]()
        per_word = p.values // 2
        found = [[words_of_floats(p, x, 0, self.dtype) for x in both] for both in words]
        for j in range(0, per_word, 2):
            for (_, u), (low, high), fragments in zip(units, found, sums, strict=True):
                codes = [low[j], high[j], low[j + 1], high[j + 1]]
                at = q * per_word + j
                for i, into in enumerate(fragments):
                    x = ir.reads(self.kept[u][i][at : at + 2])
                    out.append(ir.MmaSync(into, codes, x, self.dtype))
        return out

    def _scaled(
        self, numbers: list[list[Expr]], sums: list[Fragment], r: int, u: int
    ) -> list[Stmt]:
        """Sums of a step without what was added to the codes, scaled, to the totals."""
        out: list[Stmt] = []
        for half, stored in enumerate(numbers):
            tag = f"{u}_{r}_{half}"
            scale, middle = (ir.var(f"{name}{tag}", float32) for name in ("scale", "zero"))
            pairs = zip(self.ring.matrix.numbers, stored, strict=True)
            value, *zeros = (number.decoded(x) for number, x in pairs)
            point = zeros[0] if zeros else const(float(self.packing.zero), float32)
            out += [ir.Let(scale, value), ir.Let(middle, point + OFFSET)]
            for i, total in enumerate(self.totals[r]):
                for c in range(2 * half, 2 * half + 2):
                    ones = ir.read(self.ones[u][i][c % 2])
                    value = ir.fma(-middle, ones, ir.read(sums[i][c]))
                    out.append(ir.Set(total[c], ir.fma(value, scale, ir.read(total[c]))))
        return out


def _tree(xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        pairs = zip(xs[::2], xs[1::2], strict=False)
        xs = [a + b for a, b in pairs] + xs[len(xs) & ~1 :]
    return xs[0]
