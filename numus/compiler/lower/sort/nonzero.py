"""Stream compaction (nonzero): the indices of true elements.

CPUs count, scan and compact blocks; GPUs scan the mask and scatter indices to their ranks.
"""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, row_index, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.scan.gpu import lower_scan_gpu
from numus.compiler.lower.scatter.gpu import lower_scatter_gpu
from numus.ir import Expr
from numus.kernels.sort import nonzero
from numus.shapes import Shape, row_major
from numus.target import Target


def lower_nonzero(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """Count, scan and compact, by blocks of rows."""
    (val,) = group.members
    mask = val.inputs[0]
    layouts = group.input_layouts(layouts)
    length, wanted = mask.shape[-1], val.shape[-1]
    rows = math.prod(mask.shape[:-1])
    blocks = max(1, -(-length // nonzero.BLOCK_ELEMENTS))
    counts = temporary((rows, blocks + 1), dt.int64)

    def kernel(name: str, per_row: int) -> LoweredKernel:
        e = Emitter(layouts)
        g, count = ir.var("g"), e.scalar_arg(per_row)
        row, block = divmod(g, count) if per_row > 1 else (g, ZERO)
        index = row_index(e, row, mask.shape, len(mask.shape) - 1)
        sizes = nonzero.RowBlocks(e.dim(length), e.dim(wanted), e.scalar_arg(blocks))
        first = ir.mul(row, ir.add(sizes.blocks, ONE))
        memory = e.buffer(counts, "read" if name == "compact" else "write")

        def predicate(i: Expr) -> Expr:
            found: Expr = e.value(mask, index(i))
            return found

        if name == "count":
            body, total = nonzero.count(sizes, block, predicate)
            body.append(ir.Store(memory, ir.add(first, block), total))
        elif name == "scan":
            body = nonzero.scan_counts(sizes, memory, first)
        else:
            before = ir.load(memory, ir.add(first, block))
            total = ir.load(memory, ir.add(first, sizes.blocks))
            body, scratch = nonzero.compact(
                *(sizes, block, before, total, predicate), lambda k, at: e.store(val, index(k), at)
            )
            e.scratch += scratch
        return e.grid_kernel(f"nonzero_{name}", g, body, rows * per_row, (val.op,))

    return [kernel("count", blocks), kernel("scan", 1), kernel("compact", blocks)]


def lower_nonzero_gpu(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """Scatter the index of every true element to its rank, an inclusive sum of the mask less 1."""
    (val,) = group.members
    mask = val.inputs[0]
    length, wanted = mask.shape[-1], val.shape[-1]
    rows = math.prod(mask.shape[:-1])
    shape = (rows, length)

    def make(op: str, kind: str, inputs: tuple[Value, ...], params: Any, shape: Shape) -> Value:
        return Value.fresh(op, kind, inputs, params, shape, dt.int64)

    def view(op: str, x: Value, *shape: int) -> Value:
        return make(op, "view", (x,), shape, shape)

    def iota(count: int) -> Value:
        return make("iota", "source", (), None, (count,))

    flat = Value.fresh("reshape", "view", (mask,), shape, shape, mask.dtype)
    hit = make("cast", "elementwise", (flat,), None, shape)
    running = make("scan", "scan", (hit,), ("sum", 1, False), shape)
    one = make("constant", "source", (), (1, None), ())
    # -1, which a scatter drops, where the mask is false
    ranked = make("mul", "elementwise", (running, hit), None, shape)
    rank = make("sub", "elementwise", (ranked, one), None, shape)
    row = view("broadcast", view("reshape", iota(rows), rows, 1), *shape)
    column = view("broadcast", iota(length), *shape)
    padding = view("broadcast", make("extent", "source", (), length, ()), rows, wanted)
    inputs = (padding, column, row, rank)
    found = make("scatter", "scatter", inputs, ((0, 1), "set"), (rows, wanted))
    result = view("reshape", found, *val.shape)
    copy = make("copy", "barrier", (result,), None, val.shape)
    layouts = {**layouts, running: row_major(shape), found: row_major(found.shape)}
    scan, scatter, copied = (
        FusionGroup.of_stored(v, group.position) for v in (running, found, copy)
    )
    return [
        *lower_scan_gpu(scan, layouts, target),
        *lower_scatter_gpu(scatter, layouts, target),
        *lower_loops(copied, layouts, target, redirect={copy: (val, 0, 0)}),
    ]
