"""Groups that ask where something holds."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import Rows, temporary, without
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.scan.gpu import lower_group_scan
from numus.compiler.lower.scatter.gpu import lower_group_scatter
from numus.ir import Expr, const
from numus.kernels.sort import nonzero
from numus.shapes import Shape, row_major
from numus.target import Target

ZERO, ONE = const(0), const(1)

Layouts = dict[Value, Shape]


def lower_compact(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """Blocks of rows are counted, the counts added up, the hits written."""
    (val,) = group.members
    mask = val.inputs[0]
    layouts = without(layouts, val)
    length, wanted = mask.shape[-1], val.shape[-1]
    rows = math.prod(mask.shape[:-1])
    blocks = max(1, -(-length // nonzero.BLOCK))
    counts = temporary((rows, blocks + 1), dt.int64)

    def kernel(name: str, per_row: int) -> LoweredKernel:
        e = Emitter(layouts)
        g, each = ir.var("g"), e.scalar_arg(per_row)
        row, block = (ir.idiv(g, each), ir.irem(g, each)) if per_row > 1 else (g, ZERO)
        index = Rows(e, mask.shape, len(mask.shape) - 1).one(row)
        sizes = nonzero.Rows(e.dim(length), e.dim(wanted), e.scalar_arg(blocks))
        first = ir.mul(row, ir.add(sizes.blocks, ONE))
        memory = e.buffer(counts, "read" if name == "write" else "write")

        def holds(i: Expr) -> Expr:
            found: Expr = e.value(mask, index(i))
            return found

        if name == "count":
            body, hits = nonzero.count(sizes, block, holds)
            body.append(ir.Store(memory, ir.add(first, block), hits))
        elif name == "add":
            body = nonzero.add_up(sizes, memory, first)
        else:
            before = ir.load(memory, ir.add(first, block))
            total = ir.load(memory, ir.add(first, sizes.blocks))
            body, scratch = nonzero.gather_hits(
                sizes, block, before, total, holds, lambda k, at: e.store(val, index(k), at)
            )
            e.scratch += scratch
        return e.grid_kernel(f"compact_{name}", g, body, rows * per_row, (val.op,))

    return [kernel("count", blocks), kernel("add", 1), kernel("write", blocks)]


def lower_group_compact(
    group: FusionGroup, layouts: Layouts, target: Target
) -> list[LoweredKernel]:
    """Each hit is written to its rank among the hits, which a running sum tells."""
    (val,) = group.members
    mask = val.inputs[0]
    length, wanted = mask.shape[-1], val.shape[-1]
    rows = math.prod(mask.shape[:-1])
    shape = (rows, length)

    def make(op: str, kind: str, inputs: tuple[Value, ...], params: Any, shape: Shape) -> Value:
        return Value.fresh(op, kind, inputs, params, shape, dt.int64)

    flat = Value.fresh("reshape", "view", (mask,), shape, shape, mask.dtype)
    hit = make("cast", "elementwise", (flat,), None, shape)
    running = make("scan", "scan", (hit,), ("sum", 1, False), shape)
    one = make("constant", "source", (), (1, None), ())
    # the rank of a hit; -1, where nothing is written, for others
    ranked = make("mul", "elementwise", (running, hit), None, shape)
    rank = make("sub", "elementwise", (ranked, one), None, shape)
    line = make("iota", "source", (), None, (rows,))
    column = make("reshape", "view", (line,), (rows, 1), (rows, 1))
    row = make("broadcast", "view", (column,), shape, shape)
    place = make("iota", "source", (), None, (length,))
    places = make("broadcast", "view", (place,), shape, shape)
    end = make("extent", "source", (), length, ())
    blank = make("broadcast", "view", (end,), (rows, wanted), (rows, wanted))
    inputs = (blank, places, row, rank)
    found = make("scatter", "scatter", inputs, ((0, 1), "set"), (rows, wanted))
    result = make("reshape", "view", (found,), val.shape, val.shape)
    copy = make("copy", "barrier", (result,), None, val.shape)
    layouts = {**layouts, running: row_major(shape), found: row_major(found.shape)}
    groups = [FusionGroup(v, group.position) for v in (running, found, copy)]
    for g in groups:
        g.stored = set(g.members)
    return [
        *lower_group_scan(groups[0], layouts, target),
        *lower_group_scatter(groups[1], layouts, target),
        *lower_loops(groups[2], layouts, target, redirect={copy: (val, 0, 0)}),
    ]
