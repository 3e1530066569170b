"""Losses of numbers against numbers."""

from __future__ import annotations

import math
from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.functions._base import as_number
from numus.nn.functional._tools import known_outside, measured, reduced
from numus.tensor import Tensor

__all__ = [
    "gaussian_nll_loss", "huber_loss", "l1_loss", "mse_loss", "poisson_nll_loss", "smooth_l1_loss",
]  # fmt: skip


def _difference(op: str, input: Tensor, target: Any) -> Tensor:
    target = nm.asarray(target)
    if input.shape != target.shape:
        raise ShapeError(
            f"{op}: input of shape {input.shape} and target of shape {target.shape} differ; "
            "broadcasting a target is rarely meant (use nm.broadcast_to where it is)"
        )
    if op != "l1_loss" and (input.dtype.is_complex or target.dtype.is_complex):
        raise DTypeError(f"{op}: takes real numbers, not {input.dtype.name}; use l1_loss")
    return input - target


def _weights(op: str, weight: Any, loss: Tensor) -> Tensor:
    weight = nm.asarray(weight)
    if weight.shape != loss.shape:
        raise ShapeError(f"{op}: weight of shape {weight.shape} for a loss of {loss.shape}")
    return weight


def _weighted(op: str, loss: Tensor, weight: Any, reduction: str) -> Tensor:
    """Reduce a loss whose elements have weights: their mean is a weighted one."""
    if weight is None:
        return reduced(loss, reduction, op)
    weight = _weights(op, weight, loss)
    if reduction == "mean":
        return (loss * weight).sum() / weight.sum()
    return reduced(loss * weight, reduction, op)


@measured
def mse_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Tensor:
    """The square of the difference.

    >>> from numus.nn import functional as F
    >>> F.mse_loss(nm.asarray([1.0, 2.0]), nm.asarray([1.0, 4.0])).item()
    2.0
    """
    squares = nm.square(_difference("mse_loss", input, target))
    return _weighted("mse_loss", squares, weight, reduction)


@measured
def l1_loss(input: Any, target: Any, reduction: str = "mean", weight: Any = None) -> Tensor:
    """The size of the difference."""
    return _weighted("l1_loss", nm.abs(_difference("l1_loss", input, target)), weight, reduction)


@measured
def smooth_l1_loss(input: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """The size of the difference, rounded off to a square below beta."""
    op = "smooth_l1_loss"
    if beta < 0:
        raise ValueError(f"{op}: beta must not be negative, it is {beta}")
    difference = _difference(op, input, target)
    size = nm.abs(difference)
    if not beta:
        return reduced(size, reduction, op)
    square = nm.square(difference) * (0.5 / beta)
    return reduced(nm.where(size < beta, square, size - 0.5 * beta), reduction, op)


@measured
def huber_loss(
    input: Any, target: Any, reduction: str = "mean", delta: float = 1.0, weight: Any = None
) -> Tensor:
    """Half the square of the difference, straight above delta."""
    op = "huber_loss"
    if delta <= 0:
        raise ValueError(f"{op}: delta must be positive, it is {delta}")
    difference = _difference(op, input, target)
    size = nm.abs(difference)
    bent = nm.where(size < delta, 0.5 * nm.square(difference), delta * (size - 0.5 * delta))
    if weight is not None:  # PyTorch's mean is over elements here, not over weights
        bent = bent * _weights(op, weight, bent)
    return reduced(bent, reduction, op)


@measured
def poisson_nll_loss(
    input: Any,
    target: Any,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """How unlikely a count is under a Poisson distribution with this (logarithm of a) rate.

    Args:
        full: add Stirling's approximation of log(target!).
    """
    target = nm.asarray(target)
    if log_input:
        loss = nm.exp(input) - target * input
    else:
        loss = input - target * nm.log(input + eps)
    if full:
        above = nm.clip(target, 1.0)
        stirling = above * nm.log(above) - above + 0.5 * nm.log(2 * math.pi * above)
        loss = loss + nm.where(target > 1, stirling, 0.0)
    return reduced(loss, reduction, "poisson_nll_loss")


@measured
def gaussian_nll_loss(
    input: Any,
    target: Any,
    var: Any,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """How unlikely a number is under a normal distribution with this mean and variance.

    Negative variances are an error where the CPU knows them; elsewhere, as on a GPU, their loss is
    NaN.
    """
    var, eps = nm.asarray(var, dtype=input.dtype), as_number(eps, "eps", "gaussian_nll_loss")
    wrong = known_outside(var, 0.0, math.inf)
    if wrong is not None:
        raise ValueError(f"gaussian_nll_loss: var must not be negative, but has {wrong}")
    if var.shape != input.shape and var.shape == input.shape[:-1]:
        var = var[..., None]
    raised = nm.where(var < 0, math.nan, nm.clip(eps - var, 0.0))
    clamped = var + raised.detach()  # the gradient is that of var
    loss = 0.5 * (nm.log(clamped) + nm.square(input - nm.asarray(target)) / clamped)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    return reduced(loss, reduction, "gaussian_nll_loss")
