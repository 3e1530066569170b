"""Filters of images: Gaussian blur, sharpness."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import Number, as_real, as_stored, batched, per_image

__all__ = ["adjust_sharpness", "gaussian_blur"]


def gaussian_blur(
    images: ArrayLike,
    kernel_size: int | tuple[int, int],
    sigma: Any = None,
    *,
    layout: str = "CHW",
) -> Tensor:
    """Images smoothed by a Gaussian, mirrored at their edges.

    Args:
        kernel_size: pixels that count, an odd number, or two of them for (width, height).
        sigma: the deviation in pixels, one number or one for each image; by default
            0.15 kernel_size + 0.35.

    >>> x = nm.zeros((1, 3, 3)).at[0, 1, 1].set(1.0)
    >>> round(nm.vision.gaussian_blur(x, 3, 0.5)[0, 1, 1].item(), 4)
    0.6193
    """
    op = "gaussian_blur"
    x, restore = batched(op, images, layout)
    sizes = (kernel_size,) * 2 if isinstance(kernel_size, int) else tuple(kernel_size)
    if len(sizes) != 2 or any(k < 1 or k % 2 == 0 for k in sizes):
        raise ValueError(f"{op}: kernel_size must be one or two odd numbers, not {kernel_size!r}")
    if sigma is not None and not isinstance(sigma, Tensor) and not nm.all(nm.asarray(sigma) > 0):
        raise ValueError(f"{op}: sigma must be positive, not {sigma!r}")
    return restore(blurred(x, sizes, None if sigma is None else per_image(op, "sigma", sigma, x)))


def adjust_sharpness(images: ArrayLike, factor: Any, *, layout: str = "CHW") -> Tensor:
    """Images between a smoothed one (factor 0), themselves (1) and sharper ones.

    >>> nm.vision.adjust_sharpness(nm.ones((1, 3, 3)), 2.0)[0, 1, 1].item()
    1.0
    """
    op = "adjust_sharpness"
    x, restore = batched(op, images, layout)
    factor = per_image(op, "factor", factor, x)
    return restore(as_stored(smoothed(x) * (1.0 - factor) + as_real(x) * factor, x))


def blurred(x: Tensor, sizes: tuple[int, ...], sigma: Number | None) -> Tensor:
    y = as_real(x)
    for axis, k in ((3, sizes[0]), (2, sizes[1])):
        half = k // 2
        if half >= x.shape[axis]:
            raise ShapeError(
                f"gaussian_blur: {k} pixels need images of more than {half} along each axis, not "
                f"shape {x.shape}"
            )
        margins = [(half, half) if i == axis else (0, 0) for i in range(4)]
        padded = nm.pad(y, margins, mode="reflect") if half else y
        deviation = k * 0.15 + 0.35 if sigma is None else sigma
        distances = [(i - half) / math.sqrt(2.0) for i in range(k)]
        if isinstance(deviation, Tensor):
            weights: list[Any] = [
                nm.exp(-((d / deviation) ** 2)).astype(y.dtype) for d in distances
            ]
        else:
            weights = [math.exp(-((d / deviation) ** 2)) for d in distances]
        total = sum(weights[1:], weights[0])
        y = sum(
            (part(padded, axis, i, x.shape[axis]) * (w / total) for i, w in enumerate(weights)),
            start=nm.zeros((), dtype=y.dtype, device=x.device),
        )
    return as_stored(y, x, rounded=True, clipped=False)


def part(x: Tensor, axis: int, start: int, count: int) -> Tensor:
    """`count` elements along an axis."""
    return x[(slice(None),) * axis + (slice(start, start + count),)]


def smoothed(x: Tensor) -> Tensor:
    """The inner pixels averaged with their eight neighbours, at five times their weight."""
    y = as_real(x)
    h, w = x.shape[2:]
    if h <= 2 or w <= 2:
        return y
    rows = part(y, 2, 0, h - 2) + part(y, 2, 1, h - 2) + part(y, 2, 2, h - 2)
    around = part(rows, 3, 0, w - 2) + part(rows, 3, 1, w - 2) + part(rows, 3, 2, w - 2)
    mean = (around + 4.0 * y[:, :, 1:-1, 1:-1]) * (1.0 / 13.0)
    mean = nm.round(mean) if x.dtype is nm.uint8 else mean
    i, j = nm.arange(h, device=x.device).reshape(-1, 1), nm.arange(w, device=x.device)
    inside = (i > 0) & (i < h - 1) & (j > 0) & (j < w - 1)
    return nm.where(inside, nm.pad(mean, [(0, 0), (0, 0), (1, 1), (1, 1)]), y)
