"""Outliers: of activations, LLM.int8's columns in full (Dettmers et al. 2022) and SmoothQuant; of
weights, SpQR's single ones in full (Dettmers et al. 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.quant.algorithms.search import Array, codes_of, ranges
from numus.quant.integers import Integers
from numus.tensor import Tensor

THRESHOLD = 6.0  # magnitude of an input, above which its column is kept in full


def outlier_columns(largest: Any, threshold: float = THRESHOLD) -> Array:
    """Columns whose inputs exceed a threshold, given the largest magnitude of each."""
    return np.flatnonzero(np.asarray(largest) > threshold).astype(np.int32)


def smooth_scale(largest: Any, weight: Any, strength: float = 0.5) -> Array:
    """What inputs are divided by so that their outliers move into the weight (Xiao et al. 2023).

    Args:
        largest: of |x| of each input column.
        strength: 0 leaves inputs as they are, 1 makes all columns as large as each other.
    """
    x, w = np.asarray(largest, np.float64), np.abs(np.asarray(weight, np.float64)).max(0)
    if x.shape != w.shape:
        raise ShapeError(f"smooth_scale: {x.shape} magnitudes for a weight of {w.shape} columns")
    if not 0 <= strength <= 1:
        raise ValueError(f"smooth_scale: strength={strength} must be between 0 and 1")
    s = np.maximum(x, 1e-5) ** strength / np.maximum(w, 1e-5) ** (1 - strength)
    return np.maximum(s, 1e-5)


@dataclass(frozen=True)
class Outliers:
    """Single weights, in the order of rows: `weight[rows, columns] = values` over rounded zeros."""

    rows: Tensor
    columns: Tensor
    values: Tensor

    @staticmethod
    def of(kept: Array, device: Any = None) -> Outliers:
        """Those elements of a matrix that are not zero, as 16-bit floats."""
        rows, columns = np.nonzero(kept)
        values = kept[rows, columns].astype(np.float16)
        index = np.uint16 if max(kept.shape) <= 1 << 16 else np.int32
        parts = (rows.astype(index), columns.astype(index), values)
        return Outliers(*(nm.asarray(x, device=device) for x in parts))

    def dense(self, shape: tuple[int, ...]) -> Tensor:
        """A float32 matrix that is zero elsewhere."""
        zeros = nm.zeros(shape, device=self.values.device)
        return zeros.at[self.rows, self.columns].add(self.values.astype(nm.float32))


def isolated_weights(w: Array, costs: Array, format: Integers, worth: float) -> Array:
    """Which weights of a group, (rows, columns), to keep in full: a mask.

    Without one of them, the scale fits the others better, and its own error is gone: that must
    save more than `worth` of the squared error, weighted by `costs` of columns. Only the extremes
    have a say in the scale, so that leaving out any other weight saves its own error alone.
    """

    def errors(given: Array) -> Array:
        scale, zero = ranges(given[:, None], format)
        values = (codes_of(given, scale, zero, format) - zero) * scale
        return (values - given) ** 2 * costs

    own = errors(w)
    saved = own.copy()
    at = np.arange(len(w))
    sides = [np.abs(w)] if format.symmetric else [w, -w]
    for side in sides:
        extreme = side.argmax(1)
        others = w.copy()
        others[at, extreme] = 0
        saved[at, extreme] = own.sum(1) - errors(others).sum(1)
    return saved > worth
