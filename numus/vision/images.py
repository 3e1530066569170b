"""Images as tensors: layouts, ranges of values, and parameters that differ from image to image.

Images are (…, channels, height, width), or (…, height, width, channels) where `layout="HWC"` says
so; uint8 from 0 to 255, or floats from 0 to 1. Any axes before these are axes of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.tensor import ArrayLike, Tensor

__all__ = ["to_float", "to_uint8"]

LAYOUTS = ("CHW", "HWC")
Number = float | Tensor


def batched(
    op: str, images: ArrayLike, layout: str = "CHW"
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Images as (count, channels, height, width), and the way back to the axes they came with."""
    if isinstance(images, (list, tuple)):
        shapes = list(dict.fromkeys(getattr(x, "shape", ()) for x in images))
        if len(shapes) > 1 and all(len(s) == 3 for s in shapes):
            raise ShapeError(
                f"{op}: pictures of shapes {shapes[0]} and {shapes[1]} are no batch: resize or "
                "crop each to one size first, best where they are decoded"
            )
    x = nm.asarray(images)
    if layout not in LAYOUTS:
        raise ValueError(f"{op}: layout must be 'CHW' or 'HWC', not {layout!r}")
    if x.ndim < 3:
        axes = "channels, height, width" if layout == "CHW" else "height, width, channels"
        raise ShapeError(f"{op}: takes images (…, {axes}), not shape {x.shape}")
    if x.dtype is not nm.uint8 and not nm.isdtype(x.dtype, "real floating"):
        raise DTypeError(
            f"{op}: takes images of uint8 (0 … 255) or of floats (0 … 1), not {x.dtype.name}; "
            "cast them with astype"
        )
    lead = x.shape[:-3]

    def restore(y: Tensor) -> Tensor:
        y = nm.moveaxis(y, -3, -1) if layout == "HWC" else y
        return nm.reshape(y, (*lead, *y.shape[1:]))

    x = nm.reshape(x, (math.prod(lead), *x.shape[-3:]))
    return (nm.moveaxis(x, -1, 1) if layout == "HWC" else x), restore


def is_channels_last(x: Tensor) -> bool:
    """True if the channels of (count, channels, height, width) are next to one another in memory,
    as those of `layout="HWC"` are."""
    node = x._node
    if node.view is not None:
        return x.shape[1] > 1 and node.view.strides[1] == 1
    return node.prim.name == "permute" and node.params == (0, 3, 1, 2)


def bound(x: Tensor) -> float:
    """The largest value of an image's dtype: white."""
    return 255.0 if x.dtype is nm.uint8 else 1.0


def as_real(x: Tensor) -> Tensor:
    """Values to compute with: those of uint8 as float32, floats as they are."""
    return x.astype(nm.float32) if x.dtype is nm.uint8 else x


def as_stored(y: Tensor, like: Tensor, *, rounded: bool = False, clipped: bool = True) -> Tensor:
    """Computed values in the dtype of an image, within its range."""
    if like.dtype is nm.uint8:
        y = nm.round(y) if rounded else y
        return nm.clip(y, 0, 255).astype(nm.uint8)
    return nm.clip(y, 0.0, 1.0) if clipped else y


def stored(x: Tensor) -> Tensor:
    """The same values in memory, channels where they were: what reads them several times does not
    compute them anew."""
    if x._node.view is not None or x._node.prim.kind == "source":
        return x
    if is_channels_last(x):
        return nm.moveaxis(nm.copy(nm.moveaxis(x, 1, -1)), -1, 1)
    return nm.copy(x)


def per_image(op: str, name: str, value: Any, x: Tensor) -> Number:
    """A parameter that is one number, or one for each image as (count, 1, 1, 1)."""
    if isinstance(value, (int, float)):
        return float(value)
    given = nm.asarray(value)
    if given.ndim == 0:
        return given
    if given.size != x.shape[0]:
        raise ShapeError(
            f"{op}: {name} of shape {given.shape} for {x.shape[0]} images: give one number, or one "
            "for each image"
        )
    return nm.reshape(given, (-1, 1, 1, 1))


def require_colours(op: str, x: Tensor) -> None:
    """An error unless images are grey or of three colours."""
    if x.shape[1] not in (1, 3):
        raise ShapeError(f"{op}: takes images of 1 or 3 channels, not {x.shape[1]}")


def size_pair(op: str, name: str, size: Any) -> tuple[int, int]:
    """(height, width) from a number or a pair of them."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(n, int) and n > 0 for n in pair):
        raise ValueError(
            f"{op}: {name} must be a positive integer or (height, width), not {size!r}"
        )
    return pair[0], pair[1]


def sub_keys(key: Tensor | None, count: int) -> Sequence[Tensor | None]:
    """Keys for several draws; without a key, each draws from the generator."""
    if key is None:
        return [None] * count
    keys = nm.random.split(key, count)
    return [keys[i] for i in range(count)]


def uniform(x: Tensor, low: float, high: float, key: Tensor | None, *shape: int) -> Tensor:
    """A number for each image (or several of them), on the images' device."""
    return nm.random.uniform(
        (x.shape[0], *shape), low, high, dtype=nm.float32, device=x.device, key=key
    )


def chosen(x: Tensor, p: float, key: Tensor | None) -> Tensor:
    """Which images a transformation of probability p applies to, as (count, 1, 1, 1)."""
    return nm.reshape(uniform(x, 0.0, 1.0, key) < p, (-1, 1, 1, 1))


def to_float(images: ArrayLike, dtype: Any = nm.float32) -> Tensor:
    """Images as floats from 0 to 1: uint8 is divided by 255.

    >>> nm.vision.to_float(nm.asarray([[[0, 51]]], dtype=nm.uint8)).tolist()
    [[[0.0, 0.20000000298023224]]]
    """
    x, restore = batched("to_float", images)
    return restore(x.astype(dtype) / 255.0 if x.dtype is nm.uint8 else x.astype(dtype))


def to_uint8(images: ArrayLike) -> Tensor:
    """Images as uint8: floats from 0 to 1 in 256 steps of equal width, as torchvision cuts them.

    >>> nm.vision.to_uint8(nm.asarray([[[0.0, 0.5, 1.0]]])).tolist()
    [[[0, 127, 255]]]
    """
    x, restore = batched("to_uint8", images)
    return restore(x if x.dtype is nm.uint8 else quantized(x))


def quantized(x: Tensor) -> Tensor:
    """Floats from 0 to 1 as uint8."""
    return nm.clip(x * (256.0 - 1e-3), 0, 255).astype(nm.uint8)
