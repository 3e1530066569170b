"""Pointwise kernels of rows that vectors do not fit: odd widths, slices that start at odd columns.

Accesses of a warp are single elements side by side, several of each thread in flight: what a line
holds for the next access is in L1. Vectors would be aligned in few of the rows, or in none.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops import nest
from numus.compiler.lower.loops.nest import ZERO, ceil_div, delinearize
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.reduce_rows_registers import vector_width
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, const, walk


def lower_unaligned(p: LoopProblem) -> Kernels | None:
    """None where vectors are aligned in every row, or accesses are not contiguous."""
    lane = p.lanes
    outer = [d for d in p.nest.loops if d is not lane]
    if not p.target.vector_access_bytes or lane.extent < TUNING.unaligned_min_extent:
        return None
    variable = p.nest.variables[lane.axis]
    if any(strides.get(variable, 0) not in (0, 1) for strides in p.nest.accesses):
        return None
    e = p.work.emitter()
    g, t = ir.var("g"), ir.var("t")
    extent = e.dim(lane.extent)
    e.block_size, elements = TUNING.unaligned_short_block
    capacity = e.block_size * elements
    rows = capacity // lane.extent if outer else 0
    if rows > 1:
        if lane.extent.bit_count() == 1:
            in_block = ir.idiv(t, const(lane.extent))
        else:  # by a multiplication: exact below 2**16
            inverse = e.scalar_arg(-(-(1 << 32) // lane.extent)).cast(dt.uint32)
            in_block = ir.binary("mulhi", t.cast(dt.uint32), inverse).cast(ir.INDEX)
        per_block, total = e.scalar_arg(rows), nest.total_extent(e, outer)
        first = ir.mul(g, per_block)
        j, row = ir.sub(t, ir.mul(in_block, extent)), ir.add(first, in_block)
        end = ir.mul(ir.minimum(per_block, ir.sub(total, first)), extent)
        grid = ceil_div(nest.iterations(outer), rows)
    else:
        e.block_size, elements = TUNING.unaligned_block
        capacity = e.block_size * elements
        count = e.scalar_arg(ceil_div(lane.extent, capacity))
        number, row = (ir.irem(g, count), ir.idiv(g, count)) if outer else (g, ZERO)
        start = ir.mul(number, const(capacity))
        j = ir.add(start, t)
        end = ir.minimum(const(capacity), ir.sub(extent, start))
        grid = ceil_div(lane.extent, capacity) * nest.iterations(outer)
    e.extents[j] = extent
    at = {**delinearize(e, row, outer), lane: j}
    stores = p.stores(e, p.work.stored, p.nest.index(at))
    found = {x for s in stores if isinstance(s, ir.Store) for x in walk(s.value, lambda x: True)}
    loads = [x for x in found if x.op == "load"]
    predicated = any(len(x.args) > 1 for x in loads)
    gathers = any(y.op == "load" for x in loads for y in walk(x.args[0], lambda y: True))
    if predicated or gathers or len(found) > TUNING.unaligned_max_ops or not _is_unaligned(p, e):
        return None
    loop = ir.For(t, ZERO, end, "lanes", stores, unroll=elements, width=1, resident=True)
    return [e.grid_kernel("pointwise_unaligned", g, [loop], grid, p.work.notes)]


def _is_unaligned(p: LoopProblem, e: Emitter) -> bool:
    """Whether a contiguous access has no vectors in some of the rows."""
    width, analysis = vector_width(p.work, 0), AffineAnalysis(e)
    variable = p.nest.variables[p.lanes.axis]
    strided = any(
        strides.get(variable, 0) == 1 and s % width
        for strides in p.nest.accesses
        for v, s in strides.items()
        if v is not variable
    )
    return strided or any(_offset(index, analysis) % width for index in e.accesses)


def _offset(index: Expr, analysis: AffineAnalysis) -> int:
    """The known part of an index that no loop enters."""
    if index.op in ("add", "sub"):
        a, b = (_offset(x, analysis) for x in index.args)
        return a + b if index.op == "add" else a - b
    if index.op == "const":
        return int(index.attr)
    return analysis.numbers.get(index, 0)
