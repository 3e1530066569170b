"""Writes in place: parts of an array replaced where a mask or an index says. Views see them."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import as_line, method, operand, wrap
from numus.functions.indexing.index_checks import normal_index
from numus.functions.indexing.indexing import cast_value, fit_value
from numus.primitives import elementwise as ew
from numus.shapes import as_int, normal_axis, size_of
from numus.tensor import Tensor

__all__ = [
    "copyto", "diagonal_scatter", "fill", "fill_diagonal", "index_copy", "index_fill",
    "index_reduce", "place", "putmask", "select_scatter", "slice_scatter",
]  # fmt: skip


def _target(op: str, x: Any) -> Tensor:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: writes to a tensor, not to {type(x).__name__}")
    return x


def _mask(op: str, mask: Any, x: Tensor) -> Tensor:
    hit = nm.asarray(mask, device=x.device)
    return nm.astype(hit, dt.bool_)


def _repeated(values: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements of a vector in order, over and over, in a shape."""
    index = nm.arange(size_of(shape), device=values.device) % max(values.size, 1)
    return nm.reshape(values[index], shape)


def copyto(dst: Tensor, src: Any, casting: str = "same_kind", where: Any = True) -> Tensor:
    """Copy values, broadcast, into a tensor where a mask holds; gives the tensor back.

    Args:
        casting: "unsafe" allows to lose a kind, floats to integers say.

    >>> x = nm.zeros(3)
    >>> nm.copyto(x, 5.0, where=nm.asarray([True, False, True])).tolist()
    [5.0, 0.0, 5.0]
    """
    op = "copyto"
    target = _target(op, dst)
    value = nm.asarray(src, device=target.device) if not isinstance(src, Tensor) else src
    if casting == "unsafe":
        value = nm.astype(value, target.dtype)
    elif casting not in ("no", "equiv", "safe", "same_kind"):
        raise ValueError(f"{op}: {casting!r} is no kind of casting")
    new = fit_value(cast_value(value, target._node, op), target.shape, op)
    if where is not True:
        hit = nm.broadcast_to(_mask(op, where, target), target.shape)
        new = ew.where(hit._node, new, target._node)
    return target.rebind(new, op)


def putmask(x: Tensor, /, mask: Any, values: Any) -> Tensor:
    """Write values where a mask of x's shape holds, each at its own position (too few are used
    over and over); gives x back.

    >>> nm.putmask(nm.arange(4), nm.arange(4) > 1, nm.asarray([10, 20])).tolist()
    [0, 1, 10, 20]
    """
    op = "putmask"
    target = _target(op, x)
    hit = _mask(op, mask, target)
    if hit.size != target.size:
        raise ShapeError(f"{op}: a mask of shape {hit.shape} for an array of {target.shape}")
    value = nm.reshape(wrap(cast_value(nm.asarray(values), target._node, op)), -1)
    if value.size == 0:
        return target
    spread = _repeated(value, target.shape)
    out = nm.where(nm.reshape(hit, target.shape), spread, target)
    return target.rebind(out._node, op)


def place(x: Tensor, /, mask: Any, vals: Any) -> Tensor:
    """Write values one after the other where a mask holds (too few are used over and over); gives
    x back.

    >>> nm.place(nm.arange(4), nm.arange(4) > 1, nm.asarray([10, 20])).tolist()
    [0, 1, 10, 20]
    """
    op = "place"
    target = _target(op, x)
    hit = _mask(op, mask, target)
    if hit.size != target.size:
        raise ShapeError(f"{op}: a mask of shape {hit.shape} for an array of {target.shape}")
    value = nm.reshape(wrap(cast_value(nm.asarray(vals), target._node, op)), -1)
    if value.size == 0:
        if not hit.detach().numpy().any():
            return target
        raise ValueError(f"{op}: there must be at least one value")
    flat = nm.reshape(hit, -1)
    rank = nm.remainder(nm.cumsum(nm.astype(flat, dt.int64)) - 1, value.size)
    out = nm.where(nm.reshape(hit, target.shape), nm.reshape(value[rank], target.shape), target)
    return target.rebind(out._node, op)


def fill_diagonal(x: Tensor, /, val: Any, wrap: bool = False) -> Tensor:
    """Write values to the main diagonal; gives x back. Axes beyond two have one extent.

    Args:
        val: a number, or values that are used in order, over and over.
        wrap: begin again below a tall matrix's last square.

    >>> nm.fill_diagonal(nm.zeros((2, 2)), 5).tolist()
    [[5.0, 0.0], [0.0, 5.0]]
    """
    op = "fill_diagonal"
    target = _target(op, x)
    shape = target.shape
    if len(shape) < 2 or (len(shape) > 2 and len(set(shape)) != 1):
        raise ShapeError(
            f"{op}: needs a matrix, or more axes of one extent, not an array of shape {shape}"
        )
    if len(shape) == 2:
        step = shape[1] + 1
        end = target.size if wrap else min(target.size, shape[1] * shape[1])
    else:
        step = 1 + sum(shape[0] ** i for i in range(1, len(shape)))
        end = target.size
    count = len(range(0, end, step))
    if count == 0:
        return target
    value = nm.reshape(_as_tensor(op, val, target), -1)
    flat = nm.reshape(target, -1).copy()
    flat[0:end:step] = _repeated(value, (count,))
    return target.rebind(nm.reshape(flat, shape)._node, op)


