"""Products: cross, outer, vdot, Khatri–Rao, chains in optimal order, products over semirings."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from numus.errors import ShapeError
from numus.functions._base import common, node_of, pair, wrap
from numus.functions.autocast import lowers
from numus.functions.linear import matmul as linear
from numus.functions.linear import vector_product
from numus.functions.linear.matmul import matmul
from numus.functions.shape.splitting import diagonal as plane_diagonal
from numus.functions.spelling import spelled
from numus.primitives import elementwise as ew
from numus.primitives.reduce import reduce_max, reduce_min
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor


def _matrices(op: str, x: Any) -> None:
    shape = node_of(x, op).shape
    if len(shape) < 2:
        raise ShapeError(f"linalg.{op}: takes matrices or stacks of them, not shape {shape}")


def diagonal(x: ArrayLike, /, *, offset: int = 0) -> Tensor:
    """The diagonals of matrices: of the last two axes, where `nm.diagonal` takes the first two.

    >>> nm.linalg.diagonal(nm.asarray([[1, 2], [3, 4]]), offset=1).tolist()
    [2]
    """
    _matrices("diagonal", x)
    return plane_diagonal(x, offset, -2, -1)


def trace(x: ArrayLike, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sums along the diagonals of matrices, which are the last two axes.

    >>> nm.linalg.trace(nm.ones((3, 2, 2))).tolist()
    [2.0, 2.0, 2.0]
    """
    _matrices("trace", x)
    return linear.trace(x, offset, -2, -1, dtype=dtype)


