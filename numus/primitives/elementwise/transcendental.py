"""Elementwise powers, exponentials, logarithms, trigonometric, hyperbolic and special functions."""

from __future__ import annotations

import math

import numpy as np

from numus.graph import Node
from numus.primitives import references
from numus.primitives.elementwise.arithmetic import (
    Binary,
    Unary,
    add,
    binary,
    div,
    eq,
    lt,
    mul,
    ne,
    neg,
    scalar_like,
    sub,
    unary,
    where,
)

_c, special = scalar_like, references.special


def _one_minus_square(x: Node) -> Node:
    return mul(sub(_c(1, x), x), add(_c(1, x), x))


def _gaussian(x: Node, scale: float) -> Node:
    return mul(_c(scale, x), exp(neg(mul(x, x))))


sqrt: Unary = unary("sqrt", np.sqrt, lambda y, x: div(_c(0.5, x), y))
rsqrt: Unary = unary("rsqrt", lambda x: 1 / np.sqrt(x), lambda y, x: mul(_c(-0.5, x), div(y, x)))
cbrt: Unary = unary("cbrt", np.cbrt, lambda y, x: div(_c(1 / 3, x), mul(y, y)))
exp: Unary = unary("exp", np.exp, lambda y, x: y)
exp2: Unary = unary("exp2", np.exp2, lambda y, x: mul(y, _c(math.log(2), x)))
expm1: Unary = unary("expm1", np.expm1, lambda y, x: add(y, _c(1, x)))
log: Unary = unary("log", np.log, lambda y, x: div(_c(1, x), x))
log2: Unary = unary("log2", np.log2, lambda y, x: div(_c(1 / math.log(2), x), x))
log10: Unary = unary("log10", np.log10, lambda y, x: div(_c(1 / math.log(10), x), x))
log1p: Unary = unary("log1p", np.log1p, lambda y, x: div(_c(1, x), add(x, _c(1, x))))
sin: Unary = unary("sin", np.sin, lambda y, x: cos(x))
cos: Unary = unary("cos", np.cos, lambda y, x: neg(sin(x)))
tan: Unary = unary("tan", np.tan, lambda y, x: add(mul(y, y), _c(1, x)))
asin: Unary = unary("asin", np.arcsin, lambda y, x: rsqrt(_one_minus_square(x)))
acos: Unary = unary("acos", np.arccos, lambda y, x: neg(rsqrt(_one_minus_square(x))))
atan: Unary = unary("atan", np.arctan, lambda y, x: div(_c(1, x), add(mul(x, x), _c(1, x))))
sinh: Unary = unary("sinh", np.sinh, lambda y, x: cosh(x))
cosh: Unary = unary("cosh", np.cosh, lambda y, x: sinh(x))
tanh: Unary = unary("tanh", np.tanh, lambda y, x: sub(_c(1, x), mul(y, y)))
asinh: Unary = unary("asinh", np.arcsinh, lambda y, x: rsqrt(add(mul(x, x), _c(1, x))))
acosh: Unary = unary(
    "acosh", np.arccosh, lambda y, x: mul(rsqrt(sub(x, _c(1, x))), rsqrt(add(x, _c(1, x))))
)
atanh: Unary = unary("atanh", np.arctanh, lambda y, x: div(_c(1, x), _one_minus_square(x)))
erf: Unary = unary("erf", special("erf"), lambda y, x: _gaussian(x, 2 / math.sqrt(math.pi)))
erfc: Unary = unary("erfc", special("erfc"), lambda y, x: _gaussian(x, -2 / math.sqrt(math.pi)))
erfinv: Unary = unary(
    "erfinv", special("erfinv"), lambda y, x: mul(_c(math.sqrt(math.pi) / 2, x), exp(mul(y, y)))
)
ndtr: Unary = unary(
    "ndtr",
    special("ndtr"),
    lambda y, x: mul(_c(1 / math.sqrt(2 * math.pi), x), exp(mul(_c(-0.5, x), mul(x, x)))),
)
# (2k + 1) B_2k for k = 8 … 1: see `_tetragamma`
_TETRAGAMMA = (-3617 / 30, 35 / 2, -691 / 210, 5 / 6, -3 / 10, 1 / 6, -1 / 6, 1 / 2)


