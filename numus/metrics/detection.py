"""Mean average precision of detected boxes, as COCO defines it: precision at 101 recalls, averaged
over IoU thresholds from 0.5 to 0.95 and over classes, with up to 100 detections for each image.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

from numus.errors import ShapeError
from numus.metrics.metric import Array, Metric, host

__all__ = ["MeanAveragePrecision"]

THRESHOLDS = np.linspace(0.5, 0.95, 10)
RECALLS = np.linspace(0.0, 1.0, 101)
AREAS = {"all": (0.0, 1e10), "small": (0.0, 32.0**2), "medium": (32.0**2, 96.0**2)}
AREAS |= {"large": (96.0**2, 1e10)}
MAX_DETECTIONS = 100


class MeanAveragePrecision(Metric):
    """mAP of boxes (x1, y1, x2, y2).

    `compute` gives a dict: map, map_50, map_75, map_small, map_medium, map_large, mar_100, and
    classes with the AP of each; -1 where there is nothing to find.

    >>> metric = nm.metrics.MeanAveragePrecision()
    >>> box = [[0.0, 0.0, 40.0, 40.0]]
    >>> found = [{"boxes": box, "scores": [0.9], "labels": [1]}]
    >>> metric.update(found, [{"boxes": box, "labels": [1]}])
    >>> metric.compute()["map"]
    1.0
    """

    # rows: image, class, x1, y1, x2, y2, and score or (area, crowd)
    collected: ClassVar[tuple[str, ...]] = ("detections", "objects")

    def _empty(self) -> dict[str, Array]:
        return {"images": np.zeros((), np.int64)}

    def update(self, predictions: Any, targets: Any) -> None:
        """Add images: dicts of boxes, scores and labels, and dicts of boxes, labels and optionally
        area and iscrowd."""
        op = "MeanAveragePrecision"
        if len(predictions) != len(targets):
            raise ShapeError(
                f"{op}: predictions of {len(predictions)} images, {len(targets)} targets"
            )
        for found, wanted in zip(predictions, targets, strict=True):
            number = int(self._state["images"])
            detections = _rows(op, found, number, ("scores",))
            boxes = host(wanted["boxes"]).reshape(-1, 4)
            areas = (boxes[:, 2:] - boxes[:, :2]).prod(axis=1)
            more = {"area": areas, "iscrowd": np.zeros(len(boxes))} | dict(wanted)
            objects = _rows(op, more, number, ("area", "iscrowd"))
            self._collect(detections=detections, objects=objects)
            self._add(images=1)

    def merge(self, other: Self) -> Self:
        """Add the images of another metric, numbered after these."""
        shift = int(self._state["images"])
        moved = type(self)()
        moved._state = other._state
        for name, parts in other._parts.items():
            moved._parts[name] = [_shifted(part, shift) for part in parts]
        return super().merge(moved)

    def compute(self) -> dict[str, Any]:
        """The averages of all images so far."""
        detections, objects = self._all("detections"), self._all("objects")
        classes = np.unique(objects[:, 1])
        tables: dict[str, list[Array]] = {name: [] for name in AREAS}
        recalls = []
        for c in classes:
            found, wanted = (x[x[:, 1] == c] for x in (detections, objects))
            numbers = np.unique(np.concatenate([found[:, 0], wanted[:, 0]]))
            images = [_image(found[found[:, 0] == i], wanted[wanted[:, 0] == i]) for i in numbers]
            for name, limits in AREAS.items():
                precision, recall = _curves(images, limits)
                tables[name].append(precision)
                if name == "all":
                    recalls.append(recall)
        every = {name: np.asarray(rows).reshape(-1, 10) for name, rows in tables.items()}
        return {
            "map": _mean(every["all"]),
            "map_50": _mean(every["all"][:, 0]),
            "map_75": _mean(every["all"][:, 5]),
            **{f"map_{name}": _mean(every[name]) for name in ("small", "medium", "large")},
            "mar_100": _mean(np.asarray(recalls)),
            "classes": {int(c): _mean(row) for c, row in zip(classes, every["all"], strict=True)},
        }


def _rows(op: str, given: Any, number: int, names: tuple[str, ...]) -> Array:
    boxes = host(given["boxes"]).reshape(-1, 4).astype(np.float64)
    columns = [host(given[name]).astype(np.float64).ravel() for name in ("labels", *names)]
    if any(len(c) != len(boxes) for c in columns):
        raise ShapeError(f"{op}: {len(boxes)} boxes with {[len(c) for c in columns]} labels, …")
    image = np.full(len(boxes), float(number))
    return np.column_stack([image, columns[0], boxes, *columns[1:]])


def _shifted(rows: Array, by: int) -> Array:
    moved = rows.copy()
    moved[:, 0] += by
    return moved


def _image(found: Array, wanted: Array) -> tuple[Array, Array, Array]:
    """Detections (best first), objects, and IoU of all pairs; a crowd counts as its own union."""
    found = found[np.argsort(-found[:, 6], kind="stable")][:MAX_DETECTIONS]
    a, b = found[:, None, 2:6], wanted[None, :, 2:6]
    sides = np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2])
    both = np.maximum(sides, 0).prod(axis=-1)
    areas = [(x[..., 2:] - x[..., :2]).prod(axis=-1) for x in (a, b)]
    union = np.where(wanted[None, :, 7] > 0, areas[0], areas[0] + areas[1] - both)
    return found, wanted, both / np.maximum(union, 1e-300)


def _matched(
    image: tuple[Array, Array, Array], limits: tuple[float, float]
) -> tuple[Array, Array, int]:
    """Which detections hit an object, which do not count, for each threshold; and how many objects
    there are to find."""
    found, wanted, overlaps = image
    ignored = (wanted[:, 7] > 0) | (wanted[:, 6] < limits[0]) | (wanted[:, 6] > limits[1])
    order = np.argsort(ignored, kind="stable")  # what counts is matched first
    ignored, crowd, overlaps = ignored[order], wanted[order, 7] > 0, overlaps[:, order]
    hits = np.zeros((len(THRESHOLDS), len(found)), bool)
    skipped = np.zeros_like(hits)
    for t, threshold in enumerate(THRESHOLDS):
        taken = np.zeros(len(wanted), bool)
        for d in range(len(found)):
            free = (overlaps[d] >= min(threshold, 1 - 1e-10)) & (~taken | crowd)
            choice = free & ~ignored if (free & ~ignored).any() else free
            if choice.any():
                # of equal overlaps the last one, as in cocoapi
                (at,) = np.flatnonzero(choice & (overlaps[d] == overlaps[d][choice].max()))[-1:]
                taken[at] = hits[t, d] = True
                skipped[t, d] = ignored[at]
    area = (found[:, 4:6] - found[:, 2:4]).prod(axis=1)
    skipped |= ~hits & ((area < limits[0]) | (area > limits[1]))
    return hits, skipped, int((~ignored).sum())


def _curves(images: list[Any], limits: tuple[float, float]) -> tuple[Array, Array]:
    """Average precision and recall of a class for each threshold; -1 of no objects."""
    results = [_matched(image, limits) for image in images]
    count = sum(r[2] for r in results)
    if not count:
        return np.full(len(THRESHOLDS), -1.0), np.full(len(THRESHOLDS), -1.0)
    scores = np.concatenate([image[0][:, 6] for image in images])
    order = np.argsort(-scores, kind="stable")
    hits, skipped = (np.concatenate([r[i] for r in results], axis=1)[:, order] for i in (0, 1))
    precisions, recalls = [], []
    for t in range(len(THRESHOLDS)):
        counted = ~skipped[t]
        right = np.cumsum(hits[t] & counted)
        wrong = np.cumsum(~hits[t] & counted)
        recall = right / count
        precision = right / np.maximum(right + wrong, 1)
        precision = np.maximum.accumulate(precision[::-1])[::-1]
        at = np.searchsorted(recall, RECALLS, side="left")
        padded = np.concatenate([precision, [0.0]])
        precisions.append(padded[np.minimum(at, len(precision))].mean())
        recalls.append(recall[-1] if len(recall) else 0.0)
    return np.asarray(precisions), np.asarray(recalls)


def _mean(values: Array) -> float:
    there = values[values > -1]
    return float(there.mean()) if there.size else -1.0
