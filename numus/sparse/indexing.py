"""Slices, index arrays and masks of sparse tensors: entries that stay, and their new indices."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np

import numus as nm
from numus.errors import IndexRangeError, ShapeError
from numus.sparse import parts
from numus.sparse.pattern import Array, OnDevices, grouped, index_dtype, repeated_ranges
from numus.sparse.products import taken
from numus.sparse.structure import COO, Structure, linear_index
from numus.tensor import Tensor


def indexed(structure: Structure, values: Tensor, key: Any) -> tuple[Structure | None, Tensor]:
    """A structure and its values; without a structure, a dense tensor."""
    crossed = _is_crossed(key, structure.ndim)
    if crossed:
        key = tuple(step.reshape(-1) for step in key)
    elif structure.ndim > 1 and isinstance(key, (np.ndarray, Tensor)) and key.ndim > 1:
        key = _positions(key, structure.shape)
    steps = _steps(key, structure)
    found = parts.entries(structure, values)
    arrays = [axis for axis, step in enumerate(steps) if isinstance(step, np.ndarray)]
    if len(arrays) == structure.ndim and structure.ndim > 1 and not crossed:
        return None, _elements(structure, found, steps)
    if len(arrays) > 1 and not crossed:
        raise ShapeError("indexing: index arrays go along one axis, or along all as pairs")
    if all(isinstance(step, int) for step in steps):
        one = [np.array([step]) for step in steps]
        return None, _elements(structure, found, one).reshape(())
    keep = np.arange(structure.coordinates[0].shape[0])
    indices = [c.astype(np.int64) for c in structure.coordinates]
    shape: list[int] = []
    result: list[Array] = []
    for axis, step in enumerate(steps):
        extent = structure.shape[axis]
        now = indices[axis][keep]
        if isinstance(step, int):
            hit = now == step
            keep, result = keep[hit], [r[hit] for r in result]
        elif isinstance(step, slice):
            start, stop, stride = step.indices(extent)
            count = len(range(start, stop, stride))
            place, rest = np.divmod(now - start, stride)
            hit = (rest == 0) & (place >= 0) & (place < count)
            keep, result = keep[hit], [*(r[hit] for r in result), place[hit]]
            shape.append(count)
        else:
            starts, order = grouped(now.astype(index_dtype(extent)), extent)
            counts = np.diff(starts)[step].astype(np.int64)
            at = order[repeated_ranges(starts[:-1][step].astype(np.int64), counts)]
            place = np.repeat(np.arange(step.size), counts)
            keep, result = keep[at], [*(r[at] for r in result), place]
            shape.append(step.size)
    dtype = index_dtype(*shape, structure.nnz)
    made = COO(tuple(shape), np.stack(result).astype(dtype))
    return made, taken(found, OnDevices(keep.astype(dtype)))


def _is_crossed(key: Any, ndim: int) -> bool:
    """Whether index arrays are those of `np.ix_`: one for each axis, alone along it."""
    if not (isinstance(key, tuple) and len(key) == ndim > 1):
        return False
    return all(
        isinstance(step, (np.ndarray, Tensor))
        and step.ndim == ndim
        and all(n == 1 for i, n in enumerate(step.shape) if i != axis)
        for axis, step in enumerate(key)
    )


def _positions(mask: np.ndarray[Any, Any] | Tensor, shape: tuple[int, ...]) -> tuple[Array, ...]:
    """Where a mask of all axes holds."""
    array = mask.numpy() if isinstance(mask, Tensor) else mask
    if array.dtype != bool or array.shape != shape:
        raise ShapeError(
            f"indexing: an array of {array.dtype} {array.shape} is no mask of a sparse tensor of "
            f"{shape}"
        )
    return tuple(np.nonzero(array))


def _steps(key: Any, structure: Structure) -> list[Any]:
    """One step per axis: an integer, a slice, or an array of indices that are not negative."""
    given = list(key) if isinstance(key, tuple) else [key]
    if any(step is Ellipsis for step in given):
        at = next(i for i, step in enumerate(given) if step is Ellipsis)
        given[at : at + 1] = [slice(None)] * (structure.ndim - len(given) + 1)
    if len(given) > structure.ndim:
        raise ShapeError(
            f"indexing: {len(given)} indices for a sparse tensor of {structure.ndim} axes"
        )
    given += [slice(None)] * (structure.ndim - len(given))
    return [_step(step, structure.shape[axis], axis) for axis, step in enumerate(given)]


def _step(step: Any, extent: int, axis: int) -> Any:
    if isinstance(step, slice):
        return step
    if isinstance(step, (list, np.ndarray, Tensor)):
        array = np.asarray(step.numpy() if isinstance(step, Tensor) else step)
        if array.dtype == bool:
            if array.shape != (extent,):
                raise ShapeError(f"indexing: a mask of {array.shape} for axis {axis} of {extent}")
            return np.flatnonzero(array)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise ShapeError("indexing: an index array of a sparse tensor has one axis of integers")
        array = array.astype(np.int64)
        _check(array, extent, axis)
        return np.where(array < 0, array + extent, array)
    try:
        number = operator.index(step)
    except TypeError:
        raise TypeError(
            f"indexing: a sparse tensor takes no {type(step).__name__} as index"
        ) from None
    _check(np.array([number]), extent, axis)
    return number + extent if number < 0 else number


def _check(array: Array, extent: int, axis: int) -> None:
    bad = array[(array < -extent) | (array >= extent)]
    if bad.size:
        raise IndexRangeError(f"indexing: {bad[0]} is out of range for axis {axis} of {extent}")


def _elements(structure: Structure, values: Tensor, steps: list[Array]) -> Tensor:
    """The elements at tuples of indices; a position that is stored twice has the sum."""
    try:
        tuples = np.broadcast_arrays(*steps)
    except ValueError:
        sizes = [s.size for s in steps]
        raise ShapeError(f"indexing: index arrays of {sizes} are no pairs") from None
    coo, values = parts.merged(COO(structure.shape, np.stack(structure.coordinates)), values)
    stored = coo.linear
    wanted = linear_index(tuple(t.astype(np.int64) for t in tuples), structure.shape)
    if not stored.size:
        return nm.zeros(wanted.shape, dtype=values.dtype, device=values.device)
    at = np.minimum(np.searchsorted(stored, wanted), stored.size - 1)
    return parts.taken_or_zero(values, np.where(stored[at] == wanted, at, -1))
