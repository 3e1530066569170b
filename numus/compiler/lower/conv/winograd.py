"""Convolutions of 3 x 3 taps with fewer multiplications (`kernels/winograd.py`): which get it."""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry, epilogue
from numus.compiler.lower.conv.padded_gemm_plan import LARGEST, Unit
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.ir import Expr, Stmt
from numus.kernels.conv.gpu import winograd as winograd_kernel
from numus.kernels.conv.gpu.winograd import SIDE, STEP, THREADS
from numus.shapes import Shape, row_major
from numus.target import Target

FORMS = SIDE * SIDE
_NONE = ir.const(0)

Lower = Callable[[FusionGroup, dict[Value, Shape], Target], list[LoweredKernel]]


def fits(g: Geometry) -> bool:
    """Windows of 3 x 3 over planes, one step at a time, or the gradient by their weights."""
    plain = g.groups == 1 and all(n == (1, 1, 1) for n in (g.stride, g.dilation, g.gap))
    flat = (g.space[0], g.taps[0], g.extents[0], g.low[0]) == (1, 1, 1, 0)
    if not plain or not flat or (1, 3, 3) not in (g.taps, g.extents):
        return False
    sizes = _lines(g)
    return max(FORMS * a * b for a, b in (sizes[:2], sizes[1:], sizes[::2])) < LARGEST


def _by_weights(g: Geometry) -> bool:
    return g.extents == (1, 3, 3) and g.taps != (1, 3, 3)


