"""Attention by units that multiply tiles: 16-bit floats on targets that have them.

Every 128 threads of a group have 64 queries. The group walks the keys in blocks, of which the next
is on its way while the current one is multiplied. Scores are sums of a tile product and stay in
registers, where a row lies with four neighbouring threads: they raise the running maximum, become
powers of two, and are at once the left operand of the product with the values. What is read for
each score (a mask, dropout) is laid out in the group's memory first, a block at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.operands import Operands, Score
from numus.kernels.common.smem_tiles import (
    ONE,
    ZERO,
    Matrix,
    Tile,
    leave,
    rounded,
    stage_buffer,
    stage_bytes,
    tile_bytes,
)
from numus.kernels.math import FUNCTIONS
from numus.target import Target

LOG2E = math.log2(math.e)
LOWEST = const(-math.inf, float32)
NOTHING = const(0.0, float32)
STAGES = 2
PAD = 8  # floats between rows of scores in the group's memory: shifts their banks
WIDEST = 256  # columns of a tile product
# Registers of a thread for sums and operands where a unit has one group of 256, and where two.
ONE_FITS, TWO_FIT = 176, 80


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data: all of it shapes the code."""

    threads: int
    keys: int  # in a block
    size: int  # of queries and keys, rounded up
    width: int  # of values

    @property
    def rows(self) -> int:
        """Queries of a group."""
        return self.threads // 2

    def memory(self, scores: int) -> int:
        """Bytes that the group needs, `scores` of them kept for each score."""
        need = tile_bytes(self.rows, self.size) + stage_bytes(self.rows)
        need += STAGES * (tile_bytes(self.keys, self.size) + tile_bytes(self.keys, self.width))
        return need + scores * 4 * self.rows * (self.keys + PAD)


def choose(
    target: Target, queries: int, keys: int, size: int, width: int, scores: int
) -> Plan | None:
    """The longest blocks for which a unit has registers and memory for two groups, which multiply
    in turns, or else for one; None where there are none."""
    if max(size, width) > WIDEST or not size:
        return None
    threads = 128 if queries <= 64 else 256
    size, width = rounded(size, 16), rounded(width, 16)
    for groups, most in ((2, TWO_FIT), (1, ONE_FITS)):
        for block in (128, 64, 32):
            plan = Plan(threads, block, size, width)
            registers = block // 2 + block // 4 + width // 2
            if registers > most or groups * plan.memory(scores) > target.shared_bytes:
                continue
            if keys <= block // 2 and block > 32:
                continue
            if groups == 1 or block > 32:
                return plan
    return None


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    queries: Expr
    keys: Expr
    width: Expr
    tasks: Expr  # of each matrix


