"""Attention groups where threads are lanes of a vector."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.attention import Reader, store
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import Group
from numus.compiler.local import Val
from numus.kernels import vector_attention as vectors
from numus.kernels import vector_attention_grad as grads
from numus.kernels.vector_contraction import RUN
from numus.kernels.vector_tiles import Matrix, Write
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
    operands = vectors.Operands(
        q=_matrix(reader, "q"),
        k=_matrix(reader, "k"),
        v=None if out is None else _matrix(reader, "v"),
        scale=reader.value("scale"),
        bias=reader.scores("bias"),
        keep=reader.scores("keep"),
        write=lambda n, i, j, x: [] if out is None else store(e, group, out, (n, i, j), x),
        write_lse=lambda n, i, x: [] if lse is None else store(e, group, lse, (n, i), x),
    )
    g = ir.var("g")
    body = vectors.attention(plan, sizes, dt.float32, g, operands, val.params.causal)
    notes = tuple(v.op for v in group.members)
    return [e.blocks("vector_attention", g, body, stack * tasks, notes)]


def vector_grad_kernel(
    wanted: dict[str, Val], layouts: dict[Val, Shape], facts: Facts, group: Group
) -> Step | None:
    """The kernel for the cotangent of the queries, or for those of keys and values; None where
    they are too wide for it."""
    val = next(iter(wanted.values()))
    vals = dict(zip(val.params.names, val.inputs, strict=True))
    (stack, queries, _), keys = vals["q"].shape, vals["k"].shape[1]
    widths = {name: vals[name].shape[2] for name in wanted}
    lanes = facts.lockstep
    if not grads.fits(lanes, list(widths.values())):
        return None
    e = _emitter(group, layouts, facts)
    reader = Reader(val, e, dt.float32)
    tasks = -(-(queries if "q" in wanted else keys) // lanes)
    sizes = vectors.Sizes(e.number(queries), e.number(keys), e.parameter(tasks))

    def writer(name: str) -> Write:
        return lambda n, i, j, x: store(e, group, wanted[name], (n, i, j), x)

    operands = grads.Operands(
        q=_matrix(reader, "q"),
        k=_matrix(reader, "k"),
        v=_matrix(reader, "v"),
        g=_matrix(reader, "g"),
        scale=reader.value("scale"),
        lse=lambda n, i: reader.value("lse", n, i),
        delta=lambda n, i: reader.value("delta", n, i),
        bias=reader.scores("bias"),
        keep=reader.scores("keep"),
        writes={name: (writer(name), -(-n // (RUN * lanes))) for name, n in widths.items()},
    )
    g = ir.var("g")
    body = grads.attention_grad(lanes, sizes, dt.float32, g, operands, val.params.causal)
    notes = tuple(f"{v.op} of {v.params.which}" for v in wanted.values())
    return e.blocks("vector_attention_grad", g, body, stack * tasks, notes)


def _emitter(group: Group, layouts: dict[Val, Shape], facts: Facts) -> Emitter:
    inside = set(group.members)
    e = Emitter({v: s for v, s in layouts.items() if v not in inside}, group=facts.lockstep)
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
