"""Thin contractions: a matrix, whose rows lie along k, times a few vectors; it is read once.

Lanes go along k. Several rows are gone through at a time, which keeps more of memory on its way
and uses what is loaded of the vectors more than once; every element of the result is the sum of
its lanes at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import LINE, fuses
from numus.kernels.matmul.cpu.panels import Matrix
from numus.target import Target

ZERO, ONE = const(0), const(1)

FEW = 8  # vectors at most
TASK = 1 << 16  # elements of the matrix that a task reads, at least
TASKS = 64  # for each thread: threads take several at first, and end together

Finish = Callable[[Expr, Expr, Expr, Any], list[Stmt]]  # (batch, row, vector, value)


@dataclass(frozen=True, slots=True)
class Dots:
    """A schedule as data. All but the last shape the code."""

    rows: int  # that are gone through together
    vectors: int
    unroll: int  # vectors of lanes of each sum
    fused: bool  # whether a product and its sum are one operation
    task_rows: int


def choose(target: Target, dtype: DType, batch: int, rows: int, vectors: int, k: int) -> Dots:
    """Half of the registers for sums; tasks that are neither few nor small.

    More rows side by side keep more of memory on its way, as long as each is read by whole lines:
    rows that are a power of two apart push each other's lines out of the first cache.
    """
    sums = target.vector_registers // 2
    line = max(1, LINE // target.vector_bytes)
    side_by_side = max(1, min(4, sums // vectors), min(8, sums // (vectors * line)))
    wanted = -(-target.num_cores * TASKS // batch)
    task_rows = max(-(-rows // wanted), -(-TASK // k))
    task_rows = -(-task_rows // side_by_side) * side_by_side
    unroll = max(1, sums // (side_by_side * vectors))
    return Dots(side_by_side, vectors, unroll, fuses(target, dtype), task_rows)


def dots(
    schedule: Dots,
    dtype: DType,
    sizes: tuple[Expr, Expr, Expr, Expr],
    g: Expr,
    matrix: Matrix,
    vectors: Matrix,
    packed: bool,
    finish: Finish,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The statements of task g, and the scratch memory that it needs; `sizes` are the rows, k,
    the rows of a task and how many tasks there are. `packed`: copy the vectors before use.
    """
    extent, k_size, per_task, tasks = sizes
    batch = ir.idiv(g, tasks)
    first = ir.mul(ir.irem(g, tasks), per_task)
    stop = ir.minimum(ir.add(first, per_task), extent)
    out: list[Stmt] = []
    scratch: list[ir.Buffer] = []
    count = range(schedule.vectors)
    read = vectors.read
    if packed:
        size = ir.mul(const(schedule.vectors), k_size)
        copy = ir.Buffer("vectors", dtype, "scratch", size)
        scratch.append(copy)
        c = ir.var("copy_k")
        for v in count:
            at = ir.add(ir.mul(const(v), k_size), c)
            store = ir.Store(copy, at, vectors.read(batch, const(v), c, None))
            out.append(ir.For(c, ZERO, k_size, "lanes", [store]))

        def read(batch: Expr, v: Expr, k: Expr, mask: Expr | None) -> Expr:
            return ir.load(copy, ir.add(ir.mul(v, k_size), k), mask)

    r, k = ir.var("r"), ir.var("k")
    lines = range(schedule.rows)
    sums = [[ir.Register(f"d{i}_{v}", dtype, lanes=True) for v in count] for i in lines]
    step: list[Stmt] = []
    for v in count:
        step.append(ir.Let(ir.var(f"x{v}", dtype), read(batch, const(v), k, None)))
    for i in lines:
        row = ir.minimum(ir.add(r, const(i)), ir.sub(extent, ONE))
        name = ir.var(f"a{i}", dtype)
        step.append(ir.Let(name, matrix.read(batch, row, k, None)))
        for v in count:
            x, old = ir.var(f"x{v}", dtype), ir.read(sums[i][v])
            new = ir.fma(name, x, old) if schedule.fused else old + name * x
            step.append(ir.Set(sums[i][v], new))
    body: list[Stmt] = [ir.Set(s, const(0, dtype)) for line in sums for s in line]
    body.append(ir.For(k, ZERO, k_size, "lanes", step, unroll=schedule.unroll))
    for i in lines:
        row = ir.add(r, const(i))
        stores: list[Stmt] = []
        for v in count:
            total = ir.var(f"total{i}_{v}", dtype)
            stores.append(ir.Let(total, ir.lanes_reduce("add", sums[i][v])))
            stores += finish(batch, row, const(v), total)
        body += [ir.If(row < stop, stores)] if i else stores
    out.append(ir.For(r, first, stop, "serial", body, step=const(schedule.rows)))
    return out, scratch
