"""Convolutions with windows larger than their result: the numbers of `kernels/gathering.py`."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import WORTH_A_THREAD, Geometry, Numbers, operands
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_sum
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.conv.cpu.planes import Planes, Task, Tile, output_tile
from numus.kernels.conv.cpu.wgrad import Gathering, gathering
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

MOST_PARTS = 16  # of a long sum over channels and taps
LONG = 4096  # taps that are summed up before they meet other sums


@dataclass(frozen=True, slots=True)
class Gather:
    """A convolution as this schedule sees it: its taps cut into blocks, these into parts, and all
    of it into tasks."""

    dtype: DType
    tile: Tile
    phases: Shape  # of the data, by dilations
    seen: Shape  # elements of a phase that a block sees
    block: tuple[int, int]
    blocks: tuple[int, int]
    units: int  # blocks of taps of all channels
    parts: int
    part_units: int
    batch: int  # images of a task
    image_tasks: int
    output_tasks: int
    task_panels: int


def _cut(g: Geometry, product: Value, target: Target) -> Gather:
    dtype = dt.compute_dtype(product.dtype)
    spans = tuple((n - 1) * s for n, s in zip(g.extents, g.stride, strict=True))
    phases = tuple(min(d, span + 1) for d, span in zip(g.dilation, spans, strict=True))
    more = tuple(span // d for span, d in zip(spans, g.dilation, strict=True))
    places = size_of(g.extents)

    def seen(height: int, width: int) -> Shape:
        return (1 + more[0], height + more[1], width + more[2])

    # the planes of all images and the weights of all outputs share the second cache
    room = target.l2_bytes // 2 // dtype.itemsize

    def fits(height: int, width: int) -> bool:
        planes = g.batch * size_of(phases) * size_of(seen(height, width))
        return planes + g.outputs * height * width <= room and height * width <= LONG

    _, height, width = g.taps
    while height > 1 and not fits(height, width):
        height = -(-height // 2)
    while height == 1 and width > 64 and not fits(height, width):
        width = -(-width // 2)
    blocks = (-(-g.taps[1] // height), -(-g.taps[2] // width))
    units = g.channels * g.taps[0] * blocks[0] * blocks[1]
    tile = output_tile(target, dtype, g.batch * places, g.outputs)
    panels = -(-g.outputs // tile.columns)
    # Parts follow from the shape alone, or the number of threads would show in the result.
    total = g.groups * g.batch * places * g.outputs
    read = sum(v.size for v in product.inputs)
    parts = min(units, MOST_PARTS, max(2, read // (2 * total)))
    part_units = -(-units // parts)
    parts = -(-units // part_units)
    wanted = min(2 * target.num_cores, max(1, g.work // WORTH_A_THREAD))
    image_tasks = min(g.batch, -(-wanted // (parts * g.groups)))
    batch = -(-g.batch // image_tasks)
    image_tasks = -(-g.batch // batch)
    output_tasks = min(panels, -(-wanted // (parts * g.groups * image_tasks)))
    task_panels = -(-panels // output_tasks)
    return Gather(
        *(dtype, tile, phases, seen(height, width), (height, width), blocks),
        units=units,
        parts=parts,
        part_units=part_units,
        batch=batch,
        image_tasks=image_tasks,
        output_tasks=-(-panels // task_panels),
        task_panels=task_panels,
    )


def lower_gathering(
    group: FusionGroup, g: Geometry, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Sums over parts of the channels and taps, then their sum with the epilogue."""
    product = group.members[0]
    cut = _cut(g, product, target)
    places = size_of(g.extents)
    shape = (cut.parts, g.groups, g.batch * places, g.outputs)
    partial = Value.fresh("convolve", "convolve", product.inputs, None, shape, cut.dtype)
    e = Emitter(group.input_layouts(layouts))
    numbers = Numbers(e)
    line = target.vector_bytes // cut.dtype.itemsize
    size = e.scalar_arg((-(-size_of(cut.phases) * size_of(cut.seen) // line) | 1) * line)
    images = e.scalar_arg(cut.batch)
    dilation = numbers(g.dilation, 2)
    planes = Planes(
        ir.Buffer("planes", cut.dtype, "scratch", ir.mul(images, size)),
        dilation,
        numbers(cut.phases),
        numbers(cut.seen),
        size,
        True,
    )
    s = Gathering(
        batch=images,
        images=e.scalar_arg(g.batch),
        outputs=e.scalar_arg(g.outputs),
        space=numbers(g.space),
        extents=numbers(g.extents),
        taps=numbers(g.taps),
        stride=numbers(g.stride),
        dilation=dilation,
        low=numbers(g.low, 0),
        block=numbers((1, *cut.block))[1:],
        blocks=numbers((1, *cut.blocks))[1:],
        row_tiles=e.scalar_arg(-(-cut.batch * places // cut.tile.rows)),
        image_tasks=e.scalar_arg(cut.image_tasks),
        task_panels=e.scalar_arg(cut.task_panels),
        output_tasks=e.scalar_arg(cut.output_tasks),
        units=e.scalar_arg(cut.units),
        part_units=e.scalar_arg(cut.part_units),
        parts=e.scalar_arg(cut.parts),
    )
    data, weights = operands(e, product, g, e.scalar_arg(g.channels), s.outputs)

    def finish(part: Expr, group_: Expr, row: Expr, o: Expr, value: Expr) -> list[Stmt]:
        return e.store(partial, (part, group_, row, o), value)

    number = ir.var("g")
    body, scratch = gathering(s, Task(number, cut.tile, cut.dtype, planes, data, weights, finish))
    e.scratch += scratch
    grid = g.groups * cut.output_tasks * cut.image_tasks * cut.parts
    e.stores_once = True
    first = e.grid_kernel("convolution", number, body, grid, ("convolve",))
    return [first, *_together(group, g, partial, layouts, target)]


def _together(
    group: FusionGroup, g: Geometry, partial: Value, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The parts (part, group, image and place, output) summed up, and the group's epilogue."""
    product = group.members[0]
    parts, dtype = partial.shape[0], partial.dtype
    space = product.shape[2:]
    split = (parts, g.groups, g.batch, *space, g.outputs)
    order = (0, 2, 1, 3 + len(space), *range(3, 3 + len(space)))
    moved = (parts, g.batch, g.groups, g.outputs, *space)
    whole = (parts, *product.shape)
    viewed = Value.fresh("reshape", "view", (partial,), split, split, dtype)
    viewed = Value.fresh("permute", "view", (viewed,), order, moved, dtype)
    viewed = Value.fresh("reshape", "view", (viewed,), whole, whole, dtype)
    total = Value.fresh("reduce_sum", "reduce", (viewed,), (0,), product.shape, product.dtype)
    layouts = {**layouts, partial: row_major(partial.shape)}
    return lower_sum(group, total, layouts, target)
