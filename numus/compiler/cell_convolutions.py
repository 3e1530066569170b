"""Convolutions of 16-bit floats whose windows are displacements, for an engine to bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.convolution_parts import Geometry, epilogue
from numus.compiler.emit import Emitter, Step
from numus.compiler.group_convolutions import laid, sum_of_pieces
from numus.compiler.group_operands import along
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, Stmt
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops
from numus.kernels import cell_convolution as cells
from numus.kernels import pack as packing
from numus.kernels import tile_contraction as tile
from numus.kernels.cell_convolution import Axis
from numus.kernels.slices import Sizes
from numus.kernels.tile_matrices import RUN, rounded
from numus.kernels.windows import Triple, apart, small
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major, size_of

SMALL = 1 << 26  # multiplications that are worth laying operands out
# How many times the work that has to be done is worth it: beside a kernel that looks for every row
# of a window, and beside one that has as many rows as there are places of results.
MOST_VAIN, MOST_VAIN_BY_RESULTS = 3.0, 1.6
LARGEST = 1 << 31  # elements, and lines, that are counted in 32 bits
_HALVES = (dt.bfloat16, dt.float16)
_ZERO = ir.const(0)


@dataclass(frozen=True, slots=True)
class _Plan:
    """A product over cells: of so many matrices, by rows, columns and k."""

    axes: tuple[Axis, ...]  # what displaces is called a tap, whichever it is
    matrices: int
    rows: int
    columns: int
    k: int
    lines: int  # of data, of a group of channels
    width: int  # of such a line
    vain: float
    by_results: bool = False

    @property
    def grid(self) -> Shape:
        return tuple(a.cells for a in self.axes)


def _spread(taps: int, gap: int, low: int) -> tuple[int, int, int]:
    """Taps on data with gaps, of which a result sees every so-many-th: results that lie `gap` apart
    see the same ones, and are outputs beside each other. How many taps all of these look at, how
    far the first lies before a result, and how many there are beside the real ones in front.
    """
    first = -(low // gap)
    front = gap - 1 - low - gap * first
    return -(-(front + taps) // gap), -first, front


def _by_taps(g: Geometry) -> _Plan | None:
    """Each tap of a window displaces the cells of results."""
    gaps = size_of(g.gap)
    if gaps > 1 and size_of(g.stride) * size_of(g.dilation) > 1:
        return None
    found = [_spread(*n) for n in zip(g.taps, g.gap, g.low, strict=True)]
    taps = [t if gap > 1 else n for (t, _, _), n, gap in zip(found, g.taps, g.gap, strict=True)]
    low = [x if gap > 1 else n for (_, x, _), n, gap in zip(found, g.low, g.gap, strict=True)]
    extents = [-(-n // gap) for n, gap in zip(g.extents, g.gap, strict=True)]
    parts = zip(g.space, taps, extents, g.stride, g.dilation, low, strict=True)
    axes = tuple(Axis(*n) for n in parts)
    count = size_of(tuple(a.cells for a in axes))
    width = rounded(g.channels, tile.depth_of(dt.bfloat16))
    k = width * size_of(tuple(taps))
    rows = g.batch * count
    vain = rows * gaps * g.groups * g.outputs * k / g.work
    return _Plan(axes, g.groups, rows, gaps * g.outputs, k, size_of(g.stride) * rows, width, vain)


def _by_results(g: Geometry) -> _Plan | None:
    """Each place of a result displaces the cells of windows, where these are the larger."""
    if g.groups > 1 or size_of(g.gap) > 1:
        return None
    parts = zip(g.space, g.extents, g.taps, g.dilation, g.stride, g.low, strict=True)
    axes = tuple(Axis(*n) for n in parts)
    count = size_of(tuple(a.cells for a in axes))
    k = g.channels * count
    vain = rounded(g.batch, tile.ROWS) / g.batch * count / size_of(g.taps)
    sizes = (size_of(g.extents), g.batch, g.outputs, k)
    return _Plan(axes, *sizes, size_of(g.dilation) * k, rounded(g.batch, RUN), vain, True)


def lower_cell_convolution(
    group: Group, layouts: dict[Val, Shape], facts: Facts
) -> list[Step] | None:
    """Operands laid out on grids of cells, then the product; None where too much of it would be in
    vain, or there are no units for it.
    """
    product = group.members[0]
    x, w = product.inputs
    g = Geometry.of(product)
    if g is None or "tiles" not in facts.features or x.dtype not in _HALVES:
        return None
    if w.dtype is not x.dtype or g.work < SMALL:
        return None
    plans = [plan for plan in (_by_taps(g), _by_results(g)) if plan is not None]
    if not plans:
        return None
    plan = min(plans, key=lambda plan: plan.vain)
    turned = plan.by_results
    most = max(plan.matrices * plan.lines * plan.width, plan.k * plan.columns, product.size)
    if plan.vain > (MOST_VAIN_BY_RESULTS if turned else MOST_VAIN) or most >= LARGEST:
        return None
    inside = set(group.members)
    outer = {v: s for v, s in layouts.items() if v not in inside}
    first, second = (_lay_results if turned else _lay_taps)(product, g, plan, outer, facts)
    (data, steps), (weights, more) = first, second
    steps = [*steps, *more]
    depth = tile.depth_of(x.dtype)
    shape = (plan.matrices, plan.rows, plan.columns)
    tiles, pieces = tile.choose(facts, x.dtype, shape, plan.k)
    e = Emitter(
        {**outer, data: row_major(data.shape), weights: row_major(weights.shape)},
        group=tile.THREADS,
    )
    row_tiles, column_tiles = -(-plan.rows // tile.ROWS), -(-plan.columns // tiles.columns)
    every = -(-plan.k // depth)
    slices = -(-every // pieces)
    pieces = -(-every // slices)
    together = tile.together_of(facts, tiles.columns, row_tiles)
    sizes = Sizes(
        *(e.number(n) for n in (plan.rows, plan.columns, plan.k)),
        *(e.parameter(n) for n in (row_tiles, column_tiles, together, pieces, slices)),
    )
    if pieces == 1:
        sizes.pieces = ir.const(1)

    def three(values: Sequence[int]) -> Triple:
        a, b, c = (e.number(n) for n in values)
        return a, b, c

    axes = plan.axes
    numbers = cells.Cells(
        groups=e.number(g.groups),
        outputs=e.number(plan.columns),
        blocks=e.number(1 if turned else plan.width // depth),
        taps=three([a.taps for a in axes]),
        extents=three([a.extent for a in axes]),
        cells=three(plan.grid),
        stride=three([a.stride for a in axes]),
        dilation=three([a.dilation for a in axes]),
        up=three([a.up for a in axes]),
        lead=three([a.up * a.stride - a.low for a in axes]),
        phase=e.number(plan.k if turned else plan.rows),
    )
    extents = three(g.extents)
    partial = Val(
        *(-70, "convolve", "convolve", (data, weights), None),
        (pieces, g.groups, g.outputs, g.batch * size_of(g.extents)),
        dt.float32,
    )
    lack = 5 - len(product.shape)

    def finish(
        piece: Expr, group_: Expr, image: Expr, at: Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        if pieces > 1:
            row = image
            for i, n in zip(at, extents, strict=True):
                row = ir.add(ir.mul(row, n), i)
            return e.store(partial, (piece, group_, o, row), value)
        output = ir.add(ir.mul(group_, e.number(g.outputs)), o) if g.groups > 1 else o
        return epilogue(e, group, (image, output, *at[lack:]), value)

    gap = three(g.gap)

    def finish_beside(
        piece: Expr, group_: Expr, image: Expr, at: Triple, column: Expr, value: Expr
    ) -> list[Stmt]:
        """Outputs that are results beside each other: the last comes first."""
        o = ir.irem(small(column), small(e.number(g.outputs))).cast(ir.INDEX)
        which = ir.idiv(small(column), small(e.number(g.outputs)))
        d, h, w = (
            ir.add(ir.mul(i, n), ir.sub(n, ir.add(before.cast(ir.INDEX), ir.const(1))))
            for i, n, before in zip(at, gap, apart(which, gap), strict=True)
        )
        inside = (d < extents[0]) & (h < extents[1]) & (w < extents[2])
        return [ir.If(inside, finish(piece, group_, image, (d, h, w), o, value))]

    def lines(v: Val, width: int) -> cells.Lines:
        each = v.size // width // (1 if turned else g.groups)
        return cells.Lines(e.buffer(v), e.number(width), e.number(each), e.number(each * width))

    number = ir.var("g")
    schedule = cells.correlation if turned else cells.convolution
    left, right = lines(data, plan.width), lines(weights, weights.shape[-1] if turned else plan.k)
    done = finish_beside if size_of(g.gap) > 1 else finish
    body, e.scratch = schedule(tiles, sizes, numbers, x.dtype, number, left, right, done)
    notes = ("convolve",) if pieces > 1 else tuple(v.op for v in group.members)
    count = plan.matrices * pieces * row_tiles * column_tiles
    steps.append(e.blocks("cell_convolution", number, body, count, notes))
    if pieces > 1:
        steps += sum_of_pieces(group, g, partial, layouts, facts)
    return steps


Laid = tuple[Val, list[Step]]


def _lay_taps(
    product: Val, g: Geometry, plan: _Plan, layouts: dict[Val, Shape], facts: Facts
) -> tuple[Laid, Laid]:
    """Data with channels in the cells; weights as lines of all taps, channels in each."""
    x, w = product.inputs
    split = (g.batch, g.groups, g.channels, *g.space)
    data = _on_cells(-50, x, split, (0, 1, 2), plan.grid, g.stride, plan.width, layouts)
    if size_of(g.gap) > 1:
        return data, _beside(w, g, plan, layouts, facts)
    split = (g.groups, g.outputs, g.channels, *g.taps)
    return data, laid(-60, w, split, (0, 1, 3, 4, 5, 2), plan.width, layouts, facts)


def _beside(w: Val, g: Geometry, plan: _Plan, layouts: dict[Val, Shape], facts: Facts) -> Laid:
    """Weights for results that lie beside each other: every so-many-th tap is one's own."""

    def view(op: str, v: Val, params: object, shape: Shape) -> Val:
        return Val(-61, op, "view", (v,), params, shape, v.dtype)

    split = (g.groups, g.outputs, g.channels, *g.taps)
    taps = [a.taps for a in plan.axes]
    front = [_spread(*n)[2] for n in zip(g.taps, g.gap, g.low, strict=True)]
    whole = (*split[:2], plan.width, *(t * n for t, n in zip(taps, g.gap, strict=True)))
    before = (0, 0, 0, *(f if n > 1 else 0 for f, n in zip(front, g.gap, strict=True)))
    after = tuple(n - a - b for n, a, b in zip(whole, split, before, strict=True))
    v = view("reshape", w, split, split)
    v = view("pad", v, (before, after, (0,) * 6), whole)
    parts = (*whole[:3], *(n for pair in zip(taps, g.gap, strict=True) for n in pair))
    order = (0, 4, 6, 8, 1, 3, 5, 7, 2)
    v = view("reshape", v, parts, parts)
    v = view("permute", v, order, tuple(parts[i] for i in order))
    found = Val(-60, "cast", "elementwise", (v,), None, v.shape, w.dtype)
    group = Group(found, 0)
    group.stored = {found}
    return found, lower_loops(group, layouts, facts)


