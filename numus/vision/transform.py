"""Transformations as objects: `transform(images, key=key)`, the same images for the same key.

Random parameters are drawn for each image of a batch, on its device, so that a transformation, or
a `Compose` of many, is one program under `nm.jit`. Without a key they are drawn from the generator
of `nm.random`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numus as nm
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import batched, chosen, sub_keys

__all__ = ["Compose", "RandomApply", "Transform"]


@dataclass
class Transform:
    """A transformation of images (…, channels, height, width), or as `layout` says.

    A subclass defines `apply`, which takes and returns (count, channels, height, width).

    >>> class Darken(nm.vision.Transform):
    ...     def apply(self, x, key):
    ...         return x * 0.5
    >>> Darken()(nm.ones((3, 1, 1))).ravel().tolist()
    [0.5, 0.5, 0.5]
    """

    _: KW_ONLY
    layout: str = "CHW"

    def __call__(self, images: ArrayLike, *, key: Tensor | None = None) -> Tensor:
        """Transformed images."""
        x, restore = batched(type(self).__name__, images, self.layout)
        return restore(self.apply(x, key))

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        """Transform images of shape (count, channels, height, width)."""
        raise TypeError(f"{type(self).__name__} does not say what it does: define apply(x, key)")


def applied(transform: Any, x: Tensor, key: Tensor | None) -> Tensor:
    """A transformation, or any function of images, on (count, channels, height, width)."""
    return transform.apply(x, key) if isinstance(transform, Transform) else transform(x)


@dataclass
class Compose(Transform):
    """Transformations one after the other; each gets a key of its own.

    Args:
        transforms: `Transform`s, or functions of (count, channels, height, width).
        layout: of the images it is called with.
        output_layout: of the result; by default the same.

    >>> steps = [nm.vision.Resize(4), nm.vision.RandomHorizontalFlip(), nm.vision.ToFloat()]
    >>> transform = nm.vision.Compose(steps, layout="HWC", output_layout="CHW")
    >>> images = nm.zeros((2, 8, 8, 3), dtype=nm.uint8)
    >>> transform(images, key=nm.random.key(0)).shape
    (2, 3, 4, 4)
    """

    transforms: Sequence[Transform | Callable[[Tensor], Tensor]]
    _: KW_ONLY
    output_layout: str | None = None

    def __call__(self, images: ArrayLike, *, key: Tensor | None = None) -> Tensor:
        """Transformed images."""
        y = super().__call__(images, key=key)
        axes = (self.layout, self.output_layout or self.layout)
        if axes == ("HWC", "CHW"):
            return nm.moveaxis(y, -1, -3)
        return nm.moveaxis(y, -3, -1) if axes == ("CHW", "HWC") else y

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        for i, transform in enumerate(self.transforms):
            x = applied(transform, x, None if key is None else nm.random.fold_in(key, i))
        return x


@dataclass
class RandomApply(Transform):
    """A transformation that keeps sizes, applied to each image with probability p.

    >>> blur = nm.vision.RandomApply(nm.vision.GaussianBlur(3), p=0.5)
    >>> blur(nm.zeros((4, 3, 8, 8)), key=nm.random.key(1)).shape
    (4, 3, 8, 8)
    """

    transform: Transform | Callable[[Tensor], Tensor]
    p: float = 0.5

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        first, second = sub_keys(key, 2)
        return nm.where(chosen(x, self.p, first), applied(self.transform, x, second), x)
