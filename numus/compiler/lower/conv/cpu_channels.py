"""Direct convolution, NCHWc (`kernels/conv/cpu/channels.py`): blocking and launch arguments."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.conv.geometry import (
    Geometry,
    ScalarArgs,
    epilogue,
    has_free_axis,
    operands,
)
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.channels import ChannelSizes, conv_channels, pack_weights
from numus.kernels.conv.cpu.planes import InputPlanes, Task, Tile, channel_tile
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

ZERO = const(0)


@dataclass(frozen=True, slots=True)
class ChannelTiling:
    """Blocks of whole rows of outputs."""

    g: Geometry
    dtype: DType
    tile: Tile
    images_are_depth: bool
    tap_origin: Shape
    input_size: Shape  # of a block
    k_size: int  # channels × taps of a phase, at most
    panels: int
    block: Shape
    blocks: tuple[int, int]

    @property
    def phases(self) -> int:
        return size_of(self.g.lhs_dilation)

    @property
    def cost(self) -> float:
        """FMAs per vector of outputs, those of padded channels included, and the transpose."""
        waste = self.panels * self.tile.columns / self.g.out_channels
        return self.g.macs_per_output * waste * self.tile.cost_per_fma + CPU.transpose_cost


def channel_tiling(g: Geometry, conv: Value, target: Target) -> ChannelTiling | None:
    """None for small convolutions, and where a row does not fit in L2."""
    dtype = dt.compute_dtype(conv.dtype)
    itemsize = dtype.itemsize
    images_are_depth = has_free_axis(conv)
    if images_are_depth:
        g = g.batch_as_depth()
    if g.macs < CPU.min_packed_macs:
        return None
    pixels, registers = CPU.min_block_pixels, CPU.max_pixel_registers
    tile = channel_tile(target, dtype, pixels, g.out_channels, registers)
    ranges = g.tap_ranges
    counts = g.phase_size
    panels = -(-g.out_channels // tile.columns)

    def input_size(block: Shape) -> Shape:
        return tuple(
            (n - 1) * s + high - low + 1
            for n, s, (low, high, _) in zip(block, g.stride, ranges, strict=True)
        )

    def fits(block: Shape) -> bool:
        """True where input and accumulators of a block fit in half of L2."""
        acc = size_of(block) * size_of(g.lhs_dilation) * panels * tile.columns
        return (g.in_channels * size_of(input_size(block)) + acc) * itemsize <= target.l2_bytes // 2

    tasks = min(4 * target.num_cores, max(1, g.macs // CPU.min_task_macs))
    images, height, width = 1, counts[1], counts[2]
    while height > 1 and not fits((1, height, width)):
        height = -(-height // 2)
    if not fits((1, height, width)):
        return None
    total = g.batch * g.groups * counts[0]
    while height * width > pixels and height > 1 and total * -(-counts[1] // height) < tasks:
        height = -(-height // 2)
    if height == counts[1]:  # several small images per block
        max_images = min(-(-pixels // (height * width)), total // tasks, counts[0])
        while images < max_images and fits((images + 1, height, width)):
            images += 1
    block = (images, height, width)
    return ChannelTiling(
        *(g, dtype, tile, images_are_depth),
        tap_origin=g.tap_origin,
        input_size=input_size(block),
        k_size=g.phase_k_size,
        panels=panels,
        block=block,
        blocks=(-(-counts[0] // images), -(-counts[1] // height)),
    )


class ChannelConv:
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not problem.is_direct or problem.is_wgrad:
            return False
        return channel_tiling(problem.geometry, problem.conv, target) is not None

    def cost(self, problem: ConvProblem, target: Target) -> float:
        tiling = channel_tiling(problem.geometry, problem.conv, target)
        assert tiling is not None
        return tiling.cost

    def lower(self, problem: ConvProblem) -> list[LoweredKernel]:
        tiling = channel_tiling(problem.geometry, problem.conv, problem.target)
        assert tiling is not None
        return _lower(problem, tiling)


def _lower(problem: ConvProblem, tiling: ChannelTiling) -> list[LoweredKernel]:
    """Packed weights, then the convolution."""
    conv, group, target = problem.conv, problem.group, problem.target
    g, dtype, tile = tiling.g, tiling.dtype, tiling.tile
    tasks = min(4 * target.num_cores, max(1, g.macs // CPU.min_task_macs))
    num_blocks = g.batch * tiling.blocks[0] * tiling.blocks[1]
    # the weights are packed already: fine tasks balance load
    block_tasks = min(num_blocks, -(-tasks * CPU.tasks_per_block // g.groups))
    panel_tasks = 1
    if block_tasks * g.groups < tasks:
        panel_tasks = min(tiling.panels, -(-tasks // (g.groups * block_tasks)))
    panels_per_task = -(-tiling.panels // panel_tasks)
    panel_tasks = -(-tiling.panels // panels_per_task)
    blocks_per_task = -(-num_blocks // block_tasks)
    block_tasks = -(-num_blocks // blocks_per_task)

    def sizes(e: Emitter) -> ChannelSizes:
        n = ScalarArgs(e)
        return ChannelSizes(
            in_channels=e.scalar_arg(g.in_channels),
            out_channels=e.scalar_arg(g.out_channels),
            in_size=n(g.in_size),
            out_size=(*n(g.out_size)[:2], e.dim(g.out_size[2])),
            taps=n(g.taps),
            stride=n(g.stride, 2),
            dilation=n(g.dilation),
            lhs_dilation=n(g.lhs_dilation, 2),
            padding_low=n(g.padding_low, 0),
            tap_origin=n(tiling.tap_origin, 0),
            block=n(tiling.block),
            blocks=n((*tiling.blocks, 1))[:2],
            k_size=e.scalar_arg(tiling.k_size),
            k_block=e.scalar_arg(max(16, target.l1_bytes // 2 // (tile.columns * dtype.itemsize))),
            panels=e.scalar_arg(tiling.panels),
            panels_per_task=e.scalar_arg(panels_per_task),
            panel_tasks=e.scalar_arg(panel_tasks),
            num_blocks=e.scalar_arg(num_blocks),
            blocks_per_task=e.scalar_arg(blocks_per_task),
            block_tasks=e.scalar_arg(block_tasks),
        )

    shape = (g.groups, tiling.phases, tiling.panels, tiling.k_size, tile.columns)
    packed = Value.fresh(PACKED, "convolve", (conv.inputs[1],), None, shape, dtype)
    layouts = problem.input_layouts
    index = ir.var("g")

    e = Emitter(layouts)
    s = sizes(e)
    _, weights = operands(e, conv, g, s.in_channels, s.out_channels, tiling.images_are_depth)
    body = pack_weights(s, tile, dtype, e.buffer(packed, "write"), index, weights)
    first = e.grid_kernel("pack", index, body, g.groups * tiling.phases * tiling.panels, ("pack",))

    e = Emitter({**layouts, packed: row_major(shape)})
    s = sizes(e)
    lane = target.vector_bytes // dtype.itemsize
    size = e.scalar_arg(
        (-(-size_of(tiling.input_size) // lane) | 1) * lane
    )  # an odd number of vectors
    ones = (const(1), const(1), const(1))
    buffer = ir.Buffer("planes", dtype, "scratch", s.in_channels * size)
    planes = InputPlanes(buffer, ones, ones, ScalarArgs(e)(tiling.input_size), size)
    data, weights = operands(e, conv, g, s.in_channels, s.out_channels, tiling.images_are_depth)

    def store(n: Expr, group_: Expr, o: Expr, z: Expr, yx: Expr, value: Expr) -> list[Stmt]:
        output = group_ * s.out_channels + o if g.groups > 1 else o
        # addresses of row-major outputs simplify to `yx` again
        width = e.dim(g.out_size[2])
        y, x = (ZERO, yx) if g.out_size[1] == 1 else (yx // width, yx % width)
        index = (z if tiling.images_are_depth else n, output, *(z, y, x)[5 - len(conv.shape) :])
        return epilogue(e, group, index, value)

    task = Task(index, tile, dtype, planes, data, weights, store)
    body, scratch = conv_channels(s, task, e.buffer(packed))
    e.scratch += scratch
    grid = g.groups * panel_tasks * block_tasks
    e.stores_once = True
    return [first, e.grid_kernel("convolution", index, body, grid, group.notes)]
