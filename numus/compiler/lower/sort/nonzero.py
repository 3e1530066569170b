"""Stream compaction (nonzero): the indices of true elements.

CPUs count, scan and compact blocks; GPUs scan the mask and store indices at their ranks.
"""

from __future__ import annotations

import math

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, row_index, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.scan.gpu import lower_scan_gpu
from numus.ir import Expr, const
from numus.kernels.sort import nonzero
from numus.shapes import row_major
from numus.target import Target

COMPACTED_PER_THREAD = 8  # elements of a GPU's thread


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
    """Store the index of every true element at its rank, an inclusive sum of the mask less 1."""
    (val,) = group.members
    mask = val.inputs[0]
    layouts = group.input_layouts(layouts)
    length = mask.shape[-1]
    shape = (math.prod(mask.shape[:-1]), length)
    dtype = dt.index_dtype(length)
    flat = Value.fresh("reshape", "view", (mask,), shape, shape, mask.dtype)
    hit = Value.fresh("cast", "elementwise", (flat,), None, shape, dtype)
    running = Value.fresh("scan", "scan", (hit,), ("sum", 1, False), shape, dtype)
    scan = lower_scan_gpu(FusionGroup.of_stored(running, group.position), layouts, target)
    return [*scan, _compact(val, flat, running, layouts, target)]


def _compact(
    val: Value, mask: Value, running: Value, layouts: Layouts, target: Target
) -> LoweredKernel:
    """Ranks are distinct: no two threads store to one place."""
    (rows, length), wanted = mask.shape, val.shape[-1]
    threads = target.block_size
    e = Emitter({**layouts, running: row_major(mask.shape)}, block_size=threads)
    g, i, k = ir.var("g"), ir.var("i"), ir.var("k")
    per_row = -(-max(length, wanted, 1) // (threads * COMPACTED_PER_THREAD))
    row, part = divmod(g, e.scalar_arg(per_row)) if per_row > 1 else (g, ZERO)
    at_row = row if rows > 1 else ZERO
    out = row_index(e, row, val.shape, len(val.shape) - 1)
    size = const(threads * COMPACTED_PER_THREAD)

    def loop(index: Expr, extent: int, condition: Expr, to: Expr, value: Expr) -> ir.For:
        span = ir.block_range(part, size, e.dim(extent))
        return ir.For(
            index, *span, "lanes", [ir.If(condition, e.store(val, out(to), value.cast(val.dtype)))]
        )

    rank = ir.sub(e.value(running, (at_row, i)).cast(dt.int64), ONE)
    body: list[ir.Stmt] = []
    total: Expr = ZERO
    if length:
        body.append(loop(i, length, e.value(mask, (at_row, i)) & (rank < e.dim(wanted)), rank, i))
        total = e.value(running, (at_row, ir.sub(e.dim(length), ONE))).cast(dt.int64)
    body.append(loop(k, wanted, k >= total, k, e.dim(length)))
    return e.grid_kernel("nonzero_compact", g, body, rows * per_row, (val.op,))
