"""Colours of images: brightness, contrast, saturation, hue, and the tables of AutoAugment.

Values are torchvision's: weights of grey are those of ITU-R 601-2, uint8 is cut, not rounded. The
hue is shifted without leaving RGB: with the largest channel v, the range c of the channels and the
hue h in sixths of a circle, channel number n of (5, 3, 1) is v - c max(0, min(k, 4 - k, 1)) for
k = (n + h) mod 6.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import (
    Number,
    as_real,
    as_stored,
    batched,
    bound,
    per_image,
    quantized,
    require_colours,
)

__all__ = [
    "adjust_brightness",
    "adjust_contrast",
    "adjust_hue",
    "adjust_saturation",
    "autocontrast",
    "equalize",
    "invert",
    "normalize",
    "posterize",
    "rgb_to_grayscale",
    "solarize",
]

GREY_WEIGHTS = (0.2989, 0.587, 0.114)


def adjust_brightness(images: ArrayLike, factor: Any, *, layout: str = "CHW") -> Tensor:
    """Images times a factor (of one number, or one for each image); 0 is black, 1 changes nothing.

    >>> nm.vision.adjust_brightness(nm.full((1, 1, 1), 0.25), 2.0).item()
    0.5
    """
    x, restore = batched("adjust_brightness", images, layout)
    return restore(brightened(x, per_image("adjust_brightness", "factor", factor, x)))


def adjust_contrast(images: ArrayLike, factor: Any, *, layout: str = "CHW") -> Tensor:
    """Images between their mean grey (factor 0), themselves (1) and beyond.

    >>> nm.vision.adjust_contrast(nm.asarray([[[0.25, 0.75]]]), 0.5).tolist()
    [[[0.375, 0.625]]]
    """
    op = "adjust_contrast"
    x, restore = batched(op, images, layout)
    require_colours(op, x)
    return restore(contrasted(x, per_image(op, "factor", factor, x)))


def adjust_saturation(images: ArrayLike, factor: Any, *, layout: str = "CHW") -> Tensor:
    """Images between grey (factor 0), themselves (1) and beyond.

    >>> nm.vision.adjust_saturation(nm.ones((3, 1, 1)), 0.0).shape
    (3, 1, 1)
    """
    op = "adjust_saturation"
    x, restore = batched(op, images, layout)
    require_colours(op, x)
    return restore(saturated(x, per_image(op, "factor", factor, x)))


def adjust_hue(images: ArrayLike, shift: Any, *, layout: str = "CHW") -> Tensor:
    """Images whose hues are shifted by a part of the circle, from -0.5 to 0.5.

    >>> red = nm.asarray([1.0, 0.0, 0.0]).reshape(3, 1, 1)
    >>> nm.round(nm.vision.adjust_hue(red, 1 / 3), 3).ravel().tolist()
    [0.0, 1.0, 0.0]
    """
    op = "adjust_hue"
    x, restore = batched(op, images, layout)
    require_colours(op, x)
    return restore(shifted(x, per_image(op, "shift", shift, x)))


def rgb_to_grayscale(images: ArrayLike, channels: int = 1, *, layout: str = "CHW") -> Tensor:
    """Grey images, of one channel or of three equal ones.

    >>> nm.vision.rgb_to_grayscale(nm.full((3, 1, 1), 100, dtype=nm.uint8)).tolist()
    [[[99]]]
    """
    op = "rgb_to_grayscale"
    x, restore = batched(op, images, layout)
    require_colours(op, x)
    if channels not in (1, 3):
        raise ValueError(f"{op}: channels must be 1 or 3, not {channels}")
    y = x if x.shape[1] == 1 else as_stored(grey(x), x, clipped=False)
    return restore(nm.broadcast_to(y, (x.shape[0], channels, *x.shape[2:])))


def invert(images: ArrayLike, *, layout: str = "CHW") -> Tensor:
    """White less the image.

    >>> nm.vision.invert(nm.full((1, 1, 1), 255, dtype=nm.uint8)).item()
    0
    """
    x, restore = batched("invert", images, layout)
    return restore(inverted(x))


def posterize(images: ArrayLike, bits: Any, *, layout: str = "CHW") -> Tensor:
    """Images with fewer levels of brightness: 2 to the power of `bits`.

    >>> nm.vision.posterize(nm.full((1, 1, 1), 255, dtype=nm.uint8), 1).item()
    128
    """
    x, restore = batched("posterize", images, layout)
    return restore(posterized(x, per_image("posterize", "bits", bits, x)))


def solarize(images: ArrayLike, threshold: Any, *, layout: str = "CHW") -> Tensor:
    """Images inverted where they are at least as bright as a threshold.

    >>> nm.vision.solarize(nm.asarray([[[0.25, 0.75]]]), 0.5).tolist()
    [[[0.25, 0.25]]]
    """
    x, restore = batched("solarize", images, layout)
    return restore(solarized(x, per_image("solarize", "threshold", threshold, x)))


def autocontrast(images: ArrayLike, *, layout: str = "CHW") -> Tensor:
    """Images whose darkest value in each channel becomes black, and the brightest white.

    >>> nm.vision.autocontrast(nm.asarray([[[0.25, 0.75]]])).tolist()
    [[[0.0, 1.0]]]
    """
    x, restore = batched("autocontrast", images, layout)
    return restore(stretched(x))


def equalize(images: ArrayLike, *, layout: str = "CHW") -> Tensor:
    """Images whose histogram is flat in each channel, as Pillow's; floats go through uint8.

    >>> x = (nm.arange(1024) // 256).astype(nm.uint8).reshape(1, 4, 256)
    >>> nm.vision.equalize(x)[0, :, 0].tolist()
    [0, 85, 171, 255]
    """
    x, restore = batched("equalize", images, layout)
    return restore(equalized(x))


def normalize(images: ArrayLike, mean: Any, std: Any, *, layout: str = "CHW") -> Tensor:
    """(images - mean) / std, with one mean and deviation for each channel; uint8 counts as 0 to 1.

    >>> nm.vision.normalize(nm.ones((1, 1, 1)), [0.5], [0.25]).item()
    2.0
    """
    x, restore = batched("normalize", images, layout)
    return restore(standardized(x, mean, std))


# -- on (count, channels, height, width) ----------------------------------------------------------


def standardized(x: Tensor, mean: Any, std: Any) -> Tensor:
    white = bound(x)
    y = as_real(x)
    scale, offset = (
        nm.asarray(v, dtype=y.dtype, device=x.device).reshape(-1, 1, 1) for v in (std, mean)
    )
    for name, v in (("mean", offset), ("std", scale)):
        if v.shape[0] not in (1, x.shape[1]):
            raise ShapeError(f"normalize: {v.shape[0]} numbers as {name} for {x.shape[1]} channels")
    y = y / white if white != 1.0 else y
    return (y - offset) / scale


def grey(x: Tensor) -> Tensor:
    """One channel of computed values; those of uint8 are whole numbers."""
    y = as_real(x)
    if x.shape[1] == 1:
        return y
    r, g, b = (y[:, i : i + 1] * w for i, w in enumerate(GREY_WEIGHTS))
    mixed = r + g + b
    return nm.floor(mixed) if x.dtype is nm.uint8 else mixed


def blended(x: Tensor, other: Tensor | float, factor: Number) -> Tensor:
    """Other where the factor is 0, x where it is 1, cut off at black and white."""
    return as_stored(as_real(x) * factor + other * (1.0 - factor), x)


def brightened(x: Tensor, factor: Number) -> Tensor:
    return as_stored(as_real(x) * factor, x)


def contrasted(x: Tensor, factor: Number) -> Tensor:
    return blended(x, nm.mean(grey(x), axis=(1, 2, 3), keepdims=True), factor)


def saturated(x: Tensor, factor: Number) -> Tensor:
    return x if x.shape[1] == 1 else blended(x, grey(x), factor)


def shifted(x: Tensor, shift: Number) -> Tensor:
    if x.shape[1] == 1:
        return x
    y = as_real(x)
    r, g, b = (y[:, i : i + 1] for i in range(3))
    high = nm.maximum(nm.maximum(r, g), b)
    span = high - nm.minimum(nm.minimum(r, g), b)
    inverse = 1.0 / nm.where(span == 0, 1.0, span)
    sector = nm.where(high == g, (b - r) * inverse + 2.0, (r - g) * inverse + 4.0)
    sector = nm.where(high == r, (g - b) * inverse, sector)
    n = 5.0 - 2.0 * nm.arange(3, dtype=y.dtype, device=x.device).reshape(3, 1, 1)
    turns = (sector + n) * (1.0 / 6.0) + shift
    k = 6.0 * (turns - nm.floor(turns))
    share = nm.clip(nm.minimum(k, 4.0 - k), 0.0, 1.0)
    y = high - span * share
    if x.dtype is nm.uint8:
        return nm.clip(y * ((256.0 - 1e-3) / 255.0), 0, 255).astype(nm.uint8)
    return y


def inverted(x: Tensor) -> Tensor:
    return 255 - x if x.dtype is nm.uint8 else 1.0 - x


def posterized(x: Tensor, bits: Number) -> Tensor:
    levels = nm.exp2(bits) if isinstance(bits, Tensor) else 2.0**bits
    if x.dtype is nm.uint8:
        step = 256.0 / levels
        return (nm.floor(as_real(x) / step) * step).astype(nm.uint8)
    return nm.clip(nm.floor(x * levels), 0.0, levels - 1.0) / levels


def solarized(x: Tensor, threshold: Number) -> Tensor:
    return nm.where(as_real(x) >= threshold, inverted(x), x)


def stretched(x: Tensor) -> Tensor:
    y = as_real(x)
    low, high = (f(y, axis=(2, 3), keepdims=True) for f in (nm.min, nm.max))
    flat = high == low
    scale = nm.where(flat, 1.0, (high - low) * (1.0 / bound(x)))
    return as_stored((y - nm.where(flat, 0.0, low)) / scale, x)


def equalized(x: Tensor) -> Tensor:
    if x.dtype is not nm.uint8:
        return equalized(quantized(x)).astype(x.dtype) / 255.0
    n, c, h, w = x.shape
    rows = nm.reshape(x, (n * c, h * w)).astype(nm.int32)
    row = nm.arange(n * c, dtype=nm.int32, device=x.device).reshape(-1, 1)
    ones = nm.ones((n * c * h * w,), dtype=nm.int32, device=x.device)
    counts = nm.segment_sum(ones, nm.reshape(row * 256 + rows, (-1,)), n * c * 256)
    counts = nm.reshape(counts, (n * c, 256)).astype(nm.int32)
    levels = nm.arange(256, dtype=nm.int32, device=x.device)
    brightest = nm.max(nm.where(counts > 0, levels, 0), axis=1, keepdims=True)
    step = (h * w - nm.sum(nm.where(levels == brightest, counts, 0), axis=1, keepdims=True)) // 255
    below = nm.cumsum(counts, axis=1).astype(nm.int32) - counts  # pixels of lower levels
    table = (below + step // 2) // nm.maximum(step, 1)
    table = nm.where(step == 0, levels, nm.clip(table, 0, 255)).astype(nm.uint8)
    found = nm.take_along_axis(table, rows.astype(nm.uint32), axis=1)
    return nm.reshape(found, x.shape)
