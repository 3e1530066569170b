"""Convolutions whose windows are displacements on a grid of cells: products by whatever multiplies.

Operands are laid out first; the product is then one of tiles that an engine brings, or of slices
that threads copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv import winograd
from numus.compiler.lower.conv.depthwise import lower_window_sums
from numus.compiler.lower.conv.geometry import Geometry, epilogue
from numus.compiler.lower.conv.gpu import sum_of_pieces
from numus.compiler.lower.conv.padded_gemm_operands import lay_results, lay_taps
from numus.compiler.lower.conv.padded_gemm_plan import SMALL, Plan, choose, unit_of
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.gpu import padded_gemm_mainloop as by_slices
from numus.kernels.conv.gpu import padded_gemm_wgmma as by_tiles
from numus.kernels.conv.gpu.implicit_gemm import Triple, apart, small
from numus.kernels.conv.gpu.padded_gemm import Cells, Done, leave
from numus.kernels.matmul.gpu import mma_sync as warp
from numus.kernels.matmul.gpu import simt_async as threads
from numus.kernels.matmul.gpu import wgmma as tile
from numus.kernels.matmul.gpu.mainloop import Accumulators, SplitKSizes
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

ROOM = 3  # groups that share a multiprocessor's memory while sums leave

Tiles = tile.TileShape | warp.TileShape | threads.TileShape


def lower_cell_convolution(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target, lower_product: winograd.Lower
) -> list[LoweredKernel] | None:
    """Operands laid out on grids of cells, then the product; plain sums where too much of it would
    be in vain; None where other kernels take less, or there is nothing to do it by.
    """
    product = group.members[0]
    g = Geometry.of(product)
    unit = unit_of(product, target)
    if g is None or unit is None or g.work < SMALL:
        return None
    dtype = product.dtype
    plan = choose(g, unit)
    if unit.kind == "threads" and winograd.fits(g):
        direct = plan.cost if isinstance(plan, Plan) else float(unit.worth * g.work)
        if winograd.cost(g, unit) < direct:
            return winograd.lower_winograd(group, g, layouts, target, lower_product)
    if plan == "windows":
        return None
    if plan == "sums":
        return lower_window_sums(group, g, layouts, target)
    outer = group.input_layouts(layouts)
    lay = lay_results if plan.by_results else lay_taps
    (data, steps), (weights, more) = lay(product, g, plan, outer, target)
    outer |= {data: row_major(data.shape), weights: row_major(weights.shape)}
    tiles, pieces = _tiles(plan, dtype, target)
    kernel = _Kernel(group, g, plan, tiles, pieces, outer, target)
    steps = [*steps, *more, kernel.lower(data, weights)]
    if kernel.pieces > 1:
        steps += sum_of_pieces(group, g, kernel.partial, layouts, target)
    return steps


def _tiles(plan: Plan, dtype: DType, target: Target) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut."""
    shape = (plan.matrices, plan.rows, plan.columns)
    if plan.unit.kind == "tiles":
        return tile.choose_tile(target, dtype, shape, plan.k)
    if plan.unit.kind == "threads":
        return threads.choose_tile(target, *shape, plan.k)
    copies = target.async_copy
    tiles, pieces = warp.choose_tile(target, dtype, copies, *shape, plan.k)
    if plan.width % tiles.stage_shape(dtype).tile_k and not plan.by_results:
        tiles = replace(tiles, k_words=warp.TILE_K_WORDS)  # slices are of one tap
    return tiles, pieces


