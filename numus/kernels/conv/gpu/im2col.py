"""Implicit GEMM operands by TMA's im2col mode (Hopper): rows are the pixels under a tap of windows.

The copy engine walks the windows of channels-last images, row after row and image after image, and
writes zeros for what is outside, so that images are neither padded nor repacked. A tile has 64
channels of one tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, const
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.wgmma import TmaOperand

ZERO = const(0)
CHANNELS = ir.SWIZZLE_BYTES // 2  # of a tile, of 16 bits each


@dataclass(slots=True)
class Windows:
    """Windows over images in memory. Axes of space from the last to the first; sizes and strides
    are launch arguments."""

    buffer: ir.Buffer
    images: Expr
    channels: Expr
    padded_channels: Expr  # a multiple of CHANNELS
    size: Sequence[Expr]
    windows: Sequence[Expr]
    taps: Sequence[Expr]
    strides: Sequence[Expr]  # of space and images, in elements
    step: Sequence[int]
    dilation: Sequence[int]
    lower: Sequence[int]
    upper: Sequence[int]

    def pixels(self, pixels_along_k: bool, extent: Expr) -> TmaOperand:
        """The matrix (windows × images, taps × channels), with rows along k or not."""

        def tensor(origin: Expr, tile_mn: int, batch: Expr) -> ir.TmaTensor:
            k = ir.var("k_of_tile")
            if pixels_along_k:
                parts = range(0, tile_mn, CHANNELS)
                at = [self._coordinates(k, origin + part) for part in parts]
            else:
                at = [self._coordinates(origin, k)]
            extents = (self.channels, *self.size, self.images)
            box = tuple(self.lower), tuple(self.upper), tuple(self.step)
            found = ir.Im2col(extents, tuple(self.strides), *box, k, at)
            ones = (const(1), const(1), const(1)), (const(1), const(1))
            about = (*ones, origin, tile_mn, batch)
            return ir.TmaTensor(self.buffer, not pixels_along_k, *about, im2col=found)

        def read(batch: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Expr:
            return self._element(k, mn, mask) if pixels_along_k else self._element(mn, k, mask)

        aligned = (ir.address(self.buffer) & const(15)).eq(0)
        return TmaOperand(read, extent, not pixels_along_k, tensor, aligned)

    def _coordinates(self, row: Expr, column: Expr) -> tuple[Expr, ...]:
        """Of a tile that begins at a window and a channel of a tap."""
        *pixel, image = _digits(row, self.windows)
        channel, taps = self._tap(column)
        begins = zip(pixel, self.step, self.lower, strict=True)
        first = [i * const(step) + const(low) for i, step, low in begins]
        displaced = [t * const(d) for t, d in zip(taps, self.dilation, strict=True)]
        return (channel, *first, image, *displaced)

    def _tap(self, column: Expr) -> tuple[Expr, list[Expr]]:
        channel, *taps = _digits(column, [self.padded_channels, *self.taps[:-1]])
        return channel, taps

    def _element(self, row: Expr, column: Expr, mask: Expr | None) -> Expr:
        channel, *first, image = self._coordinates(row, column)[: 2 + len(self.size)]
        displaced = self._coordinates(row, column)[2 + len(self.size) :]
        inside = (channel < self.channels) & (image < self.images)
        inside = inside if mask is None else inside & mask
        index = image * self.strides[-1] + channel
        for begin, tap, size, stride in zip(
            first, displaced, self.size, self.strides[:-1], strict=True
        ):
            at = begin + tap
            inside = inside & (at >= 0) & (at < size)
            index = index + at * stride
        value = ir.load(self.buffer, ir.select(inside, index, ZERO), inside)
        return ir.select(inside, value, zero(self.buffer.dtype))


def _digits(number: Expr, sizes: Sequence[Expr]) -> list[Expr]:
    """A number in mixed radix, the quickest digit first; divided in 32 bits."""
    rest, out = number.cast(dt.uint32), []
    for size in sizes:
        size = size.cast(dt.uint32)
        out.append((rest % size).cast(ir.INDEX))
        rest = rest // size
    return [*out, rest.cast(ir.INDEX)]
