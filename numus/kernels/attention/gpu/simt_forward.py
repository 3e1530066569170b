"""Attention for groups of threads, of any dtype: tiles of scores, an online softmax, products.

A group has a block of queries and walks the keys, block by block, through the group's memory.
Scores are a tile of sums; the threads of a row share its running maximum; weights go through the
group's memory to the product with the values, whose sums stay in registers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.simt_tiles import (
    ONE,
    STEPS,
    ZERO,
    Element,
    Lines,
    Sums,
    Threads,
    fill,
    rounded,
)
from numus.kernels.attention.gpu.wgmma_forward import Sizes, tree
from numus.kernels.attention.operands import Operands
from numus.kernels.common.smem_tiles import Matrix
from numus.kernels.math import FUNCTIONS, exp_decay
from numus.target import Target

REGISTERS = 100  # of a thread, for sums


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data: all of it shapes the code."""

    threads: int
    rows: int  # queries (or keys) of a group
    block: int  # keys (or queries) that are walked at a time
    size: int  # of queries and keys, rounded up
    width: int  # of values


def plans(target: Target, dtype: DType, rows: int, block: int, size: int, width: int) -> list[Plan]:
    """What could be done, the largest tiles first."""
    threads = Threads.of(min(target.block_size, 256))
    across = threads.across
    found = []
    for own in (4, 2, 1):
        for other in (4, 2, 1):
            plan = Plan(
                threads.count,
                own * threads.down,
                other * across,
                rounded(size, max(across, STEPS)),
                rounded(width, max(across, STEPS)),
            )
            smaller = (own > 1 and 2 * rows <= plan.rows) or (other > 1 and 2 * block <= plan.block)
            if not smaller and plan.block % STEPS == 0:
                found.append(plan)
    return found


