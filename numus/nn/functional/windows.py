"""Convolutions, poolings and resizing: numus's own functions, under their PyTorch names."""

# ruff: noqa: F403, F405
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.functions.layers.convolution import *
from numus.functions.layers.grid_sampling import *
from numus.functions.layers.max_pooling import *
from numus.functions.layers.mean_pooling import *
from numus.functions.layers.resizing import *
from numus.tensor import Tensor

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "avg_pool1d", "avg_pool2d",
    "avg_pool3d", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "fold", "grid_sample", "interpolate", "lp_pool1d", "lp_pool2d", "lp_pool3d",
    "max_pool1d", "max_pool2d", "max_pool3d", "max_unpool1d", "max_unpool2d", "max_unpool3d",
    "pixel_shuffle", "pixel_unshuffle", "unfold",
]  # fmt: skip


def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Where `grid_sample` is to look for an affine map of the plane or of space.

    Args:
        theta: a matrix (2, 3) or (3, 4) for each example.
        size: (N, C, H, W) or (N, C, D, H, W) of what is sampled.
        align_corners: -1 and 1 are the middles of the outermost elements, not their edges.
    """
    maps = nm.asarray(theta)
    rank = len(size) - 2
    if rank not in (2, 3) or maps.shape != (size[0], rank, rank + 1):
        raise ShapeError(
            f"affine_grid: maps of shape {maps.shape} do not fit a size of {tuple(size)}"
        )
    axes = []
    for count in size[2:]:
        positions = nm.arange(count, dtype=maps.dtype, device=maps.device)
        whole = max(count - 1, 1) if align_corners else count
        middle = (count - 1) / 2
        axes.append((positions - middle) * (2 / whole))
    spots = nm.meshgrid(*axes, indexing="ij")[::-1]  # x first
    flat = nm.stack([*spots, nm.ones_like(spots[0])], axis=-1).reshape((-1, rank + 1))
    return (flat @ maps.swapaxes(1, 2)).reshape((size[0], *size[2:], rank))
