"""`jax.numpy`: NumPy's names with JAX's dtypes and its extra arguments (`size=`, `where=`)."""

from __future__ import annotations

import builtins
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.jax._adapt import canonical_dtype, forwarder, narrowed, to_tensor
from numus.jax.numpy._names import NAMES, RENAMES
from numus.tensor import Tensor

ndarray = Tensor
newaxis, pi, e, inf, nan, euler_gamma = None, nm.pi, nm.e, nm.inf, nm.nan, nm.euler_gamma
dtype = np.dtype
issubdtype, generic, number = np.issubdtype, np.generic, np.number
integer, signedinteger, unsignedinteger = np.integer, np.signedinteger, np.unsignedinteger
inexact, floating, complexfloating = np.inexact, np.floating, np.complexfloating


def _source(name: str) -> Any:
    if name in ("linalg", "fft"):
        return importlib.import_module(f"numus.jax.numpy.{name}")
    return getattr(nm, name)


__getattr__, __dir__ = forwarder(__name__, [*NAMES, "fft", "linalg"], _source, RENAMES)

Axis = int | Sequence[int] | None


# -- creation: 32 bits unless x64 is enabled -------------------------------------------------------


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: Any = None, ndmin: int = 0
) -> Tensor:
    """A tensor with the elements of an array-like."""
    x = to_tensor(object, dtype)
    x = x.clone() if copy and x is object else x
    return nm.reshape(x, (1,) * (ndmin - x.ndim) + x.shape) if x.ndim < ndmin else x


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: Any = None, device: Any = None
) -> Tensor:
    """A tensor with the elements of an array-like; tensors as they are."""
    return array(a, dtype, copy=bool(copy))


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, **options: Any
) -> Tensor:
    """Evenly spaced numbers."""
    bounds = (start,) if stop is None else (start, stop)
    found = nm.arange(*bounds, **({} if step is None else {"step": step}))
    return to_tensor(found, canonical_dtype(found.dtype) if dtype is None else dtype)


