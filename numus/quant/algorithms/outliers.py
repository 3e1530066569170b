"""Outliers of activations: LLM.int8's columns in full (Dettmers et al. 2022), and SmoothQuant."""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.errors import ShapeError
from numus.quant.algorithms.search import Array

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
