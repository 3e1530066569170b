"""Geometry of a convolution, and its launch arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter
from numus.ir import const
from numus.kernels.conv.cpu.planes import Triple
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
        """Minimum and maximum displacement of a tap from its output; maximum taps of a phase."""
        dilation, taps = self.lhs_dilation[axis], range(self.taps[axis])
        hits: list[list[int]] = []
        for phase in range(min(dilation, self.out_size[axis])):
            first = phase * self.stride[axis] - self.padding_low[axis]
            at = [first + k * self.dilation[axis] for k in taps]
            hits.append([a // dilation for a in at if a % dilation == 0])
        found = sorted(chain.from_iterable(hits))
        return (found[0], found[-1], max(map(len, hits))) if found else (0, 0, 0)

    @property
    def tap_ranges(self) -> list[tuple[int, int, int]]:
        return [self.tap_range(axis) for axis in range(3)]

    @property
    def tap_origin(self) -> Shape:
        return tuple(low for low, _, _ in self.tap_ranges)

    @property
    def phase_k_size(self) -> int:
        """Maximum of channels × taps of a phase."""
        return self.in_channels * size_of(tuple(taps for _, _, taps in self.tap_ranges))


def scalar_args(e: Emitter, values: Sequence[int], fixed: int = 1) -> Triple:
    """Launch arguments. Those up to `fixed` are compile-time constants: simpler code for 1, vector
    loads for known strides."""
    a, b, c = (const(n) if 0 < n <= fixed else e.scalar_arg(n) for n in values)
    return a, b, c


def divide(n: int, parts: int) -> tuple[int, int]:
    """Elements of each of at most `parts`, and the parts that are not empty."""
    part_size = -(-n // parts)
    return part_size, -(-n // part_size)
