"""GPTQ (Frantar et al. 2023): columns are rounded in turn, and the rest makes up for the error.

Weights W and inputs X: the error of column j, divided by the j-th diagonal entry of the Cholesky
factor of the inverse Hessian, is subtracted from all later columns. Updates are applied to a block
of columns at a time, and to those after it at its end.

SpQR (Dettmers et al. 2023) does the same, and keeps single weights of a group in full: those
without which the group would be rounded so much better that it is worth it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.quant.algorithms.outliers import Outliers, isolated_weights
from numus.quant.algorithms.search import Array, as_groups, build, codes_of, host_matrix, ranges
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor

BLOCK = 128  # columns
HALF = float(np.finfo(np.float16).max)  # what weights in full are stored as


def inverse_factor(hessian: Array, damp: float, what: str) -> Array:
    """The upper Cholesky factor of the inverse of a Hessian, damped by a part of its mean."""
    damped = hessian + damp * np.mean(np.diagonal(hessian)) * np.eye(len(hessian))
    inverse = nm.linalg.inv(nm.asarray(damped, dtype=nm.float64))
    factor = nm.linalg.cholesky((inverse + inverse.T) / 2).T
    found = np.asarray(factor)
    if not np.isfinite(found).all():
        raise ValueError(
            f"{what}: the Hessian is not positive definite; more calibration data helps, or a "
            "larger damp"
        )
    return found


def gptq(
    weight: Any, hessian: Any, format: Integers, act_order: bool = False, damp: float = 0.01
) -> QTensor:
    """A weight rounded so that its products with the calibration inputs change least.

    Args:
        hessian: Σ x xᵀ over the inputs, (columns, columns).
        act_order: columns with large inputs first; scales are then those of the given weight.
        damp: what is added to the diagonal, as a part of its mean.
    """
    codes, scale, zero, _ = _rounded_columns(weight, hessian, format, "gptq", act_order, damp)
    return build(codes, scale, zero, format, weight)


def spqr(
    weight: Any,
    hessian: Any,
    format: Integers,
    threshold: float | None = None,
    damp: float = 0.01,
) -> tuple[QTensor, Outliers]:
    """GPTQ, and single weights that are kept in full beside it: about 1 % of normal ones.

    >>> w, x = nm.random.normal((8, 64)), nm.random.normal((256, 64))
    >>> q, outliers = nm.quant.spqr(w, x.T @ x, nm.quant.Integers(3, 32))
    >>> q.shape, outliers.values.dtype
    ((8, 64), float16)

    Args:
        hessian: Σ x xᵀ over the inputs, (columns, columns).
        threshold: how much less a group's squared error must be without a weight for it to be kept
            in full, relative to the mean over all weights of their squares, each as costly as its
            column. 0 keeps all whose absence helps, a large number none. If left out, 0.2 for 4
            bits and 4 times more for each bit less, as the squares of steps grow.
        damp: what is added to the diagonal, as a part of its mean.
    """
    threshold = 0.2 * 4.0 ** (4 - format.bits) if threshold is None else threshold
    if not threshold >= 0:
        raise ValueError(f"spqr: threshold={threshold} must be at least 0")
    found = _rounded_columns(weight, hessian, format, "spqr", False, damp, threshold)
    codes, scale, zero, kept = found
    return build(codes, scale, zero, format, weight), Outliers.of(kept, nm.asarray(weight).device)


def _rounded_columns(
    weight: Any,
    hessian: Any,
    format: Integers,
    what: str,
    act_order: bool,
    damp: float,
    threshold: float = np.inf,
) -> tuple[Array, Array, Array, Array]:
    """Codes, scales, zero points, and weights kept in full, zero elsewhere."""
    w = host_matrix(weight, format, what)
    rows, columns = w.shape
    h = np.array(np.asarray(hessian), dtype=np.float64)
    if h.shape != (columns, columns):
        raise ShapeError(f"{what}: a Hessian of shape {h.shape} for a weight of shape {w.shape}")
    if not np.isfinite(h).all():
        raise ValueError(f"{what}: the Hessian has NaN or infinite entries")
    dead = np.diagonal(h) == 0
    h[dead, dead] = 1
    w[:, dead] = 0
    size = format.group if format.group > 0 else columns
    scale, zero = ranges(as_groups(w, format), format)
    order = np.argsort(-np.diagonal(h), kind="stable") if act_order else np.arange(columns)
    w, h = w[:, order], h[np.ix_(order, order)]
    factor = inverse_factor(h, damp, what)
    codes, kept = np.zeros((rows, columns)), np.zeros((rows, columns))
    costs = 1 / np.diagonal(factor) ** 2  # of a squared error, by column
    worth = (
        threshold * float(np.mean(np.var(w, axis=0) * costs))
        if threshold < np.inf and rows
        else np.inf
    )
    single = np.zeros((rows, columns), bool)
    for start in range(0, columns, BLOCK):
        stop = min(start + BLOCK, columns)
        errors = np.zeros((rows, stop - start))
        for j in range(start, stop):
            g = order[j] // size
            if not act_order and j % size == 0:  # of what the columns before have made of it
                part = np.zeros((rows, 1, size))
                # the block's own columns are up to date, later ones lack this block's errors
                now = w[:, j : j + size].copy()
                if j + size > stop:
                    own = slice(0, j - start)
                    now[:, stop - j :] -= errors[:, own] @ factor[start:j, stop : j + size]
                if worth < np.inf:
                    own = slice(j, j + size)
                    single[:, own] = isolated_weights(now, costs[own], format, worth)
                    now[single[:, own]] = 0
                part[:, 0, : now.shape[1]] = now
                s, z = ranges(part, format)
                scale[:, g], zero[:, g] = s[:, 0], z[:, 0]
            s, z = scale[:, g], zero[:, g]
            codes[:, j] = codes_of(w[:, j], s, z, format)
            if single[:, j].any():
                codes[single[:, j], j] = z[single[:, j]]
                kept[:, j] = np.where(single[:, j], w[:, j].clip(-HALF, HALF), 0).astype(np.float16)
            errors[:, j - start] = (w[:, j] - (codes[:, j] - z) * s - kept[:, j]) / factor[j, j]
            w[:, j:stop] -= np.outer(errors[:, j - start], factor[j, j:stop])
        w[:, stop:] -= errors @ factor[start:stop, stop:]
    return codes[:, np.argsort(order)], scale, zero, kept
