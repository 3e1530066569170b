"""Choosing, sorting, counting and writing elements, with NumPy's arguments and errors."""

from __future__ import annotations

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.numpy import _convert
from numus.numpy._array import adopt, result, write_out
from numus.numpy._convert import cast, engine_dtype, is_concrete, plain, renamed, to_tensor
from numus.numpy._ufuncs import _axes, _kind, as_operand
from numus.tensor import Tensor

__all__ = [
    "argpartition", "argsort", "choose", "clip", "ediff1d", "fill_diagonal", "histogram",
    "histogram2d", "histogram_bin_edges", "histogramdd", "intersect1d", "nonzero", "partition",
    "piecewise", "place", "put", "put_along_axis", "putmask", "searchsorted", "select",
    "setdiff1d", "sort", "take", "take_along_axis", "unique", "where",
]  # fmt: skip


def where(condition, x=None, y=None, /):
    """x where a condition holds and y elsewhere; alone, the indices where it does."""
    if (x is None) != (y is None):
        raise ValueError("either both or neither of x and y should be given")
    hit = to_tensor(condition)
    if x is None:
        return _convert.function("nonzero")(hit)
    hit = hit if hit.dtype is dt.bool_ else nm.not_equal(hit, 0)
    operands = [as_operand(v) for v in (x, y)]
    kinds = [v if type(v) in (int, float, complex) else _kind(v) for v in operands]
    common = engine_dtype(host.result_type(*kinds))
    return result(nm.where(hit, *(cast(to_tensor(v), common) for v in operands)))


def nonzero(a):
    """The indices of the elements that are not zero."""
    x = to_tensor(a)
    if not x.ndim:
        raise ValueError(
            "Calling nonzero on 0d arrays is not allowed. Use np.atleast_1d(scalar).nonzero() "
            "instead. If the context of this error is of the form `arr[nonzero(cond)]`, just use "
            "`arr[cond]`."
        )
    return tuple(adopt(cast(i, dt.int64)) for i in nm.nonzero(x))


def clip(
    a,
    a_min=host._NoValue,
    a_max=host._NoValue,
    out=None,
    *,
    min=host._NoValue,
    max=host._NoValue,
    **kwargs,
):
    """Values within bounds."""
    if a_min is host._NoValue and a_max is host._NoValue:
        a_min = None if min is host._NoValue else min
        a_max = None if max is host._NoValue else max
    elif a_min is host._NoValue or a_max is host._NoValue:
        missing = "a_min" if a_min is host._NoValue else "a_max"
        raise TypeError(f"clip() missing 1 required positional argument: {missing!r}")
    elif min is not host._NoValue or max is not host._NoValue:
        text = "Passing `min` or `max` keyword argument when `a_min` and `a_max` are provided is"
        raise ValueError(f"{text} forbidden.")
    maximum, minimum = (_convert.function(n) for n in ("maximum", "minimum"))
    found = as_operand(a)
    dtype = kwargs.get("dtype")
    for bound, combine in ((a_min, maximum), (a_max, minimum)):
        if bound is not None:
            found = combine(found, _within(found, bound), dtype=dtype)
    given = found if isinstance(found, Tensor) else to_tensor(found)
    if given is a or out is not None:
        given = nm.copy(plain(given))
    return write_out(plain(given), out, "clip", kwargs.get("casting", "same_kind"))


def _within(x, bound):
    """A Python integer beyond the range of an integer array bounds nothing: the range's end."""
    own = x._node.dtype if isinstance(x, Tensor) else None
    if type(bound) is int and own is not None and own.is_integer:
        low, high = dt.int_range(own)
        return low if bound < low else high if bound > high else bound
    return bound


def take(a, indices, axis=None, out=None, mode="raise"):
    """Elements at indices along an axis."""
    x, at = to_tensor(a), to_tensor(indices)
    at = cast(at, dt.int64) if at.size == 0 or at.dtype is dt.bool_ else at
    if not at.dtype.is_integer:
        raise TypeError(
            f"Cannot cast array data from {at.dtype.np!r} to dtype('int64') according to 'safe'"
        )
    if axis is None:
        x, axis = nm.reshape(x, -1), 0
    (axis,) = _axes(axis, x.ndim)
    extent = x.shape[axis]
    if extent == 0 and at.size:
        raise IndexError("cannot do a non-empty take from an empty axes.")
    at = _wrapped(at, extent, mode)
    found = nm.take(x, nm.reshape(at, -1), axis=axis)
    found = nm.reshape(found, x.shape[:axis] + at.shape + x.shape[axis + 1 :])
    return write_out(found, out, "take")


