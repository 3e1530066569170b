"""Results whose size is said in advance, for programs that are traced: positions, distinct values.

Where `size=` is given, nothing is evaluated: the first `size` results are there, and those that are
too few are filled up (JAX's way of keeping shapes static).
"""

from __future__ import annotations

from typing import Any

import numus as nm  # public names: those who offer `size=` are among them
from numus import dtypes as dt
from numus.tensor import Tensor


def sized_nonzero(x: Tensor, size: int, fill_value: Any) -> tuple[Tensor, ...]:
    """The indices of the first `size` elements that are not zero, filled up."""
    # a stable sort brings the positions that count to the front, in their order
    hit = nm.reshape(nm.not_equal(x, 0), (-1,))
    order = nm.argsort(nm.astype(nm.logical_not(hit), dt.int8), stable=True)[:size]
    order = nm.pad(order, (0, size - order.shape[0]))
    is_found = nm.less(nm.arange(size), nm.sum(nm.astype(hit, dt.int32)))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * x.ndim
    pairs = zip(nm.unravel_index(order, x.shape), fills, strict=True)
    return tuple(nm.where(is_found, i, f) for i, f in pairs)


def sized_unique(x: Tensor, size: int, fill_value: Any, flags: tuple[bool, bool, bool]) -> Any:
    """The first `size` distinct values, filled up with the smallest unless told otherwise; where
    each first is, which of them each element is, and how often each occurs, as flags say."""
    flat = nm.reshape(x, (-1,))
    order = nm.argsort(flat, stable=True)
    ranked = nm.take(flat, order)
    is_new = nm.concatenate([nm.ones(1, dtype=dt.bool_), nm.not_equal(ranked[1:], ranked[:-1])])
    group = nm.cumsum(nm.astype(is_new, dt.int32)) - 1
    (starts,) = sized_nonzero(is_new, size, 0)
    fill = ranked[0] if fill_value is None else fill_value
    out = [nm.where(nm.less_equal(nm.arange(size), group[-1]), nm.take(ranked, starts), fill)]
    if flags[0]:
        out.append(nm.take(order, starts))
    if flags[1]:
        which = nm.index_put(nm.zeros_like(group), (order,), group)
        out.append(nm.reshape(which, x.shape))
    if flags[2]:
        out.append(nm.segment_sum(nm.ones_like(group), group, size))
    return out[0] if len(out) == 1 else tuple(out)


def sized_repeat(x: Tensor, repeats: Any, axis: int, total: int) -> Tensor:
    """Elements repeated along an axis; the first `total`, or the last one over and over."""
    count = x.shape[axis]
    ends = nm.cumsum(nm.broadcast_to(nm.asarray(repeats), (count,)))
    at = nm.searchsorted(ends, nm.arange(total), side="right")
    return nm.take(x, nm.clip(at, 0, count - 1), axis=axis)
