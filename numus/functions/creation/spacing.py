"""Evenly spaced numbers between arrays of ends, as linspace, logspace and geomspace give."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.functions import api as nm
from numus.shapes import as_int
from numus.tensor import Tensor


def _wide(*given: Any) -> list[Tensor]:
    """The ends in one dtype, float64 unless they are complex."""
    ends = [nm.asarray(x, dtype=dt.float64 if isinstance(x, float) else None) for x in given]
    is_complex = any(e.dtype.is_complex for e in ends)
    return [nm.astype(e, dt.complex128 if is_complex else dt.float64) for e in ends]


def _ends(y: Tensor, first: Tensor, last: Tensor, endpoint: bool) -> Tensor:
    """y with exact ends along its first axis."""
    num = y.shape[0]
    if num < 2:
        return y
    parts = [nm.expand_dims(first, 0), y[1:-1], nm.expand_dims(last, 0) if endpoint else y[-1:]]
    return nm.concat([nm.broadcast_to(p, (p.shape[0], *y.shape[1:])) for p in parts])


def between(start: Any, stop: Any, num: int, endpoint: bool, axis: int) -> Tensor:
    """`num` evenly spaced numbers from each start to its stop, along a new axis."""
    first, last = nm.broadcast_arrays(*_wide(start, stop))
    count = as_int(num, "num", "linspace")
    steps = max(count - 1 if endpoint else count, 1)
    ahead = nm.astype(nm.arange(count), first.dtype)
    line = nm.reshape(ahead, (-1,) + (1,) * first.ndim)
    found = _ends(line * ((last - first) / steps) + first, first, last, endpoint)
    return nm.moveaxis(found, 0, axis)


def powers_between(start: Any, stop: Any, num: int, base: Any, endpoint: bool, axis: int) -> Tensor:
    """`num` numbers from base**start to base**stop with evenly spaced logarithms."""
    first, last, root = nm.broadcast_arrays(*_wide(start, stop, base))
    return nm.moveaxis(nm.power(root, between(first, last, num, endpoint, 0)), 0, axis)


def ratios_between(start: Any, stop: Any, num: int, endpoint: bool, axis: int) -> Tensor:
    """`num` numbers from each start to its stop with a constant ratio."""
    first, last = nm.broadcast_arrays(*_wide(start, stop))
    sign = first / nm.abs(first)
    low, high = nm.log10(first / sign), nm.log10(last / sign)
    found = powers_between(low, high, num, 10.0, endpoint, 0) * sign
    return nm.moveaxis(_ends(found, first, last, endpoint), 0, axis)