def _wrapped(at, extent, mode):
    if mode == "wrap":
        return nm.remainder(at, max(extent, 1))
    if mode == "clip":
        return nm.clip(at, 0, max(extent - 1, 0))
    if mode != "raise":
        raise ValueError(f"clipmode must be one of 'clip', 'raise', or 'wrap' (got {mode!r})")
    if at.size and is_concrete(at):
        values = at.numpy()
        bad = values[(values < -extent) | (values >= extent)]
        if bad.size:
            raise IndexError(f"index {bad.flat[0]} is out of bounds for axis with size {extent}")
    return at


def take_along_axis(arr, indices, axis=-1):
    """Elements at indices that go along with the other axes."""
    x, at = to_tensor(arr), to_tensor(indices)
    if not at.dtype.is_integer:
        raise IndexError("`indices` must be an integer array")
    if axis is None:
        if at.ndim != 1:
            raise ValueError("when axis=None, `indices` must have a single dimension.")
        x, axis = nm.reshape(x, -1), 0
    (axis,) = _axes(axis, x.ndim)
    if at.ndim != x.ndim:
        raise ValueError("`indices` and `arr` must have the same number of dimensions")
    return result(nm.take_along_axis(x, at, axis=axis))


def put_along_axis(arr, indices, values, axis):
    """Write at indices that go along with the other axes."""
    at, given = to_tensor(indices), to_tensor(values)
    if axis is None:
        if at.ndim != 1:
            raise ValueError("when axis=None, `indices` must have a single dimension.")
        flat = nm.put_along_axis(
            nm.reshape(plain(arr), -1), at, cast(given, arr._node.dtype), axis=0
        )
        arr.rebind(nm.reshape(flat, arr.shape)._node, "put_along_axis")
        return
    arr.rebind(
        nm.put_along_axis(plain(arr), at, cast(given, arr._node.dtype), axis=axis)._node, "put"
    )


def put(a, ind, v, mode="raise"):
    """Write at flat indices; values are used over and over."""
    if not isinstance(a, Tensor):
        raise TypeError(f"argument 1 must be numpy.ndarray, not {type(a).__name__}")
    at, values = nm.reshape(to_tensor(ind), -1), nm.reshape(cast(to_tensor(v), a._node.dtype), -1)
    if not at.size or not values.size:
        return
    at = _wrapped(cast(at, dt.int64), a.size, mode)
    flat = adopt(nm.reshape(nm.copy(plain(a)), -1))
    flat[at] = nm.resize(values, (at.size,))
    a.rebind(nm.reshape(plain(flat), a.shape)._node, "put")


def putmask(a, /, mask, values):
    """Write where a mask holds, each value at its own position."""
    if not isinstance(a, Tensor):
        raise TypeError("argument 1 must be numpy.ndarray")
    nm.putmask(a, nm.astype(to_tensor(mask), dt.bool_), cast(to_tensor(values), a._node.dtype))


def place(arr, mask, vals):
    """Write values one after the other where a mask holds."""
    if not isinstance(arr, Tensor):
        raise TypeError(f"argument 1 must be numpy.ndarray, not {type(arr).__name__}")
    hit, given = nm.astype(to_tensor(mask), dt.bool_), cast(to_tensor(vals), arr._node.dtype)
    if not given.size:
        if nm.any(hit).item():
            raise ValueError("Cannot insert from an empty array!")
        return
    nm.place(arr, hit, given)


def fill_diagonal(a, val, wrap=False):
    """Write to the main diagonal."""
    if a.ndim < 2:
        raise ValueError("array must be at least 2-d")
    if a.ndim > 2 and len(set(a.shape)) != 1:
        raise ValueError("All dimensions of input must be of equal length")
    nm.fill_diagonal(a, cast(to_tensor(val), a._node.dtype), wrap)


def choose(a, choices, out=None, mode="raise"):
    """Elements of the choices that an array numbers."""
    parts = [to_tensor(c) for c in choices]
    common = engine_dtype(host.result_type(*(p.dtype.np for p in parts)))
    x = cast(to_tensor(a), dt.int64)
    if mode == "raise":
        bad = (x.numpy() < 0) | (x.numpy() >= len(parts))
        if bad.any():
            raise ValueError("invalid entry in choice array")
    return write_out(nm.choose(x, [cast(p, common) for p in parts], mode=mode), out, "choose")


def select(condlist, choicelist, default=0):
    """The first choice whose condition holds."""
    if len(condlist) != len(choicelist):
        raise ValueError("list of cases must be same length as list of conditions")
    if not len(condlist):
        raise ValueError("select with an empty condition list is not possible")
    hits = [to_tensor(c) for c in condlist]
    for i, hit in enumerate(hits):
        if hit.dtype is not dt.bool_:
            raise TypeError(f"invalid entry {i} in condlist: should be boolean ndarray")
    values = [as_operand(v) for v in (*choicelist, default)]
    kinds = [v if type(v) in (int, float, complex) else _kind(v) for v in values]
    common = engine_dtype(host.result_type(*kinds))
    *chosen, last = (cast(to_tensor(v), common) for v in values)
    for hit, value in zip(reversed(hits), reversed(chosen), strict=True):
        last = nm.where(hit, value, last)
    return result(last)


