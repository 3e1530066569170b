"""NumPy's functions as functions of tensors, where the engine's own take other arguments.

No array is made or cast here: `_bind` calls these with tensors, in the dtypes that NumPy computes
in, and gives their results NumPy's types.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.functions.interop.numpy_errors import hosted
from numus.functions.interop.python_calls import in_pieces
from numus.numpy import _convert as nc
from numus.shapes import size_of
from numus.tensor import Tensor

# -- reductions -----------------------------------------------------------------------------------


def _few(x: Tensor, axis: tuple[int, ...], where: Any, least: Any) -> bool:
    """Whether some result is made of so few elements."""
    if where is None:
        return size_of(tuple(x.shape[i] for i in axis)) <= least
    counted = nm.count_nonzero(nm.broadcast_to(where, x.shape), axis=axis)
    return nc.holds_any(nm.less_equal(counted, least))


def _warn(text: str, times: int = 1) -> None:
    for _ in range(times):
        warnings.warn(text, RuntimeWarning, stacklevel=6)


def mean(a: Tensor, *, axis: Any, where: Any = None, **options: Any) -> Tensor:
    _warn("Mean of empty slice.", _few(a, axis, where, 0))
    return nm.mean(a, axis=axis, where=where, **options)


def _spread(name: str) -> Any:
    engine = getattr(nm, name)

    def spread(a: Tensor, *, axis: Any, where: Any = None, **options: Any) -> Tensor:
        if _few(a, axis, where, options.get("correction", 0)):
            _warn("Degrees of freedom <= 0 for slice")
            # the division by zero is NumPy's
            where = nm.ones((), dtype=dt.bool_) if where is None else where
        found: Tensor = engine(a, axis=axis, where=where, **options)
        return found

    return spread


std, var = map(_spread, ("std", "var"))


def average(a: Tensor, axis: Any = None, weights: Any = None, **options: Any) -> Any:
    found = nm.average(a, axis, weights, **options | {"returned": True})
    if weights is not None and nc.holds_any(nm.equal(found[1], 0)):
        raise ZeroDivisionError("Weights sum to zero, can't be normalized")
    return found if options.get("returned") else found[0]


def _of_numbers(name: str, text: str = "All-NaN slice encountered") -> Any:
    """A statistic of the elements that are not NaN: it is NaN where there are too few."""
    engine = getattr(nm, name)

    def statistic(a: Tensor, q: Any = None, **options: Any) -> Tensor:
        found: Tensor = engine(a, *(() if q is None else (q,)), **options)
        if nc.holds_any(none := nm.isnan(found)):
            is_each = name == "nanmedian" and a.size  # that one warns of each slice
            _warn(text, int(nm.count_nonzero(none).item()) if is_each else 1)
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
        if nc.holds_any(nm.less(found, 0)):
            raise ValueError("All-NaN slice encountered")
        return found

    return find


nanargmax, nanargmin = _nan_position("nanargmax"), _nan_position("nanargmin")


_CHOICES = ("inverted_cdf", "closest_observation", "lower", "higher", "nearest")


def _quantile(name: str) -> Any:
    engine = _of_numbers(name) if name.startswith("nan") else getattr(nm, name)

    def quantile(a: Tensor, q: Any, *, method: str = "linear", **options: Any) -> Tensor:
        options = {k: v for k, v in options.items() if v is not None}
        wide = a if a.dtype.is_inexact else nc.cast(a, dt.float64)
        wide = nc.cast(wide, nc.common_dtype(wide, q)) if method not in _CHOICES else wide
        share = nc.cast(q, dt.real_of(wide.dtype)) if isinstance(q, Tensor) else q
        found: Tensor = engine(wide, share, method=method, **options)
        return nc.cast(found, a.dtype) if method in _CHOICES else found

    return quantile


quantile, percentile, nanquantile, nanpercentile = map(
    _quantile, ("quantile", "percentile", "nanquantile", "nanpercentile")
)


def interp(x: Tensor, xp: Tensor, fp: Tensor, *args: Any, **options: Any) -> Tensor:
    values = nc.cast(fp, dt.complex128 if fp.dtype.is_complex else dt.float64)
    return nm.interp(nc.cast(x, dt.float64), nc.cast(xp, dt.float64), values, *args, **options)


def bincount(x: Tensor, weights: Any = None, minlength: int = 0) -> Tensor:
    wide = None if weights is None else nc.cast(weights, dt.float64)
    return nm.bincount(x if x.size else nc.cast(x, dt.int64), wide, minlength)


def _edges(bins: Any) -> Any:
    """How many bins, an estimator's name, or edges: a tensor."""
    if isinstance(bins, (str, int, host.integer)):
        return bins
    found = nc.to_tensor(bins)
    return found if found.ndim else int(found.item())


def _wide(a: Tensor) -> Tensor:
    return a if a.dtype.is_inexact else nc.cast(a, dt.float64)


