"""Direct weight gradients (`kernels/conv/cpu/wgrad.py`): blocking and launch arguments."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu_direct import plane_size
from numus.compiler.lower.conv.geometry import Geometry, divide, scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.conv.cpu.planes import InputPlanes, Task, Tile, channel_tile
from numus.kernels.conv.cpu.wgrad import WgradKernel, WgradSizes
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
        planes, taps = size_of(phases) * size_of(input_size(height, width)), height * width
        fits_l2 = g.batch * planes + g.out_channels * taps <= max_elements
        return fits_l2 and taps <= CPU.max_wgrad_block_taps

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
    blocks_per_split, splits = divide(num_blocks, splits)
    tasks = min(2 * target.num_cores, max(1, g.macs // CPU.min_task_macs))
    batch, image_tasks = divide(g.batch, min(g.batch, -(-tasks // (splits * g.groups))))
    panel_tasks = min(panels, -(-tasks // (splits * g.groups * image_tasks)))
    panels_per_task, panel_tasks = divide(panels, panel_tasks)
    return WgradTiling(
        *(dtype, tile, phases, input_size(height, width), (height, width), blocks, num_blocks),
        *(splits, blocks_per_split, batch, image_tasks, panel_tasks, panels_per_task),
    )


class WgradConv(InOrder):
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not problem.is_direct or not problem.is_wgrad:
            return False
        g = problem.geometry
        undilated = all(d == 1 for d in g.lhs_dilation)
        return undilated and g.out_channels >= CPU.min_wgrad_channels

    def lower(self, problem: ConvProblem) -> Kernels:
        """Partial sums over splits of channels and taps, then their sum and the epilogue."""
        g, conv, pixels = problem.geometry, problem.conv, size_of(problem.geometry.out_size)
        t, e = _tiling(g, conv, problem.target), Emitter(problem.input_layouts)
        shape = (t.splits, g.groups, g.batch * pixels, g.out_channels)
        partial = Value.fresh("convolve", "convolve", conv.inputs, None, shape, t.dtype)
        args, arg = functools.partial(scalar_args, e), e.scalar_arg
        size = arg(plane_size(problem.target, t.dtype, t.phases, t.input_size))
        images, dilation = arg(t.batch), args(g.dilation, 2)
        buffer = ir.Buffer("planes", t.dtype, "scratch", images * size)
        planes = InputPlanes(buffer, dilation, args(t.phases), args(t.input_size), size)
        s = WgradSizes(
            batch=images,
            images=arg(g.batch),
            out_channels=arg(g.out_channels),
            in_size=args(g.in_size),
            out_size=args(g.out_size),
            taps=args(g.taps),
            stride=args(g.stride),
            dilation=dilation,
            padding_low=args(g.padding_low, 0),
            block=args((1, *t.block))[1:],
            blocks=args((1, *t.blocks))[1:],
            row_tiles=arg(-(-t.batch * pixels // t.tile.rows)),
            image_tasks=arg(t.image_tasks),
            panels_per_task=arg(t.panels_per_task),
            panel_tasks=arg(t.panel_tasks),
            num_blocks=arg(t.num_blocks),
            blocks_per_split=arg(t.blocks_per_split),
            splits=arg(t.splits),
        )
        data, weights = problem.readers(e, arg(g.in_channels), s.out_channels)

        def store(split: Expr, group: Expr, row: Expr, o: Expr, value: Expr) -> list[Stmt]:
            return e.store(partial, (split, group, row, o), value)

        block = ir.var("g")
        kernel = WgradKernel(s, Task(block, t.tile, t.dtype, planes, data, weights, store))
        body = kernel.body()
        e.scratch += kernel.scratch
        e.stores_once = True
        grid = g.groups * t.panel_tasks * t.image_tasks * t.splits
        first = e.grid_kernel("convolution", block, body, grid, ("convolve",))
        return [first, *problem.reduce_splits(partial, channels_last=True)]
