"""Implicit GEMM convolution (cuDNN, Chetlur et al. 2014): the im2col matrix is never stored.

Its rows are output pixels, its columns (k) the taps with the input channels of each. Input and
weights are channels-last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const

ONE = const(1)

Triple = tuple[Expr, Expr, Expr]
# stores an accumulator: (k split, group, image, pixel, output channel, value)
Epilogue = Callable[[Expr, Expr, Expr, Triple, Expr, Expr], list[Stmt]]


@dataclass(slots=True)
class ConvSizes:
    """Launch arguments; `aligned_k`: channels are a multiple of the K tile."""

    batch: Expr
    groups: Expr
    in_channels: Expr  # of a group, padded
    out_channels: Expr  # of a group
    in_size: Triple
    taps: Triple
    out_size: Triple
    stride: Triple
    dilation: Triple
    lhs_dilation: Triple
    padding_low: Triple
    m_tiles: Expr
    n_tiles: Expr
    splits: Expr  # split-K
    k_tiles: Expr  # of a split
    aligned_k: bool


def u32(e: Expr) -> Expr:
    """An index in 32 bits, in which division is cheaper."""
    return e.cast(dt.uint32)


def volume(values: Triple) -> Expr:
    a, b, c = values
    return a * b * c


def delinearize(index: Expr, size: Triple) -> Triple:
    """A linear index as one per axis (32 bits)."""
    _, height, width = (u32(n) for n in size)
    rest = index // width
    return rest // height, rest % height, index % width


class Im2col:
    """The implicit im2col matrix of one group of channels. Indices have 32 bits."""

    def __init__(self, s: ConvSizes, group: Expr) -> None:
        self.s, self.group = s, group
        self.pixels = volume(s.out_size)
        self.m = s.batch * self.pixels
        self.k = s.in_channels * volume(s.taps)

    def output_index(self, m: Expr) -> tuple[Expr, Triple]:
        """The image and the pixel of a row."""
        pixels = u32(self.pixels)
        return u32(m) // pixels, delinearize(u32(m) % pixels, self.s.out_size)

    def tap_index(self, k: Expr) -> tuple[Triple, Expr]:
        """The tap and the channel of a column."""
        index, channels = u32(k), u32(self.s.in_channels)
        return delinearize(index // channels, self.s.taps), index % channels

    def input_index(self, m: Expr, taps: Triple, channel: Expr) -> tuple[Expr, Expr]:
        """Index of an element in the input, and whether it is in bounds."""
        s = self.s
        image, pixel = self.output_index(m)
        inside = m < self.m
        index = image * u32(s.groups) + u32(self.group)
        for i, tap, size, stride, dilation, lhs_dilation, low in zip(
            *(pixel, taps, s.in_size, s.stride, s.dilation, s.lhs_dilation, s.padding_low),
            strict=True,
        ):
            # negative positions wrap around to large ones
            at = i * u32(stride) - u32(low)
            at = at + tap * u32(dilation)
            if lhs_dilation is not ONE:
                inside = inside & (at % u32(lhs_dilation)).eq(0)
                at = at // u32(lhs_dilation)
            inside = inside & (at < u32(size))
            index = index * u32(size) + at
        index = index * u32(s.in_channels) + channel
        # predicated-off loads still translate their address
        return ir.select(inside, index, const(0, dt.uint32)).cast(ir.INDEX), inside
