"""FlashAttention-3 backward (Shah et al. 2024): all gradients by one pass, warp-specialised.

A block keeps 128 keys and values, and the gradients of them; a producer warpgroup copies the
queries, and the cotangents of their results, ahead. Scores are recomputed once, transposed: P' and
dS' are operands in registers for dv and dk, and dS goes through shared memory for dq, of which each
consumer warpgroup has half of the columns.

The parts of dq are added up in memory, in float32 and in the order of the keys from the last one
on: each block has its turn when the flag of the block before is set. Blocks start in that order, so
that none waits for one that has not begun; under a causal mask they come to a tile of queries one
after the other by themselves. A second kernel rounds dq.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import BwdOperands, Sizes, Tiling
from numus.kernels.attention.gpu.wgmma_backward import BackwardKernel
from numus.kernels.attention.gpu.wgmma_forward import LOG2E, STAGES, ZERO_F32, accumulators
from numus.kernels.common import smem_tiles
from numus.kernels.common.smem_tiles import SWIZZLE_COLUMNS, ZERO
from numus.target import Target

_FULL, _EMPTY, _TURN, _ADDED = (i * STAGES for i in range(4))  # first mbarriers
_RESIDENT = 4 * STAGES
CONSUMERS = 2 * ir.WARPGROUP


@dataclass(frozen=True, slots=True)
class FusedTuning:
    """Measured on one H200."""

    rows: int = 128  # keys of a block
    block: int = 64  # queries of an iteration
    head_dims: tuple[int, int] = (65, 128)  # of smaller ones, several blocks of two kernels overlap
    min_length: int = 256  # of queries and keys
    # Blocks of an SM: the longest ones start last, and without a causal mask the first ones of a
    # matrix begin one after the other.
    min_blocks: tuple[int, int] = (8, 4)  # without a causal mask, with one
    # Of a thread, by the most columns of heads: consumers, producers. With fewer ptxas would wait
    # for every wgmma; what producers of large heads have no room for is in local memory.
    registers: tuple[tuple[int, tuple[int, int]], ...] = ((64, (224, 56)), (128, (240, 24)))


TUNING = FusedTuning()


def choose(
    target: Target,
    batch: int,
    causal: bool,
    queries: int,
    keys: int,
    head_dim: int,
    value_dim: int,
) -> Tiling | None:
    """The tile for these heads, if queries and keys are long enough and blocks many enough."""
    if not target.forward_progress or min(queries, keys) < TUNING.min_length:
        return None
    if batch * -(-keys // TUNING.rows) < TUNING.min_blocks[causal] * target.num_cores:
        return None
    least, most = TUNING.head_dims
    if not least <= max(head_dim, value_dim) <= most or not min(head_dim, value_dim):
        return None
    head_dim, value_dim = (smem_tiles.round_up(n, smem_tiles.MMA_K) for n in (head_dim, value_dim))
    threads = CONSUMERS + ir.WARPGROUP
    tiling = Tiling(threads, TUNING.rows, TUNING.block, head_dim, value_dim)
    return tiling if _shared_bytes(tiling) <= target.shared_bytes else None


def _shared_bytes(t: Tiling) -> int:
    nbytes = smem_tiles.stage_bytes(t.rows) + STAGES * 2 * 4 * t.block
    nbytes += 2 * smem_tiles.tile_bytes(t.rows, t.block) + (_RESIDENT + 1) * 8
    for n in (t.head_dim, t.value_dim):
        nbytes += smem_tiles.tile_bytes(t.rows, n) + STAGES * smem_tiles.tile_bytes(t.block, n)
    return nbytes


def dq_columns(t: Tiling) -> int:
    """Columns of dq of a warpgroup: half of them, rounded up."""
    half = SWIZZLE_COLUMNS // 2
    return half if t.head_dim <= SWIZZLE_COLUMNS else SWIZZLE_COLUMNS


def dq_elements(t: Tiling) -> int:
    """Of a tile of queries, in the order of the registers of threads."""
    return t.block * 2 * dq_columns(t)


class FusedKernel(BackwardKernel):
    def __init__(
        self,
        tiling: Tiling,
        s: Sizes,
        dtype: DType,
        g: Expr,
        o: BwdOperands,
        dq: ir.Buffer,
        flags: ir.Buffer,
    ) -> None:
        super().__init__(tiling, s, dtype, g, o)
        self.sums, self.flags = dq, flags
        self.number = s.tasks - 1 - g % s.tasks  # of the block of keys
        self.first = self.number * tiling.rows
        visible = ir.minimum(s.keys, s.queries) if o.causal else s.keys
        self.end = ir.minimum(self.first + tiling.rows, visible)
        self.query_tiles = (s.queries + (tiling.block - 1)) // tiling.block
        size = tiling.rows * tiling.block
        self.ds = ir.Buffer("ds", dtype, "scratch", const(STAGES * size))
        self.ds_words = ir.Buffer("ds_words", dt.int32, "scratch", const(STAGES * size // 2))
        self.ds_words.aliases = self.ds
        barriers = ir.Buffer("barriers", dt.int64, "scratch", const(_RESIDENT + 1))
        copies, groups = 2 * ir.WARPGROUP, CONSUMERS // ir.WARPGROUP
        arrivals = [n for n in (copies, groups, 1, groups) for _ in range(STAGES)]
        self.barriers = ir.Mbarriers(barriers, (*arrivals, copies))
        self.scratch += [self.ds, self.ds_words, barriers]
        self.dq = accumulators("dq", dq_columns(tiling))
        words = range(tiling.block // 4)
        self.p_words, self.ds_fragments = (
            [ir.Register(f"{name}{i}", dt.int32, lanes=True) for i in words] for name in ("p", "w")
        )

    def body(self) -> list[Stmt]:
        p, start = self.tiling, ir.var("first_tile")
        first_tile = self.first // p.block if self.o.causal else ZERO
        count = ir.var("tiles")
        roles = ir.WarpRoles(
            self._consume(start, count),
            [*self._produce(start, count), ir.AsyncCommit(), ir.AsyncWait(0)],
            self.barriers,
            next(own for most, own in TUNING.registers if max(p.head_dim, p.value_dim) <= most),
        )
        return [
            ir.Let(self.factor, self.o.scale * const(LOG2E, float32)),
            ir.Let(start, ir.minimum(first_tile, self.query_tiles)),
            ir.Let(count, self.query_tiles - start),
            roles,
        ]

    def _lanes(self, lane: Expr, body: list[Stmt]) -> Stmt:
        return ir.For(lane, ZERO, const(CONSUMERS), "lanes", body)

    def _arrive(self, first: int, i: Expr, *, copies: bool = False) -> Stmt:
        return ir.Arrive(self.barriers, i % STAGES + first, copies)

    def _await(self, first: int, i: Expr, *, filled: bool = True) -> Stmt:
        parity = i // STAGES % 2
        return ir.AwaitPhase(self.barriers, i % STAGES + first, parity if filled else 1 - parity)

    # -- copies, and the order of sums ------------------------------------------------------------

    def _produce(self, start: Expr, count: Expr) -> list[Stmt]:
        i = ir.var("copied")
        out: list[Stmt] = []
        for name in self.resident:
            out += self.tiles[name].load("all", ir.WARPGROUP, self.n, self.first, self.end)
        out.append(ir.Arrive(self.barriers, const(_RESIDENT), True))
        sources: list[smem_tiles.SmemTile | smem_tiles.SmemVector] = [
            *(self.tiles[name] for name in self.streamed),
            *self.vectors.values(),
        ]
        first, stage = (start + i) * self.tiling.block, i % STAGES
        body: list[Stmt] = [self._await(_EMPTY, i, filled=False)]
        for source in sources:
            where = (self.n, first, self.streamed_rows, stage)
            body += source.load("next", ir.WARPGROUP, *where)
        body += [
            self._arrive(_FULL, i, copies=True),
            ir.If(i > 1, self._publish("earlier", start, i - 2)),
            ir.If(i > 0, self._give_turn("next", start, i - 1)),
        ]
        return [
            *out,
            ir.For(i, ZERO, count, "serial", body),
            ir.If(count > 1, self._publish("late", start, count - 2)),
            ir.If(count > 0, self._give_turn("last", start, count - 1)),
            ir.If(count > 0, self._publish("last", start, count - 1)),
        ]

    def _flag(self, tile: Expr, number: Expr) -> Expr:
        return (self.n * self.query_tiles + tile) * self.s.tasks + number

    def _last_number(self, tile: Expr) -> Expr:
        """The last block of keys that queries of a tile see: it begins their sum."""
        last, p = self.s.tasks - 1, self.tiling
        if not self.o.causal:
            return last
        return ir.minimum(last, (tile * p.block + (p.block - 1)) // p.rows)

    def _give_turn(self, tag: str, start: Expr, i: Expr) -> list[Stmt]:
        """When the sums of the i-th tile have all parts of later keys."""
        lane, tile = ir.var(f"{tag}_waiting"), start + i
        waits = (self.number < self._last_number(tile)).cast(dt.int64)
        found = ir.var(f"{tag}_flag", dt.uint32)
        read = ir.FlagRead(self._flag(tile, self.number + 1), 1, waits, [found])
        spin = ir.SpinWait(self.flags, [read], acquire=True)
        return [
            ir.For(lane, ZERO, const(ir.WARPGROUP), "lanes", [spin]),
            self._arrive(_TURN, i),
        ]

    def _publish(self, tag: str, start: Expr, i: Expr) -> list[Stmt]:
        """The i-th tile's part is in its sum."""
        lane = ir.var(f"{tag}_publishing")
        one = const(1, dt.uint32)
        flag = ir.SetFlag(self.flags, self._flag(start + i, self.number), one, release=True)
        return [
            self._await(_ADDED, i),
            ir.For(lane, ZERO, const(ir.WARPGROUP), "lanes", [ir.If(lane.eq(0), [flag])]),
        ]

    # -- products ---------------------------------------------------------------------------------

    def _consume(self, start: Expr, count: Expr) -> list[Stmt]:
        i = ir.var("step")
        out: list[Stmt] = [
            *(ir.Set(x, ZERO_F32) for acc in self.gradients.values() for x in acc),
            ir.AwaitPhase(self.barriers, const(_RESIDENT), ZERO),
            ir.For(i, ZERO, count, "serial", self._step(start + i, i)),
            ir.AsyncWait(0),
            ir.If(count > 0, [self._arrive(_ADDED, count - 1)]),
        ]
        for name in reversed(self.gradients):
            out += self._epilogue(name, CONSUMERS)
        return out

    def _step(self, tile: Expr, i: Expr) -> list[Stmt]:
        p, kind = self.tiling, self.ds.dtype
        stage, first = i % STAGES, tile * p.block
        k, v, q, g = (self.tiles[name] for name in "kvqg")
        dk, dv = self.gradients["k"], self.gradients["v"]
        masked = self._needs_mask(first)
        ds = ir.MmaOperand(self.ds, stage * (p.rows * p.block), False)
        columns = dq_columns(p)
        return [
            self._await(_FULL, i),
            ir.AsyncFence(),
            ir.Wgmma(self.scores, k.k_major(), q.k_major(stage), p.block, p.head_dim, True),
            ir.Wgmma(self.dp, v.k_major(), g.k_major(stage), p.block, p.value_dim, True),
            ir.WgmmaWait(self.scores, 1),
            ir.If(masked, [self._probabilities("masked", first, stage)]),
            ir.If(~masked, [self._probabilities("unmasked", first, stage)]),
            ir.PackFragments(self.p_words, self.scores, kind),
            ir.Wgmma(dv, self.p_words, g.mn_major(stage), 2 * len(dv), p.block),
            ir.WgmmaWait(self.dp, 1),
            self._score_gradients(stage),
            ir.PackFragments(self.ds_fragments, self.dp, kind),
            self._store_ds(stage),
            ir.AsyncWait(0, fence=True),  # all threads have added their part of the tile before
            ir.If(i > 0, [self._arrive(_ADDED, i - 1)]),
            ir.Wgmma(self.dq, ds, k.mn_major(), columns, p.rows, True, by_columns=True),
            ir.Wgmma(dk, self.ds_fragments, q.mn_major(stage), 2 * len(dk), p.block),
            ir.WgmmaWait([*self.dq, *dv], 1),
            self._await(_TURN, i),
            *self._add(tile),
            ir.WgmmaWait([*dk, *dv], 0),
            self._arrive(_EMPTY, i),
        ]

    def _visible(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        """Also keys beyond the last one are masked: they are rows of dq's products."""
        query = first + ir.accumulator_element(lane, 0)[1]
        limits, starts = [], []
        for h in range(2):
            key = self.first + ir.accumulator_element(lane, 2 * h)[0]
            left = select(key < self.s.keys, self.s.queries - query, ZERO)
            limits.append(left.cast(dt.int32))
            starts.append((key - query).cast(dt.int32))

        def visible(i: int) -> Expr:
            at, h = const(i // 4 * 8 + i % 2, dt.int32), i // 2 % 2
            inside = at < limits[h]
            return inside & (at >= starts[h]) if self.o.causal else inside

        return visible

    def _needs_mask(self, first: Expr) -> Expr:
        return super()._needs_mask(first) | (self.first + self.tiling.rows > self.s.keys)

    def _store_ds(self, stage: Expr) -> Stmt:
        """dS', as an operand whose k are the keys."""
        lane, p = ir.var("ds_thread"), self.tiling
        body: list[Stmt] = []
        for i, word in enumerate(self.ds_fragments):
            key, query = ir.accumulator_element(lane, 2 * i)
            vector = (query // smem_tiles.VECTOR) ^ (key % smem_tiles.VECTOR)
            at = key * p.block + vector * smem_tiles.VECTOR + query % smem_tiles.VECTOR
            to = stage * (p.rows * p.block // 2) + at // 2
            body.append(ir.Store(self.ds_words, to, ir.read(word)))
        return self._lanes(lane, body)

    def _add(self, tile: Expr) -> list[Stmt]:
        """A part of dq to its sum: the first one is stored."""
        base = (self.n * self.query_tiles + tile) * dq_elements(self.tiling)
        begins = self.number.eq(self._last_number(tile))
        lanes = ir.var("begins_sum"), ir.var("adds")
        stores: list[Stmt] = []
        adds: list[Stmt] = []
        for i, x in enumerate(self.dq):
            at = base + i * CONSUMERS
            stores.append(ir.Store(self.sums, at + lanes[0], ir.read(x)))
            adds.append(ir.AtomicAdd(self.sums, at + lanes[1], ir.read(x)))
        return [
            ir.If(begins, [self._lanes(lanes[0], stores)]),
            ir.If(~begins, [self._lanes(lanes[1], adds)]),
        ]


@dataclass(slots=True)
class RoundKernel:
    """dq of a tile of queries from its sum: a block has the threads and registers that added."""

    tiling: Tiling
    s: Sizes
    block: Expr  # number
    o: BwdOperands
    sums: ir.Buffer
    scratch: list[ir.Buffer] = field(default_factory=list)

    def body(self) -> list[Stmt]:
        t, width = self.tiling, dq_columns(self.tiling)
        n, tile = self.block // self.s.tasks, self.block % self.s.tasks
        stage = smem_tiles.stage_buffer(CONSUMERS // 2)
        self.scratch.append(stage)
        base, first = self.block * dq_elements(t), tile * t.block

        def place(row: Expr, column: Expr) -> tuple[Expr, Expr]:
            """Rows of the second warpgroup are those of the first one, and further columns."""
            return first + row % t.block, column + row // t.block * width

        def exists(row: Expr, column: Expr) -> Expr:
            query, at = place(row, column)
            return (query < self.s.queries) & (at < self.s.head_dim)

        def write(row: Expr, column: Expr, x: Expr) -> list[Stmt]:
            return self.o.writes["q"](n, *place(row, column), x)

        def value(number: int, lane: Expr) -> Expr:
            return ir.load(self.sums, base + number * CONSUMERS + lane) * self.o.scale

        return smem_tiles.store_accumulators("dq", CONSUMERS, stage, width, value, write, exists)
