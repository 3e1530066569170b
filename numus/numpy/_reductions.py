"""Reductions, means, extremes and running sums, with NumPy's `where`, `initial` and `out`."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy import _convert
from numus.numpy._array import result, write_out
from numus.numpy._convert import cast, engine_dtype, is_concrete, plain, renamed, to_tensor
from numus.numpy._ufuncs import _axes, _mask
from numus.tensor import Tensor

__all__ = [
    "all", "amax", "amin", "any", "argmax", "argmin", "average", "count_nonzero", "cumprod",
    "cumsum", "cumulative_prod", "cumulative_sum", "max", "mean", "min", "nanargmax",
    "nanargmin", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar", "prod",
    "ptp", "std", "sum", "trace", "var",
]  # fmt: skip

NV = host._NoValue


def _given(x, default):
    return default if x is NV else x


def _reduction(name, ufunc, has_dtype):
    def with_dtype(a, axis=None, dtype=None, out=None, keepdims=NV, initial=NV, where=NV):
        options = {"keepdims": _given(keepdims, False), "initial": initial}
        reduce = _convert.function(ufunc).reduce
        return reduce(a, axis, dtype, out, where=_given(where, True), **options)

    def without(a, axis=None, out=None, keepdims=NV, initial=NV, where=NV):
        return with_dtype(a, axis, None, out, keepdims, initial, where)

    made: Any = with_dtype if has_dtype else without
    return renamed(made, name)


sum = _reduction("sum", "add", True)
prod = _reduction("prod", "multiply", True)
max = amax = _reduction("max", "maximum", False)
min = amin = _reduction("min", "minimum", False)


def all(a, axis=None, out=None, keepdims=NV, *, where=NV):
    """Whether all elements are true along axes."""
    options = {"keepdims": _given(keepdims, False), "where": _given(where, True)}
    return _convert.function("logical_and").reduce(a, axis, None, out, **options)


def any(a, axis=None, out=None, keepdims=NV, *, where=NV):
    """Whether any element is true along axes."""
    options = {"keepdims": _given(keepdims, False), "where": _given(where, True)}
    return _convert.function("logical_or").reduce(a, axis, None, out, **options)


def _floats(a, dtype):
    x = to_tensor(a)
    wanted = engine_dtype(dtype)
    return cast(x, wanted or (x.dtype if x.dtype.is_inexact else dt.float64))


def _counted(x, axes, where, keepdims):
    """How many elements each result is made of: a number, or a tensor where there is a mask."""
    if where is True:
        return int(host.prod([x.shape[i] for i in axes], dtype=int))
    hit = nm.broadcast_to(_mask(where), x.shape)
    return nm.sum(hit, axis=axes, dtype=dt.int64, keepdims=keepdims)


def mean(a, axis=None, dtype=None, out=None, keepdims=NV, *, where=NV):
    """The arithmetic mean along axes."""
    x, axes, kept = _floats(a, dtype), _axes(axis, to_tensor(a).ndim), bool(_given(keepdims, False))
    mask = _given(where, True)
    count = _counted(x, axes, mask, kept)
    _warn_if(_is_empty(count), "Mean of empty slice.")
    if mask is True:
        return write_out(nm.mean(x, axis=axes, keepdims=kept), out, "mean", "unsafe")
    total = nm.sum(nm.where(nm.broadcast_to(_mask(mask), x.shape), x, 0), axis=axes, keepdims=kept)
    return write_out(nm.divide(total, cast(count, x.dtype)), out, "mean", "unsafe")


def _is_empty(count):
    if isinstance(count, Tensor):
        return is_concrete(count) and bool((count.numpy() == 0).any())
    return bool(count == 0)


def _warn_if(condition, text):
    if condition:
        warnings.warn(text, RuntimeWarning, stacklevel=4)


def _variance(name):
    engine = getattr(nm, name)

    def spread(
        a, axis=None, dtype=None, out=None, ddof=0, keepdims=NV, *, where=NV, mean=NV, correction=NV
    ):
        if correction is not NV:
            if ddof != 0:
                raise ValueError("ddof and correction can't be provided simultaneously.")
            ddof = correction
        x, kept = _floats(a, dtype), bool(_given(keepdims, False))
        axes, mask = _axes(axis, x.ndim), _given(where, True)
        count = _counted(x, axes, mask, kept)
        low = host.asarray(count.numpy() if isinstance(count, Tensor) else count)
        _warn_if(bool((low <= ddof).any()), "Degrees of freedom <= 0 for slice")
        if mask is True and mean is NV and count > ddof:
            return write_out(
                engine(x, axis=axes, correction=float(ddof), keepdims=kept), out, name, "unsafe"
            )
        hit = True if mask is True else nm.broadcast_to(_mask(mask), x.shape)
        total = nm.maximum(nm.asarray(low) - nm.asarray(host.asarray(ddof)), 0)
        return write_out(_deviation(name, x, axes, hit, mean, total, kept), out, name, "unsafe")

    return renamed(spread, name)


def _deviation(name, x, axes, hit, mean, total, kept):
    """The second moment of what a mask selects, about a mean that may be given."""
    if mean is NV:
        chosen = x if hit is True else nm.where(hit, x, 0)
        count = _counted(x, axes, hit, True)
        about = nm.sum(chosen, axis=axes, keepdims=True) / (
            cast(count, x.dtype) if isinstance(count, Tensor) else count
        )
    else:
        about = cast(to_tensor(mean), x.dtype)
        if about.ndim != x.ndim:
            about = nm.reshape(about, tuple(1 if i in axes else n for i, n in enumerate(x.shape)))
    squares = nm.square(nm.abs(x - about))
    squares = squares if hit is True else nm.where(hit, squares, 0)
    found = nm.sum(squares, axis=axes, keepdims=kept)
    found = found / cast(nm.broadcast_to(total, found.shape), found.dtype)
    return nm.sqrt(found) if name == "std" else found


std, var = _variance("std"), _variance("var")


def ptp(a, axis=None, out=None, keepdims=NV):
    """The range of values along axes."""
    high, low = (f(a, axis, keepdims=_given(keepdims, False)) for f in (max, min))
    return _convert.function("subtract")(high, low, out=out)


def average(a, axis=None, weights=None, returned=False, *, keepdims=NV):
    """The weighted mean along axes."""
    x = to_tensor(a)
    kept = bool(_given(keepdims, False))
    if weights is None:
        found = mean(x, axis, keepdims=kept)
        if not returned:
            return found
        count = _counted(x, _axes(axis, x.ndim), True, False)
        return found, _convert.function("full_like")(found, count)[()]
    w = to_tensor(weights)
    wide = host.result_type(x.dtype.np, w.dtype.np, *([] if x.dtype.is_inexact else ["f8"]))
    x, w = cast(x, engine_dtype(wide)), cast(w, engine_dtype(wide))
    axes = _axes(axis, x.ndim)
    if w.shape != x.shape:
        if axis is None:
            raise TypeError("Axis must be specified when shapes of a and weights differ.")
        if w.shape != tuple(x.shape[i] for i in axes):
            raise ValueError(
                "Shape of weights must be consistent with shape of a along specified axis."
            )
        order = host.argsort(axes)
        w = nm.permute_dims(w, tuple(int(i) for i in order))
        w = nm.reshape(w, tuple(n if i in axes else 1 for i, n in enumerate(x.shape)))
    w = nm.broadcast_to(w, x.shape)
    total = nm.sum(w, axis=axes, keepdims=kept)
    if is_concrete(total) and bool((total.numpy() == 0).any()):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")
    found = nm.sum(x * w, axis=axes, keepdims=kept) / total
    return (result(found), result(total)) if returned else result(found)


def _position(name):
    engine = getattr(nm, name)

    def find(a, axis=None, out=None, *, keepdims=NV):
        x = to_tensor(a)
        if not x.ndim and axis is not None:
            _axes(axis, 1)
            axis = None
        elif axis is not None:
            (axis,) = _axes(axis, x.ndim)
        extent = x.size if axis is None else x.shape[axis]
        if extent == 0:
            short = name.removeprefix("nan")
            raise ValueError(f"attempt to get {short} of an empty sequence")
        kept = bool(_given(keepdims, False))
        found = engine(x, axis=axis, keepdims=kept)
        if name.startswith("nan") and is_concrete(found) and bool((found.numpy() < 0).any()):
            raise ValueError("All-NaN slice encountered")
        if out is not None and out.dtype != host.intp:
            raise TypeError(f"Cannot cast array data from dtype('int64') to {out.dtype!r}")
        return write_out(cast(found, dt.int64), out, name)

    return renamed(find, name)


argmax, argmin, nanargmax, nanargmin = map(_position, "argmax argmin nanargmax nanargmin".split())


def count_nonzero(a, axis=None, *, keepdims=False):
    """The number of elements that are not zero."""
    x = to_tensor(a)
    found = cast(nm.count_nonzero(x, axis=_axes(axis, x.ndim), keepdims=keepdims), dt.int64)
    return result(found)


def _running(name, ufunc):
    def run(a, axis=None, dtype=None, out=None):
        x = to_tensor(a)
        if axis is None or not x.ndim:
            x, axis = nm.reshape(x, -1), 0
        return _convert.function(ufunc).accumulate(x, axis, dtype, out)

    return renamed(run, name)


cumsum, cumprod = _running("cumsum", "add"), _running("cumprod", "multiply")


def _cumulative(name, run):
    def cumulate(x, /, *, axis=None, dtype=None, out=None, include_initial=False):
        given = to_tensor(x)
        if axis is None:
            if given.ndim > 1:
                raise ValueError(
                    "For arrays which have more than one dimension ``axis`` argument is required."
                )
            axis = 0
        given = nm.reshape(given, -1) if not given.ndim else given
        found = plain(run(given, axis, dtype))
        if include_initial:
            (at,) = _axes(axis, given.ndim)
            shape = (*found.shape[:at], 1, *found.shape[at + 1 :])
            first = nm.full(shape, int(name == "cumulative_prod"), dtype=found.dtype)
            found = nm.concat([first, found], axis=at)
        return write_out(found, out, name, "unsafe")

    return renamed(cumulate, name)


cumulative_sum = _cumulative("cumulative_sum", cumsum)
cumulative_prod = _cumulative("cumulative_prod", cumprod)


def trace(a, offset=0, axis1=0, axis2=1, dtype=None, out=None):
    """The sum along a diagonal."""
    return sum(nm.diagonal(to_tensor(a), offset, axis1, axis2), -1, dtype, out)


# -- without NaN ----------------------------------------------------------------------------------


def _without_nan(a, where=NV):
    """The elements, and a mask of those that count."""
    x = to_tensor(a)
    mask = True if where is NV else _mask(where)
    if not x.dtype.is_inexact:
        return x, mask
    hit = nm.logical_not(nm.isnan(x))
    return x, hit if mask is True else nm.logical_and(hit, mask)


def nansum(a, axis=None, dtype=None, out=None, keepdims=NV, initial=NV, where=NV):
    """The sum of what is not NaN."""
    x, hit = _without_nan(a)
    return sum(
        x if hit is True else nm.where(hit, x, 0), axis, dtype, out, keepdims, initial, where
    )


def nanprod(a, axis=None, dtype=None, out=None, keepdims=NV, initial=NV, where=NV):
    """The product of what is not NaN."""
    x, hit = _without_nan(a)
    return prod(
        x if hit is True else nm.where(hit, x, 1), axis, dtype, out, keepdims, initial, where
    )


def _nan_extreme(name, plain_name, worst):
    def extreme(a, axis=None, out=None, keepdims=NV, initial=NV, where=NV):
        x, hit = _without_nan(a)
        reduce = globals()[plain_name]
        if hit is True:
            return reduce(x, axis, out, keepdims, initial, where)
        kept = _given(keepdims, False)
        found = reduce(nm.where(hit, x, worst), axis, None, kept, initial, where)
        empty = _convert.function("logical_not")(any(hit, axis, keepdims=kept, where=where))
        if initial is NV:
            found = _convert.function("where")(empty, host.nan, found)
            _warn_if(bool(host.any(host.asarray(empty))), "All-NaN slice encountered")
        return write_out(to_tensor(found, x.dtype), out, name, "unsafe")

    return renamed(extreme, name)


nanmax = _nan_extreme("nanmax", "max", -host.inf)
nanmin = _nan_extreme("nanmin", "min", host.inf)


def _check_out(op, out, dtype):
    if dtype is not None and not host.issubdtype(host.dtype(dtype), host.inexact):
        raise TypeError("If a is inexact, then dtype must be inexact")
    if out is not None and not host.issubdtype(out.dtype, host.inexact):
        raise TypeError("If a is inexact, then out must be inexact")


def nanmean(a, axis=None, dtype=None, out=None, keepdims=NV, *, where=NV):
    """The mean of what is not NaN."""
    x, hit = _without_nan(a, where)
    if not x.dtype.is_inexact:
        return mean(x, axis, dtype, out, keepdims, where=where)
    _check_out("nanmean", out, dtype)
    return mean(x, axis, dtype, out, keepdims, where=hit)


def _nan_variance(name):
    def spread(
        a, axis=None, dtype=None, out=None, ddof=0, keepdims=NV, *, where=NV, mean=NV, correction=NV
    ):
        x, hit = _without_nan(a, where)
        options = {"mean": mean, "correction": correction}
        if not x.dtype.is_inexact:
            return globals()[name[3:]](x, axis, dtype, out, ddof, keepdims, where=where, **options)
        _check_out(name, out, dtype)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Degrees of freedom")
            found = globals()[name[3:]](x, axis, dtype, None, ddof, keepdims, where=hit, **options)
        count = _counted(x, _axes(axis, x.ndim), hit, bool(_given(keepdims, False)))
        few = nm.less_equal(count, int(ddof if correction is NV else correction))
        if is_concrete(few) and bool(few.numpy().any()):
            warnings.warn("Degrees of freedom <= 0 for slice.", RuntimeWarning, stacklevel=2)
            found = _convert.function("where")(few, host.nan, found)
        return write_out(to_tensor(found), out, name, "unsafe") if out is not None else found

    return renamed(spread, name)


nanstd, nanvar = _nan_variance("nanstd"), _nan_variance("nanvar")
