"""Convolution groups: which schedule a convolution gets, and its epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.convolution_parts import Geometry, Numbers, epilogue, operands
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import Group
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops
from numus.compiler.spreading_convolutions import lower_spreading, spreading_blocks
from numus.kernels.convolution import Planes, output_tile, pixel_tile
from numus.kernels.gathering import Gathering, gathering
from numus.kernels.sliding import Sliding, sliding
from numus.runtime.contract import Facts
from numus.shapes import Shape, row_major, size_of

ZERO = const(0)

WORTH_A_THREAD = 1 << 20  # multiplications that take longer than waking a thread
PACKING = 512  # multiplications beside which packing a weight is nothing
MOST_PARTS = 16  # of a long sum over channels and taps
LONG = 4096  # taps that are summed up before they meet other sums
PARTING, SCATTERING = 8, 40  # multiplications that take as long, for a vector of results
FEW_OUTPUTS = 3  # do not fill a vector
SMALL = 1 << 14  # convolutions of fewer multiplications are plain loops


def lower_convolution(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Tiles where they pay; plain sums of products for complex, tiny and unusual ones."""
    product = group.members[0]
    g = Geometry.of(product)
    if g is None or product.dtype.is_complex or g.work < SMALL or facts.group:
        return _sums(group, layouts, facts)
    if size_of(g.extents) < size_of(g.taps):
        if any(gap > 1 for gap in g.gap) or g.outputs < FEW_OUTPUTS:
            return _sums(group, layouts, facts)
        return _gathering(group, g, layouts, facts)
    spread = spreading_blocks(g, product, facts)
    if spread is not None and spread.cost < _sliding_cost(g, product, facts):
        return lower_spreading(group, spread, layouts, facts)
    return [_sliding(group, g, layouts, facts)]


