"""Products of little depth, where lanes are threads: which are such, and how they read."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import Group
from numus.compiler.graph.builder import Val
from numus.compiler.lower.emitter import Emitter, Step
from numus.compiler.lower.matmul.gpu_operands import capability, work_of
from numus.compiler.lower.matmul.gpu_vectors import operand
from numus.compiler.lower.matmul.mma_sync import fits_warps
from numus.kernels.matmul.gpu import small_k as shallow
from numus.runtime.contract import Facts
from numus.shapes import Shape

LEAST = 32  # columns below which runs of the result are too few for a row of threads


def fits_shallow(product: Val, facts: Facts) -> bool:
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    if not capability(facts) or product.dtype.is_complex or product.dtype is dt.bool_:
        return False
    deepest = shallow.DEEPEST
    if product.dtype.itemsize < 4 and fits_warps(product, facts):
        deepest = shallow.DEEPEST_BESIDE_UNITS
    return k <= deepest and n >= LEAST and m >= LEAST


def lower_shallow(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = dt.compute_dtype(product.dtype)
    layouts = group.outside(layouts)
    stored = min(v.dtype.itemsize for v in group.stored)
    light = len(group.members) == 1
    schedule = shallow.choose(facts, dtype.itemsize, stored, light, batch, m, n, k)
    e = Emitter(layouts, group=schedule.threads)
    row_tiles, column_tiles = -(-m // schedule.height), -(-n // schedule.width)
    rows, columns, depth = (e.number(x) for x in (m, n, k))
    counts = e.parameter(row_tiles), e.parameter(column_tiles)
    sizes = shallow.Sizes(rows, columns, depth, *counts, exact=k == schedule.depth)
    most = (max(schedule.depth, schedule.together), max(schedule.depth, schedule.own))
    sides = (
        operand(e, x, line, layouts, dtype, batch > 1, most[line - 1])
        for line, x in enumerate(product.inputs, 1)
    )
    g = ir.var("g")
    work = work_of(e, group, schedule, sizes, dtype, sides)
    body = shallow.contraction(work, g)
    return [e.blocks("shallow_contraction", g, body, batch * row_tiles * column_tiles, group.notes)]
