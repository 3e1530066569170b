"""Non-maximum suppression: greedy, with kept boxes in a hash grid by place and size.

A kept box with IoU above t overlaps a candidate in more than t of the larger side along each axis:
its sides differ by less than a factor 1/t, and its centre is near. Kept boxes hang in chains of a
hash table by the powers of two of their sides and the cell of that size that their centre is in;
a candidate looks at the few cells that can hold such a box, and not at all boxes that were kept.
It runs on the CPU, whatever the device: each box waits for those before it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import numus as nm
from numus.codegen.cpu.sequential import FLOAT64, INDEX64
from numus.errors import ShapeError
from numus.runtime.cpu.sequential import sequential
from numus.tensor import ArrayLike, Tensor

__all__ = ["batched_nms", "nms"]

LEVELS = 64  # powers of two of sides that are told apart
LOWEST_GRID_THRESHOLD = 0.2  # below it too many cells can hold an overlapping box
Array = np.ndarray[Any, Any]


@sequential
def overlaps(boxes: FLOAT64, a: int, b: int, threshold: float) -> bool:
    """Whether two boxes have an IoU above the threshold."""
    width = min(boxes[4 * a + 2], boxes[4 * b + 2]) - max(boxes[4 * a], boxes[4 * b])
    height = min(boxes[4 * a + 3], boxes[4 * b + 3]) - max(boxes[4 * a + 1], boxes[4 * b + 1])
    if width <= 0.0 or height <= 0.0:
        return False
    both = width * height
    one = (boxes[4 * a + 2] - boxes[4 * a]) * (boxes[4 * a + 3] - boxes[4 * a + 1])
    other = (boxes[4 * b + 2] - boxes[4 * b]) * (boxes[4 * b + 3] - boxes[4 * b + 1])
    return both > threshold * (one + other - both)


@sequential
def keep_all_pairs(n: int, boxes: FLOAT64, threshold: float, kept: INDEX64) -> int:
    """Which of n boxes, best first, are kept; how many."""
    count = 0
    for i in range(n):
        good = True
        for j in range(count):
            if overlaps(boxes, kept[j], i, threshold):
                good = False
                break
        if good:
            kept[count] = i
            count += 1
    return count


@sequential
def bucket(level: int, x: int, y: int, mask: int) -> int:
    """Where a cell's chain begins in the hash table."""
    mixed = x * 73856093 + y * 19349663 + level * 83492791
    return (mixed + (mixed >> 15)) & mask


