"""Reductions and scans of the elements that are not NaN."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus.functions import api as nm
from numus.functions._base import as_number, flat_or_axis, method, operand, wrap
from numus.functions.creation.dtype_functions import ends
from numus.functions.reduction.reductions import Axis, selected, without_nan
from numus.functions.spelling import spelled
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "nanargmax", "nanargmin", "nancumprod", "nancumsum", "nanprod", "nanstd", "nanvar",
]  # fmt: skip


def _filled(op: str, x: ArrayLike, instead: float) -> Tensor:
    return wrap(without_nan(operand(op, x)._node, instead))


@method()
@spelled
def nanprod(
    x: ArrayLike,
    /,
    axis: Axis = None,
    *,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    initial: Any = None,
) -> Tensor:
    """The product over axes of the elements that are not NaN.

    >>> nm.nanprod(nm.asarray([2.0, float("nan"), 3.0])).item()
    6.0
    """
    options = {"keepdims": keepdims, "where": where, "initial": initial}
    return nm.prod(_filled("nanprod", x, 1), axis, dtype=dtype, **options)


@method()
@spelled
def nancumsum(x: ArrayLike, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running sum along an axis, NaN counted as zero.

    >>> nm.nancumsum(nm.asarray([1.0, float("nan"), 3.0])).tolist()
    [1.0, 1.0, 4.0]
    """
    return nm.cumsum(_filled("nancumsum", x, 0), axis, dtype=dtype)


@method()
@spelled
def nancumprod(x: ArrayLike, /, axis: int | None = None, *, dtype: Any = None) -> Tensor:
    """The running product along an axis, NaN counted as one."""
    return nm.cumprod(_filled("nancumprod", x, 1), axis, dtype=dtype)


@method()
@spelled
def nanvar(
    x: ArrayLike,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Tensor:
    """The variance over axes of the elements that are not NaN, over their number less the
    correction; NaN where that is not positive. A mean that is known is taken, as from
    `nanmean(..., keepdims=True)`.

    >>> nm.nanvar(nm.asarray([1.0, float("nan"), 3.0])).item()
    1.0
    """
    given = operand("nanvar", x)
    free = as_number(correction, "correction", "nanvar")
    result = given.dtype if given.dtype.is_inexact else dt.default_float
    result = result if dtype is None else dt.as_dtype(dtype)
    wide = nm.astype(nm.astype(given, result), dt.compute_dtype(result))
    wide = wrap(selected("nanvar", wide._node, where, math.nan))
    held = nm.logical_not(nm.isnan(wide))
    centred = wide - (nm.nanmean(wide, axis, keepdims=True) if mean is None else mean)
    size = nm.abs(nm.where(held, centred, 0.0))
    count = nm.sum(nm.astype(held, size.dtype), axis, keepdims=keepdims)
    total = nm.sum(size * size, axis, keepdims=keepdims)
    y = total / nm.where(count > free, count - free, math.nan)
    return nm.astype(y, dt.real_of(result))


@method()
@spelled
def nanstd(
    x: ArrayLike,
    /,
    axis: Axis = None,
    *,
    correction: float = 0.0,
    dtype: Any = None,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Tensor:
    """The standard deviation over axes of the elements that are not NaN. Its gradient is 0 where
    it is 0."""
    options = {"correction": correction, "keepdims": keepdims, "where": where, "mean": mean}
    variance = nanvar(x, axis, dtype=dtype, **options)
    zero = variance == 0
    return nm.where(zero, 0.0, nm.sqrt(nm.where(zero, 1.0, variance)))


def _index(op: str, x: ArrayLike, axis: int | None, keepdims: bool, largest: bool) -> Tensor:
    find = nm.argmax if largest else nm.argmin
    given = operand(op, x)
    if not given.dtype.is_inexact:
        return find(given, axis, keepdims)
    found = find(_filled(op, given, ends(given.dtype)[not largest]), axis, keepdims)
    flat, at = flat_or_axis(nm.isnan(given)._node, axis, op)
    lost = nm.all(wrap(flat), at)
    return nm.where(nm.reshape(lost, found.shape), -1, found)


@method()
@spelled
def nanargmax(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first largest element that is not NaN; -1 where all are.

    >>> nm.nanargmax(nm.asarray([1.0, float("nan"), 3.0])).item()
    2
    """
    return _index("nanargmax", x, axis, keepdims, largest=True)


@method()
@spelled
def nanargmin(x: ArrayLike, /, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index of the first smallest element that is not NaN; -1 where all are."""
    return _index("nanargmin", x, axis, keepdims, largest=False)
