"""Implicit GEMM convolution (cuDNN, Chetlur et al. 2014): the im2col matrix is never stored.

Its rows are output pixels, its columns (k) the taps with the input channels of each. Input and
weights are channels-last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
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


def as_index(indices: Triple) -> Triple:
    a, b, c = indices
    return a.cast(ir.INDEX), b.cast(ir.INDEX), c.cast(ir.INDEX)


@dataclass(frozen=True, slots=True)
class BlockArgs:
    """Thread block `g`, its operands and the dtype in which they are multiplied."""

    s: ConvSizes
    dtype: DType
    g: Expr
    data: ir.Buffer
    weights: ir.Buffer
    epilogue: Epilogue


class Im2col:
    """A thread block over a tile of the implicit im2col matrix. Indices have 32 bits."""

    def __init__(self, args: BlockArgs, m_tile: int, n_tile: int, k_tile: int) -> None:
        self.args, self.dtype, s = args, args.dtype, args.s
        self.s, self.data, self.weights = s, args.data, args.weights
        tiles = s.m_tiles * s.n_tiles
        outer, inner = args.g // tiles, args.g % tiles
        self.group, self.split = outer // s.splits, outer % s.splits
        # pixels are fastest: concurrent blocks share weights in L2
        self.m0, self.o0 = inner % s.m_tiles * m_tile, inner // s.m_tiles * n_tile
        self.pixels = volume(s.out_size)
        self.m, self.k = s.batch * self.pixels, s.in_channels * volume(s.taps)
        self.first = self.split * s.k_tiles
        self.stop = ir.minimum(self.first + s.k_tiles, (self.k + (k_tile - 1)) // k_tile)

    def store_row(self, m: Expr, columns: Iterable[tuple[Expr, Expr]]) -> list[Stmt]:
        """Epilogue of some (output channel, value) of a pixel."""
        pixels, s = u32(self.pixels), self.s
        image = (u32(m) // pixels).cast(ir.INDEX)
        at = (self.split, self.group, image, as_index(delinearize(u32(m) % pixels, s.out_size)))
        return [
            ir.If((m < self.m) & (o < s.out_channels), self.args.epilogue(*at, o, value))
            for o, value in columns
        ]

    def tap_index(self, start: Expr, offset: Expr) -> tuple[Triple, Expr]:
        """The tap and the channel of a column; all of an aligned K tile are of one tap."""
        index, channels = u32(start if self.s.aligned_k else start + offset), self.s.in_channels
        taps, channel = delinearize(index // u32(channels), self.s.taps), index % u32(channels)
        return taps, channel + u32(offset) if self.s.aligned_k else channel

    def input_index(self, m: Expr, taps: Triple, channel: Expr) -> tuple[Expr, Expr]:
        """Index of an element in the input, and whether it is in bounds."""
        s = self.s
        image, in_bounds = u32(m) // u32(self.pixels), m < self.m
        pixel = delinearize(u32(m) % u32(self.pixels), s.out_size)
        index = image * u32(s.groups) + u32(self.group)
        for i, tap, size, stride, dilation, lhs_dilation, low in zip(
            *(pixel, taps, s.in_size, s.stride, s.dilation, s.lhs_dilation, s.padding_low),
            strict=True,
        ):
            # negative positions wrap around to large ones
            at = i * u32(stride) - u32(low)
            at = at + tap * u32(dilation)
            if lhs_dilation is not ONE:
                in_bounds = in_bounds & (at % u32(lhs_dilation)).eq(0)
                at = at // u32(lhs_dilation)
            in_bounds = in_bounds & (at < u32(size))
            index = index * u32(size) + at
        index = index * u32(s.in_channels) + channel
        # predicated-off loads still translate their address
        return ir.select(in_bounds, index, const(0, dt.uint32)).cast(ir.INDEX), in_bounds
