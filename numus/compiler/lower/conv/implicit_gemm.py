"""Implicit GEMM convolution (cuDNN, Chetlur et al. 2014) on wgmma, or SIMT for all dtypes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv import tuning
from numus.compiler.lower.conv.geometry import Geometry, divide, scalar_args
from numus.compiler.lower.conv.padded_gemm_plan import INT32_LIMIT
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.relayout import Relayout, materialize, padded, permuted, reshaped
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr
from numus.kernels.common.smem_tiles import SWIZZLE_COLUMNS, VECTOR, round_up
from numus.kernels.conv.gpu import implicit_gemm_simt as simt
from numus.kernels.conv.gpu import implicit_gemm_wgmma as wgmma
from numus.kernels.conv.gpu.implicit_gemm import BlockArgs, ConvSizes
from numus.shapes import Shape, row_major, size_of
from numus.target import Target


@dataclass(frozen=True)
class ImplicitGemm(InOrder):
    name: str
    wgmma: bool

    def _in_channels(self, g: Geometry) -> int:
        return round_up(g.in_channels, VECTOR) if self.wgmma else g.in_channels

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        g, conv, (x, w) = problem.maybe_geometry, problem.conv, problem.conv.inputs
        if g is None or problem.direct not in (None, "implicit_gemm") or x.dtype is not w.dtype:
            return False
        if conv.dtype.kind != "float" or g.macs < tuning.GPU.min_implicit_gemm_macs:
            return False
        if self.wgmma != (x.dtype in (dt.bfloat16, dt.float16) and target.wgmma):
            return False
        channels = self._in_channels(g)
        data = g.batch * g.groups * size_of(g.in_size) * channels
        weights = g.groups * g.out_channels * channels * size_of(g.taps)
        return max(data, weights, conv.size) < INT32_LIMIT

    def lower(self, problem: ConvProblem) -> Kernels:
        g, (x, w), target = problem.geometry, problem.conv.inputs, problem.target
        channels, layouts = self._in_channels(g), problem.input_layouts
        dtype = x.dtype if self.wgmma else dt.compute_dtype(x.dtype)
        m, n, k = g.batch * size_of(g.out_size), g.out_channels, channels * size_of(g.taps)
        last = (0, 1, 3, 4, 5, 2)
        split = (g.batch, g.groups, g.in_channels, *g.in_size)
        data, first = _relayout(x, split, last, channels, layouts, target)
        split = (g.groups, g.out_channels, g.in_channels, *g.taps)
        order, padded_to = (last, channels) if self.wgmma else ((0, 3, 4, 5, 2, 1), 0)
        weights, second = _relayout(w, split, order, padded_to, layouts, target)
        if self.wgmma:
            columns = wgmma.tile_columns(target, g.groups, m, n, k)
            splits = wgmma.split_k(target, g.groups, m, n, columns, k)
            threads, k_tile, tile = wgmma.THREADS, SWIZZLE_COLUMNS, (wgmma.M_TILE, columns)
        else:
            tiling = simt.choose(target, dtype, g.groups, m, n, k)
            threads, k_tile, splits = tiling.threads, tiling.k_tile, tiling.splits
            tile = (tiling.pixels, tiling.out_channels)
        k_tiles, splits = divide(-(-k // k_tile), splits)
        operands = {data: row_major(data.shape), weights: row_major(weights.shape)}
        e = Emitter({**layouts, **operands}, block_size=threads)
        m_tiles, n_tiles = -(-m // tile[0]), -(-n // tile[1])
        tiles = (m_tiles, n_tiles, splits, k_tiles)
        sizes = conv_sizes(e, g, channels, (2, 0), tiles, e.scalar_arg)
        sizes.aligned_k = channels % k_tile == 0
        shape, sum_dtype = (splits, g.groups, n, m), dt.compute_dtype(x.dtype)
        sums = Value.fresh("convolve", "convolve", (data, weights), None, shape, sum_dtype)
        block, store = ir.var("g"), problem.split_epilogue(e, sizes.out_size, sums)
        args = BlockArgs(sizes, dtype, block, e.buffer(data), e.buffer(weights), store)
        kernel: wgmma.WgmmaKernel | simt.SimtKernel
        kernel = wgmma.WgmmaKernel(columns, args) if self.wgmma else simt.SimtKernel(tiling, args)
        body = kernel.body()
        e.scratch += kernel.scratch
        grid = g.groups * splits * m_tiles * n_tiles
        notes = ("convolve",) if splits > 1 else problem.group.notes
        steps = [*first, *second, e.grid_kernel(self.name, block, body, grid, notes)]
        return steps + problem.reduce_splits(sums) if splits > 1 else steps


def _relayout(
    x: Value, split: Shape, order: Shape, channels: int, layouts: Layouts, target: Target
) -> Relayout:
    """An operand of six axes in another order; `channels`: zero-padded size of the last."""
    v = permuted(reshaped(x, *split), *order)
    if channels:
        v = padded(v, (*v.shape[:-1], channels))
    return materialize(v, layouts, target)


def conv_sizes(
    e: Emitter,
    g: Geometry,
    in_channels: int,
    fixed: tuple[int, int],
    tiles: tuple[int, int, int, int],
    tile_arg: Callable[[int], Expr],
) -> ConvSizes:
    """Launch arguments. `fixed`: values of lhs_dilation and padding_low up to these are
    compile-time constants; `tiles`: of M and N, splits of K, K tiles of each."""
    args = partial(scalar_args, e)
    m_tiles, n_tiles, splits, k_tiles = tiles
    return ConvSizes(
        *(e.dim(g.batch), e.dim(g.groups), e.dim(in_channels), e.dim(g.out_channels)),
        in_size=args(g.in_size),
        taps=args(g.taps),
        out_size=args(g.out_size),
        stride=args(g.stride, 2),
        dilation=args(g.dilation, 2),
        lhs_dilation=args(g.lhs_dilation, fixed[0]),
        padding_low=args(g.padding_low, fixed[1]),
        m_tiles=tile_arg(m_tiles),
        n_tiles=tile_arg(n_tiles),
        splits=tile_arg(splits) if splits > 1 else ir.const(1),
        k_tiles=tile_arg(k_tiles),
        aligned_k=True,
    )