def _tiles(g: Geometry) -> tuple[int, int]:
    """Patches down and across, of an image."""
    _, height, width = g.taps if _by_weights(g) else g.extents
    return -(-height // STEP), -(-width // STEP)


def _lines(g: Geometry) -> tuple[int, int, int]:
    """Lines of the left matrices, what is summed over, and lines of the right ones."""
    down, across = _tiles(g)
    if _by_weights(g):
        return g.batch, g.channels * down * across, g.outputs
    return g.outputs, g.channels, g.batch * down * across


def cost(g: Geometry, unit: Unit) -> float:
    """Multiplications, and what takes as long: forms are written and read twice."""
    m, k, n = _lines(g)
    return FORMS * (m * k * n + unit.worth * 2 * unit.itemsize * (m * k + k * n + m * n))


def lower_winograd(
    group: FusionGroup,
    g: Geometry,
    layouts: dict[Value, Shape],
    target: Target,
    lower_product: Lower,
) -> list[LoweredKernel]:
    """Both operands to their forms, the product of these, and its result back."""
    product = group.members[0]
    outer = group.input_layouts(layouts)
    x, w = product.inputs
    data = _planes(x, g.batch, g.channels, g.space)
    weights = _planes(w, g.outputs, g.channels, g.taps)
    m, k, n = _lines(g)
    of_data, tiles = winograd_kernel.of_data(), _tiles(g)
    low = g.low[1:]
    if _by_weights(g):  # lines are channels of the data, and outputs; columns images and tiles
        left, first = _form(data, of_data, tiles, low, outer)
        window = winograd_kernel.of_window(STEP)
        right, second = _form(weights, window, tiles, (0, 0), outer)
        right_view = _view(right, (0, 2, 1))
    else:  # columns of the weights are channels
        left, first = _form(weights, winograd_kernel.of_window(3), (1, 1), (0, 0), outer)
        right, second = _form(_view(data, (1, 0, 2, 3)), of_data, tiles, low, outer)
        right_view = right
    assert (*left.shape, *right_view.shape) == (FORMS, m, k, FORMS, k, n)
    total = Value.fresh("contract", "contract", (left, right_view), None, (FORMS, m, n), dt.float32)
    alone = FusionGroup.of_stored(total, group.position)
    outer |= {v: row_major(v.shape) for v in (left, right)}
    steps = [first, second, *lower_product(alone, {**outer, total: row_major(total.shape)}, target)]
    return [*steps, _back(group, g, total, {**outer, total: row_major(total.shape)})]


def _planes(v: Value, images: int, channels: int, space: Shape) -> Value:
    shape = (images, channels, *space[1:])
    return Value.fresh("reshape", "view", (v,), shape, shape, v.dtype)


def _view(v: Value, order: Shape) -> Value:
    shape = tuple(v.shape[i] for i in order)
    return Value.fresh("permute", "view", (v,), order, shape, v.dtype)


def _place(e: Emitter, shape: Shape) -> winograd_kernel.Place:
    def place(form: Expr, line: Expr, column: Expr) -> Expr:
        at = ir.add(ir.mul(form, e.dim(shape[1])), line)
        return ir.add(ir.mul(at, e.dim(shape[2])), column)

    return place


def _form(
    v: Value,
    rows: winograd_kernel.Rows,
    tiles: tuple[int, int],
    low: Shape,
    layouts: dict[Value, Shape],
) -> tuple[Value, LoweredKernel]:
    """Patches of planes (lines, images, height, width) as 36 matrices of lines and columns."""
    lines, images, height, width = v.shape
    columns = images * tiles[0] * tiles[1]
    found = Value.fresh("laid", "barrier", (), None, (FORMS, lines, columns), v.dtype)
    e = Emitter(layouts, block_size=THREADS)

    def read(line: Expr, image: Expr, down: Expr, across: Expr) -> Expr:
        at = []
        there = ir.const(True, dt.bool_)
        for i, before, extent in zip((down, across), low, (height, width), strict=True):
            place = i.cast(ir.INDEX) - e.dim(before)
            there = there & (place >= 0) & (place < e.dim(extent))
            at.append(place)
        index = (line.cast(ir.INDEX), image.cast(ir.INDEX), *at)
        value: Expr = e.value(v, index, there)
        return ir.select(there, value, ir.const(0, v.dtype))

    g = ir.var("g")
    sizes = (e.dim(lines), e.dim(columns), (e.dim(tiles[0]), e.dim(tiles[1])))
    buffer = e.buffer(found, "write")
    body = winograd_kernel.to_form(g, v.dtype, rows, *sizes, read, buffer, _place(e, found.shape))
    grid = -(-lines * columns // THREADS)
    return found, e.grid_kernel("to_form", g, body, grid, ("cast",))


def _back(
    group: FusionGroup, g: Geometry, total: Value, layouts: dict[Value, Shape]
) -> LoweredKernel:
    """Forms to results, and what is fused behind them."""
    e = Emitter(layouts, block_size=THREADS)
    _, lines, columns = total.shape
    weights = _by_weights(g)
    tiles = (1, 1) if weights else _tiles(g)
    extents = g.extents[1:]
    lack = 5 - len(group.members[0].shape)

    def done(
        line: Expr, image: Expr, down: Expr, across: Expr, i: int, j: int, value: Expr
    ) -> list[Stmt]:
        first, second = (x.cast(ir.INDEX) for x in ((line, image) if weights else (image, line)))
        at = [ir.add(place.cast(ir.INDEX), ir.const(n)) for place, n in ((down, i), (across, j))]
        inside = ir.const(True, dt.bool_)
        for place, extent in zip(at, extents, strict=True):
            inside = inside & (place < e.dim(extent))
        e.invalidate()
        stored = epilogue(e, group, (first, second, *(_NONE, *at)[lack:]), value)
        return [ir.If(inside, stored)]

    number = ir.var("g")
    rows = winograd_kernel.of_result(3 if weights else STEP)
    sizes = (e.dim(lines), e.dim(columns), (e.dim(tiles[0]), e.dim(tiles[1])))
    source = e.buffer(total)
    body = winograd_kernel.from_form(
        number, total.dtype, rows, *sizes, source, _place(e, total.shape), done
    )
    grid = -(-lines * columns // THREADS)
    return e.grid_kernel("from_form", number, body, grid, group.notes)