def sums_of(plan: Plan, *columns: int) -> int:
    """Registers for tiles of so many columns."""
    return sum(plan.rows * n // plan.threads for n in columns)


def choose(
    target: Target, dtype: DType, queries: int, keys: int, size: int, width: int
) -> Plan | None:
    """The largest tiles for which there are registers and memory; None where there are none."""
    words = dtype.itemsize // 4
    for p in plans(target, dtype, queries, keys, size, width):
        need = Lines.bytes(dtype, p.size, p.rows) + Lines.bytes(dtype, p.size, p.block)
        need += Lines.bytes(dtype, p.block, p.width) + Lines.bytes(dtype, p.block, p.rows)
        if need <= target.shared_bytes and words * sums_of(p, p.block, p.width) <= REGISTERS:
            return p
    return None


def reading(matrix: Matrix, n: Expr, first: Expr, dtype: DType) -> Element:
    """The elements of a block of a matrix that begins at row `first`."""
    return lambda row, column, mask: matrix.read(n, ir.add(first, row), column, mask).cast(dtype)


def attention(
    plan: Plan, sizes: Sizes, dtype: DType, g: Expr, operands: Operands[Matrix], causal: bool
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch; `dtype` is that of the computation."""
    group = _Group(plan, sizes, dtype, g, operands, causal)
    return group.body(), group.scratch


class _Group:
    def __init__(
        self, plan: Plan, sizes: Sizes, dtype: DType, g: Expr, o: Operands[Matrix], causal: bool
    ) -> None:
        self.plan, self.s, self.o, self.causal, self.dtype = plan, sizes, o, causal, dtype
        self.threads = Threads.of(plan.threads)
        self.n = ir.idiv(g, sizes.tasks)
        # under a causal mask later queries have more to do: they come first
        number = ir.sub(ir.sub(sizes.tasks, ONE), ir.irem(g, sizes.tasks))
        self.first = ir.mul(number, const(plan.rows))
        last = ir.minimum(ir.add(self.first, const(plan.rows)), sizes.queries)
        self.visible = ir.minimum(sizes.keys, last) if causal else sizes.keys
        self.q = Lines("queries", dtype, plan.size, plan.rows)
        self.k = Lines("keys", dtype, plan.size, plan.block)
        self.scores = Sums("s", self.threads, dtype, plan.rows, plan.block)
        self.scratch = [self.q.buffer, self.k.buffer]
        if o.v is not None:
            self.v = Lines("values", dtype, plan.block, plan.width)
            self.weights = Lines("weights", dtype, plan.block, plan.rows)
            self.result = Sums("o", self.threads, dtype, plan.rows, plan.width)
            self.scratch += [self.v.buffer, self.weights.buffer]
        rows = range(self.scores.down)
        self.tops = [ir.Register(f"top{i}", dtype, lanes=True) for i in rows]
        self.totals = [ir.Register(f"total{i}", dtype, lanes=True) for i in rows]
        self.lowest, self.nothing = const(-math.inf, dtype), const(0, dtype)

    def body(self) -> list[Stmt]:
        p, s, o = self.plan, self.s, self.o
        kb = ir.var("key_block")
        block: list[Stmt] = [
            fill(
                *("k", self.threads, self.dtype, reading(o.k, self.n, kb, self.dtype)),
                *(p.block, p.size),
                lambda r, c: (ir.add(kb, r) < self.visible) & (c < o.k.columns),
                turned=self.k,
            )
        ]
        if o.v is not None:
            width = o.v.columns
            values = fill(
                *("v", self.threads, self.dtype, reading(o.v, self.n, kb, self.dtype)),
                *(p.block, p.width),
                lambda r, c: (ir.add(kb, r) < self.visible) & (c < width),
                plain=self.v,
            )
            block.append(values)
        block.append(self.threads.loop("scores", lambda lane: self._softmax(lane, kb)))
        if o.v is not None:
            product = self.threads.loop(
                "product", lambda lane: [self.result.add(lane, self.weights, self.v)]
            )
            block.append(product)
        return [
            *([] if o.v is None else self.result.clear()),
            *(ir.Set(x, self.nothing) for x in self.totals),
            *(ir.Set(x, self.lowest) for x in self.tops),
            fill(
                *("q", self.threads, self.dtype, reading(o.q, self.n, self.first, self.dtype)),
                *(p.rows, p.size),
                lambda r, c: (ir.add(self.first, r) < s.queries) & (c < o.q.columns),
                turned=self.q,
            ),
            ir.For(kb, ZERO, self.visible, "serial", block, step=const(p.block)),
            self.threads.loop("finish", self._finish),
        ]

    def _softmax(self, lane: Expr, kb: Expr) -> list[Stmt]:
        """Scores become powers; what was summed up before is scaled down."""
        s, o, scores = self.s, self.o, self.scores
        body: list[Stmt] = [*scores.clear(), scores.add(lane, self.q, self.k)]
        for i in range(scores.down):
            query = ir.add(self.first, scores.row(lane, i))
            limit = ir.minimum(ir.add(query, ONE), s.keys) if self.causal else s.keys
            inside = ir.minimum(query, s.queries - 1)
            names, keys = [], []
            for j in range(scores.across):
                key = ir.add(kb, scores.column(lane, j))
                keys.append(ir.minimum(key, s.keys - 1))
                value = scores.read(i, j) * o.scale
                if o.bias is not None:
                    value = value + o.bias(self.n, inside, keys[j])
                names.append(ir.var(f"score{i}_{j}", self.dtype))
                body.append(ir.Let(names[j], select(key < limit, value, self.lowest)))
            top, total = self.tops[i], self.totals[i]
            new = tree([*names, ir.read(top)], ir.maximum)
            found, shift, decay = (ir.var(f"{x}{i}", self.dtype) for x in ("new", "shift", "decay"))
            body += [
                ir.Let(found, self.threads.over_row(new, ir.maximum)),
                ir.Let(shift, select(found.eq(self.lowest), self.nothing, found)),
                ir.Let(decay, exp_decay(ir.read(top) - shift)),
                ir.Set(top, found),
            ]
            powers = []
            for j, name in enumerate(names):
                powers.append(ir.var(f"power{i}_{j}", self.dtype))
                body.append(ir.Let(powers[j], exp_decay(name - shift)))
                if o.v is not None:
                    kept = powers[j]
                    if o.keep is not None:
                        kept = kept * o.keep(self.n, inside, keys[j])
                    at = self.weights.at(scores.column(lane, j), scores.row(lane, i))
                    body.append(ir.Store(self.weights.buffer, at, kept))
            body.append(ir.Set(total, ir.read(total) * decay + tree(powers, ir.add)))
            if o.v is not None:
                for register in self.result.registers[i]:
                    body.append(ir.Set(register, ir.read(register) * decay))
        return body

    def _finish(self, lane: Expr) -> list[Stmt]:
        s, o = self.s, self.o
        one = const(1, self.dtype)
        body: list[Stmt] = []
        for i in range(self.scores.down):
            query = ir.add(self.first, self.scores.row(lane, i))
            whole, factor = ir.var(f"whole{i}", self.dtype), ir.var(f"factor{i}", self.dtype)
            lse = ir.read(self.tops[i]) + FUNCTIONS["log"](whole)
            lse = select(whole.eq(self.nothing), const(math.inf, self.dtype), lse)
            body += [
                ir.Let(whole, self.threads.over_row(ir.read(self.totals[i]), ir.add)),
                ir.Let(factor, select(whole.eq(self.nothing), self.nothing, one / whole)),
            ]
            done = o.write_lse(self.n, query, lse)
            if done:
                speaks = self.threads.column(lane).eq(0) & (query < s.queries)
                body.append(ir.If(speaks, done))
            if o.v is not None:
                for j in range(self.result.across):
                    column = self.result.column(lane, j)
                    stores = o.write(self.n, query, column, self.result.read(i, j) * factor)
                    body.append(ir.If((query < s.queries) & (column < s.width), stores))
        return body
