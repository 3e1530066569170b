"""Index arrays and grids of coordinates: triangles, diagonals, open and full meshes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.errors import IndexRangeError, ShapeError
from numus.functions import api as nm
from numus.functions._base import as_line, operand
from numus.functions.indexing.index_checks import host_values
from numus.shapes import as_int, as_shape, size_of
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "c_", "cartesian_prod", "combinations", "diag_indices", "diag_indices_from", "index_exp",
    "indices", "ix_", "mask_indices", "mgrid", "ndenumerate", "ndindex", "ogrid", "r_",
    "ravel_multi_index", "s_", "tril_indices", "tril_indices_from", "triu_indices",
    "triu_indices_from", "unravel_index",
]  # fmt: skip


def indices(
    dimensions: Sequence[int], dtype: Any = dt.int64, sparse: bool = False, *, device: Any = None
) -> Any:
    """The indices of each axis of a grid: an array with one more axis, the first; with `sparse` a
    tuple of arrays that broadcast to the grid.

    >>> nm.indices((2, 2)).tolist()
    [[[0, 0], [1, 1]], [[0, 1], [0, 1]]]
    """
    shape = as_shape(dimensions, "indices")
    lines = [
        as_line(nm.arange(n, dtype=dtype, device=device), i, len(shape))
        for i, n in enumerate(shape)
    ]
    if sparse:
        return tuple(lines)
    if not lines:
        return nm.zeros((0,), dtype=dtype, device=device)
    return nm.stack([nm.broadcast_to(line, shape) for line in lines])


def ix_(*args: Any) -> tuple[Tensor, ...]:
    """Vectors of indices along each axis, shaped to broadcast to an open mesh: x[nm.ix_(i, j)].

    A vector of booleans stands for the indices where it is true.

    >>> nm.arange(6).reshape(2, 3)[nm.ix_([0, 1], [0, 2])].tolist()
    [[0, 2], [3, 5]]
    """
    found = []
    for axis, given in enumerate(args):
        is_index = isinstance(given, Tensor) or len(given)  # an empty list is one of integers
        line = nm.asarray(given) if is_index else nm.zeros((0,), dtype=dt.int64)
        if line.ndim != 1:
            raise ShapeError(f"ix_: takes vectors of indices, not an array of shape {line.shape}")
        line = nm.flatnonzero(line) if line.dtype is dt.bool_ else line
        found.append(as_line(line, axis, len(args)))
    return tuple(found)


def _triangle(
    n: int, k: int, m: int | None, lower: bool, op: str, device: Any = None
) -> tuple[Tensor, Tensor]:
    rows, columns = as_shape((n, n if m is None else m), op)
    find = np.tril_indices if lower else np.triu_indices
    i, j = find(rows, as_int(k, "k", op), columns)
    return nm.asarray(i, device=device), nm.asarray(j, device=device)


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """The indices of the lower triangle of an n by m matrix, up to the k-th diagonal.

    >>> [i.tolist() for i in nm.tril_indices(2)]
    [[0, 1, 1], [0, 0, 1]]
    """
    return _triangle(n, k, m, True, "tril_indices")


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Tensor, Tensor]:
    """The indices of the upper triangle of an n by m matrix, from the k-th diagonal."""
    return _triangle(n, k, m, False, "triu_indices")


def _extents(op: str, x: ArrayLike) -> tuple[int, int]:
    shape = operand(op, x).shape
    if len(shape) != 2:
        raise ShapeError(f"{op}: takes a matrix, not an array of shape {shape}")
    return shape[0], shape[1]


def tril_indices_from(x: ArrayLike, /, k: int = 0) -> tuple[Tensor, Tensor]:
    """The indices of a matrix's lower triangle."""
    op = "tril_indices_from"
    n, m = _extents(op, x)
    return _triangle(n, k, m, True, op, operand(op, x).device)


def triu_indices_from(x: ArrayLike, /, k: int = 0) -> tuple[Tensor, Tensor]:
    """The indices of a matrix's upper triangle."""
    op = "triu_indices_from"
    n, m = _extents(op, x)
    return _triangle(n, k, m, False, op, operand(op, x).device)


def diag_indices(n: int, ndim: int = 2) -> tuple[Tensor, ...]:
    """The indices of the main diagonal of an array with `ndim` axes of extent n.

    >>> [i.tolist() for i in nm.diag_indices(2)]
    [[0, 1], [0, 1]]
    """
    return (nm.arange(as_int(n, "n", "diag_indices")),) * as_int(ndim, "ndim", "diag_indices")


def diag_indices_from(x: ArrayLike, /) -> tuple[Tensor, ...]:
    """The indices of an array's main diagonal; its axes have one extent."""
    given = operand("diag_indices_from", x)
    shape = given.shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from: needs two axes or more of one extent, not shape {shape}"
        )
    return (nm.arange(shape[0], device=given.device),) * len(shape)


