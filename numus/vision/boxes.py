"""Boxes: formats, areas, overlaps (IoU, GIoU, DIoU, CIoU) and the losses made of them.

A box is (x1, y1, x2, y2) unless a function says otherwise. GIoU is Rezatofighi et al. 2019, DIoU
and CIoU are Zheng et al. 2020.
"""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.nn.functional import sigmoid_focal_loss
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "box_area",
    "box_convert",
    "box_iou",
    "clip_boxes",
    "complete_box_iou",
    "complete_box_iou_loss",
    "distance_box_iou",
    "distance_box_iou_loss",
    "generalized_box_iou",
    "generalized_box_iou_loss",
    "masks_to_boxes",
    "sigmoid_focal_loss",
]

FORMATS = ("xyxy", "xywh", "cxcywh")
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _four(op: str, boxes: ArrayLike) -> Four:
    x = nm.asarray(boxes)
    if x.ndim < 1 or x.shape[-1] != 4:
        raise ShapeError(f"{op}: takes boxes (…, 4), not shape {x.shape}")
    if not nm.isdtype(x.dtype, "real floating"):
        x = x.astype(nm.float32)
    return x[..., 0], x[..., 1], x[..., 2], x[..., 3]


def box_convert(boxes: ArrayLike, in_format: str, out_format: str) -> Tensor:
    """Boxes in another format: "xyxy" (corners), "xywh" (left upper corner and size), or "cxcywh"
    (centre and size).

    >>> nm.vision.box_convert(nm.asarray([1.0, 2.0, 4.0, 6.0]), "xyxy", "cxcywh").tolist()
    [2.5, 4.0, 3.0, 4.0]
    """
    op = "box_convert"
    for name in (in_format, out_format):
        if name not in FORMATS:
            raise ValueError(f"{op}: no format {name!r}; formats: {', '.join(FORMATS)}")
    a, b, c, d = _four(op, boxes)
    if in_format == "xyxy":
        x1, y1, w, h = a, b, c - a, d - b
    elif in_format == "xywh":
        x1, y1, w, h = a, b, c, d
    else:
        x1, y1, w, h = a - c * 0.5, b - d * 0.5, c, d
    if out_format == "xyxy":
        return nm.stack([x1, y1, x1 + w, y1 + h], axis=-1)
    if out_format == "xywh":
        return nm.stack([x1, y1, w, h], axis=-1)
    return nm.stack([x1 + w * 0.5, y1 + h * 0.5, w, h], axis=-1)


def box_area(boxes: ArrayLike) -> Tensor:
    """Areas.

    >>> nm.vision.box_area(nm.asarray([[0.0, 0.0, 2.0, 3.0]])).tolist()
    [6.0]
    """
    x1, y1, x2, y2 = _four("box_area", boxes)
    return (x2 - x1) * (y2 - y1)


def clip_boxes(boxes: ArrayLike, size: tuple[int, int]) -> Tensor:
    """Boxes cut off at the edges of an image of (height, width).

    >>> nm.vision.clip_boxes(nm.asarray([-1.0, 2.0, 9.0, 5.0]), (4, 8)).tolist()
    [0.0, 2.0, 8.0, 4.0]
    """
    x1, y1, x2, y2 = _four("clip_boxes", boxes)
    height, width = size
    x1, x2 = (nm.clip(v, 0, width) for v in (x1, x2))
    y1, y2 = (nm.clip(v, 0, height) for v in (y1, y2))
    return nm.stack([x1, y1, x2, y2], axis=-1)


def masks_to_boxes(masks: ArrayLike) -> Tensor:
    """The box of each mask (…, height, width) as (x1, y1, x2, y2) of its outermost pixels; zeros
    for an empty mask.

    >>> nm.vision.masks_to_boxes(nm.zeros((1, 4, 4)).at[0, 1:3, 2].set(1.0)).tolist()
    [[2.0, 1.0, 2.0, 2.0]]
    """
    x = nm.asarray(masks)
    if x.ndim < 2:
        raise ShapeError(f"masks_to_boxes: takes masks (…, height, width), not shape {x.shape}")
    there = x != 0
    ends = []
    for axis, across in ((-1, -2), (-2, -1)):
        n = x.shape[axis]
        line = nm.any(there, axis=across)
        at = nm.arange(n, dtype=nm.float32, device=x.device)
        low = nm.min(nm.where(line, at, float(n)), axis=-1)
        ends.append((nm.where(low == n, 0.0, low), nm.max(nm.where(line, at, 0.0), axis=-1)))
    (x1, x2), (y1, y2) = ends
    return nm.stack([x1, y1, x2, y2], axis=-1)


# -- overlaps -------------------------------------------------------------------------------------


def _overlap(a: Four, b: Four) -> tuple[Tensor, Tensor]:
    """Areas of intersections and unions."""
    width = nm.minimum(a[2], b[2]) - nm.maximum(a[0], b[0])
    height = nm.minimum(a[3], b[3]) - nm.maximum(a[1], b[1])
    both = nm.maximum(width, 0.0) * nm.maximum(height, 0.0)
    areas = [(x2 - x1) * (y2 - y1) for x1, y1, x2, y2 in (a, b)]
    return both, areas[0] + areas[1] - both


def _hull(a: Four, b: Four) -> tuple[Tensor, Tensor]:
    """Width and height of the smallest box around both."""
    return (
        nm.maximum(a[2], b[2]) - nm.minimum(a[0], b[0]),
        nm.maximum(a[3], b[3]) - nm.minimum(a[1], b[1]),
    )


