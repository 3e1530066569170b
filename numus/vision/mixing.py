"""Images mixed with each other or erased: MixUp (Zhang et al. 2017), CutMix (Yun et al. 2019),
random erasing (Zhong et al. 2017). Each image has a partner: the one before it in the batch.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import as_real, as_stored, batched, chosen, sub_keys, uniform
from numus.vision.size_transforms import random_box
from numus.vision.transform import Transform

__all__ = ["CutMix", "MixUp", "RandomErasing"]


@dataclass
class _Mix:
    """What both have: labels that are mixed as the images are."""

    alpha: float = 1.0
    num_classes: int | None = None
    _: KW_ONLY
    layout: str = "CHW"

    def __call__(
        self, images: ArrayLike, labels: ArrayLike, *, key: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mixed images, and labels (images, classes) that add up to 1."""
        op = type(self).__name__
        x, restore = batched(op, images, self.layout)
        if not self.alpha > 0:
            raise ValueError(f"{op}: alpha must be positive, not {self.alpha}")
        targets = nm.asarray(labels, device=x.device)
        if targets.ndim == 1:
            if self.num_classes is None:
                raise ValueError(f"{op}: labels that are numbers of classes need num_classes=")
            classes = nm.arange(self.num_classes, dtype=targets.dtype, device=x.device)
            targets = (targets[:, None] == classes).astype(nm.float32)
        if targets.ndim != 2 or targets.shape[0] != x.shape[0]:
            raise ShapeError(f"{op}: labels of shape {targets.shape} for {x.shape[0]} images")
        first, second = sub_keys(key, 2)
        share = nm.random.beta(
            (x.shape[0],), self.alpha, self.alpha, dtype=nm.float32, device=x.device, key=first
        )
        y, share = self._mixed(x, share, second)
        share = nm.reshape(share, (-1, 1)).astype(targets.dtype)
        return restore(y), targets * share + nm.roll(targets, 1, axis=0) * (1.0 - share)

    def _mixed(self, x: Tensor, share: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
        """Images, and what share of each is its own."""
        raise TypeError(f"{type(self).__name__} does not say how it mixes")


class MixUp(_Mix):
    """Weighted means of images and partners; weights are Beta(alpha, alpha), one for each image.

    >>> mix = nm.vision.MixUp(0.2, num_classes=10)
    >>> images, labels = mix(nm.ones((4, 3, 8, 8)), nm.arange(4), key=nm.random.key(0))
    >>> images.shape, labels.shape
    ((4, 3, 8, 8), (4, 10))
    """

    def _mixed(self, x: Tensor, share: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
        y = as_real(x)
        own = nm.reshape(share, (-1, 1, 1, 1)).astype(y.dtype)
        return as_stored(y * own + nm.roll(y, 1, axis=0) * (1.0 - own), x, clipped=False), share


class CutMix(_Mix):
    """Images with a box of their partner; its share of the area is 1 - Beta(alpha, alpha).

    >>> mix = nm.vision.CutMix(num_classes=10)
    >>> images, labels = mix(nm.ones((4, 3, 8, 8)), nm.arange(4), key=nm.random.key(0))
    >>> nm.round(labels.sum(axis=1), 4).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

    def _mixed(self, x: Tensor, share: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
        h, w = x.shape[2:]
        half = 0.5 * nm.sqrt(1.0 - share)
        keys = sub_keys(key, 2)
        ends = []
        for n, k in zip((h, w), keys, strict=True):
            at, reach = nm.floor(uniform(x, 0.0, n, k)), nm.floor(half * n)
            ends += [nm.maximum(at - reach, 0.0), nm.minimum(at + reach, float(n))]
        top, bottom, left, right = ends
        inside = _in_box(x, top, left, bottom, right)
        own = 1.0 - (bottom - top) * (right - left) / float(h * w)
        return nm.where(inside, nm.roll(x, 1, axis=0), x), own


def _in_box(x: Tensor, top: Tensor, left: Tensor, bottom: Tensor, right: Tensor) -> Tensor:
    """Which pixels lie in the box of their image."""
    top, left, bottom, right = (nm.reshape(v, (-1, 1, 1, 1)) for v in (top, left, bottom, right))
    rows = nm.arange(x.shape[2], dtype=nm.float32, device=x.device).reshape(-1, 1)
    columns = nm.arange(x.shape[3], dtype=nm.float32, device=x.device)
    return (rows >= top) & (rows < bottom) & (columns >= left) & (columns < right)


@dataclass
class RandomErasing(Transform):
    """A box of each image set to a value, with probability p.

    Args:
        scale: the box's share of the area.
        ratio: its width over its height.
        value: a number, one for each channel, or "random" for normal noise (floats).

    >>> erased = nm.vision.RandomErasing(1.0)(nm.ones((1, 8, 8)), key=nm.random.key(0))
    >>> bool((erased == 0).any())
    True
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: Any = 0.0

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        keys = sub_keys(key, 3)
        box = random_box(x, self.scale, self.ratio, keys[0])
        top, left, height, width = (v.astype(nm.float32) for v in box)
        inside = _in_box(x, top, left, top + height, left + width)
        if isinstance(self.value, str):
            if self.value != "random" or x.dtype is nm.uint8:
                raise ValueError(
                    f"RandomErasing: value={self.value!r} for images of {x.dtype.name}: a number, "
                    "one for each channel, or 'random' for floats"
                )
            other = nm.random.normal(x.shape, dtype=x.dtype, device=x.device, key=keys[2])
        else:
            other = nm.asarray(self.value, dtype=x.dtype, device=x.device).reshape(-1, 1, 1)
            if math.prod(other.shape) not in (1, x.shape[1]):
                raise ShapeError(f"RandomErasing: value={self.value!r} for {x.shape[1]} channels")
        return nm.where(chosen(x, self.p, keys[1]) & inside, other, x)
