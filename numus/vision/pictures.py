"""Pictures of different sizes, as batches for the transformations that give them one size.

Each lies in the first rows and columns of a canvas. Canvases have few sizes, so that a jitted
transformation is traced for few; pictures whose sizes differ much have several canvases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.tensor import Tensor

STEP = 64  # canvases' heights and widths are multiples of it
MAX_WASTE = 2.5  # area of a canvas over that of its pictures


@dataclass(frozen=True)
class Resizing:
    """A size for each picture, whose shorter side becomes `shortest`, that the crop which follows
    reads alone."""

    shortest: int
    mode: str
    antialias: bool


@dataclass(frozen=True)
class Pictures:
    """Images (count, channels, height, width) of which each fills `heights` rows and `widths`
    columns, both (count,) of int32; beyond them they are black."""

    images: Tensor
    heights: Tensor
    widths: Tensor
    resizing: Resizing | None = None


def are_unequal(images: Any) -> bool:
    """True for a list of pictures that have several sizes."""
    if not isinstance(images, (list, tuple)):
        return False
    shapes = {getattr(x, "shape", None) or np.shape(x) for x in images}
    return len(shapes) > 1 and all(len(shape) == 3 for shape in shapes)


def canvases(op: str, images: Sequence[Any], layout: str) -> list[tuple[list[int], Tensor, Tensor]]:
    """Groups of pictures: their numbers, the canvas in the layout of the pictures, and the heights
    and widths as (count, 2)."""
    arrays = [np.asarray(x) for x in images]
    channels = {x.shape[0 if layout == "CHW" else 2] for x in arrays}
    if len(channels) > 1:
        raise ShapeError(f"{op}: pictures of {sorted(channels)} channels are no batch")
    dtypes = sorted({str(x.dtype) for x in arrays})
    if len(dtypes) > 1:
        raise DTypeError(f"{op}: pictures of dtypes {', '.join(dtypes)} are no batch: cast them")
    axes = slice(1, None) if layout == "CHW" else slice(0, 2)
    extents = np.array([x.shape[axes] for x in arrays], np.int32)
    device = next((x.device for x in images if isinstance(x, Tensor)), None)
    found = []
    for numbers in _groups(extents):
        height, width = (int(-(-n // STEP) * STEP) for n in extents[numbers].max(axis=0))
        size = height, width
        shape = (*channels, *size) if layout == "CHW" else (*size, *channels)
        canvas = np.zeros((len(numbers), *shape), arrays[0].dtype)
        for place, k in zip(canvas, numbers, strict=True):
            h, w = extents[k]
            (place[:, :h, :w] if layout == "CHW" else place[:h, :w])[...] = arrays[k]
        sizes = extents[numbers]
        found.append((numbers, nm.asarray(canvas, device=device), nm.asarray(sizes, device=device)))
    return found


def _groups(extents: np.ndarray[Any, Any]) -> list[list[int]]:
    """Numbers of pictures that share a canvas: from the largest on, as many as it is worth."""
    areas = extents.prod(axis=1, dtype=np.int64)
    groups: list[list[int]] = []
    filled, largest = 0, extents[0]
    for k in np.argsort(-areas, kind="stable").tolist():
        if groups:
            grown = np.maximum(largest, extents[k])
            count = len(groups[-1]) + 1
            if count * int(grown.prod(dtype=np.int64)) <= MAX_WASTE * (filled + int(areas[k])):
                groups[-1].append(k)
                filled, largest = filled + int(areas[k]), grown
                continue
        groups.append([k])
        filled, largest = int(areas[k]), extents[k]
    return [sorted(group) for group in groups]
