"""Convolutions whose vectors run along outputs: the numbers of `kernels/spreading.py`."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import PACKED, Value
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
from numus.kernels.conv.cpu.channels import Spreading, pack_weights, spreading
from numus.kernels.conv.cpu.planes import Planes, Tile, output_tile
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

ZERO = const(0)

WORTH_PACKING = 1 << 22  # that take longer than a kernel of its own for the weights
ADDRESSES = 8  # of pixels, that are kept in registers
PIXELS = 128  # that pass by the weights of a block, at least: these come from further away
FINER = 4  # times as many tasks as blocks are cut for
TURNING = 20  # multiplications of a vector that take as long as turning it


@dataclass(frozen=True, slots=True)
class Spread:
    """A convolution as this schedule sees it, cut into blocks of whole lines."""

    g: Geometry
    dtype: DType
    tile: Tile
    folded: bool  # whether images are an axis of space, which windows do not cross
    nearest: Shape
    seen: Shape  # of the data, by a block
    entries: int  # channels and taps of a phase, at most
    panels: int
    block: Shape
    blocks: tuple[int, int]

    @property
    def phases(self) -> int:
        return size_of(self.g.gap)

    @property
    def cost(self) -> float:
        """Vectors that are multiplied per vector of results, counting those of no output."""
        waste = self.panels * self.tile.columns / self.g.outputs
        return self.g.depth * waste * self.tile.effort + TURNING


def spreading_blocks(g: Geometry, product: Value, target: Target) -> Spread | None:
    """How the convolution is cut; None for a small one, or where lines are too long."""
    dtype = dt.compute_dtype(product.dtype)
    item = dtype.itemsize
    folded = is_folded(product)
    if folded:
        g = g.folded()
    tile = output_tile(target, dtype, PIXELS, g.outputs, ADDRESSES)
    if g.work < WORTH_PACKING:
        return None
    reach = [g.reach(axis) for axis in range(3)]
    counts = g.counts
    panels = -(-g.outputs // tile.columns)

    def seen(block: Shape) -> Shape:
        return tuple(
            (n - 1) * s + high - low + 1
            for n, s, (low, high, _) in zip(block, g.stride, reach, strict=True)
        )

    def fits(block: Shape) -> bool:
        """Whether the data and the sums of a block share the second cache."""
        sums = size_of(block) * size_of(g.gap) * panels * tile.columns
        return (g.channels * size_of(seen(block)) + sums) * item <= target.l2_bytes // 2

    wanted = min(4 * target.num_cores, max(1, g.work // WORTH_A_THREAD))
    images, height, width = 1, counts[1], counts[2]
    while height > 1 and not fits((1, height, width)):
        height = -(-height // 2)
    if not fits((1, height, width)):
        return None
    separate = g.batch * g.groups * counts[0]
    while height * width > PIXELS and height > 1 and separate * -(-counts[1] // height) < wanted:
        height = -(-height // 2)
    if height == counts[1]:  # small images pass by together
        most = min(-(-PIXELS // (height * width)), separate // wanted, counts[0])
        while images < most and fits((images + 1, height, width)):
            images += 1
    block = (images, height, width)
    return Spread(
        g,
        dtype,
        tile,
        folded,
        nearest=tuple(low for low, _, _ in reach),
        seen=seen(block),
        entries=g.channels * size_of(tuple(most for _, _, most in reach)),
        panels=panels,
        block=block,
        blocks=(-(-counts[0] // images), -(-counts[1] // height)),
    )


def lower_spreading(
    group: FusionGroup, b: Spread, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Weights as panels, then the convolution."""
    product = group.members[0]
    g, dtype, tile = b.g, b.dtype, b.tile
    wanted = min(4 * target.num_cores, max(1, g.work // WORTH_A_THREAD))
    units = g.batch * b.blocks[0] * b.blocks[1]
    # the weights are packed already: tasks are as fine as blocks are, and threads end together
    unit_tasks = min(units, -(-wanted * FINER // g.groups))
    output_tasks = 1
    if unit_tasks * g.groups < wanted:
        output_tasks = min(b.panels, -(-wanted // (g.groups * unit_tasks)))
    task_panels = -(-b.panels // output_tasks)
    output_tasks = -(-b.panels // task_panels)
    task_units = -(-units // unit_tasks)
    unit_tasks = -(-units // task_units)

    def numbers(e: Emitter) -> Spreading:
        n = Numbers(e)
        return Spreading(
            channels=e.scalar_arg(g.channels),
            outputs=e.scalar_arg(g.outputs),
            space=n(g.space),
            extents=(*n(g.extents)[:2], e.dim(g.extents[2])),
            taps=n(g.taps),
            stride=n(g.stride, 2),
            dilation=n(g.dilation),
            gap=n(g.gap, 2),
            low=n(g.low, 0),
            nearest=n(b.nearest, 0),
            block=n(b.block),
            blocks=n((*b.blocks, 1))[:2],
            entries=e.scalar_arg(b.entries),
            depth=e.scalar_arg(max(16, target.l1_bytes // 2 // (tile.columns * dtype.itemsize))),
            panels=e.scalar_arg(b.panels),
            task_panels=e.scalar_arg(task_panels),
            output_tasks=e.scalar_arg(output_tasks),
            units=e.scalar_arg(units),
            task_units=e.scalar_arg(task_units),
            unit_tasks=e.scalar_arg(unit_tasks),
        )

    shape = (g.groups, b.phases, b.panels, b.entries, tile.columns)
    packed = Value.fresh(PACKED, "convolve", (product.inputs[1],), None, shape, dtype)
    outside = {v: s for v, s in layouts.items() if v not in set(group.members)}
    number = ir.var("g")

    e = Emitter(outside)
    s = numbers(e)
    _, weights = operands(e, product, g, s.channels, s.outputs, b.folded)
    body = pack_weights(s, tile, dtype, e.buffer(packed, "write"), number, weights)
    first = e.grid_kernel("pack", number, body, g.groups * b.phases * b.panels, ("pack",))

    e = Emitter({**outside, packed: row_major(shape)})
    s = numbers(e)
    lane = target.vector_bytes // dtype.itemsize
    size = e.scalar_arg((-(-size_of(b.seen) // lane) | 1) * lane)  # an odd number of lines
    one = (const(1), const(1), const(1))
    buffer = ir.Buffer("planes", dtype, "scratch", ir.mul(s.channels, size))
    planes = Planes(buffer, one, one, Numbers(e)(b.seen), size, True)
    data, _ = operands(e, product, g, s.channels, s.outputs, b.folded)

    def finish(n: Expr, group_: Expr, o: Expr, z: Expr, line: Expr, value: Expr) -> list[Stmt]:
        output = ir.add(ir.mul(group_, s.outputs), o) if g.groups > 1 else o
        # what lies in memory in the order of the result adds the two up to `line` again
        width = e.dim(g.extents[2])
        y, x = (ZERO, line) if g.extents[1] == 1 else (ir.idiv(line, width), ir.irem(line, width))
        index = (z if b.folded else n, output, *(z, y, x)[5 - len(product.shape) :])
        return epilogue(e, group, index, value)

    body, scratch = spreading(s, tile, dtype, planes, number, data, e.buffer(packed), finish)
    e.scratch += scratch
    grid = g.groups * output_tasks * unit_tasks
    e.stores_once = True
    return [first, e.grid_kernel("convolution", number, body, grid, group.notes)]
