"""Gather and scatter of windows at index vectors (XLA's Gather, Scatter and DynamicSlice).

An index vector names where a window starts along some axes; windows are as large as the slice
sizes say. Windows that do not fit are moved ("clip", which `gather` does), filled or dropped
("fill", which `scatter` does). A dynamic slice is one window, whose start may be traced.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numus import dtypes as dt
from numus.functions import api as nm
from numus.functions._base import as_line
from numus.tensor import Tensor


class GatherDimensionNumbers(NamedTuple):
    """Which axes of a result are windows', which of a window have one element, and which axes the
    index vectors are of."""

    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()


class ScatterDimensionNumbers(NamedTuple):
    """The same for updates."""

    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


def _element_indices(
    shape: tuple[int, ...],
    starts: Tensor,
    sizes: Sequence[int],
    axes: Sequence[int],
    batching: Sequence[tuple[int, int]],
    clip: bool,
) -> tuple[Tensor, Tensor]:
    """The flat position of each element of each window, the windows' axes last, and whether the
    window fits."""
    lead, rank = starts.shape[:-1], len(shape)
    flat = nm.zeros((1,) * (len(lead) + rank), dtype=dt.int64)
    fits = nm.ones(lead, dtype=dt.bool_)
    for axis, (extent, size) in enumerate(zip(shape, sizes, strict=True)):
        start = nm.zeros(lead, dtype=dt.int64)
        if axis in axes:
            start = nm.astype(starts[..., list(axes).index(axis)], dt.int64)
            inside = nm.logical_and(start >= 0, start <= extent - size)
            fits = nm.logical_and(fits, inside)
            start = nm.clip(start, 0, extent - size)
        for own, other in batching:
            if own == axis:
                line = [1] * len(lead)
                line[other] = lead[other]
                start = start + nm.reshape(nm.arange(lead[other]), line)
        steps = [1] * rank
        steps[axis] = size
        at = nm.reshape(start, lead + (1,) * rank) + nm.reshape(nm.arange(size), steps)
        flat = flat + at * math.prod(shape[axis + 1 :])
    fits = nm.ones_like(fits) if clip else fits
    return flat, nm.reshape(fits, lead + (1,) * rank)


def _mode(mode: Any) -> str:
    text = str(mode).lower()
    return "clip" if "clip" in text or "promise" in text else "fill"


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: GatherDimensionNumbers,
    slice_sizes: Sequence[int],
    *,
    mode: Any = None,
    fill_value: Any = None,
    **hints: Any,
) -> Tensor:
    """Windows of an array at index vectors, which lie along the last axis of start_indices."""
    x, starts, d = nm.asarray(operand), nm.asarray(start_indices), dimension_numbers
    lead = starts.ndim - 1
    pairs = list(zip(d[3], d[4], strict=True))
    at, fits = _element_indices(
        x.shape, starts, slice_sizes, d[2], pairs, _mode(mode or "clip") == "clip"
    )
    found = nm.take(nm.reshape(x, -1), at)
    if fill_value is None:
        fill_value = math.nan if x.dtype.is_inexact else 0
    found = nm.where(fits, found, nm.astype(nm.asarray(fill_value), x.dtype))
    gone = (*d[1], *d[3])
    found = nm.squeeze(found, tuple(lead + i for i in gone)) if gone else found
    window = range(lead, found.ndim)
    rest = [i for i in range(found.ndim) if i not in d[0]]
    return nm.moveaxis(found, (*range(lead), *window), (*rest, *d[0]))


def _scatter(reduce: str) -> Callable[..., Tensor]:
    def scatter(
        operand: Any,
        scatter_indices: Any,
        updates: Any,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        mode: Any = None,
        **hints: Any,
    ) -> Tensor:
        x, starts, new = nm.asarray(operand), nm.asarray(scatter_indices), nm.asarray(updates)
        d = dimension_numbers
        rest = [i for i in range(new.ndim) if i not in d[0]]
        new = nm.permute_dims(new, (*rest, *d[0]))
        sizes = _sizes(x.ndim, d, list(new.shape[len(rest) :]))
        pairs = list(zip(d[3], d[4], strict=True))
        at, fits = _element_indices(x.shape, starts, sizes, d[2], pairs, _mode(mode) == "clip")
        values = nm.reshape(nm.astype(new, x.dtype), starts.shape[:-1] + tuple(sizes))
        values = nm.negative(values) if reduce == "sub" else values
        keep = nm.reshape(nm.broadcast_to(fits, at.shape), -1)
        # what is dropped goes to one more element, which is cut off
        places = nm.where(keep, nm.reshape(at, -1), x.size)
        flat = nm.pad(nm.reshape(x, -1), (0, 1))
        kinds = {"add": "sum", "sub": "sum", "mul": "prod", "min": "amin", "max": "amax"}
        if reduce == "set":
            found = nm.index_put(flat, (places,), nm.reshape(values, -1))
        else:
            found = nm.scatter_reduce(flat, 0, places, nm.reshape(values, -1), kinds[reduce])
        return nm.reshape(found[: x.size], x.shape)

    scatter.__name__ = "scatter" if reduce == "set" else f"scatter_{reduce}"
    scatter.__doc__ = f"An array whose windows at index vectors are updated: {reduce}."
    return scatter


scatter, scatter_add, scatter_sub, scatter_mul, scatter_min, scatter_max = map(
    _scatter, ("set", "add", "sub", "mul", "min", "max")
)


def scatter_apply(
    operand: Any,
    scatter_indices: Any,
    func: Callable[[Tensor], Tensor],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    **options: Any,
) -> Tensor:
    """An array whose windows at index vectors are replaced by a function of them."""
    x, starts, d = nm.asarray(operand), nm.asarray(scatter_indices), dimension_numbers
    shape = tuple(update_shape) or starts.shape[:-1] + (1,) * len(d[0])
    sizes = _sizes(x.ndim, d, [shape[i] for i in d[0]])
    new = func(gather(x, starts, GatherDimensionNumbers(*d), sizes, mode="clip"))
    return scatter(x, starts, new, d, **options)


def _sizes(ndim: int, d: ScatterDimensionNumbers, windows: list[int]) -> list[int]:
    """The extents of a window along all axes: those that are not named have one element."""
    gone = (*d.inserted_window_dims, *d.operand_batching_dims)
    left = iter(windows)
    return [1 if axis in gone else next(left) for axis in range(ndim)]


def _window(x: Tensor, start: Any, sizes: Sequence[int]) -> list[Tensor]:
    """Indices of a window along each axis, moved so that it lies inside."""
    return [
        nm.clip(nm.asarray(s), 0, n - size) + nm.arange(size, device=x.device)
        for s, n, size in zip(start, x.shape, sizes, strict=True)
    ]


def dynamic_slice(operand: Any, start_indices: Any, slice_sizes: Sequence[int]) -> Tensor:
    """A window whose start may be traced; it is moved inside where it would leave the tensor."""
    x = nm.asarray(operand)
    for axis, at in enumerate(_window(x, start_indices, slice_sizes)):
        if slice_sizes[axis] != x.shape[axis]:
            x = nm.take(x, at, axis=axis)
    return x


def dynamic_update_slice(operand: Any, update: Any, start_indices: Any) -> Tensor:
    """A copy with a window replaced, whose start may be traced."""
    x, new = nm.asarray(operand), nm.asarray(update)
    if not x.ndim:
        return new
    out, at = nm.copy(x), _window(x, start_indices, new.shape)
    out[tuple(as_line(i, axis, x.ndim) for axis, i in enumerate(at))] = new
    return out
