"""Images in another size: resizing with antialiasing, crops, flips.

Resizing is torchvision's: a separable filter (triangle, or Keys' cubic with a = -0.5) that is as
wide as a pixel of the result. `resized_crop` computes the filter's taps on the device, since each
image has a box of its own; the number of taps is that of the widest box there can be.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import as_real, as_stored, batched, is_channels_last, size_pair, stored

__all__ = [
    "center_crop",
    "crop",
    "horizontal_flip",
    "pad",
    "resize",
    "resized_crop",
    "vertical_flip",
]

MODES = ("nearest", "nearest-exact", "bilinear", "bicubic")


def resize(
    images: ArrayLike,
    size: int | tuple[int, int],
    mode: str = "bilinear",
    *,
    antialias: bool = True,
    max_size: int | None = None,
    layout: str = "CHW",
) -> Tensor:
    """Images in another size.

    Args:
        size: (height, width), or the length of the shorter side.
        mode: "nearest", "nearest-exact", "bilinear" or "bicubic".
        antialias: a smaller image sees all pixels in between ("bilinear" and "bicubic").
        max_size: how long the longer side may become, where `size` is one number.

    >>> x = nm.asarray([[[0, 100, 200, 255]] * 4], dtype=nm.uint8)
    >>> nm.vision.resize(x, 2).tolist()
    [[[71, 209], [71, 209]]]
    """
    op = "resize"
    _require_mode(op, mode)
    x, restore = batched(op, images, layout)
    target = _target(op, x.shape[2], x.shape[3], size, max_size)
    if target == x.shape[2:]:
        return restore(x)
    if mode.startswith("nearest"):
        return restore(nm.interpolate(x, target, mode=mode))
    if x.dtype is nm.uint8 and mode == "bicubic":  # cut off between the passes, as in torchvision
        wide = nm.interpolate(as_real(x), (x.shape[2], target[1]), mode=mode, antialias=antialias)
        x = as_stored(wide, x, rounded=True)
    y = nm.interpolate(as_real(x), target, mode=mode, antialias=antialias)
    return restore(as_stored(y, x, rounded=True, clipped=False))


def _require_mode(op: str, mode: str) -> None:
    if mode not in MODES:
        raise ValueError(f"{op}: no mode {mode!r}; modes: {', '.join(MODES)}")


def _target(op: str, height: int, width: int, size: Any, longest: int | None) -> tuple[int, int]:
    if not isinstance(size, int):
        if longest is not None:
            raise ValueError(f"{op}: max_size is for a size of one number, not {size!r}")
        return size_pair(op, "size", size)
    size_pair(op, "size", size)
    short, long = min(height, width), max(height, width)
    new_short, new_long = size, int(size * long / short)
    if longest is not None:
        if longest <= size:
            raise ValueError(f"{op}: max_size={longest} must be larger than size={size}")
        if new_long > longest:
            new_short, new_long = int(longest * new_short / new_long), longest
    return (new_short, new_long) if height <= width else (new_long, new_short)


# -- crops ----------------------------------------------------------------------------------------


def crop(
    images: ArrayLike, top: Any, left: Any, height: int, width: int, *, layout: str = "CHW"
) -> Tensor:
    """A part of each image. `top` and `left` are integers, or tensors with one for each image;
    beyond the edges it is black.

    >>> nm.vision.crop(nm.arange(9.0).reshape(1, 3, 3), 1, 1, 2, 2).tolist()
    [[[4.0, 5.0], [7.0, 8.0]]]
    """
    op = "crop"
    x, restore = batched(op, images, layout)
    height, width = size_pair(op, "(height, width)", (height, width))
    if isinstance(top, int) and isinstance(left, int):
        h, w = x.shape[2:]
        below, right = top + height - h, left + width - w
        margins = [(max(0, -top), max(0, below)), (max(0, -left), max(0, right))]
        if any(map(any, margins)):
            x = nm.pad(x, [(0, 0), (0, 0), *margins])
        top, left = max(0, top), max(0, left)
        return restore(x[:, :, top : top + height, left : left + width])
    rows, columns = (_lines(op, n, at, x) for n, at in ((height, top), (width, left)))
    y = _read(_read(x, rows, 2), columns, 3)
    return restore(y)


def _lines(op: str, count: int, start: Any, x: Tensor) -> Tensor:
    """Which rows or columns each image reads: (images, count)."""
    starts = nm.asarray(start, dtype=nm.int32, device=x.device)
    if starts.size not in (1, x.shape[0]):
        raise ShapeError(
            f"{op}: {starts.size} positions for {x.shape[0]} images: give one, or one for each"
        )
    starts = nm.broadcast_to(nm.reshape(starts, (-1, 1)), (x.shape[0], 1))
    return starts + nm.arange(count, dtype=nm.int32, device=x.device)


def _read(x: Tensor, lines: Tensor, axis: int) -> Tensor:
    """Rows or columns of each image; black where there are none."""
    shape = (lines.shape[0], 1, *((-1, 1) if axis == 2 else (1, -1)))
    at = nm.reshape(lines, shape)
    n = x.shape[axis]
    read = nm.take_along_axis(x, nm.clip(at, 0, n - 1).astype(nm.uint32), axis=axis)
    return nm.where((at >= 0) & (at < n), read, nm.zeros((), dtype=x.dtype, device=x.device))


def center_crop(images: ArrayLike, size: int | tuple[int, int], *, layout: str = "CHW") -> Tensor:
    """The middle of images; what is larger than they are gets a black margin.

    >>> nm.vision.center_crop(nm.arange(16.0).reshape(1, 4, 4), 2).tolist()
    [[[5.0, 6.0], [9.0, 10.0]]]
    """
    op = "center_crop"
    x, restore = batched(op, images, layout)
    height, width = size_pair(op, "size", size)
    margins = []
    for n, wanted in zip(x.shape[2:], (height, width), strict=True):
        low = max(0, wanted - n) // 2
        margins.append((low, max(0, wanted - n) - low))
    if any(map(any, margins)):
        x = nm.pad(x, [(0, 0), (0, 0), *margins])
    top, left = (
        round((n - wanted) / 2.0) for n, wanted in zip(x.shape[2:], (height, width), strict=True)
    )
    return restore(x[:, :, top : top + height, left : left + width])


def pad(
    images: ArrayLike,
    padding: int | tuple[int, ...],
    fill: float = 0,
    mode: str = "constant",
    *,
    layout: str = "CHW",
) -> Tensor:
    """A margin around images.

    Args:
        padding: of all sides, of (sides, top and bottom), or of (left, top, right, bottom).
        fill: the margin's value, where `mode` is "constant".
        mode: "constant", "edge", "reflect" or "symmetric".

    >>> nm.vision.pad(nm.ones((1, 1, 1)), 1).tolist()
    [[[0.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]]
    """
    x, restore = batched("pad", images, layout)
    sides = (padding,) if isinstance(padding, int) else tuple(padding)
    if len(sides) not in (1, 2, 4) or min(sides) < 0:
        raise ValueError(f"pad: padding must be 1, 2 or 4 widths, not {padding!r}")
    left, top, right, bottom = (sides * (4 // len(sides)))[:4]
    margins = [(0, 0), (0, 0), (top, bottom), (left, right)]
    options: dict[str, Any] = {"constant_values": fill} if mode == "constant" else {}
    return restore(nm.pad(x, margins, mode=mode, **options))


def horizontal_flip(images: ArrayLike, *, layout: str = "CHW") -> Tensor:
    """Images with left and right exchanged.

    >>> nm.vision.horizontal_flip(nm.asarray([[[1.0, 2.0]]])).tolist()
    [[[2.0, 1.0]]]
    """
    x, restore = batched("horizontal_flip", images, layout)
    return restore(nm.flip(x, axis=3))


def vertical_flip(images: ArrayLike, *, layout: str = "CHW") -> Tensor:
    """Images with top and bottom exchanged.

    >>> nm.vision.vertical_flip(nm.asarray([[[1.0], [2.0]]])).tolist()
    [[[2.0], [1.0]]]
    """
    x, restore = batched("vertical_flip", images, layout)
    return restore(nm.flip(x, axis=2))


# -- crops that are resized -----------------------------------------------------------------------


def resized_crop(
    images: ArrayLike,
    top: Any,
    left: Any,
    height: Any,
    width: Any,
    size: int | tuple[int, int],
    mode: str = "bilinear",
    *,
    antialias: bool = True,
    layout: str = "CHW",
) -> Tensor:
    """A box of each image, resized: the same as `crop` and then `resize`.

    The box is given by integers, or by tensors with one for each image; it must lie within.

    >>> x = nm.arange(16.0).reshape(1, 4, 4)
    >>> nm.vision.resized_crop(x, 0, 0, nm.asarray([2]), 2, 1).tolist()
    [[[2.5]]]
    """
    op = "resized_crop"
    x, restore = batched(op, images, layout)
    target = size_pair(op, "size", size)
    rows = Span(top, height, target[0], x.shape[2] / target[0])
    columns = Span(left, width, target[1], x.shape[3] / target[1])
    return restore(resampled(op, x, rows, columns, mode, antialias))


class Span(NamedTuple):
    """Results along an axis of each image, and the part of the image that they are made from.
    Numbers, or tensors with one for each image."""

    start: Any
    extent: Any
    results: int
    widest: float  # the largest extent of a result there can be, in elements
    whole: Any = None  # results that the part gives; None: `results`
    first: Any = 0  # of them


def resampled(op: str, x: Tensor, height: Span, width: Span, mode: str, antialias: bool) -> Tensor:
    """Parts of images (count, channels, height, width) in another size."""
    _require_mode(op, mode)
    rows, columns = (_taps(x, span, mode, antialias) for span in (height, width))
    if mode.startswith("nearest"):
        y = nm.take_along_axis(x, rows[0][:, 0, None, :, None], axis=2)
        return nm.take_along_axis(y, columns[0][:, 0, None, None, :], axis=3)
    last = is_channels_last(x)
    # Stored in between: fused, both passes would read all pairs of taps.
    if x.dtype is nm.uint8 and mode == "bicubic":
        y = as_stored(_weighted(as_real(x), *columns, axis=3, last=last), x, rounded=True)
        y = _weighted(as_real(stored(y)), *rows, axis=2, last=last)
    else:
        y = stored(_weighted(as_real(x), *rows, axis=2, last=last))
        y = _weighted(y, *columns, axis=3, last=last)
    return as_stored(y, x, rounded=True, clipped=False)


def _weighted(x: Tensor, index: Tensor, weight: Tensor, axis: int, last: bool) -> Tensor:
    """The sum over taps (images, taps, results) of what they read, times their weights; `last`:
    channels are read as one, and left next to one another."""
    images = nm.arange(x.shape[0], dtype=nm.uint32, device=x.device).reshape(-1, 1)
    if last:
        x = nm.moveaxis(x, 1, -1)
    total: Tensor | None = None
    for k in range(index.shape[1]):
        at, scale = index[:, k], weight[:, k].astype(x.dtype)
        if axis == 2:  # (images, rows, …): whole rows are read, without a gather
            rows = x[images, at] if last else x[images, :, at]
            part = rows * scale[:, :, None, None]
        elif last:
            read = nm.take_along_axis(x, at[:, None, :, None], axis=2)
            part = read * scale[:, None, :, None]
        else:
            read = nm.take_along_axis(x, at[:, None, None, :], axis=3)
            part = read * scale[:, None, None, :]
        total = part if total is None else total + part
    assert total is not None
    if last:
        return nm.moveaxis(total, -1, 1)
    return nm.moveaxis(total, 1, 2) if axis == 2 else total


def _taps(x: Tensor, span: Span, mode: str, antialias: bool) -> tuple[Tensor, Tensor]:
    """What each result along an axis reads, as (images, taps, results), and weights."""

    def each(value: Any) -> Tensor:
        number = nm.asarray(value, dtype=nm.int32, device=x.device)
        return nm.broadcast_to(nm.reshape(number, (-1, 1, 1)), (x.shape[0], 1, 1))

    begin, extent = each(span.start), each(span.extent)
    i = nm.arange(span.results, dtype=nm.float32, device=x.device)
    if span.whole is None:
        step = extent.astype(nm.float32) / span.results
    else:
        i = i + each(span.first).astype(nm.float32)
        step = extent.astype(nm.float32) / each(span.whole).astype(nm.float32)
    if mode.startswith("nearest"):
        at = ((i + 0.5) if mode == "nearest-exact" else i) * step
        index = begin + nm.minimum(at.astype(nm.int32), extent - 1)
        return nm.copy(index.astype(nm.uint32)), nm.ones_like(at)
    cubic = mode == "bicubic"
    reach = 2.0 if cubic else 1.0
    widest = max(span.widest, 1.0) if antialias else 1.0
    stretch = nm.maximum(step, 1.0) if antialias else 1.0
    center = step * (i + 0.5)
    # pixels whose centres can lie within the filter's support
    k = nm.arange(math.ceil(2 * reach * widest), dtype=nm.int32, device=x.device)
    if antialias:
        first = nm.maximum((center - reach * stretch + 0.5).astype(nm.int32), 0)
        last = nm.minimum((center + reach * stretch + 0.5).astype(nm.int32), extent)
        index = first + nm.reshape(k, (-1, 1))
        distance = (index.astype(nm.float32) - center + 0.5) / stretch
        weight = _cubic(distance, -0.5) if cubic else nm.maximum(1.0 - nm.abs(distance), 0.0)
        weight = nm.where(index < last, weight, 0.0)
        weight = weight / nm.sum(weight, axis=1, keepdims=True)
    else:  # elements beyond an edge are those at the edge
        first = nm.floor(center - 0.5).astype(nm.int32)
        index = first + nm.reshape(k - (1 if cubic else 0), (-1, 1))
        distance = index.astype(nm.float32) - center + 0.5
        weight = _cubic(distance, -0.75) if cubic else nm.maximum(1.0 - nm.abs(distance), 0.0)
    index = begin + nm.clip(index, 0, extent - 1)
    return nm.copy(index.astype(nm.uint32)), nm.copy(weight)


def _cubic(distance: Tensor, a: float) -> Tensor:
    """The weight under cubic convolution of an element at a distance."""
    x = nm.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1.0
    far = (((x - 5.0) * x + 8.0) * x - 4.0) * a
    return nm.where(x <= 1.0, near, nm.where(x < 2.0, far, 0.0))