def _sliding_cost(g: Geometry, product: Val, facts: Facts) -> float:
    """Vectors that are multiplied per vector of results, counting those in margins and at ends, and
    what it costs to take data apart into phases, or to store results of one phase.
    """
    tile = pixel_tile(facts, dt.compute_dtype(product.dtype), g.outputs)
    counts = tuple(-(-n // gap) for n, gap in zip(g.extents, g.gap, strict=True))
    line, lines = (
        counts[axis] + (g.reach(axis)[1] - g.reach(axis)[0]) // g.stride[axis] for axis in (2, 1)
    )
    ended = -(-((counts[1] - 1) * line + counts[2]) // tile.columns) * tile.columns
    panels = -(-g.outputs // tile.rows)
    waste = min(ended, lines * line) / (counts[1] * counts[2]) * panels * tile.rows / g.outputs
    phases = (PARTING if max(g.stride) > 1 else 0) + (SCATTERING if max(g.gap) > 1 else 0)
    return g.depth * waste * tile.effort + phases


def _sliding(group: Group, g: Geometry, layouts: dict[Val, Shape], facts: Facts) -> Step:
    product = group.members[0]
    dtype = dt.compute_dtype(product.dtype)
    item = dtype.itemsize
    folded = len(product.shape) < 5  # images are then an axis of space, which windows do not cross
    if folded:
        g = replace(g, batch=1, space=(g.batch, *g.space[1:]), extents=(g.batch, *g.extents[1:]))
    reach = [g.reach(axis) for axis in range(3)]
    nearest = tuple(low for low, _, _ in reach)
    spans = tuple(high - low for low, high, _ in reach)
    phases = tuple(min(s, span + 1) for s, span in zip(g.stride, spans, strict=True))
    more = tuple(span // s for span, s in zip(spans, g.stride, strict=True))
    counts = tuple(-(-n // gap) for n, gap in zip(g.extents, g.gap, strict=True))
    entries = g.channels * size_of(tuple(most for _, _, most in reach))
    # every task packs its weights: fine tasks even out what threads get, where that is little work
    fine = g.work // (PACKING * product.inputs[1].size)
    wanted = min(max(fine, facts.parallel_units), 4 * facts.parallel_units)
    wanted = min(wanted, max(1, g.work // WORTH_A_THREAD))

    # a block is as many rows as the second cache has room for, or as much of one row
    def seen(depth: int, height: int, width: int) -> Shape:
        return (depth + more[0], height + more[1], width + more[2])

    lines = g.channels * size_of(phases)
    room = facts.cache_l2 // 2 // item // lines
    depth, height, width = 1, counts[1], counts[2]
    while height > 1 and size_of(seen(1, height, width)) > room:
        height = -(-height // 2)
    while height == 1 and width > 256 and size_of(seen(1, height, width)) > room:
        width = -(-width // 2)
    images = g.batch * g.groups * counts[0]
    while height > 8 and images * -(-counts[1] // height) < wanted:
        height = -(-height // 2)
    line = width + more[2]
    face = (height - 1) * line + width
    tile = pixel_tile(facts, dtype, g.outputs)
    if (height, width) == counts[1:]:
        # small images follow each other where the margins between them waste less than their ends
        area, ended = (height + more[1]) * line, -(-face // tile.columns) * tile.columns
        most = min(counts[0] // max(1, wanted // (g.batch * g.groups)), room // area - more[0], 4)
        depth = most if most > 1 and area < 0.97 * ended else 1
    block = (depth, height, width)
    blocks = tuple(-(-n // b) for n, b in zip(counts, block, strict=True))
    units = g.batch * size_of(blocks)
    panels = -(-g.outputs // tile.rows)
    # Every task packs its weights and fills its planes: cut so that less is done twice.
    unit_tasks = min(units, -(-wanted // g.groups))
    output_tasks = 1
    pixels = units * g.channels * size_of(phases) * size_of(seen(*block))
    if unit_tasks * g.groups < wanted or product.inputs[1].size > pixels:
        output_tasks = min(panels, -(-wanted // (g.groups * unit_tasks)))
    task_panels = -(-panels // output_tasks)
    output_tasks = -(-panels // task_panels)
    task_units = -(-units // unit_tasks)
    unit_tasks = -(-units // task_units)

    e = Emitter(group.outside(layouts))

    numbers = Numbers(e)
    lane = facts.lanes_bytes // item
    size = -(-size_of(phases) * size_of(seen(*block)) // lane) | 1  # an odd number of lines
    step = numbers(g.stride, 2)
    channels = e.parameter(g.channels)
    size_slot = e.parameter(size * lane)
    slack = ir.add(ir.mul(channels, size_slot), const(tile.columns))
    planes = Planes(
        ir.Buffer("planes", dtype, "scratch", slack),
        step,
        numbers(phases),
        numbers(seen(*block)),
        size_slot,
        True,
    )
    s = Sliding(
        channels=channels,
        outputs=e.parameter(g.outputs),
        space=numbers(g.space),
        extents=numbers(g.extents),
        taps=numbers(g.taps),
        stride=step,
        dilation=numbers(g.dilation),
        gap=numbers(g.gap, 2),
        low=numbers(g.low, 0),
        nearest=numbers(nearest, 0),
        block=numbers(block),
        blocks=numbers(blocks),
        entries=e.parameter(entries),
        task_panels=e.parameter(task_panels),
        output_tasks=e.parameter(output_tasks),
        units=e.parameter(units),
        task_units=e.parameter(task_units),
        unit_tasks=e.parameter(unit_tasks),
    )
    data, weights = operands(e, product, g, s.channels, s.outputs, folded)

    def finish(n: Expr, group_: Expr, o: Expr, *rest: Any) -> list[Stmt]:
        *space, value = rest
        output = ir.add(ir.mul(group_, s.outputs), o) if g.groups > 1 else o
        index = (space[0] if folded else n, output, *space[5 - len(product.shape) :])
        return epilogue(e, group, index, value)

    number = ir.var("g")
    body, scratch = sliding(s, tile, dtype, planes, number, data, weights, finish)
    e.scratch += scratch
    grid = g.groups * output_tasks * unit_tasks
    loop = ir.For(number, ZERO, e.parameter(grid), "grid", body)
    return e.finish("convolution", [loop], grid, group.notes)


def _gathering(group: Group, g: Geometry, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Sums over parts of the channels and taps, then their sum with the epilogue."""
    product, *tail = group.members
    x, w = product.inputs
    dtype = dt.compute_dtype(product.dtype)
    item = dtype.itemsize
    spans = tuple((n - 1) * s for n, s in zip(g.extents, g.stride, strict=True))
    phases = tuple(min(d, span + 1) for d, span in zip(g.dilation, spans, strict=True))
    more = tuple(span // d for span, d in zip(spans, g.dilation, strict=True))
    places = size_of(g.extents)

    def plane(height: int, width: int) -> int:
        extents = (1 + more[0], height + more[1], width + more[2])
        return size_of(phases) * size_of(extents)

    # the planes of all images and the weights of all outputs share the second cache
    room = facts.cache_l2 // 2 // item
    height, width = g.taps[1], g.taps[2]

    def fits() -> bool:
        taken = g.batch * plane(height, width) + g.outputs * height * width
        return taken <= room and height * width <= LONG

    while height > 1 and not fits():
        height = -(-height // 2)
    while height == 1 and width > 64 and not fits():
        width = -(-width // 2)
    blocks = (-(-g.taps[1] // height), -(-g.taps[2] // width))
    units = g.channels * g.taps[0] * blocks[0] * blocks[1]
    tile = output_tile(facts, dtype, g.batch * places, g.outputs)
    panels = -(-g.outputs // tile.columns)
    # Parts follow from the shape alone, or the number of threads would show in the result.
    total = g.groups * g.batch * places * g.outputs
    parts = min(units, MOST_PARTS, max(2, (x.size + w.size) // (2 * total)))
    part_units = -(-units // parts)
    parts = -(-units // part_units)
    wanted = min(2 * facts.parallel_units, max(1, g.work // WORTH_A_THREAD))
    image_tasks = min(g.batch, -(-wanted // (parts * g.groups)))
    batch = -(-g.batch // image_tasks)
    image_tasks = -(-g.batch // batch)
    output_tasks = min(panels, -(-wanted // (parts * g.groups * image_tasks)))
    task_panels = -(-panels // output_tasks)
    output_tasks = -(-panels // task_panels)

    e = Emitter({v: s for v, s in layouts.items() if v not in set(group.members)})
    numbers = Numbers(e)
    extents = (1 + more[0], height + more[1], width + more[2])
    line = facts.lanes_bytes // item
    size = e.parameter((-(-size_of(phases) * size_of(extents) // line) | 1) * line)
    images = e.parameter(batch)
    dilation = numbers(g.dilation, 2)
    planes = Planes(
        ir.Buffer("planes", dtype, "scratch", ir.mul(images, size)),
        dilation,
        numbers(phases),
        numbers(extents),
        size,
        True,
    )
    s = Gathering(
        batch=images,
        images=e.parameter(g.batch),
        outputs=e.parameter(g.outputs),
        space=numbers(g.space),
        extents=numbers(g.extents),
        taps=numbers(g.taps),
        stride=numbers(g.stride),
        dilation=dilation,
        low=numbers(g.low, 0),
        block=numbers((1, height, width))[1:],
        blocks=numbers((1, *blocks))[1:],
        row_tiles=e.parameter(-(-batch * places // tile.rows)),
        image_tasks=e.parameter(image_tasks),
        task_panels=e.parameter(task_panels),
        output_tasks=e.parameter(output_tasks),
        units=e.parameter(units),
        part_units=e.parameter(part_units),
        parts=e.parameter(parts),
    )
    channels = e.parameter(g.channels)
    shape = (parts, g.groups, g.batch * places, g.outputs)
    partial = Val(-30, "convolve", "convolve", (x, w), None, shape, dtype)
    data, weights = operands(e, product, g, channels, s.outputs)

    def finish(part: Expr, group_: Expr, row: Expr, o: Expr, value: Expr) -> list[Stmt]:
        return e.store(partial, (part, group_, row, o), value)

    number = ir.var("g")
    body, scratch = gathering(s, tile, dtype, planes, number, data, weights, finish)
    e.scratch += scratch
    grid = g.groups * output_tasks * image_tasks * parts
    first = e.blocks("convolution", number, body, grid, ("convolve",))

    layouts = {**layouts, partial: row_major(shape)}
    rank = len(product.shape) - 2
    split = (parts, g.groups, g.batch, *product.shape[2:], g.outputs)
    order = (0, 2, 1, 3 + rank, *range(3, 3 + rank))
    moved = (parts, g.batch, g.groups, g.outputs, *product.shape[2:])
    whole = (parts, *product.shape)
    viewed = Val(-31, "reshape", "view", (partial,), split, split, dtype)
    viewed = Val(-32, "permute", "view", (viewed,), order, moved, dtype)
    viewed = Val(-33, "reshape", "view", (viewed,), whole, whole, dtype)
    total_ = Val(-34, "reduce_sum", "reduce", (viewed,), (0,), product.shape, product.dtype)
    rest = Group(total_, group.position)
    rest.members = [total_, *tail]
    rest.stored = {total_ if v is product else v for v in group.stored}
    redirect = {total_: (product, 0, 0)}
    return [first, *lower_loops(rest, layouts, facts, redirect, {product: total_})]


def _sums(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """A convolution as a plain sum of products over a view of its windows."""
    product, *tail = group.members
    x, w = product.inputs
    groups, windows, _ = product.params
    n, q, *extents = product.shape
    c, *taps = w.shape[1:]
    size = x.shape[2:]
    rank = len(size)
    wide = product.dtype
    if wide.is_floating:  # products of narrow floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), x.dtype)

    def view(op: str, v: Val, params: object, shape: tuple[int, ...]) -> Val:
        return Val(-10, op, "view", (v,), params, shape, v.dtype)

    def reshaped(v: Val, *shape: int) -> Val:
        return view("reshape", v, shape, shape)

    def widened(v: Val) -> Val:
        return v if v.dtype is wide else Val(-11, "cast", "elementwise", (v,), None, v.shape, wide)

    # every output sees the channels of its group: (n, outputs, *space, channels, *taps)
    shape = (n, groups, q // groups, c, *size)
    data = view("broadcast", reshaped(x, n, groups, 1, c, *size), shape, shape)
    data = reshaped(data, n, q, c, *size)
    order = (0, 1, *range(3, 3 + rank), 2)
    data = view("permute", data, order, (n, q, *size, c))
    data = reshaped(data, *data.shape, *(1,) * rank)
    data = view("broadcast", data, (n, q, *size, c, *taps), (n, q, *size, c, *taps))
    for i, v in enumerate(windows):
        params = (2 + i, 3 + rank + i, extents[i], v.stride, v.dilation, -v.low, v.gap)
        shape = (*data.shape[: 2 + i], extents[i], *data.shape[3 + i :])
        data = view("shear", data, params, shape)
    weights = reshaped(w, 1, q, *(1,) * rank, c, *taps)
    factors = (widened(data), widened(weights))
    terms = Val(-13, "mul", "elementwise", factors, None, data.shape, wide)
    axes = tuple(range(2 + rank, 3 + 2 * rank))
    total = Val(-14, "reduce_sum", "reduce", (terms,), axes, product.shape, product.dtype)
    rows = Group(total, group.position)
    rows.members = [total, *tail]
    rows.stored = {total if v is product else v for v in group.stored}
    return lower_loops(rows, layouts, facts, {total: (product, 0, 0)}, {product: total})
