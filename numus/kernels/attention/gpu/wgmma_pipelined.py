"""FlashAttention-3 forward (Shah et al. 2024): warp-specialised, and pipelined within a warpgroup.

A producer warpgroup copies blocks of keys and values ahead. Consumer warpgroups of 64 queries each
compute the scores of the next block while the tensor cores multiply the probabilities of the last
one with its values; they take turns, so that one warpgroup's softmax runs during the products of
the other. Blocks go from the last one, which is masked, to the first.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import FwdOperands, Sizes, Tiling
from numus.kernels.attention.gpu.wgmma_forward import (
    LOG2E,
    NEG_INF,
    STAGES,
    ZERO_F32,
    ForwardKernel,
    VisibilityMask,
    row_half,
    row_reduce,
    tree_reduce,
)
from numus.kernels.common import smem_tiles
from numus.kernels.common.smem_tiles import ONE, ZERO
from numus.target import Target

_K_FULL, _V_FULL, _K_EMPTY, _V_EMPTY, _Q_EMPTY = (i * STAGES for i in range(5))  # first mbarriers


@dataclass(frozen=True, slots=True)
class PipelinedTuning:
    """For one H200. Threads have 168 registers, as drivers link what they assemble, and code for
    linking ignores setmaxnreg; or else each role has its own, and the driver assembles the kernel
    whenever it loads it."""

    # up to this head dimension: queries, keys, registers of consumers and of producers
    tiles: tuple[tuple[int, int, int, tuple[int, int] | None], ...] = (
        (64, 128, 128, None),
        (128, 128, 128, (216, 72)),
        (256, 128, 80, (224, 56)),
    )
    # where all queries see all keys: a causal mask would hide more of longer tiles
    full_tiles: tuple[tuple[int, int, int, tuple[int, int] | None], ...] = (
        (64, 192, 128, (160, 32)),
    )
    takes_turns: bool = True
    # Row maxima may fall behind by this much, in powers of two, before accumulators are rescaled
    # (as in FlashAttention-4): sums of float32 and 16-bit probabilities have room for it.
    rescale_threshold: float = 8.0
    persistent: bool = True  # a block per SM, which loads for the next task while it stores
    min_keys: int = 256  # for fewer, two blocks on an SM hide more
    max_head_dim: int = 256


TUNING = PipelinedTuning()


def choose(
    target: Target,
    queries: int,
    keys: int,
    head_dim: int,
    value_dim: int,
    score_tiles: int,
    causal: bool,
) -> Tiling | None:
    """The tile for these heads, if queries and keys are long enough."""
    largest = max(head_dim, value_dim)
    if score_tiles or keys < TUNING.min_keys or not head_dim or not value_dim:
        return None
    if largest > TUNING.max_head_dim:
        return None
    for limit, rows, block, _ in _tiles(causal):
        if largest <= limit and queries > rows // 2:
            head_dim, value_dim = (smem_tiles.round_up(n, 16) for n in (head_dim, value_dim))
            tiling = Tiling(rows * 2 + ir.WARPGROUP, rows, block, head_dim, value_dim)
            long = replace(tiling, persistent=TUNING.persistent)
            tiling = long if _shared_bytes(long) <= target.shared_bytes else tiling
            return tiling if _shared_bytes(tiling) <= target.shared_bytes else None
    return None


def _tiles(causal: bool) -> tuple[tuple[int, int, int, tuple[int, int] | None], ...]:
    return TUNING.tiles if causal else TUNING.full_tiles + TUNING.tiles


def _registers(t: Tiling) -> tuple[int, int] | None:
    largest = max(t.head_dim, t.value_dim)
    return next(
        own for limit, *tile, own in _tiles(False) if largest <= limit and tile == [t.rows, t.block]
    )


def _shared_bytes(t: Tiling) -> int:
    dims = (t.head_dim, t.value_dim)
    nbytes = smem_tiles.tile_bytes(t.rows, t.head_dim) + (4 * STAGES + 1) * 8
    nbytes += 0 if _stage_is_among_keys(t) else smem_tiles.stage_bytes(t.rows)
    return nbytes + STAGES * sum(smem_tiles.tile_bytes(t.block, n) for n in dims)


def _stage_is_among_keys(t: Tiling) -> bool:
    """Whether the epilogue's shared memory fits into that of the keys."""
    keys = STAGES * smem_tiles.tile_bytes(t.block, t.head_dim)
    return smem_tiles.stage_bytes(t.rows) <= keys and not t.persistent


