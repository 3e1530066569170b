"""Depthwise convolution, NCHW (`kernels/conv/cpu/depthwise.py`): blocking and cost."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.conv.cpu_direct import direct_task, finish, plane_size
from numus.compiler.lower.conv.cpu_spatial import direct_tiling
from numus.compiler.lower.conv.geometry import Geometry, scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.ir.symbolic_size import decide
from numus.kernels.conv.cpu.depthwise import DepthwiseKernel, TapRows
from numus.kernels.conv.cpu.planes import InputPlanes, Tile
from numus.kernels.conv.cpu.taps import SUM_BLOCK
from numus.target import Target

MIN_ROWS = 4  # of a register tile: fewer products in flight would wait for each other
MAX_ROWS = 16
_OTHER_REGISTERS = 2  # a vector of input, and what LLVM keeps


def _max_rows(target: Target, taps: int) -> int:
    """Rows whose sums fit into registers, beside a column of weights."""
    return min(MAX_ROWS, target.vector_registers - taps - _OTHER_REGISTERS)


def _even_rows(target: Target, taps: int, height: int) -> int:
    """Rows of a register tile, of which few reach beyond the last output."""
    return -(-height // -(-height // _max_rows(target, taps)))


def _tap_rows(g: Geometry, target: Target) -> TapRows:
    """Rows of the block that is to be computed at once."""
    taps = int(g.taps[1])
    rows = decide(_even_rows, target, taps, g.out_size[1])
    return TapRows(rows, taps, int(g.stride[1]), int(g.dilation[1]))


class DepthwiseConv:
    name = "depthwise_convolution"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not problem.is_direct or problem.is_wgrad:
            return False
        g, dtype = problem.geometry, dt.compute_dtype(problem.conv.dtype)
        return (
            dtype.kind == "float"
            and g.in_channels == 1
            and g.taps[0] == 1
            and max(g.lhs_dilation) == 1
            and max(g.stride) <= 2
            and g.phase_k_size <= SUM_BLOCK
            and min(_max_rows(target, g.taps[1]), g.out_size[1]) >= MIN_ROWS
        )

    def cost(self, problem: ConvProblem, target: Target) -> float:
        """FMAs per vector of outputs, as those of other schedules."""
        g = problem.geometry
        lanes = target.vector_bytes // dt.compute_dtype(problem.conv.dtype).itemsize
        tile = _tap_rows(g, target)
        height, width = g.out_size[1:]
        waste = -(-width // lanes) * lanes / width
        waste *= -(-height // tile.rows) * tile.rows / height
        # a load of a vector of input takes two, as most cross a cache line
        loads = 2 * len(tile.reads()) + tile.taps
        cost_per_fma = 1 + loads / (2 * tile.rows * tile.taps)
        phases = CPU.stride_phase_cost * (max(g.stride) > 1)
        return g.macs_per_output * waste * cost_per_fma + phases

    def lower(self, problem: ConvProblem) -> Kernels:
        target = problem.target
        dtype = dt.compute_dtype(problem.conv.dtype)
        lanes = target.vector_bytes // dtype.itemsize
        t = direct_tiling(problem, Tile(1, 1, lanes), several=False)
        e = Emitter(problem.input_layouts)
        rows = _tap_rows(t.g, target)
        stride, channels = scalar_args(e, t.g.stride, 2), e.scalar_arg(t.g.in_channels)
        # the last register tile reads beyond the last row
        depth, height, width = t.input_size
        read = (depth, height + -t.block[1] % rows.rows, width)
        size = e.scalar_arg(plane_size(target, dtype, t.phases, read))
        buffer = ir.Buffer("planes", dtype, "scratch", channels * size + lanes)
        shape = (scalar_args(e, t.phases), scalar_args(e, t.input_size))
        s = t.sizes(e, channels, stride)
        task = direct_task(problem, e, t, s, InputPlanes(buffer, stride, *shape, size))
        return [finish(problem, e, t, DepthwiseKernel(s, task, rows))]
