"""Losses of scores against classes and probabilities."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import DTypeError, IndexRangeError, ShapeError
from numus.functions.indexing.index_checks import host_values
from numus.functions.template_cache import templated
from numus.nn.functional._tools import known_outside, measured, reduced, vector
from numus.shapes import as_int
from numus.tensor import Tensor

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy",
    "cross_entropy_loss", "focal_loss", "kl_div", "multi_margin_loss", "multilabel_margin_loss",
    "multilabel_soft_margin_loss", "nll_loss", "sigmoid_focal_loss", "soft_margin_loss",
]  # fmt: skip


# -- one class among several ----------------------------------------------------------------------


def _class_axis(op: str, scores: Tensor) -> int:
    if scores.ndim == 0:
        raise ShapeError(f"{op}: takes scores of shape (C,) or (N, C, …), not a single number")
    return min(scores.ndim - 1, 1)


def checked_classes(
    op: str, target: Tensor, classes: int, shape: tuple[int, ...], ignored: int
) -> Tensor:
    """Class indices that fit the scores; those that can be looked at are looked at."""
    if not target.dtype.is_integer:
        raise DTypeError(f"{op}: class indices are integers, not {target.dtype.name}")
    if target.shape != shape:
        raise ShapeError(f"{op}: the target's shape is {target.shape}, the scores ask for {shape}")
    known = host_values(target._node)
    if known is not None and known.size:
        outside = ((known < 0) | (known >= classes)) & (known != ignored)
        if outside.any():
            raise IndexRangeError(
                f"{op}: class {known[outside].flat[0]} is not one of {classes} (0 to {classes - 1})"
            )
    return target


def _fitting(op: str, scores: Tensor, target: Any, ignored: int) -> Tensor:
    """Class indices for scores, looked at."""
    ignored = as_int(ignored, "ignore_index", op)
    axis = _class_axis(op, scores)
    shape = (*scores.shape[:axis], *scores.shape[axis + 1 :])
    return checked_classes(op, nm.asarray(target), scores.shape[axis], shape, ignored)


def _one_hot_targets(
    op: str, scores: Tensor, target: Tensor, weight: Any, ignored: int
) -> tuple[Tensor, Tensor, Tensor]:
    """One-hot masks of targets (for fusion, not gathers), their weights, whether they count."""
    axis = _class_axis(op, scores)
    classes = scores.shape[axis]
    count = nm.arange(classes, dtype=target.dtype, device=scores.device)
    count = count.reshape((classes, *(1,) * (scores.ndim - 1 - axis)))
    hit = nm.expand_dims(target, axis) == count
    counts = (target != ignored).astype(scores.dtype)
    if weight is None:
        return hit, counts, counts
    own = _class_weights(op, weight, scores, axis)
    return hit, nm.sum(nm.where(hit, own, 0.0), axis=axis) * counts, counts


def _class_weights(op: str, weight: Any, scores: Tensor, axis: int) -> Tensor:
    weight = nm.asarray(weight).astype(scores.dtype, copy=False)
    classes = scores.shape[axis]
    if weight.shape != (classes,):
        raise ShapeError(f"{op}: weight of shape {weight.shape} for {classes} classes")
    return weight.reshape((classes, *(1,) * (scores.ndim - 1 - axis)))


def _weighted_mean(loss: Tensor, weights: Tensor, reduction: str, op: str) -> Tensor:
    if reduction == "mean":
        return loss.sum() / weights.sum()
    return reduced(loss, reduction, op)


@measured
def nll_loss(
    input: Any, target: Any, weight: Any = None, ignore_index: int = -100, reduction: str = "mean"
) -> Tensor:
    """Minus the logarithms of probabilities at the target classes; the mean is weighted."""
    op = "nll_loss"
    target = _fitting(op, input, target, ignore_index)
    hit, weights, _ = _one_hot_targets(op, input, target, weight, ignore_index)
    own = -nm.sum(nm.where(hit, input, 0.0), axis=_class_axis(op, input))
    return _weighted_mean(own * weights, weights, reduction, op)


@measured
def cross_entropy(
    input: Any,
    target: Any,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Scores (C,) or (N, C, …) against class indices, or against probabilities of all classes.

    Args:
        weight: one number per class.
        ignore_index: a class index that does not count.
        label_smoothing: the share of each target that is distributed over all classes.

    >>> from numus.nn import functional as F
    >>> round(F.cross_entropy(nm.zeros((2, 4)), nm.asarray([0, 3])).item(), 4)
    1.3863
    """
    op = "cross_entropy"
    if not 0.0 <= label_smoothing <= 1.0:
        raise ValueError(f"{op}: label_smoothing={label_smoothing} must be between 0 and 1")
    target = nm.asarray(target)
    if target.dtype.is_floating:
        if target.shape != input.shape and target.ndim == input.ndim - 1:
            raise DTypeError(
                f"{op}: class indices must be integers, not {target.dtype.name}; cast them with "
                f"astype(nm.int64), or give probabilities of all classes, of shape {input.shape}"
            )
        logs = nm.log_softmax(input, axis=_class_axis(op, input))
        return _against_probabilities(logs, target, weight, reduction, label_smoothing)
    target = _fitting(op, input, target, ignore_index)
    return _against_classes(input, target, weight, ignore_index, reduction, label_smoothing)


