"""Exponentials, logarithms, trigonometry and special functions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from numus.functions._base import (
    float_node,
    like,
    method,
    node_of,
    same,
    to_float,
    viewed,
    widened,
    wrap,
)
from numus.functions.autocast import widens
from numus.functions.elementwise import complex_math as cm
from numus.functions.elementwise.arithmetic import float_operands
from numus.functions.elementwise.output import accepts_out, write_out
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full_like
from numus.tensor import ArrayLike, Tensor

__all__ = [
    "acos", "acosh", "angle", "arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2",
    "arctanh", "asin", "asinh", "atan", "atan2", "atanh", "conj", "conjugate", "cos", "cosh",
    "deg2rad", "degrees", "digamma", "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "imag",
    "lgamma", "log", "log1p", "log2", "log10", "logaddexp", "ndtr", "rad2deg", "radians", "real",
    "sin", "sinc", "sinh", "tan", "tanh",
]  # fmt: skip

Build = Callable[[Node], Node]


def _apply(op: str, x: Any, real: Build, complex_: Build) -> Tensor:
    node = to_float(node_of(x, op))
    return wrap(complex_(node) if node.dtype.is_complex else real(node))


def _real(op: str, x: Any, build: Build) -> Tensor:
    return wrap(build(float_node(op, x)))


_apply_wide, _real_wide = widens(_apply), widens(_real)  # in float32 under autocast


@method()
@accepts_out
def exp(x: ArrayLike, /) -> Tensor:
    """e to the power x.

    >>> nm.exp(nm.asarray([0.0, -nm.inf]))
    tensor([1., 0.])
    """
    return _apply_wide("exp", x, ew.exp, cm.exp)


@method()
@accepts_out
def exp2(x: ArrayLike, /) -> Tensor:
    """2 to the power x."""
    return _apply("exp2", x, ew.exp2, cm.exp2)


@method()
@accepts_out
def expm1(x: ArrayLike, /) -> Tensor:
    """exp(x) - 1, accurate near zero."""
    return _apply_wide("expm1", x, ew.expm1, cm.expm1)


@method()
@accepts_out
def log(x: ArrayLike, /) -> Tensor:
    """The natural logarithm."""
    return _apply_wide("log", x, ew.log, cm.log)


@method()
@accepts_out
def log1p(x: ArrayLike, /) -> Tensor:
    """log(1 + x), accurate near zero."""
    return _apply_wide("log1p", x, ew.log1p, cm.log1p)


@method()
@accepts_out
def log2(x: ArrayLike, /) -> Tensor:
    """The logarithm to base 2."""
    return _apply_wide("log2", x, ew.log2, cm.scaled_log(2))


@method()
@accepts_out
def log10(x: ArrayLike, /) -> Tensor:
    """The logarithm to base 10."""
    return _apply_wide("log10", x, ew.log10, cm.scaled_log(10))


@accepts_out
def logaddexp(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """log(exp(x1) + exp(x2)) without overflow on the way."""
    a, b = float_operands("logaddexp", x1, x2)
    dtype = a.dtype
    a, b = widened(a), widened(b)
    end = ew.eq(ew.abs_(ew.maximum(a, b)), like(a, math.inf))  # the difference may be inf - inf
    difference = ew.where(end, like(a, 0), ew.sub(a, b))
    # both branches are the same function: every derivative is right at ties, unlike that of abs
    below = ew.lt(difference, like(a, 0))
    rest = ew.log1p(ew.exp(ew.where(below, difference, ew.neg(difference))))
    total = ew.add(ew.where(below, b, a), rest)
    return wrap(ew.cast(ew.where(end, ew.maximum(a, b), total), dtype))


@method()
@accepts_out
def sin(x: ArrayLike, /) -> Tensor:
    """The sine of an angle in radians."""
    return _apply("sin", x, ew.sin, cm.sin)


@method()
@accepts_out
def cos(x: ArrayLike, /) -> Tensor:
    """The cosine of an angle in radians."""
    return _apply("cos", x, ew.cos, cm.cos)


@method()
@accepts_out
def tan(x: ArrayLike, /) -> Tensor:
    """The tangent of an angle in radians."""
    return _apply_wide("tan", x, ew.tan, cm.tan)


@method()
@accepts_out
def asin(x: ArrayLike, /) -> Tensor:
    """The angle in [-π/2, π/2] whose sine is x."""
    return _apply_wide("asin", x, ew.asin, cm.asin)


@method()
@accepts_out
def acos(x: ArrayLike, /) -> Tensor:
    """The angle in [0, π] whose cosine is x."""
    return _apply_wide("acos", x, ew.acos, cm.acos)


@method()
@accepts_out
def atan(x: ArrayLike, /) -> Tensor:
    """The angle in (-π/2, π/2) whose tangent is x."""
    return _apply("atan", x, ew.atan, cm.atan)


@method()
@accepts_out
def atan2(x1: ArrayLike, x2: ArrayLike, /) -> Tensor:
    """The angle in [-π, π] of the point with abscissa x2 and ordinate x1."""
    return wrap(ew.atan2(*float_operands("atan2", x1, x2)))


@method()
@accepts_out
def sinh(x: ArrayLike, /) -> Tensor:
    """The hyperbolic sine."""
    return _apply_wide("sinh", x, ew.sinh, cm.sinh)


@method()
@accepts_out
def cosh(x: ArrayLike, /) -> Tensor:
    """The hyperbolic cosine."""
    return _apply_wide("cosh", x, ew.cosh, cm.cosh)


@method("tanh", "tanh_act")
@accepts_out
def tanh(x: ArrayLike, /) -> Tensor:
    """The hyperbolic tangent."""
    return _apply("tanh", x, ew.tanh, cm.tanh)


@method()
@accepts_out
def asinh(x: ArrayLike, /) -> Tensor:
    """The inverse of sinh."""
    return _apply("asinh", x, ew.asinh, cm.asinh)


@method()
@accepts_out
def acosh(x: ArrayLike, /) -> Tensor:
    """The inverse of cosh, not negative."""
    return _apply("acosh", x, ew.acosh, cm.acosh)


@method()
@accepts_out
def atanh(x: ArrayLike, /) -> Tensor:
    """The inverse of tanh."""
    return _apply("atanh", x, ew.atanh, cm.atanh)


@accepts_out
def deg2rad(x: ArrayLike, /) -> Tensor:
    """Degrees in radians."""
    return _real("deg2rad", x, lambda n: ew.mul(n, like(n, math.pi / 180)))


@accepts_out
def rad2deg(x: ArrayLike, /) -> Tensor:
    """Radians in degrees."""
    return _real("rad2deg", x, lambda n: ew.mul(n, like(n, 180 / math.pi)))


@accepts_out
def sinc(x: ArrayLike, /) -> Tensor:
    """sin(πx) / (πx), and 1 at 0."""
    return _real("sinc", x, _sinc)


def _sinc(x: Node) -> Node:
    wide = widened(x)
    angle = ew.mul(wide, like(wide, math.pi))
    small = ew.lt(ew.abs_(angle), like(angle, 1e-2))  # a series: right at 0 in every derivative
    squared = ew.mul(angle, angle)
    tail = ew.sub(like(angle, 1 / 120), ew.mul(squared, like(angle, 1 / 5040)))
    tail = ew.sub(like(angle, 1 / 6), ew.mul(squared, tail))
    series = ew.sub(like(angle, 1), ew.mul(squared, tail))
    safe = ew.where(small, like(angle, 1), angle)
    return ew.cast(ew.where(small, series, ew.div(ew.sin(safe), safe)), x.dtype)


@method()
@accepts_out
def erf(x: ArrayLike, /) -> Tensor:
    """The error function: how much of a normal distribution lies within x √2 of its mean."""
    return _real("erf", x, ew.erf)


@method()
@accepts_out
def erfc(x: ArrayLike, /) -> Tensor:
    """1 - erf(x), accurate far out."""
    return _real("erfc", x, ew.erfc)


@method()
@accepts_out
def erfinv(x: ArrayLike, /) -> Tensor:
    """The inverse of erf."""
    return _real_wide("erfinv", x, ew.erfinv)


@method()
@accepts_out
def ndtr(x: ArrayLike, /) -> Tensor:
    """The share of the standard normal distribution that lies below x, accurate far out."""
    return _real("ndtr", x, ew.ndtr)


@method()
@accepts_out
def lgamma(x: ArrayLike, /) -> Tensor:
    """The logarithm of |Γ(x)|."""
    return _real("lgamma", x, ew.lgamma)


@method()
@accepts_out
def digamma(x: ArrayLike, /) -> Tensor:
    """The derivative of log Γ(x)."""
    return _real("digamma", x, ew.digamma)


def real(x: ArrayLike, /) -> Tensor:
    """The real part."""
    return viewed(x, "real", ((ew.real,),) if node_of(x, "real").dtype.is_complex else ())


def imag(x: ArrayLike, /) -> Tensor:
    """The imaginary part; of real numbers, zeros."""
    node = node_of(x, "imag")
    return viewed(x, "imag", ((ew.imag,),)) if node.dtype.is_complex else wrap(full_like(node, 0))


@method()
@accepts_out
def conj(x: ArrayLike, /) -> Tensor:
    """The complex conjugate."""
    node = node_of(x, "conj")
    return wrap(ew.conj(node) if node.dtype.is_complex else same(node))


def angle(x: ArrayLike, /, deg: bool = False, *, out: Tensor | None = None) -> Tensor:
    """The angle of a complex number with the positive real axis, in radians or degrees."""
    node = to_float(node_of(x, "angle"))
    parts = (ew.imag(node), ew.real(node)) if node.dtype.is_complex else (like(node, 0), node)
    found = ew.atan2(*parts)
    found = ew.mul(found, like(found, 180 / math.pi)) if deg else found
    return wrap(found) if out is None else write_out(wrap(found), out, "angle")


arccos = acos
arccosh = acosh
arcsin = asin
arcsinh = asinh
arctan = atan
arctan2 = atan2
arctanh = atanh
conjugate = conj
degrees = rad2deg
radians = deg2rad
