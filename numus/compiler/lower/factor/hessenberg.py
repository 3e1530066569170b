"""Hessenberg forms on a CPU in blocks: a panel by a task per matrix, its update by a task per block
of columns."""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.factor import spectra
from numus.compiler.lower.factor.workspace import TUNING as BLOCKED
from numus.compiler.lower.factor.workspace import Task, Workspace, fill
from numus.compiler.lower.schedule import Problem
from numus.ir import select
from numus.kernels.factor.blocked import hessenberg, lu
from numus.kernels.factor.blocked.tiles import transposed
from numus.kernels.factor.program import ZERO, real, zero


def reduces_in_blocks(p: Problem) -> bool:
    return p.val.op == "hessenberg" and p.val.shape[2] >= BLOCKED.min_order


def lower_hessenberg(p: Problem) -> Kernels:
    """H, then Qᵀ, then a row of zeros."""
    space = Workspace(p, block=spectra.TUNING.block)
    fill(space, unit=0.0)
    reflectors = _reduced(space)
    whole = space.memory(space.order)
    _identity(space, whole)
    spectra.reflect(space, whole, reflectors, 0, space.order, identity=True)
    _store(space, whole)
    return space.steps


def _reduced(space: Workspace) -> list[spectra.Reflectors]:
    columns = [space.panel() for _ in range(3)]
    chunks_y = space.chunks()
    made: list[spectra.Reflectors] = []
    for first in space.starts():
        count = space.count(first)
        last = first + count
        made.append((first, space.chunks(first), space.square()))
        task = Task(space)
        p, end, at = task.program, task.size(space.order), (task.size(first), task.size(count))
        u, y, v = (task.planes(value, pitch=space.rows_pitch) for value in columns)
        t = task.planes(made[-1][2], pitch=space.near_pitch)
        panel = hessenberg.Panel(u, y, v, t, task.near(2, space.block))
        hessenberg.reduce(p, task.planes(space.work), panel, at, end)
        lu.pack(p, y, task.chunks(chunks_y), (ZERO, end), at[1])
        lu.pack(p, v, task.chunks(made[-1][1]), (at[0], end), at[1])
        task.done("hessenberg")
        if last == space.order:
            break
        task = Task(space, space.blocks(last))
        p, end, at = task.program, task.size(space.order), (task.size(first), task.size(count))
        across = task.planes(columns[2], "read", space.rows_pitch)
        t = task.planes(made[-1][2], "read", space.near_pitch)
        near = task.near(space.block, space.near_pitch)
        taken = task.chunks(chunks_y, "read"), task.chunks(made[-1][1], "read"), t
        spans = at, task.span(task.part, last), end
        hessenberg.update(p, task.planes(space.work), taken, near, spans, across)
        task.done("hessenberg")
    return made


def _identity(space: Workspace, whole: Value) -> None:
    task = Task(space, space.blocks())
    p, to = task.program, task.planes(whole)
    with p.loop(*task.span(task.part)) as i, p.lanes(ZERO, task.size(space.order)) as j:
        to[i, j] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
    task.done("identity")


def _store(space: Workspace, whole: Value) -> None:
    """By a task for each block of rows of H and of Qᵀ."""
    task = Task(space, space.blocks())
    p, n, end = task.program, task.size(space.n), task.size(space.order)
    out = task.rows_of(space.val, space.n)
    h, q = task.planes(space.work, "read"), task.planes(whole, "read")
    near = task.near(space.block, space.near_pitch)
    start, stop = task.span(task.part)
    inside = p.let(ir.minimum(stop, n))
    with p.loop(start, inside) as i, p.lanes(ZERO, n) as j:
        out[i, j] = h[i, j]
    size, bottom = task.size(space.block), p.let(ir.add(n, start))
    with p.loop(ZERO, task.size(space.blocks())) as number:
        left = p.let(ir.mul(number, size))
        right = p.let(ir.minimum(ir.add(left, size), end))
        extents = (ZERO, p.let(ir.sub(right, left))), (ZERO, p.let(ir.sub(stop, start)))
        transposed(p, q.moved(left, start), near, *extents)
        width = p.let(ir.sub(ir.minimum(right, n), left))
        with p.loop(ZERO, p.let(ir.sub(inside, start))) as i, p.lanes(ZERO, width) as j:
            out[ir.add(bottom, i), ir.add(left, j)] = near[i, j]
    with p.when(p.let(task.part.eq(0))), p.lanes(ZERO, n) as j:
        out[p.let(ir.add(n, n)), j] = zero(p)
    task.done("store")
