"""Norms of matrices and vectors: every order of NumPy."""

from __future__ import annotations

from typing import Any

from numus.errors import ShapeError
from numus.functions._base import node_of, wrap
from numus.functions.autocast import widens
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.reduction.reductions import min as minimum_of
from numus.functions.reduction.reductions import vector_norm
from numus.functions.shape.manipulation import moveaxis
from numus.functions.spelling import spelled
from numus.linalg._base import matrices
from numus.linalg.factor.svd import values_of
from numus.shapes import normal_axes
from numus.tensor import ArrayLike, Tensor

_INFINITY = float("inf")
_ORDERS = ("fro", "nuc", 1, -1, 2, -2, _INFINITY, -_INFINITY)


@widens
@spelled
def matrix_norm(x: ArrayLike, /, *, keepdims: bool = False, ord: Any = "fro") -> Tensor:
    """The norms of matrices, which are the last two axes.

    Args:
        keepdims: keep both axes, with extent 1.
        ord: "fro" (Frobenius), "nuc" (the sum of singular values), 2 and -2 (the largest and the
            smallest one), 1 and -1 (the largest and smallest sum of a column), inf and -inf (of a
            row).

    >>> nm.linalg.matrix_norm(nm.asarray([[1.0, -2.0], [3.0, 4.0]]), ord=1).item()
    6.0
    """
    if ord not in _ORDERS:
        known = ", ".join(map(repr, _ORDERS))
        raise ValueError(f"linalg.matrix_norm: ord={ord!r} must be one of {known}")
    a, dtype = matrices("matrix_norm", x)
    if ord == "fro":
        found = vector_norm(a, axis=(-2, -1))
    elif ord in ("nuc", 2, -2):
        s = values_of(a)
        if ord == "nuc":
            found = s.sum(axis=-1)
        else:
            found = _extreme(s, -1, ord, a)
    else:
        sums = abs(a).sum(axis=-2 if abs(ord) == 1 else -1)
        found = _extreme(sums, -1, ord, a)
    if not dtype.is_complex:
        found = found.astype(dtype)
    return found[..., None, None] if keepdims else found


def _extreme(x: Tensor, axis: int, ord: Any, a: Tensor) -> Tensor:
    if not x.shape[axis]:
        if ord > 0:
            return x.sum(axis=axis)
        raise ShapeError(f"linalg.matrix_norm: ord={ord} of nothing: shape {a.shape}")
    return (maximum_of if ord > 0 else minimum_of)(x, axis=axis)


@widens
@spelled
def norm(x: ArrayLike, /, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Tensor:
    """NumPy's norm: of vectors along one axis, of matrices along two.

    Without `axis`, a vector has a vector norm and a matrix a matrix norm; without `ord` too, the
    array is taken as one vector. `ord` is any number for vectors, and that of `matrix_norm` for
    matrices, None being Frobenius.

    >>> nm.linalg.norm(nm.asarray([[3.0, 0.0], [0.0, 4.0]]), 2).item()
    4.0
    """
    a = wrap(node_of(x, "linalg.norm"))
    if axis is None:
        if ord is None or a.ndim == 1:
            return _vector_norm(a, ord, None, keepdims)
        if a.ndim != 2:
            raise ShapeError(
                f"linalg.norm: ord={ord!r} of shape {a.shape}: give the axis (or two axes) of it"
            )
        axis = (0, 1)
    axes = normal_axes(axis, a.ndim, "linalg.norm")
    if len(axes) == 1:
        return _vector_norm(a, ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ShapeError(f"linalg.norm: takes one axis or two, not {axis!r}")
    found = matrix_norm(moveaxis(a, axes, (-2, -1)), ord="fro" if ord is None else ord)
    if keepdims:
        found = found.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)))
    return found


def _vector_norm(a: Tensor, ord: Any, axis: int | None, keepdims: bool) -> Tensor:
    if isinstance(ord, str):
        raise ValueError(f"linalg.norm: ord={ord!r} is of matrices; that of vectors is a number")
    return vector_norm(a, axis=axis, ord=2 if ord is None else ord, keepdims=keepdims)