def attention(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands[Matrix], causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch."""
    group = _Group(plan, sizes, dtype, g, operands, causal)
    return group.body(), group.scratch


class PerScore:
    """What is read for each score of a block, laid out in the group's memory."""

    def __init__(self, name: str, score: Score, rows: int, columns: int) -> None:
        self.name, self.score, self.rows, self.columns = name, score, rows, columns
        self.pitch = columns + PAD
        self.buffer = ir.Buffer(name, float32, "scratch", const(rows * self.pitch))

    def lay(
        self, tag: str, at: Callable[[Expr, Expr], tuple[Expr, Expr, Expr]], factor: float = 1.0
    ) -> Stmt:
        """`at(row, column)` tells matrix, query and key of a place, all of them inside."""
        i = ir.var(f"{self.name}_{tag}")
        row, column = ir.idiv(i, const(self.columns)), ir.irem(i, const(self.columns))
        value = self.score(*at(row, column))
        if factor != 1:
            value = value * const(factor, float32)
        store = ir.Store(self.buffer, ir.add(ir.mul(row, const(self.pitch)), column), value)
        return ir.For(i, ZERO, const(self.rows * self.columns), "lanes", [store])

    def of(self, row: Expr, column: Expr) -> Expr:
        return ir.load(self.buffer, ir.add(ir.mul(row, const(self.pitch)), column))


def tree(values: list[Expr], merge: Callable[[Expr, Expr], Expr]) -> Expr:
    while len(values) > 1:
        pairs = [merge(a, b) for a, b in zip(values[::2], values[1::2], strict=False)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def over_row(value: Expr, merge: Callable[[Expr, Expr], Expr]) -> Expr:
    """Merge what the four threads of a row have."""
    for mask in (1, 2):
        value = merge(value, ir.lanes_xor(value, mask))
    return value


def sums(name: str, columns: int) -> list[ir.Register]:
    """The registers of a tile product of so many columns."""
    return [ir.Register(f"{name}{i}", float32, lanes=True) for i in range(columns // 2)]


def half(number: int) -> int:
    """Which of a thread's two rows a sum belongs to."""
    return number // 2 % 2


class Seen:
    """Whether the query of a sum looks at its key; both are small enough for 32 bits."""

    def __init__(self, lane: Expr, first: Expr, block: Expr, keys: Expr, causal: bool) -> None:
        self.limits: list[Expr] = []
        for h in range(2):
            row, column = ir.accumulator_element(lane, 2 * h)
            limit = keys
            if causal:
                limit = ir.minimum(ir.add(ir.add(first, row), ONE), keys)
            self.limits.append(ir.sub(limit, ir.add(block, column)).cast(dt.int32))

    def of(self, number: int) -> Expr:
        return const(number // 4 * 8 + number % 2, dt.int32) < self.limits[half(number)]


class _Group:
    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands[Matrix], causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal = plan, sizes, o, causal
        self.n = ir.idiv(g, sizes.tasks)
        # under a causal mask later queries have more to do: they come first
        number = ir.sub(ir.sub(sizes.tasks, ONE), ir.irem(g, sizes.tasks))
        self.first = ir.mul(number, const(plan.rows))
        self.last = ir.minimum(ir.add(self.first, const(plan.rows)), sizes.queries)
        self.visible = ir.minimum(sizes.keys, self.last) if causal else sizes.keys
        self.q = Tile("queries", o.q, dtype, plan.rows, plan.size)
        self.k = Tile("keys", o.k, dtype, plan.keys, plan.size, STAGES)
        self.scratch = [self.q.buffer, self.k.buffer]
        self.v: Tile | None = None
        if o.v is not None:
            self.v = Tile("values", o.v, dtype, plan.keys, plan.width, STAGES)
            self.stage = stage_buffer(plan.rows)
            self.scratch += [self.v.buffer, self.stage]
        self.per_score: dict[str, PerScore] = {}
        for name, score in (("bias", o.bias), ("keep", o.keep)):
            if score is not None:
                found = PerScore(name, score, plan.rows, plan.keys)
                self.per_score[name] = found
                self.scratch.append(found.buffer)
        self.scores = sums("s", plan.keys)
        self.result = sums("o", plan.width) if o.v is not None else []
        self.tops = [ir.Register(f"top{h}", float32, lanes=True) for h in range(2)]
        self.totals = [ir.Register(f"total{h}", float32, lanes=True) for h in range(2)]
        self.factor = ir.var("factor", float32)

    def body(self) -> list[Stmt]:
        p, keys = self.plan, const(self.plan.keys)
        blocks = ir.idiv(ir.add(self.visible, const(p.keys - 1)), keys)
        # blocks of which every query sees every key need no mask
        free = ir.minimum(ir.add(self.first, ONE), self.s.keys) if self.causal else self.s.keys
        free = ir.idiv(free, keys)
        out: list[Stmt] = [
            ir.Let(self.factor, self.o.scale * const(LOG2E, float32)),
            *(ir.Set(x, NOTHING) for x in (*self.result, *self.totals)),
            *(ir.Set(x, LOWEST) for x in self.tops),
            *self.q.bring("all", p.threads, self.n, self.first, self.last),
            *self._bring("first", ZERO),
            ir.AsyncCommit(),
        ]
        for tag, start, stop in (("free", ZERO, free), ("masked", free, blocks)):
            j = ir.var(f"{tag}_block")
            body = self._block(tag, j, blocks)
            out.append(ir.For(j, start, stop, "serial", body))
        return [*out, *self._finish()]

    def _bring(self, tag: str, j: Expr) -> list[Stmt]:
        """The j-th block of keys, and its values."""
        p = self.plan
        out: list[Stmt] = []
        for tile in (self.k, self.v):
            if tile is not None:
                first, stage = ir.mul(j, const(p.keys)), ir.irem(j, const(STAGES))
                out += tile.bring(tag, p.threads, self.n, first, self.visible, stage)
        return out

    def _block(self, tag: str, j: Expr, blocks: Expr) -> list[Stmt]:
        p, s = self.plan, self.s
        stage, first_key = ir.irem(j, const(STAGES)), ir.mul(j, const(p.keys))
        following = ir.add(j, ONE)
        out: list[Stmt] = [
            ir.AsyncWait(0, fence=True),
            ir.If(following < blocks, self._bring(tag, following)),
            ir.AsyncCommit(),
            ir.Wgmma(
                self.scores, self.q.along(), self.k.along(stage), p.keys, p.size, zero_init=True
            ),
        ]

        def at(row: Expr, column: Expr) -> tuple[Expr, Expr, Expr]:
            query, key = ir.add(self.first, row), ir.add(first_key, column)
            return self.n, ir.minimum(query, s.queries - 1), ir.minimum(key, s.keys - 1)

        for name, kept in self.per_score.items():
            out.append(kept.lay(tag, at, LOG2E if name == "bias" else 1.0))
        out += [ir.WgmmaWait(self.scores, 0), self._softmax(tag, first_key)]
        if self.v is not None:
            values = self.v.across(stage)
            out += [
                ir.Wgmma(self.result, self.scores, values, p.width, p.keys),
                ir.WgmmaWait(self.result, 0),
            ]
        return out

    def _softmax(self, tag: str, first_key: Expr) -> Stmt:
        """Scores become powers; what was summed up before is scaled down."""
        lane = ir.var(f"{tag}_thread")
        bias, keep = self.per_score.get("bias"), self.per_score.get("keep")
        seen = Seen(lane, self.first, first_key, self.s.keys, self.causal)
        body: list[Stmt] = []
        names: list[Expr] = []
        for i, register in enumerate(self.scores):
            value = ir.read(register) * self.factor
            if bias is not None:
                value = ir.fma(
                    ir.read(register), self.factor, bias.of(*ir.accumulator_element(lane, i))
                )
            if tag == "masked":
                value = select(seen.of(i), value, LOWEST)
            names.append(ir.var(f"score{i}", float32))
            body.append(ir.Let(names[i], value))
        shifts, decays = [], []
        for h, (top, total) in enumerate(zip(self.tops, self.totals, strict=True)):
            own = [x for i, x in enumerate(names) if half(i) == h]
            new = over_row(tree([*own, ir.read(top)], ir.maximum), ir.maximum)
            found, shift, decay = (ir.var(f"{x}{h}", float32) for x in ("new", "shift", "decay"))
            body += [
                ir.Let(found, new),
                ir.Let(shift, select(found.eq(LOWEST), NOTHING, found)),
                ir.Let(decay, ir.exp2(ir.read(top) - shift)),
                ir.Set(top, found),
                ir.Set(total, ir.read(total) * decay),
            ]
            shifts.append(shift)
            decays.append(decay)
        powers: list[Expr] = []
        for i, register in enumerate(self.scores):
            powers.append(ir.var(f"power{i}", float32))
            body.append(ir.Let(powers[i], ir.exp2(names[i] - shifts[half(i)])))
            kept = powers[i]
            if keep is not None:
                kept = kept * keep.of(*ir.accumulator_element(lane, i))
            body.append(ir.Set(register, kept))
        for h, total in enumerate(self.totals):
            own = [x for i, x in enumerate(powers) if half(i) == h]
            body.append(ir.Set(total, ir.read(total) + tree(own, ir.add)))
        for i, register in enumerate(self.result):
            body.append(ir.Set(register, ir.read(register) * decays[half(i)]))
        return ir.For(lane, ZERO, const(self.plan.threads), "lanes", body)

    def _finish(self) -> list[Stmt]:
        p, s, lane = self.plan, self.s, ir.var("finish")
        one = const(1.0, float32)
        body: list[Stmt] = []
        for h, (top, total) in enumerate(zip(self.tops, self.totals, strict=True)):
            whole = ir.var(f"whole{h}", float32)
            body.append(ir.Let(whole, over_row(ir.read(total), ir.add)))
            lse = ir.fma(ir.read(top), const(1 / LOG2E, float32), FUNCTIONS["log"](whole))
            lse = select(whole.eq(NOTHING), const(math.inf, float32), lse)
            row, column = ir.accumulator_element(lane, 2 * h)
            query = ir.add(self.first, row)
            done = self.o.write_lse(self.n, query, lse)
            if done:
                body.append(ir.If(column.eq(0) & (query < s.queries), done))
            factor = select(whole.eq(NOTHING), NOTHING, one / whole)
            body.append(ir.Set(total, factor))
        out: list[Stmt] = [ir.For(lane, ZERO, const(p.threads), "lanes", body)]
        if self.v is None:
            return out

        def value(number: int, lane: Expr) -> Expr:
            return ir.read(self.result[number]) * ir.read(self.totals[half(number)])

        def exists(row: Expr, column: Expr) -> Expr:
            return (ir.add(self.first, row) < s.queries) & (column < s.width)

        def write(row: Expr, column: Expr, x: Expr) -> list[Stmt]:
            return self.o.write(self.n, ir.add(self.first, row), column, x)

        return [*out, *leave("o", p.threads, self.stage, p.width, value, write, exists)]