def piecewise(x, condlist, funclist, *args, **kw):
    """Functions of the elements for which conditions hold."""
    given = adopt(to_tensor(x))
    if isinstance(condlist, (bool, host.bool_)) or (
        not isinstance(condlist[0], (list, Tensor, host.ndarray)) and given.ndim != 0
    ):
        condlist = [condlist]
    hits = [nm.astype(to_tensor(c), dt.bool_) for c in condlist]
    count, n = len(hits), len(funclist)
    if n == count + 1:
        rest = nm.ones((), dtype=dt.bool_)
        for hit in hits:
            rest = nm.logical_and(rest, nm.logical_not(hit))
        hits.append(rest)
    elif n != count:
        raise ValueError(
            f"with {count} condition(s), either {count} or {count + 1} functions are expected"
        )
    out = adopt(nm.zeros(given.shape, dtype=given._node.dtype))
    for hit, function in zip(hits, funclist, strict=True):
        place = adopt(nm.broadcast_to(hit, given.shape))
        if not callable(function):
            out[place] = function
        else:
            part = given[place]
            if part.size:
                out[place] = function(part, *args, **kw)
    return out


# -- order ----------------------------------------------------------------------------------------

_KINDS = (None, "quicksort", "heapsort", "mergesort", "stable", "introsort", "q", "h", "m", "s")


def _sorting(name):
    engine = getattr(nm, name)

    def order_(a, axis=-1, kind=None, order=None, *, stable=None):
        if order is not None:
            raise ValueError("Cannot specify order when the array has no fields.")
        if kind is not None and kind.lower() not in _KINDS:
            raise ValueError(
                f"sort kind must be one of 'quick', 'heap', or 'stable' (got {kind!r})"
            )
        if kind is not None and stable is not None:
            raise ValueError("`kind` and `stable` parameters can't be provided at the same time.")
        x = to_tensor(a)
        if axis is None:
            x, axis = nm.reshape(x, -1), 0
        if not x.ndim:
            _axes(axis, 1)
            return adopt(nm.zeros((), dtype=dt.int64) if name == "argsort" else nm.copy(x))
        (axis,) = _axes(axis, x.ndim)
        found = engine(x, axis=axis)
        return adopt(cast(found, dt.int64) if name == "argsort" else found)

    return renamed(order_, name)


sort, argsort = _sorting("sort"), _sorting("argsort")


def _partitioning(name):
    full = sort if name == "partition" else argsort

    def part(a, kth, axis=-1, kind="introselect", order=None):
        x = to_tensor(a)
        extent = x.size if axis is None else x.shape[axis] if x.ndim else 1
        for k in host.atleast_1d(to_tensor(kth).numpy()).reshape(-1):
            if not isinstance(k, host.integer):
                raise TypeError("Partition index must be integer")
            if not -extent <= k < extent:
                raise ValueError(f"kth(={int(k)}) out of bounds ({extent})")
        return full(a, axis)

    part.__name__ = part.__qualname__ = name
    part.__doc__ = f"As `numpy.{name}`: sorted altogether."
    return part


partition, argpartition = _partitioning("partition"), _partitioning("argpartition")


def searchsorted(a, v, side="left", sorter=None):
    """Where values go into a sorted vector."""
    if side not in ("left", "right", "l", "r"):
        raise ValueError(f"search side must be 'left' or 'right' (got {side!r})")
    x, value = to_tensor(a), to_tensor(v)
    common = engine_dtype(host.result_type(x.dtype.np, value.dtype.np))
    order = None if sorter is None else to_tensor(sorter)
    if order is not None:
        if not order.dtype.is_integer:
            raise TypeError("sorter must only contain integers")
        if order.size != x.size:
            raise ValueError("sorter.size must equal len(a)")
        _wrapped(order, x.size, "raise")
        x = x[order]
    side = "left" if side[0] == "l" else "right"
    return result(cast(nm.searchsorted(cast(x, common), cast(value, common), side=side), dt.int64))


def unique(
    ar,
    return_index=False,
    return_inverse=False,
    return_counts=False,
    axis=None,
    *,
    equal_nan=True,
    sorted=True,
):
    """The distinct elements, sorted, with where and how often they are."""
    x = to_tensor(ar)
    if axis is not None:
        (axis,) = _axes(axis, x.ndim)
        axis = None if x.ndim == 1 else axis
    flags = (return_index, return_inverse, return_counts)
    found = nm.unique(x, *flags, axis=axis, equal_nan=equal_nan)
    if not isinstance(found, (tuple, list)):
        return adopt(found)
    return (adopt(found[0]), *(adopt(cast(i, dt.int64)) for i in found[1:]))


