"""Functional updates, JAX's `x.at[index].set(y)`: a copy of x with some elements changed.

>>> import numus as nm
>>> x = nm.zeros(4)
>>> x.at[nm.asarray([1, 1, 3])].add(2.0)
tensor([0., 4., 0., 2.])
>>> x
tensor([0., 0., 0., 0.])
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import DTypeError
from numus.functions import api as nm
from numus.functions._base import node_of, wrap
from numus.functions.indexing.indexing import assign
from numus.primitives import elementwise as ew
from numus.tensor import Tensor, attribute

__all__ = ["At", "AtIndexer"]

Combine = Callable[[Tensor, Any], Tensor]
_NAMES = {"add": "add", "mul": "multiply", "min": "min", "max": "max"}


class AtIndexer:
    """`x.at`, before it has an index."""

    __slots__ = ("_x",)

    def __init__(self, x: Tensor) -> None:
        self._x = x

    def __getitem__(self, index: Any) -> At:
        return At(self._x, index)


def _bounded(method: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """A method that takes `mode=`: positions out of range lead to a further slot of their axis,
    which is read for "fill", and cut off after an update."""

    @functools.wraps(method)
    def run(
        self: At,
        *args: Any,
        mode: Any = None,
        fill_value: Any = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
    ) -> Tensor:
        if mode in (None, "promise_in_bounds"):
            return method(self, *args)
        if mode not in ("clip", "fill", "drop"):
            raise ValueError(
                f"at: mode={mode!r} must be one of 'promise_in_bounds', 'clip', 'fill', 'drop'"
            )
        index, axes = _redirected(self._x, self._index, clip=mode == "clip")
        if mode == "clip":
            return method(At(self._x, index), *args)
        floats = self._x.dtype.is_inexact
        value = (float("nan") if floats else 0) if fill_value is None else fill_value
        widths = [(0, int(axis in axes)) for axis in range(self._x.ndim)]
        found = method(At(nm.pad(self._x, widths, constant_values=value), index), *args)
        return found if method.__name__ == "get" else found[tuple(map(slice, self._x.shape))]

    return run


def _redirected(x: Tensor, index: Any, clip: bool) -> tuple[tuple[Any, ...], set[int]]:
    """An index whose positions out of range are the nearest ones or one past the end, and the axes
    that it has positions of."""
    entries = list(index) if isinstance(index, tuple) else [index]
    entries = [nm.asarray(e) if isinstance(e, (list, np.ndarray)) else e for e in entries]
    taken = [_extent_of(e) for e in entries]
    rest = x.ndim - sum(taken)
    axis, axes = 0, set()
    for i, entry in enumerate(entries):
        if entry is Ellipsis:
            axis += rest
            continue
        is_position = isinstance(entry, Tensor) and entry.dtype.is_integer
        if is_position or (isinstance(entry, (int, np.integer)) and not isinstance(entry, bool)):
            n = x.shape[axis]
            at = nm.asarray(entry, device=x.device)
            at = nm.where(at < 0, at + n, at)
            inside = nm.logical_and(at >= 0, at < n)
            entries[i] = nm.clip(at, 0, n - 1) if clip else nm.where(inside, at, n)
            axes.add(axis)
        axis += taken[i]
    return tuple(entries), axes


def _extent_of(entry: Any) -> int:
    """How many axes an entry of an index stands for."""
    if entry is None or entry is Ellipsis:
        return 0
    is_mask = isinstance(entry, Tensor) and entry.dtype is dt.bool_
    return int(entry.ndim) if is_mask else 1


class At:
    """Elements of a tensor at an index, of which updated copies can be made.

    Every update of an element that an index names twice counts, but for `set`, where the last one
    wins.

    `mode=` says what positions out of range are, as in JAX: "clip" takes the nearest ones, "fill"
    and "drop" read `fill_value` (NaN for floats, else 0) and write nothing. Without it they are an
    error where they are known. `indices_are_sorted` and `unique_indices` are hints without effect.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Tensor, index: Any) -> None:
        self._x, self._index = x, index

    @_bounded
    def get(self) -> Tensor:
        """The elements themselves: x[index]."""
        return self._x[self._index]

    @_bounded
    def set(self, values: Any) -> Tensor:
        """With other values."""
        out = self._x.clone()
        out[self._index] = values
        return out

    @_bounded
    def add(self, values: Any) -> Tensor:
        """With values added."""
        return self._combined("add", nm.add, values)

    @_bounded
    def subtract(self, values: Any) -> Tensor:
        """With values subtracted."""
        return self.add(-nm.asarray(values, device=self._x.device))

    @_bounded
    def multiply(self, values: Any) -> Tensor:
        """With values multiplied."""
        return self._combined("mul", nm.multiply, values)

    @_bounded
    def divide(self, values: Any) -> Tensor:
        """With the elements divided by values."""
        values = nm.asarray(values, dtype=self._x.dtype, device=self._x.device)
        return self.multiply(nm.reciprocal(values))

    @_bounded
    def min(self, values: Any) -> Tensor:
        """With the smaller of each element and its values."""
        return self._combined("min", nm.minimum, values)

    @_bounded
    def max(self, values: Any) -> Tensor:
        """With the larger of each element and its values."""
        return self._combined("max", nm.maximum, values)

    @_bounded
    def power(self, values: Any) -> Tensor:
        """With the elements raised to a power."""
        return self.set(nm.pow(self.get(), values))

    @_bounded
    def apply(self, function: Callable[[Tensor], Any]) -> Tensor:
        """With a function of the elements."""
        return self.set(function(self.get()))

    mul, sub = multiply, subtract

    def _combined(self, mode: str, combine: Combine, values: Any) -> Tensor:
        x = self._x
        if _names_once(self._index):
            return self.set(combine(self.get(), values))
        op = f"at[].{_NAMES[mode]}"
        if x.dtype.kind == ("complex" if mode in ("max", "min") else "bool"):
            raise DTypeError(f"{op} is not defined for {x.dtype.name}")
        if not isinstance(values, Tensor):
            values = nm.asarray(values, device=x.device)
        given = ew.cast(node_of(values, op, x.device), x.dtype)
        return wrap(assign(x._node, self._index, given, mode, op))


def _names_once(index: Any) -> bool:
    """True for slices, integers and masks, which name no element twice."""
    entries = index if isinstance(index, tuple) else (index,)
    return all(
        entry is None
        or entry is Ellipsis
        or isinstance(entry, (int, slice))
        or (isinstance(entry, Tensor) and (entry.ndim == 0 or entry.dtype.kind == "bool"))
        for entry in entries
    )


def _at(x: Tensor) -> AtIndexer:
    return AtIndexer(x)


attribute("at", _at, "Updated copies: `x.at[index].set(values)`, `.add`, `.multiply` …")
