"""AWQ (Lin et al. 2024): input channels with large activations are scaled up before rounding.

The scales are powers of the mean magnitudes of the inputs; the power is searched on a grid for the
least error of the layer's output; then the range of each group is shrunk where that helps (the
paper's clipping). Inputs are divided by the scales, which folds into the layer before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.quant.algorithms.search import Array, as_groups, build, codes_of, host_matrix, ranges
from numus.quant.integers import Integers
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

GRID = 20  # powers between 0 and 1
CLIPS = np.linspace(1.0, 0.6, 17)  # of the range of a group


def rounded(w: Array, format: Integers) -> tuple[Array, Array, Array, Array]:
    """Values of a matrix after rounding; its codes, scales and zero points."""
    groups = as_groups(w, format)
    scale, zero = ranges(groups, format)
    codes = codes_of(groups, scale[..., None], zero[..., None], format)
    values = (codes - zero[..., None]) * scale[..., None]
    rows, columns = w.shape
    flat = (x.reshape(rows, -1)[:, :columns] for x in (values, codes))
    return *flat, scale, zero  # type: ignore[return-value]


def awq(
    weight: Any,
    hessian: Any,
    magnitude: Any,
    format: Integers,
    grid: int = GRID,
    clip: bool = True,
) -> tuple[QTensor, Tensor]:
    """The rounded weight, and what inputs are multiplied by.

    Args:
        hessian: Σ x xᵀ over the inputs: the error of the output is that of the weight under it.
        magnitude: the mean of |x| of each column.
        clip: search the ranges of groups too.
    """
    w = host_matrix(weight, format, "awq")
    h = np.asarray(hessian, dtype=np.float64)
    mean = np.asarray(magnitude, dtype=np.float64)
    if h.shape != (w.shape[1],) * 2 or mean.shape != (w.shape[1],):
        raise ShapeError(
            f"awq: a Hessian of shape {h.shape} and magnitudes of shape {mean.shape} for a weight "
            f"of shape {w.shape}"
        )
    if grid < 1:
        raise ValueError(f"awq: grid={grid} must be at least 1")
    best, chosen = np.inf, np.ones(w.shape[1])
    for i in range(grid):
        s = np.maximum(mean, 1e-4) ** (i / grid)
        s = s / np.sqrt(s.max() * s.min())
        error = rounded(w * s, format)[0] / s - w
        loss = float(((error @ h) * error).sum())
        if loss < best:
            best, chosen = loss, s
    _, codes, scale, zero = rounded(w * chosen, format)
    if clip:
        codes, scale, zero = _clipped(w * chosen, h / np.outer(chosen, chosen), format)
    device = nm.asarray(weight).device
    inverse = nm.asarray((1 / chosen).astype(np.float32), device=device)
    return build(codes, scale, zero, format, weight), inverse


def _clipped(w: Array, h: Array, format: Integers) -> tuple[Array, Array, Array]:
    """Codes, scales and zero points; each group has the range of least error of its own product."""
    groups = as_groups(w, format)
    rows, count, size = groups.shape
    scale, zero = ranges(groups, format)
    codes = codes_of(groups, scale[..., None], zero[..., None], format)
    for g in range(count):
        x = groups[:, g]
        own = h[g * size : (g + 1) * size, g * size : (g + 1) * size]
        width = len(own)
        best = np.full(rows, np.inf)
        for shrink in CLIPS:
            s, z = ranges(x, format, shrink)
            found = codes_of(x, s[:, None], z[:, None], format)
            error = ((found - z[:, None]) * s[:, None] - x)[:, :width]
            loss = ((error @ own) * error).sum(-1)
            better = loss < best
            best = np.where(better, loss, best)
            scale[better, g], zero[better, g] = s[better], z[better]
            codes[better, g] = found[better]
    return codes.reshape(rows, -1)[:, : w.shape[1]], scale, zero
