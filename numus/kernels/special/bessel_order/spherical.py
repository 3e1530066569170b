"""Spherical Bessel functions: sqrt(pi / (2 x)) times those of order n + 1/2."""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.ir import Expr, isnan, select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.special.bessel_order.modified import i_core, is_odd, k_core
from numus.kernels.special.bessel_order.oscillating import j_core, y_core


def _spherical(
    n: Expr, x: Expr, core: Callable[[Expr, Expr], Expr], at_zero: Expr, at_end: float
) -> Expr:
    """Its value at |x|; NaN for orders that are not whole, or negative."""
    size = fp.absolute(x)
    order = (n >= 0.0) & unary("floor", n).eq(n)
    inside = (size > 0.0) & (size < math.inf) & order
    one = fp.like(x, 1.0)
    at = select(inside, size, one)
    value = core(select(inside, n, one) + 0.5, at) * sqrt((math.pi / 2) / at)
    edge = select(x.eq(0.0), at_zero, fp.like(x, at_end))
    edge = select(order & ~isnan(x), edge, fp.like(x, math.nan))
    return select(inside, value, edge)


def _first(n: Expr) -> Expr:
    return select(n.eq(0.0), fp.like(n, 1.0), fp.like(n, 0.0))


def spherical_jn(n: Expr, x: Expr) -> Expr:
    """The spherical Bessel function of the first kind."""
    value = _spherical(n, x, j_core, _first(n), 0.0)
    return select((x < 0.0) & is_odd(n), -value, value)


def spherical_yn(n: Expr, x: Expr) -> Expr:
    """The spherical Bessel function of the second kind."""
    value = _spherical(n, x, y_core, fp.like(x, -math.inf), 0.0)
    return select((x < 0.0) & ~is_odd(n), -value, value)


def spherical_in(n: Expr, x: Expr) -> Expr:
    """The modified spherical Bessel function of the first kind."""
    value = _spherical(n, x, lambda nu, x: i_core(nu, x, False), _first(n), math.inf)
    return select((x < 0.0) & is_odd(n), -value, value)


def spherical_kn(n: Expr, x: Expr) -> Expr:
    """The modified spherical Bessel function of the second kind."""
    value = _spherical(n, x, lambda nu, x: k_core(nu, x, False), fp.like(x, math.inf), 0.0)
    return select(x < 0.0, fp.like(x, math.nan), value)
