"""RoIAlign (He et al., Mask R-CNN, 2017): boxes of feature maps, read bilinearly into a grid."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor
from numus.vision.images import size_pair

__all__ = ["roi_align"]


def roi_align(
    features: ArrayLike,
    boxes: Any,
    output_size: int | tuple[int, int],
    spatial_scale: float = 1.0,
    sampling_ratio: int = 2,
    *,
    aligned: bool = True,
) -> Tensor:
    """Boxes of feature maps (images, channels, height, width) as (boxes, channels, *output_size).

    Args:
        boxes: (boxes, 5) with the number of the image before x1, y1, x2, y2, or a list of (n, 4),
            one for each image.
        spatial_scale: pixels of the features for one of the boxes.
        sampling_ratio: points along each axis of a cell, whose mean is taken; 0: as many as a box
            of this size has pixels per cell (boxes are evaluated then).
        aligned: whether the centre of the first pixel is at 0.5 (False: Detectron's at 0).

    >>> x = nm.arange(16.0).reshape(1, 1, 4, 4)
    >>> nm.vision.roi_align(x, nm.asarray([[0.0, 0.0, 0.0, 2.0, 2.0]]), 1).tolist()
    [[[[2.5]]]]
    """
    op = "roi_align"
    x = nm.asarray(features)
    if x.ndim != 4 or not nm.isdtype(x.dtype, "real floating"):
        raise ShapeError(
            f"{op}: takes floats (images, channels, height, width), not {x.dtype.name} of {x.shape}"
        )
    if isinstance(boxes, (list, tuple)):
        parts = [nm.asarray(b, dtype=x.dtype, device=x.device).reshape(-1, 4) for b in boxes]
        if len(parts) != x.shape[0]:
            raise ShapeError(f"{op}: boxes of {len(parts)} images for {x.shape[0]}")
        numbers = [
            nm.full((p.shape[0], 1), i, dtype=x.dtype, device=x.device) for i, p in enumerate(parts)
        ]
        pairs = zip(numbers, parts, strict=True)
        rois = nm.concat([nm.concat([n, p], axis=1) for n, p in pairs], axis=0)
    else:
        rois = nm.asarray(boxes, device=x.device)
    if rois.ndim != 2 or rois.shape[1] != 5:
        raise ShapeError(f"{op}: takes boxes (n, 5), or a list of (n, 4), not shape {rois.shape}")
    image = rois[:, 0].astype(nm.int32)
    ends = rois[:, 1:].astype(x.dtype) * spatial_scale - (0.5 if aligned else 0.0)
    sizes = size_pair(op, "output_size", output_size)
    rows, columns = (
        _points(ends[:, a], ends[:, b], n, sampling_ratio, aligned)
        for a, b, n in ((1, 3, sizes[0]), (0, 2, sizes[1]))
    )
    lines = [_corners(*p, x.shape[2 + i]) for i, p in enumerate((rows, columns))]
    count = rois.shape[0]
    at = nm.reshape(image, (-1, 1, 1, 1, 1))
    total: Any = 0.0
    for y, wy in lines[0]:  # (boxes, cells, points) of rows, and then of columns
        for u, wx in lines[1]:
            index = (
                nm.reshape(y, (count, *y.shape[1:], 1, 1)),
                nm.reshape(u, (count, 1, 1, *u.shape[1:])),
            )
            read = x[at, :, index[0], index[1]]
            weight = nm.reshape(wy, (count, *wy.shape[1:], 1, 1, 1)) * nm.reshape(
                wx, (count, 1, 1, *wx.shape[1:], 1)
            )
            total = total + read * weight
    return nm.permute_dims(nm.sum(total, axis=(2, 4)), (0, 3, 1, 2))


def _points(
    low: Tensor, high: Tensor, cells: int, ratio: int, aligned: bool
) -> tuple[Tensor, Tensor]:
    """Coordinates (boxes, cells, points) along an axis, and what each counts in its cell's mean."""
    length = high - low if aligned else nm.maximum(high - low, 1.0)
    step = nm.reshape(length / cells, (-1, 1, 1))
    cell = nm.arange(cells, dtype=low.dtype, device=low.device).reshape(-1, 1)
    if ratio > 0:
        counts: Any = float(ratio)
        most = ratio
    else:
        counts = nm.maximum(nm.ceil(step), 1.0)
        most = int(nm.max(counts).item()) if low.shape[0] else 1
    point = nm.arange(most, dtype=low.dtype, device=low.device)
    at = nm.reshape(low, (-1, 1, 1)) + step * (cell + (point + 0.5) / counts)
    share = nm.where(point < counts, 1.0 / counts, 0.0)
    return at, nm.broadcast_to(share, at.shape)


def _corners(at: Tensor, share: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    """The two elements that each point reads along an axis, and their weights."""
    inside = (at >= -1.0) & (at <= float(size))
    near = nm.clip(at, 0.0, size - 1.0)
    first = nm.floor(near)
    t = near - first
    weight = nm.where(inside, share, 0.0)
    second = nm.minimum(first + 1.0, size - 1.0)
    return [
        (first.astype(nm.int32), weight * (1.0 - t)),
        (second.astype(nm.int32), weight * t),
    ]
