"""Images read at points that are computed, as PyTorch's grid_sample does."""

from __future__ import annotations

import itertools

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions._base import like, pair, require, widened, wrap
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast
from numus.primitives.indexing import gather
from numus.primitives.source import iota
from numus.primitives.views import permute, reshape, take_range
from numus.tensor import ArrayLike, Tensor

__all__ = ["grid_sample"]

MODES = ("bilinear", "nearest", "bicubic")
MARGINS = ("zeros", "border", "reflection")

Tap = tuple[Node, Node | None]  # a coordinate (a whole number), and its weight (None: 1)


def grid_sample(
    x: ArrayLike,
    grid: ArrayLike,
    /,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool = False,
) -> Tensor:
    """(batch, channels, *space) read at (batch, *points, axes): coordinates from -1 to 1, x first.

    Args:
        mode: "bilinear" (of three axes: trilinear), "nearest", or "bicubic" (of two).
        padding_mode: the values outside: "zeros", the nearest element ("border"), or a mirror image
            ("reflection").
        align_corners: whether -1 and 1 are the outermost elements or their outer edges.

    >>> x = nm.arange(4.0).reshape(1, 1, 2, 2)
    >>> nm.grid_sample(x, nm.zeros((1, 1, 1, 2))).tolist()
    [[[[1.5]]]]
    """
    op = "grid_sample"
    data, points = pair(op, x, grid)
    require(op, data, "float")
    rank = data.ndim - 2
    if mode not in MODES or padding_mode not in MARGINS:
        raise ValueError(
            f"{op}: mode {mode!r} of {', '.join(MODES)}; padding_mode {padding_mode!r} of "
            f"{', '.join(MARGINS)}"
        )
    ends = (points.shape[:1] + points.shape[-1:]) == (data.shape[0], rank)
    fits = points.ndim == data.ndim and ends
    if rank not in (2, 3) or not fits or (mode == "bicubic" and rank != 2):
        raise ShapeError(
            f"{op}: {mode} takes (batch, channels, *space) with two or three axes of space "
            f"(bicubic: two) and a grid (batch, *points, axes), not shapes {data.shape} and "
            f"{points.shape}"
        )
    if 0 in data.shape[2:]:
        raise ShapeError(f"{op}: data of shape {data.shape} has no elements to read")
    wide = widened(data)
    points = ew.cast(points, wide.dtype)
    taps: list[list[Tap]] = []
    for axis, size in enumerate(data.shape[2:]):
        last = points.ndim - 1
        at = take_range(points, last, rank - 1 - axis, rank - axis)
        taps.append(_taps(reshape(at, at.shape[:-1]), size, mode, padding_mode, align_corners))
    return wrap(ew.cast(_read(wide, taps, padding_mode == "zeros"), data.dtype))


def _taps(at: Node, size: int, mode: str, margins: str, corners: bool) -> list[Tap]:
    """The elements read along one axis."""
    if corners:
        at = ew.mul(ew.add(at, like(at, 1)), like(at, (size - 1) / 2))
    else:
        scaled = ew.mul(ew.add(at, like(at, 1)), like(at, size))
        at = ew.div(ew.sub(scaled, like(at, 1)), like(at, 2))
    if mode != "bicubic":
        at = _within(at, size, margins, corners)
    if mode == "nearest":
        return [(ew.rint(at), None)]
    first = ew.floor(at)
    t = ew.sub(at, first)
    one = like(t, 1)
    if mode == "bilinear":
        return [(first, ew.sub(one, t)), (ew.add(first, one), t)]
    return [
        (_within(ew.add(first, like(at, k)), size, margins, corners), _cubic(t, k))
        for k in range(-1, 3)
    ]


def _within(at: Node, size: int, margins: str, corners: bool) -> Node:
    """Coordinates beyond the edges, brought back as the margins say."""
    if margins == "zeros":
        return at
    if margins == "reflection":
        low, span = (0.0, size - 1) if corners else (-0.5, size)
        if span == 0:
            return ew.mul(at, like(at, 0))
        away = ew.abs_(ew.sub(at, like(at, low)))
        reflections = ew.floor(ew.div(away, like(at, span)))
        rest = ew.sub(away, ew.mul(reflections, like(at, span)))
        odd = ew.eq(ew.mod(reflections, like(at, 2)), like(at, 1))
        at = ew.add(ew.where(odd, ew.sub(like(at, span), rest), rest), like(at, low))
    return ew.minimum(ew.maximum(at, like(at, 0)), like(at, size - 1))


def _cubic(t: Node, k: int) -> Node:
    """The weight under cubic convolution of the element k points from the one before t."""
    a = -0.75
    x = ew.abs_(ew.sub(t, like(t, k)))

    def polynomial(*coefficients: float) -> Node:
        total: Node = like(x, coefficients[0])
        for c in coefficients[1:]:
            total = ew.add(ew.mul(total, x), like(x, c))
        return total

    if k in (0, 1):
        return polynomial(a + 2, -(a + 3), 0, 1)
    return polynomial(a, -5 * a, 8 * a, -4 * a)


def _read(x: Node, taps: list[list[Tap]], zeros: bool) -> Node:
    """The weighted sum over all combinations of taps."""
    rank, n = len(taps), x.shape[0]
    shape = taps[0][0][0].shape
    image = reshape(iota(n, dt.int64, x.device), (n, *(1,) * (len(shape) - 1)))
    total: Node | None = None
    for chosen in itertools.product(*taps):
        indices = [broadcast(image, shape)]
        weight = there = None
        for (at, w), size in zip(chosen, x.shape[2:], strict=True):
            if zeros:
                in_bounds = ew.and_(ew.le(like(at, 0), at), ew.le(at, like(at, size - 1)))
                there = in_bounds if there is None else ew.and_(there, in_bounds)
            # a huge coordinate is no integer; outside is outside
            clamped = ew.minimum(ew.maximum(at, like(at, -1)), like(at, size))
            indices.append(ew.cast(ew.stop_gradient(clamped), dt.int64))
            if w is not None:
                weight = w if weight is None else ew.mul(weight, w)
        read = gather(x, tuple(indices), (0, *range(2, 2 + rank)))
        if there is not None:
            read = ew.where(reshape(there, (*shape, 1)), read, like(read, 0))
        if weight is not None:
            read = ew.mul(read, reshape(weight, (*shape, 1)))
        total = read if total is None else ew.add(total, read)
    assert total is not None
    return permute(total, (0, total.ndim - 1, *range(1, total.ndim - 1)))
