"""Attention groups where threads are lanes of a vector."""

from __future__ import annotations

from functools import partial

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.attention import Reader, grad_operands_of, operands_of
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import Group
from numus.compiler.local import Val
from numus.kernels import vector_attention as vectors
from numus.kernels import vector_attention_grad as grads
from numus.kernels.vector_contraction import RUN
from numus.kernels.vector_tiles import Matrix
from numus.runtime.contract import Facts
from numus.shapes import Shape


def lower_vector_attention(
    group: Group, layouts: dict[Val, Shape], facts: Facts, out: Val | None, lse: Val | None
) -> list[Step] | None:
    """One kernel: the result, the logarithms of the sums, or both; None where values are too wide
    for it."""
    val = out or lse
    assert val is not None
    vals = dict(zip(val.params.names, val.inputs, strict=True))
    (stack, queries, size), keys = vals["q"].shape, vals["k"].shape[1]
    width = out.shape[2] if out is not None else 0
    plan = vectors.choose(facts.lockstep, width, stack * queries * keys * (size + width))
    if plan is None:
        return None
    e = _emitter(group, layouts, facts)
    reader = Reader(val, e, dt.float32)
    tasks = -(-queries // plan.rows)
    sizes = vectors.Sizes(e.number(queries), e.number(keys), e.parameter(tasks))
    operands = operands_of(group, reader, out, lse, partial(_matrix, reader))
    g = ir.var("g")
    body = vectors.attention(plan, sizes, dt.float32, g, operands, val.params.causal)
    return [e.blocks("vector_attention", g, body, stack * tasks, group.notes)]


def vector_grad_kernel(
    wanted: dict[str, Val], layouts: dict[Val, Shape], facts: Facts, group: Group
) -> Step | None:
    """The kernel for the cotangent of the queries, or for those of keys and values; None where
    they are too wide for it."""
    val = next(iter(wanted.values()))
    vals = dict(zip(val.params.names, val.inputs, strict=True))
    (stack, queries, _), keys = vals["q"].shape, vals["k"].shape[1]
    plan = grads.choose(facts.lockstep, {name: vals[name].shape[2] for name in wanted})
    if plan is None:
        return None
    e = _emitter(group, layouts, facts)
    reader = Reader(val, e, dt.float32)
    tasks = -(-(queries if "q" in wanted else keys) // plan.lanes)
    sizes = vectors.Sizes(e.number(queries), e.number(keys), e.parameter(tasks))

    def per_query(name: str) -> grads.PerQuery:
        return lambda n, i: reader.value(name, n, i)

    operands = grad_operands_of(group, reader, wanted, partial(_matrix, reader), per_query)
    g = ir.var("g")
    body = grads.attention_grad(plan, sizes, dt.float32, g, operands, val.params.causal)
    notes = tuple(f"{v.op} of {v.params.which}" for v in wanted.values())
    return e.blocks("vector_attention_grad", g, body, stack * tasks, notes)


def _emitter(group: Group, layouts: dict[Val, Shape], facts: Facts) -> Emitter:
    e = Emitter(group.outside(layouts), group=facts.lockstep)
    e.unit, e.lockstep = RUN, True
    return e


def _matrix(reader: Reader, name: str) -> Matrix:
    columns, e = reader.vals[name].shape[2], reader.e
    return Matrix(
        lambda n, row, column, mask: reader.value(name, n, row, column, mask=mask),
        e.number(columns),
        e.parameter(-(-columns // RUN)),
        whole=columns % RUN == 0,
    )
