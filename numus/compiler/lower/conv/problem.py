"""The convolution problem that all schedules share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import CHANNELS_LAST_CONVOLVE, Layouts, Value
from numus.compiler.lower.conv import tuning
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.conv.padded_gemm_plan import Direct, Engine, choose, engine_of
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops import lower_sum
from numus.compiler.lower.relayout import permuted, reshaped
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, Stmt
from numus.kernels.conv.cpu.planes import Read, Triple
from numus.kernels.conv.gpu.implicit_gemm import Epilogue
from numus.shapes import row_major, size_of


@dataclass(frozen=True)
class ConvProblem(Problem):
    @property
    def result(self) -> Value:
        return self.group.members[0]

    @cached_property
    def conv(self) -> Value:
        """The convolution with channels first: of views, where it has them last."""
        v = self.result
        if not self.is_channels_last:
            return v
        rank = len(v.shape)
        n, *space, channels = v.shape
        x = permuted(v.inputs[0], 0, rank - 1, *range(1, rank - 1))
        shape = (n, channels, *space)
        return Value.fresh("convolve", v.kind, (x, v.inputs[1]), v.params, shape, v.dtype)

    @property
    def is_channels_last(self) -> bool:
        return self.result.op == CHANNELS_LAST_CONVOLVE

    def as_result(self, v: Value, lead: int = 0) -> Value:
        """A view, in the axes of the result, of a value with those of `conv` behind `lead`."""
        if not self.is_channels_last:
            return v
        first, rank = range(lead + 1), len(v.shape)
        return permuted(v, *first, *range(lead + 2, rank), lead + 1)

    @cached_property
    def maybe_geometry(self) -> Geometry | None:
        return Geometry.of(self.conv)

    @property
    def geometry(self) -> Geometry:
        assert self.maybe_geometry is not None
        return self.maybe_geometry

    @property
    def is_direct(self) -> bool:
        """Large enough for direct convolution by CPU vectors, of a dtype that has them."""
        g = self.maybe_geometry
        if g is None or self.conv.dtype.is_complex or self.target.block_size:
            return False
        return g.macs >= tuning.CPU.min_macs

    @property
    def images_are_depth(self) -> bool:
        """Direct convolutions of up to two axes have their images along z."""
        return len(self.conv.shape) < 5

    @property
    def direct_geometry(self) -> Geometry:
        return self.geometry.batch_as_depth() if self.images_are_depth else self.geometry

    @property
    def is_wgrad(self) -> bool:
        """Windows are larger than outputs, as in weight gradients."""
        return size_of(self.geometry.out_size) < size_of(self.geometry.taps)

    @cached_property
    def engine(self) -> Engine | None:
        """The engine of a padded GEMM, where the problem is large enough for one."""
        g = self.maybe_geometry
        if g is None or g.macs < tuning.GPU.min_padded_gemm_macs:
            return None
        return engine_of(self.conv, self.target)

    @cached_property
    def direct(self) -> Direct | None:
        """The schedule of minimum cost among those that compute all products."""
        return None if self.engine is None else choose(self.geometry, self.engine)

    @property
    def input_layouts(self) -> Layouts:
        return self.group.input_layouts(self.layouts)

    def readers(self, e: Emitter, in_channels: Expr, out_channels: Expr) -> tuple[Read, Read]:
        """Elements of the input at (image, group, channel, z, y, x), and of the weights."""
        missing, grouped = 5 - len(self.conv.shape), self.geometry.groups > 1

        def data(n: Expr, group: Expr, c: Expr, *at: Expr) -> Expr:
            channel = group * in_channels + c if grouped else c
            value: Expr = e.value(self.conv.inputs[0], (n, channel, *at[missing:]))
            return value

        def weights(group: Expr, o: Expr, c: Expr, *taps: Expr) -> Expr:
            output = group * out_channels + o if grouped else o
            value: Expr = e.value(self.conv.inputs[1], (output, c, *taps[missing:]))
            return value

        return data, weights

    def store(self, e: Emitter, image: Expr, o: Expr, pixel: Triple, value: Expr) -> list[Stmt]:
        """Epilogue: stores of one output and of the values fused behind it."""
        conv = self.result
        space = pixel[5 - len(conv.shape) :]
        index = (image, *space, o) if self.is_channels_last else (image, o, *space)
        for i, n in zip(index, conv.shape, strict=True):
            e.extents.setdefault(i, e.dim(n))
        point = [i for i, n in zip(index, conv.shape, strict=True) if n != 1]
        result = value.cast(conv.dtype)
        e.bindings[conv] = lambda _: result
        out: list[Stmt] = []
        for v in self.group.members:
            if v in self.group.stored:
                at = index_of(v.shape, point)
                out += e.store(v, at, e.value(v, at))
        return out

    def split_epilogue(self, e: Emitter, out_size: Triple, partial: Value) -> Epilogue:
        """Stores to `partial` (split, group, out_channel, image × pixel) with split-K, else the
        epilogue of the fusion group."""
        splits, groups, out_channels, _ = partial.shape

        def store(
            split: Expr, group: Expr, image: Expr, pixel: Triple, o: Expr, value: Expr
        ) -> list[Stmt]:
            if splits == 1:
                output = group * e.dim(out_channels) + o if groups > 1 else o
                return self.store(e, image, output, pixel, value)
            row = image
            for i, n in zip(pixel, out_size, strict=True):
                row = row * n + i
            return e.store(partial, (split, group, o, row), value)

        return store

    def reduce_splits(self, partial: Value, channels_last: bool = False) -> Kernels:
        """Sum of partial results (split, group, out_channel, image × pixel), and the epilogue;
        `channels_last`: of (split, group, image × pixel, out_channel)."""
        conv, g = self.conv, self.geometry
        splits, pixels = partial.shape[0], conv.shape[2:]
        if channels_last:
            split = (splits, g.groups, g.batch, *pixels, g.out_channels)
            order = (0, 2, 1, 3 + len(pixels), *range(3, 3 + len(pixels)))
        else:
            split = (splits, g.groups, g.out_channels, g.batch, *pixels)
            order = (0, 3, 1, 2, *range(4, len(split)))
        v = reshaped(permuted(reshaped(partial, *split), *order), splits, *conv.shape)
        v, shape = self.as_result(v, lead=1), self.result.shape
        total = Value.fresh("reduce_sum", "reduce", (v,), (0,), shape, conv.dtype)
        layouts = {**self.layouts, partial: row_major(partial.shape)}
        return lower_sum(self.group, total, layouts, self.target)