def _as_tensor(op: str, value: Any, x: Tensor) -> Tensor:
    given = nm.asarray(value, device=x.device) if isinstance(value, (list, tuple)) else value
    return wrap(cast_value(given, x._node, op))


def fill(x: Tensor, value: Any, /) -> Tensor:
    """x's shape, dtype and device with one value everywhere."""
    return nm.full_like(operand("fill", x), value)


@method("fill")
def _fill(x: Tensor, value: Any) -> Tensor:
    """One value everywhere, in place, as NumPy's method."""
    return x.assign(value)


def _at(x: Tensor, dim: int, index: Any, op: str) -> tuple[int, Tensor]:
    """The axis and the indices along it."""
    at = normal_axis(dim, x.ndim, op)
    found = wrap(normal_index(index, x.shape[at], at, op, x._node))
    if found.ndim > 1:
        raise ShapeError(f"{op}: the index is a vector, not an array of shape {found.shape}")
    return at, nm.reshape(found, -1)


def _written(x: Tensor, at: int, index: Any, value: Any) -> Tensor:
    return nm.index_put(x, (slice(None),) * at + (index,), value)


@method()
def index_copy(x: Tensor, /, dim: int, index: Any, source: Any) -> Tensor:
    """A copy of x with the parts of source at indices along an axis.

    >>> nm.index_copy(nm.zeros(3), 0, nm.asarray([2, 0]), nm.asarray([1.0, 5.0])).tolist()
    [5.0, 0.0, 1.0]
    """
    return _written(x, *_at(x, dim, index, "index_copy"), source)


@method()
def index_fill(x: Tensor, /, dim: int, index: Any, value: Any) -> Tensor:
    """A copy of x with one value at indices along an axis.

    >>> nm.index_fill(nm.zeros(3), 0, nm.asarray([0, 2]), 7.0).tolist()
    [7.0, 0.0, 7.0]
    """
    return _written(x, *_at(x, dim, index, "index_fill"), value)


_REDUCTIONS = {"prod": "prod", "amax": "amax", "amin": "amin", "mean": "mean"}


@method()
def index_reduce(
    x: Tensor, /, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> Tensor:
    """A copy of x in which the parts of source at indices along an axis are combined with what is
    there: by "prod", "mean", "amax" or "amin".

    Args:
        include_self: whether x's own elements take part.

    >>> nm.index_reduce(nm.ones(2), 0, nm.asarray([0, 0]), nm.asarray([2.0, 3.0]), "prod").tolist()
    [6.0, 1.0]
    """
    op = "index_reduce"
    if reduce not in _REDUCTIONS:
        raise ValueError(f"{op}: reduce must be one of {', '.join(_REDUCTIONS)}, not {reduce!r}")
    at, places = _at(x, dim, index, op)
    given = nm.astype(operand(op, source), x.dtype)
    if given.shape[at] != places.shape[0] or given.ndim != x.ndim:
        raise ShapeError(
            f"{op}: {places.shape[0]} indices along axis {at} for a source of shape {given.shape}"
        )
    lines = nm.broadcast_to(as_line(places, at, x.ndim), given.shape)
    return nm.scatter_reduce(x, at, lines, given, reduce, include_self=include_self)


@method()
def select_scatter(x: Tensor, src: Any, /, dim: int, index: int) -> Tensor:
    """A copy of x with src at one index of an axis.

    >>> nm.select_scatter(nm.zeros((2, 2)), nm.ones(2), 0, 1).tolist()
    [[0.0, 0.0], [1.0, 1.0]]
    """
    at = normal_axis(dim, x.ndim, "select_scatter")
    return _written(x, at, as_int(index, "index", "select_scatter"), src)


@method()
def slice_scatter(
    x: Tensor, src: Any, /, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """A copy of x with src in a slice of an axis.

    >>> nm.slice_scatter(nm.zeros(4), nm.ones(2), start=1, end=3).tolist()
    [0.0, 1.0, 1.0, 0.0]
    """
    at = normal_axis(dim, x.ndim, "slice_scatter")
    return _written(x, at, slice(start, end, step), src)


@method()
def diagonal_scatter(
    x: Tensor, src: Any, /, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> Tensor:
    """A copy of x with src on a diagonal of two axes.

    >>> nm.diagonal_scatter(nm.zeros((2, 2)), nm.ones(2)).tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    out = x.copy()
    view = nm.diagonal(out, offset, dim1, dim2)
    view.assign(src)
    return out
