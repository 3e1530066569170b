"""Functional updates, JAX's `x.at[index].set(y)`: a copy of x with some elements changed.

>>> import numus as nm
>>> x = nm.zeros(4)
>>> x.at[nm.asarray([1, 1, 3])].add(2.0)
tensor([0., 4., 0., 2.])
>>> x
tensor([0., 0., 0., 0.])
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

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


class At:
    """Elements of a tensor at an index, of which updated copies can be made.

    Every update of an element that an index names twice counts, but for `set`, where the last one
    wins.
    """

    __slots__ = ("_index", "_x")

    def __init__(self, x: Tensor, index: Any) -> None:
        self._x, self._index = x, index

    def get(self) -> Tensor:
        """The elements themselves: x[index]."""
        return self._x[self._index]

    def set(self, values: Any) -> Tensor:
        """With other values."""
        out = self._x.clone()
        out[self._index] = values
        return out

    def add(self, values: Any) -> Tensor:
        """With values added."""
        return self._combined("add", nm.add, values)

    def subtract(self, values: Any) -> Tensor:
        """With values subtracted."""
        return self.add(-nm.asarray(values, device=self._x.device))

    def multiply(self, values: Any) -> Tensor:
        """With values multiplied."""
        return self._combined("mul", nm.multiply, values)

    def divide(self, values: Any) -> Tensor:
        """With the elements divided by values."""
        values = nm.asarray(values, dtype=self._x.dtype, device=self._x.device)
        return self.multiply(nm.reciprocal(values))

    def min(self, values: Any) -> Tensor:
        """With the smaller of each element and its values."""
        return self._combined("min", nm.minimum, values)

    def max(self, values: Any) -> Tensor:
        """With the larger of each element and its values."""
        return self._combined("max", nm.maximum, values)

    def power(self, values: Any) -> Tensor:
        """With the elements raised to a power."""
        return self.set(nm.pow(self.get(), values))

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