class PipelinedKernel(ForwardKernel):
    """Row maxima are of scores that are not scaled: the scale is not negative."""

    def __init__(self, tiling: Tiling, s: Sizes, dtype: DType, g: Expr, o: FwdOperands) -> None:
        super().__init__(tiling, s, dtype, g, o)
        self.program, self.matrix, self.task = g, ir.var("matrix"), ir.var("task")
        if tiling.persistent:
            self.place(self.matrix, self.task - self.matrix * s.tasks)
        assert self.v is not None
        self.values = self.v
        self.mma_threads = tiling.rows * 2
        self.groups = tiling.rows // 64
        self.stage = smem_tiles.stage_buffer(tiling.rows)
        if _stage_is_among_keys(tiling):
            self.stage.aliases = self.k.buffer
        else:
            self.stage.warp_private = True
        barriers = ir.Buffer("barriers", dt.int64, "scratch", const(4 * STAGES + 1))
        copies = (2 * ir.WARPGROUP,) * (2 * STAGES)
        self.barriers = ir.Mbarriers(barriers, (*copies, *(self.groups,) * (2 * STAGES + 1)))
        self.earlier = ir.var("earlier") if tiling.persistent else ZERO  # blocks of earlier tasks
        self.scratch = [self.q.buffer, self.k.buffer, self.values.buffer, barriers, self.stage]
        words = range(tiling.block // 4)
        self.decays = [ir.Register(f"decay{h}", float32, lanes=True) for h in range(2)]
        self.words = [ir.Register(f"p{i}", dt.int32, lanes=True) for i in words]

    def body(self) -> list[Stmt]:
        p = self.tiling
        blocks, factor = ir.var("blocks"), self.o.scale * const(LOG2E, float32)
        consume = self._tasks("consumed", blocks, self._consume(blocks))
        produce = self._tasks("produced", blocks, self._produce(blocks))
        roles = ir.WarpRoles(
            consume, [*produce, ir.AsyncCommit(), ir.AsyncWait(0)], self.barriers, _registers(p)
        )  # no copy outlives its thread
        return [ir.Let(self.factor, factor), roles]

    def _tasks(self, tag: str, blocks: Expr, body: list[Stmt]) -> list[Stmt]:
        """The task of a thread block, or all of them: every other round the other way round, as
        later tasks of a causal matrix are shorter."""
        count = ir.Let(blocks, (self.visible + (self.tiling.block - 1)) // self.tiling.block)
        if not self.tiling.persistent:
            return [count, *body]
        total, own, grid = ir.Register(tag, dt.int64), ir.var(f"{tag}_round"), self.s.blocks
        place = select((own % 2).eq(0), self.program, grid - 1 - self.program)
        task = [ir.Let(self.earlier, ir.read(total)), count, *body]
        task.append(ir.Set(total, self.earlier + blocks))
        words = [x.cast(dt.int32) for x in (self.task, self.s.tasks)]  # 64-bit division is a call
        each = [
            ir.Let(self.task, own * grid + place),
            ir.Let(self.matrix, (words[0] // words[1]).cast(dt.int64)),
            ir.If(self.task < self.s.all_tasks, task),
        ]
        return [ir.Set(total, ZERO), ir.For(own, ZERO, self.s.rounds, "serial", each)]

    # -- copies -----------------------------------------------------------------------------------

    def _arrive(self, first: int, i: Expr, *, copies: bool = False) -> Stmt:
        return ir.Arrive(self.barriers, self._stage(i) + first, copies)

    def _stage(self, i: Expr) -> Expr:
        return (self.earlier + i) % STAGES

    def _await(self, first: int, i: Expr, *, filled: bool) -> Stmt:
        """Wait until the i-th block is there, or the one before it in its stage is not needed."""
        parity = (self.earlier + i) // STAGES % 2
        return ir.AwaitPhase(
            self.barriers, self._stage(i) + first, parity if filled else 1 - parity
        )

    def _produce(self, blocks: Expr) -> list[Stmt]:
        i = ir.var("copied")
        was_last = 1 - ir.var("produced_round") % 2
        wait = [ir.AwaitPhase(self.barriers, const(_Q_EMPTY), was_last)]
        first = [
            *(wait if self.tiling.persistent else []),
            *self.q.load("all", ir.WARPGROUP, self.n, self.first, self.last),
            *self._copy("first", "k", ZERO, blocks),
        ]
        ahead = [*self._copy("next", "k", i, blocks), *self._copy("next", "v", i - 1, blocks)]
        last = self._copy("last", "v", blocks - 1, blocks)
        return [*first, ir.For(i, ONE, blocks, "serial", ahead), *last]

    def _copy(self, tag: str, which: str, i: Expr, blocks: Expr) -> list[Stmt]:
        """The i-th block of keys or values, counted from the last one."""
        tile = self.k if which == "k" else self.values
        full, empty = (_K_FULL, _K_EMPTY) if which == "k" else (_V_FULL, _V_EMPTY)
        start = (blocks - 1 - i) * self.tiling.block
        return [
            self._await(empty, i, filled=False),
            *tile.load(tag, ir.WARPGROUP, self.n, start, self.visible, self._stage(i)),
            self._arrive(full, i, copies=True),
        ]

    # -- products ---------------------------------------------------------------------------------

    def _consume(self, blocks: Expr) -> list[Stmt]:
        p = self.tiling
        # key blocks before the diagonal need no mask, and none but the last one without it
        unmasked = ir.minimum(self.first + 1, self.s.keys) if self.o.causal else self.s.keys
        masked = ir.maximum(ONE, blocks - unmasked // p.block) if self.o.causal else ONE
        out: list[Stmt] = [
            *(ir.Set(x, ZERO_F32) for x in (*self.result, *self.row_sums)),
            *(ir.Set(x, NEG_INF) for x in self.row_maxes),
            self._await(_K_FULL, ZERO, filled=True),
            ir.AsyncFence(),
            self._scores(ZERO),
            ir.WgmmaWait(self.scores, 0),
            self._arrive(_K_EMPTY, ZERO),
            self._softmax("first", self._first_key(blocks, ZERO)),
        ]
        loops = [("unmasked", masked, blocks)]
        if self.o.causal:
            loops.insert(0, ("masked", ONE, masked))
        for tag, start, stop in loops:
            i = ir.var(f"{tag}_block")
            out.append(ir.For(i, start, stop, "serial", self._block(tag, i, blocks)))
        last, others = blocks - 1, self.tiling.persistent
        scored = [
            ir.If(last > 0, [self._arrive(_V_EMPTY, last - 1)]),
            ir.Arrive(self.barriers, const(_Q_EMPTY)),
        ]
        return [
            *out,
            self._await(_V_FULL, last, filled=True),
            *self._weights("last"),
            *(scored if others else []),
            ir.AsyncFence(),
            self._products(last),
            ir.WgmmaWait(self.result, 0),
            *([self._arrive(_V_EMPTY, last)] if others else []),
            *self._finish(),
        ]

    def _first_key(self, blocks: Expr, i: Expr) -> Expr:
        return (blocks - 1 - i) * self.tiling.block

    def _block(self, tag: str, i: Expr, blocks: Expr) -> list[Stmt]:
        """Scores of the i-th block, and products of the one before. The wait for the products of
        the block before that comes after a spin-wait: ptxas, which moves it up within a basic
        block, would move it ahead of the softmax."""
        turns = TUNING.takes_turns
        return [
            self._await(_K_FULL, i, filled=True),
            *self._weights(tag),
            ir.If(i > 1, [self._arrive(_V_EMPTY, i - 2)]),
            self._await(_V_FULL, i - 1, filled=True),
            ir.AsyncFence(),
            *([ir.WarpgroupTurn(True)] if turns else []),
            self._scores(i),
            self._products(i - 1),
            *([ir.WarpgroupTurn(False)] if turns else []),
            ir.WgmmaWait(self.scores, 1),
            self._arrive(_K_EMPTY, i),
            self._softmax(tag, self._first_key(blocks, i)),
        ]

    def _weights(self, tag: str) -> list[Stmt]:
        """Probabilities as an operand, and accumulators scaled to their maximum."""
        return [
            ir.WgmmaWait([*self.result, *self.scores], 0),
            ir.PackFragments(self.words, self.scores, self.dtype),
            self._rescale(tag),
        ]

    def _scores(self, i: Expr) -> Stmt:
        p, queries, keys = self.tiling, self.q.k_major(), self.k.k_major(self._stage(i))
        return ir.Wgmma(self.scores, queries, keys, p.block, p.head_dim, zero_init=True)

    def _products(self, i: Expr) -> Stmt:
        p, values = self.tiling, self.values.mn_major(self._stage(i))
        return ir.Wgmma(self.result, self.words, values, p.value_dim, p.block)

    # -- softmax ----------------------------------------------------------------------------------

    def _softmax(self, tag: str, first_key: Expr) -> Stmt:
        """Scores to probabilities, in one multiply-add and one exponential each."""
        lane = ir.var(f"{tag}_thread")
        visible = VisibilityMask(lane, self.first, first_key, self.s.keys, self.o.causal)
        is_masked = tag != "unmasked"
        body: list[Stmt] = []
        scores: list[Expr] = []
        for i, register in enumerate(self.scores):
            value = ir.read(register)
            if is_masked:
                value = select(visible.of(i), value, NEG_INF)
            scores.append(ir.var(f"score{i}", float32))
            body.append(ir.Let(scores[i], value))
        shifts = []
        for h, (row_max, row_sum) in enumerate(zip(self.row_maxes, self.row_sums, strict=True)):
            own = [x for i, x in enumerate(scores) if row_half(i) == h]
            found = row_reduce(tree_reduce(own, ir.maximum), ir.maximum)
            names = ("largest", "new_max", "shift", "rescale")
            largest, new_max, shift, rescale = (ir.var(f"{x}{h}", float32) for x in names)
            nothing, old = new_max.eq(NEG_INF), ir.read(row_max)
            decay = ir.exp2(ir.fma(old, self.factor, -shift))
            grows = (largest - old) * self.factor > const(TUNING.rescale_threshold, float32)
            body += [
                ir.Let(largest, found),
                ir.Let(new_max, select(grows | old.eq(NEG_INF), largest, old)),
                ir.Let(shift, select(nothing, ZERO_F32, new_max * self.factor)),
                ir.Let(rescale, select(old.eq(NEG_INF), ZERO_F32, decay)),
                ir.Set(row_max, new_max),
                ir.Set(self.decays[h], rescale),
                ir.Set(row_sum, ir.read(row_sum) * rescale),
            ]
            shifts.append(shift)
        probs: list[Expr] = []
        for i, register in enumerate(self.scores):
            probs.append(ir.var(f"prob{i}", float32))
            value = ir.exp2(ir.fma(scores[i], self.factor, -shifts[row_half(i)]))
            if is_masked:
                value = select(visible.of(i), value, ZERO_F32)
            body += [ir.Let(probs[i], value), ir.Set(register, probs[i])]
        for h, row_sum in enumerate(self.row_sums):
            own = [x for i, x in enumerate(probs) if row_half(i) == h]
            body.append(ir.Set(row_sum, ir.read(row_sum) + tree_reduce(own, ir.add)))
        return ir.For(lane, ZERO, const(self.mma_threads), "lanes", body)

    def _rescale(self, tag: str) -> Stmt:
        """Accumulators to the new maximum, where it is one."""
        lane = ir.var(f"{tag}_rescaled")
        decays = [ir.read(x) for x in self.decays]
        sets: list[Stmt] = [
            ir.Set(x, ir.read(x) * decays[row_half(i)]) for i, x in enumerate(self.result)
        ]
        one = const(1.0, float32)
        body: list[Stmt] = [ir.If(~(decays[0].eq(one) & decays[1].eq(one)), sets)]
        return ir.For(lane, ZERO, const(self.mma_threads), "lanes", body)

    def _scaled_max(self, row_max: Expr) -> Expr:
        return row_max * self.o.scale
