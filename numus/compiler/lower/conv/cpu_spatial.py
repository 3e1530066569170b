"""Direct convolution, NCHW (`kernels/conv/cpu/spatial.py`): blocking and launch arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
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
from numus.kernels.conv.cpu.planes import InputPlanes, Task, Tile, spatial_tile
from numus.kernels.conv.cpu.spatial import SpatialSizes, conv_spatial
from numus.shapes import Shape, size_of
from numus.target import Target

ZERO = const(0)


@dataclass(frozen=True, slots=True)
class SpatialTiling:
    """Blocks of outputs, and tasks of blocks."""

    g: Geometry
    dtype: DType
    tile: Tile
    images_are_depth: bool
    tap_origin: Shape
    phases: Shape  # of the input, by strides
    halo: Shape  # input elements of a phase beyond the outputs
    k_size: int  # channels × taps of a phase, at most
    block: Shape
    blocks: Shape
    num_blocks: int  # of all images
    block_tasks: int
    blocks_per_task: int
    panel_tasks: int
    panels_per_task: int

    @property
    def input_size(self) -> Shape:
        """Input elements of a phase of a block."""
        return _input_size(self.block, self.halo)


def _input_size(block: Shape, halo: Shape) -> Shape:
    return tuple(n + m for n, m in zip(block, halo, strict=True))


def spatial_cost(g: Geometry, conv: Value, target: Target) -> float:
    """FMAs per vector of outputs, those of padding included, and the cost of phases."""
    tile = spatial_tile(target, dt.compute_dtype(conv.dtype), g.out_channels)
    counts = g.phase_size
    row, rows = (
        counts[axis] + (g.tap_range(axis)[1] - g.tap_range(axis)[0]) // g.stride[axis]
        for axis in (2, 1)
    )
    padded = -(-((counts[1] - 1) * row + counts[2]) // tile.columns) * tile.columns
    panels = -(-g.out_channels // tile.rows)
    waste = min(padded, rows * row) / (counts[1] * counts[2]) * panels * tile.rows / g.out_channels
    phases = CPU.stride_phase_cost * (max(g.stride) > 1)
    phases += CPU.lhs_phase_cost * (max(g.lhs_dilation) > 1)
    return g.macs_per_output * waste * tile.cost_per_fma + phases


def _tiling(g: Geometry, conv: Value, target: Target) -> SpatialTiling:
    """Blocks that fit in L2, and tasks that repeat little packing."""
    dtype = dt.compute_dtype(conv.dtype)
    images_are_depth = has_free_axis(conv)
    if images_are_depth:
        g = g.batch_as_depth()
    ranges = g.tap_ranges
    spans = tuple(high - low for low, high, _ in ranges)
    phases = tuple(min(s, span + 1) for s, span in zip(g.stride, spans, strict=True))
    halo = tuple(span // s for span, s in zip(spans, g.stride, strict=True))
    # every task packs its weights: finer tasks balance load where packing is cheap
    max_tasks = g.macs // (CPU.macs_per_packed_weight * conv.inputs[1].size)
    tasks = min(max(max_tasks, target.num_cores), 4 * target.num_cores)
    tasks = min(tasks, max(1, g.macs // CPU.min_task_macs))
    tile = spatial_tile(target, dtype, g.out_channels)
    max_elements = target.l2_bytes // 2 // dtype.itemsize // (g.in_channels * size_of(phases))
    block = _block(g, halo, max_elements, tasks, tile)
    blocks = tuple(-(-n // b) for n, b in zip(g.phase_size, block, strict=True))
    num_blocks = g.batch * size_of(blocks)
    panels = -(-g.out_channels // tile.rows)
    # every task packs its weights and fills its planes: split along what repeats less
    block_tasks = min(num_blocks, -(-tasks // g.groups))
    panel_tasks = 1
    pixels = num_blocks * g.in_channels * size_of(phases) * size_of(_input_size(block, halo))
    if block_tasks * g.groups < tasks or conv.inputs[1].size > pixels:
        panel_tasks = min(panels, -(-tasks // (g.groups * block_tasks)))
    panels_per_task = -(-panels // panel_tasks)
    blocks_per_task = -(-num_blocks // block_tasks)
    return SpatialTiling(
        *(g, dtype, tile, images_are_depth),
        tap_origin=g.tap_origin,
        phases=phases,
        halo=halo,
        k_size=g.phase_k_size,
        block=block,
        blocks=blocks,
        num_blocks=num_blocks,
        block_tasks=-(-num_blocks // blocks_per_task),
        blocks_per_task=blocks_per_task,
        panel_tasks=-(-panels // panels_per_task),
        panels_per_task=panels_per_task,
    )


def _block(g: Geometry, halo: Shape, max_elements: int, tasks: int, tile: Tile) -> Shape:
    """As many rows as fit, or a part of one; or several small images."""
    images, rows, columns = g.phase_size
    height, width = rows, columns
    while height > 1 and size_of(_input_size((1, height, width), halo)) > max_elements:
        height = -(-height // 2)
    while height == 1 and width > 256 and size_of(_input_size((1, 1, width), halo)) > max_elements:
        width = -(-width // 2)
    while height > 8 and g.batch * g.groups * images * -(-rows // height) < tasks:
        height = -(-height // 2)
    if (height, width) != (rows, columns):
        return (1, height, width)
    # small images are contiguous where their padding wastes less than partial vectors
    row = width + halo[2]
    area, plane = (height + halo[1]) * row, (height - 1) * row + width
    padded = -(-plane // tile.columns) * tile.columns
    tasks_per_group = max(1, tasks // (g.batch * g.groups))
    most = min(images // tasks_per_group, max_elements // area - halo[0], 4)
    return (most if most > 1 and area < 0.97 * padded else 1, height, width)


class SpatialConv:
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        return problem.is_direct and not problem.is_wgrad

    def cost(self, problem: ConvProblem, target: Target) -> float:
        return spatial_cost(problem.geometry, problem.conv, target)

    def lower(self, problem: ConvProblem) -> list[LoweredKernel]:
        return [_lower(problem)]


def _lower(problem: ConvProblem) -> LoweredKernel:
    conv, group, target = problem.conv, problem.group, problem.target
    tiling = _tiling(problem.geometry, conv, target)
    g, dtype, tile = tiling.g, tiling.dtype, tiling.tile
    e = Emitter(problem.input_layouts)
    args = ScalarArgs(e)
    lane = target.vector_bytes // dtype.itemsize
    size = (
        -(-size_of(tiling.phases) * size_of(tiling.input_size) // lane) | 1
    )  # an odd number of vectors
    stride = args(g.stride, 2)
    channels = e.scalar_arg(g.in_channels)
    channel_size = e.scalar_arg(size * lane)
    scratch_size = channels * channel_size + tile.columns
    planes = InputPlanes(
        ir.Buffer("planes", dtype, "scratch", scratch_size),
        stride,
        args(tiling.phases),
        args(tiling.input_size),
        channel_size,
    )
    s = SpatialSizes(
        in_channels=channels,
        out_channels=e.scalar_arg(g.out_channels),
        in_size=args(g.in_size),
        out_size=args(g.out_size),
        taps=args(g.taps),
        stride=stride,
        dilation=args(g.dilation),
        lhs_dilation=args(g.lhs_dilation, 2),
        padding_low=args(g.padding_low, 0),
        tap_origin=args(tiling.tap_origin, 0),
        block=args(tiling.block),
        blocks=args(tiling.blocks),
        k_size=e.scalar_arg(tiling.k_size),
        panels_per_task=e.scalar_arg(tiling.panels_per_task),
        panel_tasks=e.scalar_arg(tiling.panel_tasks),
        num_blocks=e.scalar_arg(tiling.num_blocks),
        blocks_per_task=e.scalar_arg(tiling.blocks_per_task),
        block_tasks=e.scalar_arg(tiling.block_tasks),
    )
    data, weights = operands(e, conv, g, s.in_channels, s.out_channels, tiling.images_are_depth)

    def store(n: Expr, group_: Expr, o: Expr, *rest: Any) -> list[Stmt]:
        *space, value = rest
        output = group_ * s.out_channels + o if g.groups > 1 else o
        index = (space[0] if tiling.images_are_depth else n, output, *space[5 - len(conv.shape) :])
        return epilogue(e, group, index, value)

    index = ir.var("g")
    body, scratch = conv_spatial(s, Task(index, tile, dtype, planes, data, weights, store))
    e.scratch += scratch
    grid = g.groups * tiling.panel_tasks * tiling.block_tasks
    e.stores_once = True
    return e.grid_kernel("convolution", index, body, grid, group.notes)
