"""Transformations as objects: `transform(images, key=key)`, the same images for the same key.

Random parameters are drawn for each image of a batch, on its device, so that a transformation, or
a `Compose` of many, is one program under `nm.jit`. Without a key they are drawn from the generator
of `nm.random`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import Tensor
from numus.vision.images import batched, chosen, sub_keys
from numus.vision.pictures import Pictures, are_unequal, canvases

__all__ = ["Compose", "RandomApply", "Transform"]


@dataclass
class Transform:
    """A transformation of images (…, channels, height, width), or as `layout` says.

    A subclass defines `apply`, which takes and returns (count, channels, height, width); one that
    gives pictures of different sizes one size, `apply_pictures` as well.

    >>> class Darken(nm.vision.Transform):
    ...     def apply(self, x, key):
    ...         return x * 0.5
    >>> Darken()(nm.ones((3, 1, 1))).ravel().tolist()
    [0.5, 0.5, 0.5]
    """

    _: KW_ONLY
    layout: str = "CHW"

    def __call__(self, images: Any, *, key: Tensor | None = None) -> Tensor:
        """Transformed images."""
        if are_unequal(images):
            return self._of_pictures(images, key)
        x, restore = batched(type(self).__name__, images, self.layout)
        return restore(self.apply(x, key))

    def _of_pictures(self, images: Sequence[Any], key: Tensor | None) -> Tensor:
        """A batch, of pictures of different sizes: one program for each canvas."""
        numbers: list[int] = []
        parts = []
        for i, (group, canvas, extents) in enumerate(canvases(self._name, images, self.layout)):
            numbers += group
            own = None if key is None else nm.random.fold_in(key, i)
            parts.append(self._program(canvas, extents, own))
        if len(parts) == 1:
            return parts[0]
        order = nm.asarray(sorted(range(len(numbers)), key=numbers.__getitem__))
        return nm.concatenate(parts)[order.to(parts[0].device)]

    @cached_property
    def _program(self) -> Callable[[Tensor, Tensor, Tensor | None], Tensor]:
        @nm.jit
        def transformed(canvas: Tensor, extents: Tensor, key: Tensor | None) -> Tensor:
            x, restore = batched(self._name, canvas, self.layout)
            y = self.apply_pictures(Pictures(x, extents[:, 0], extents[:, 1]), key)
            if isinstance(y, Pictures):
                raise ShapeError(
                    f"{self._name}: leaves pictures of different sizes, which are no batch: a crop "
                    "has to follow"
                )
            return restore(y)

        return transformed

    @property
    def _name(self) -> str:
        return type(self).__name__

    def apply(self, x: Tensor, key: Tensor | None) -> Tensor:
        """Transform images of shape (count, channels, height, width)."""
        raise TypeError(f"{type(self).__name__} does not say what it does: define apply(x, key)")

    def apply_pictures(self, pictures: Pictures, key: Tensor | None) -> Tensor | Pictures:
        """Transform pictures of different sizes."""
        raise ShapeError(
            f"{self._name}: pictures of different sizes are no batch: let RandomResizedCrop, "
            "CenterCrop, or Resize and a crop come first"
        )


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

    def __call__(self, images: Any, *, key: Tensor | None = None) -> Tensor:
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

    def apply_pictures(self, pictures: Pictures, key: Tensor | None) -> Tensor | Pictures:
        x: Tensor | Pictures = pictures
        for i, transform in enumerate(self.transforms):
            own = None if key is None else nm.random.fold_in(key, i)
            if isinstance(x, Tensor):
                x = applied(transform, x, own)
            elif isinstance(transform, Transform):
                x = transform.apply_pictures(x, own)
            else:
                return super().apply_pictures(x, own)
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
