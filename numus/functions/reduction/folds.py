"""Folds, scans and updates by any function of two elements (NumPy's ufunc methods).

The functions that have reductions of their own (sums, extremes) are quicker; these combine slices
one after the other, in order, and serve functions that are not associative, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numus.errors import IndexRangeError, ShapeError
from numus.functions import api as nm
from numus.tensor import Tensor

Combine = Callable[[Tensor, Tensor], Tensor]


def fold(f: Combine, x: Tensor, axes: Sequence[int], identity: Any = None) -> Tensor:
    """The elements along axes combined, the last axis first; `identity` is what none give."""
    for axis in sorted(axes, reverse=True):
        parts = nm.unstack(x, axis=axis)
        if not parts and identity is None:
            raise ShapeError("fold: zero-size array to a reduction which has no identity")
        rest = x.shape[:axis] + x.shape[axis + 1 :]
        first = [] if parts else [nm.full(rest, identity, dtype=x.dtype, device=x.device)]
        x = functools.reduce(f, [*first, *parts])
    return x


def accumulate(f: Combine, x: Tensor, axis: int) -> Tensor:
    """The results of combining the first 1, 2, … elements along an axis."""
    parts = list(nm.unstack(x, axis=axis))
    for i in range(1, len(parts)):
        parts[i] = f(parts[i - 1], parts[i])
    return nm.stack(parts, axis=axis) if parts else x


def fold_slices(
    reduce: Callable[[Tensor], Tensor], x: Tensor, starts: Sequence[int], axis: int
) -> Tensor:
    """Each stretch from one start to the next reduced; one element where the next is not after."""
    extent = x.shape[axis]
    if any(not 0 <= i < extent for i in starts):
        raise IndexRangeError(f"fold_slices: index out-of-bounds: starts are within [0, {extent})")
    ends = zip(starts, [*starts[1:], extent], strict=False)  # nothing of no starts
    cuts = [(slice(None),) * axis + (slice(i, max(j, i + 1)),) for i, j in ends]
    if not cuts:
        return nm.zeros((*x.shape[:axis], 0, *x.shape[axis + 1 :]), dtype=x.dtype)
    return nm.stack([reduce(x[cut]) for cut in cuts], axis=axis)


def updated_at(f: Callable[..., Any], x: Tensor, index: Any, values: Tensor | None) -> Tensor:
    """A copy of x with f applied at an index, once for each time that it names an element."""
    places = nm.reshape(nm.arange(x.size), x.shape)[index]
    flat = nm.reshape(nm.copy(x), -1)
    if values is not None:
        values = nm.reshape(nm.broadcast_to(values, places.shape), -1)
    for i, place in enumerate(nm.reshape(places, -1).tolist()):
        flat[place] = f(flat[place]) if values is None else f(flat[place], values[i])
    return nm.reshape(flat, x.shape)


def over_core_axes(
    f: Callable[..., Tensor],
    operands: Sequence[Tensor],
    axes: Any = None,
    axis: int = -1,
    keepdims: bool = False,
) -> Tensor:
    """A function of the last axes of its operands (`matmul`, `vecdot`) applied to others: `axes`
    names those of each operand and of the result, `axis` one for all."""
    ready = list(operands)
    if axes is not None:
        axes = [(a,) if isinstance(a, int) else tuple(a) for a in axes]
        pairs = zip(ready, axes, strict=False)
        ready = [nm.moveaxis(x, at, tuple(range(-len(at), 0))) if at else x for x, at in pairs]
    elif axis != -1:
        ready = [nm.moveaxis(x, axis, -1) for x in ready]
    found = f(*ready)
    found = nm.expand_dims(found, axis=axis) if keepdims else found
    if axes is not None and len(axes) > len(ready) and axes[-1]:
        found = nm.moveaxis(found, tuple(range(-len(axes[-1]), 0)), axes[-1])
    return found
