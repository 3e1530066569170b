"""`jax.numpy`: NumPy's names with JAX's dtypes and its extra arguments (`size=`, `where=`)."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.jax._adapt import adapt, canonical_dtype, forwarder, narrowed, to_tensor
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
    first, last = to_tensor(start), to_tensor(stop)
    wanted = canonical_dtype(dtype or nm.result_type(first, last, canonical_dtype(float)))
    found = nm.linspace(first, last, num, dtype=wanted, endpoint=endpoint, axis=axis)
    parts = num - 1 if endpoint and num > 1 else num
    return (found, nm.divide(nm.subtract(last, first), parts)) if retstep else found


# -- functions of numus with JAX's order of arguments ----------------------------------------------


def _reduction(name: str, *order: str) -> Any:
    """A reduction whose arguments after the axis come in JAX's order."""
    engine = adapt(getattr(nm, name), {"ddof": "correction"})
    is_mean = name in ("mean", "var", "std")

    def reduce(a: Any, axis: Axis = None, *args: Any, **options: Any) -> Tensor:
        options |= dict(zip(order, args, strict=False))
        if options.get("where") is not None and name in ("max", "min") and "initial" not in options:
            raise ValueError(f"{name}: where= must come with initial=, what no elements give")
        x = to_tensor(a)
        if is_mean and not x.dtype.is_inexact:
            x = to_tensor(x, float)
        options = {k: v for k, v in options.items() if v is not None}
        if "correction" in options:
            options.pop("ddof", None)
        found: Tensor = engine(x, axis=axis, **options)
        return found

    reduce.__doc__ = f"`nm.{name}`, with JAX's arguments: {', '.join(order)}."
    return reduce


_FULL = ("dtype", "out", "keepdims", "initial", "where", "promote_integers")
sum, prod = _reduction("sum", *_FULL), _reduction("prod", *_FULL)
max, min = (_reduction(n, "out", "keepdims", "initial", "where") for n in ("max", "min"))
amax, amin = max, min
all, any = (_reduction(n, "out", "keepdims", "where") for n in ("all", "any"))
mean = _reduction("mean", "dtype", "out", "keepdims", "where")
var, std = (_reduction(n, "dtype", "out", "ddof", "keepdims", "where") for n in ("var", "std"))


def where(
    condition: Any, x: Any = None, y: Any = None, /, *, size: int | None = None, fill_value: Any = 0
) -> Any:
    """Elements of x or y; of a condition alone, where it is true."""
    if x is None and y is None:
        return narrowed(nm.nonzero(to_tensor(condition), size=size, fill_value=fill_value))
    return _where(to_tensor(condition), x, y)


_where = adapt(nm.where)


def repeat(
    a: Any,
    repeats: Any,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
    **_: Any,
) -> Tensor:
    """Elements repeated; to a total that is known, where it is given."""
    times = repeats if isinstance(repeats, int) else to_tensor(repeats)
    return nm.repeat(to_tensor(a), times, axis=axis, total_repeat_length=total_repeat_length)


def take(
    a: Any, indices: Any, axis: int | None = None, out: None = None, mode: Any = None, **hints: Any
) -> Tensor:
    """Elements at indices; `mode` "clip" or "wrap" brings indices inside."""
    inside = mode if mode in ("clip", "wrap") else "raise"
    return nm.take(to_tensor(a), to_tensor(indices), axis, mode=inside)


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


def _ordered(name: str) -> Any:
    engine = getattr(nm, name)

    def order(
        a: Any, axis: int | None = -1, *, descending: bool = False, stable: bool = True, **_: Any
    ) -> Tensor:
        found = engine(to_tensor(a), axis=axis, descending=descending, stable=stable)
        return narrowed(found)

    order.__doc__ = f"`nm.{name}`; without an axis, of the flattened array."
    return order


sort, argsort = _ordered("sort"), _ordered("argsort")


def astype(x: Any, dtype: Any, /, **options: Any) -> Tensor:
    """Of another dtype."""
    return to_tensor(x, dtype)
