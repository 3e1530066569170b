"""FlashAttention-2 backward (Dao 2023) on wgmma: scores are recomputed.

    P = exp(S - lse)        dS = P ∘ (M ∘ (g v') - delta)       M: dropout mask
    dv = (P ∘ M)' g         dk = scale dS' q                    dq = scale dS k

One kernel keeps a tile of queries and streams keys: dS, the A operand of dq, stays in registers.
Another keeps a tile of keys and streams the queries, transposed: P' and dS' are the A operands of
dv and dk. No atomics: results are deterministic.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.wgmma_forward import (
    LOG2E,
    PAD,
    STAGES,
    TUNING,
    ZERO_F32,
    ScoreTile,
    VisibilityMask,
    accumulators,
    row_half,
)
from numus.kernels.attention.operands import BackwardOperands, Score, Write
from numus.kernels.common.smem_tiles import (
    ONE,
    ZERO,
    Matrix,
    SmemTile,
    SmemVector,
    Vector,
    round_up,
    stage_buffer,
    stage_bytes,
    store_accumulators,
    tile_bytes,
)
from numus.target import Target


@dataclass(frozen=True, slots=True)
class Tiling:
    """Compile-time tile sizes."""

    threads: int
    block: int  # keys, or queries, of a main-loop iteration
    head_dim: int  # rounded up
    value_dim: int

    @property
    def rows(self) -> int:
        """Queries, or keys, of a thread block."""
        return self.threads // 2

    def shared_bytes(self, score_tiles: int) -> int:
        """Shared memory of a thread block."""
        nbytes = sum(
            tile_bytes(self.rows, n) + STAGES * tile_bytes(self.block, n)
            for n in (self.head_dim, self.value_dim)
        )
        nbytes += stage_bytes(self.rows) + STAGES * 2 * 4 * self.block
        return nbytes + score_tiles * 4 * max(
            self.rows * (self.block + PAD), self.block * (self.rows + PAD)
        )


def choose(
    target: Target,
    head_dim: int,
    value_dim: int,
    result_columns: int,
    needs_ds: bool,
    score_tiles: int,
) -> Tiling | None:
    """The largest tiles that fit in registers and shared memory, if any. Several small thread
    blocks per SM overlap better than one large one."""
    head_dim, value_dim = round_up(head_dim, 16), round_up(value_dim, 16)
    for block in (64, 32):
        tiling = Tiling(128, block, head_dim, value_dim)
        registers = result_columns // 2 + (2 if needs_ds else 1) * block // 2 + block // 4
        if registers <= TUNING.backward and tiling.shared_bytes(score_tiles) <= target.shared_bytes:
            return tiling
    return None


@dataclass(slots=True)
class Sizes:
    """Launch arguments."""

    queries: Expr
    keys: Expr
    head_dim: Expr
    value_dim: Expr
    tasks: Expr  # of each matrix


Operands = BackwardOperands[Matrix, Vector]


def attention_backward(
    tiling: Tiling, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Body of thread block g, and its scratch: dq, or dk and dv."""
    kind = _QueryBlock if "q" in operands.writes else _KeyBlock
    block = kind(tiling, sizes, dtype, g, operands, causal)
    return block.body(), block.scratch


