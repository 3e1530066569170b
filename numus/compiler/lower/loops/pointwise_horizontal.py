"""Small maps that have nothing in common but their space: each by groups of threads of its own.

One after the other, in few groups, they would wait for memory as often as there are of them.
Parameters that a step of training updates are such.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, Dim, Space, blocks_of
from numus.compiler.lower.loops.stages import Work
from numus.ir import Expr, Stmt

THREADS = 256  # which have one element each: the code is short


def lower_beside(work: Work, space: Space, lane: Dim) -> LoweredKernel | None:
    """The kernel; None where there is one map, or enough to do for groups that do all of them."""
    blocks = blocks_of(lane.extent, THREADS)
    if not work.threads or len(space.dims) > 1:
        return None
    if len(work.stored) < 2 or blocks * 2 > work.target.num_cores:
        return None
    parts = _parts(work, space, lane)
    if len(parts) < 2:
        return None
    e = work.emitter()
    e.block_size = THREADS
    g = ir.var("g")
    extent = e.dim(lane.extent)
    many = e.scalar_arg(blocks)
    which, first = ir.idiv(g, many), ir.mul(ir.irem(g, many), ir.const(THREADS))
    body: list[Stmt] = []
    for number, members in enumerate(parts):
        thread = ir.var(f"t{number}")
        j = ir.add(first, thread)
        e.extents[j] = extent
        stores = [s for m in members for s in _store(space, e, lane, j, m)]
        loop = ir.For(thread, ZERO, ir.const(THREADS), "lanes", [ir.If(j < extent, stores)])
        body.append(ir.If(which.eq(number), [loop]))
    return e.grid_kernel("map", g, body, blocks * len(parts), work.notes)


def _store(space: Space, e: Emitter, lane: Dim, j: Expr, m: Value) -> list[Stmt]:
    point = index_of(m.shape, space.index({lane: j}))
    return e.store(m, point, e.value(m, point))


def _parts(work: Work, space: Space, lane: Dim) -> list[list[Value]]:
    """Results that read memory in common, but for single numbers, belong together."""
    e = work.emitter()
    j = e.variable("j", e.dim(lane.extent))
    parts: list[tuple[set[ir.Buffer], list[Value]]] = []
    for m in work.stored:
        reads: set[ir.Buffer] = set()
        for s in _store(space, e, lane, j, m):
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
