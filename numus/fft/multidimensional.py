"""Transforms along several axes: one after another, the last axis first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numus.errors import ShapeError
from numus.fft.functions import (
    Norm,
    check_norm,
    complex_along,
    complex_operand,
    complex_planes,
    inverse_real_along,
    other_norm,
    real_along,
    real_operand,
)
from numus.functions._base import computed
from numus.functions.spelling import spelled
from numus.functions.template_cache import templated
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.shapes import as_int, normal_axis
from numus.tensor import ArrayLike, Tensor

Numbers = Sequence[int] | None


def sizes_and_axes(op: str, x: Node, s: Any, axes: Any) -> tuple[list[int], list[int]]:
    """Lengths (of x for -1 or None) and axes; of `s` alone, the last axes. Axes may repeat."""
    if axes is None:
        axes = range(x.ndim) if s is None else range(-len(s), 0)
    where = [normal_axis(a, x.ndim, f"fft.{op}") for a in axes]
    if s is None:
        return [x.shape[a] for a in where], where
    if len(s) != len(where):
        raise ShapeError(f"fft.{op}: s has {len(s)} lengths for {len(where)} axes")
    sizes = [-1 if n is None else as_int(n, "s", f"fft.{op}") for n in s]
    return [x.shape[a] if n == -1 else n for n, a in zip(sizes, where, strict=True)], where


def _along_axes(op: str, x: Node, s: Any, axes: Any, norm: Norm, inverse: bool) -> Node:
    check_norm(op, norm)
    sizes, where = sizes_and_axes(op, x, s, axes)
    return _complex_along_each(op, x, list(zip(sizes, where, strict=True)), norm, inverse)


def _complex_along_each(
    op: str, x: Node, axes: list[tuple[int, int]], norm: Norm, inverse: bool
) -> Node:
    """Along axes with these lengths, from the last one on; two at a time where that is one pass."""
    axes = list(axes)
    while axes:
        n, axis = axes.pop()
        planes = complex_planes(op, x, [axes[-1], (n, axis)], norm, inverse) if axes else None
        if planes is None:
            x = complex_along(op, x, n, axis, norm, inverse)
        else:
            x = planes
            axes.pop()
    return x


def _last(op: str, where: list[int]) -> int:
    if not where:
        raise ShapeError(f"fft.{op}: takes at least one axis")
    return where[-1]


def _real_along_axes(op: str, a: ArrayLike, s: Any, axes: Any, norm: Norm) -> Node:
    x = real_operand(op, a)
    check_norm(op, norm)
    sizes, where = sizes_and_axes(op, x, s, axes)
    last = _last(op, where)
    found = real_along(op, x, sizes[-1], last, norm)
    for n, axis in list(zip(sizes, where, strict=True))[-2::-1]:
        found = complex_along(op, found, n, axis, norm, False)
    return found


def _inverse_real_along_axes(op: str, a: ArrayLike, s: Any, axes: Any, norm: Norm) -> Node:
    x = complex_operand(op, a)
    check_norm(op, norm)
    sizes, where = sizes_and_axes(op, x, s, axes)
    last = _last(op, where)
    for n, axis in list(zip(sizes, where, strict=True))[:-1]:
        x = complex_along(op, x, n, axis, norm, True)
    count = None if s is None or s[-1] is None else sizes[-1]
    return inverse_real_along(op, x, count, last, norm)


@templated
@spelled
def fftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The transform along several axes, by default all; `s` has a length for each (-1: as it is).

    >>> nm.fft.fftn(nm.ones((2, 3))).real.tolist()
    [[6.0, 0.0, 0.0], [0.0, 0.0, 0.0]]
    """
    return computed(_along_axes("fftn", complex_operand("fftn", x), s, axes, norm, False))


@templated
@spelled
def ifftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The inverse of `fftn`.

    >>> nm.fft.ifftn(nm.fft.fftn(nm.ones((2, 2)))).real.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return computed(_along_axes("ifftn", complex_operand("ifftn", x), s, axes, norm, True))


