"""Shape arithmetic shared by every layer: pure functions on tuples of integers."""

from __future__ import annotations

import functools
import math
import operator
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any, TypeGuard

from numus.errors import AxisError, DTypeError, ShapeError

Shape = tuple[int, ...]

_MAX_ELEMENTS = (1 << 59) - 1  # sizes and offsets, in bytes too, are 64-bit


def size_of(shape: Shape) -> int:
    """The number of elements."""
    return math.prod(shape)


def check_size(shape: Shape, op: str) -> Shape:
    """A shape whose elements can be counted."""
    if math.prod(shape) > _MAX_ELEMENTS:
        raise ShapeError(f"{op}: {shape} is more than any memory can hold")
    return shape


def row_major(shape: Shape) -> Shape:
    """Strides, in elements, of a contiguous array."""
    strides = []
    step = 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def is_row_major(shape: Shape, strides: Shape) -> bool:
    """Whether the strides address a contiguous array (axes of extent 1 don't matter)."""
    step = 1
    for extent, stride in zip(reversed(shape), reversed(strides), strict=True):
        if extent == 0:
            return True
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True


def broadcast(a: Shape, b: Shape, op: str = "broadcast") -> Shape:
    """The shape both broadcast to, aligned from the right."""
    if a == b or not b:
        return a
    if not a:
        return b
    found = _broadcast(a, b, op)
    if found.__class__ is int:  # the axis that is wrong, counted from the back
        if len(a) < len(b):
            a, b = b, a
        raise ShapeError(
            f"{op}: shapes {a} and {b} do not broadcast: axis {found} has {a[found]} and "
            f"{b[found]}; extents must be equal or 1"
        )
    shape: Shape = found
    return shape


@functools.lru_cache(4096)
def _broadcast(a: Shape, b: Shape, op: str) -> Any:
    """The shape, or the axis along which they do not fit."""
    if len(a) < len(b):
        a, b = b, a
    lead = len(a) - len(b)
    out = list(a)
    for i, (m, n) in enumerate(zip(a[lead:], b, strict=True)):
        if m == n or n == 1:
            continue
        if m != 1:
            return i - len(b)
        out[lead + i] = n
    return check_size(tuple(out), op)


def is_sequence(given: Any) -> TypeGuard[Iterable[Any]]:
    """Several numbers rather than one; a 0-d array or tensor counts as one."""
    if isinstance(given, (tuple, list)):
        return True
    return hasattr(given, "__iter__") and getattr(given, "ndim", None) != 0


def as_int(value: Any, name: str, op: str) -> int:
    """An integer argument as a Python integer: NumPy's integers and 0-d tensors are converted."""
    if value.__class__ is int:
        return int(value)
    try:
        return operator.index(value)
    except TypeError as error:
        given = reprlib.repr(value)
        raise DTypeError(f"{op}: {name} must be an integer, not {given}: {error}") from error


def as_shape(given: Any, op: str = "shape") -> Shape:
    """A shape from an integer or a sequence of integers; negative extents are an error."""
    if not is_sequence(given):
        given = (given,)
    try:
        shape = tuple(operator.index(n) for n in given)
    except TypeError as error:
        what = reprlib.repr(given)
        raise ShapeError(f"{op}: {what} is not a shape: extents must be integers") from error
    if any(n < 0 for n in shape):
        raise ShapeError(f"{op}: shape {shape} has a negative extent")
    return check_size(shape, op)


def normal_axis(axis: Any, ndim: int, op: str) -> int:
    """An axis counted from the front, checked."""
    try:
        index = operator.index(axis)
    except TypeError as error:
        raise ShapeError(f"{op}: axis must be an integer, not {axis!r}") from error
    if not -ndim <= index < ndim:
        raise AxisError(f"{op}: axis {index} is out of range for an array of {ndim} dimensions")
    return index + ndim if index < 0 else index


@functools.lru_cache(maxsize=4096)
def _known_axes(axes: Shape, ndim: int) -> Shape | None:
    """`normal_axes` for a tuple of integers; None where that is an error."""
    out = tuple(a + ndim if a < 0 else a for a in axes)
    fit = all(-ndim <= a < ndim for a in axes) and len(set(out)) == len(out)
    return out if fit else None


def normal_axes(axes: Any, ndim: int, op: str) -> Shape:
    """Axes (None: all, an integer, or a sequence) counted from the front, checked for repeats."""
    if axes is None:
        return tuple(range(ndim))
    if axes.__class__ is tuple and set(map(type, axes)) == {int}:
        known = _known_axes(axes, ndim)
        if known is not None:
            return known
    if not isinstance(axes, Sequence):
        return (normal_axis(axes, ndim, op),)
    out = tuple(normal_axis(a, ndim, op) for a in axes)
    if len(set(out)) != len(out):
        raise ShapeError(f"{op}: repeated axis in {tuple(axes)}")
    return out


@functools.lru_cache(maxsize=4096)
def broadcast_strides(shape: Shape, strides: Shape, new: Shape) -> Shape:
    """Strides that view the same memory as `new`, with axes of extent 1 repeated."""
    lead = len(new) - len(shape)
    own = zip(shape, new[lead:], strides, strict=True)
    return (0,) * lead + tuple([0 if n == 1 and m != 1 else s for n, m, s in own])


def find_reshape_strides(shape: Shape, strides: Shape, new: Shape) -> Shape | None:
    """Strides that view the same memory as `new`, or None where a copy would be needed."""
    if size_of(shape) == 0:
        return row_major(new)
    old = [(n, s) for n, s in zip(shape, strides, strict=True) if n != 1]
    out = [0] * len(new)
    i = j = 0
    while i < len(old):
        old_total, new_total = old[i][0], 1
        first_i, first_j = i, j
        while old_total != new_total:
            if old_total < new_total:
                i += 1
                old_total *= old[i][0]
            else:
                new_total *= new[j]
                j += 1
        for k in range(first_i, i):
            if old[k][1] != old[k + 1][0] * old[k + 1][1]:
                return None
        step = old[i][1]
        for k in range(j - 1, first_j - 1, -1):
            out[k] = step
            step *= new[k]
        i += 1
    return tuple(out)


reshape_strides = functools.lru_cache(maxsize=4096)(find_reshape_strides)


def can_exist(shape: Sequence[int], itemsize: int) -> bool:
    """True if NumPy can make an array of this shape, whose axes it checks even if it is empty."""
    return len(shape) <= 64 and math.prod(n or 1 for n in shape) * itemsize < 1 << 62
