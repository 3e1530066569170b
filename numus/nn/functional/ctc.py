"""Connectionist temporal classification: sequences against shorter ones without an alignment."""

from __future__ import annotations

import functools
import operator
from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.nn.functional._tools import measured, reduced
from numus.tensor import Tensor

__all__ = ["ctc_loss"]

# Stands for log 0: finite, so that gradients through impossible paths are 0 and not NaN.
_NEVER = -1e30


@measured
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Minus the logarithm of the probability of all alignments of targets to frames.

    Args:
        log_probs: logarithms of probabilities, (T, N, C) or (T, C).
        targets: classes, (N, S), or all targets one after the other.
        input_lengths: how many of the T frames count, for each example.
        target_lengths: how long each target is.
        zero_infinity: give 0 for targets that do not fit into their frames, instead of inf.
    """
    op = "ctc_loss"
    single = log_probs.ndim == 2
    if single:
        log_probs = log_probs[:, None]
    if log_probs.ndim != 3:
        raise ShapeError(f"{op}: log_probs are (T, N, C) or (T, C), not {log_probs.shape}")
    frames, batch, _ = log_probs.shape
    given = (nm.asarray(x).reshape(-1).tolist() for x in (input_lengths, target_lengths))
    lengths = [list(map(int, numbers)) for numbers in given]
    if len(lengths[0]) != batch or len(lengths[1]) != batch or max(lengths[0], default=0) > frames:
        raise ShapeError(
            f"{op}: input_lengths {lengths[0]} and target_lengths {lengths[1]} do not fit "
            f"log_probs of shape {log_probs.shape}"
        )
    classes = nm.asarray(targets)
    if not classes.dtype.is_integer:
        raise DTypeError(f"{op}: targets are class indices, integers, not {classes.dtype.name}")
    rows = _rows(op, classes, lengths[1])
    # blanks between all classes and at both ends
    states = 2 * rows.shape[1] + 1
    odd = nm.arange(states, device=log_probs.device) % 2 == 1
    pairs = nm.stack([nm.full(rows.shape, blank, dtype=rows.dtype), rows], axis=2)
    labels = nm.pad(pairs.reshape((batch, states - 1)), ((0, 0), (0, 1)), constant_values=blank)
    before = nm.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :states]
    skips = odd & (labels != before)  # a class that differs from the last may follow it at once
    emitted = nm.take_along_axis(log_probs, labels[None], axis=2)  # (T, N, states)

    start = nm.arange(states, device=log_probs.device) < 2
    alpha = nm.where(start, emitted[0], _NEVER)
    stop = nm.asarray(lengths[0], device=log_probs.device)[:, None]
    for t in range(1, frames):
        one, two = (_shifted(alpha, by) for by in (1, 2))
        paths = _log_add(alpha, one, nm.where(skips, two, _NEVER))
        alpha = nm.where(t < stop, nm.maximum(paths + emitted[t], _NEVER), alpha)

    last = 2 * nm.asarray(lengths[1], device=log_probs.device)[:, None]
    count = nm.arange(states, device=log_probs.device)
    ends = nm.where((count == last) | (count == last - 1), alpha, _NEVER)
    loss = -nm.logsumexp(ends, axis=1)
    impossible = loss > -_NEVER / 2
    loss = nm.where(impossible, 0.0 if zero_infinity else nm.inf, loss)
    if reduction == "mean":
        divisor = nm.asarray([max(n, 1) for n in lengths[1]], dtype=loss.dtype)
        return (loss / divisor).mean()
    return reduced(loss[0] if single else loss, reduction, op)


def _rows(op: str, targets: Tensor, lengths: list[int]) -> Tensor:
    """Targets as (N, S), padded at their ends."""
    longest = max(lengths, default=0)
    if targets.ndim == 2:
        if targets.shape[0] != len(lengths) or targets.shape[1] < longest:
            raise ShapeError(f"{op}: targets of shape {targets.shape} for lengths {lengths}")
        return targets[:, :longest]
    if targets.size < sum(lengths):
        raise ShapeError(f"{op}: {targets.size} targets for lengths {lengths}")
    rows, at = [], 0
    for n in lengths:
        rows.append(nm.pad(targets[at : at + n], (0, longest - n)))
        at += n
    return nm.stack(rows)


def _shifted(alpha: Tensor, by: int) -> Tensor:
    return nm.pad(alpha, ((0, 0), (by, 0)), constant_values=_NEVER)[:, : alpha.shape[1]]


def _log_add(*terms: Tensor) -> Tensor:
    top = functools.reduce(nm.maximum, terms).detach()
    return top + nm.log(functools.reduce(operator.add, [nm.exp(term - top) for term in terms]))
