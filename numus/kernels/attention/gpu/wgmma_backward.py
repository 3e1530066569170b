"""The derivative of attention by units that multiply tiles: scores are computed again.

With the logarithms of the sums at hand, a block's weights need no running maximum:

    P = exp(S - lse)        Z = P ∘ (M ∘ (g v') - delta)        M: what dropout keeps
    dv = (P ∘ M)' g         dk = scale Z' q                     dq = scale Z k

One kernel has a tile of queries and walks the keys: Z, the left operand of dq, stays in registers.
Another one has a tile of keys and walks the queries, with all of it transposed: P' and Z' are the
left operands of dv and dk. Every sum is one thread's, in a fixed order.
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
    NOTHING,
    PAD,
    STAGES,
    PerScore,
    Seen,
    half,
    sums,
)
from numus.kernels.attention.operands import GradOperands, Score, Write
from numus.kernels.common.smem_tiles import (
    ONE,
    ZERO,
    Line,
    Matrix,
    Tile,
    Vector,
    leave,
    rounded,
    stage_buffer,
    stage_bytes,
    tile_bytes,
)
from numus.target import Target

REGISTERS = 208  # of a thread, for sums and operands


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data: all of it shapes the code."""

    threads: int
    block: int  # keys, or queries, that are walked at a time
    size: int  # of queries and keys, rounded up
    width: int  # of values

    @property
    def rows(self) -> int:
        """Queries, or keys, of a group."""
        return self.threads // 2

    def memory(self, scores: int) -> int:
        """Bytes that the group needs, `scores` of them kept for each score."""
        need = sum(
            tile_bytes(self.rows, n) + STAGES * tile_bytes(self.block, n)
            for n in (self.size, self.width)
        )
        need += stage_bytes(self.rows) + STAGES * 2 * 4 * self.block
        return need + scores * 4 * max(
            self.rows * (self.block + PAD), self.block * (self.rows + PAD)
        )


def choose(
    target: Target, size: int, width: int, results: int, changes: bool, scores: int
) -> Plan | None:
    """The largest tiles for which there are registers and memory; None where there are none. A unit
    has several small groups rather than a large one: they multiply in turns.

    `results` columns of sums stay; `changes`: whether g v' is needed beside the scores.
    """
    size, width = rounded(size, 16), rounded(width, 16)
    for block in (64, 32):
        plan = Plan(128, block, size, width)
        registers = results // 2 + (2 if changes else 1) * block // 2 + block // 4
        if registers <= REGISTERS and plan.memory(scores) <= target.shared_bytes:
            return plan
    return None


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    queries: Expr
    keys: Expr
    size: Expr
    width: Expr
    tasks: Expr  # of each matrix


Operands = GradOperands[Matrix, Vector]


