"""Scale search: absmax, percentile, least squares (MSE) and least squares under a Hessian."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]

METHODS = ("absmax", "percentile", "mse", "hessian")
SHRINKS = np.linspace(1.0, 0.4, 31)  # of the range, that "mse" and "hessian" try
PERCENTILE = 99.5  # of the magnitudes of a group, that "percentile" keeps in range


def as_groups(w: Array, format: Integers) -> Array:
    """(rows, groups, size), the last group filled with zeros."""
    rows, columns = w.shape
    size = format.group if format.group > 0 else columns
    count = -(-columns // size)
    return np.pad(w, ((0, 0), (0, count * size - columns))).reshape(rows, count, size)


def ranges(groups: Array, format: Integers, shrink: Any = 1.0) -> tuple[Array, Array]:
    """Scales, rounded as they are stored, and zero points of groups, over their last axis."""
    top = (1 << format.bits) - 1
    if format.symmetric:
        scale = np.abs(groups).max(-1) * shrink / (top >> 1)
        zero = np.full(scale.shape, float(1 << (format.bits - 1)))
    else:
        low = np.minimum(groups.min(-1), 0) * shrink
        high = np.maximum(groups.max(-1), 0) * shrink
        scale = (high - low) / top
        zero = low
    scale = stored(scale, format)
    if not format.symmetric:
        zero = np.clip(np.rint(-zero / np.where(scale == 0, 1, scale)), 0, top)
    return scale, zero


def stored(scale: Array, format: Integers) -> Array:
    """Scales as the format keeps them."""
    with np.errstate(over="ignore"):
        kept = scale.astype(format.scale_dtype.np).astype(np.float64)
    if not np.isfinite(kept).all():
        raise ValueError(
            f"{format.name}: a scale of {scale.max():.3g} is beyond {format.scale_dtype.name}; "
            "divide the weight by a number first"
        )
    return kept


def codes_of(x: Array, scale: Array, zero: Array, format: Integers) -> Array:
    top = (1 << format.bits) - 1
    return np.clip(np.rint(x / np.where(scale == 0, 1, scale)) + zero, 0, top)


def host_matrix(w: Any, format: Integers, what: str) -> Array:
    """A weight as float64 on the host, checked."""
    found = np.asarray(nm.asarray(w).detach().astype(nm.float32), dtype=np.float64)
    if found.ndim != 2:
        raise ShapeError(f"{what}: the weight is a matrix, not of shape {found.shape}")
    if not isinstance(format, Integers) or format.group == -1:
        raise ValueError(f"{what}: the format has integers in groups or rows, not {format.name}")
    bad = int((~np.isfinite(found)).sum())
    if bad:
        raise ValueError(f"{what}: {bad} of {found.size} weights are NaN or infinite")
    return found


def build(codes: Array, scale: Array, zero: Array, format: Integers, like: Any) -> QTensor:
    """The quantised tensor of codes (rows, columns) and scales (rows, groups)."""
    like = nm.asarray(like)
    device = like.device

    def tensor(x: Array, dtype: Any) -> Tensor:
        return nm.asarray(np.ascontiguousarray(x, dtype=dtype), device=device)

    zeros = None if format.symmetric else tensor(zero, np.uint8)
    shape = codes.shape
    parts = format.of_codes(tensor(codes, np.uint32), tensor(scale, np.float32), zeros, shape)
    return QTensor(format, shape, parts, like.dtype)


def search_scales(
    weight: Any, format: Integers, method: str = "mse", hessian: Any = None
) -> QTensor:
    """A weight rounded with the scales that a method finds.

    Args:
        method: "absmax" spans all values, "percentile" leaves out the largest, "mse" minimises the
            squared error of each group, "hessian" that error weighted by the Hessian's diagonal.
        hessian: (columns, columns) or its diagonal: Σ x xᵀ of the inputs.
    """
    if method not in METHODS:
        raise ValueError(f"search_scales: {method!r} must be one of {', '.join(METHODS)}")
    w = host_matrix(weight, format, "search_scales")
    groups = as_groups(w, format)
    if method == "hessian":
        if hessian is None:
            raise ValueError("search_scales: method 'hessian' takes a hessian")
        diagonal = np.asarray(hessian, dtype=np.float64)
        diagonal = np.diagonal(diagonal) if diagonal.ndim == 2 else diagonal
        if diagonal.shape != (w.shape[1],):
            raise ShapeError(
                f"search_scales: a Hessian of {diagonal.shape} for a weight of {w.shape}"
            )
        weights = as_groups(diagonal[None], format)
    else:
        weights = np.ones((1, 1, 1))
    if method == "percentile":
        kept = np.quantile(np.abs(groups), PERCENTILE / 100, axis=-1, keepdims=True)
        scale, zero = ranges(np.clip(groups, -kept, kept), format)
    elif method == "absmax":
        scale, zero = ranges(groups, format)
    else:
        best = np.full(groups.shape[:2], np.inf)
        scale, zero = np.zeros_like(best), np.zeros_like(best)
        for shrink in SHRINKS:
            s, z = ranges(groups, format, shrink)
            codes = codes_of(groups, s[..., None], z[..., None], format)
            values = (codes - z[..., None]) * s[..., None]
            error = (weights * (values - groups) ** 2).sum(-1)
            better = error < best
            best = np.where(better, error, best)
            scale, zero = np.where(better, s, scale), np.where(better, z, zero)
    codes = codes_of(groups, scale[..., None], zero[..., None], format)
    codes = codes.reshape(w.shape[0], -1)[:, : w.shape[1]]
    return build(codes, scale, zero, format, weight)
