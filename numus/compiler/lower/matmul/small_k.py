"""Products of little depth, where lanes are threads: which are such, and how they read."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.gpu_operands import work_of
from numus.compiler.lower.matmul.gpu_vectors import operand
from numus.compiler.lower.matmul.mma_sync import fits_warps
from numus.kernels.matmul.gpu import small_k as shallow
from numus.shapes import Shape
from numus.target import Target

LEAST = 32  # columns below which runs of the result are too few for a row of threads


def fits_shallow(product: Value, target: Target) -> bool:
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    if not target.vector_access_bytes or product.dtype.is_complex or product.dtype is dt.bool_:
        return False
    deepest = shallow.DEEPEST
    if product.dtype.itemsize < 4 and fits_warps(product, target):
        deepest = shallow.DEEPEST_BESIDE_UNITS
    return k <= deepest and n >= LEAST and m >= LEAST


def lower_shallow(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = dt.compute_dtype(product.dtype)
    layouts = group.input_layouts(layouts)
    stored = min(v.dtype.itemsize for v in group.stored)
    light = len(group.members) == 1
    schedule = shallow.choose(target, dtype.itemsize, stored, light, batch, m, n, k)
    e = Emitter(layouts, block_size=schedule.threads)
    row_tiles, column_tiles = -(-m // schedule.height), -(-n // schedule.width)
    rows, columns, depth = (e.dim(x) for x in (m, n, k))
    counts = e.scalar_arg(row_tiles), e.scalar_arg(column_tiles)
    sizes = shallow.Sizes(rows, columns, depth, *counts, exact=k == schedule.depth)
    most = (max(schedule.depth, schedule.together), max(schedule.depth, schedule.own))
    sides = (
        operand(e, x, line, layouts, dtype, batch > 1, most[line - 1])
        for line, x in enumerate(product.inputs, 1)
    )
    g = ir.var("g")
    work = work_of(e, group, schedule, sizes, dtype, sides)
    body = shallow.contraction(work, g)
    return [
        e.grid_kernel("shallow_contraction", g, body, batch * row_tiles * column_tiles, group.notes)
    ]
