"""Convolutions as plain sums (`kernels/window_sums.py`)."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu import lower_convolution
from numus.compiler.lower.conv.geometry import Geometry, Numbers, epilogue
from numus.compiler.lower.conv.gpu import sum_of_pieces
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.ir import Expr, Stmt
from numus.kernels.conv.gpu import depthwise as depthwise_kernel
from numus.kernels.conv.gpu.depthwise import EACH, LEAST, MOST, THREADS
from numus.kernels.conv.gpu.implicit_gemm import Sizes, Triple
from numus.shapes import Shape, size_of
from numus.target import Target

GROUPS = 8  # of a unit, at most


def _enough(target: Target) -> int:
    """Threads that keep a device busy."""
    return target.num_cores * THREADS


def lower_window_sums(
    group: FusionGroup, g: Geometry, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Threads with a few results each, groups with a few of large windows; rows of products,
    however long, where neither keeps threads busy."""
    results = g.batch * g.groups * g.outputs * size_of(g.extents)
    places, every = size_of(g.extents), g.channels * size_of(g.taps)
    counted = max(every, results) < 1 << 31
    long = every >= LEAST and size_of(g.taps) > places
    if places <= MOST and size_of(g.gap) == 1 and long and counted:
        return _Sums(group, g, layouts, target).gathered()
    if g.taps[2] <= MOST and _enough(target) * EACH <= results and counted:
        return _Sums(group, g, layouts, target).sums()
    return lower_convolution(group, layouts, target)


class _Sums:
    def __init__(
        self, group: FusionGroup, g: Geometry, layouts: dict[Value, Shape], target: Target
    ) -> None:
        self.group, self.g, self.layouts, self.target = group, g, layouts, target
        self.product = group.members[0]
        self.dtype = dt.compute_dtype(self.product.dtype)
        self.e = Emitter(group.input_layouts(layouts), block_size=THREADS)
        self.lack = 5 - len(self.product.shape)
        self.reads = depthwise_kernel.Reads(self.dtype, self._data, self._weights)

    def _sizes(self, column_tiles: int = 1, pieces: int = 1, slices: int = 1) -> Sizes:
        e, g, numbers = self.e, self.g, Numbers(self.e)
        return Sizes(
            *(e.dim(g.batch), e.dim(g.groups), e.dim(g.channels), e.dim(g.outputs)),
            space=numbers(g.space),
            taps=numbers(g.taps),
            extents=numbers(g.extents),
            stride=numbers(g.stride, 2),
            dilation=numbers(g.dilation, 2),
            gap=numbers(g.gap),
            low=numbers(g.low),
            row_tiles=ir.const(1),
            column_tiles=e.dim(column_tiles),
            pieces=e.dim(pieces),
            slices=e.dim(slices),
            whole=True,
        )

    def _data(self, image: Expr, channel: Expr, at: Triple, mask: Expr) -> Expr:
        index = (image, channel, *at[self.lack :])
        value: Expr = self.e.value(self.product.inputs[0], index, mask)
        return value.cast(self.dtype)

    def _weights(self, output: Expr, c: Expr, tap: Triple, mask: Expr | None) -> Expr:
        value: Expr = self.e.value(self.product.inputs[1], (output, c, *tap[self.lack :]), mask)
        return value.cast(self.dtype)

    def _done(self, image: Expr, output: Expr, at: Triple, value: Expr) -> list[Stmt]:
        self.e.invalidate()
        return epilogue(self.e, self.group, (image, output, *at[self.lack :]), value)

    def sums(self) -> list[LoweredKernel]:
        g, s = self.g, self._sizes()
        number = ir.var("g")
        body = depthwise_kernel.sums(number, s, g.taps[2], self.reads, self._done)
        few = g.extents[2] if depthwise_kernel.neighbours(s) else g.batch
        results = g.batch * g.groups * g.outputs * size_of(g.extents)
        count = results // few * -(-few // EACH)
        notes = self.group.notes
        return [self.e.grid_kernel("window_sums", number, body, -(-count // THREADS), notes)]

    def gathered(self) -> list[LoweredKernel]:
        g, e = self.g, self.e
        wide = depthwise_kernel.outputs_of(g.outputs, size_of(g.extents))
        tiles = -(-g.outputs // wide)
        count = g.groups * g.batch * tiles
        every = g.channels * size_of(g.taps)
        pieces = max(1, min(self.target.num_cores * GROUPS // count, every // LEAST))
        rows = every // g.taps[2]
        turns = -(-rows // depthwise_kernel.rows_of(g.taps[2]))
        slices = -(-turns // pieces)
        pieces = -(-turns // slices)
        s = self._sizes(tiles, pieces, slices)
        partial = Value.fresh(
            *("convolve", "convolve", (), None),
            (pieces, g.groups, g.outputs, g.batch * size_of(g.extents)),
            self.dtype,
        )

        def finish(
            piece: Expr, group: Expr, image: Expr, at: Triple, o: Expr, value: Expr
        ) -> list[Stmt]:
            if pieces == 1:
                return self._done(image, ir.add(ir.mul(group, s.outputs), o), at, value)
            row = image
            for i, n in zip(at, s.extents, strict=True):
                row = ir.add(ir.mul(row, n), i)
            return e.store(partial, (piece, group, o, row), value)

        number = ir.var("g")
        body = depthwise_kernel.gathered(number, s, g.extents, wide, self.reads, finish)
        notes = ("convolve",) if pieces > 1 else self.group.notes
        steps = [e.grid_kernel("gathered_sums", number, body, count * pieces, notes)]
        if pieces > 1:
            steps += sum_of_pieces(self.group, g, partial, self.layouts, self.target)
        return steps
