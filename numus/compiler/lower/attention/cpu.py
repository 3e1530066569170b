"""Attention groups: the schedule, and how it reads its operands through what is fused into them."""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower import output_views
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.attention.cpu import backward
from numus.kernels.attention.cpu import forward as schedule
from numus.kernels.attention.operands import (
    GradOperands,
    Matrix,
    Operands,
    PerQuery,
    Score,
    Write,
)
from numus.shapes import Shape
from numus.target import Target


class Reader:
    """The inputs of an attention primitive by name, as functions of indices."""

    def __init__(self, val: Value, e: Emitter, dtype: DType) -> None:
        self.vals: dict[str, Value] = dict(zip(val.params.names, val.inputs, strict=True))
        self.e, self.dtype = e, dtype

    def value(self, name: str, *index: Expr, mask: Expr | None = None) -> Expr:
        val = self.vals[name]
        at = tuple(ir.const(0) if n == 1 else i for n, i in zip(val.shape, index, strict=True))
        found: Expr = self.e.value(val, at, mask)
        return found.cast(self.dtype)

    def matrix(self, name: str) -> schedule.Element:
        return lambda n, row, column: self.value(name, n, row, column)

    def scores(self, name: str) -> Score | None:
        return self.matrix(name) if name in self.vals else None

    def per_query(self, name: str) -> backward.PerQuery:
        return lambda n, i, mask: self.value(name, n, i, mask=mask)


def store(
    e: Emitter, group: FusionGroup, val: Value, index: tuple[Expr, ...], value: Expr
) -> list[Stmt]:
    at = tuple(ir.const(0) if n == 1 else i for n, i in zip(val.shape, index, strict=True))
    return output_views.store(e, group, val, at, value)


def operands_of(
    group: FusionGroup,
    reader: Reader,
    out: Value | None,
    lse: Value | None,
    matrix: Callable[[str], Matrix],
) -> Operands[Matrix]:
    """What a schedule of attention reads, as it reads matrices, and writes."""
    e = reader.e
    return Operands(
        q=matrix("q"),
        k=matrix("k"),
        v=None if out is None else matrix("v"),
        scale=reader.value("scale"),
        bias=reader.scores("bias"),
        keep=reader.scores("keep"),
        write=lambda n, i, j, x: [] if out is None else store(e, group, out, (n, i, j), x),
        write_lse=lambda n, i, x: [] if lse is None else store(e, group, lse, (n, i), x),
    )


def grad_operands_of(
    group: FusionGroup,
    reader: Reader,
    wanted: dict[str, Value],
    matrix: Callable[[str], Matrix],
    per_query: Callable[[str], PerQuery],
) -> GradOperands[Matrix, PerQuery]:
    """What a schedule of its derivative reads, as it reads matrices and numbers of queries, and
    writes."""

    def writer(val: Value) -> Write:
        return lambda n, i, j, x: store(reader.e, group, val, (n, i, j), x)

    return GradOperands(
        q=matrix("q"),
        k=matrix("k"),
        v=matrix("v"),
        g=matrix("g"),
        scale=reader.value("scale"),
        lse=per_query("lse"),
        delta=per_query("delta"),
        bias=reader.scores("bias"),
        keep=reader.scores("keep"),
        writes={name: writer(val) for name, val in wanted.items()},
    )


def wanted_of(group: FusionGroup) -> dict[str, Value]:
    """The cotangents that somebody reads, by their operands' names."""
    parts = [v for v in group.members if v.op == "attention_grad"]
    return {v.params.which: v for v in parts if output_views.places(group, v)}


def lower_attention(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """One kernel: the result, the logarithms of the sums, or both."""
    lse = next((v for v in group.members if v.op == "attention_lse"), None)
    out = next((v for v in group.members if v.op == "attention"), None)
    val = out or lse
    assert val is not None
    e = Emitter(group.outside(layouts), block_size=target.block_size)
    dtype = dt.compute_dtype(val.dtype)
    reader = Reader(val, e, dtype)
    (stack, queries, size), keys = reader.vals["q"].shape, reader.vals["k"].shape[1]
    width = out.shape[2] if out is not None else 0
    plan = schedule.choose(target, dtype, stack, queries, keys, size, width)
    tasks = -(-queries // plan.rows)
    sizes = schedule.Sizes(
        *(e.dim(x) for x in (queries, keys, size, width)),
        *(e.scalar_arg(x) for x in (plan.keys, plan.rows, tasks)),
    )
    operands = operands_of(group, reader, out, lse, reader.matrix)
    g = ir.var("g")
    body, scratch = schedule.attention(plan, sizes, dtype, g, operands, val.params.causal)
    e.scratch += scratch
    return [e.grid_kernel("attention", g, body, stack * tasks, group.notes)]


def lower_attention_grad(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """One kernel for all cotangents that are wanted; or one for that of the queries and one for the
    others, where there are too few matrices to give every thread its own.
    """
    stack = group.members[0].inputs[0].shape[0]
    whole = wanted_of(group)
    queries = {name: v for name, v in whole.items() if name == "q"}
    keys = {name: v for name, v in whole.items() if name != "q"}
    if queries and keys and not backward.apart(target, stack):
        return [_grad_kernel(whole, layouts, target, group)]
    return [_grad_kernel(part, layouts, target, group) for part in (queries, keys) if part]


def _grad_kernel(
    wanted: dict[str, Value], layouts: dict[Value, Shape], target: Target, group: FusionGroup
) -> LoweredKernel:
    val = next(iter(wanted.values()))
    e = Emitter(group.outside(layouts), block_size=target.block_size)
    dtype = dt.compute_dtype(val.dtype)
    reader = Reader(val, e, dtype)
    (stack, queries, size), keys = reader.vals["q"].shape, reader.vals["k"].shape[1]
    width = reader.vals["v"].shape[2]
    plan = backward.choose(target, dtype, stack, queries, keys, size, width)
    query_rows, key_rows = plan.query_rows, plan.key_rows
    if list(wanted) == ["q"]:
        query_rows = backward.cut(target, stack, queries, plan.scores.columns)
    elif "q" not in wanted:
        key_rows = backward.cut(target, stack, keys, plan.keys)
    query_tasks, key_tasks = max(1, -(-queries // query_rows)), max(1, -(-keys // key_rows))
    sizes = backward.Sizes(
        *(e.dim(x) for x in (queries, keys, size, width)),
        *(e.scalar_arg(x) for x in (plan.queries, plan.keys, query_rows, key_rows)),
        *(e.scalar_arg(x) for x in (query_tasks, key_tasks)),
    )
    operands = grad_operands_of(group, reader, wanted, reader.matrix, reader.per_query)
    g = ir.var("g")
    body, scratch = backward.attention_grad(plan, sizes, dtype, g, operands, val.params.causal)
    e.scratch += scratch
    notes = tuple(f"{v.op} of {v.params.which}" for v in wanted.values())
    return e.grid_kernel("attention_grad", g, body, stack * query_tasks * key_tasks, notes)