@sequential
def keep_by_grid(
    n: int, boxes: FLOAT64, threshold: float, cells: INDEX64, sizes: INDEX64, reach: INDEX64,
    spread: int, mask: int, head: INDEX64, chain: INDEX64, used: INDEX64, kept: INDEX64,
) -> int:  # fmt: skip
    """As `keep_all_pairs`. `cells` are centres in whole cells of the smallest size, `sizes` the
    powers of two of the sides (-1: no area), `reach` how far centres may be apart, for each
    difference of powers."""
    count = 0
    width = 2 * spread + 1
    for i in range(n):
        lw = sizes[2 * i]
        lh = sizes[2 * i + 1]
        good = True
        if lw >= 0:
            for pair in range(width * width):
                w = lw + pair // width - spread
                h = lh + pair % width - spread
                # two conditions, for `used` must not be read outside: `and` evaluates both sides
                if good and w >= 0 and h >= 0 and w < 64 and h < 64:  # noqa: SIM102
                    if used[64 * w + h] > 0:
                        rx = reach[2 * (i * width + pair // width)]
                        ry = reach[2 * (i * width + pair % width) + 1]
                        x0 = max(cells[2 * i] - rx, 0) >> w
                        x1 = (cells[2 * i] + rx) >> w
                        y0 = max(cells[2 * i + 1] - ry, 0) >> h
                        y1 = (cells[2 * i + 1] + ry) >> h
                        for x in range(x0, x1 + 1):
                            for y in range(y0, y1 + 1):
                                j = head[bucket(64 * w + h, x, y, mask)]
                                while j >= 0 and good:
                                    if overlaps(boxes, j, i, threshold):
                                        good = False
                                    j = chain[j]
        if good:
            kept[count] = i
            count += 1
            if lw >= 0:
                used[64 * lw + lh] = 1
                at = bucket(64 * lw + lh, cells[2 * i] >> lw, cells[2 * i + 1] >> lh, mask)
                chain[i] = head[at]
                head[at] = i
    return count


def kept_boxes(boxes: Array, threshold: float) -> Array:
    """Which of boxes (n, 4), best first, are kept."""
    n = len(boxes)
    kept = np.empty(max(n, 1), np.int64)
    flat = np.ascontiguousarray(boxes, np.float64)
    sides = flat[:, 2:] - flat[:, :2]
    solid: Array = np.asarray(np.isfinite(flat).all(axis=1) & (sides > 0).all(axis=1))
    if threshold < LOWEST_GRID_THRESHOLD or n < 64 or not solid.any():
        return kept[: keep_all_pairs(n, flat.ravel(), float(threshold), kept)]
    # sides in units of the smallest cell: at most 2^40 of them across, so that cells are integers
    corner, far = flat[solid, :2].min(), flat[solid, 2:].max()
    smallest = max(sides[solid].min(), (far - corner) * 2.0**-40)
    unit = 2.0 ** math.floor(math.log2(smallest))
    safe = np.where(solid[:, None], np.maximum(sides, unit), unit) / unit
    levels = np.minimum(np.frexp(safe)[1] - 1, LEVELS - 1)
    sizes = np.where(solid[:, None], levels, -1).astype(np.int64)
    centre = np.where(solid[:, None], (flat[:, :2] + flat[:, 2:]) * 0.5 - corner, 0.0) / unit
    spread = math.ceil(math.log2(1.0 / threshold)) if threshold < 1 else 0
    # how far apart centres can be: (w + w') / 2 - t max(w, w'), the most over the sides of a level
    shift = np.arange(-spread, spread + 1)[None, :, None]
    largest = 2.0 ** (np.clip(levels[:, None] + shift, 0, LEVELS) + 1.0)
    own = safe[:, None]
    most = (own + largest) * 0.5 - threshold * np.maximum(own, largest)
    reach = np.ceil(np.maximum(most, own * (1.0 - threshold))) + 1
    bits = max(8, int(n).bit_length() + 1)
    count = keep_by_grid(
        n, flat.ravel(), float(threshold), centre.astype(np.int64).ravel(), sizes.ravel(),
        reach.astype(np.int64).ravel(), spread, (1 << bits) - 1,
        np.full(1 << bits, -1, np.int64), np.full(n, -1, np.int64),
        np.zeros(LEVELS * LEVELS, np.int64), kept,
    )  # fmt: skip
    return kept[:count]


def _suppressed(op: str, boxes: ArrayLike, scores: ArrayLike, classes: Any, t: float) -> Tensor:
    found, marks = nm.asarray(boxes), nm.asarray(scores)
    if found.ndim != 2 or found.shape[1] != 4 or marks.shape != found.shape[:1]:
        raise ShapeError(
            f"{op}: takes boxes (n, 4) and scores (n,), not shapes {found.shape} and {marks.shape}"
        )
    if not 0.0 <= t <= 1.0:
        raise ValueError(f"{op}: iou_threshold must be from 0 to 1, not {t}")
    host = np.asarray(found.to_device("cpu")).astype(np.float64)
    order = np.argsort(-np.asarray(marks.to_device("cpu")).astype(np.float64), kind="stable")
    if classes is not None and len(host):
        kinds = np.asarray(nm.asarray(classes).to_device("cpu"))
        if kinds.shape != marks.shape:
            raise ShapeError(f"{op}: classes of shape {kinds.shape} for {len(host)} boxes")
        # boxes of different classes are moved apart
        number = np.unique(kinds, return_inverse=True)[1]
        finite = host[np.isfinite(host)]
        span = (finite.max() - finite.min() + 1.0) if finite.size else 1.0
        host = host + (number * span)[:, None]
    return nm.asarray(order[kept_boxes(host[order], t)], device=found.device)


def nms(boxes: ArrayLike, scores: ArrayLike, iou_threshold: float) -> Tensor:
    """Indices of the boxes that no better one overlaps by more than a threshold, best first.

    >>> boxes = nm.asarray([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0], [5.0, 5.0, 6.0, 6.0]])
    >>> nm.vision.nms(boxes, nm.asarray([0.5, 0.9, 0.1]), 0.5).tolist()
    [1, 2]
    """
    return _suppressed("nms", boxes, scores, None, iou_threshold)


def batched_nms(
    boxes: ArrayLike, scores: ArrayLike, classes: ArrayLike, iou_threshold: float
) -> Tensor:
    """`nms` of each class (or image) by itself; indices of all that are left, best first.

    >>> boxes = nm.asarray([[0.0, 0.0, 4.0, 4.0], [0.0, 0.0, 4.0, 3.0]])
    >>> nm.vision.batched_nms(boxes, nm.asarray([0.5, 0.9]), nm.asarray([0, 1]), 0.5).tolist()
    [1, 0]
    """
    return _suppressed("batched_nms", boxes, scores, classes, iou_threshold)
