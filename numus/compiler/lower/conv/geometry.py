"""Geometry of a convolution, its operands and its epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Index
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import Read, Triple
from numus.shapes import Shape, size_of


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution with three axes of space, the missing ones of size 1."""

    batch: int
    groups: int
    in_channels: int  # of a group
    out_channels: int  # of a group
    in_size: Shape
    taps: Shape
    out_size: Shape
    stride: Shape
    dilation: Shape
    lhs_dilation: Shape
    padding_low: Shape

    @staticmethod
    def of(conv: Value) -> Geometry | None:
        """None for empty convolutions, and other ranks."""
        x, w = conv.inputs
        groups, windows, _ = conv.params
        missing = 3 - len(windows)
        if missing not in (0, 1, 2) or 0 in (*x.shape, *w.shape, *conv.shape):
            return None
        ones = (1,) * missing
        stride, dilation, lhs_dilation, padding_low = zip(*windows, strict=True)
        return Geometry(
            *(x.shape[0], groups, w.shape[1], w.shape[0] // groups),
            in_size=ones + x.shape[2:],
            taps=ones + w.shape[2:],
            out_size=ones + conv.shape[2:],
            stride=ones + stride,
            dilation=ones + dilation,
            lhs_dilation=ones + lhs_dilation,
            padding_low=(0,) * missing + padding_low,
        )

    @property
    def outputs(self) -> int:
        return self.batch * self.groups * self.out_channels * size_of(self.out_size)

    @property
    def macs(self) -> int:
        """Multiply-accumulates, those of padding included, those of lhs_dilation not."""
        return self.outputs * self.in_channels * size_of(self.taps) // size_of(self.lhs_dilation)

    @property
    def macs_per_output(self) -> float:
        return self.in_channels * size_of(self.taps) / size_of(self.lhs_dilation)

    @property
    def phase_size(self) -> Shape:
        """Outputs of one lhs_dilation phase, along each axis."""
        return tuple(-(-n // d) for n, d in zip(self.out_size, self.lhs_dilation, strict=True))

    def batch_as_depth(self) -> Geometry:
        """The same convolution with images along z, which windows do not cross."""
        in_size, out_size = (self.batch, *self.in_size[1:]), (self.batch, *self.out_size[1:])
        return replace(self, batch=1, in_size=in_size, out_size=out_size)

    def tap_range(self, axis: int) -> tuple[int, int, int]:
        """Least and greatest displacement of a tap from its output; most taps of a phase."""
        dilation = self.lhs_dilation[axis]
        found: list[int] = []
        most = 0
        for phase in range(min(dilation, self.out_size[axis])):
            at = [
                phase * self.stride[axis] + k * self.dilation[axis] - self.padding_low[axis]
                for k in range(self.taps[axis])
            ]
            hits = [a // dilation for a in at if a % dilation == 0]
            found += hits
            most = max(most, len(hits))
        return (min(found), max(found), most) if found else (0, 0, 0)

    @property
    def tap_ranges(self) -> list[tuple[int, int, int]]:
        return [self.tap_range(axis) for axis in range(3)]

    @property
    def tap_origin(self) -> Shape:
        return tuple(low for low, _, _ in self.tap_ranges)

    @property
    def phase_k_size(self) -> int:
        """Channels × taps of a phase, at most."""
        return self.in_channels * size_of(tuple(taps for _, _, taps in self.tap_ranges))


def has_free_axis(conv: Value) -> bool:
    """Convolutions of up to two axes have room for images along z."""
    return len(conv.shape) < 5


class ScalarArgs:
    """Launch arguments. Those up to `fixed` are compile-time constants: simpler code for 1, vector
    loads for known strides."""

    def __init__(self, e: Emitter) -> None:
        self.e = e

    def __call__(self, values: Sequence[int], fixed: int = 1) -> Triple:
        a, b, c = (const(n) if 0 < n <= fixed else self.e.scalar_arg(n) for n in values)
        return a, b, c


def operands(
    e: Emitter,
    conv: Value,
    g: Geometry,
    in_channels: Expr,
    out_channels: Expr,
    images_are_depth: bool = False,
) -> tuple[Read, Read]:
    """Readers of elements of the input and the weights."""
    x, w = conv.inputs
    missing = 5 - len(conv.shape)

    def channel(group: Expr, size: Expr, i: Expr) -> Expr:
        return group * size + i if g.groups > 1 else i

    def data(n: Expr, group: Expr, c: Expr, *at: Expr) -> Expr:
        image = at[0] if images_are_depth else n
        value: Expr = e.value(x, (image, channel(group, in_channels, c), *at[missing:]))
        return value

    def weights(group: Expr, o: Expr, c: Expr, *taps: Expr) -> Expr:
        value: Expr = e.value(w, (channel(group, out_channels, o), c, *taps[missing:]))
        return value

    return data, weights


def epilogue(e: Emitter, group: FusionGroup, index: Index, value: Any) -> list[Stmt]:
    """Stores of one output and of the values fused behind it."""
    conv = group.members[0]
    for i, n in zip(index, conv.shape, strict=True):
        e.extents.setdefault(i, e.dim(n))
    point = [i for i, n in zip(index, conv.shape, strict=True) if n != 1]
    result = value.cast(conv.dtype)
    e.bindings[conv] = lambda _: result
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            at = index_of(v.shape, point)
            out += e.store(v, at, e.value(v, at))
    return out
