"""Images in another size: interpolation as PyTorch does it, pixels shuffled into channels, patches.

Interpolation is separable: each axis is mapped by itself, by a table of what a result reads.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import as_number, computed, node_of, require, widened, wrap
from numus.functions.layers import mean_pooling
from numus.functions.layers.resampling import Array, Table, resample
from numus.functions.layers.windows import Sizes, batched, per_axis, unbatched, window_count
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.views import permute, reshape, shear
from numus.shapes import Shape, as_int, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = ["fold", "interpolate", "pixel_shuffle", "pixel_unshuffle", "unfold"]

MODES = {  # ranks of space
    **dict.fromkeys(("nearest", "nearest-exact", "area"), (1, 2, 3)),
    **{"linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,)},
}


def interpolate(
    x: ArrayLike,
    /,
    size: Sizes | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """(batch, channels, *space) with its space in another size.

    Args:
        size: of the space of the result, or
        scale_factor: how many times larger it is.
        mode: "nearest", "nearest-exact", "linear" (one axis of space), "bilinear" and "bicubic"
            (two), "trilinear" (three), "area".
        align_corners: whether the outermost elements stay outermost; otherwise elements are areas
            whose edges meet.
        recompute_scale_factor: whether the scale is that of the sizes, not what was given.
        antialias: "bilinear" and "bicubic" to a smaller size see all elements in between.

    >>> nm.interpolate(nm.asarray([[[1.0, 2.0]]]), 4, mode="linear").tolist()
    [[[1.0, 1.25, 1.75, 2.0]]]
    """
    op = "interpolate"
    node = node_of(x, op)
    rank = node.ndim - 2
    if mode not in MODES:
        raise ValueError(f"{op}: no mode {mode!r}; modes: {', '.join(MODES)}")
    if rank not in MODES[mode]:
        axes = " or ".join(map(str, MODES[mode]))
        raise ShapeError(
            f"{op}: mode {mode!r} takes (batch, channels, *space) with {axes} axes of space, not "
            f"shape {node.shape}"
        )
    smooth = mode.endswith(("linear", "cubic"))
    if align_corners is not None and not smooth:
        raise ValueError(f"{op}: align_corners has no meaning for mode {mode!r}")
    if antialias and mode not in ("bilinear", "bicubic"):
        raise ValueError(f"{op}: antialias is for bilinear and bicubic, not mode {mode!r}")
    sizes, factors = _target(op, node.shape[2:], size, scale_factor, bool(recompute_scale_factor))
    if 0 in node.shape[2:] or 0 in sizes:
        raise ShapeError(f"{op}: from {node.shape[2:]} to {sizes}: no elements to read or to write")
    if mode == "area":
        return getattr(mean_pooling, f"adaptive_avg_pool{rank}d")(wrap(node), sizes)
    wide = widened(require(op, node, "float")) if smooth else node
    options = (mode == "bicubic", bool(align_corners), antialias, node.dtype is dt.float64)
    for i, (n, count, factor) in enumerate(zip(node.shape[2:], sizes, factors, strict=True)):
        if smooth:
            table = _smooth(n, count, factor, *options)
        else:
            table = _nearest(n, count, factor, mode == "nearest-exact")
        if n != count or factor not in (None, 1.0) or antialias:
            wide = resample(wide, 2 + i, table)
    return computed(ew.cast(wide, node.dtype))


def _target(
    op: str, space: Shape, size: Any, scale: Any, recompute: bool
) -> tuple[Shape, list[float | None]]:
    """The sizes of the result, and the factors to go by (None: those of the sizes)."""
    rank = len(space)
    if (size is None) == (scale is None):
        raise ValueError(f"{op}: give either size or scale_factor")
    if size is not None:
        if recompute:
            raise ValueError(f"{op}: recompute_scale_factor needs a scale_factor")
        return per_axis(op, "size", size, rank, 0), [None] * rank
    given = list(scale) if isinstance(scale, (tuple, list)) else [scale] * rank
    given = [as_number(f, "scale_factor", op) for f in given]
    if len(given) != rank:
        raise ShapeError(f"{op}: scale_factor={scale!r} for {rank} axes")
    if not all(f > 0 for f in given):
        raise ValueError(f"{op}: scale_factor must be positive, not {scale!r}")
    sizes = tuple(math.floor(n * float(f)) for n, f in zip(space, given, strict=True))
    return sizes, [None if recompute else float(f) for f in given]


def _step(n: int, count: int, factor: float | None, corners: bool, real: Any) -> Any:
    """How far apart results are, in elements; rounded as PyTorch rounds it."""
    if corners:
        return real(n - 1) / real(count - 1) if count > 1 else real(0)
    return real(1.0 / factor) if factor is not None else real(n) / real(count)


@functools.lru_cache(maxsize=256)
def _nearest(n: int, count: int, factor: float | None, exact: bool) -> Table:
    step = _step(n, count, factor, False, np.float32)
    at = np.arange(count, dtype=np.float32)
    at = (at + np.float32(0.5)) * step if exact else at * step
    indices = np.minimum(np.floor(at).astype(np.int64), n - 1)
    return Table(indices[:, None], np.ones((count, 1)), n)


@functools.lru_cache(maxsize=256)
def _smooth(
    n: int, count: int, factor: float | None, cubic: bool, corners: bool, antialias: bool, f64: bool
) -> Table:
    """Linear or cubic interpolation, with coordinates in float64 or float32."""
    real: Any = np.float64 if f64 else np.float32
    step = _step(n, count, factor, corners, real)
    if antialias:
        return _antialiased(cubic, n, count, float(step))
    i: Array = np.arange(count, dtype=real)
    at = i * step if corners else (i + real(0.5)) * step - real(0.5)
    if not cubic:
        at = np.maximum(at, real(0))
        first = np.minimum(np.floor(at).astype(np.int64), n - 1)
        t = at - first.astype(real)
        second = np.minimum(first + 1, n - 1)
        return Table(np.stack([first, second], 1), np.stack([1 - t, t], 1), n)
    first = np.floor(at).astype(np.int64)
    t = np.float64(at) - first
    indices = np.clip(first[:, None] + np.arange(-1, 3), 0, n - 1)
    return Table(indices, np.stack([_cubic(t - k, -0.75) for k in range(-1, 3)], 1), n)


def _cubic(distance: Array, a: float) -> Array:
    """The weight under cubic convolution of an element at a distance."""
    x = np.abs(distance)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def _antialiased(cubic: bool, n: int, count: int, step: float) -> Table:
    """Every element within the support of a filter as wide as the results are apart."""
    stretch = max(step, 1.0)
    reach = (2.0 if cubic else 1.0) * stretch
    center = step * (np.arange(count) + 0.5)
    first = np.maximum((center - reach + 0.5).astype(np.int64), 0)
    last = np.minimum((center + reach + 0.5).astype(np.int64), n)
    indices = first[:, None] + np.arange(int((last - first).max()))
    distance = (indices - center[:, None] + 0.5) / stretch
    weights = _cubic(distance, -0.5) if cubic else np.maximum(0.0, 1.0 - np.abs(distance))
    weights = np.where(indices < last[:, None], weights, 0.0)
    weights /= weights.sum(1, keepdims=True)
    return Table(np.minimum(indices, n - 1), weights, n)


def pixel_shuffle(x: ArrayLike, /, upscale_factor: int) -> Tensor:
    """(…, channels * r², height, width) as (…, channels, height * r, width * r).

    >>> nm.pixel_shuffle(nm.arange(4.0).reshape(4, 1, 1), 2).tolist()
    [[[0.0, 1.0], [2.0, 3.0]]]
    """
    node = node_of(x, "pixel_shuffle")
    r = as_int(upscale_factor, "upscale_factor", "pixel_shuffle")
    if node.ndim < 3 or r < 1 or node.shape[-3] % (r * r):
        raise ShapeError(
            f"pixel_shuffle: takes (…, channels, height, width) with channels that {r}² parts, not "
            f"shape {node.shape}"
        )
    *lead, c, h, w = node.shape
    k = len(lead)
    y = reshape(node, (*lead, c // (r * r), r, r, h, w))
    y = permute(y, (*range(k), k, k + 3, k + 1, k + 4, k + 2))
    return computed(reshape(y, (*lead, c // (r * r), h * r, w * r)))


def pixel_unshuffle(x: ArrayLike, /, downscale_factor: int) -> Tensor:
    """The way back from `pixel_shuffle`: blocks of r × r pixels become channels."""
    node = node_of(x, "pixel_unshuffle")
    r = as_int(downscale_factor, "downscale_factor", "pixel_unshuffle")
    if node.ndim < 3 or r < 1 or node.shape[-1] % r or node.shape[-2] % r:
        raise ShapeError(
            f"pixel_unshuffle: takes (…, channels, height, width) that {r} parts, not shape "
            f"{node.shape}"
        )
    *lead, c, h, w = node.shape
    k = len(lead)
    y = reshape(node, (*lead, c, h // r, r, w // r, r))
    y = permute(y, (*range(k), k, k + 2, k + 4, k + 1, k + 3))
    return computed(reshape(y, (*lead, c * r * r, h // r, w // r)))


def _patches(
    op: str, space: Shape, kernel_size: Sizes, dilation: Sizes, padding: Sizes, stride: Sizes
) -> tuple[Shape, Shape, Shape, Shape, Shape]:
    """Taps, dilation, padding, stride and the number of patches, of each axis."""
    taps = per_axis(op, "kernel_size", kernel_size, 2)
    dilations = per_axis(op, "dilation", dilation, 2)
    low = per_axis(op, "padding", padding, 2, 0)
    strides = per_axis(op, "stride", stride, 2)
    axes = zip(space, low, taps, dilations, strides, strict=True)
    counts = tuple(window_count(n + 2 * p, (k - 1) * d + 1, s) for n, p, k, d, s in axes)
    if 0 in counts:
        raise ShapeError(f"{op}: patches of {kernel_size!r} are larger than an image of {space}")
    return taps, dilations, low, strides, counts


def unfold(
    x: ArrayLike, /, kernel_size: Sizes, dilation: Sizes = 1, padding: Sizes = 0, stride: Sizes = 1
) -> Tensor:
    """Patches of (batch, channels, height, width) as columns: (batch, channels * taps, patches).

    >>> nm.unfold(nm.arange(6.0).reshape(1, 2, 3), (2, 2)).tolist()
    [[0.0, 1.0], [1.0, 2.0], [3.0, 4.0], [4.0, 5.0]]
    """
    op = "unfold"
    node, has_batch = batched(op, node_of(x, op), 2)
    geometry = _patches(op, node.shape[2:], kernel_size, dilation, padding, stride)
    taps, dilations, low, strides, counts = geometry
    wide = broadcast(reshape(node, (*node.shape, 1, 1)), (*node.shape, *taps))
    for i in (0, 1):
        wide = shear(wide, 2 + i, 4 + i, counts[i], strides[i], dilations[i], -low[i], 1)
    y = permute(wide, (0, 1, 4, 5, 2, 3))
    y = reshape(y, (node.shape[0], node.shape[1] * size_of(taps), size_of(counts)))
    return computed(y if has_batch else reshape(y, y.shape[1:]))


def fold(
    x: ArrayLike,
    /,
    output_size: Sizes,
    kernel_size: Sizes,
    dilation: Sizes = 1,
    padding: Sizes = 0,
    stride: Sizes = 1,
) -> Tensor:
    """The transpose of `unfold`: columns of patches added up into an image of output_size."""
    op = "fold"
    node = node_of(x, op)
    space = per_axis(op, "output_size", output_size, 2)
    geometry = _patches(op, space, kernel_size, dilation, padding, stride)
    taps, dilations, low, strides, counts = geometry
    has_batch = node.ndim == 3
    if node.ndim not in (2, 3):
        raise ShapeError(f"{op}: takes (batch, channels * taps, patches), not shape {node.shape}")
    node = node if has_batch else reshape(node, (1, *node.shape))
    n, c, patches = node.shape
    if c % size_of(taps) or patches != size_of(counts):
        raise ShapeError(
            f"{op}: columns of shape {node.shape} are not {size_of(counts)} patches of "
            f"{size_of(taps)} taps"
        )
    y = permute(reshape(node, (n, c // size_of(taps), *taps, *counts)), (0, 1, 4, 5, 2, 3))
    y = widened(y)
    for i in (0, 1):  # which patch has this pixel as this tap
        y = shear(y, 2 + i, 4 + i, space[i], 1, -dilations[i], low[i], strides[i])
    y = ew.cast(reduce_sum(y, (4, 5)), node.dtype)
    return unbatched(y, has_batch)