def mask_indices(n: int, mask_func: Any, k: Any = 0) -> tuple[Tensor, ...]:
    """The indices at which mask_func(ones, k) of an n by n matrix is not zero. Evaluates it.

    >>> [i.tolist() for i in nm.mask_indices(2, nm.triu)]
    [[0, 0, 1], [0, 1, 1]]
    """
    return nm.nonzero(mask_func(nm.ones((n, n), dtype=dt.int64), k))


def _check_order(op: str, order: str) -> None:
    if order not in ("C", "F"):
        raise ValueError(f'{op}: order must be "C" or "F", not {order!r}')


def _known(op: str, indices: Any) -> np.ndarray[Any, Any]:
    """Indices that can be looked at without computing them; none of those that cannot."""
    if not isinstance(indices, Tensor):
        found: Any = np.asarray(indices)
    else:
        found = host_values(indices._node)
        found = np.zeros(0, indices.dtype.np) if found is None else found
    if found.dtype.kind not in "iu" and (found.size or isinstance(indices, Tensor)):
        raise TypeError(f"{op}: only integers are indices, not {found.dtype}")
    return found


def unravel_index(indices: Any, shape: Any, order: str = "C") -> tuple[Tensor, ...]:
    """Flat indices as one index for each axis of a shape; those outside it are not checked on
    devices.

    >>> [i.tolist() for i in nm.unravel_index(nm.asarray([5, 2]), (2, 3))]
    [[1, 0], [2, 2]]
    """
    op = "unravel_index"
    _check_order(op, order)
    extents = as_shape(shape, op)
    host = _known(op, indices)
    if not extents and np.ndim(indices):
        raise ShapeError(f"{op}: a shape without axes has one element, not several")
    if host.size and not 0 <= host.min() <= host.max() < size_of(extents):
        raise IndexRangeError(f"{op}: index {host.max()} is out of range for shape {extents}")
    rest = nm.astype(nm.asarray(indices), dt.int64)
    found = []
    for n in reversed(extents) if order == "C" else extents:
        found.append(nm.remainder(rest, max(n, 1)))
        rest = nm.floor_divide(rest, max(n, 1))
    return tuple(reversed(found) if order == "C" else found)


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Any, mode: Any = "raise", order: str = "C"
) -> Tensor:
    """One index for each axis of a shape as flat indices.

    Args:
        mode: "wrap" takes indices modulo the axis, "clip" moves them to its ends, "raise" raises
            for those on the host; a tuple names one for each axis.

    >>> nm.ravel_multi_index((nm.asarray([1, 0]), nm.asarray([2, 2])), (2, 3)).tolist()
    [5, 2]
    """
    op = "ravel_multi_index"
    _check_order(op, order)
    extents = as_shape(dims, op)
    modes = (mode,) * len(extents) if isinstance(mode, str) else tuple(mode)
    if len(multi_index) != len(extents) or len(modes) != len(extents):
        raise ShapeError(f"{op}: {len(multi_index)} indices for a shape of {len(extents)} axes")
    flat: Any = 0
    parts = list(zip(multi_index, extents, modes, strict=True))
    for given, n, how in parts if order == "C" else reversed(parts):
        if how not in ("raise", "wrap", "clip"):
            raise ValueError(f'{op}: mode must be "raise", "wrap" or "clip", not {how!r}')
        host = _known(op, given)
        if n == 0 and host.size:
            raise ShapeError(f"{op}: an axis without elements has no index, whatever the mode")
        if how == "raise" and host.size and not 0 <= host.min() <= host.max() < n:
            raise IndexRangeError(f"{op}: an index is out of range for an axis of {n}")
        index = nm.astype(nm.asarray(given), dt.int64)
        index = nm.remainder(index, n) if how == "wrap" else index
        index = nm.clip(index, 0, n - 1) if how == "clip" else index
        flat = flat * n + index
    return nm.asarray(flat)


def ndindex(*shape: Any) -> Iterator[tuple[int, ...]]:
    """The indices of a shape's elements, in row-major order.

    >>> list(nm.ndindex(2, 2))
    [(0, 0), (0, 1), (1, 0), (1, 1)]
    """
    given = shape[0] if len(shape) == 1 and isinstance(shape[0], (tuple, list)) else shape
    return itertools.product(*map(range, as_shape(given, "ndindex")))


def ndenumerate(x: ArrayLike, /) -> Iterator[tuple[tuple[int, ...], Any]]:
    """The index and the element, as a Python number, of each element. Evaluates x.

    >>> list(nm.ndenumerate(nm.asarray([5, 6])))
    [((0,), 5), ((1,), 6)]
    """
    given = operand("ndenumerate", x)
    return zip(ndindex(*given.shape), nm.reshape(given, -1).tolist(), strict=True)


