"""Struve's function H_v: its power series in double-words, or Y_v and an asymptotic series."""

from __future__ import annotations

import math

from numus.ir import Expr, isnan, iterate, select, slow_path_select, sqrt, unary
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.power import pow
from numus.kernels.special.bessel_order.modified import is_odd
from numus.kernels.special.bessel_order.oscillating import jv, yv
from numus.kernels.special.gamma import rgamma
from numus.kernels.special.hypergeometric.double_word import Word, series
from numus.kernels.special.hypergeometric.gauss import is_pole
from numus.kernels.special.incomplete import epsilon, gamma_prefactor

_TERMS = 2000


def _power_series(v: Expr, x: Expr, where: Expr) -> Expr:
    """(x / 2)**(v + 1) / (gamma(3/2) gamma(v + 3/2)) 1F2(1; 3/2, v + 3/2; -x**2 / 4)."""
    one = fp.like(x, 1.0)
    half = x * 0.5
    square = Word(-half) * Word(half)
    more = Word.sum(v, fp.like(x, 1.5))
    below = (Word(fp.like(x, 1.5)), more)
    total = series((Word(one),), below, square, where, _TERMS)[0]
    small = v < (25.0 if fp.is32(x) else 100.0)
    low = select(small, v, one)
    near = pow(half, low + 1.0) * rgamma(low + 1.5)
    high = select(small, fp.like(x, 100.0), v)
    far = gamma_prefactor(high + 0.5, half) * exp(half) * sqrt(half)
    return select(small, near, far) * total * (2 / math.sqrt(math.pi))


def _rest(v: Expr, x: Expr, where: Expr) -> Expr:
    """H - Y: (x / 2)**(v - 1) / (sqrt(pi) gamma(v + 1/2)) times a sum, at least up to v."""
    one, zero = fp.like(x, 1.0), fp.like(x, 0.0)
    inverse = -4.0 / (x * x)

    def step(k: Expr, term: Expr, total: Expr) -> tuple[Expr, tuple[Expr, ...]]:
        following = term * ((k + 0.5) * ((k + 0.5) - v) * inverse)
        shrinking = (fp.absolute(following) < fp.absolute(term)) | (k < v)
        running = (fp.absolute(term) > fp.absolute(total) * (epsilon(x) * 0.25)) | (k < v)
        following = select(shrinking, following, zero)
        return running & term.ne(0.0), (k + 1.0, following, total + following)

    total = iterate(_TERMS, (zero, select(where, one, zero), one), step)[2]
    half = x * 0.5
    small = v < (12.0 if fp.is32(x) else 30.0)
    low = select(small, v, one)
    near = pow(half, low - 1.0) * rgamma(low + 0.5)
    high = select(small, fp.like(x, 30.0), v)
    # in two factors, with exp(x / 2) in range
    grown = exp(fp.at_most(half, 80.0 if fp.is32(x) else 700.0))
    far = gamma_prefactor(high - 0.5, half) * grown / sqrt(half)
    return select(small, near, far) * total * (1 / math.sqrt(math.pi))


def struve(v: Expr, x: Expr) -> Expr:
    """Struve's function of order v."""
    one, zero, nan = (fp.like(x, value) for value in (1.0, 0.0, math.nan))
    size = fp.absolute(x)
    whole = unary("floor", v).eq(v)
    inside = (size > 0.0) & (size < math.inf) & (fp.absolute(v) < math.inf)
    v_, x_ = select(inside, v, zero), select(inside, size, one)
    halves = is_pole(v_ + 1.5)  # H_-(n + 1/2) = (-1)**n J_(n + 1/2)
    far = (x_ > (20.0 if fp.is32(x) else 36.0)) & (v_ < x_) & ~halves
    near = inside & ~far & ~halves
    value = _power_series(select(near, v_, zero), select(near, x_, one), near)
    outer_v, outer_x = select(far, v_, zero), select(far, x_, fp.like(x, 50.0))
    outer = yv(outer_v, outer_x) + _rest(outer_v, outer_x, far)
    value = slow_path_select(far, outer, value)
    order = select(halves, -v_, one * 0.5)
    wave = jv(order, x_)
    wave = select(is_odd(order - 0.5), -wave, wave)
    value = slow_path_select(halves, wave, value)
    value = select((x < 0.0) & ~is_odd(v), -value, value)
    value = select((x < 0.0) & ~whole, nan, value)
    # at 0: (x / 2)**(v + 1) decides
    pole = fp.copysign(fp.like(x, math.inf), rgamma(select(v < -1.0, v, zero) + 1.5))
    pole = select(is_pole(v + 1.5), zero, pole)
    at_zero = select(v > -1.0, zero, select(v.eq(-1.0), fp.like(x, 2 / math.pi), pole))
    end = select(v < 1.0, zero, select(v.eq(1.0), fp.like(x, 2 / math.pi), fp.like(x, math.inf)))
    edge = select(x.eq(0.0), at_zero, select(x.eq(math.inf), end, nan))
    return select(inside, value, select(isnan(v) | isnan(x), nan, edge))
