"""Direct convolution, NCHWc (`kernels/conv/cpu/channels.py`): blocking and launch arguments."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.conv.cpu_direct import (
    DirectTiling,
    direct_task,
    finish,
    plane_size,
    prefetch_lines,
)
from numus.compiler.lower.conv.geometry import scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.ir import const
from numus.kernels.conv.cpu.channels import ChannelKernel, pack_weights
from numus.kernels.conv.cpu.planes import InputPlanes, channel_tile
from numus.kernels.conv.cpu.taps import SUM_BLOCK, TapSizes
from numus.shapes import Shape, row_major, size_of
from numus.target import Target


def _tiling(problem: ConvProblem, target: Target) -> DirectTiling | None:
    """None for small convolutions, and where a row does not fit in L2."""
    g, dtype = problem.direct_geometry, dt.compute_dtype(problem.conv.dtype)
    if g.macs < CPU.min_packed_macs:
        return None
    pixels, registers = CPU.min_block_pixels, CPU.max_pixel_registers
    tile = channel_tile(target, dtype, pixels, g.out_channels, registers)
    ranges, counts, l2_bytes = g.tap_ranges, g.phase_size, target.l2_bytes // 2
    panels = -(-g.out_channels // tile.columns)

    def input_size(block: Shape) -> Shape:
        return tuple(
            (n - 1) * s + high - low + 1
            for n, s, (low, high, _) in zip(block, g.stride, ranges, strict=True)
        )

    def fits(block: Shape) -> bool:
        """True where input and accumulators of a block fit in half of L2."""
        acc = size_of(block) * size_of(g.lhs_dilation) * panels * tile.columns
        return (g.in_channels * size_of(input_size(block)) + acc) * dtype.itemsize <= l2_bytes

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
    blocks = (-(-counts[0] // images), -(-counts[1] // height), 1)
    # the weights are packed already: fine tasks balance load
    max_tasks = -(-tasks * CPU.tasks_per_block // g.groups)
    block_tasks, panel_tasks = min(g.batch * size_of(blocks), max_tasks), 1
    if block_tasks * g.groups < tasks:
        panel_tasks = min(panels, -(-tasks // (g.groups * block_tasks)))
    k_block = max(16, target.l1_bytes // 2 // (tile.columns * dtype.itemsize))
    k_group = 0
    if dtype.kind == "float":
        k_block = min(k_block, SUM_BLOCK)
        # sums of fewer blocks have few roundings: adding them up in groups costs more than it gains
        if g.phase_k_size > CPU.ungrouped_sum_blocks * SUM_BLOCK:
            k_group = SUM_BLOCK * 4 // k_block * k_block
    tasks_by = (panels, block_tasks, panel_tasks, k_block, k_group)
    return DirectTiling(g, dtype, tile, (1, 1, 1), input_size(block), block, blocks, *tasks_by)


class ChannelConv:
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not problem.is_direct or problem.is_wgrad:
            return False
        return _tiling(problem, target) is not None

    def cost(self, problem: ConvProblem, target: Target) -> float:
        """FMAs per vector of outputs, those of padded channels included, and the transpose."""
        t = _tiling(problem, target)
        assert t is not None
        waste = t.panels * t.tile.columns / t.g.out_channels
        return t.g.macs_per_output * waste * t.tile.cost_per_fma + CPU.transpose_cost

    def lower(self, problem: ConvProblem) -> Kernels:
        """Packed weights, then the convolution."""
        t = _tiling(problem, problem.target)
        assert t is not None
        g, dtype, tile, phases = t.g, t.dtype, t.tile, size_of(t.g.lhs_dilation)

        def sizes(e: Emitter) -> TapSizes:
            s = t.sizes(e, e.scalar_arg(g.in_channels))
            s.out_size = (*s.out_size[:2], e.dim(g.out_size[2]))
            return s

        shape = (g.groups, phases, t.panels, g.phase_k_size, tile.columns)
        weights = problem.conv.inputs[1]
        packed = Value.fresh(PACKED, "convolve", (weights,), None, shape, dtype)
        layouts, block = problem.input_layouts, ir.var("g")

        e = Emitter(layouts)
        s = sizes(e)
        _, read = problem.readers(e, s.in_channels, s.out_channels)
        body = pack_weights(s, tile, dtype, e.buffer(packed, "write"), block, read)
        first = e.grid_kernel("pack", block, body, g.groups * phases * t.panels, ("pack",))

        e = Emitter({**layouts, packed: row_major(shape)})
        s = sizes(e)
        size = e.scalar_arg(plane_size(problem.target, dtype, t.input_size))
        ones = (const(1), const(1), const(1))
        buffer = ir.Buffer("planes", dtype, "scratch", s.in_channels * size)
        planes = InputPlanes(buffer, ones, ones, scalar_args(e, t.input_size), size)
        task = direct_task(problem, e, t, s, planes)
        lines = prefetch_lines(tile, size_of(t.block))
        kernel = ChannelKernel(s, task, e.buffer(packed), t.k_group > 0, lines)
        return [first, finish(problem, e, t, kernel)]