def attention_grad(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands, causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch: that of queries, or that of keys."""
    kind = _Queries if "q" in operands.writes else _Keys
    group = kind(plan, sizes, dtype, g, operands, causal)
    return group.body(), group.scratch


class _Group(ABC):
    """What both kernels do: a tile of `own` rows meets blocks of `other` ones."""

    own: tuple[str, str]  # the operands whose tile stays
    others: tuple[str, str]  # those that are walked

    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands, causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal = plan, sizes, o, causal
        self.n = ir.idiv(g, sizes.tasks)
        self.first = ir.mul(self.task(ir.irem(g, sizes.tasks)), const(plan.rows))
        self.end = ir.minimum(ir.add(self.first, const(plan.rows)), self.rows)
        self.factor = ir.var("factor", float32)
        self.changes = o.changes
        columns = {"q": plan.size, "k": plan.size, "v": plan.width, "g": plan.width}
        self.tiles = {
            name: Tile(
                *(f"tile_{name}", getattr(o, name), dtype),
                plan.rows if name in self.own else plan.block,
                columns[name],
                1 if name in self.own else STAGES,
            )
            for name in self.needed()
        }
        self.scratch = [tile.buffer for tile in self.tiles.values()]
        self.stage = stage_buffer(plan.rows)
        self.scratch.append(self.stage)
        self.scores = sums("s", plan.block)
        self.change = sums("d", plan.block) if self.changes else []
        self.per_score: dict[str, PerScore] = {}
        for name, score in (("bias", o.bias), ("keep", o.keep)):
            if score is not None:
                found = self.for_scores(name, score)
                self.per_score[name] = found
                self.scratch.append(found.buffer)

    # -- what the two differ in -------------------------------------------------------------------

    @property
    @abstractmethod
    def rows(self) -> Expr:
        """How many rows there are of which a group has a tile."""

    @property
    @abstractmethod
    def columns(self) -> Expr:
        """How many rows there are to be walked."""

    @abstractmethod
    def task(self, number: Expr) -> Expr:
        """Which tile comes as the `number`-th."""

    def needed(self) -> list[str]:
        """The operands that take part."""
        return ["q", "k", "v", "g"] if self.changes else ["q", "k", "g"]

    @abstractmethod
    def for_scores(self, name: str, score: Score) -> PerScore:
        """Room for what is read for each score: keys are neighbours."""

    @abstractmethod
    def walk(self) -> tuple[Expr, Expr]:
        """The first block, and the one behind the last."""

    @abstractmethod
    def masks(self, first: Expr) -> Expr:
        """Whether the block that begins at `first` has scores that do not count."""

    @abstractmethod
    def seen(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        """Whether a sum's query looks at its key."""

    @abstractmethod
    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        """The logarithm, or the inner product, of the query of a sum."""

    @abstractmethod
    def products(self, stage: Expr) -> list[Stmt]:
        """What a block adds to the results."""

    @abstractmethod
    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        """Matrix, query and key of a place in what is laid out for each score."""

    @abstractmethod
    def kept_at(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """Where what is laid out for a sum's score lies."""

    # -- the walk ---------------------------------------------------------------------------------

    def bring(self, tag: str, j: Expr) -> list[Stmt]:
        p = self.plan
        out: list[Stmt] = []
        first, stage = ir.mul(j, const(p.block)), ir.irem(j, const(STAGES))
        for name in self.others:
            if name in self.tiles:
                tile = self.tiles[name]
                out += tile.bring(tag, p.threads, self.n, first, self.columns, stage)
        return out

    def start(self) -> list[Stmt]:
        p = self.plan
        out: list[Stmt] = [ir.Let(self.factor, self.o.scale * const(LOG2E, float32))]
        for name in self.own:
            if name in self.tiles:
                out += self.tiles[name].bring("all", p.threads, self.n, self.first, self.end)
        return out

    def loop(self) -> list[Stmt]:
        start, stop = self.walk()
        j = ir.var("block")
        return [
            ir.If(start < stop, self.bring("first", start)),
            ir.AsyncCommit(),
            ir.For(j, start, stop, "serial", self.block(j, stop)),
        ]

    def block(self, j: Expr, stop: Expr) -> list[Stmt]:
        p = self.plan
        stage, first = ir.irem(j, const(STAGES)), ir.mul(j, const(p.block))
        following = ir.add(j, ONE)
        out: list[Stmt] = [
            ir.AsyncWait(0, fence=True),
            ir.If(following < stop, self.bring("next", following)),
            ir.AsyncCommit(),
        ]
        (own, own_g), (other, other_g) = self.own, self.others
        pairs = [(self.scores, own, other, p.size)]
        if self.changes:
            pairs.append((self.change, own_g, other_g, p.width))
        for found, mine, theirs, depth in pairs:
            left, right = self.tiles[mine].along(), self.tiles[theirs].along(stage)
            out.append(ir.Wgmma(found, left, right, p.block, depth, zero_init=True))
        for name, kept in self.per_score.items():
            factor = LOG2E if name == "bias" else 1.0
            out.append(kept.lay("lay", lambda r, c: self.at(first, r, c), factor))
        out.append(ir.WgmmaWait(self.scores, len(pairs) - 1))
        masked = self.masks(first)
        out += [
            ir.If(masked, [self.weights("masked", first, stage)]),
            ir.If(~masked, [self.weights("free", first, stage)]),
        ]
        if self.changes:
            out += [ir.WgmmaWait(self.change, 0), self.cotangents(stage)]
        elif "keep" in self.per_score:
            out.append(self.kept())
        return [*out, *self.products(stage)]

    def weights(self, tag: str, first: Expr, stage: Expr) -> Stmt:
        """Scores become P."""
        lane = ir.var(f"{tag}_thread")
        bias, seen = self.per_score.get("bias"), self.seen(lane, first)
        body: list[Stmt] = []
        for i, register in enumerate(self.scores):
            lse = self.per_query("lse", lane, i, stage) * const(LOG2E, float32)
            value = ir.fma(ir.read(register), self.factor, -lse)
            if bias is not None:
                value = value + bias.of(*self.kept_at(lane, i))
            value = ir.exp2(value)
            if tag == "masked":
                value = select(seen(i), value, NOTHING)
            body.append(ir.Set(register, value))
        return ir.For(lane, ZERO, const(self.plan.threads), "lanes", body)

    def cotangents(self, stage: Expr) -> Stmt:
        """g v' becomes Z, and P what dropout keeps of it."""
        lane = ir.var("change_thread")
        keep = self.per_score.get("keep")
        body: list[Stmt] = []
        for i, (weight, register) in enumerate(zip(self.scores, self.change, strict=True)):
            value = ir.read(register)
            if keep is not None:
                kept = ir.var(f"kept{i}", float32)
                body.append(ir.Let(kept, keep.of(*self.kept_at(lane, i))))
                value = value * kept
            value = value - self.per_query("delta", lane, i, stage)
            # a weight of 0 stays one, whatever its key and value hold
            z = ir.read(weight) * value
            body.append(ir.Set(register, select(ir.read(weight).eq(NOTHING), NOTHING, z)))
            if keep is not None:
                body.append(ir.Set(weight, ir.read(weight) * kept))
        return ir.For(lane, ZERO, const(self.plan.threads), "lanes", body)

    def kept(self) -> Stmt:
        lane, keep = ir.var("kept_thread"), self.per_score["keep"]
        body: list[Stmt] = [
            ir.Set(weight, ir.read(weight) * keep.of(*self.kept_at(lane, i)))
            for i, weight in enumerate(self.scores)
        ]
        return ir.For(lane, ZERO, const(self.plan.threads), "lanes", body)

    def leave(
        self, tag: str, found: list[ir.Register], columns: Expr, write: Write, scaled: bool
    ) -> list[Stmt]:
        def value(number: int, lane: Expr) -> Expr:
            x = ir.read(found[number])
            return x * self.o.scale if scaled else x

        return leave(
            *(tag, self.plan.threads, self.stage, 2 * len(found), value),
            lambda row, column, x: write(self.n, ir.add(self.first, row), column, x),
            lambda row, column: (ir.add(self.first, row) < self.rows) & (column < columns),
        )


class _Queries(_Group):
    """dq: a tile of queries walks the keys."""

    own, others = ("q", "g"), ("k", "v")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.result = sums("dq", self.plan.size)
        self.rows_of = {
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
        # under a causal mask later queries have more to do: they come first
        return ir.sub(ir.sub(self.s.tasks, ONE), number)

    def for_scores(self, name: str, score: Score) -> PerScore:
        return PerScore(name, score, self.plan.rows, self.plan.block)

    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        query, key = ir.add(self.first, row), ir.add(first, column)
        return self.n, ir.minimum(query, self.s.queries - 1), ir.minimum(key, self.s.keys - 1)

    def kept_at(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        return ir.accumulator_element(lane, number)

    def walk(self) -> tuple[Expr, Expr]:
        block = const(self.plan.block)
        return ZERO, ir.idiv(ir.add(self.columns, const(self.plan.block - 1)), block)

    def masks(self, first: Expr) -> Expr:
        end = ir.add(first, const(self.plan.block))
        beyond = end > self.s.keys
        return beyond | (end > ir.add(self.first, ONE)) if self.causal else beyond

    def seen(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        return Seen(lane, self.first, first, self.s.keys, self.causal).of

    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        return ir.read(self.rows_of[name][half(number)])

    def products(self, stage: Expr) -> list[Stmt]:
        p = self.plan
        keys = self.tiles["k"].across(stage)
        return [
            ir.Wgmma(self.result, self.change, keys, p.size, p.block),
            ir.WgmmaWait(self.result, 0),
        ]

    def body(self) -> list[Stmt]:
        lane = ir.var("query_thread")
        loads: list[Stmt] = []
        for name, vector in (("lse", self.o.lse), ("delta", self.o.delta)):
            for h in range(2):
                query = ir.add(self.first, ir.accumulator_element(lane, 2 * h)[0])
                value = vector.read(self.n, query, query < self.s.queries)
                loads.append(ir.Set(self.rows_of[name][h], value))
        return [
            *self.start(),
            *(ir.Set(x, NOTHING) for x in self.result),
            ir.For(lane, ZERO, const(self.plan.threads), "lanes", loads),
            *self.loop(),
            *self.leave("dq", self.result, self.s.size, self.o.writes["q"], True),
        ]


class _Keys(_Group):
    """dk and dv: a tile of keys walks the queries."""

    own, others = ("k", "v"), ("q", "g")

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        p = self.plan
        self.dk = sums("dk", p.size) if "k" in self.o.writes else []
        self.dv = sums("dv", p.width) if "v" in self.o.writes else []
        self.lines = {"lse": Line("lines_lse", self.o.lse, p.block, STAGES)}
        if self.changes:
            self.lines["delta"] = Line("lines_delta", self.o.delta, p.block, STAGES)
        self.scratch += [line.buffer for line in self.lines.values()]

    @property
    def rows(self) -> Expr:
        return self.s.keys

    @property
    def columns(self) -> Expr:
        return self.s.queries

    def task(self, number: Expr) -> Expr:
        return number  # under a causal mask more queries look at earlier keys: they come first

    def for_scores(self, name: str, score: Score) -> PerScore:
        return PerScore(name, score, self.plan.block, self.plan.rows)

    def at(self, first: Expr, row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
        query, key = ir.add(first, row), ir.add(self.first, column)
        return self.n, ir.minimum(query, self.s.queries - 1), ir.minimum(key, self.s.keys - 1)

    def kept_at(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        row, column = ir.accumulator_element(lane, number)
        return column, row

    def walk(self) -> tuple[Expr, Expr]:
        block = const(self.plan.block)
        stop = ir.idiv(ir.add(self.s.queries, const(self.plan.block - 1)), block)
        return ir.idiv(self.first, block) if self.causal else ZERO, stop

    def masks(self, first: Expr) -> Expr:
        beyond = ir.add(first, const(self.plan.block)) > self.s.queries
        early = first < ir.add(self.first, const(self.plan.rows - 1))
        return beyond | early if self.causal else beyond

    def seen(self, lane: Expr, first: Expr) -> Callable[[int], Expr]:
        _, column = ir.accumulator_element(lane, 0)
        query = ir.add(first, column)
        limit = ir.sub(self.s.queries, query).cast(dt.int32)
        starts = []
        for h in range(2):
            row, _ = ir.accumulator_element(lane, 2 * h)
            starts.append(ir.sub(ir.add(self.first, row), query).cast(dt.int32))

        def seen(i: int) -> Expr:
            away = const(i // 4 * 8 + i % 2, dt.int32)
            return (away < limit) & (away >= starts[half(i)]) if self.causal else away < limit

        return seen

    def per_query(self, name: str, lane: Expr, number: int, stage: Expr) -> Expr:
        return self.lines[name].at(ir.accumulator_element(lane, number)[1], stage)

    def bring(self, tag: str, j: Expr) -> list[Stmt]:
        first, stage = ir.mul(j, const(self.plan.block)), ir.irem(j, const(STAGES))
        out = super().bring(tag, j)
        for line in self.lines.values():
            out += line.bring(tag, self.plan.threads, self.n, first, self.s.queries, stage)
        return out

    def products(self, stage: Expr) -> list[Stmt]:
        p = self.plan
        out: list[Stmt] = []
        if self.dv:
            g = self.tiles["g"].across(stage)
            out.append(ir.Wgmma(self.dv, self.scores, g, p.width, p.block))
        if self.dk:
            q = self.tiles["q"].across(stage)
            out.append(ir.Wgmma(self.dk, self.change, q, p.size, p.block))
        return [*out, ir.WgmmaWait([*self.dv, *self.dk], 0)]

    def body(self) -> list[Stmt]:
        out = [
            *self.start(),
            *(ir.Set(x, NOTHING) for x in (*self.dk, *self.dv)),
            *self.loop(),
        ]
        if "v" in self.o.writes:
            out += self.leave("dv", self.dv, self.s.width, self.o.writes["v"], False)
        if "k" in self.o.writes:
            out += self.leave("dk", self.dk, self.s.size, self.o.writes["k"], True)
        return out
