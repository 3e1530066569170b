"""HQQ (Badri and Shaji 2023): zero points by half-quadratic splitting, without calibration.

The error is shrunk by the proximal operator of an lp norm with p < 1, which spares outliers; zero
points then follow in closed form. Only formats with zero points have any to fit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from numus.quant.algorithms.search import as_groups, build, codes_of, host_matrix, ranges
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor

NORM = 0.7
BETA, GROWTH = 10.0, 1.01
ROUNDS = 20


def hqq(weight: Any, format: Integers) -> QTensor:
    """A weight rounded with fitted zero points."""
    w = host_matrix(weight, format, "hqq")
    if format.symmetric:
        raise ValueError(
            f"hqq fits zero points, which {format.name} has none of: try u{format.name}"
        )
    groups = as_groups(w, format)
    scale, first = ranges(groups, format)
    top = (1 << format.bits) - 1
    s = scale[..., None]
    safe = np.where(s == 0, 1, s)
    zero, beta = first[..., None], BETA
    best, kept = np.inf, zero
    for _ in range(ROUNDS):
        codes = codes_of(groups, s, zero, format)
        error = groups - (codes - zero) * s
        magnitude = np.abs(error)
        loss = float((magnitude**NORM).sum())
        if loss >= best:
            break
        best, kept = loss, zero
        powers = np.where(magnitude > 0, magnitude, 1) ** (NORM - 1)
        left = np.sign(error) * np.maximum(magnitude - powers / beta, 0)
        zero = np.clip(np.rint((codes - (groups - left) / safe).mean(-1, keepdims=True)), 0, top)
        beta *= GROWTH
    codes = codes_of(groups, s, kept, format).reshape(w.shape[0], -1)
    return build(codes[:, : w.shape[1]], scale, kept[..., 0], format, weight)