@templated
@spelled
def rfftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The transform of real numbers along several axes: `rfft` along the last of them, then `fft`
    along the others.

    >>> nm.fft.rfftn(nm.ones((2, 2))).shape
    (2, 2)
    """
    return computed(_real_along_axes("rfftn", x, s, axes, norm))


@templated
@spelled
def irfftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The inverse of `rfftn`; the last length is even unless `s` says otherwise (where it is None,
    too, and that of x where it is -1).

    >>> nm.fft.irfftn(nm.fft.rfftn(nm.ones((2, 3))), s=(2, 3), axes=(0, 1)).shape
    (2, 3)
    """
    return computed(_inverse_real_along_axes("irfftn", x, s, axes, norm))


@templated
@spelled
def fft2(x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None) -> Tensor:
    """The transform along two axes.

    >>> nm.fft.fft2(nm.ones((2, 2))).real.tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return computed(_along_axes("fft2", complex_operand("fft2", x), s, axes, norm, False))


@templated
@spelled
def ifft2(
    x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None
) -> Tensor:
    """The inverse of `fft2`.

    >>> nm.fft.ifft2(nm.asarray([[4.0, 0.0], [0.0, 0.0]])).real.tolist()
    [[1.0, 1.0], [1.0, 1.0]]
    """
    return computed(_along_axes("ifft2", complex_operand("ifft2", x), s, axes, norm, True))


@templated
@spelled
def rfft2(
    x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None
) -> Tensor:
    """The transform of real numbers along two axes: see `rfftn`.

    >>> nm.fft.rfft2(nm.ones((4, 4))).shape
    (4, 3)
    """
    return computed(_real_along_axes("rfft2", x, s, axes, norm))


@templated
@spelled
def irfft2(
    x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None
) -> Tensor:
    """The inverse of `rfft2`: see `irfftn`.

    >>> nm.fft.irfft2(nm.fft.rfft2(nm.ones((4, 4)))).shape
    (4, 4)
    """
    return computed(_inverse_real_along_axes("irfft2", x, s, axes, norm))


def _hermitian_along_axes(op: str, a: ArrayLike, s: Any, axes: Any, norm: Norm) -> Node:
    conjugate = ew.conj(complex_operand(op, a))
    return _inverse_real_along_axes(op, Tensor(conjugate), s, axes, other_norm(op, norm))


def _inverse_hermitian_along_axes(op: str, a: ArrayLike, s: Any, axes: Any, norm: Norm) -> Node:
    return ew.conj(_real_along_axes(op, a, s, axes, other_norm(op, norm)))


@templated
@spelled
def hfftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The real transform along several axes of a signal that is its own conjugate in reverse, from
    the first half along the last of them; the last length is even unless `s` says otherwise.

    >>> nm.fft.hfftn(nm.ones((2, 2))).tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return computed(_hermitian_along_axes("hfftn", x, s, axes, norm))


@templated
@spelled
def ihfftn(x: ArrayLike, /, s: Numbers = None, axes: Numbers = None, norm: Norm = None) -> Tensor:
    """The inverse of `hfftn`: half of the signal along the last axis.

    >>> nm.fft.ihfftn(nm.ones((2, 2))).real.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return computed(_inverse_hermitian_along_axes("ihfftn", x, s, axes, norm))


@templated
@spelled
def hfft2(
    x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None
) -> Tensor:
    """`hfftn` along two axes.

    >>> nm.fft.hfft2(nm.ones((2, 2))).tolist()
    [[4.0, 0.0], [0.0, 0.0]]
    """
    return computed(_hermitian_along_axes("hfft2", x, s, axes, norm))


@templated
@spelled
def ihfft2(
    x: ArrayLike, /, s: Numbers = None, axes: Numbers = (-2, -1), norm: Norm = None
) -> Tensor:
    """`ihfftn` along two axes.

    >>> nm.fft.ihfft2(nm.ones((2, 2))).real.tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return computed(_inverse_hermitian_along_axes("ihfft2", x, s, axes, norm))
