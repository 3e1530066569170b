"""Transformations of sizes: resizing, crops, margins.

Those that give all images one size also take pictures of different sizes (`pictures.py`).
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor
from numus.vision import sizes
from numus.vision.images import size_pair, sub_keys, uniform
from numus.vision.pictures import Pictures, Resizing
from numus.vision.transform import Transform

__all__ = ["CenterCrop", "Pad", "RandomCrop", "RandomResizedCrop", "Resize"]


@dataclass
class Resize(Transform):
    """`resize` to a size.

    >>> nm.vision.Resize(4)(nm.zeros((3, 8, 16))).shape
    (3, 4, 8)
    """

    size: int | tuple[int, int]
    mode: str = "bilinear"
    _: KW_ONLY
    antialias: bool = True
    max_size: int | None = None

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return sizes.resize(
            x, self.size, self.mode, antialias=self.antialias, max_size=self.max_size
        )

    def apply_pictures(self, pictures: Pictures, key: Tensor | None) -> Tensor | Pictures:
        if self.max_size is not None or pictures.resizing is not None:
            return super().apply_pictures(pictures, key)
        if isinstance(self.size, int):
            (shortest, _) = size_pair("Resize", "size", self.size)
            return replace(pictures, resizing=Resizing(shortest, self.mode, self.antialias))
        x, target = pictures.images, size_pair("Resize", "size", self.size)
        height, width = (
            sizes.Span(0, extent, n, most / n)
            for extent, n, most in zip(_extents(pictures), target, x.shape[2:], strict=True)
        )
        return sizes.resampled("Resize", x, height, width, self.mode, self.antialias)


@dataclass
class CenterCrop(Transform):
    """The middle of images.

    >>> nm.vision.CenterCrop(4)(nm.zeros((3, 8, 8))).shape
    (3, 4, 4)
    """

    size: int | tuple[int, int]

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return sizes.center_crop(x, self.size)

    def apply_pictures(self, pictures: Pictures, key: Tensor | None) -> Tensor | Pictures:
        x, how, size = (
            pictures.images,
            pictures.resizing,
            size_pair("CenterCrop", "size", self.size),
        )
        extents = _extents(pictures)
        if how is None:
            top, left = (_middle(n, wanted) for n, wanted in zip(extents, size, strict=True))
            return sizes.crop(x, top, left, *size)
        if max(size) > how.shortest:
            raise ShapeError(
                f"CenterCrop: a shorter side of {how.shortest} has no part of {size}: resize "
                "pictures of different sizes to a larger one"
            )
        shortest = nm.minimum(*extents)
        widest = min(x.shape[2:]) / how.shortest
        wholes = (extent * how.shortest // shortest for extent in extents)
        height, width = (
            sizes.Span(0, extent, wanted, widest, whole, _middle(whole, wanted))
            for extent, wanted, whole in zip(extents, size, wholes, strict=True)
        )
        return sizes.resampled("Resize", x, height, width, how.mode, how.antialias)


def _extents(pictures: Pictures) -> tuple[Tensor, Tensor]:
    return pictures.heights, pictures.widths


def _middle(n: Tensor, wanted: int) -> Tensor:
    """Where the middle part of `wanted` elements begins; before the first one, if there are few."""
    inside = nm.round((n - wanted).astype(nm.float32) / 2.0).astype(nm.int32)
    return nm.where(n >= wanted, inside, -((wanted - n) // 2))


@dataclass
class Pad(Transform):
    """A margin around images.

    >>> nm.vision.Pad(2)(nm.zeros((3, 8, 8))).shape
    (3, 12, 12)
    """

    padding: int | tuple[int, ...]
    fill: float = 0
    mode: str = "constant"

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        return sizes.pad(x, self.padding, self.fill, self.mode)


@dataclass
class RandomCrop(Transform):
    """A part of each image at a random place, after an optional margin.

    >>> nm.vision.RandomCrop(8, padding=2)(nm.zeros((3, 8, 8))).shape
    (3, 8, 8)
    """

    size: int | tuple[int, int]
    _: KW_ONLY
    padding: int | tuple[int, ...] = 0
    fill: float = 0
    mode: str = "constant"

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        height, width = size_pair("RandomCrop", "size", self.size)
        x = sizes.pad(x, self.padding, self.fill, self.mode) if self.padding else x
        if x.shape[2] < height or x.shape[3] < width:
            raise ValueError(
                f"RandomCrop: images of {x.shape[2:]} have no part of {(height, width)}; "
                "padding= gives them a margin"
            )
        top, left = (
            nm.minimum(nm.floor(uniform(x, 0.0, 1.0, k) * (n + 1)), n).astype(nm.int32)
            for n, k in zip(
                (x.shape[2] - height, x.shape[3] - width), sub_keys(key, 2), strict=True
            )
        )
        return sizes.crop(x, top, left, height, width)


@dataclass
class RandomResizedCrop(Transform):
    """A box of random area and aspect ratio, resized: the crop of Inception's training.

    Args:
        scale: the box's share of the area.
        ratio: its width over its height; logarithms are drawn evenly.

    >>> crop = nm.vision.RandomResizedCrop(4)
    >>> crop(nm.zeros((2, 3, 16, 12)), key=nm.random.key(0)).shape
    (2, 3, 4, 4)
    """

    size: int | tuple[int, int]
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mode: str = "bilinear"
    _: KW_ONLY
    antialias: bool = True

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        box = random_box(x, self.scale, self.ratio, key)
        return sizes.resized_crop(x, *box, self.size, self.mode, antialias=self.antialias)

    def apply_pictures(self, pictures: Pictures, key: Tensor | None) -> Tensor | Pictures:
        if pictures.resizing is not None:
            return super().apply_pictures(pictures, key)
        x = pictures.images
        box = random_box(x, self.scale, self.ratio, key, _extents(pictures))
        return sizes.resized_crop(x, *box, self.size, self.mode, antialias=self.antialias)


TRIES = 10  # boxes drawn before the middle of the image is taken, as in torchvision


def random_box(
    x: Tensor,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    key: Tensor | None,
    extents: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(top, left, height, width) of each image: the first box that fits of several drawn.
    `extents`: heights and widths, where they differ from image to image."""
    keys = sub_keys(key, 4)
    if extents is None:
        height, width = (nm.full((1,), n, device=x.device) for n in x.shape[2:])
        extents = height, width
    h, w = (nm.reshape(n, (-1, 1)).astype(nm.float32) for n in extents)
    area = uniform(x, *scale, keys[0], TRIES) * (h * w)
    aspect = nm.exp(uniform(x, math.log(ratio[0]), math.log(ratio[1]), keys[1], TRIES))
    widths, heights = nm.round(nm.sqrt(area * aspect)), nm.round(nm.sqrt(area / aspect))
    fits = (widths >= 1) & (widths <= w) & (heights >= 1) & (heights <= h)
    first = nm.argmax(fits.astype(nm.int32), axis=1, keepdims=True)
    found = nm.any(fits, axis=1, keepdims=True)
    # none fits: the largest box in the middle whose ratio is allowed
    middle = nm.minimum(h, nm.round(w / ratio[0])), nm.minimum(w, nm.round(h * ratio[1]))
    height, width = (
        nm.where(found, nm.take_along_axis(v, first, axis=1), m)
        for v, m in zip((heights, widths), middle, strict=True)
    )
    place = [uniform(x, 0.0, 1.0, k, 1) for k in keys[2:]]
    top, left = (
        nm.where(found, nm.minimum(nm.floor(u * (n - v + 1.0)), n - v), nm.floor((n - v) * 0.5))
        for u, n, v in zip(place, (h, w), (height, width), strict=True)
    )
    top, left, height, width = (v[:, 0].astype(nm.int32) for v in (top, left, height, width))
    return top, left, height, width
