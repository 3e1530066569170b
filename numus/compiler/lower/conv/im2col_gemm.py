"""Implicit GEMM convolution of channels-last images by TMA's im2col mode, on the wgmma GEMM.

Forward, pixels × (tap, channel) are multiplied by weights, and the result is a matrix of pixels as
it lies in memory. The gradient of weights sums over pixels: (tap, channel) × pixels by pixels ×
output channels, in one GEMM of all taps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial as partial_function

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph import strided_view
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.conv.padded_gemm_operands import phased_weights
from numus.compiler.lower.conv.padded_gemm_plan import (
    INT32_LIMIT,
    PaddedGemmPlan,
    transposed_taps,
)
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_sum
from numus.compiler.lower.matmul import gpu_operands
from numus.compiler.lower.matmul.gpu_operands import MatrixLayout
from numus.compiler.lower.matmul.wgmma import tma_operand
from numus.compiler.lower.relayout import materialize, padded, permuted, reshaped, view
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr, Stmt, const
from numus.kernels.common.smem_tiles import VECTOR, round_up
from numus.kernels.conv.gpu.im2col import CHANNELS, Windows
from numus.kernels.conv.gpu.implicit_gemm import as_index, delinearize, u32
from numus.kernels.matmul.gpu import wgmma
from numus.kernels.matmul.gpu.epilogue import stores_whole_rows
from numus.kernels.matmul.gpu.mainloop import SplitKSizes, zero
from numus.kernels.matmul.gpu.problem import GemmCall
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

Operands = tuple[wgmma.TmaOperand, wgmma.TmaOperand]

MAX_STEP = 8  # elements, of TMA
MIN_BYTES = 1 << 17  # of images; drivers encode smaller ones wrongly
MIN_MERGED_GAIN = 2  # of products, by merging the taps of a row
THREADS = 256  # of a kernel that copies rows of windows
# Of corners and of displacements, by the number of axes of space.
_CORNERS = {2: (-128, 127), 3: (-16, 15)}
_MAX_DISPLACEMENT = {2: 255, 3: 31}


@dataclass(frozen=True, slots=True)
class _Walk:
    """Windows over images, axes of space from the last to the first."""

    images: int
    channels: int
    size: Shape
    windows: Shape
    taps: Shape
    step: Shape
    dilation: Shape
    lower: Shape

    @staticmethod
    def of(g: Geometry, wgrad: bool) -> _Walk:
        """Of the images; `wgrad`: taps and outputs are exchanged, channels and images as well.
        Phases of lhs_dilation have their windows in common, which see taps of all of them."""
        first = 0 if (g.in_size[0], g.taps[0], g.out_size[0]) != (1, 1, 1) else 1
        phased = [
            transposed_taps(taps, d, low)[:2] if d > 1 else (taps, low)
            for taps, d, low in zip(g.taps, g.lhs_dilation, g.padding_low, strict=True)
        ]
        taps, low = tuple(n for n, _ in phased), tuple(-n for _, n in phased)
        sides = g.phase_size, taps, g.stride, g.dilation
        if wgrad:
            sides = taps, g.out_size, g.dilation, g.stride
        space = (n[:first:-1] + n[first : first + 1] for n in (g.in_size, *sides, low))
        counts = (g.batch, g.in_channels) if wgrad else (g.in_channels, g.batch)
        return _Walk(counts[1], counts[0], *space)

    @property
    def merged(self) -> _Walk:
        """Windows of one tap along the last axis, whose taps are channels, where channels are so
        few that a tap would hardly fill a tile; else the same."""
        new = replace(
            self,
            channels=self.channels * self.taps[0],
            size=(self.windows[0], *self.size[1:]),
            taps=(1, *self.taps[1:]),
            step=(1, *self.step[1:]),
            dilation=(1, *self.dilation[1:]),
            lower=(0, *self.lower[1:]),
        )
        return new if MIN_MERGED_GAIN * new.columns <= self.columns else self

    @property
    def upper(self) -> Shape:
        """Of the last window's first tap, from the last pixel."""
        axes = zip(self.windows, self.step, self.lower, self.size, strict=True)
        return tuple((n - 1) * step + low - (size - 1) for n, step, low, size in axes)

    @property
    def padded_channels(self) -> int:
        return round_up(self.channels, CHANNELS)

    @property
    def taps_in_order(self) -> Shape:
        """Of three axes, the first ones first."""
        return (1,) * (3 - len(self.taps)) + self.taps[::-1]

    @property
    def rows(self) -> int:
        return self.images * size_of(self.windows)

    @property
    def columns(self) -> int:
        return size_of(self.taps) * self.padded_channels

    @property
    def fits(self) -> bool:
        low, high = _CORNERS[len(self.size)]
        reach = (n * d for n, d in zip(self.taps, self.dilation, strict=True))
        return (
            all(low <= x <= high for x in (*self.lower, *self.upper))
            and max(self.step) <= MAX_STEP
            and max(reach) <= _MAX_DISPLACEMENT[len(self.size)]
            and 2 * self.images * self.channels * size_of(self.size) >= MIN_BYTES
            and max(self.rows, self.columns) < INT32_LIMIT
        )