def zeros(shape: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Zeros."""
    return nm.zeros(shape, dtype=canonical_dtype(dtype or float))


def ones(shape: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Ones."""
    return nm.ones(shape, dtype=canonical_dtype(dtype or float))


def empty(shape: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Zeros, as in JAX."""
    return zeros(shape, dtype)


def full(shape: Any, fill_value: Any, dtype: Any = None, **options: Any) -> Tensor:
    """Of one value."""
    value = to_tensor(fill_value, dtype)
    return nm.broadcast_to(value, (shape,) if isinstance(shape, int) else tuple(shape))


def zeros_like(a: Any, dtype: Any = None, shape: Any = None, **options: Any) -> Tensor:
    """Zeros, shaped like another."""
    return full_like(a, 0, dtype, shape)


def ones_like(a: Any, dtype: Any = None, shape: Any = None, **options: Any) -> Tensor:
    """Ones, shaped like another."""
    return full_like(a, 1, dtype, shape)


empty_like = zeros_like


def full_like(
    a: Any, fill_value: Any, dtype: Any = None, shape: Any = None, **options: Any
) -> Tensor:
    """Of one value, shaped like another."""
    x = to_tensor(a)
    wanted = x.dtype if dtype is None else canonical_dtype(dtype)
    value = nm.astype(to_tensor(fill_value), wanted)
    return nm.broadcast_to(value, x.shape if shape is None else shape)


def eye(N: int, M: int | None = None, k: int = 0, dtype: Any = None, **options: Any) -> Tensor:
    """Ones on a diagonal."""
    return nm.eye(N, M, k=k, dtype=canonical_dtype(dtype or float))


def identity(n: int, dtype: Any = None) -> Tensor:
    """The identity matrix."""
    return eye(n, dtype=dtype)


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    **options: Any,
) -> Any:
    """Evenly spaced numbers between two, which may be arrays."""
    first, last = (
        to_tensor(x, None if nm.isdtype(to_tensor(x).dtype, "real floating") else float)
        for x in (start, stop)
    )
    steps = builtins.max(num - 1 if endpoint else num, 1)
    t = nm.arange(num, dtype=first.dtype) / steps
    ends = nm.broadcast_arrays(first, last)
    t = nm.reshape(t, (num,) + (1,) * ends[0].ndim)
    found = nm.moveaxis(ends[0] * (1 - t) + ends[1] * t, 0, axis)
    found = found if dtype is None else to_tensor(found, dtype)
    return (found, (last - first) / steps) if retstep else found


# -- reductions with a mask and a start ------------------------------------------------------------


def _masked(x: Tensor, where: Any, fill: Any) -> Tensor:
    return x if where is None else nm.where(to_tensor(where), x, fill)


def sum(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Tensor:
    """The sum of elements."""
    found = nm.sum(
        _masked(to_tensor(a), where, 0),
        axis=axis,
        dtype=dtype and canonical_dtype(dtype),
        keepdims=keepdims,
    )
    return found if initial is None else found + initial


def prod(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Tensor:
    """The product of elements."""
    found = nm.prod(
        _masked(to_tensor(a), where, 1),
        axis=axis,
        dtype=dtype and canonical_dtype(dtype),
        keepdims=keepdims,
    )
    return found if initial is None else found * initial


def _extreme(name: str, x: Tensor, axis: Axis, keepdims: bool, initial: Any, where: Any) -> Tensor:
    if where is not None and initial is None:
        raise ValueError(f"{name}: where= must come with initial=, the {name}imum of no elements")
    found = getattr(nm, name)(_masked(x, where, initial), axis=axis, keepdims=keepdims)
    return found if initial is None else getattr(nm, f"{name}imum")(found, initial)


def max(
    a: Any,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The largest element."""
    return _extreme("max", to_tensor(a), axis, keepdims, initial, where)


def min(
    a: Any,
    axis: Axis = None,
    out: None = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Tensor:
    """The smallest element."""
    return _extreme("min", to_tensor(a), axis, keepdims, initial, where)


amax, amin = max, min


def all(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Tensor:
    """True if no element is false."""
    return nm.all(_masked(to_tensor(a), where, True), axis=axis, keepdims=keepdims)


def any(
    a: Any, axis: Axis = None, out: None = None, keepdims: bool = False, *, where: Any = None
) -> Tensor:
    """True if an element is true."""
    return nm.any(_masked(to_tensor(a), where, False), axis=axis, keepdims=keepdims)


def mean(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Tensor:
    """The mean of elements."""
    x = to_tensor(a, dtype)
    x = x if nm.isdtype(x.dtype, ("real floating", "complex floating")) else to_tensor(x, float)
    if where is None:
        return nm.mean(x, axis=axis, keepdims=keepdims)
    count = sum(nm.broadcast_to(to_tensor(where), x.shape), axis=axis, keepdims=keepdims)
    return sum(x, axis=axis, keepdims=keepdims, where=where) / count


def var(
    a: Any,
    axis: Axis = None,
    dtype: Any = None,
    out: None = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Tensor:
    """The variance of elements."""
    ddof = ddof if correction is None else correction
    x = to_tensor(a, dtype)
    if where is None and mean is None:
        return nm.var(x, axis=axis, correction=ddof, keepdims=keepdims)
    centre = globals()["mean"](x, axis=axis, keepdims=True, where=where) if mean is None else mean
    mask = nm.broadcast_to(to_tensor(True if where is None else where), x.shape)
    square = sum(nm.square(nm.abs(x - centre)), axis=axis, keepdims=keepdims, where=mask)
    return square / (sum(mask, axis=axis, keepdims=keepdims) - ddof)


def std(*args: Any, **kwargs: Any) -> Tensor:
    """The standard deviation of elements; arguments as of `var`."""
    return nm.sqrt(var(*args, **kwargs))


# -- results whose size must be known under jit ----------------------------------------------------


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = 0) -> tuple[Tensor, ...]:
    """Where elements are not 0; the first `size` of them, padded, where it is given."""
    x = to_tensor(a)
    if size is None:
        return narrowed(nm.nonzero(x))
    # a stable sort brings the positions that count to the front, in their order
    hit = nm.reshape(x != 0, (-1,))
    order = nm.argsort(nm.astype(~hit, nm.int8), stable=True)[:size]
    order = nm.pad(order, (0, size - order.shape[0]))
    is_found = nm.arange(size) < nm.sum(nm.astype(hit, nm.int32))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * x.ndim
    found = nm.unravel_index(order, x.shape)
    pairs = zip(found, fills, strict=True)
    return tuple(narrowed(nm.where(is_found, i, f)) for i, f in pairs)


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """Where elements of the flattened array are not 0."""
    return nonzero(nm.reshape(to_tensor(a), (-1,)), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = 0) -> Tensor:
    """Rows of indices where elements are not 0."""
    return nm.stack(nonzero(a, size=size, fill_value=fill_value), axis=1)


def where(
    condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = 0
) -> Any:
    """Elements of x or y; of a condition alone, where it is true."""
    if x is None and y is None:
        return nonzero(condition, size=size, fill_value=fill_value)
    x, y = (to_tensor(v) if isinstance(v, (np.ndarray, np.generic)) else v for v in (x, y))
    return nm.where(to_tensor(condition), x, y)


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements; the first `size`, padded with the smallest, where it is given."""
    x = to_tensor(ar)
    if size is None or axis is not None:
        flags = (return_index, return_inverse, return_counts)
        return narrowed(nm.unique(x, *flags, axis=axis, equal_nan=equal_nan))
    flat = nm.reshape(x, (-1,))
    order = nm.argsort(flat, stable=True)
    ranked = nm.take(flat, order)
    is_new = nm.concatenate([nm.ones(1, dtype=nm.bool), ranked[1:] != ranked[:-1]])
    group = nm.cumsum(nm.astype(is_new, nm.int32)) - 1
    (starts,) = nonzero(is_new, size=size, fill_value=0)
    is_found = nm.arange(size) <= group[-1]
    out = [
        nm.where(is_found, nm.take(ranked, starts), ranked[0] if fill_value is None else fill_value)
    ]
    if return_index:
        out.append(nm.take(order, starts))
    if return_inverse:
        out.append(nm.reshape(nm.zeros_like(group).at[order].set(group), x.shape))
    if return_counts:
        out.append(nm.segment_sum(nm.ones_like(group), group, size))
    return narrowed(out[0] if len(out) == 1 else tuple(out))


def repeat(
    a: Any,
    repeats: Any,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    **hints: Any,
) -> Tensor:
    """Elements repeated; to a total that is known, where it is given."""
    x = to_tensor(a)
    if total_repeat_length is None:
        return nm.repeat(
            x, to_tensor(repeats) if isinstance(repeats, np.ndarray) else repeats, axis=axis
        )
    x = nm.reshape(x, (-1,)) if axis is None else x
    axis = 0 if axis is None else axis
    ends = nm.cumsum(nm.broadcast_to(to_tensor(repeats), (x.shape[axis],)))
    at = nm.searchsorted(ends, nm.arange(total_repeat_length), side="right")
    return nm.take(x, nm.clip(at, 0, x.shape[axis] - 1), axis=axis)


def take(
    a: Any,
    indices: Any,
    axis: int | None = None,
    out: None = None,
    mode: str | None = None,
    **hints: Any,
) -> Tensor:
    """Elements at indices; `mode` "clip" or "wrap" brings indices inside."""
    x, at = to_tensor(a), to_tensor(indices)
    x = nm.reshape(x, (-1,)) if axis is None else x
    size = x.shape[axis or 0]
    if mode == "clip":
        at = nm.clip(at, 0, size - 1)
    elif mode == "wrap":
        at = at % size
    return nm.take(x, at, axis=axis or 0)


# -- joins, order, the rest ------------------------------------------------------------------------


def _joined(function: Any) -> Any:
    def join(arrays: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Tensor:
        found = function([to_tensor(x) for x in arrays], *args, **kwargs)
        return found if dtype is None else to_tensor(found, dtype)

    join.__doc__ = function.__doc__
    return join


concatenate, concat, stack = (_joined(f) for f in (nm.concatenate, nm.concat, nm.stack))
hstack, vstack, dstack = (_joined(f) for f in (nm.hstack, nm.vstack, nm.dstack))
column_stack = _joined(nm.column_stack)


def clip(
    arr: Any = None,
    /,
    min: Any = None,
    max: Any = None,
    *,
    a: Any = None,
    a_min: Any = None,
    a_max: Any = None,
) -> Tensor:
    """Limited to a range."""
    bounds = (min if a_min is None else a_min, max if a_max is None else a_max)
    return nm.clip(to_tensor(a if arr is None else arr), *bounds)


def average(
    a: Any, axis: Axis = None, weights: Any = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The weighted mean; `returned`: with the sum of weights."""
    x = to_tensor(a)
    w = None if weights is None else to_tensor(weights)
    found = nm.average(x, axis=axis, weights=w, keepdims=keepdims)
    if not returned:
        return found
    shape = (
        nm.ones_like(x)
        if w is None
        else w
        if w.ndim == x.ndim
        else nm.broadcast_to(
            nm.reshape(w, [-1 if k == axis else 1 for k in range(x.ndim)]), x.shape
        )
    )
    return found, nm.broadcast_to(nm.sum(shape, axis=axis, keepdims=keepdims), found.shape)


def meshgrid(
    *xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> list[Tensor]:
    """Coordinates of a grid; `sparse`: each of them along its axis alone."""
    grids = list(nm.meshgrid(*(to_tensor(x) for x in xi), indexing=indexing))
    if not sparse:
        return grids
    axes = [1, 0, *range(2, len(xi))] if indexing == "xy" and len(xi) > 1 else range(len(xi))
    return [
        grid[tuple(slice(None) if k == axis else slice(1) for k in range(grid.ndim))]
        for axis, grid in zip(axes, grids, strict=True)
    ]


def sort(
    a: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True, **hints: Any
) -> Tensor:
    """In order along an axis; None: of the flattened array."""
    x = to_tensor(a)
    x, axis = (nm.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return nm.sort(x, axis=axis, descending=descending)


def argsort(
    a: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True, **hints: Any
) -> Tensor:
    """Where the elements in order are."""
    x = to_tensor(a)
    x, axis = (nm.reshape(x, (-1,)), 0) if axis is None else (x, axis)
    return narrowed(nm.argsort(x, axis=axis, descending=descending, stable=stable))


def astype(x: Any, dtype: Any, /, **options: Any) -> Tensor:
    """Of another dtype."""
    return to_tensor(x, dtype)


def angle(z: Any, deg: bool = False) -> Tensor:
    """The angle of complex numbers."""
    found = nm.angle(to_tensor(z))
    return nm.rad2deg(found) if deg else found
