"""Operands of convolutions, laid out on grids of cells (`kernels/cells.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.conv.padded_gemm_plan import Plan, spread
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.gpu_operands import contiguous_along
from numus.compiler.lower.relayout import Relayout, materialize, padded, permuted, reshaped, view
from numus.ir import Expr, Stmt
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.conv.gpu.implicit_gemm import apart, small
from numus.kernels.matmul.gpu import repack as packing
from numus.shapes import Shape, size_of
from numus.target import Target

_ZERO = ir.const(0)


def lay_taps(
    product: Value, g: Geometry, plan: Plan, layouts: dict[Value, Shape], target: Target
) -> tuple[Relayout, Relayout]:
    """Data with channels in the cells; weights as lines of all taps, channels in each, or as lines
    of outputs, one for each tap and channel."""
    x, w = product.inputs
    f = plan.geometry
    v = reshaped(x, f.batch, f.groups, f.channels, *g.space)
    data = _data(v, (0, 1, 2), plan, f.stride, g.low[2], layouts, target)
    v = reshaped(w, f.groups, plan.merged, g.outputs, g.channels, *g.taps)
    v = reshaped(_diagonal(v), f.groups, f.outputs, f.channels, *g.taps)
    v = _weights(v, f, plan)
    v = reshaped(v, f.groups, plan.columns, plan.k)
    if plan.unit.across:
        v = permuted(v, 0, 2, 1)
        v = padded(v, (*v.shape[:2], round_up(plan.columns, VECTOR)))
    return data, materialize(v, layouts, target)


def _diagonal(v: Value) -> Value:
    """Weights (groups, merged, outputs, channels, *taps) as (groups, merged, outputs, merged,
    channels, *taps), zero where the two are not the same."""
    groups, merged, outputs, channels, *taps = v.shape
    if merged == 1:
        return v
    each = size_of(v.shape[2:])
    v = reshaped(v, groups, merged, each)
    v = padded(v, (groups, merged, (merged + 1) * each))  # each further by its own size
    v = reshaped(v, groups, merged * (merged + 1) * each)
    whole = (groups, merged * merged * each)
    v = view("slice", v, ((0, 0), (1, 1)), whole)
    v = reshaped(v, groups, merged, merged, outputs, channels, *taps)
    return permuted(v, 0, 1, 3, 2, 4, 5, 6, 7)


def _weights(v: Value, g: Geometry, plan: Plan) -> Value:
    """As (groups, outputs, taps, channels). For results that lie beside each other, every
    so-many-th tap is one's own, and they are outputs before the others."""
    if size_of(g.gap) == 1:
        v = permuted(v, 0, 1, 3, 4, 5, 2)
        v = padded(v, (*v.shape[:-1], plan.cell))
        v = reshaped(v, *v.shape[:2], size_of(v.shape[2:-1]) // plan.span, plan.span * plan.cell)
        return padded(v, (*v.shape[:-1], plan.width))
    taps = [a.taps for a in plan.axes]
    front = [spread(*n)[2] for n in zip(g.taps, g.gap, g.low, strict=True)]
    whole = (*v.shape[:2], plan.width, *(t * n for t, n in zip(taps, g.gap, strict=True)))
    before = (0, 0, 0, *(f if n > 1 else 0 for f, n in zip(front, g.gap, strict=True)))
    v = padded(v, whole, before)
    v = reshaped(v, *whole[:3], *(n for pair in zip(taps, g.gap, strict=True) for n in pair))
    return permuted(v, 0, 4, 6, 8, 1, 3, 5, 7, 2)


def lay_results(
    product: Value, g: Geometry, plan: Plan, layouts: dict[Value, Shape], target: Target
) -> tuple[Relayout, Relayout]:
    """Data with images in the cells, and weights with outputs, both of one channel after the
    other; or lines of images, and of outputs, with the cells of all channels in each."""
    x, w = product.inputs
    f = plan.geometry
    data = reshaped(x, g.batch, f.groups, plan.merged, g.channels, *g.space)
    data = permuted(data, 2, 0, 1, 3, 4, 5, 6)
    data = reshaped(data, f.batch, f.groups, f.channels, *f.space)
    weights = reshaped(w, f.groups, f.outputs, f.channels, *f.taps)
    if plan.unit.along:
        data = _lines(permuted(data, 1, 0, 2, 3, 4, 5), plan.grid, f.dilation)
        weights = _lines(weights, plan.grid, (1, 1, 1))
        return materialize(data, layouts, target), materialize(weights, layouts, target)
    width = round_up(f.outputs, VECTOR)
    on_cells = _on_cells(weights, (2, 0, 1), plan.grid, (1, 1, 1), width, layouts)
    return _data(data, (2, 1, 0), plan, f.dilation, g.low[2], layouts, target), on_cells


def _data(
    v: Value,
    order: tuple[int, int, int],
    plan: Plan,
    phases: Shape,
    low: int,
    layouts: dict[Value, Shape],
    target: Target,
) -> Relayout:
    """Data on the cells of a plan; where lines overlap, with zeros before every row instead of
    phases along the last axis."""
    if plan.span == 1:
        return _on_cells(v, order, plan.grid, phases, plan.cell, layouts)
    (a, b), row = plan.grid[:2], plan.grid[2] * plan.step
    p, q = phases[:2]
    if plan.cell >= packing.TILE and plan.cell % packing.STORE_VECTOR == 0:
        shape = (a, b, row), (p, q, 1)
        return _on_cells(v, order, *shape, plan.cell, layouts, low)
    v = permuted(v, *order, 3, 4, 5)
    images, groups = v.shape[:2]
    v = padded(v, (images, groups, plan.cell, a * p, b * q, row), (0, 0, 0, 0, 0, low))
    v = reshaped(v, images, groups, plan.cell, a, p, b, q, row)
    return materialize(permuted(v, 1, 4, 6, 0, 3, 5, 7, 2), layouts, target)


def _lines(v: Value, grid: Shape, phases: Shape) -> Value:
    """An operand (groups, lines, channels, *space) as (groups, lines, all cells of all channels),
    one phase after the other; in whole runs."""
    head = v.shape[:3]
    v = padded(v, (*head, *(n * p for n, p in zip(grid, phases, strict=True))))
    v = reshaped(v, *head, *(n for pair in zip(grid, phases, strict=True) for n in pair))
    v = permuted(v, 0, 1, 4, 6, 8, 2, 3, 5, 7)
    v = reshaped(v, *head[:2], size_of(v.shape[2:]))
    return padded(v, (*head[:2], round_up(v.shape[2], 16 // v.dtype.itemsize)))


def _on_cells(
    v: Value,
    order: Sequence[int],
    grid: Shape,
    phases: Shape,
    width: int,
    layouts: dict[Value, Shape],
    low: int = 0,
) -> Relayout:
    """An operand of six axes as (groups, phases of each axis, images, cells of each axis,
    channels), where `order` tells which of the first three are images, groups and channels; with
    `low` zeros before every row."""
    split = v.shape
    images, groups, channels = (split[i] for i in order)
    shape = (groups, *phases, images, *grid, width)
    found = Value.fresh("laid", "barrier", (), None, shape, v.dtype)
    e = Emitter(layouts, block_size=packing.THREADS)
    sizes = tuple(e.dim(n) for n in shape)
    a, b, c = sizes[5:8]

    def place(t: Expr, line: Expr) -> tuple[Expr, Expr, list[Expr]]:
        """The image, the group and the place in the data of a cell."""
        at = list(apart(small(line), (a, b, c)))
        rest = small(t)
        for n in sizes[4:0:-1]:
            at.insert(0, ir.irem(rest, small(n)))
            rest = ir.idiv(rest, small(n))
        group, *phase, image, d, h, w = (i.cast(ir.INDEX) for i in (rest, *at))
        cell = zip((d, h, w), sizes[1:4], phase, strict=True)
        *rows, last = (ir.add(ir.mul(i, n), p) for i, n, p in cell)
        return image, group, [*rows, ir.sub(last, e.dim(low))]

    def inside(t: Expr, line: Expr) -> Expr:
        at = place(t, line)[2]
        found = at[-1] >= 0 if low else ir.const(True, dt.bool_)
        for i, n in zip(at, split[3:], strict=True):
            found = found & (i < e.dim(n))
        return found

    def read(t: Expr, line: Expr, channel: Expr, mask: Expr | None) -> Expr:
        image, group, at = place(t, line)
        index = [_ZERO] * 3
        for i, n in zip(order, (image, group, channel), strict=True):
            index[i] = n
        value: Expr = e.value(v, (*index, *at), mask)
        return value

    def store(t: Expr, line: Expr, channel: Expr, value: Expr) -> list[Stmt]:
        at = ir.add(ir.mul(ir.add(ir.mul(t, lines), line), sizes[8]), channel)
        return [ir.Store(e.buffer(found, "write"), at, value)]

    number = ir.var("g")
    lines = e.dim(size_of(grid))
    squares = [-(-n // packing.TILE) for n in (size_of(grid), width)]
    tiles = (e.scalar_arg(squares[0]), e.scalar_arg(squares[1]))
    limit = None if channels % packing.TILE == 0 else e.dim(channels)
    natural = contiguous_along(v, layouts, order[2], 5)
    body, e.scratch = packing.repack_padded(
        *(number, v.dtype, (lines, sizes[8]), tiles, natural, inside, read, limit, store)
    )
    count = groups * size_of(phases) * images * squares[0] * squares[1]
    return found, [e.grid_kernel("lay_cells", number, body, count, ("cast",))]