def _walks(g: Geometry, wgrad: bool) -> tuple[_Walk, _Walk]:
    """The windows of a convolution, and those over the images that are read."""
    walk = _Walk.of(g, wgrad)
    return walk, walk.merged if size_of(g.lhs_dilation) == 1 else walk


class Im2colGemm(InOrder):
    name = "im2col_gemm"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        engine, g = problem.engine, problem.maybe_geometry
        if g is None or engine is None or engine.kind != "wgmma":
            return False
        if engine.itemsize != 2 or g.groups > 1:
            return False
        source, walk = _walks(g, problem.is_wgrad)
        merged = problem.direct == "implicit_gemm" and walk is not source
        if not merged and not isinstance(problem.direct, PaddedGemmPlan):
            return False
        # other results would be stored with gaps
        shaped = problem.is_wgrad or problem.is_channels_last
        if size_of(g.lhs_dilation) > 1:
            whole = all(n % d == 0 for n, d in zip(g.out_size, g.lhs_dilation, strict=True))
            once = size_of(g.stride) * size_of(g.dilation) == 1
            shaped = shaped and whole and once and not problem.is_wgrad
        return shaped and walk.fits

    def lower(self, problem: ConvProblem) -> Kernels:
        g, layouts = problem.geometry, dict(problem.input_layouts)
        gemm = _Gemm(problem, _walks(g, problem.is_wgrad), layouts)
        return gemm.wgrad() if problem.is_wgrad else gemm.forward()


