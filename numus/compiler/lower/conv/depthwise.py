"""Depthwise convolution, and its weight gradient (`kernels/conv/gpu/depthwise.py`)."""

from __future__ import annotations

from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry, divide
from numus.compiler.lower.conv.implicit_gemm import conv_sizes
from numus.compiler.lower.conv.padded_gemm_plan import INT32_LIMIT
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr, Stmt
from numus.kernels.conv.gpu import depthwise as kernel
from numus.kernels.conv.gpu.depthwise import THREAD_OUTPUTS, THREADS
from numus.kernels.conv.gpu.implicit_gemm import Triple
from numus.shapes import size_of
from numus.target import Target


def min_outputs(target: Target) -> int:
    """Outputs with which all threads of a device are busy."""
    return target.num_cores * THREADS * THREAD_OUTPUTS


def _k_size(g: Geometry) -> int:
    return g.in_channels * size_of(g.taps)


class _Kernel:
    def __init__(self, problem: ConvProblem) -> None:
        self.problem, self.dtype = problem, dt.compute_dtype(problem.conv.dtype)
        self.e = Emitter(problem.input_layouts, block_size=THREADS)
        readers = (partial(self._read, x) for x in problem.conv.inputs)
        self.operands = kernel.Operands(self.dtype, *readers)

    def _read(self, x: Value, i: Expr, j: Expr, at: Triple, mask: Expr | None) -> Expr:
        value: Expr = self.e.value(x, (i, j, *at[5 - len(x.shape) :]), mask)
        return value.cast(self.dtype)

    def store(self, image: Expr, output: Expr, pixel: Triple, value: Expr) -> list[Stmt]:
        self.e.invalidate()
        return self.problem.store(self.e, image, output, pixel, value)


class Depthwise(InOrder):
    name = "depthwise_conv"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if problem.direct != "depthwise":
            return False
        g = problem.geometry
        return (
            g.taps[2] <= kernel.TUNING.max_unrolled
            and min_outputs(target) <= g.outputs
            and max(_k_size(g), g.outputs) < INT32_LIMIT
        )

    def lower(self, problem: ConvProblem) -> Kernels:
        k, g, block = _Kernel(problem), problem.geometry, ir.var("g")
        sizes = conv_sizes(k.e, g, g.in_channels, (1, 1), (1, 1, 1, 1), k.e.dim)
        body = kernel.depthwise_conv(block, sizes, g.taps[2], k.operands, k.store)
        axis = g.out_size[2] if kernel.outputs_are_adjacent(sizes) else g.batch
        threads = g.outputs // axis * -(-axis // THREAD_OUTPUTS)
        grid = -(-threads // THREADS)
        return [k.e.grid_kernel(self.name, block, body, grid, problem.group.notes)]


class DepthwiseWgrad(InOrder):
    name = "depthwise_wgrad"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if problem.direct != "depthwise":
            return False
        g, pixels = problem.geometry, size_of(problem.geometry.out_size)
        return (
            pixels <= kernel.TUNING.max_unrolled
            and size_of(g.lhs_dilation) == 1
            and _k_size(g) >= kernel.TUNING.min_split_k
            and size_of(g.taps) > pixels
            and max(_k_size(g), g.outputs) < INT32_LIMIT
        )

    def lower(self, problem: ConvProblem) -> Kernels:
        k, g, block = _Kernel(problem), problem.geometry, ir.var("g")
        pixels = size_of(g.out_size)
        channels = kernel.channels_per_block(g.out_channels, pixels)
        n_tiles = -(-g.out_channels // channels)
        blocks = g.groups * g.batch * n_tiles
        max_blocks = problem.target.num_cores * kernel.TUNING.max_blocks_per_sm
        splits = max(1, min(max_blocks // blocks, _k_size(g) // kernel.TUNING.min_split_k))
        tiles = -(-(_k_size(g) // g.taps[2]) // kernel.rows_per_block(g.taps[2]))
        k_tiles, splits = divide(tiles, splits)
        sizes = conv_sizes(k.e, g, g.in_channels, (1, 1), (1, n_tiles, splits, k_tiles), k.e.dim)
        shape = (splits, g.groups, g.out_channels, g.batch * pixels)
        sums = Value.fresh("convolve", "convolve", (), None, shape, k.dtype)

        def store(
            split: Expr, group: Expr, image: Expr, pixel: Triple, o: Expr, value: Expr
        ) -> list[Stmt]:
            return k.store(image, group * sizes.out_channels + o, pixel, value)

        epilogue = problem.split_epilogue(k.e, sizes.out_size, sums) if splits > 1 else store
        body = kernel.depthwise_wgrad(block, sizes, g.out_size, channels, k.operands, epilogue)
        notes = ("convolve",) if splits > 1 else problem.group.notes
        steps = [k.e.grid_kernel(self.name, block, body, blocks * splits, notes)]
        return steps + problem.reduce_splits(sums) if splits > 1 else steps
