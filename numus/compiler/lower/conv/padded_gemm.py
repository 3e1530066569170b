"""Padded implicit GEMM convolution on wgmma, mma.sync or SIMT: repacked operands, then a GEMM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv import tuning
from numus.compiler.lower.conv.geometry import divide
from numus.compiler.lower.conv.padded_gemm_operands import forward_operands, wgrad_operands
from numus.compiler.lower.conv.padded_gemm_plan import PaddedGemmPlan
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import InOrder
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu import padded_gemm as kernel
from numus.kernels.conv.gpu.implicit_gemm import Triple, as_index, delinearize, u32
from numus.kernels.conv.gpu.padded_gemm_mainloop import PaddedOperands, RowMatrix
from numus.kernels.matmul.gpu import mma_sync, simt_async, wgmma
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes
from numus.shapes import row_major, size_of
from numus.target import Target

Tiles = wgmma.TileShape | mma_sync.TileShape | simt_async.TileShape


class PaddedGemm(InOrder):
    name = "padded_gemm_conv"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        return isinstance(problem.direct, PaddedGemmPlan)

    def lower(self, problem: ConvProblem) -> Kernels:
        plan, target = problem.direct, problem.target
        assert isinstance(plan, PaddedGemmPlan)
        layouts = problem.input_layouts
        repack = wgrad_operands if plan.wgrad else forward_operands
        left, right = repack(problem.conv, problem.geometry, plan, layouts, target)
        (data, steps), (weights, weight_steps) = left, right
        layouts |= {data: row_major(data.shape), weights: row_major(weights.shape)}
        tiles, splits = choose_tiles(plan, problem.conv.dtype, target)
        gemm = _Gemm(problem, plan, tiles, splits, layouts)
        steps = [*steps, *weight_steps, gemm.lower(self.name, data, weights)]
        return steps + problem.reduce_splits(gemm.partial) if gemm.splits > 1 else steps


def choose_tiles(plan: PaddedGemmPlan, dtype: DType, target: Target) -> tuple[Tiles, int]:
    """Tiles, and splits of K."""
    shape = (plan.matrices, plan.m, plan.n)
    if plan.engine.kind == "wgmma":
        return wgmma.choose_tile(target, dtype, shape, plan.k)
    if plan.engine.kind == "simt":
        return simt_async.choose_tile(target, *shape, plan.k)
    tiles, splits = mma_sync.choose_tile(target, dtype, (*shape, plan.k))
    if plan.k_per_tap % tiles.stage_shape(dtype).tile_k and not plan.wgrad:
        tiles = replace(tiles, k_words=mma_sync.TILE_K_WORDS)  # K tiles are of one tap
    return tiles, splits


class _Gemm:
    def __init__(
        self,
        problem: ConvProblem,
        plan: PaddedGemmPlan,
        tiles: Tiles,
        splits: int,
        layouts: Layouts,
    ) -> None:
        self.group, self.g, self.plan, self.tiles = problem.group, problem.geometry, plan, tiles
        self.channels_last = problem.is_channels_last
        self.target, self.dtype, g = problem.target, problem.conv.dtype, problem.geometry
        if isinstance(tiles, wgmma.TileShape):
            self.m_tile, threads = wgmma.TILE_M, wgmma.THREADS
            self.k_tile = wgmma.tile_k(self.dtype)
        elif isinstance(tiles, mma_sync.TileShape):
            self.m_tile, threads = tiles.m, tiles.threads
            self.k_tile = tiles.stage_shape(self.dtype).tile_k
        else:
            self.m_tile, self.k_tile, threads = tiles.m, simt_async.TILE_K, tiles.threads
        self.k_tiles, self.splits = divide(-(-plan.k // self.k_tile), splits)
        self.e = Emitter(layouts, block_size=threads)
        self.out_size = self._triple(g.out_size)
        self.out_channels = g.out_channels if plan.wgrad else plan.geometry.out_channels
        groups = g.groups * g.out_channels // self.out_channels
        shape = (self.splits, groups, self.out_channels, g.batch * size_of(g.out_size))
        dtype = dt.compute_dtype(self.dtype)
        self.partial = Value.fresh("convolve", "convolve", (), None, shape, dtype)
        self.store_output = problem.split_epilogue(self.e, self.out_size, self.partial)

    def _triple(self, values: Sequence[int]) -> Triple:
        a, b, c = (self.e.dim(n) for n in values)
        return a, b, c

    def lower(self, name: str, data: Value, weights: Value) -> LoweredKernel:
        e, plan = self.e, self.plan
        columns = self.tiles.n
        m_tiles, n_tiles = -(-plan.m // self.m_tile), -(-plan.n // columns)
        swizzle_m = wgmma.swizzle_m(self.target, columns, m_tiles)
        sizes = SplitKSizes(
            *(e.dim(n) for n in (plan.m, plan.n, plan.k)),
            *(e.scalar_arg(n) for n in (m_tiles, n_tiles, swizzle_m, self.splits, self.k_tiles)),
        )
        if self.splits == 1:
            sizes.split_k = const(1)
        k_major = plan.engine.needs_k_major or not plan.wgrad
        left = self._matrix(data, k_major, plan.span, plan.step)
        right = self._matrix(weights, k_major and not plan.engine.mn_major_smem)
        g, grid = ir.var("g"), self._grid()
        acc = self._mainloop(sizes, g, PaddedOperands(grid, left, right, plan.wgrad))

        def output_row(m: Expr) -> tuple[Expr, kernel.StoreElement]:
            outer = acc.origin[0] // sizes.split_k
            split = acc.origin[0] % sizes.split_k
            if plan.wgrad:
                matrix, tap = grid.group_and_tap(outer)
                image, at, in_bounds = m, delinearize(tap, grid.taps), m < sizes.m
                if plan.span > 1:  # rows of the GEMM are outputs of the last axis as well
                    width = u32(e.dim(plan.row_width))
                    last, image = u32(m) // width, u32(m) % width
                    in_bounds = in_bounds & (image < u32(e.dim(plan.geometry.batch)))
                    at = (*at[:2], last)
            else:
                image, at, in_bounds = grid.output_index(m)
                in_bounds, matrix = in_bounds & (m < sizes.m), outer
            index = (split, matrix, image.cast(ir.INDEX), as_index(at))
            return in_bounds, lambda o, value: self._store(*index, o, value)

        smem_bytes = self.target.shared_bytes // tuning.GPU.epilogue_blocks_per_sm
        body = kernel.epilogue(acc, sizes.n, smem_bytes, output_row, self.channels_last)
        e.scratch += acc.scratch
        count = plan.matrices * self.splits * m_tiles * n_tiles
        notes = ("convolve",) if self.splits > 1 else self.group.notes
        return e.grid_kernel(f"{name}_{plan.engine.kind}", g, body, count, notes)

    def _grid(self) -> kernel.PaddedGrid:
        e, plan, axes = self.e, self.plan, self.plan.axes
        return kernel.PaddedGrid(
            groups=e.dim(plan.geometry.groups),
            k_tiles_per_tap=e.dim(1 if plan.wgrad else plan.k_per_tap // self.k_tile),
            k_per_tap=e.dim(plan.k_per_tap),
            taps=self._triple([a.taps for a in axes]),
            out_size=self._triple([a.out_size for a in axes]),
            grid=self._triple(plan.grid),
            stride=self._triple([a.stride for a in axes]),
            dilation=self._triple([a.dilation for a in axes]),
            halo_low=self._triple([a.halo_low for a in axes]),
            phase_offset=self._triple([a.halo_low * a.stride - a.padding_low for a in axes]),
            phase_rows=e.dim(plan.k if plan.wgrad else plan.m),
        )

    def _matrix(self, v: Value, k_major: bool, span: int = 1, step: int = 1) -> RowMatrix:
        """Rows of `span` pixels, `step` pixels apart."""
        width, size = v.shape[-1], v.size // self.plan.geometry.groups
        rows = (size // width - span) // step + 1
        dim = self.e.dim
        dims = dim(span * width), dim(step * width), dim(rows), dim(size)
        return RowMatrix(self.e.buffer(v), *dims, k_major, span > 1 and k_major)

    def _mainloop(self, s: SplitKSizes, g: Expr, operands: PaddedOperands) -> Accumulators:
        tiles, dtype = self.tiles, self.dtype
        if isinstance(tiles, wgmma.TileShape):
            return operands.wgmma(tiles, s, dtype, g)
        mn_major, copies = self.plan.engine.mn_major_smem, self.target.async_copy
        staged = operands.staged((s.m, s.n), mn_major, copies)
        if isinstance(tiles, mma_sync.TileShape):
            return mma_sync.accumulate(tiles, s, dtype, g, staged)
        return simt_async.accumulate(tiles, s, dtype, g, staged)

    # -- epilogue ---------------------------------------------------------------------------------

    def _store(
        self, split: Expr, group: Expr, image: Expr, pixel: Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        e, g, plan = self.e, self.g, self.plan
        if plan.phases > 1:  # columns are phases, the last first, of output channels
            outputs, dilation = u32(e.dim(self.out_channels)), self._triple(g.lhs_dilation)
            column, o = u32(o), (u32(o) % outputs).cast(ir.INDEX)
            phase = delinearize(column // outputs, dilation)
            z, y, x = (
                i * n + (n - (p.cast(ir.INDEX) + 1))
                for i, n, p in zip(pixel, dilation, phase, strict=True)
            )
            depth, height, width = self.out_size
            in_bounds = (z < depth) & (y < height) & (x < width)
            pixel = (z, y, x)
        elif plan.wgrad and plan.merged > 1:  # products of one group with another are dropped
            batch, outputs = u32(e.dim(g.batch)), u32(e.dim(g.out_channels))
            row, column = u32(image), u32(o)
            merged, in_bounds = row // batch, (row // batch).eq(column // outputs)
            group = group * e.dim(plan.merged) + merged.cast(ir.INDEX)
            image, o = (row % batch).cast(ir.INDEX), (column % outputs).cast(ir.INDEX)
        else:
            return self.store_output(split, group, image, pixel, o, value)
        return [ir.If(in_bounds, self.store_output(split, group, image, pixel, o, value))]