class _Gemm:
    def __init__(self, problem: ConvProblem, walks: tuple[_Walk, _Walk], layouts: Layouts) -> None:
        self.problem, self.layouts = problem, layouts
        self.source, self.walk = walks
        self.g, self.target, self.dtype = problem.geometry, problem.target, problem.conv.dtype
        self.phases = size_of(self.g.lhs_dilation)
        self.steps: Kernels = []

    # -- operands ---------------------------------------------------------------------------------

    def _images(self, wgrad: bool) -> tuple[Value, Shape]:
        """Images (N, *space, C) that are in memory, and their strides."""
        x, missing = self.problem.conv.inputs[0], 5 - len(self.problem.conv.shape)
        order = (1, *range(2, len(x.shape)), 0) if wgrad else (0, *range(2, len(x.shape)), 1)
        v = permuted(x, *order)
        v = reshaped(v, v.shape[0], *(1,) * missing, *v.shape[1:])
        if self.walk is not self.source:
            v = self._rows_of_windows(v)
            return v, row_major(v.shape)[:4]
        found = strided_view.strided_view(v, self.layouts)
        if found is not None and not found.offset:
            strides = list(found.strides)
            for axis in range(3, -1, -1):  # those of axes of one element are free
                if v.shape[axis] == 1:
                    strides[axis] = max(strides[axis + 1] * v.shape[axis + 1], VECTOR)
            ok = strides[4] == 1 or v.shape[4] == 1
            if ok and all(s > 0 and s % VECTOR == 0 for s in strides[:4]):
                return v, tuple(strides[:4])
        v = padded(v, (*v.shape[:-1], round_up(v.shape[-1], VECTOR)))
        return self._stored(v), row_major(v.shape)[:4]

    def _rows_of_windows(self, v: Value) -> Value:
        """Images (N, z, y, window, tap × channel) of images (N, z, y, x, channel). A thread stores
        16 bytes; sizes of windows are constants of the code."""
        (images, depth, height, width, channels), walk = v.shape, self.source
        size = round_up(self.walk.channels, VECTOR)
        shape = (images, depth, height, walk.windows[0], size)
        copy = Value.fresh("padded", "barrier", (), None, shape, v.dtype)
        e, block, lane = Emitter(self.layouts, block_size=THREADS), ir.var("g"), ir.var("t")
        number, index = u32(block * THREADS + lane), list[Expr]()
        for n in (size // VECTOR, walk.windows[0], height, depth):
            index.insert(0, number % u32(const(n)))
            number = number // u32(const(n))
        image, z, y, window, part = (i.cast(ir.INDEX) for i in (number, *index))
        stores: list[Stmt] = []
        first = (block * THREADS + lane) * VECTOR
        for u in range(VECTOR):
            element = u32(part * VECTOR + u)
            tap, channel = (
                i.cast(ir.INDEX)
                for i in (element // u32(const(channels)), element % u32(const(channels)))
            )
            x = window * walk.step[0] + tap * walk.dilation[0] + walk.lower[0]
            inside = (tap < walk.taps[0]) & (x >= 0) & (x < width)
            value = ir.select(inside, e.value(v, (image, z, y, x, channel), inside), zero(v.dtype))
            to = e.buffer(copy, "write"), first + u, value
            stores.append(ir.Store(*to, vector=VECTOR if u == 0 else 0))
        count = size_of(shape) // VECTOR
        body: list[Stmt] = [ir.If(block * THREADS + lane < e.dim(count), stores)]
        body = [ir.For(lane, ir.const(0), const(THREADS), "lanes", body)]
        self.steps.append(
            e.grid_kernel("window_rows", block, body, -(-count // THREADS), ("cast",))
        )
        self.layouts[copy] = row_major(shape)
        return copy

    def _stored(self, v: Value) -> Value:
        copy, steps = materialize(v, self.layouts, self.target)
        self.layouts[copy] = row_major(copy.shape)
        self.steps += steps
        return copy

    def _matrix(self, v: Value) -> tuple[Value, int]:
        """A matrix (1, k, n) in memory with adjacent columns, and the distance of its rows."""
        found = gpu_operands.matrix_layout(v, self.layouts, 2)
        ok = found is not None and not found.k_major and found.is_vector_aligned(v.dtype)
        if found is not None and ok and found.ld > 0:
            return v, found.ld
        v = self._stored(padded(v, (*v.shape[:2], round_up(v.shape[2], VECTOR))))
        return v, v.shape[2]

    def _weights(self) -> Value:
        """(1, phases × outputs, taps × channels)."""
        w, g, walk = self.problem.conv.inputs[1], self.g, self.walk
        v = reshaped(w, 1, g.out_channels, g.in_channels, *g.taps)
        if walk is not self.source:
            v = permuted(v, 0, 1, 5, 2, 3, 4)
            v = reshaped(v, 1, g.out_channels, walk.channels, *g.taps[:2], 1)
        v = phased_weights(v, g, walk.taps_in_order, walk.padded_channels)
        return self._stored(reshaped(v, 1, self.phases * g.out_channels, walk.columns))

    def _windows(self, e: Emitter, v: Value, strides: Shape) -> Windows:
        walk = self.walk
        buffer = e.buffer(v) if v in self.layouts else e.value(v, (ir.const(0),) * 5).attr
        axes = len(walk.size)
        image, *space = strides
        size, windows, taps = (
            [e.dim(n) for n in part] for part in (walk.size, walk.windows, walk.taps)
        )
        counts = (walk.images, walk.channels, walk.padded_channels)
        images, channels, padded_channels = (e.dim(n) for n in counts)
        along = [e.dim(s) for s in (*space[::-1][:axes], image)]
        fixed = (walk.step, walk.dilation, walk.lower, walk.upper)
        about = (images, channels, padded_channels, size, windows, taps, along)
        return Windows(buffer, *about, *fixed)

    # -- GEMMs ------------------------------------------------------------------------------------

    def forward(self) -> Kernels:
        (images, strides), weights = self._images(wgrad=False), self._weights()
        walk, channels = self.walk, self.phases * self.g.out_channels

        def operands(e: Emitter, s: SplitKSizes) -> Operands:
            left = self._windows(e, images, strides).pixels(False, s.m)
            layout = MatrixLayout(True, walk.columns, 0)
            return left, tma_operand(e, weights, layout, s.n, s.k, 1)

        shape = (walk.rows, channels, walk.columns)
        tile, splits = self._tile(shape)
        if splits == 1 or self.phases > 1:
            return [*self.steps, self._kernel(shape, tile, 1, operands, None)]
        partial = self._partial(shape, splits)
        self.steps.append(self._kernel(shape, tile, splits, operands, partial))
        return self.steps + self.problem.reduce_splits(partial, channels_last=True)

    def wgrad(self) -> Kernels:
        w, walk, channels = self.problem.conv.inputs[1], self.walk, self.g.out_channels
        images, strides = self._images(wgrad=True)
        rows = permuted(w, *range(1, len(w.shape)), 0)
        rows, ld = self._matrix(reshaped(rows, 1, walk.rows, channels))

        def operands(e: Emitter, s: SplitKSizes) -> Operands:
            left = self._windows(e, images, strides).pixels(True, s.m)
            return left, tma_operand(e, rows, MatrixLayout(False, ld, 0), s.n, s.k, 1)

        shape = (walk.columns, channels, walk.rows)
        tile, splits = self._tile(shape)
        partial = self._partial(shape, splits)
        self.steps.append(self._kernel(shape, tile, splits, operands, partial))
        return self.steps + self._sum(partial)

    def _tile(self, shape: Shape) -> tuple[wgmma.TileShape, int]:
        m, n, k = shape
        return wgmma.choose_tile(self.target, self.dtype, (1, m, n), k, persistent=True)

    def _partial(self, shape: Shape, splits: int) -> Value:
        dtype = dt.compute_dtype(self.dtype)
        return Value.fresh("convolve", "convolve", (), None, (splits, *shape[:2]), dtype)

    def _sum(self, partial: Value) -> Kernels:
        """Of splits (taps × channels, outputs), as (channels, outputs, taps)."""
        conv, walk, taps = self.problem.conv, self.walk, size_of(self.walk.taps)
        splits, _, outputs = partial.shape
        v = reshaped(partial, splits, taps, walk.padded_channels, outputs)
        whole = (splits, taps, walk.channels, outputs)
        if v.shape != whole:
            v = view("slice", v, ((0, 0, 0, 0), (1, 1, 1, 1)), whole)
        channels = self.source.channels
        v = reshaped(v, splits, taps, walk.channels // channels, channels, outputs)
        v = reshaped(permuted(v, 0, 3, 4, 1, 2), splits, *conv.shape)
        v = self.problem.as_result(v, lead=1)
        shape = self.problem.result.shape
        total = Value.fresh("reduce_sum", "reduce", (v,), (0,), shape, conv.dtype)
        layouts = {**self.problem.layouts, partial: row_major(partial.shape)}
        return lower_sum(self.problem.group, total, layouts, self.target)

    def _kernel(
        self,
        shape: Shape,
        tile: wgmma.TileShape,
        splits: int,
        operands: Callable[[Emitter, SplitKSizes], Operands],
        partial: Value | None,
    ) -> LoweredKernel:
        """A GEMM with the epilogue of the fusion group, or one that stores partial products."""
        group = self.problem.group
        part = group if partial is None else FusionGroup.of_stored(partial, group.position)
        itemsizes = tuple(v.dtype.itemsize for v in part.members if v in part.stored)
        per_sm = tile.blocks_per_sm
        if not stores_whole_rows(itemsizes, self.g.out_channels):
            tile = wgmma.fit_stages(self.target, (tile.m, tile.n), per_sm, persistent=False)
        e, block = Emitter(self.layouts, block_size=tile.threads(self.dtype)), ir.var("block")
        cut = ((tile.m, tile.n), wgmma.tile_k(self.dtype), splits)
        m, n, k = shape
        sizes, grid = gpu_operands.tile_sizes(e, self.target, (1, m, n, k), *cut)
        found = operands(e, sizes)
        if partial is None:
            epilogue = partial_function(self._store, e)
            store_only = len(group.members) == 1
            aligned = gpu_operands.aligned_dims(e)
            call = GemmCall(tile, sizes, self.dtype, *found, epilogue, store_only, aligned)
        else:
            call = gpu_operands.gemm_call(e, part, tile, sizes, self.dtype, found)
        body, e.scratch = wgmma.wgmma_gemm(call, block)
        resident = self.target.num_cores * per_sm if tile.persistent else 0
        return e.grid_kernel(Im2colGemm.name, block, body, grid, part.notes, resident)

    def _store(self, e: Emitter, which: Expr, m: Expr, n: Expr, value: Expr) -> list[Stmt]:
        """The epilogue of a pixel, whose axes are one in memory."""
        g = self.g
        z, y, x = (e.dim(n) for n in g.phase_size)
        row, pixels = u32(m), size_of(g.phase_size)
        image, rest = row // u32(e.dim(pixels)), row % u32(e.dim(pixels))
        index = image.cast(ir.INDEX), as_index(delinearize(rest, (z, y, x)))
        if self.phases > 1:  # columns are phases, the last first, of output channels
            outputs, (a, b, c) = u32(e.dim(g.out_channels)), (e.dim(n) for n in g.lhs_dilation)
            first, offset = ir.split_constant(n)  # adjacent columns have a division in common
            apart = offset % 2 if g.out_channels % 2 == 0 else 0
            first = u32(first + (offset - apart))
            phase = as_index(delinearize(first // outputs, (a, b, c)))
            spread = zip(index[1], (a, b, c), phase, strict=True)
            z, y, x = (i * d + (d - (p + 1)) for i, d, p in spread)
            n = (first % outputs).cast(ir.INDEX) + apart
            return self.problem.store(e, index[0], n, (z, y, x), value)
        parts = zip((index[0], *index[1]), (g.batch, *g.out_size), strict=True)
        long = [(i, n) for i, n in parts if n != 1]
        e.joined = tuple(i for i, _ in long), tuple(n for _, n in long), m
        e.invalidate()
        return self.problem.store(e, index[0], n, index[1], value)
