"""Convolutions whose vectors run along space: the numbers of `kernels/sliding.py`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import (
    WORTH_A_THREAD,
    Geometry,
    Numbers,
    epilogue,
    is_folded,
    operands,
)
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import Planes, Task, Tile, pixel_tile
from numus.kernels.conv.cpu.spatial import Sliding, sliding
from numus.shapes import Shape, size_of
from numus.target import Target

ZERO = const(0)

PACKING = 512  # multiplications beside which packing a weight is nothing
PARTING, SCATTERING = 8, 40  # multiplications that take as long, for a vector of results


@dataclass(frozen=True, slots=True)
class Slide:
    """A convolution as this schedule sees it, cut into blocks and these into tasks."""

    g: Geometry
    dtype: DType
    tile: Tile
    folded: bool  # whether images are an axis of space, which windows do not cross
    nearest: Shape
    phases: Shape  # of the data, by strides
    more: Shape  # elements of a phase that a line of results sees beyond its own
    entries: int  # channels and taps of a phase, at most
    block: Shape
    blocks: Shape
    units: int  # blocks of all images
    unit_tasks: int
    task_units: int
    output_tasks: int
    task_panels: int

    @property
    def seen(self) -> Shape:
        """Elements of a phase that a block sees."""
        return _seen(self.block, self.more)


def _seen(block: Shape, more: Shape) -> Shape:
    return tuple(n + m for n, m in zip(block, more, strict=True))


def sliding_cost(g: Geometry, product: Value, target: Target) -> float:
    """Vectors that are multiplied per vector of results, counting those in margins and at ends, and
    what it costs to take data apart into phases, or to store results of one phase.
    """
    tile = pixel_tile(target, dt.compute_dtype(product.dtype), g.outputs)
    counts = g.counts
    line, lines = (
        counts[axis] + (g.reach(axis)[1] - g.reach(axis)[0]) // g.stride[axis] for axis in (2, 1)
    )
    ended = -(-((counts[1] - 1) * line + counts[2]) // tile.columns) * tile.columns
    panels = -(-g.outputs // tile.rows)
    waste = min(ended, lines * line) / (counts[1] * counts[2]) * panels * tile.rows / g.outputs
    phases = (PARTING if max(g.stride) > 1 else 0) + (SCATTERING if max(g.gap) > 1 else 0)
    return g.depth * waste * tile.effort + phases


def _cut(g: Geometry, product: Value, target: Target) -> Slide:
    """Blocks that the second cache has room for, and tasks that do little twice."""
    dtype = dt.compute_dtype(product.dtype)
    folded = is_folded(product)
    if folded:
        g = g.folded()
    reach = [g.reach(axis) for axis in range(3)]
    spans = tuple(high - low for low, high, _ in reach)
    phases = tuple(min(s, span + 1) for s, span in zip(g.stride, spans, strict=True))
    more = tuple(span // s for span, s in zip(spans, g.stride, strict=True))
    # every task packs its weights: fine tasks even out what threads get, where that is little work
    fine = g.work // (PACKING * product.inputs[1].size)
    wanted = min(max(fine, target.num_cores), 4 * target.num_cores)
    wanted = min(wanted, max(1, g.work // WORTH_A_THREAD))
    tile = pixel_tile(target, dtype, g.outputs)
    room = target.l2_bytes // 2 // dtype.itemsize // (g.channels * size_of(phases))
    block = _block(g, more, room, wanted, tile)
    blocks = tuple(-(-n // b) for n, b in zip(g.counts, block, strict=True))
    units = g.batch * size_of(blocks)
    panels = -(-g.outputs // tile.rows)
    # Every task packs its weights and fills its planes: cut so that less is done twice.
    unit_tasks = min(units, -(-wanted // g.groups))
    output_tasks = 1
    pixels = units * g.channels * size_of(phases) * size_of(_seen(block, more))
    if unit_tasks * g.groups < wanted or product.inputs[1].size > pixels:
        output_tasks = min(panels, -(-wanted // (g.groups * unit_tasks)))
    task_panels = -(-panels // output_tasks)
    task_units = -(-units // unit_tasks)
    return Slide(
        *(g, dtype, tile, folded),
        nearest=tuple(low for low, _, _ in reach),
        phases=phases,
        more=more,
        entries=g.channels * size_of(tuple(most for _, _, most in reach)),
        block=block,
        blocks=blocks,
        units=units,
        unit_tasks=-(-units // task_units),
        task_units=task_units,
        output_tasks=-(-panels // task_panels),
        task_panels=task_panels,
    )


def _block(g: Geometry, more: Shape, room: int, wanted: int, tile: Tile) -> Shape:
    """As many rows as there is room for, or as much of one row; or several small images."""
    images, rows, columns = g.counts
    height, width = rows, columns
    while height > 1 and size_of(_seen((1, height, width), more)) > room:
        height = -(-height // 2)
    while height == 1 and width > 256 and size_of(_seen((1, height, width), more)) > room:
        width = -(-width // 2)
    while height > 8 and g.batch * g.groups * images * -(-rows // height) < wanted:
        height = -(-height // 2)
    if (height, width) != (rows, columns):
        return (1, height, width)
    # small images follow each other where the margins between them waste less than their ends
    line = width + more[2]
    area, face = (height + more[1]) * line, (height - 1) * line + width
    ended = -(-face // tile.columns) * tile.columns
    most = min(images // max(1, wanted // (g.batch * g.groups)), room // area - more[0], 4)
    return (most if most > 1 and area < 0.97 * ended else 1, height, width)


def lower_sliding(
    group: FusionGroup, g: Geometry, layouts: dict[Value, Shape], target: Target
) -> LoweredKernel:
    product = group.members[0]
    cut = _cut(g, product, target)
    g, dtype, tile = cut.g, cut.dtype, cut.tile
    e = Emitter(group.input_layouts(layouts))
    numbers = Numbers(e)
    lane = target.vector_bytes // dtype.itemsize
    size = -(-size_of(cut.phases) * size_of(cut.seen) // lane) | 1  # an odd number of lines
    step = numbers(g.stride, 2)
    channels = e.scalar_arg(g.channels)
    size_slot = e.scalar_arg(size * lane)
    slack = ir.add(ir.mul(channels, size_slot), const(tile.columns))
    planes = Planes(
        ir.Buffer("planes", dtype, "scratch", slack),
        step,
        numbers(cut.phases),
        numbers(cut.seen),
        size_slot,
        True,
    )
    s = Sliding(
        channels=channels,
        outputs=e.scalar_arg(g.outputs),
        space=numbers(g.space),
        extents=numbers(g.extents),
        taps=numbers(g.taps),
        stride=step,
        dilation=numbers(g.dilation),
        gap=numbers(g.gap, 2),
        low=numbers(g.low, 0),
        nearest=numbers(cut.nearest, 0),
        block=numbers(cut.block),
        blocks=numbers(cut.blocks),
        entries=e.scalar_arg(cut.entries),
        task_panels=e.scalar_arg(cut.task_panels),
        output_tasks=e.scalar_arg(cut.output_tasks),
        units=e.scalar_arg(cut.units),
        task_units=e.scalar_arg(cut.task_units),
        unit_tasks=e.scalar_arg(cut.unit_tasks),
    )
    data, weights = operands(e, product, g, s.channels, s.outputs, cut.folded)

    def finish(n: Expr, group_: Expr, o: Expr, *rest: Any) -> list[Stmt]:
        *space, value = rest
        output = ir.add(ir.mul(group_, s.outputs), o) if g.groups > 1 else o
        index = (space[0] if cut.folded else n, output, *space[5 - len(product.shape) :])
        return epilogue(e, group, index, value)

    number = ir.var("g")
    body, scratch = sliding(s, Task(number, tile, dtype, planes, data, weights, finish))
    e.scratch += scratch
    grid = g.groups * cut.output_tasks * cut.unit_tasks
    e.stores_once = True
    return e.grid_kernel("convolution", number, body, grid, group.notes)