def histogram_bin_edges(a: Tensor, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    return nm.histogram_bin_edges(_wide(a), _edges(bins), range and tuple(range), weights)


def histogram(
    a: Tensor, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> Any:
    edges = histogram_bin_edges(a, bins, range, weights)
    x, line = nc.in_common_dtype([_wide(a), edges])
    counts, _ = nm.histogram(x, line, weights=weights, density=bool(density))
    return nc.cast(counts, dt.float64) if density else counts, edges


def histogramdd(sample: Any, bins: Any = 10, range: Any = None, **options: Any) -> Any:
    x = nc.cast(nc.to_tensor(sample), dt.float64)
    x = x if isinstance(sample, (Tensor, host.ndarray)) else nm.transpose(x)
    is_each = isinstance(bins, (list, tuple)) and len(bins) == x.shape[-1]
    many = [_edges(b) for b in bins] if is_each else [_edges(bins)] * x.shape[-1]
    counts, edges = nm.histogramdd(
        x, [b if isinstance(b, int) else _wide(b) for b in many], range, **options
    )
    return counts, tuple(edges)


def histogram2d(x: Tensor, y: Tensor, bins: Any = 10, **options: Any) -> Any:
    if x.shape != y.shape:
        raise ValueError("x and y must have the same length.")
    counts, edges = histogramdd(nm.stack([x, y], axis=1), bins, **options)
    return counts, *edges


# -- choice and order -----------------------------------------------------------------------------


def argsort(a: Tensor, axis: int | None = -1, **options: Any) -> Tensor:
    return nm.argsort(a if a.ndim else nm.reshape(a, 1), axis=axis)


def pad(array: Tensor, pad_width: Any, mode: Any = "constant", **options: Any) -> Tensor:
    if "constant_values" in options:
        value = host.asarray(hosted(options["constant_values"]))
        options["constant_values"] = value.astype(array.dtype.np).tolist()
    return nm.pad(array, hosted(pad_width), mode, **options)


def choose(a: Tensor, choices: Any, mode: str = "raise") -> Tensor:
    return nm.choose(nc.cast(a, dt.int64), nc.in_common_dtype(list(choices)), mode=mode)


def insert(arr: Tensor, obj: Any, values: Tensor, axis: int | None = None) -> Tensor:
    at: Any = obj if isinstance(obj, slice) else host.asarray(nc.to_tensor(obj).numpy())
    if isinstance(at, host.ndarray):
        at = host.flatnonzero(at) if at.dtype == bool else at if at.size else at.astype(int)
        at = at if at.ndim else at[()].__index__() if at.dtype.kind in "iu" else at
    return nm.insert(arr, at, values, axis)


def resize(a: Tensor, new_shape: Any) -> Tensor:
    return nm.resize(a, new_shape)


def digitize(x: Tensor, bins: Any, right: bool = False) -> Tensor:
    return nm.digitize(x, nc.to_tensor(bins), right)


# -- elements, products, polynomials --------------------------------------------------------------


def isclose(
    a: Tensor, b: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False
) -> Tensor:
    pair = [nc.cast(t, t.dtype if t.dtype.is_inexact else dt.float64) for t in (a, b)]
    bounds = [nc.to_tensor(t) if host.ndim(t) else float(t) for t in (rtol, atol)]
    return nm.isclose(*pair, rtol=bounds[0], atol=bounds[1], equal_nan=equal_nan)


def vander(x: Tensor, N: Any = None, increasing: bool = False) -> Tensor:
    return nm.vander(nc.cast(x, nc.common_dtype(x, host.dtype(int))), N, increasing)


def round(a: Tensor, decimals: int = 0) -> Tensor:
    return nm.round(nc.cast(a, dt.float16) if a.dtype is dt.bool_ else a, decimals)


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
    return nm.sort_complex(nc.cast(a, dt.complex64 if is_short else nc.common_dtype(a, 1j)))


def meshgrid(*xi: Any, sparse: bool = False, indexing: str = "xy", copy: bool = True) -> Any:
    lines = [nm.reshape(nc.to_tensor(x), -1) for x in xi]
    return nm.meshgrid(*lines, indexing=indexing, sparse=sparse) if lines else ()


def real_if_possible(found: Any) -> Any:
    """Results for real operands are real where no imaginary part is left."""
    values = found[0] if isinstance(found, tuple) else found
    if not values.dtype.is_complex or nc.holds_any(nm.not_equal(nm.imag(values), 0)):
        return found
    return type(found)(*map(nm.real, found)) if isinstance(found, tuple) else nm.real(found)


def _real(name: str) -> Any:
    engine = getattr(nm, name)
    return lambda p: real_if_possible(engine(p))


roots, poly = _real("roots"), _real("poly")


# -- functions of functions -----------------------------------------------------------------------


def piecewise(x: Tensor, condlist: Any, funclist: Any, /, *args: Any, **kw: Any) -> Tensor:
    """Functions get the elements for which their condition holds."""
    is_one = isinstance(condlist, (bool, host.bool_)) or (
        not isinstance(condlist[0], (list, Tensor, host.ndarray)) and x.ndim != 0
    )
    hits = [nc.to_tensor(c) for c in ([condlist] if is_one else condlist)]

    def piece(f: Any) -> Any:
        return lambda part: nc.to_tensor(f(nc.adopt(part), *args, **kw))

    given = [piece(f) if callable(f) else nc.to_tensor(f) for f in funclist]
    return in_pieces(x, hits, given)
