"""Metrics of scores: area under the ROC curve, average precision; and perplexity."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.metrics.metric import Array, Metric, host

__all__ = ["AUROC", "AveragePrecision", "Perplexity"]


def area_under_roc(scores: Array, wanted: Array) -> float:
    """The chance that a positive example scores higher than a negative one; ties count half."""
    positive = int(wanted.sum())
    negative = len(wanted) - positive
    if not positive or not negative:
        return float("nan")
    order = np.argsort(scores, kind="stable")
    ranked = scores[order]
    first = np.flatnonzero(np.concatenate([[True], ranked[1:] != ranked[:-1]]))
    counts = np.diff(np.concatenate([first, [len(ranked)]]))
    ranks = np.repeat(first + (counts + 1) / 2.0, counts)  # of equal scores, their mean
    total = ranks[wanted[order] != 0].sum()
    return float((total - positive * (positive + 1) / 2.0) / (positive * negative))


def average_precision(scores: Array, wanted: Array) -> float:
    """The sum over thresholds of precision times the gain of recall."""
    positive = int(wanted.sum())
    if not positive:
        return 0.0
    order = np.argsort(-scores, kind="stable")
    ranked, hits = scores[order], np.cumsum(wanted[order] != 0)
    last = np.flatnonzero(np.concatenate([ranked[1:] != ranked[:-1], [True]]))
    precision, recall = hits[last] / (last + 1.0), hits[last] / positive
    return float((np.diff(np.concatenate([[0.0], recall])) * precision).sum())


class _OfScores(Metric):
    """Scores and targets of all examples, kept."""

    collected: ClassVar[tuple[str, ...]] = ("scores", "targets")

    def __init__(self, num_classes: int | None = None, average: str | None = "macro") -> None:
        if average not in ("macro", None):
            raise ValueError(
                f"{type(self).__name__}: average must be 'macro' or None, not {average!r}"
            )
        self.num_classes, self.average = num_classes, average
        super().__init__()

    def update(self, scores: Any, targets: Any) -> None:
        """Add scores (batch,) and targets of 0 or 1; with num_classes, scores (batch, classes) and
        classes."""
        op = type(self).__name__
        marks, wanted = host(scores).astype(np.float64), host(targets)
        fits = marks.shape == wanted.shape
        if self.num_classes is not None:
            fits = marks.shape == (*wanted.shape, self.num_classes) and wanted.ndim == 1
        if not fits:
            raise ShapeError(f"{op}: scores of shape {marks.shape} for targets of {wanted.shape}")
        if np.isnan(marks).any():
            raise ValueError(f"{op}: scores have nan, which has no rank")
        most = 2 if self.num_classes is None else self.num_classes
        if wanted.size and (wanted.min() < 0 or wanted.max() >= most):
            raise ValueError(f"{op}: targets must be from 0 to {most - 1}")
        flat = marks.ravel() if self.num_classes is None else marks
        self._collect(scores=flat, targets=wanted.ravel().astype(np.int64))

    def _value(self, scores: Array, wanted: Array) -> float:
        raise TypeError(f"{type(self).__name__} has no formula")

    def compute(self) -> Any:
        """The value, averaged over classes (each against the rest), or one for each class."""
        scores, wanted = self._all("scores"), self._all("targets")
        if self.num_classes is None:
            return self._value(scores, wanted)
        values = [self._value(scores[:, c], wanted == c) for c in range(self.num_classes)]
        return float(np.mean(values)) if self.average == "macro" else np.asarray(values)


class AUROC(_OfScores):
    """The area under the receiver operating characteristic, exactly.

    >>> metric = nm.metrics.AUROC()
    >>> metric.update(nm.asarray([0.1, 0.4, 0.35, 0.8]), nm.asarray([0, 0, 1, 1]))
    >>> metric.compute()
    0.75
    """

    def _value(self, scores: Array, wanted: Array) -> float:
        return area_under_roc(scores, wanted)


class AveragePrecision(_OfScores):
    """The area under the curve of precision over recall, as a sum of steps.

    >>> metric = nm.metrics.AveragePrecision()
    >>> metric.update(nm.asarray([0.1, 0.4, 0.35, 0.8]), nm.asarray([0, 0, 1, 1]))
    >>> round(metric.compute(), 4)
    0.8333
    """

    def _value(self, scores: Array, wanted: Array) -> float:
        return average_precision(scores, wanted)


class Perplexity(Metric):
    """exp of the mean negative log-likelihood of the next token.

    >>> metric = nm.metrics.Perplexity()
    >>> metric.update(nm.zeros((1, 3, 8)), nm.asarray([[1, 2, 3]]))
    >>> round(metric.compute(), 4)
    8.0
    """

    def __init__(self, *, ignore_index: int | None = -100) -> None:
        self.ignore_index = ignore_index
        super().__init__()

    def _empty(self) -> dict[str, Array]:
        return {"loss": np.zeros(()), "count": np.zeros((), np.int64)}

    def update(self, logits: Any, targets: Any) -> None:
        """Add logits (…, vocabulary) and the tokens they should be."""
        x = nm.asarray(logits)
        wanted = nm.asarray(targets, device=x.device)
        if x.shape[:-1] != wanted.shape:
            raise ShapeError(f"Perplexity: logits of {x.shape} for targets of {wanted.shape}")
        counted = nm.ones_like(wanted, dtype=nm.bool)
        if self.ignore_index is not None:
            counted = wanted != self.ignore_index
        logs = nm.log_softmax(x.astype(nm.float32), axis=-1)
        at = nm.where(counted, wanted, 0)[..., None]
        losses = nm.where(counted, -nm.take_along_axis(logs, at, axis=-1)[..., 0], 0.0)
        self._add(loss=float(nm.sum(losses).item()), count=int(nm.sum(counted).item()))

    def compute(self) -> float:
        """The perplexity of all tokens that were added; nan of none."""
        count = int(self._state["count"])
        return math.exp(float(self._state["loss"]) / count) if count else float("nan")
