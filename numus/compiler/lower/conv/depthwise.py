"""Depthwise convolution, and its weight gradient (`kernels/conv/gpu/depthwise.py`)."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.geometry import Geometry, epilogue
from numus.compiler.lower.conv.implicit_gemm import conv_sizes
from numus.compiler.lower.conv.padded_gemm_plan import INT32_LIMIT
from numus.compiler.lower.conv.problem import ConvProblem, FirstMatch
from numus.compiler.lower.emitter import Emitter, LoweredKernel
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
        self.problem, self.conv = problem, problem.conv
        self.dtype = dt.compute_dtype(self.conv.dtype)
        self.e = Emitter(problem.input_layouts, block_size=THREADS)
        self.missing = 5 - len(self.conv.shape)
        self.operands = kernel.Operands(self.dtype, self._data, self._weights)

    def _data(self, image: Expr, channel: Expr, at: Triple, mask: Expr) -> Expr:
        index = (image, channel, *at[self.missing :])
        value: Expr = self.e.value(self.conv.inputs[0], index, mask)
        return value.cast(self.dtype)

    def _weights(self, output: Expr, c: Expr, tap: Triple, mask: Expr | None) -> Expr:
        value: Expr = self.e.value(self.conv.inputs[1], (output, c, *tap[self.missing :]), mask)
        return value.cast(self.dtype)

    def store(self, image: Expr, output: Expr, pixel: Triple, value: Expr) -> list[Stmt]:
        self.e.invalidate()
        index = (image, output, *pixel[self.missing :])
        return epilogue(self.e, self.problem.group, index, value)


class Depthwise(FirstMatch):
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

    def lower(self, problem: ConvProblem) -> list[LoweredKernel]:
        k, g, block = _Kernel(problem), problem.geometry, ir.var("g")
        sizes = conv_sizes(k.e, g, g.in_channels, (1, 1), (1, 1, 1, 1), k.e.dim)
        body = kernel.depthwise_conv(block, sizes, g.taps[2], k.operands, k.store)
        axis = g.out_size[2] if kernel.outputs_are_adjacent(sizes) else g.batch
        threads = g.outputs // axis * -(-axis // THREAD_OUTPUTS)
        grid = -(-threads // THREADS)
        return [k.e.grid_kernel(self.name, block, body, grid, problem.group.notes)]


class DepthwiseWgrad(FirstMatch):
    name = "depthwise_wgrad"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if problem.direct != "depthwise":
            return False
        g, pixels = problem.geometry, size_of(problem.geometry.out_size)
        large_window = _k_size(g) >= kernel.TUNING.min_split_k and size_of(g.taps) > pixels
        return (
            pixels <= kernel.TUNING.max_unrolled
            and size_of(g.lhs_dilation) == 1
            and large_window
            and max(_k_size(g), g.outputs) < INT32_LIMIT
        )

    def lower(self, problem: ConvProblem) -> list[LoweredKernel]:
        k, g, block = _Kernel(problem), problem.geometry, ir.var("g")
        pixels = size_of(g.out_size)
        channels = kernel.channels_per_block(g.out_channels, pixels)
        n_tiles = -(-g.out_channels // channels)
        blocks = g.groups * g.batch * n_tiles
        max_blocks = problem.target.num_cores * kernel.TUNING.max_blocks_per_sm
        splits = max(1, min(max_blocks // blocks, _k_size(g) // kernel.TUNING.min_split_k))
        tiles = -(-(_k_size(g) // g.taps[2]) // kernel.rows_per_block(g.taps[2]))
        k_tiles = -(-tiles // splits)
        splits = -(-tiles // k_tiles)
        sizes = conv_sizes(k.e, g, g.in_channels, (1, 1), (1, n_tiles, splits, k_tiles), k.e.dim)
        shape = (splits, g.groups, g.out_channels, g.batch * pixels)
        partial = Value.fresh("convolve", "convolve", (), None, shape, k.dtype)

        def store(
            split: Expr, group: Expr, image: Expr, pixel: Triple, o: Expr, value: Expr
        ) -> list[Stmt]:
            if splits == 1:
                output = group * sizes.out_channels + o
                return k.store(image, output, pixel, value)
            row = image
            for i, n in zip(pixel, sizes.out_size, strict=True):
                row = row * n + i
            return k.e.store(partial, (split, group, o, row), value)

        body = kernel.depthwise_wgrad(block, sizes, g.out_size, channels, k.operands, store)
        notes = ("convolve",) if splits > 1 else problem.group.notes
        steps = [k.e.grid_kernel(self.name, block, body, blocks * splits, notes)]
        return steps + problem.reduce_splits(partial) if splits > 1 else steps