class _Kernel:
    """The product of one plan."""

    def __init__(
        self,
        group: FusionGroup,
        g: Geometry,
        plan: Plan,
        tiles: Tiles,
        pieces: int,
        layouts: dict[Value, Shape],
        target: Target,
    ) -> None:
        self.group, self.g, self.plan, self.tiles = group, g, plan, tiles
        self.target = target
        self.dtype = group.members[0].dtype
        if isinstance(tiles, tile.TileShape):
            self.rows, self.depth, threads_ = tile.TILE_M, tile.tile_k(self.dtype), tile.THREADS
        elif isinstance(tiles, warp.TileShape):
            self.rows, threads_ = tiles.m, tiles.threads
            self.depth = tiles.stage_shape(self.dtype).tile_k
        else:
            self.rows, self.depth, threads_ = tiles.m, threads.TILE_K, tiles.threads
        every = -(-plan.k // self.depth)
        self.slices = -(-every // pieces)
        self.pieces = -(-every // self.slices)
        self.e = Emitter(layouts, block_size=threads_)
        self.extents = self._three(g.extents)
        self.outputs = plan.geometry.outputs  # of what counts as a group when results are stored
        if plan.by_results:
            self.outputs = g.outputs
        self.groups = g.groups * g.outputs // self.outputs
        self.partial = Value.fresh(
            *("convolve", "convolve", (), None),
            (self.pieces, self.groups, self.outputs, g.batch * size_of(g.extents)),
            dt.compute_dtype(self.dtype),
        )

    def _three(self, values: Sequence[int]) -> Triple:
        a, b, c = (self.e.dim(n) for n in values)
        return a, b, c

    def lower(self, data: Value, weights: Value) -> LoweredKernel:
        e, plan = self.e, self.plan
        turned, columns = plan.by_results, self.tiles.n
        row_tiles, column_tiles = -(-plan.rows // self.rows), -(-plan.columns // columns)
        together = tile.swizzle_m(self.target, columns, row_tiles)
        sizes = SplitKSizes(
            *(e.dim(n) for n in (plan.rows, plan.columns, plan.k)),
            *(
                e.scalar_arg(n)
                for n in (row_tiles, column_tiles, together, self.pieces, self.slices)
            ),
        )
        if self.pieces == 1:
            sizes.split_k = const(1)
        along = plan.unit.along or not turned
        left = self._lines(data, along, plan.span, plan.step)
        right = self._lines(weights, along and not plan.unit.across)
        number = ir.var("g")
        cells = self._cells()
        total = self._summed(sizes, cells, number, left, right)

        def row_of(m: Expr) -> tuple[Expr, Done]:
            which = ir.idiv(total.origin[0], sizes.split_k)
            piece = ir.irem(total.origin[0], sizes.split_k)
            if turned:
                matrix, tap = cells.apart(which)
                image, at, inside = m, apart(tap, cells.taps), m < sizes.m
                if plan.span > 1:  # a row for every place along the last axis as well
                    cell = small(e.dim(plan.cell))
                    last, image = ir.idiv(small(m), cell), ir.irem(small(m), cell)
                    inside = inside & (image < small(e.dim(plan.geometry.batch)))
                    at = (*at[:2], last)
            else:
                image, at, inside = cells.place(m)
                inside, matrix = inside & (m < sizes.m), which
            where = (at[0].cast(ir.INDEX), at[1].cast(ir.INDEX), at[2].cast(ir.INDEX))
            place = (piece, matrix, image.cast(ir.INDEX), where)
            return inside, lambda o, value: self._done(*place, o, value)

        body = leave(total, sizes.n, self.target.shared_bytes // ROOM, row_of)
        e.scratch += total.scratch
        count = plan.matrices * self.pieces * row_tiles * column_tiles
        notes = ("convolve",) if self.pieces > 1 else self.group.notes
        return e.grid_kernel(f"cell_convolution_by_{plan.unit.kind}", number, body, count, notes)

    def _cells(self) -> Cells:
        e, plan, axes = self.e, self.plan, self.plan.axes
        return Cells(
            groups=e.dim(plan.geometry.groups),
            outputs=e.dim(plan.columns),
            blocks=e.dim(1 if plan.by_results else plan.width // self.depth),
            width=e.dim(plan.width),
            taps=self._three([a.taps for a in axes]),
            extents=self._three([a.extent for a in axes]),
            cells=self._three(plan.grid),
            stride=self._three([a.stride for a in axes]),
            dilation=self._three([a.dilation for a in axes]),
            up=self._three([a.up for a in axes]),
            lead=self._three([a.up * a.stride - a.low for a in axes]),
            phase=e.dim(plan.k if plan.by_results else plan.rows),
        )

    def _lines(self, v: Value, along: bool, span: int = 1, step: int = 1) -> by_tiles.Lines:
        """Lines of so many cells, the next of which begins so many further on."""
        cell = v.shape[-1]
        each = v.size // self.plan.geometry.groups
        count = (each // cell - span) // step + 1
        number = self.e.dim
        sizes = number(span * cell), number(step * cell), number(count), number(each)
        return by_tiles.Lines(self.e.buffer(v), *sizes, along, span > 1 and along)

    def _summed(
        self, s: SplitKSizes, cells: Cells, g: Expr, data: by_tiles.Lines, weights: by_tiles.Lines
    ) -> Accumulators:
        turned, tiles = self.plan.by_results, self.tiles
        if isinstance(tiles, tile.TileShape):
            schedule = by_tiles.correlation if turned else by_tiles.convolution
            return schedule(tiles, s, cells, self.dtype, g, data, weights)
        operands = by_slices.by_results if turned else by_slices.by_taps
        copies = self.target.async_copy
        across = self.plan.unit.across
        left, right = operands(cells, data, weights, (s.m, s.n), across, copies)
        if isinstance(tiles, warp.TileShape):
            return warp.accumulate(tiles, s, self.dtype, g, left, right)
        return threads.accumulate(tiles, s, self.dtype, g, left, right)

    # -- results ----------------------------------------------------------------------------------

    def _done(
        self, piece: Expr, group_: Expr, image: Expr, at: Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        """What becomes of a sum."""
        if self.plan.gaps > 1:
            return self._finish_beside(piece, group_, image, at, o, value)
        if self.plan.by_results and self.plan.merged > 1:
            return self._finish_diagonal(piece, group_, image, at, o, value)
        return self._finish(piece, group_, image, at, o, value)

    def _finish(
        self, piece: Expr, group_: Expr, image: Expr, at: Triple, o: Expr, value: Expr
    ) -> list[Stmt]:
        e = self.e
        if self.pieces > 1:
            row = image
            for i, n in zip(at, self.extents, strict=True):
                row = ir.add(ir.mul(row, n), i)
            return e.store(self.partial, (piece, group_, o, row), value)
        output = ir.add(ir.mul(group_, e.dim(self.outputs)), o) if self.groups > 1 else o
        lack = 5 - len(self.group.members[0].shape)
        return epilogue(e, self.group, (image, output, *at[lack:]), value)

    def _finish_diagonal(
        self, piece: Expr, group_: Expr, row: Expr, at: Triple, column: Expr, value: Expr
    ) -> list[Stmt]:
        """Of groups that are one, what has to do with one of them only."""
        batch, outputs = (small(self.e.dim(n)) for n in (self.g.batch, self.g.outputs))
        which, image = ir.idiv(small(row), batch), ir.irem(small(row), batch)
        own, o = ir.idiv(small(column), outputs), ir.irem(small(column), outputs)
        group_ = ir.add(ir.mul(group_, self.e.dim(self.plan.merged)), which.cast(ir.INDEX))
        place = (piece, group_, image.cast(ir.INDEX), at, o.cast(ir.INDEX))
        return [ir.If(which.eq(own), self._finish(*place, value))]

    def _finish_beside(
        self, piece: Expr, group_: Expr, image: Expr, at: Triple, column: Expr, value: Expr
    ) -> list[Stmt]:
        """Outputs that are results beside each other: the last comes first."""
        outputs, gap = self.e.dim(self.outputs), self._three(self.g.gap)
        o = ir.irem(small(column), small(outputs)).cast(ir.INDEX)
        which = ir.idiv(small(column), small(outputs))
        d, h, w = (
            ir.add(ir.mul(i, n), ir.sub(n, ir.add(before.cast(ir.INDEX), const(1))))
            for i, n, before in zip(at, gap, apart(which, gap), strict=True)
        )
        a, b, c = self.extents
        inside = (d < a) & (h < b) & (w < c)
        return [ir.If(inside, self._finish(piece, group_, image, (d, h, w), o, value))]