cross_entropy_loss = cross_entropy  # the name that RUMUS gives it


@templated
def _against_classes(
    input: Tensor,
    target: Tensor,
    weight: Any,
    ignore_index: int,
    reduction: str,
    label_smoothing: float,
) -> Tensor:
    op = "cross_entropy"
    axis = _class_axis(op, input)
    classes = input.shape[axis]
    logs = nm.log_softmax(input, axis=axis)
    hit, weights, counts = _one_hot_targets(op, input, target, weight, ignore_index)
    loss = -nm.sum(nm.where(hit, logs, 0.0), axis=axis) * weights
    if label_smoothing:
        weighted = logs if weight is None else logs * _class_weights(op, weight, logs, axis)
        smooth = -nm.sum(weighted, axis=axis) * counts
        loss = (1 - label_smoothing) * loss + (label_smoothing / classes) * smooth
    return _weighted_mean(loss, weights, reduction, op)


def _against_probabilities(
    logs: Tensor, target: Tensor, weight: Any, reduction: str, smoothing: float
) -> Tensor:
    op = "cross_entropy"
    axis = _class_axis(op, logs)
    if target.shape != logs.shape:
        raise ShapeError(
            f"{op}: probabilities of shape {target.shape} for scores of shape {logs.shape}"
        )
    target = target.astype(logs.dtype, copy=False)
    if smoothing:
        target = target * (1 - smoothing) + smoothing / logs.shape[axis]
    if weight is not None:
        target = target * _class_weights(op, weight, logs, axis)
    return reduced(-nm.sum(logs * target, axis=axis), reduction, op)


