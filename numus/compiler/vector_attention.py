"""Attention groups where threads are lanes of a vector."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.attention import Reader, store
from numus.compiler.emit import Emitter, Step
from numus.compiler.fuse import Group
from numus.compiler.local import Val
from numus.kernels import vector_attention as vectors
from numus.kernels.vector_contraction import RUN
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
    inside = set(group.members)
    e = Emitter({v: s for v, s in layouts.items() if v not in inside}, group=plan.lanes)
    e.unit, e.lockstep = RUN, True
    reader = Reader(val, e, dt.float32)
    tasks = -(-queries // plan.rows)
    sizes = vectors.Sizes(
        *(e.number(n) for n in (queries, keys, size, width)),
        *(e.parameter(n) for n in (-(-size // RUN), tasks)),
    )

    def matrix(name: str) -> vectors.Read:
        return lambda n, row, column, mask: reader.value(name, n, row, column, mask=mask)

    operands = vectors.Operands(
        q=matrix("q"),
        k=matrix("k"),
        v=None if out is None else matrix("v"),
        scale=reader.value("scale"),
        bias=reader.scores("bias"),
        keep=reader.scores("keep"),
        write=lambda n, i, j, x: [] if out is None else store(e, group, out, (n, i, j), x),
        write_lse=lambda n, i, x: [] if lse is None else store(e, group, lse, (n, i), x),
        whole_size=size % RUN == 0,
        whole_width=width % RUN == 0,
    )
    g = ir.var("g")
    body = vectors.attention(plan, sizes, dt.float32, g, operands, val.params.causal)
    notes = tuple(v.op for v in group.members)
    return [e.blocks("vector_attention", g, body, stack * tasks, notes)]