def setdiff1d(ar1, ar2, assume_unique=False):
    """The elements of one array that are not in another."""
    x = adopt(nm.reshape(to_tensor(ar1), -1)) if assume_unique else unique(ar1)
    return x[_convert.function("isin")(x, ar2, assume_unique=True, invert=True)]


def intersect1d(ar1, ar2, assume_unique=False, return_indices=False):
    """The elements of both arrays, sorted; with the indices where they are first."""
    flat = [adopt(nm.reshape(to_tensor(x), -1)) for x in (ar1, ar2)]
    at = [None, None]
    if not assume_unique:
        flat, at = zip(*(unique(x, return_index=True) for x in flat), strict=True)
    joined = _convert.function("concatenate")(flat)
    order = argsort(joined)
    joined = joined[order]
    same = joined[1:] == joined[:-1]
    if not return_indices:
        return joined[:-1][same]
    first, second = order[:-1][same], order[1:][same] - flat[0].size
    found = (i if a is None else a[i] for i, a in zip((first, second), at, strict=True))
    return joined[:-1][same], *found


def ediff1d(ary, to_end=None, to_begin=None):
    """Differences of neighbours, with values before and after."""
    x = nm.reshape(to_tensor(ary), -1)
    parts = [None if p is None else nm.reshape(to_tensor(p), -1) for p in (to_begin, to_end)]
    for name, part in zip(("to_begin", "to_end"), parts, strict=True):
        if part is not None and not host.can_cast(part.dtype.np, x.dtype.np, "same_kind"):
            rule = "with input `ary` under the `same_kind` rule."
            raise TypeError(f"dtype of `{name}` must be compatible {rule}")
    parts.insert(1, nm.diff(x))
    return adopt(nm.concat([cast(p, x.dtype) for p in parts if p is not None]))


# -- histograms -----------------------------------------------------------------------------------


def _host(x):
    return x.__array__() if isinstance(x, Tensor) else x


def histogram(a, bins=10, range=None, density=None, weights=None):
    """How many elements fall into each bin, and the edges of the bins."""
    x = nm.reshape(to_tensor(a), -1)
    w = None if weights is None else nm.reshape(to_tensor(weights), -1)
    if w is not None and to_tensor(weights).shape != to_tensor(a).shape:
        raise ValueError("weights should have the same shape as a.")
    edges = plain(histogram_bin_edges(a, bins, range, weights))
    if not x.dtype.is_inexact:
        x = cast(x, dt.float64)
    wide = engine_dtype(host.result_type(x.dtype.np, edges.dtype.np))
    counts, _ = nm.histogram(cast(x, wide), cast(edges, wide), weights=w, density=bool(density))
    if w is None and not density:
        counts = cast(counts, dt.int64)
    elif w is not None and not density:
        counts = cast(counts, w.dtype if w.dtype is not dt.bool_ else dt.int64)
    else:
        counts = cast(counts, dt.float64)
    return adopt(counts), adopt(edges)


def histogram_bin_edges(a, bins=10, range=None, weights=None):
    """The edges of a histogram's bins."""
    given = _host(adopt(to_tensor(a)))
    return adopt(to_tensor(host.histogram_bin_edges(given, _host(bins), range, _host(weights))))


def histogram2d(x, y, bins=10, range=None, density=None, weights=None):
    """The histogram of two coordinates."""
    pair = [nm.astype(to_tensor(v), dt.float64) for v in (x, y)]
    if pair[0].shape != pair[1].shape:
        raise ValueError("x and y must have the same length.")
    counts, edges = histogramdd(nm.stack(pair, axis=1), bins, range, density, weights)
    return counts, edges[0], edges[1]


def histogramdd(sample, bins=10, range=None, density=None, weights=None):
    """The histogram of points."""
    x = (
        to_tensor(sample)
        if isinstance(sample, (Tensor, host.ndarray))
        else nm.transpose(to_tensor(sample))
    )
    w = None if weights is None else cast(to_tensor(weights), dt.float64)
    given = bins
    if isinstance(bins, (list, tuple)):
        if len(bins) != x.shape[-1] and host.ndim(_host(bins[0])) == 0:
            given = [to_tensor(bins)] * x.shape[-1]
        else:
            given = [
                int(b) if host.ndim(_host(b)) == 0 else cast(to_tensor(b), dt.float64) for b in bins
            ]
    elif isinstance(bins, (Tensor, host.ndarray)) and host.ndim(_host(bins)) == 1:
        given = [cast(to_tensor(bins), dt.float64)] * x.shape[-1]
    counts, edges = nm.histogramdd(cast(x, dt.float64), given, range, density, w)
    return adopt(cast(counts, dt.float64)), tuple(adopt(e) for e in edges)
