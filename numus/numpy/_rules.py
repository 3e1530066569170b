"""NumPy's functions as functions of tensors, where the engine's own take other arguments.

No array is made or cast here: `_bind` calls these with tensors, in the dtypes that NumPy computes
in, and gives their results NumPy's types.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy._convert import (
    cast,
    common_dtype,
    holds_any,
    hosted,
    in_common_dtype,
    is_concrete,
    normal_axes,
    plain,
    to_tensor,
)
from numus.numpy._histograms import histogram as histogram
from numus.numpy._histograms import histogram2d as histogram2d
from numus.numpy._histograms import histogram_bin_edges as histogram_bin_edges
from numus.numpy._histograms import histogramdd as histogramdd
from numus.numpy._results import adopt
from numus.shapes import size_of
from numus.tensor import Tensor

# -- reductions -----------------------------------------------------------------------------------


def _counted(x: Tensor, axis: tuple[int, ...], where: Any) -> Tensor:
    """How many elements each result is made of."""
    if where is None:
        return nm.asarray(size_of(tuple(x.shape[i] for i in axis)))
    return nm.count_nonzero(nm.broadcast_to(where, x.shape), axis=axis)


def _warn_few(x: Tensor, axis: tuple[int, ...], where: Any, least: Any, text: str) -> bool:
    if is_few := holds_any(nm.less_equal(_counted(x, axis, where), least)):
        warnings.warn(text, RuntimeWarning, stacklevel=6)
    return is_few


def mean(a: Tensor, *, axis: Any, where: Any = None, **options: Any) -> Tensor:
    _warn_few(a, axis, where, 0, "Mean of empty slice.")
    return nm.mean(a, axis=axis, where=where, **options)


def _spread(name: str) -> Any:
    engine = getattr(nm, name)

    def spread(a: Tensor, *, axis: Any, where: Any = None, **options: Any) -> Tensor:
        few, text = options.get("correction", 0), "Degrees of freedom <= 0 for slice"
        if _warn_few(a, axis, where, few, text) and where is None:
            where = nm.ones((), dtype=dt.bool_)  # the division by zero is NumPy's
        found: Tensor = engine(a, axis=axis, where=where, **options)
        return found

    return spread


std, var = map(_spread, ("std", "var"))


def average(a: Tensor, axis: Any = None, weights: Any = None, **options: Any) -> Any:
    found = nm.average(a, axis, weights, **options | {"returned": True})
    if weights is not None and holds_any(nm.equal(found[1], 0)):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")
    return found if options.get("returned") else found[0]


def _of_numbers(name: str, text: str = "All-NaN slice encountered") -> Any:
    """A statistic of the elements that are not NaN: it is NaN where there are too few."""
    engine = getattr(nm, name)

    def statistic(a: Tensor, q: Any = None, **options: Any) -> Tensor:
        found: Tensor = engine(a, *(() if q is None else (q,)), **options)
        if holds_any(nm.isnan(found)):
            warnings.warn(text, RuntimeWarning, stacklevel=5)
        return found

    return statistic


nanmax, nanmin, nanmedian = map(_of_numbers, ("nanmax", "nanmin", "nanmedian"))
nanmean = _of_numbers("nanmean", "Mean of empty slice")
nanstd, nanvar = (
    _of_numbers(n, "Degrees of freedom <= 0 for slice.") for n in ("nanstd", "nanvar")
)


def _nan_position(name: str) -> Any:
    engine = getattr(nm, name)

    def find(a: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        found: Tensor = engine(a, axis=axis, keepdims=keepdims)
        if holds_any(nm.less(found, 0)):
            raise ValueError("All-NaN slice encountered")
        return found

    return find


nanargmax, nanargmin = _nan_position("nanargmax"), _nan_position("nanargmin")


_CHOICES = ("inverted_cdf", "closest_observation", "lower", "higher", "nearest")


def _quantile(name: str) -> Any:
    engine = _of_numbers(name) if name.startswith("nan") else getattr(nm, name)

    def quantile(a: Tensor, q: Any, *, method: str = "linear", **options: Any) -> Tensor:
        options = {k: v for k, v in options.items() if v is not None}
        wide = a if a.dtype.is_inexact else cast(a, dt.float64)
        wide = cast(wide, common_dtype(wide, q)) if method not in _CHOICES else wide
        share = cast(q, dt.real_of(wide.dtype)) if isinstance(q, Tensor) else q
        found: Tensor = engine(wide, share, method=method, **options)
        return cast(found, a.dtype) if method in _CHOICES else found

    return quantile


quantile, percentile, nanquantile, nanpercentile = map(
    _quantile, ("quantile", "percentile", "nanquantile", "nanpercentile")
)


def interp(x: Tensor, xp: Tensor, fp: Tensor, *args: Any, **options: Any) -> Tensor:
    values = cast(fp, dt.complex128 if fp.dtype.is_complex else dt.float64)
    return nm.interp(cast(x, dt.float64), cast(xp, dt.float64), values, *args, **options)


def bincount(x: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    wide = None if weights is None else cast(weights, dt.float64)
    return nm.bincount(x if x.size else cast(x, dt.int64), wide, minlength)


# -- choice and order -----------------------------------------------------------------------------


def nonzero(a: Tensor) -> Any:
    if not a.ndim:
        host.zeros(()).nonzero()  # raises
    return nm.nonzero(a)


def _sorted(name: str) -> Any:
    engine = getattr(nm, name)

    def order(a: Tensor, axis: int | None = -1, *, kind: Any = None, stable: Any = None) -> Tensor:
        x = a if a.ndim else nm.reshape(a, 1)
        if not a.ndim:
            normal_axes(axis, 1)
        found: Tensor = engine(x, axis=axis)
        return found if a.ndim or axis is None else nm.reshape(found, ())

    return order


sort, argsort = _sorted("sort"), _sorted("argsort")


def _parted(name: str) -> Any:
    """Sorted altogether, which is partitioned at all positions."""
    full = sort if name == "partition" else argsort

    def part(a: Tensor, kth: Any, axis: int | None = -1) -> Any:
        extent = a.size if axis is None else a.shape[axis] if a.ndim else 1
        host.partition(host.broadcast_to(host.zeros(()), extent), to_tensor(kth).tolist())  # checks
        return full(a, axis)

    return part


partition, argpartition = _parted("partition"), _parted("argpartition")


def searchsorted(a: Tensor, v: Tensor, side: str = "left", sorter: Any = None) -> Tensor:
    if sorter is not None and sorter.size != a.size:
        raise ValueError("sorter.size must equal len(a)")
    line = a if sorter is None else nm.take(a, sorter)
    return nm.searchsorted(line, v, side="left" if side[0] == "l" else "right")


def take(a: Tensor, indices: Tensor, axis: int | None = None, mode: str = "raise") -> Tensor:
    is_bool = indices.dtype is dt.bool_
    at = cast(indices, dt.int64) if indices.size == 0 or is_bool else indices
    return nm.take(a, at, axis, mode=mode)


def take_along_axis(arr: Tensor, indices: Tensor, axis: int | None = -1) -> Tensor:
    if not indices.dtype.is_integer:
        raise IndexError("`indices` must be an integer array")
    if indices.ndim != (1 if axis is None else arr.ndim):
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    return nm.take_along_axis(arr, indices, axis)


def put(a: Any, ind: Tensor, v: Tensor, mode: str = "raise") -> None:
    if ind.size and v.size:
        nm.put(a, cast(ind, dt.int64), v, mode)


def putmask(a: Any, mask: Tensor, values: Tensor) -> None:
    nm.putmask(a, cast(mask, dt.bool_), values)


def put_along_axis(arr: Any, indices: Tensor, values: Tensor, axis: int | None = -1) -> None:
    if axis is None and indices.ndim != 1:
        raise ValueError("when axis=None, `indices` must have a single dimension.")
    nm.put_along_axis(arr, indices, values, axis)


def place(arr: Any, mask: Tensor, vals: Tensor) -> None:
    if not vals.size:
        if holds_any(mask):
            raise ValueError("Cannot insert from an empty array!")
        return
    nm.place(arr, cast(mask, dt.bool_), vals)


def fill_diagonal(a: Any, val: Tensor, wrap: bool = False) -> None:
    nm.fill_diagonal(a, val, wrap)


def choose(a: Tensor, choices: Any, mode: str = "raise") -> Tensor:
    x, count = cast(a, dt.int64), len(choices)
    outside = nm.logical_or(nm.less(x, 0), nm.greater_equal(x, count))
    if mode == "raise" and holds_any(outside):
        raise ValueError("invalid entry in choice array")
    return nm.choose(x, in_common_dtype(list(choices)), mode=mode)


def insert(arr: Tensor, obj: Any, values: Tensor, axis: int | None = None) -> Tensor:
    at: Any = obj if isinstance(obj, slice) else host.asarray(to_tensor(obj).numpy())
    if isinstance(at, host.ndarray):
        if at.dtype == bool:
            at = host.flatnonzero(at)
        at = at.astype(int) if at.size == 0 else int(at) if at.ndim == 0 else at
    return nm.insert(arr, at, cast(values, arr.dtype), axis)


def unravel_index(indices: Tensor, shape: Any, order: str = "C") -> Any:
    return nm.unravel_index(_read(indices), shape, order)


def ravel_multi_index(multi_index: Any, dims: Any, mode: Any = "raise", order: str = "C") -> Any:
    return nm.ravel_multi_index([_read(i) for i in multi_index], dims, mode, order)


def _read(index: Tensor) -> Any:
    """The numbers of indices where they can be told: those out of range are errors then."""
    if index.size and not index.dtype.is_integer:
        raise TypeError("only int indices permitted")
    return index.numpy() if is_concrete(index) else index


def ediff1d(ary: Tensor, to_end: Any = None, to_begin: Any = None) -> Tensor:
    for name, part in (("to_begin", to_begin), ("to_end", to_end)):
        if part is not None and not host.can_cast(part.dtype.np, ary.dtype.np, "same_kind"):
            rule = "with input `ary` under the `same_kind` rule."
            raise TypeError(f"dtype of `{name}` must be compatible {rule}")
    return nm.ediff1d(ary, to_end, to_begin)


def digitize(x: Tensor, bins: Any, right: bool = False) -> Tensor:
    return nm.digitize(x, to_tensor(bins), right)


def resize(a: Tensor, new_shape: Any) -> Tensor:
    return nm.resize(a, new_shape)


def unique(ar: Tensor, axis: Any = None, **options: Any) -> Any:
    at = None if axis is None or (ar.ndim == 1 and normal_axes(axis, 1)) else axis
    found = nm.unique(ar, axis=at, **options)
    if not isinstance(found, (tuple, list)):
        return found
    return (found[0], *(cast(i, dt.int64) for i in found[1:]))


def where(condition: Tensor, x: Any = None, y: Any = None) -> Any:
    if (x is None) != (y is None):
        raise ValueError("either both or neither of x and y should be given")
    if x is None:
        return tuple(cast(i, dt.int64) for i in nonzero(condition))
    return nm.where(cast(condition, dt.bool_), x, y)


def select(condlist: Any, choicelist: Any, default: Any = 0) -> Tensor:
    return nm.select(list(condlist), list(choicelist), default)


# -- elements, products, polynomials --------------------------------------------------------------


def isclose(
    a: Tensor, b: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Tensor:
    pair = [cast(t, t.dtype if t.dtype.is_inexact else dt.float64) for t in (a, b)]
    bounds = [to_tensor(t) if host.ndim(t) else float(t) for t in (rtol, atol)]
    return nm.isclose(*pair, rtol=bounds[0], atol=bounds[1], equal_nan=equal_nan)


def vander(x: Tensor, N: Any = None, increasing: bool = False) -> Tensor:
    return nm.vander(cast(x, common_dtype(x, host.dtype(int))), N, increasing)


def pad(array: Tensor, pad_width: Any, mode: Any = "constant", **options: Any) -> Tensor:
    width = hosted(pad_width)
    if not isinstance(width, dict) and host.asarray(width).dtype.kind != "i":
        raise TypeError("`pad_width` must be of integral type.")
    if "constant_values" in options:
        value = host.asarray(hosted(options["constant_values"]))
        options["constant_values"] = value.astype(array.dtype.np).tolist()
    return nm.pad(array, width, mode, **{k: hosted(v) for k, v in options.items()})


def round(a: Tensor, decimals: int = 0) -> Tensor:
    return nm.round(cast(a, dt.float16) if a.dtype is dt.bool_ else a, decimals)


def _slid(name: str) -> Any:
    engine, short = getattr(nm, name), {"v": "valid", "s": "same", "f": "full"}

    def slide(a: Tensor, v: Tensor, mode: Any = "full" if name == "convolve" else "valid") -> Any:
        if mode is None:
            raise TypeError("mode must not be None")
        known = ("valid", "same", "full")[mode] if isinstance(mode, int) else short.get(mode, mode)
        return engine(*(nm.reshape(x, -1) if not x.ndim else x for x in (a, v)), mode=known)

    return slide


convolve, correlate = _slid("convolve"), _slid("correlate")


def sort_complex(a: Tensor) -> Tensor:
    is_short = a.dtype.is_integer and a.dtype.itemsize < 4
    return nm.sort_complex(cast(a, dt.complex64 if is_short else common_dtype(a, 1j)))


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy", copy: bool = True) -> Any:
    lines = [nm.reshape(to_tensor(x), -1) for x in xi]
    return tuple(nm.meshgrid(*lines, indexing=indexing, sparse=sparse)) if lines else ()


def gradient(f: Tensor, /, *spacing: Any, axis: Any = None, edge_order: int = 1) -> Any:
    found = nm.gradient(f, *spacing, axis=axis, edge_order=edge_order)
    return tuple(found) if isinstance(found, list) else found


def real_if_possible(found: Any) -> Any:
    """Results for real operands are real where no imaginary part is left."""
    values = found[0] if isinstance(found, tuple) else found
    if not values.dtype.is_complex or holds_any(nm.not_equal(nm.imag(values), 0)):
        return found
    return type(found)(*map(nm.real, found)) if isinstance(found, tuple) else nm.real(found)


def roots(p: Tensor) -> Tensor:
    found: Tensor = real_if_possible(nm.roots(p))
    return found


def poly(seq_of_zeros: Tensor) -> Tensor:
    found: Tensor = real_if_possible(nm.poly(seq_of_zeros))
    return found


def polyder(p: Tensor, m: int = 1) -> Tensor:
    if m < 0:
        raise ValueError("Order of derivative must be positive (see polyint)")
    return nm.polyder(p, m)


def polyint(p: Tensor, m: int = 1, k: Any = None) -> Tensor:
    if m < 0:
        raise ValueError("Order of integral must be positive (see polyder)")
    return nm.polyint(p, m, 0.0 if k is None else k)


# -- functions of functions -----------------------------------------------------------------------


def piecewise(x: Tensor, condlist: Any, funclist: Any, /, *args: Any, **kw: Any) -> Tensor:
    """Functions get the elements for which their condition holds."""
    is_one = isinstance(condlist, (bool, host.bool_)) or (
        not isinstance(condlist[0], (list, Tensor, host.ndarray)) and x.ndim != 0
    )
    hits = [cast(to_tensor(c), dt.bool_) for c in ([condlist] if is_one else condlist)]
    count, n = len(hits), len(funclist)
    if n == count + 1:
        hits.append(nm.logical_not(functools.reduce(nm.logical_or, hits)))
    elif n != count:
        both = f"either {count} or {count + 1} functions are expected"
        raise ValueError(f"with {count} condition(s), {both}")
    out = adopt(nm.zeros(x.shape, dtype=x.dtype))
    for hit, f in zip(hits, funclist, strict=True):
        at = adopt(nm.broadcast_to(hit, x.shape))
        part = adopt(plain(x))[at] if callable(f) else None
        if part is None:
            out[at] = f
        elif part.size:
            out[at] = f(part, *args, **kw)
    found: Tensor = plain(out)
    return found