def _lay_results(
    product: Val, g: Geometry, plan: _Plan, layouts: dict[Val, Shape], facts: Facts
) -> tuple[Laid, Laid]:
    """Data with images in the cells, and weights with outputs, both of one channel after the
    other."""
    x, w = product.inputs
    split, order = (g.batch, 1, g.channels, *g.space), (2, 1, 0)
    data = _on_cells(-50, x, split, order, plan.grid, g.dilation, plan.width, layouts)
    split, width = (g.outputs, 1, g.channels, *g.taps), rounded(g.outputs, RUN)
    return data, _on_cells(-60, w, split, order, plan.grid, (1, 1, 1), width, layouts)


def _on_cells(
    name: int,
    x: Val,
    split: Shape,
    order: Sequence[int],
    grid: Shape,
    phases: Shape,
    width: int,
    layouts: dict[Val, Shape],
) -> Laid:
    """An operand as (groups, phases of each axis, images, cells of each axis, channels), where
    `order` tells which axes of `split` are images, groups and channels."""
    images, groups, channels = (split[i] for i in order)
    v = Val(name - 1, "reshape", "view", (x,), split, split, x.dtype)
    shape = (groups, *phases, images, *grid, width)
    found = Val(name, "laid", "barrier", (), None, shape, x.dtype)
    e = Emitter(layouts, group=packing.THREADS)
    sizes = tuple(e.number(n) for n in shape)
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
        return image, group, [ir.add(ir.mul(i, n), p) for i, n, p in cell]

    def inside(t: Expr, line: Expr) -> Expr:
        found = ir.const(True, dt.bool_)
        for i, n in zip(place(t, line)[2], split[3:], strict=True):
            found = found & (i < e.number(n))
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
    lines = e.number(size_of(grid))
    squares = [-(-n // packing.SIDE) for n in (size_of(grid), width)]
    tiles = (e.parameter(squares[0]), e.parameter(squares[1]))
    limit = None if channels % packing.SIDE == 0 else e.number(channels)
    natural = along(x, layouts, 0 if order[2] == 0 else 1, len(x.shape) - 1)
    body, e.scratch = packing.pack_cells(
        *(number, x.dtype, (lines, sizes[8]), tiles, natural, inside, read, limit, store)
    )
    count = groups * size_of(phases) * images * squares[0] * squares[1]
    return found, [e.blocks("lay_cells", number, body, count, ("cast",))]
