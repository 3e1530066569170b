"""Horizontal fusion (multi-tensor apply): small independent pointwise results, each by its blocks.

One after the other, in few blocks, they would wait for memory once each. Parameter updates of a
training step are such.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, Loop, LoopNest, ceil_div, store_point
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Stmt


def lower_horizontal(work: StagedGroup, nest: LoopNest, lane: Loop) -> LoweredKernel | None:
    """The kernel; None where results share inputs, or saturate the device together."""
    threads = TUNING.horizontal_threads
    blocks = ceil_div(lane.extent, threads)
    if not work.threads or len(nest.loops) > 1:
        return None
    if len(work.stored) < 2 or blocks * 2 > work.target.num_cores:
        return None
    parts = _independent(work, nest, lane)
    if len(parts) < 2:
        return None
    e = work.emitter()
    e.block_size = threads
    g = ir.var("g")
    extent = e.dim(lane.extent)
    per_part = e.scalar_arg(blocks)
    part, first = ir.idiv(g, per_part), ir.mul(ir.irem(g, per_part), ir.const(threads))
    body: list[Stmt] = []
    for number, members in enumerate(parts):
        thread = ir.var(f"t{number}")
        j = ir.add(first, thread)
        e.extents[j] = extent
        stores = [s for m in members for s in store_point(e, m, nest.index({lane: j}))]
        loop = ir.For(thread, ZERO, ir.const(threads), "lanes", [ir.If(j < extent, stores)])
        body.append(ir.If(part.eq(number), [loop]))
    return e.grid_kernel("pointwise", g, body, blocks * len(parts), work.notes)


def _independent(work: StagedGroup, nest: LoopNest, lane: Loop) -> list[list[Value]]:
    """Results, grouped by common inputs other than scalars."""
    e = work.emitter()
    j = e.variable("j", e.dim(lane.extent))
    parts: list[tuple[set[ir.Buffer], list[Value]]] = []
    for m in work.stored:
        reads: set[ir.Buffer] = set()
        for s in store_point(e, m, nest.index({lane: j})):
            for root in ir.expressions_of(s):
                loads = [x for x in ir.walk(root, lambda x: True) if x.op == "load"]
                reads.update(x.attr for x in loads if j in ir.walk(x.args[0], lambda x: True))
        others = []
        members = []
        for part in parts:
            if part[0].isdisjoint(reads):
                others.append(part)
            else:
                reads |= part[0]
                members += part[1]
        parts = [*others, (reads, [*members, m])]
    return [members for _, members in parts]