def _tetragamma(y: Node, x: Node) -> Node:
    """The derivative of trigamma, composed of primitives, so that it has every further one.

    Below 1/2 it is reflected; then ten steps lead to where its asymptotic series holds:
    -1/z^2 - 1/z^3 - sum (2k + 1) B_2k / z^(2k + 2).
    """
    one = _c(1, x)
    reflected = lt(x, _c(0.5, x))
    z = where(reflected, sub(one, x), x)
    total = _c(0, x)
    for _ in range(10):
        total = add(total, div(_c(2, x), mul(z, mul(z, z))))
        z = add(z, one)
    w = div(one, mul(z, z))
    series = _c(0, x)
    for coefficient in _TETRAGAMMA:
        series = mul(add(series, _c(coefficient, x)), w)
    total = add(total, mul(w, add(add(one, div(one, z)), series)))
    angle = mul(_c(math.pi, x), where(reflected, x, _c(0.5, x)))
    cube = mul(sin(angle), mul(sin(angle), sin(angle)))
    beyond = div(mul(_c(2 * math.pi**3, x), cos(angle)), cube)
    return neg(add(total, where(reflected, beyond, _c(0, x))))


lgamma: Unary = unary("lgamma", special("gammaln"), lambda y, x: digamma(x))
digamma: Unary = unary("digamma", special("digamma"), lambda y, x: trigamma(x))
trigamma: Unary = unary("trigamma", lambda x: special("polygamma")(1, x), _tetragamma)


sigmoid: Unary = unary("sigmoid", references.sigmoid, lambda y, x: mul(y, sub(_c(1, x), y)))


# -- two operands -------------------------------------------------------------------------------


def _over_length(x: Node, length: Node) -> Node:
    """x / length, and 0 where the length is 0: the subgradient of |x|."""
    at_zero = eq(length, _c(0, length))
    return where(at_zero, _c(0, x), div(x, where(at_zero, _c(1, length), length)))


def _pow_partials(y: Node, a: Node, b: Node) -> tuple[Node | int | None, Node | None]:
    return _pow_by_base(a, b), _pow_by_exponent(y, a) if b.tracked else None


def _pow_by_base(a: Node, b: Node) -> Node | int | None:
    """b a^(b-1), without 0 * inf at b = 0."""
    one, zero = _c(1, a), _c(0, a)
    if b.prim is not zero.prim:
        less = where(eq(b, zero), one, sub(b, one))
        return where(eq(b, zero), zero, mul(b, pow_(a, less)))
    power = b.params  # a number on the host: the usual case
    if power in (0, 1):
        return 1 if power else None
    return mul(b, a if power == 2 else pow_(a, _c(power - 1, a)))


def _pow_by_exponent(y: Node, a: Node) -> Node:
    """y log a; 0 where a and y are 0, NaN where a is negative."""
    zero = _c(0, y)
    if y.dtype.is_complex:
        known = ne(a, zero)
        return where(known, mul(y, log(where(known, a, _c(1, y)))), zero)
    known = lt(zero, a)
    slope = mul(y, log(where(known, a, _c(1, y))))
    # 0 to a negative power is infinite, and so is its slope
    at_zero = where(lt(_c(1, y), mul(y, y)), neg(y), zero)
    return where(known, slope, where(lt(a, zero), _c(math.nan, y), at_zero))


pow_: Binary = binary("pow", references.power, _pow_partials)
atan2: Binary = binary(
    "atan2",
    np.arctan2,
    # divided twice by the length, whose square may overflow or underflow
    lambda y, a, b: (
        _over_length(_over_length(b, hypot(a, b)), hypot(a, b)),
        neg(_over_length(_over_length(a, hypot(a, b)), hypot(a, b))),
    ),
)
hypot: Binary = binary("hypot", np.hypot, lambda y, a, b: (_over_length(a, y), _over_length(b, y)))
