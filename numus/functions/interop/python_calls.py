"""Python functions of slices of a tensor, called one after the other, as NumPy calls them.

`nm.apply_along_axis` and `nm.piecewise` map a function over all slices at once, so it must be made
of numus's functions; these take any function, and shapes that depend on values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.functions import api as nm
from numus.tensor import Tensor


def along_axis(function: Callable[[Tensor], Tensor], axis: int, x: Tensor) -> Tensor:
    """A function of the vectors along an axis; axes of its results take that axis' place."""
    lines = nm.moveaxis(x, axis, -1)
    lead = lines.shape[:-1]
    if 0 in lead:
        raise ValueError("Cannot apply_along_axis when any iteration dimensions are 0")
    parts = [function(lines[i]) for i in np.ndindex(*lead)]
    found = nm.reshape(nm.stack(parts), lead + parts[0].shape)
    order = [*range(axis), *range(len(lead), found.ndim), *range(axis, len(lead))]
    return nm.permute_dims(found, order)


def in_pieces(x: Tensor, hits: Sequence[Tensor], functions: Sequence[Any]) -> Tensor:
    """Functions of the elements for which their condition holds, or values; the last one counts.

    One function more than conditions is for where none of them holds, which else is 0.
    """
    count, n = len(hits), len(functions)
    masks = [nm.broadcast_to(nm.not_equal(hit, 0), x.shape) for hit in hits]
    if n == count + 1:
        rest = nm.ones(x.shape, dtype=dt.bool_)
        for mask in masks:
            rest = nm.logical_and(rest, nm.logical_not(mask))
        masks.append(rest)
    elif n != count:
        both = f"either {count} or {count + 1} functions are expected"
        raise ValueError(f"with {count} condition(s), {both}")
    out = nm.zeros(x.shape, dtype=x.dtype)
    for mask, f in zip(masks, functions, strict=True):
        part = x[mask]
        if part.size:
            value = nm.asarray(f(part) if callable(f) else f)
            out[mask] = nm.astype(nm.real(value) if not x.dtype.is_complex else value, x.dtype)
    return out
