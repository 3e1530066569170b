"""Direct weight gradients (`kernels/conv/cpu/wgrad.py`): blocking and launch arguments."""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry, ScalarArgs, operands
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.conv.cpu.planes import InputPlanes, Task, Tile, channel_tile
from numus.kernels.conv.cpu.wgrad import WgradSizes, conv_wgrad
from numus.shapes import Shape, size_of
from numus.target import Target


@dataclass(frozen=True, slots=True)
class WgradTiling:
    """Blocks of taps, splits of the reduction over them, and tasks."""

    dtype: DType
    tile: Tile
    phases: Shape  # of the input, by dilations
    input_size: Shape  # of a phase of a block
    block: tuple[int, int]
    blocks: tuple[int, int]
    num_blocks: int  # of taps, of all channels
    splits: int
    blocks_per_split: int
    batch: int  # images of a task
    image_tasks: int
    panel_tasks: int
    panels_per_task: int


def _tiling(g: Geometry, conv: Value, target: Target) -> WgradTiling:
    dtype = dt.compute_dtype(conv.dtype)
    spans = tuple((n - 1) * s for n, s in zip(g.out_size, g.stride, strict=True))
    phases = tuple(min(d, span + 1) for d, span in zip(g.dilation, spans, strict=True))
    halo = tuple(span // d for span, d in zip(spans, g.dilation, strict=True))
    pixels = size_of(g.out_size)

    def input_size(height: int, width: int) -> Shape:
        return (1 + halo[0], height + halo[1], width + halo[2])

    # the planes of all images and the weights of all output channels share L2
    max_elements = target.l2_bytes // 2 // dtype.itemsize

    def fits(height: int, width: int) -> bool:
        planes = g.batch * size_of(phases) * size_of(input_size(height, width))
        return (
            planes + g.out_channels * height * width <= max_elements
            and height * width <= CPU.max_wgrad_block_taps
        )

    _, height, width = g.taps
    while height > 1 and not fits(height, width):
        height = -(-height // 2)
    while height == 1 and width > 64 and not fits(height, width):
        width = -(-width // 2)
    blocks = (-(-g.taps[1] // height), -(-g.taps[2] // width))
    num_blocks = g.in_channels * g.taps[0] * blocks[0] * blocks[1]
    tile = channel_tile(target, dtype, g.batch * pixels, g.out_channels)
    panels = -(-g.out_channels // tile.columns)
    # splits follow from the shape alone: results do not depend on the number of threads
    total = g.groups * g.batch * pixels * g.out_channels
    operand_size = sum(v.size for v in conv.inputs)
    splits = min(num_blocks, CPU.max_wgrad_splits, max(2, operand_size // (2 * total)))
    blocks_per_split = -(-num_blocks // splits)
    splits = -(-num_blocks // blocks_per_split)
    tasks = min(2 * target.num_cores, max(1, g.macs // CPU.min_task_macs))
    image_tasks = min(g.batch, -(-tasks // (splits * g.groups)))
    batch = -(-g.batch // image_tasks)
    image_tasks = -(-g.batch // batch)
    panel_tasks = min(panels, -(-tasks // (splits * g.groups * image_tasks)))
    panels_per_task = -(-panels // panel_tasks)
    return WgradTiling(
        *(dtype, tile, phases, input_size(height, width), (height, width), blocks),
        num_blocks=num_blocks,
        splits=splits,
        blocks_per_split=blocks_per_split,
        batch=batch,
        image_tasks=image_tasks,
        panel_tasks=-(-panels // panels_per_task),
        panels_per_task=panels_per_task,
    )


class WgradConv:
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not problem.is_direct or not problem.is_wgrad:
            return False
        g = problem.geometry
        undilated = all(d == 1 for d in g.lhs_dilation)
        return undilated and g.out_channels >= CPU.min_wgrad_channels

    def cost(self, problem: ConvProblem, target: Target) -> float:
        return 0.0

    def lower(self, problem: ConvProblem) -> list[LoweredKernel]:
        tiling = _tiling(problem.geometry, problem.conv, problem.target)
        return _lower(problem, tiling)


def _lower(problem: ConvProblem, tiling: WgradTiling) -> list[LoweredKernel]:
    """Partial sums over splits of channels and taps, then their sum and the epilogue."""
    g, conv, target = problem.geometry, problem.conv, problem.target
    pixels = size_of(g.out_size)
    shape = (tiling.splits, g.groups, g.batch * pixels, g.out_channels)
    partial = Value.fresh("convolve", "convolve", conv.inputs, None, shape, tiling.dtype)
    e = Emitter(problem.input_layouts)
    args = ScalarArgs(e)
    vector = target.vector_bytes // tiling.dtype.itemsize
    size = e.scalar_arg(
        (-(-size_of(tiling.phases) * size_of(tiling.input_size) // vector) | 1) * vector
    )
    images = e.scalar_arg(tiling.batch)
    dilation = args(g.dilation, 2)
    planes = InputPlanes(
        ir.Buffer("planes", tiling.dtype, "scratch", images * size),
        dilation,
        args(tiling.phases),
        args(tiling.input_size),
        size,
    )
    s = WgradSizes(
        batch=images,
        images=e.scalar_arg(g.batch),
        out_channels=e.scalar_arg(g.out_channels),
        in_size=args(g.in_size),
        out_size=args(g.out_size),
        taps=args(g.taps),
        stride=args(g.stride),
        dilation=dilation,
        padding_low=args(g.padding_low, 0),
        block=args((1, *tiling.block))[1:],
        blocks=args((1, *tiling.blocks))[1:],
        row_tiles=e.scalar_arg(-(-tiling.batch * pixels // tiling.tile.rows)),
        image_tasks=e.scalar_arg(tiling.image_tasks),
        panels_per_task=e.scalar_arg(tiling.panels_per_task),
        panel_tasks=e.scalar_arg(tiling.panel_tasks),
        num_blocks=e.scalar_arg(tiling.num_blocks),
        blocks_per_split=e.scalar_arg(tiling.blocks_per_split),
        splits=e.scalar_arg(tiling.splits),
    )
    data, weights = operands(e, conv, g, e.scalar_arg(g.in_channels), s.out_channels)

    def store(split: Expr, group_: Expr, row: Expr, o: Expr, value: Expr) -> list[Stmt]:
        return e.store(partial, (split, group_, row, o), value)

    index = ir.var("g")
    body, scratch = conv_wgrad(
        s, Task(index, tiling.tile, tiling.dtype, planes, data, weights, store)
    )
    e.scratch += scratch
    grid = g.groups * tiling.panel_tasks * tiling.image_tasks * tiling.splits
    e.stores_once = True
    kernel = e.grid_kernel("convolution", index, body, grid, ("convolve",))
    return [kernel, *problem.reduce_splits(partial, channels_last=True)]