@lowers
def vdot(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """The dot product of two arrays taken flat; a is conjugated.

    >>> nm.linalg.vdot(nm.asarray([1j, 2]), nm.asarray([1j, 2])).item()
    (5+0j)
    """
    x, y = (wrap(n).reshape(-1) for n in pair("vdot", a, b))
    if x.shape != y.shape:
        raise ShapeError(f"linalg.vdot: arrays of {x.size} and {y.size} elements")
    return linear.vecdot(x, y)


@spelled
def cross(x1: ArrayLike, x2: ArrayLike, /, *, axis: int = -1) -> Tensor:
    """The cross products of vectors, which have three elements along an axis of both; other axes
    broadcast. `nm.cross` is NumPy's, which takes vectors of two elements, too.

    >>> nm.linalg.cross(nm.asarray([1, 0, 0]), nm.asarray([0, 1, 0])).tolist()
    [0, 0, 1]
    """
    a, b = (wrap(n) for n in pair("cross", x1, x2))
    for x in (a, b):
        if x.shape[normal_axis(axis, x.ndim, "linalg.cross")] != 3:
            raise ShapeError(
                f"linalg.cross: vectors must have 3 elements along axis {axis}, not shapes "
                f"{a.shape} and {b.shape}"
            )
    return vector_product.cross(a, b, axis=axis)


@lowers
def outer(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """All products of an element of the vector x1 (rows) and one of x2 (columns). `nm.outer` takes
    other arrays, too, as if they were flat.

    >>> nm.linalg.outer(nm.asarray([1, 2]), nm.asarray([3, 4])).tolist()
    [[3, 4], [6, 8]]
    """
    a, b = (wrap(n) for n in pair("outer", x1, x2))
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"linalg.outer: takes two vectors, not shapes {a.shape} and {b.shape}")
    return linear.outer(a, b)


def khatri_rao(a: ArrayLike, b: ArrayLike, /) -> Tensor:
    """The Khatri–Rao product: the Kronecker products of columns of a and b, side by side.

    >>> nm.linalg.khatri_rao(nm.asarray([[1, 2], [3, 4]]), nm.asarray([[1, 10]])).tolist()
    [[1, 20], [3, 40]]
    """
    x, y = (wrap(n) for n in pair("khatri_rao", a, b))
    if x.ndim < 2 or y.ndim < 2 or x.shape[-1] != y.shape[-1]:
        raise ShapeError(
            "linalg.khatri_rao: takes matrices with equally many columns, not shapes "
            f"{x.shape} and {y.shape}"
        )
    products = x[..., :, None, :] * y[..., None, :, :]
    lead = products.shape[:-3]
    return products.reshape((*lead, x.shape[-2] * y.shape[-2], x.shape[-1]))


# -- chains ---------------------------------------------------------------------------------------


def multi_dot(arrays: Sequence[ArrayLike], /) -> Tensor:
    """The product of a chain of matrices, multiplied in the order of fewest multiplications.

    The first may be a vector (a row), and so may the last (a column).

    >>> a, b, c = nm.ones((2, 100)), nm.ones((100, 3)), nm.ones(3)
    >>> nm.linalg.multi_dot([a, b, c]).tolist()
    [300.0, 300.0]
    """
    if len(arrays) < 2:
        raise ValueError(f"linalg.multi_dot: takes two arrays or more, not {len(arrays)}")
    chain = [wrap(n) for n in common("multi_dot", *arrays)]
    row, column = chain[0].ndim == 1, chain[-1].ndim == 1
    if row:
        chain[0] = chain[0][None, :]
    if column:
        chain[-1] = chain[-1][:, None]
    shapes = [x.shape for x in chain]
    if any(len(s) != 2 for s in shapes) or any(a[1] != b[0] for a, b in itertools.pairwise(shapes)):
        raise ShapeError(
            "linalg.multi_dot: the columns of each matrix must be the rows of the next; "
            f"the shapes are {', '.join(map(str, shapes))}"
        )
    split = _optimal_splits([s[0] for s in shapes] + [shapes[-1][1]])

    def product(i: int, j: int) -> Tensor:
        if i == j:
            return chain[i]
        k = split[i, j]
        return matmul(product(i, k), product(k + 1, j))

    out = product(0, len(chain) - 1)
    out = out[0] if row else out
    return out[..., 0] if column else out


def _optimal_splits(extents: Sequence[int]) -> dict[tuple[int, int], int]:
    """Matrix-chain ordering by dynamic programming (Cormen et al.): the last product of i … j."""
    count = len(extents) - 1
    cost = {(i, i): 0 for i in range(count)}
    split: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            costs = [
                cost[i, k] + cost[k + 1, j] + extents[i] * extents[k + 1] * extents[j + 1]
                for k in range(i, j)
            ]
            cost[i, j] = min(costs)
            split[i, j] = i + costs.index(cost[i, j])
    return split


# -- semirings ------------------------------------------------------------------------------------

# Sum and product of each semiring; "or_and" is the product of booleans, which matmul is itself.
_SEMIRINGS = {
    "min_plus": (reduce_min, ew.add),
    "max_plus": (reduce_max, ew.add),
    "max_min": (reduce_max, ew.minimum),
    "min_max": (reduce_min, ew.maximum),
    "max_times": (reduce_max, ew.mul),
}


def semiring_matmul(x1: ArrayLike, x2: ArrayLike, /, semiring: str = "min_plus") -> Tensor:
    """The matrix product over another semiring, as "min_plus": min over k of x1[i, k] + x2[k, j].

    `semiring` is "min_plus" (shortest paths), "max_plus", "max_min" (widest paths), "min_max",
    "max_times" or "or_and" (reachability). Leading axes broadcast; the inner extent is not 0.

    >>> road = nm.asarray([[0.0, 1.0, 9.0], [1.0, 0.0, 2.0], [9.0, 2.0, 0.0]])
    >>> nm.linalg.semiring_matmul(road, road)[0].tolist()
    [0.0, 1.0, 3.0]
    """
    if semiring == "or_and":
        return matmul(*(wrap(n).astype("bool") for n in pair("semiring_matmul", x1, x2)))
    if semiring not in _SEMIRINGS:
        known = ", ".join(map(repr, (*_SEMIRINGS, "or_and")))
        raise ValueError(f"linalg.semiring_matmul: semiring={semiring!r} must be one of {known}")
    a, b = (wrap(n) for n in pair("semiring_matmul", x1, x2))
    if a.ndim < 2 or b.ndim < 2 or a.shape[-1] != b.shape[-2] or a.shape[-1] == 0:
        raise ShapeError(
            "linalg.semiring_matmul: takes matrices whose inner extents are equal and not 0, "
            f"not shapes {a.shape} and {b.shape}"
        )
    total, times = _SEMIRINGS[semiring]
    terms = times(a[..., :, None, :]._node, b.mT[..., None, :, :]._node)
    return wrap(total(terms, (terms.ndim - 1,)))
