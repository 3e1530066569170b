"""Python functions of elements and slices, and iteration, as NumPy has them: on the host."""

from __future__ import annotations

from typing import Any

import numpy as host

from numus.functions.interop.iteration import Broadcast, ElementIterator, FlatIterator
from numus.functions.interop.numpy_errors import has_tensors, hosted
from numus.functions.interop.python_calls import along_axis
from numus.numpy._convert import OfArrays, adopt, function, normal_axes, result, to_tensor


def apply_along_axis(func1d: Any, axis: int, arr: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of the vectors along an axis."""
    x = to_tensor(arr)
    (at,) = normal_axes(axis, x.ndim)
    call = lambda vector: to_tensor(func1d(adopt(vector), *args, **kwargs))  # noqa: E731
    return result(along_axis(call, at, x))


def apply_over_axes(func: Any, a: Any, axes: Any) -> Any:
    """A function that takes an axis, applied over several."""
    value = adopt(to_tensor(a))
    rank = value.ndim
    for axis in normal_axes(hosted(axes) if has_tensors(axes) else axes, rank):
        found = func(value, axis)
        value = found if found.ndim == rank else function("expand_dims")(found, axis)
        if value.ndim != rank:
            raise ValueError("function is not returning an array of the correct shape")
    return value


def _deep(x: Any) -> Any:
    return to_tensor(x).numpy() if has_tensors(x) else x


def _lifted(x: Any) -> Any:
    if isinstance(x, tuple):
        return tuple(map(_lifted, x))
    is_number = isinstance(x, host.ndarray) and x.dtype.kind in "biufc"
    return adopt(to_tensor(x)) if is_number else x


class vectorize(host.vectorize):  # noqa: N801
    """A Python function of scalars, called for each element."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._init_stage_2 is not None and not hasattr(self, "pyfunc"):  # type: ignore[attr-defined]
            return super().__call__(*args, **kwargs)
        named = {k: _deep(v) for k, v in kwargs.items()}
        return _lifted(super().__call__(*map(_deep, args), **named))


def frompyfunc(func: Any, /, nin: int, nout: int, *, identity: Any = None) -> Any:
    """A Python function of scalars as a function of arrays; results of numbers are arrays."""
    made: Any = host.frompyfunc(func, nin, nout)

    def call(*args: Any) -> Any:
        found = made(*map(_deep, args))
        parts = found if isinstance(found, tuple) else (found,)
        given = [host.array(p.tolist()) if isinstance(p, host.ndarray) else p for p in parts]
        return tuple(map(_lifted, given)) if nout > 1 else _lifted(given[0])

    vars(call).update(nin=nin, nout=nout)
    return call


def ndenumerate(arr: Any) -> Any:
    """Pairs of coordinates and elements."""
    return host.ndenumerate(adopt(to_tensor(arr)).__array__())


class flatiter(OfArrays, FlatIterator):  # noqa: N801
    """`x.flat`: the elements in row-major order."""


class nditer(OfArrays, ElementIterator):  # noqa: N801
    """The elements of arrays side by side."""


class broadcast(OfArrays, Broadcast):  # noqa: N801
    """Arrays side by side, broadcast to one shape."""

    def _flat(self, x: Any) -> flatiter:
        return flatiter(x)


OWN: dict[str, Any] = {
    made.__name__: made
    for made in (
        apply_along_axis, apply_over_axes, broadcast, frompyfunc, ndenumerate, nditer, vectorize
    )
}  # fmt: skip
