"""Attention groups where lanes are threads: by units that multiply tiles, or by the threads."""

from __future__ import annotations

from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses
from numus.compiler.lower.attention.cpu import (
    Reader,
    grad_operands_of,
    lower_attention,
    lower_attention_grad,
    operands_of,
    wanted_of,
)
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr
from numus.kernels.attention.gpu import simt_backward as group_grads
from numus.kernels.attention.gpu import simt_forward as groups
from numus.kernels.attention.gpu import wgmma_backward as grads
from numus.kernels.attention.gpu import wgmma_forward as tiles
from numus.kernels.common.smem_tiles import RUN, Matrix, Plain, Vector, rounded
from numus.shapes import Shape
from numus.target import Target

ZERO = ir.const(0)


def lower_group_attention(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """One kernel: the result, the logarithms of the sums, or both."""
    lse = next((v for v in group.members if v.op == "attention_lse"), None)
    out = next((v for v in group.members if v.op == "attention"), None)
    val = out or lse
    assert val is not None
    vals = dict(zip(val.params.names, val.inputs, strict=True))
    (stack, queries, size), keys = vals["q"].shape, vals["k"].shape[1]
    width = out.shape[2] if out is not None else 0
    if not size or (out is not None and not width):
        return lower_attention(group, layouts, target)
    dtype, wide = _tile_dtype(val, target), dt.compute_dtype(vals["q"].dtype)
    per_score = sum(name in vals for name in ("bias", "keep"))
    tile = tiles.choose(target, queries, keys, size, width, per_score) if dtype else None
    plain = None
    if tile is None and target.subgroup_size:
        plain = groups.choose(target, wide, queries, keys, size, width)
    plan = tile or plain
    if plan is None:
        return lower_attention(group, layouts, target)
    layouts = group.outside(layouts)
    e = Emitter(layouts, block_size=plan.threads)
    reader = Reader(val, e, wide)
    tasks = -(-queries // plan.rows)
    sizes = tiles.Sizes(e.dim(queries), e.dim(keys), e.dim(width), e.scalar_arg(tasks))
    operands = operands_of(group, reader, out, lse, partial(_matrix, reader, layouts))
    g, causal = ir.var("g"), val.params.causal
    if tile is not None:
        assert dtype is not None
        body, scratch = tiles.attention(tile, sizes, dtype, g, operands, causal)
    else:
        assert plain is not None
        body, scratch = groups.attention(plain, sizes, wide, g, operands, causal)
    e.scratch += scratch
    name = "group_attention" if tile is None else "tile_attention"
    return [e.grid_kernel(name, g, body, stack * tasks, group.notes)]


def lower_group_attention_grad(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """A kernel for the cotangent of the queries, and one for those of keys and values, or one for
    each of these where one thread cannot hold both."""
    wanted = wanted_of(group)
    parts = [["q"], ["k", "v"]]
    steps: list[LoweredKernel] = []
    while parts:
        part = [name for name in parts.pop(0) if name in wanted]
        if not part:
            continue
        step = _grad_kernel({name: wanted[name] for name in part}, layouts, target, group)
        if step is None and len(part) == 1:
            return lower_attention_grad(group, layouts, target)
        if step is None:
            parts = [[name] for name in part] + parts
        else:
            steps.append(step)
    return steps


def _grad_kernel(
    wanted: dict[str, Value], layouts: dict[Value, Shape], target: Target, group: FusionGroup
) -> LoweredKernel | None:
    val = next(iter(wanted.values()))
    vals = dict(zip(val.params.names, val.inputs, strict=True))
    (stack, queries, size), keys = vals["q"].shape, vals["k"].shape[1]
    width = vals["v"].shape[2]
    if not size or not width:
        return None
    dtype, wide = _tile_dtype(val, target), dt.compute_dtype(vals["q"].dtype)
    rows, others = (queries, keys) if "q" in wanted else (keys, queries)
    tile, plain = None, None
    if dtype is not None and max(size, width) <= tiles.WIDEST:
        results = sum(rounded({"q": size, "k": size, "v": width}[name], 16) for name in wanted)
        per_score = sum(name in vals for name in ("bias", "keep"))
        changes = list(wanted) != ["v"]
        tile = grads.choose(target, size, width, results, changes, per_score)
    elif target.subgroup_size:
        plain = group_grads.choose(target, wide, rows, others, size, width, list(wanted))
    plan = tile or plain
    if plan is None:
        return None
    layouts = group.outside(layouts)
    e = Emitter(layouts, block_size=plan.threads)
    reader = Reader(val, e, wide)
    tasks = -(-rows // plan.rows)
    sizes = grads.Sizes(
        *(e.dim(queries), e.dim(keys), e.dim(size), e.dim(width)), e.scalar_arg(tasks)
    )
    operands = grad_operands_of(
        *(group, reader, wanted),
        partial(_matrix, reader, layouts),
        partial(_vector, reader, layouts),
    )
    g, causal = ir.var("g"), val.params.causal
    if tile is not None:
        assert dtype is not None
        body, scratch = grads.attention_grad(tile, sizes, dtype, g, operands, causal)
    else:
        assert plain is not None
        body, scratch = group_grads.attention_grad(plain, sizes, wide, g, operands, causal)
    e.scratch += scratch
    notes = tuple(f"{v.op} of {v.params.which}" for v in wanted.values())
    name = "group_attention_grad" if tile is None else "tile_attention_grad"
    return e.grid_kernel(name, g, body, stack * tasks, notes)


def _tile_dtype(val: Value, target: Target) -> DType | None:
    """The dtype of the operands, where units multiply tiles of it."""
    named = dict(zip(val.params.names, val.inputs, strict=True))
    kinds = {named[name].dtype for name in "qkvg" if name in named}
    halves = len(kinds) == 1 and kinds <= {dt.bfloat16, dt.float16}
    return kinds.pop() if halves and target.wgmma else None


def _element(reader: Reader, name: str, *at: Expr, mask: Expr | None) -> Expr:
    x = reader.vals[name]
    index = tuple(ZERO if extent == 1 else i for extent, i in zip(x.shape, at, strict=True))
    found: Expr = reader.e.value(x, index, mask)
    return found


def _matrix(reader: Reader, layouts: dict[Value, Shape], name: str) -> Matrix:
    x, e = reader.vals[name], reader.e
    columns, stride = e.dim(x.shape[2]), _row_stride(x, layouts)

    def read(n: Expr, row: Expr, column: Expr, mask: Expr) -> Expr:
        return _element(reader, name, n, row, column, mask=mask)

    if stride is None or stride % RUN:
        return Matrix(read, columns, None)
    return Matrix(read, columns, _plain(reader, name, e.dim(stride)))


def _vector(reader: Reader, layouts: dict[Value, Shape], name: str) -> Vector:
    def read(n: Expr, row: Expr, mask: Expr) -> Expr:
        return _element(reader, name, n, row, mask=mask)

    plain = _row_stride(reader.vals[name], layouts) is not None
    return Vector(read, _plain(reader, name, ZERO) if plain else None)


def _plain(reader: Reader, name: str, stride: Expr) -> Plain:
    x = reader.vals[name]

    def at_start(n: Expr) -> Expr:
        return _element(reader, name, n, *[ZERO] * (len(x.shape) - 1), mask=None)

    def first(n: Expr) -> Expr:
        return at_start(n).args[0]

    def aligned(n: Expr) -> Expr:
        start = ir.add(ir.address(buffer), ir.mul(first(n), ir.const(x.dtype.itemsize)))
        return (start & ir.const(15)).eq(0)

    buffer: ir.Buffer = at_start(ZERO).attr
    return Plain(buffer, first, stride, aligned)


def _row_stride(x: Value, layouts: dict[Value, Shape]) -> int | None:
    """By which stride rows of neighbours follow each other in memory, wherever each matrix begins;
    None where an operand is more than loads, or has no neighbours along its last axis."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
    inner, column = set(names[1:]), names[-1]
    value = e.value(x, tuple(names))
    if not isinstance(value, Expr) or value.op != "load" or len(value.args) > 1:
        return None
    pieces = [p for p in accesses(e) if inner & p.keys()]
    if len(pieces) != 1 or pieces[0].get(column, 0) != 1:
        return None
    return pieces[0].get(names[1], 0)
