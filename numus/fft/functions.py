"""Transforms along one axis: NumPy's names, arguments and errors."""

from __future__ import annotations

import math
from typing import Any

from numus.errors import DTypeError, ShapeError
from numus.fft.transform import (
    are_planes,
    complex_input,
    inverse_real_transform,
    real_input,
    real_transform,
    resized,
    scaled,
    transform,
    transform_planes,
)
from numus.functions._base import computed, node_of
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.views import permute
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor

Norm = str | None
_OTHER = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


def check_norm(op: str, norm: Norm) -> Norm:
    if norm not in _OTHER:
        raise ValueError(f"fft.{op}: norm is {norm!r}; it must be 'backward', 'ortho' or 'forward'")
    return norm


def other_norm(op: str, norm: Norm) -> Norm:
    """That of the inverse."""
    return _OTHER[check_norm(op, norm)]


def _factor(norm: Norm, n: int, inverse: bool) -> float:
    if norm == "ortho":
        return 1 / math.sqrt(n)
    return 1 / n if (norm == "forward") != inverse else 1.0


def points(op: str, n: Any, have: int) -> int:
    """The length of a transform, as asked for or as it is."""
    count = have if n is None else as_int(n, "n", f"fft.{op}")
    if count < 1:
        raise ShapeError(f"fft.{op}: {count} points; a transform has at least 1")
    return count


def real_operand(op: str, x: ArrayLike) -> Node:
    node = node_of(x, f"fft.{op}")
    if node.dtype.is_complex:
        raise DTypeError(f"fft.{op}: takes real numbers, not {node.dtype.name}; see fft.fft")
    return real_input(node)


def complex_operand(op: str, x: ArrayLike) -> Node:
    return complex_input(node_of(x, f"fft.{op}"))


class LastAxis:
    """An axis brought to the end of a node's shape, and back."""

    def __init__(self, op: str, x: Node, axis: int) -> None:
        self.axis = normal_axis(axis, x.ndim, f"fft.{op}")
        self.x = permute(
            x, (*(i for i in range(x.ndim) if i != self.axis), *([self.axis] if x.ndim else []))
        )

    def back(self, y: Node) -> Node:
        order = list(range(y.ndim - 1))
        order.insert(self.axis, y.ndim - 1)
        return permute(y, tuple(order))


def complex_along(op: str, x: Node, n: Any, axis: int, norm: Norm, inverse: bool) -> Node:
    """The transform of a complex node along an axis."""
    check_norm(op, norm)
    last = LastAxis(op, x, axis)
    count = points(op, n, last.x.shape[-1])
    found = transform(resized(last.x, count), inverse)
    return last.back(scaled(found, _factor(norm, count, inverse)))


def complex_planes(
    op: str, x: Node, axes: list[tuple[int, int]], norm: Norm, inverse: bool
) -> Node | None:
    """The transform of a complex node along two axes with these lengths, if it is one kernel."""
    (rows, first), (columns, last) = sorted(axes, key=lambda pair: pair[1])
    count = math.prod(n for i, n in enumerate(x.shape) if i not in (first, last))
    # planes whose points lie apart are best read as columns, an axis at a time
    if first == last or last != x.ndim - 1 or not are_planes(x, rows, columns, count):
        return None
    order = (*(i for i in range(x.ndim) if i not in (first, last)), last, first)
    swapped = (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2)
    x = permute(resized(permute(x, order), rows), swapped)
    found = transform_planes(resized(x, columns), inverse)
    factor = _factor(norm, rows, inverse) * _factor(norm, columns, inverse)
    order = (*order[:-2], first, last)
    return permute(scaled(found, factor), tuple(order.index(i) for i in range(x.ndim)))


def real_along(op: str, x: Node, n: Any, axis: int, norm: Norm) -> Node:
    """The half spectrum of a real node along an axis."""
    check_norm(op, norm)
    last = LastAxis(op, x, axis)
    count = points(op, n, last.x.shape[-1])
    found = real_transform(resized(last.x, count))
    return last.back(scaled(found, _factor(norm, count, False)))


def inverse_real_along(op: str, x: Node, n: Any, axis: int, norm: Norm) -> Node:
    """The real node with a half spectrum along an axis."""
    check_norm(op, norm)
    last = LastAxis(op, x, axis)
    count = points(op, n, 2 * (last.x.shape[-1] - 1))
    found = inverse_real_transform(resized(last.x, count // 2 + 1), count)
    return last.back(scaled(found, _factor(norm, count, True)))


@templated
@spelled
def fft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The discrete Fourier transform along an axis, of any length.

    Element k is the sum over j of x_j exp(-2 pi i j k / n). Real input becomes complex64 or
    complex128; 16-bit floats are computed in float32.

    Args:
        n: the number of points; the axis is cut off or continued by zeros to it.
        norm: where the factor 1/n goes: to the inverse ("backward", the default), to this function
            ("forward"), or its square root to both ("ortho").

    >>> nm.fft.fft(nm.asarray([1.0, 0.0, -1.0, 0.0])).real.tolist()
    [0.0, 2.0, 0.0, 2.0]
    """
    return computed(complex_along("fft", complex_operand("fft", x), n, axis, norm, False))


@templated
@spelled
def ifft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The inverse of `fft`: the sum over k of x_k exp(2 pi i j k / n), divided by n.

    >>> nm.fft.ifft(nm.fft.fft(nm.asarray([1.0, 2.0, 5.0, 8.0]))).real.tolist()
    [1.0, 2.0, 5.0, 8.0]
    """
    return computed(complex_along("ifft", complex_operand("ifft", x), n, axis, norm, True))


@templated
@spelled
def rfft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The first n // 2 + 1 elements of the transform of real numbers; the others are their
    conjugates. Even lengths cost half of `fft`.

    >>> nm.fft.rfft(nm.asarray([1.0, 0.0, -1.0, 0.0])).real.tolist()
    [0.0, 2.0, 0.0]
    """
    return computed(real_along("rfft", real_operand("rfft", x), n, axis, norm))


@templated
@spelled
def irfft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The inverse of `rfft`: n real numbers (by default an even number, 2 (m - 1) for m elements).

    The imaginary parts of element 0 and, for even n, of element n / 2 are not read.

    >>> nm.fft.irfft(nm.fft.rfft(nm.asarray([1.0, 2.0, 5.0, 8.0]))).tolist()
    [1.0, 2.0, 5.0, 8.0]
    """
    return computed(inverse_real_along("irfft", complex_operand("irfft", x), n, axis, norm))


@templated
@spelled
def hfft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The real transform of a signal that is its own conjugate in reverse, from its first half.

    >>> nm.fft.hfft(nm.asarray([1.0, 2.0, 3.0])).tolist()
    [8.0, -2.0, 0.0, -2.0]
    """
    other = other_norm("hfft", norm)
    conjugate = ew.conj(complex_operand("hfft", x))
    return computed(inverse_real_along("hfft", conjugate, n, axis, other))


@templated
@spelled
def ihfft(x: ArrayLike, /, n: int | None = None, axis: int = -1, norm: Norm = None) -> Tensor:
    """The inverse of `hfft`: the first n // 2 + 1 elements of the signal.

    >>> nm.fft.ihfft(nm.asarray([8.0, -2.0, 0.0, -2.0])).real.tolist()
    [1.0, 2.0, 3.0]
    """
    other = other_norm("ihfft", norm)
    return computed(ew.conj(real_along("ihfft", real_operand("ihfft", x), n, axis, other)))