class _Block(ABC):
    """Main loop of both kernels: a resident tile of rows, streamed blocks of the others."""

    resident: tuple[str, str]
    streamed: tuple[str, str]

    def __init__(
        self, tiling: Tiling, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.tiling, self.s, self.o, self.causal = tiling, sizes, o, causal
        self.n = ir.idiv(g, sizes.tasks)
        self.first = ir.mul(self.task(ir.irem(g, sizes.tasks)), const(tiling.rows))
        self.end = ir.minimum(ir.add(self.first, const(tiling.rows)), self.rows)
        self.factor = ir.var("factor", float32)
        self.needs_ds = o.needs_ds
        columns = {
            "q": tiling.head_dim,
            "k": tiling.head_dim,
            "v": tiling.value_dim,
            "g": tiling.value_dim,
        }
        self.tiles = {
            name: SmemTile(
                *(f"tile_{name}", getattr(o, name), dtype),
                tiling.rows if name in self.resident else tiling.block,
                columns[name],
                1 if name in self.resident else STAGES,
            )
            for name in self.needed()
        }
        self.scratch = [tile.buffer for tile in self.tiles.values()]
        self.stage = stage_buffer(tiling.rows)
        self.scratch.append(self.stage)
        self.scores = accumulators("s", tiling.block)
        self.dp = accumulators("d", tiling.block) if self.needs_ds else []
        self.score_tiles: dict[str, ScoreTile] = {}
        for name, score in (("bias", o.bias), ("keep", o.keep)):
            if score is not None:
                self.score_tiles[name] = self.score_tile(name, score)
                self.scratch.append(self.score_tiles[name].buffer)

    # -- differences of the two -------------------------------------------------------------------

    @property
    @abstractmethod
    def rows(self) -> Expr:
        """Rows that thread blocks have tiles of."""

    @property
    @abstractmethod
    def columns(self) -> Expr:
        """Streamed rows."""

    @abstractmethod
    def task(self, number: Expr) -> Expr:
        """Tile of the `number`-th thread block: the longest first."""

    def needed(self) -> list[str]:
        return ["q", "k", "v", "g"] if self.needs_ds else ["q", "k", "g"]

    @abstractmethod
    def score_tile(self, name: str, score: Score) -> ScoreTile:
        """Shared memory of a per-score operand: keys are contiguous."""

    @abstractmethod
    def block_range(self) -> tuple[Expr, Expr]:
        """The first streamed block, and the end."""

    @abstractmethod
    def needs_mask(self, first: Expr) -> Expr:
        """True where the block that begins at `first` has masked scores."""

    @abstractmethod
    def visible(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        """Predicate of accumulators whose query attends to their key."""

    @abstractmethod
    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        """lse, or delta, of the query of an accumulator."""

    @abstractmethod
    def accumulate(self, stage: Expr) -> list[Stmt]:
        """Gradients += the GEMMs of a block."""

    @abstractmethod
    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Matrix, query and key of an element of a score tile."""

    @abstractmethod
    def score_element(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """Row and column of an accumulator in a score tile."""

    # -- main loop --------------------------------------------------------------------------------

    def load(self, tag: str, j: Expr) -> list[Stmt]:
        p = self.tiling
        out: list[Stmt] = []
        first, stage = ir.mul(j, const(p.block)), ir.irem(j, const(STAGES))
        for name in self.streamed:
            if name in self.tiles:
                tile = self.tiles[name]
                out += tile.load(tag, p.threads, self.n, first, self.columns, stage)
        return out

    def start(self) -> list[Stmt]:
        p = self.tiling
        out: list[Stmt] = [ir.Let(self.factor, self.o.scale * const(LOG2E, float32))]
        for name in self.resident:
            if name in self.tiles:
                out += self.tiles[name].load("all", p.threads, self.n, self.first, self.end)
        return out

    def loop(self) -> list[Stmt]:
        start, stop = self.block_range()
        j = ir.var("block")
        return [
            ir.If(start < stop, self.load("first", start)),
            ir.AsyncCommit(),
            ir.For(j, start, stop, "serial", self.block(j, stop)),
        ]

    def block(self, j: Expr, stop: Expr) -> list[Stmt]:
        p = self.tiling
        stage, first = ir.irem(j, const(STAGES)), ir.mul(j, const(p.block))
        following = ir.add(j, ONE)
        out: list[Stmt] = [
            ir.AsyncWait(0, fence=True),
            ir.If(following < stop, self.load("next", following)),
            ir.AsyncCommit(),
        ]
        (resident, resident_g), (streamed, streamed_g) = self.resident, self.streamed
        pairs = [(self.scores, resident, streamed, p.head_dim)]
        if self.needs_ds:
            pairs.append((self.dp, resident_g, streamed_g, p.value_dim))
        for acc, a, b, depth in pairs:
            left, right = self.tiles[a].k_major(), self.tiles[b].k_major(stage)
            out.append(ir.Wgmma(acc, left, right, p.block, depth, zero_init=True))
        for name, tile in self.score_tiles.items():
            factor = LOG2E if name == "bias" else 1.0
            out.append(tile.load("load", lambda r, c: self.at(first, r, c), factor))
        out.append(ir.WgmmaWait(self.scores, len(pairs) - 1))
        masked = self.needs_mask(first)
        out += [
            ir.If(masked, [self.probabilities("masked", first, stage)]),
            ir.If(~masked, [self.probabilities("unmasked", first, stage)]),
        ]
        if self.needs_ds:
            out += [ir.WgmmaWait(self.dp, 0), self.score_gradients(stage)]
        elif "keep" in self.score_tiles:
            out.append(self.dropout())
        return [*out, *self.accumulate(stage)]

    def probabilities(self, tag: str, first: Expr, stage: Expr) -> Stmt:
        """P = exp(S - lse)."""
        lane = ir.var(f"{tag}_thread")
        bias, visible = self.score_tiles.get("bias"), self.visible(lane, first)
        body: list[Stmt] = []
        for i, register in enumerate(self.scores):
            lse = self.per_query("lse", lane, i, stage) * const(LOG2E, float32)
            value = ir.fma(ir.read(register), self.factor, -lse)
            if bias is not None:
                value = value + bias.of(*self.score_element(lane, i))
            value = ir.exp2(value)
            if tag == "masked":
                value = select(visible(i), value, ZERO_F32)
            body.append(ir.Set(register, value))
        return ir.For(lane, ZERO, const(self.tiling.threads), "lanes", body)

    def score_gradients(self, stage: Expr) -> Stmt:
        """dS = P ∘ (M ∘ dP - delta), and P = P ∘ M."""
        lane = ir.var("change_thread")
        keep = self.score_tiles.get("keep")
        body: list[Stmt] = []
        for i, (prob, register) in enumerate(zip(self.scores, self.dp, strict=True)):
            value = ir.read(register)
            if keep is not None:
                keep_value = ir.var(f"keep_value{i}", float32)
                body.append(ir.Let(keep_value, keep.of(*self.score_element(lane, i))))
                value = value * keep_value
            value = value - self.per_query("delta", lane, i, stage)
            # 0 stays 0, even where keys or values are not finite
            ds = ir.read(prob) * value
            body.append(ir.Set(register, select(ir.read(prob).eq(ZERO_F32), ZERO_F32, ds)))
            if keep is not None:
                body.append(ir.Set(prob, ir.read(prob) * keep_value))
        return ir.For(lane, ZERO, const(self.tiling.threads), "lanes", body)

    def dropout(self) -> Stmt:
        lane, keep = ir.var("dropout_thread"), self.score_tiles["keep"]
        body: list[Stmt] = [
            ir.Set(prob, ir.read(prob) * keep.of(*self.score_element(lane, i)))
            for i, prob in enumerate(self.scores)
        ]
        return ir.For(lane, ZERO, const(self.tiling.threads), "lanes", body)

    def epilogue(
        self, tag: str, acc: list[ir.Register], columns: Expr, write: Write, scaled: bool
    ) -> list[Stmt]:
        def value(number: int, lane: Expr) -> Expr:
            x = ir.read(acc[number])
            return x * self.o.scale if scaled else x

        return store_accumulators(
            *(tag, self.tiling.threads, self.stage, 2 * len(acc), value),
            lambda row, column, x: write(self.n, ir.add(self.first, row), column, x),
            lambda row, column: (ir.add(self.first, row) < self.rows) & (column < columns),
        )


class _QueryBlock(_Block):
    """dq: a tile of queries, streamed keys."""

    resident, streamed = ("q", "g"), ("k", "v")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.result = accumulators("dq", self.tiling.head_dim)
        self.query_registers = {
            name: [ir.Register(f"{name}{h}", float32, lanes=True) for h in range(2)]
            for name in ("lse", "delta")
        }

    @property
    def rows(self) -> Expr:
        return self.s.queries

    @property
    def columns(self) -> Expr:
        return ir.minimum(self.s.keys, self.end) if self.causal else self.s.keys

    def task(self, number: Expr) -> Expr:
        # under a causal mask, later queries see more keys
        return ir.sub(ir.sub(self.s.tasks, ONE), number)

    def score_tile(self, name: str, score: Score) -> ScoreTile:
        return ScoreTile(name, score, self.tiling.rows, self.tiling.block)

    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        query, key = ir.add(self.first, row), ir.add(first, column)
        return self.n, ir.minimum(query, self.s.queries - 1), ir.minimum(key, self.s.keys - 1)

    def score_element(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        return ir.accumulator_element(lane, number)

    def block_range(self) -> tuple[Expr, Expr]:
        block = const(self.tiling.block)
        return ZERO, ir.idiv(ir.add(self.columns, const(self.tiling.block - 1)), block)

    def needs_mask(self, first: Expr) -> Expr:
        end = ir.add(first, const(self.tiling.block))
        out_of_bounds = end > self.s.keys
        return out_of_bounds | (end > ir.add(self.first, ONE)) if self.causal else out_of_bounds

    def visible(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        return VisibilityMask(lane, self.first, first, self.s.keys, self.causal).of

    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        return ir.read(self.query_registers[name][row_half(number)])

    def accumulate(self, stage: Expr) -> list[Stmt]:
        p = self.tiling
        keys = self.tiles["k"].mn_major(stage)
        return [
            ir.Wgmma(self.result, self.dp, keys, p.head_dim, p.block),
            ir.WgmmaWait(self.result, 0),
        ]

    def body(self) -> list[Stmt]:
        lane = ir.var("query_thread")
        loads: list[Stmt] = []
        for name, vector in (("lse", self.o.lse), ("delta", self.o.delta)):
            for h in range(2):
                query = ir.add(self.first, ir.accumulator_element(lane, 2 * h)[0])
                value = vector.read(self.n, query, query < self.s.queries)
                loads.append(ir.Set(self.query_registers[name][h], value))
        return [
            *self.start(),
            *(ir.Set(x, ZERO_F32) for x in self.result),
            ir.For(lane, ZERO, const(self.tiling.threads), "lanes", loads),
            *self.loop(),
            *self.epilogue("dq", self.result, self.s.head_dim, self.o.writes["q"], True),
        ]


class _KeyBlock(_Block):
    """dk and dv: a tile of keys, streamed queries."""

    resident, streamed = ("k", "v"), ("q", "g")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        p = self.tiling
        self.dk = accumulators("dk", p.head_dim) if "k" in self.o.writes else []
        self.dv = accumulators("dv", p.value_dim) if "v" in self.o.writes else []
        self.vectors = {"lse": SmemVector("lines_lse", self.o.lse, p.block, STAGES)}
        if self.needs_ds:
            self.vectors["delta"] = SmemVector("lines_delta", self.o.delta, p.block, STAGES)
        self.scratch += [vector.buffer for vector in self.vectors.values()]

    @property
    def rows(self) -> Expr:
        return self.s.keys

    @property
    def columns(self) -> Expr:
        return self.s.queries

    def task(self, number: Expr) -> Expr:
        return number  # under a causal mask, earlier keys are seen by more queries

    def score_tile(self, name: str, score: Score) -> ScoreTile:
        return ScoreTile(name, score, self.tiling.block, self.tiling.rows)

    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        query, key = ir.add(first, row), ir.add(self.first, column)
        return self.n, ir.minimum(query, self.s.queries - 1), ir.minimum(key, self.s.keys - 1)

    def score_element(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        row, column = ir.accumulator_element(lane, number)
        return column, row

    def block_range(self) -> tuple[Expr, Expr]:
        block = const(self.tiling.block)
        stop = ir.idiv(ir.add(self.s.queries, const(self.tiling.block - 1)), block)
        return ir.idiv(self.first, block) if self.causal else ZERO, stop

    def needs_mask(self, first: Expr) -> Expr:
        out_of_bounds = ir.add(first, const(self.tiling.block)) > self.s.queries
        diagonal = first < ir.add(self.first, const(self.tiling.rows - 1))
        return out_of_bounds | diagonal if self.causal else out_of_bounds

    def visible(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        _, column = ir.accumulator_element(lane, 0)
        query = ir.add(first, column)
        limit = ir.sub(self.s.queries, query).cast(dt.int32)
        starts = []
        for h in range(2):
            row, _ = ir.accumulator_element(lane, 2 * h)
            starts.append(ir.sub(ir.add(self.first, row), query).cast(dt.int32))

        def visible(i: int) -> Expr:
            column_ = const(i // 4 * 8 + i % 2, dt.int32)
            return (
                (column_ < limit) & (column_ >= starts[row_half(i)])
                if self.causal
                else column_ < limit
            )

        return visible

    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        return self.vectors[name].at(ir.accumulator_element(lane, number)[1], stage)

    def load(self, tag: str, j: Expr) -> list[Stmt]:
        first, stage = ir.mul(j, const(self.tiling.block)), ir.irem(j, const(STAGES))
        out = super().load(tag, j)
        for vector in self.vectors.values():
            out += vector.load(tag, self.tiling.threads, self.n, first, self.s.queries, stage)
        return out

    def accumulate(self, stage: Expr) -> list[Stmt]:
        p = self.tiling
        out: list[Stmt] = []
        if self.dv:
            g = self.tiles["g"].mn_major(stage)
            out.append(ir.Wgmma(self.dv, self.scores, g, p.value_dim, p.block))
        if self.dk:
            q = self.tiles["q"].mn_major(stage)
            out.append(ir.Wgmma(self.dk, self.dp, q, p.head_dim, p.block))
        return [*out, ir.WgmmaWait([*self.dv, *self.dk], 0)]

    def body(self) -> list[Stmt]:
        out = [
            *self.start(),
            *(ir.Set(x, ZERO_F32) for x in (*self.dk, *self.dv)),
            *self.loop(),
        ]
        if "v" in self.o.writes:
            out += self.epilogue("dv", self.dv, self.s.value_dim, self.o.writes["v"], False)
        if "k" in self.o.writes:
            out += self.epilogue("dk", self.dk, self.s.head_dim, self.o.writes["k"], True)
        return out
