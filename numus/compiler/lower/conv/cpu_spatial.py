"""Direct convolution, NCHW (`kernels/conv/cpu/spatial.py`): blocking and launch arguments."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu_direct import DirectTiling, direct_task, finish, plane_size
from numus.compiler.lower.conv.geometry import Geometry, scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.kernels.conv.cpu.planes import InputPlanes, Tile, spatial_tile
from numus.kernels.conv.cpu.spatial import SpatialKernel
from numus.kernels.conv.cpu.taps import SUM_BLOCK
from numus.shapes import Shape, size_of
from numus.target import Target


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


def direct_tiling(problem: ConvProblem, tile: Tile, several: bool = True) -> DirectTiling:
    """Blocks that fit in L2, `several` small images if there are, and tasks that repeat little
    packing."""
    g, target = problem.direct_geometry, problem.target
    weights, dtype = problem.conv.inputs[1], dt.compute_dtype(problem.conv.dtype)
    spans = tuple(high - low for low, high, _ in g.tap_ranges)
    phases = tuple(min(s, span + 1) for s, span in zip(g.stride, spans, strict=True))
    halo = tuple(span // s for span, s in zip(spans, g.stride, strict=True))
    # every task packs its weights: finer tasks balance load where packing is cheap
    max_tasks = g.macs // (CPU.macs_per_packed_weight * weights.size)
    tasks = min(max(max_tasks, target.num_cores), 4 * target.num_cores)
    tasks = min(tasks, max(1, g.macs // CPU.min_task_macs))
    max_elements = target.l2_bytes // 2 // dtype.itemsize // (g.in_channels * size_of(phases))
    block = _block(g, halo, max_elements, tasks, tile)
    block = block if several else (1, *block[1:])
    blocks = tuple(-(-n // b) for n, b in zip(g.phase_size, block, strict=True))
    num_blocks = g.batch * size_of(blocks)
    panels = -(-g.out_channels // tile.rows)
    # every task packs its weights and fills its planes: split along what repeats less
    block_tasks, panel_tasks = min(num_blocks, -(-tasks // g.groups)), 1
    input_size = _input_size(block, halo)
    pixels = num_blocks * g.in_channels * size_of(phases) * size_of(input_size)
    if block_tasks * g.groups < tasks or weights.size > pixels:
        panel_tasks = min(panels, -(-tasks // (g.groups * block_tasks)))
    tasks_by = (panels, block_tasks, panel_tasks)
    return DirectTiling(g, dtype, tile, phases, input_size, block, blocks, *tasks_by)


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
    count = min(images // tasks_per_group, max_elements // area - halo[0], 4)
    return (count if count > 1 and area < 0.97 * padded else 1, height, width)


class SpatialConv:
    name = "convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        return problem.is_direct and not problem.is_wgrad

    def cost(self, problem: ConvProblem, target: Target) -> float:
        return spatial_cost(problem.geometry, problem.conv, target)

    def lower(self, problem: ConvProblem) -> Kernels:
        dtype = dt.compute_dtype(problem.conv.dtype)
        tile = spatial_tile(problem.target, dtype, problem.geometry.out_channels)
        t, e = direct_tiling(problem, tile), Emitter(problem.input_layouts)
        stride, channels = scalar_args(e, t.g.stride, 2), e.scalar_arg(t.g.in_channels)
        size = e.scalar_arg(plane_size(problem.target, t.dtype, t.phases, t.input_size))
        buffer = ir.Buffer("planes", t.dtype, "scratch", channels * size + t.tile.columns)
        shape = (scalar_args(e, t.phases), scalar_args(e, t.input_size))
        s = t.sizes(e, channels, stride)
        task = direct_task(problem, e, t, s, InputPlanes(buffer, stride, *shape, size))
        sum_blocked = t.dtype.kind == "float" and t.g.phase_k_size > SUM_BLOCK
        return [finish(problem, e, t, SpatialKernel(s, task, sum_blocked))]
