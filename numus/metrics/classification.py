"""Metrics of classification: accuracy, confusion matrix, precision, recall, F1, mean IoU.

All but top-k accuracy follow from the confusion matrix. Averages over classes and values of 0 / 0
(which count as 0) are scikit-learn's.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.metrics.metric import Array, Metric, host
from numus.tensor import Tensor

__all__ = ["F1", "Accuracy", "ConfusionMatrix", "MeanIoU", "Precision", "Recall"]

AVERAGES = ("micro", "macro", "weighted", None)


def as_classes(op: str, predictions: Any, targets: Any) -> tuple[Array, Array]:
    """Numbers of classes; of scores (batch, classes, …), the best."""
    scores = predictions if isinstance(predictions, Tensor) else nm.asarray(predictions)
    wanted = host(targets)
    if scores.ndim == wanted.ndim + 1:
        scores = nm.argmax(scores, axis=1)
    if scores.shape != wanted.shape:
        raise ShapeError(
            f"{op}: predictions of shape {scores.shape} for targets of shape {wanted.shape}: as "
            "many classes, or scores (batch, classes, …)"
        )
    found = host(scores)
    for name, x in (("predictions", found), ("targets", wanted)):
        if x.dtype.kind not in "iub":
            raise TypeError(f"{op}: {name} must be numbers of classes, not {x.dtype.name}")
    return found.ravel().astype(np.int64), wanted.ravel().astype(np.int64)


class Accuracy(Metric):
    """The share of targets among the `top_k` best predictions.

    Predictions are scores (batch, classes), or numbers of classes where `top_k` is 1.

    >>> accuracy = nm.metrics.Accuracy(top_k=2)
    >>> accuracy.update(nm.asarray([[0.1, 0.5, 0.4], [0.6, 0.3, 0.1]]), nm.asarray([2, 2]))
    >>> accuracy.compute()
    0.5
    """

    def __init__(self, top_k: int = 1, *, ignore_index: int | None = None) -> None:
        if top_k < 1:
            raise ValueError(f"Accuracy: top_k must be positive, not {top_k}")
        self.top_k, self.ignore_index = top_k, ignore_index
        super().__init__()

    def _empty(self) -> dict[str, Array]:
        return {"right": np.zeros((), np.int64), "count": np.zeros((), np.int64)}

    def update(self, predictions: Any, targets: Any) -> None:
        """Add scores (batch, classes) or classes, and the classes they should be."""
        if self.top_k == 1:
            found, wanted = as_classes("Accuracy", predictions, targets)
            right = found == wanted
        else:
            scores, wanted = nm.asarray(predictions), host(targets).ravel()
            if scores.ndim != 2 or scores.shape[0] != len(wanted):
                raise ShapeError(
                    f"Accuracy: top {self.top_k} needs scores (batch, classes), not shape "
                    f"{scores.shape} for {len(wanted)} targets"
                )
            k = min(self.top_k, scores.shape[1])
            best = host(nm.topk(scores, k).indices)
            right = (best == wanted[:, None]).any(axis=1)
        counted = np.ones(len(wanted), bool)
        if self.ignore_index is not None:
            counted = wanted != self.ignore_index
        self._add(right=int((right & counted).sum()), count=int(counted.sum()))

    def compute(self) -> float:
        """The share of all that was added; nan of nothing."""
        count = int(self._state["count"])
        return int(self._state["right"]) / count if count else float("nan")


class ConfusionMatrix(Metric):
    """How often each class (rows) was taken for each class (columns).

    >>> matrix = nm.metrics.ConfusionMatrix(2)
    >>> matrix.update(nm.asarray([0, 1, 1]), nm.asarray([0, 0, 1]))
    >>> matrix.compute().tolist()
    [[1, 1], [0, 1]]
    """

    def __init__(self, num_classes: int, *, ignore_index: int | None = None) -> None:
        if num_classes < 1:
            raise ValueError(f"{type(self).__name__}: {num_classes} classes")
        self.num_classes, self.ignore_index = num_classes, ignore_index
        super().__init__()

    def _empty(self) -> dict[str, Array]:
        return {"matrix": np.zeros((self.num_classes,) * 2, np.int64)}

    def update(self, predictions: Any, targets: Any) -> None:
        """Add scores (batch, classes, …) or classes, and the classes they should be."""
        op, n = type(self).__name__, self.num_classes
        found, wanted = as_classes(op, predictions, targets)
        if self.ignore_index is not None:
            found, wanted = (x[wanted != self.ignore_index] for x in (found, wanted))
        for name, x in (("predictions", found), ("targets", wanted)):
            if x.size and (x.min() < 0 or x.max() >= n):
                wrong = x.min() if x.min() < 0 else x.max()
                raise ValueError(f"{op}: {name} have class {wrong}, of {n} from 0 on")
        counts = np.bincount(wanted * n + found, minlength=n * n)
        self._add(matrix=counts.reshape(n, n))

    def compute(self) -> Any:
        """The counts (classes, classes)."""
        return self._state["matrix"]


def _ratio(above: Array, below: Array) -> Array:
    """Quotients; 0 where both are 0."""
    return np.asarray(above / np.where(below == 0, 1, below), np.float64)


class _OfMatrix(ConfusionMatrix):
    """A number for each class, averaged."""

    def __init__(
        self, num_classes: int, average: str | None = "macro", *, ignore_index: int | None = None
    ) -> None:
        if average not in AVERAGES:
            raise ValueError(
                f"{type(self).__name__}: average must be one of {AVERAGES}, not {average!r}"
            )
        self.average = average
        super().__init__(num_classes, ignore_index=ignore_index)

    def _value(self, right: Array, found: Array, wanted: Array) -> Array:
        raise TypeError(f"{type(self).__name__} has no formula")

    def compute(self) -> Any:
        """The average, or a number for each class."""
        matrix = self._state["matrix"]
        right, found, wanted = np.diag(matrix), matrix.sum(0), matrix.sum(1)
        if self.average == "micro":
            return float(self._value(right.sum(), found.sum(), wanted.sum()))
        values = self._value(right, found, wanted)
        if self.average is None:
            return values
        there = (found + wanted) > 0  # classes that are neither found nor wanted do not count
        weights = wanted if self.average == "weighted" else there.astype(np.int64)
        return float((values * weights).sum() / max(weights.sum(), 1))


class Precision(_OfMatrix):
    """The share of right ones among what was taken for a class.

    Args:
        average: over classes: "macro", "micro" (all examples at once), "weighted" (by how often a
            class is wanted), or None for a number for each class.

    >>> metric = nm.metrics.Precision(2, average=None)
    >>> metric.update(nm.asarray([0, 1, 1]), nm.asarray([0, 0, 1]))
    >>> metric.compute().tolist()
    [1.0, 0.5]
    """

    def _value(self, right: Array, found: Array, wanted: Array) -> Array:
        return _ratio(right, found)


class Recall(_OfMatrix):
    """The share of a class that was found.

    >>> metric = nm.metrics.Recall(2, average=None)
    >>> metric.update(nm.asarray([0, 1, 1]), nm.asarray([0, 0, 1]))
    >>> metric.compute().tolist()
    [0.5, 1.0]
    """

    def _value(self, right: Array, found: Array, wanted: Array) -> Array:
        return _ratio(right, wanted)


class F1(_OfMatrix):
    """The harmonic mean of precision and recall.

    >>> metric = nm.metrics.F1(2)
    >>> metric.update(nm.asarray([0, 1, 1]), nm.asarray([0, 0, 1]))
    >>> round(metric.compute(), 4)
    0.6667
    """

    def _value(self, right: Array, found: Array, wanted: Array) -> Array:
        return _ratio(2.0 * right, found + wanted)


class MeanIoU(_OfMatrix):
    """Intersection over union of each class of a segmentation, averaged.

    >>> metric = nm.metrics.MeanIoU(2)
    >>> metric.update(nm.asarray([[0, 1], [1, 1]]), nm.asarray([[0, 0], [1, 1]]))
    >>> round(metric.compute(), 4)
    0.5833
    """

    def _value(self, right: Array, found: Array, wanted: Array) -> Array:
        return _ratio(right, found + wanted - right)
