"""GPTQ (Frantar et al. 2023): columns are rounded in turn, and the rest makes up for the error.

Weights W and inputs X: the error of column j, divided by the j-th diagonal entry of the Cholesky
factor of the inverse Hessian, is subtracted from all later columns. Updates are applied to a block
of columns at a time, and to those after it at its end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.quant.algorithms.search import Array, as_groups, build, codes_of, host_matrix, ranges
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor

BLOCK = 128  # columns


def inverse_factor(hessian: Array, damp: float) -> Array:
    """The upper Cholesky factor of the inverse of a Hessian, damped by a part of its mean."""
    damped = hessian + damp * np.mean(np.diagonal(hessian)) * np.eye(len(hessian))
    inverse = nm.linalg.inv(nm.asarray(damped, dtype=nm.float64))
    factor = nm.linalg.cholesky((inverse + inverse.T) / 2).T
    found = np.asarray(factor)
    if not np.isfinite(found).all():
        raise ValueError(
            "gptq: the Hessian is not positive definite; more calibration data helps, or a larger "
            "damp"
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
    w = host_matrix(weight, format, "gptq")
    rows, columns = w.shape
    h = np.array(np.asarray(hessian), dtype=np.float64)
    if h.shape != (columns, columns):
        raise ShapeError(f"gptq: a Hessian of shape {h.shape} for a weight of shape {w.shape}")
    if not np.isfinite(h).all():
        raise ValueError("gptq: the Hessian has NaN or infinite entries")
    dead = np.diagonal(h) == 0
    h[dead, dead] = 1
    w[:, dead] = 0
    size = format.group if format.group > 0 else columns
    scale, zero = ranges(as_groups(w, format), format)
    order = np.argsort(-np.diagonal(h), kind="stable") if act_order else np.arange(columns)
    w, h = w[:, order], h[np.ix_(order, order)]
    factor = inverse_factor(h, damp)
    codes = np.zeros((rows, columns))
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
                part[:, 0, : now.shape[1]] = now
                s, z = ranges(part, format)
                scale[:, g], zero[:, g] = s[:, 0], z[:, 0]
            s, z = scale[:, g], zero[:, g]
            codes[:, j] = codes_of(w[:, j], s, z, format)
            errors[:, j - start] = (w[:, j] - (codes[:, j] - z) * s) / factor[j, j]
            w[:, j:stop] -= np.outer(errors[:, j - start], factor[j, j:stop])
        w[:, stop:] -= errors @ factor[start:stop, stop:]
    return build(codes[:, np.argsort(order)], scale, zero, format, weight)