@measured
def focal_loss(
    input: Any,
    target: Any,
    gamma: float = 2.0,
    weight: Any = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """Cross entropy in which what is already right counts less, by the factor (1 - p)^gamma."""
    op = "focal_loss"
    axis = _class_axis(op, input)
    target = _fitting(op, input, target, ignore_index)
    hit, weights, _ = _one_hot_targets(op, input, target, weight, ignore_index)
    log_p = nm.sum(nm.where(hit, nm.log_softmax(input, axis=axis), 0.0), axis=axis)
    loss = -weights * _power(-nm.expm1(log_p), gamma) * log_p
    return _weighted_mean(loss, weights, reduction, op)


def _power(missing: Tensor, gamma: float) -> Tensor:
    """A probability to a power; one that vanished has no slope, rather than an infinite one."""
    return nm.clip(missing, nm.finfo(missing.dtype).smallest_normal) ** gamma


@measured
def multi_margin_loss(
    input: Any,
    target: Any,
    p: int = 1,
    margin: float = 1.0,
    weight: Any = None,
    reduction: str = "mean",
) -> Tensor:
    """By how much other classes come nearer to the target's score than the margin."""
    op = "multi_margin_loss"
    if p not in (1, 2):
        raise ValueError(f"{op}: p is 1 or 2, not {p}")
    input = vector(input)
    axis = _class_axis(op, input)
    target = _fitting(op, input, target, -100)
    hit, weights, _ = _one_hot_targets(op, input, target, weight, -100)
    own = nm.sum(nm.where(hit, input, 0.0), axis=axis, keepdims=True)
    short = nm.relu(margin - own + input) ** p
    loss = nm.sum(nm.where(hit, 0.0, short), axis=axis) * weights / input.shape[axis]
    return reduced(loss, reduction, op)


# -- yes or no ------------------------------------------------------------------------------------


def _logs(p: Tensor) -> tuple[Tensor, Tensor]:
    return nm.maximum(nm.log1p(-p), -100.0), nm.maximum(nm.log(p), -100.0)


@nm.custom_jvp
def _surprise(p: Tensor, target: Tensor) -> Tensor:
    no, yes = _logs(p)
    return (target - 1) * no - target * yes


@_surprise.defjvp
def _surprise_jvp(primals: tuple[Tensor, ...], tangents: tuple[Any, ...]) -> tuple[Tensor, Any]:
    """The slope is clamped at 0 and 1, which a sigmoid reaches and where it has no bound."""
    (p, target), (dp, dtarget) = primals, tangents
    no, yes = _logs(p)
    slope = (p - target) / nm.maximum(p * (1 - p), 1e-12)
    return _surprise(p, target), slope * dp + (no - yes) * dtarget


@measured
def binary_cross_entropy(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Probabilities against probabilities; logarithms are clamped to -100.

    Numbers outside [0, 1] are an error where the CPU knows them; elsewhere, as on a GPU, the loss
    of such an input is NaN.
    """
    op = "binary_cross_entropy"
    given, target = nm.asarray(target), _like(op, input, target)
    for name, x in (("input", input), ("target", given)):
        wrong = known_outside(x, 0.0, 1.0)
        if wrong is not None:
            raise ValueError(
                f"{op}: {name} has {wrong}, but probabilities lie in [0, 1]; for scores use "
                "binary_cross_entropy_with_logits"
            )
    loss = _surprise(input, target)
    return reduced(loss if weight is None else loss * weight, reduction, op)


@measured
def binary_cross_entropy_with_logits(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean", pos_weight: Any = None
) -> Tensor:
    """Scores against probabilities, without overflow.

    Args:
        pos_weight: how much more a yes counts than a no.
    """
    op = "binary_cross_entropy_with_logits"
    target = _like(op, input, target)
    no = nm.softplus(-input)  # minus the logarithm of the probability
    if pos_weight is not None:
        no = no * (1 + (nm.asarray(pos_weight).astype(input.dtype, copy=False) - 1) * target)
    loss = (1 - target) * input + no
    return reduced(loss if weight is None else loss * weight, reduction, op)


def _like(op: str, input: Tensor, target: Any) -> Tensor:
    target = _same_shape(op, input, target)
    if target.dtype.is_complex or not input.dtype.is_floating:
        raise DTypeError(
            f"{op}: takes a float input and a real target, not {input.dtype.name} and "
            f"{target.dtype.name}"
        )
    return target.astype(input.dtype, copy=False)


def _same_shape(op: str, input: Tensor, target: Any) -> Tensor:
    target = nm.asarray(target)
    if target.shape != input.shape:
        raise ShapeError(
            f"{op}: input of shape {input.shape} and target of shape {target.shape} differ"
        )
    return target


@measured
def sigmoid_focal_loss(
    input: Any, target: Any, alpha: float = 0.25, gamma: float = 2.0, reduction: str = "none"
) -> Tensor:
    """Binary cross entropy in which what is already right counts less.

    Args:
        alpha: the weight of a yes, 1 - alpha that of a no; negative: both count alike.
    """
    op = "sigmoid_focal_loss"
    target = _like(op, input, target)
    loss = nm.softplus(-input) + (1 - target) * input
    missing = nm.sigmoid(-input) * target + nm.sigmoid(input) * (1 - target)
    loss = loss * _power(missing, gamma)
    if alpha >= 0:
        loss = loss * (alpha * target + (1 - alpha) * (1 - target))
    return reduced(loss, reduction, op)


@measured
def soft_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Tensor:
    """log(1 + exp(-target * input)) for targets of 1 and -1."""
    target = _like("soft_margin_loss", input, target)
    return reduced(nm.softplus(-target * input), reduction, "soft_margin_loss")


@measured
def multilabel_soft_margin_loss(
    input: Any, target: Any, weight: Any = None, reduction: str = "mean"
) -> Tensor:
    """Binary cross entropy of scores, averaged over the classes (the last axis)."""
    op = "multilabel_soft_margin_loss"
    target = _like(op, input, target)
    loss = nm.softplus(-input) + (1 - target) * input
    if weight is not None:
        loss = loss * weight
    return reduced(vector(loss).mean(axis=-1), reduction, op)


@measured
def multilabel_margin_loss(input: Any, target: Any, reduction: str = "mean") -> Tensor:
    """By how much classes that are not targets come nearer to those that are than 1.

    A row of the target lists class indices; the first negative one ends it.
    """
    op = "multilabel_margin_loss"
    target = vector(_same_shape(op, input, target))
    input = vector(input)
    classes = input.shape[-1]
    if not target.dtype.is_integer:
        raise DTypeError(f"{op}: class indices are integers, not {target.dtype.name}")
    wrong = known_outside(target, -math.inf, classes - 1)
    if wrong is not None:
        raise IndexRangeError(f"{op}: class {wrong} is not one of {classes} (0 to {classes - 1})")
    listed = nm.cumsum((target < 0).astype(nm.int32), axis=-1) == 0
    count = nm.arange(classes, device=input.device)
    named = (target[..., None] == count) & listed[..., None]  # (…, place, class)
    is_target = nm.any(named, axis=-2)
    own = nm.sum(nm.where(named, input[..., None, :], 0.0), axis=-1)
    short = nm.relu(1 - own[..., None] + input[..., None, :])
    counts = listed[..., None] & ~is_target[..., None, :]
    loss = nm.sum(nm.where(counts, short, 0.0), axis=(-2, -1)) / classes
    return reduced(loss, reduction, op)


# -- distributions --------------------------------------------------------------------------------


@measured
def kl_div(input: Any, target: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """How far the distribution whose logarithm is `input` is from the target.

    Args:
        reduction: "batchmean" (the sum over the number of examples) is the divergence itself.
        log_target: whether the target is a logarithm too.
    """
    target = _same_shape("kl_div", input, target)
    if log_target:
        loss = nm.exp(target) * (target - input)
    else:
        known = target > 0
        log = nm.log(nm.where(known, target, 1.0))
        loss = nm.where(known, target * (log - input), -target * input)
    if reduction == "batchmean":
        return loss.sum() / max(input.shape[0] if input.ndim else 1, 1)
    return reduced(loss, reduction, "kl_div")