def cartesian_prod(*tensors: ArrayLike) -> Tensor:
    """All ways to take one element of each vector, as rows.

    >>> nm.cartesian_prod(nm.asarray([1, 2]), nm.asarray([3, 4])).tolist()
    [[1, 3], [1, 4], [2, 3], [2, 4]]
    """
    lines = [operand("cartesian_prod", t) for t in tensors]
    if len(lines) == 1:
        return lines[0]
    grids = nm.meshgrid(*lines, indexing="ij")
    return nm.stack([nm.reshape(g, -1) for g in grids], 1)


def combinations(x: ArrayLike, /, r: int = 2, with_replacement: bool = False) -> Tensor:
    """All ways to take r elements of a vector, in order, as rows.

    >>> nm.combinations(nm.asarray([1, 2, 3])).tolist()
    [[1, 2], [1, 3], [2, 3]]
    """
    given = operand("combinations", x)
    if given.ndim != 1:
        raise ShapeError(f"combinations: takes a vector, not an array of shape {given.shape}")
    draw = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    rows = np.array(list(draw(range(given.shape[0]), r)), np.int64).reshape(-1, r)
    return given[nm.asarray(rows, device=given.device)]


class _Slices:
    """Arrays written as indices. What makes tensors of slices and items, and finds the dtype of
    several, can be another interface's."""

    def _line(self, cut: Any) -> Tensor:
        """The points of a slice: counted by its step, or as many as an imaginary one says."""
        if not isinstance(cut, slice):
            raise TypeError(f"a mesh is made of slices, not {cut!r}")
        start = 0 if cut.start is None else cut.start
        if isinstance(cut.step, (complex, np.complexfloating)):
            return self._spaced(start, cut.stop, int(abs(complex(cut.step))))
        return self._counted(start, cut.stop, 1 if cut.step is None else cut.step)

    _spaced, _counted = staticmethod(nm.linspace), staticmethod(nm.arange)

    def _together(self, items: list[Any], parts: list[Tensor]) -> list[Tensor]:
        """The parts that items became, in one dtype."""
        dtype = nm.result_type(*parts)
        return [nm.astype(part, dtype) for part in parts]

    def _tensor(self, x: Any) -> Tensor:
        return nm.asarray(x)

    def _result(self, x: Tensor) -> Any:
        return x


class Mesh(_Slices):
    """`mgrid` and `ogrid`: coordinates from slices, whose step counts points if imaginary."""

    def __init__(self, sparse: bool) -> None:
        self._sparse = sparse

    def __getitem__(self, key: Any) -> Any:
        """The coordinates of a mesh."""
        cuts = key if isinstance(key, tuple) else (key,)
        lines = [self._line(cut) for cut in cuts]
        if not isinstance(key, tuple):
            return self._result(lines[0])
        shape = tuple(line.shape[0] for line in lines)
        lines = self._together(list(cuts), lines)
        open_ = [as_line(line, i, len(shape)) for i, line in enumerate(lines)]
        if self._sparse:
            return tuple(map(self._result, open_))
        return self._result(nm.stack([nm.broadcast_to(line, shape) for line in open_]))


class Joined(_Slices):
    """`r_` and `c_`: arrays, numbers and slices put together along an axis."""

    def __init__(self, columns: bool) -> None:
        self._columns = columns

    def __getitem__(self, key: Any) -> Tensor:
        """The parts as one array."""
        items = list(key) if isinstance(key, tuple) else [key]
        axis, ndim, place = (-1, 2, 0) if self._columns else (0, 1, -1)
        if isinstance(items[0], str):
            text = items.pop(0)
            if not set(text) <= set("-0123456789, "):
                raise ValueError(f"r_: {text!r} would make a matrix; name axes by numbers")
            numbers = [int(n) for n in text.split(",")]
            axis, ndim, place = (*numbers, *(axis, ndim, place)[len(numbers) :])
        parts = []
        found = [self._line(i) if isinstance(i, slice) else self._tensor(i) for i in items]
        for part in self._together(items, found):
            new = ndim - part.ndim
            if new > 0:
                # the new axes go around the old ones as the third number says: -1 is before them
                first = new if place == -1 else min(place, new) if place >= 0 else new + 1 + place
                shape = (1,) * first + part.shape + (1,) * (new - first)
                part = nm.reshape(part, shape)
            parts.append(part)
        return self._result(nm.concat(parts, axis))

    def __len__(self) -> int:
        return 0


class _IndexExpression:
    """`s_` and `index_exp`: an index as an object."""

    def __init__(self, always_tuple: bool) -> None:
        self._always_tuple = always_tuple

    def __getitem__(self, key: Any) -> Any:
        """The index."""
        return (key,) if self._always_tuple and not isinstance(key, tuple) else key


mgrid, ogrid = Mesh(sparse=False), Mesh(sparse=True)
r_, c_ = Joined(columns=False), Joined(columns=True)
s_, index_exp = _IndexExpression(always_tuple=False), _IndexExpression(always_tuple=True)
