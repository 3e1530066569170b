"""Flash-Decoding's second step (Dao et al. 2023): the splits of a head's keys make one result.

Each split comes with the maximum of its scores, the sum of their exponentials, and the columns that
these weigh. They are combined in a fixed order, by the blocks of a cluster or by a second kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const, select
from numus.kernels.attention.gpu.block import FwdOperands
from numus.kernels.attention.gpu.wgmma_forward import LOG2E, tree_reduce
from numus.kernels.math import FUNCTIONS
from numus.kernels.matmul.gpu.problem import multiply_add

Decay = Callable[[Expr], Expr]  # e**x for x <= 0


def approx_decay(x: Expr) -> Expr:
    """e**x by the special-function unit, for results that are rounded to 16 bits."""
    return ir.exp2(x * const(LOG2E, x.dtype))


@dataclass(slots=True)
class SplitSizes:
    """Launch arguments."""

    keys: Expr
    head_dim: Expr
    value_dim: Expr
    splits: Expr
    chunk: Expr  # keys of a split


@dataclass(slots=True)
class Partials:
    """Results of the splits in memory: (matrix, query, split) maxima and sums, and the columns of
    each."""

    maxima: ir.Buffer
    sums: ir.Buffer
    columns: ir.Buffer


def combined(
    parts: Sequence[tuple[Expr, ...]], dtype: DType, decay: Decay
) -> tuple[list[Stmt], Expr, Expr]:
    """Of the maximum, the sum and a column of each split: statements, the column of the result, and
    the log-sum-exp. They load all that they need at once."""
    infinite, zero, one = const(-math.inf, dtype), const(0, dtype), const(1, dtype)
    maxima, sums, columns, factors = (
        [ir.var(f"{name}{s}", dtype) for s in range(len(parts))]
        for name in ("maximum", "sum", "column", "factor")
    )
    body: list[Stmt] = []
    for names, part in zip(zip(maxima, sums, columns, strict=True), parts, strict=True):
        body += ir.lets(list(names), list(part))
    largest, shift = ir.var("all_largest", dtype), ir.var("all_shift", dtype)
    total, result = ir.var("total", dtype), ir.var("result", dtype)
    body += [
        ir.Let(largest, tree_reduce(list(maxima), ir.maximum)),
        ir.Let(shift, select(largest.eq(infinite), zero, largest)),
    ]
    new, whole = zero, zero
    for s in range(len(parts)):
        body.append(ir.Let(factors[s], decay(maxima[s] - shift)))
        new = multiply_add(columns[s], factors[s], new)
        whole = multiply_add(sums[s], factors[s], whole)
    none = total.eq(zero)
    body += [ir.Let(total, whole), ir.Let(result, new * select(none, zero, one / total))]
    lse = select(none, const(math.inf, dtype), largest + FUNCTIONS["log"](total))
    return body, result, lse


@dataclass(slots=True)
class CombineKernel:
    """The second kernel: a block for each (matrix, query), a thread for a column or several. It is
    bound by latency: every thread loads all that it needs at once, and waits for no other."""

    sizes: SplitSizes
    dtype: DType
    row: Expr  # number of the block
    operands: FwdOperands
    partials: Partials
    counts: tuple[int, int]  # of queries and splits
    threads: int
    decay: Decay
    scratch: list[ir.Buffer] = field(default_factory=list)

    def body(self) -> list[Stmt]:
        queries, splits = self.counts
        p, first = self.partials, self.row * splits
        n, r = self.row // queries, self.row % queries
        lane = ir.var("lane")
        parts = [
            (
                ir.load(p.maxima, at),
                ir.load(p.sums, at),
                ir.load(p.columns, at * self.sizes.value_dim + lane),
            )
            for at in (first + s for s in range(splits))
        ]
        body, result, lse = combined(parts, self.dtype, self.decay)
        body += self.operands.write(n, r, lane, result)
        told = self.operands.write_lse(n, r, lse)
        if told:
            body.append(ir.If(lane.eq(0), told))
        return [ir.For(lane, const(0), self.sizes.value_dim, "lanes", body)]
