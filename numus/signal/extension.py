"""Signals beyond their ends: each sample there is a sum of a few of those between."""

from __future__ import annotations

import functools

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.signal._arguments import Array
from numus.tensor import Tensor

MODES = (
    *("constant", "wrap", "edge", "smooth", "symmetric", "reflect"),
    *("antisymmetric", "antireflect", "line"),
)

Term = tuple[Array, Array]  # samples, and what they are multiplied by


def _terms(mode: str, n: int, t: Array) -> list[Term]:
    """The samples that position t, below 0 or from n on, is a sum of."""
    one, nearest = np.ones(t.size), np.clip(t, 0, n - 1)
    beyond = t - nearest  # samples from the end
    if mode == "wrap":
        return [(t % n, one)]
    if mode == "edge" or (n == 1 and mode not in ("symmetric", "antisymmetric")):
        return [(nearest, one)]
    if mode in ("symmetric", "antisymmetric"):
        r = t % (2 * n)
        sign = -1.0 if mode == "antisymmetric" else 1.0
        return [(np.where(r < n, r, 2 * n - 1 - r), np.where(r < n, 1.0, sign))]
    if mode in ("reflect", "antireflect"):
        turns, r = np.divmod(t, 2 * n - 2)
        is_back = r >= n
        at = np.where(is_back, 2 * n - 2 - r, r)
        if mode == "reflect":
            return [(at, one)]
        # the signal turned around its last sample goes on around its first one, a period higher
        return [
            (at, np.where(is_back, -1.0, 1.0)),
            (np.zeros_like(t), -2.0 * turns),
            (np.full_like(t, n - 1), 2.0 * turns + 2.0 * is_back),
        ]
    if mode == "smooth":  # the line through the last two samples
        inner = np.where(t < 0, 1, n - 2)
        return [(nearest, 1.0 + np.abs(beyond)), (inner, -1.0 * np.abs(beyond))]
    slope = beyond / (n - 1)  # "line": through the first and the last sample
    return [
        (nearest, one),
        (np.full_like(t, n - 1), slope),
        (np.zeros_like(t), -slope),
    ]


def extended(x: Tensor, axis: int, by: int, mode: str, level: float) -> Tensor:
    """The signal with `by` samples more at both ends of an axis: `level` where it is constant."""
    n = x.shape[axis]
    if mode == "constant":
        margins = [(by, by) if i == axis else (0, 0) for i in range(x.ndim)]
        return nm.pad(x, margins, mode="constant", constant_values=level)
    shape = tuple(by if i == axis else 1 for i in range(x.ndim))
    ends = []
    for start in (-by, n):
        parts = []
        for samples, factors in _terms(mode, n, np.arange(start, start + by)):
            weights = nm.asarray(factors, dtype=dt.real_of(x.dtype), device=x.device)
            part = nm.take(x, nm.asarray(samples, device=x.device), axis=axis)
            parts.append(part * weights.reshape(shape))
        ends.append(functools.reduce(nm.add, parts))
    return nm.concat([ends[0], x, ends[1]], axis=axis)