def _generalized(a: Four, b: Four, eps: float) -> Tensor:
    both, union = _overlap(a, b)
    width, height = _hull(a, b)
    hull = width * height
    return both / (union + eps) - (hull - union) / (hull + eps)


def _distance(a: Four, b: Four, eps: float) -> tuple[Tensor, Tensor]:
    """IoU, and DIoU: less the squared distance of centres over that of the hull's corners."""
    both, union = _overlap(a, b)
    iou = both / (union + eps)
    width, height = _hull(a, b)
    dx, dy = (a[0] + a[2] - b[0] - b[2]) * 0.5, (a[1] + a[3] - b[1] - b[3]) * 0.5
    return iou, iou - (dx * dx + dy * dy) / (width * width + height * height + eps)


def _complete(a: Four, b: Four, eps: float) -> Tensor:
    """DIoU, less how the aspect ratios differ."""
    iou, diou = _distance(a, b, eps)
    turns = [nm.arctan((x2 - x1) / (y2 - y1)) for x1, y1, x2, y2 in (a, b)]
    v = (4 / math.pi**2) * (turns[0] - turns[1]) ** 2
    weight = nm.Tensor.detach(v / (1.0 - iou + v + eps))
    return diou - weight * v


def _pairs(op: str, first: ArrayLike, second: ArrayLike) -> tuple[Four, Four]:
    a, b = _four(op, first), _four(op, second)
    if a[0].ndim != 1 or b[0].ndim != 1:
        raise ShapeError(f"{op}: takes boxes (n, 4) and (m, 4), not {a[0].shape} and {b[0].shape}")
    x1, y1, x2, y2 = (v[:, None] for v in a)
    return (x1, y1, x2, y2), b


def box_iou(boxes1: ArrayLike, boxes2: ArrayLike) -> Tensor:
    """Intersection over union of all pairs: (n, m).

    >>> a = nm.asarray([[0.0, 0.0, 2.0, 2.0]])
    >>> nm.vision.box_iou(a, nm.asarray([[1.0, 0.0, 3.0, 2.0], [5.0, 5.0, 6.0, 6.0]])).tolist()
    [[0.3333333432674408, 0.0]]
    """
    both, union = _overlap(*_pairs("box_iou", boxes1, boxes2))
    return both / union


def generalized_box_iou(boxes1: ArrayLike, boxes2: ArrayLike) -> Tensor:
    """GIoU of all pairs: IoU, less the share of the hull that neither covers.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> nm.vision.generalized_box_iou(a, nm.asarray([[2.0, 0.0, 3.0, 1.0]])).item()
    -0.3333333432674408
    """
    return _generalized(*_pairs("generalized_box_iou", boxes1, boxes2), 0.0)


def distance_box_iou(boxes1: ArrayLike, boxes2: ArrayLike, eps: float = 1e-7) -> Tensor:
    """DIoU of all pairs: IoU, less the squared distance of centres over the hull's diagonal.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> round(nm.vision.distance_box_iou(a, nm.asarray([[2.0, 0.0, 3.0, 1.0]])).item(), 4)
    -0.4
    """
    return _distance(*_pairs("distance_box_iou", boxes1, boxes2), eps)[1]


def complete_box_iou(boxes1: ArrayLike, boxes2: ArrayLike, eps: float = 1e-7) -> Tensor:
    """CIoU of all pairs: DIoU, less how aspect ratios differ.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> round(nm.vision.complete_box_iou(a, nm.asarray([[2.0, 0.0, 3.0, 1.0]])).item(), 4)
    -0.4
    """
    return _complete(*_pairs("complete_box_iou", boxes1, boxes2), eps)


def _loss(op: str, overlap: Any, first: ArrayLike, second: ArrayLike, reduction: str) -> Tensor:
    loss = 1.0 - overlap(_four(op, first), _four(op, second))
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{op}: reduction must be 'none', 'mean' or 'sum', not {reduction!r}")
    return {"none": lambda v: v, "mean": nm.mean, "sum": nm.sum}[reduction](loss)


def generalized_box_iou_loss(
    boxes1: ArrayLike, boxes2: ArrayLike, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 - GIoU of boxes and as many others.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> round(nm.vision.generalized_box_iou_loss(a, a).item(), 4)
    0.0
    """
    op = "generalized_box_iou_loss"
    return _loss(op, lambda a, b: _generalized(a, b, eps), boxes1, boxes2, reduction)


def distance_box_iou_loss(
    boxes1: ArrayLike, boxes2: ArrayLike, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 - DIoU of boxes and as many others.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> round(nm.vision.distance_box_iou_loss(a, a).item(), 4)
    0.0
    """
    op = "distance_box_iou_loss"
    return _loss(op, lambda a, b: _distance(a, b, eps)[1], boxes1, boxes2, reduction)


def complete_box_iou_loss(
    boxes1: ArrayLike, boxes2: ArrayLike, reduction: str = "none", eps: float = 1e-7
) -> Tensor:
    """1 - CIoU of boxes and as many others.

    >>> a = nm.asarray([[0.0, 0.0, 1.0, 1.0]])
    >>> round(nm.vision.complete_box_iou_loss(a, a).item(), 4)
    0.0
    """
    op = "complete_box_iou_loss"
    return _loss(op, lambda a, b: _complete(a, b, eps), boxes1, boxes2, reduction)
