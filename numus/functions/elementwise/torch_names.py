"""PyTorch's names and products of elementwise functions: eq, sub, addcmul, clamp_min, ..."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.functions import api as nm
from numus.functions._base import method, operand
from numus.functions.elementwise.output import accepts_out
from numus.functions.spelling import spelled
from numus.shapes import normal_axis
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "addcdiv",
    "addcmul",
    "addmv",
    "addr",
    "clamp_max",
    "clamp_min",
    "conj_physical",
    "dist", "div",
    "eq",
    "ge",
    "ger",
    "gt",
    "le",
    "lt",
    "matvec",
    "mul",
    "ne",
    "neg",
    "renorm",
    "rsub",
    "std_mean",
    "sub",
    "swapdims",
    "take_along_dim",
    "vecmat",
]  # fmt: skip

sub, mul, neg, ger = nm.subtract, nm.multiply, nm.negative, nm.outer
eq, ne, lt, le, gt, ge = (
    *(nm.equal, nm.not_equal, nm.less, nm.less_equal, nm.greater, nm.greater_equal),
)
conj_physical, swapdims = nm.conj, nm.swapaxes
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "conj_physical", "ger"):
    method(_name)(globals()[_name])


def rsub(x: ArrayLike, other: ArrayLike, /, *, alpha: Any = 1) -> Tensor:
    """other - alpha * x."""
    return nm.subtract(other, x if alpha == 1 else nm.multiply(x, alpha))


@method()
def div(x1: ArrayLike, x2: ArrayLike, /, *, rounding_mode: str | None = None) -> Tensor:
    """x1 / x2 as it is, or rounded: "trunc" towards zero, "floor" down. Integers stay integers
    where they are rounded.

    >>> nm.div(nm.asarray([-7, 7]), 2, rounding_mode="trunc").tolist()
    [-3, 3]
    """
    if rounding_mode is None:
        return nm.divide(x1, x2)
    if rounding_mode == "floor":
        return nm.floor_divide(x1, x2)
    if rounding_mode != "trunc":
        raise ValueError(f'div: rounding_mode must be None, "trunc" or "floor": {rounding_mode!r}')
    if all(operand("div", x).dtype.is_integer for x in (x1, x2)):
        return nm.floor_divide(nm.subtract(x1, nm.fmod(x1, x2)), x2)
    return nm.trunc(nm.divide(x1, x2))


@method()
def addcmul(x: ArrayLike, tensor1: ArrayLike, tensor2: ArrayLike, /, *, value: Any = 1) -> Tensor:
    """x + value * tensor1 * tensor2.

    >>> nm.addcmul(nm.ones(2), nm.asarray([1.0, 2.0]), nm.asarray([3.0, 4.0])).tolist()
    [4.0, 9.0]
    """
    return nm.add(x, nm.multiply(nm.multiply(tensor1, value), tensor2))


@method()
def addcdiv(x: ArrayLike, tensor1: ArrayLike, tensor2: ArrayLike, /, *, value: Any = 1) -> Tensor:
    """x + value * tensor1 / tensor2."""
    return nm.add(x, nm.divide(nm.multiply(tensor1, value), tensor2))


def _mixed(x: ArrayLike, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    """beta * x + alpha * product; with beta=0, x does not matter, not even NaN."""
    scaled = product if alpha == 1 else product * alpha
    if isinstance(beta, (int, float)) and beta == 0:
        return scaled
    return nm.add(x if isinstance(beta, int) and beta == 1 else nm.multiply(x, beta), scaled)


@method()
def addmv(x: ArrayLike, mat: Tensor, vec: Tensor, /, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * x + alpha * (mat @ vec).

    >>> nm.addmv(nm.ones(2), nm.eye(2), nm.asarray([3.0, 4.0])).tolist()
    [4.0, 5.0]
    """
    return _mixed(x, nm.mv(mat, vec), beta, alpha)


@method()
def addr(x: ArrayLike, vec1: Tensor, vec2: Tensor, /, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    """beta * x + alpha * outer(vec1, vec2)."""
    return _mixed(x, nm.outer(vec1, vec2), beta, alpha)


@accepts_out
def matvec(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Products of matrices with vectors, the last axis of x2; the other axes broadcast.

    >>> nm.matvec(nm.eye(2), nm.asarray([[3.0, 4.0]])).tolist()
    [[3.0, 4.0]]
    """
    return nm.squeeze(nm.matmul(x1, nm.expand_dims(x2, -1)), -1)


@accepts_out
def vecmat(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """Products of (conjugated) vectors, the last axis of x1, with matrices."""
    row = operand("vecmat", x1)
    row = nm.conj(row) if row.dtype.is_complex else row
    return nm.squeeze(nm.matmul(nm.expand_dims(row, -2), x2), -2)


def take_along_dim(x: Tensor, indices: Any, /, dim: int | None = None) -> Tensor:
    """Each line of x along an axis read at its own indices; None takes x as one long axis.

    >>> nm.take_along_dim(nm.asarray([[3, 1]]), nm.asarray([[1, 0]]), 1).tolist()
    [[1, 3]]
    """
    if dim is None:
        return nm.take_along_axis(nm.reshape(x, -1), nm.reshape(nm.asarray(indices), -1), 0)
    return nm.take_along_axis(x, indices, dim)


@method()
def clamp_min(x: ArrayLike, min: Any, /) -> Tensor:
    """x, or the bound where it is smaller."""
    return nm.clip(x, min, None)


@method()
def clamp_max(x: ArrayLike, max: Any, /) -> Tensor:
    """x, or the bound where it is larger."""
    return nm.clip(x, None, max)


@method()
def dist(x: ArrayLike, other: ArrayLike, /, p: float = 2) -> Tensor:
    """The p-norm of the difference.

    >>> nm.dist(nm.asarray([0.0, 0.0]), nm.asarray([3.0, 4.0])).item()
    5.0
    """
    return nm.vector_norm(nm.subtract(x, other), ord=p)


@method()
@spelled
def std_mean(
    x: ArrayLike, /, axis: Any = None, *, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """The standard deviation and the mean over axes, in one pass.

    >>> [y.item() for y in nm.std_mean(nm.asarray([1.0, 3.0]))]
    [1.0, 2.0]
    """
    deviation = nm.std(x, axis, correction=correction, keepdims=keepdims)
    return deviation, nm.mean(x, axis, keepdims=keepdims)


@method()
def renorm(x: ArrayLike, /, p: float, dim: int, maxnorm: float) -> Tensor:
    """x with its parts along an axis scaled down where their p-norm is above a bound.

    >>> nm.renorm(nm.asarray([[3.0, 4.0], [0.3, 0.4]]), 2, 0, 1.0).tolist()[0]
    [0.6000000238418579, 0.800000011920929]
    """
    given = operand("renorm", x)
    if given.ndim < 2:
        raise ShapeError(f"renorm: needs an array of two axes or more, not shape {given.shape}")
    at = normal_axis(dim, given.ndim, "renorm")
    others = tuple(i for i in range(given.ndim) if i != at)
    wide = nm.astype(given, dt.compute_dtype(given.dtype))
    size = nm.vector_norm(wide, axis=others, keepdims=True, ord=p)
    over = size > maxnorm
    scaled = nm.where(over, wide * (maxnorm / nm.where(over, size, 1.0)), wide)
    return nm.astype(scaled, given.dtype)
