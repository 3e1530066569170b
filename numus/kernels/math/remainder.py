"""fmod, nextafter, ldexp, frexp: exact operations on the parts of a float."""

from __future__ import annotations

import math

from numus.ir import Expr, fma, isnan, maximum, minimum, select, slow_path_select, unary
from numus.kernels.math import _tools as fp


def fmod(x: Expr, y: Expr) -> Expr:
    """x - trunc(x / y) y, exactly, with the sign of x (C's fmod).

    While the quotient has few bits one fma gives the remainder. Larger quotients: x = m 2**d,
    measured in units of y's last place, and m 2**d mod y by repeated squaring (see below).
    """
    a, b = fp.absolute(x), fp.absolute(y)
    ratio = a / b
    rest = fma(-unary("trunc", ratio), b, a)
    rest = select(rest < 0.0, rest + b, rest)  # the quotient was rounded up
    usual = select(a < b, a, rest)
    rare = ~(ratio < 2.0 ** (fp.format_of(x).mantissa - 2))
    return fp.copysign(slow_path_select(rare, _long_remainder(a, b), usual), x)


def _normalized(a: Expr, bias: int) -> tuple[Expr, Expr]:
    """The bits of |a|, subnormal numbers scaled to normal ones; its exponent less the bias."""
    g = fp.format_of(a)
    subnormal = fp.bits(a) < g.smallest_normal
    i = fp.bits(select(subnormal, a * 2.0 ** (g.mantissa + 1), a))
    e = (i >> g.mantissa) - bias
    return i, select(subnormal, e - (g.mantissa + 1), e)


def _significand(a: Expr) -> tuple[Expr, Expr]:
    """(m, e) with a = m 2**e, m an integer of full length biased in a float. a positive, finite."""
    g = fp.format_of(a)
    i, e = _normalized(a, g.bias + g.mantissa)
    return fp.from_bits((i & (g.smallest_normal - 1)) | g.one) * 2.0**g.mantissa, e


def _centred(r: Expr, m: Expr) -> Expr:
    """r modulo m into [-m/2, m/2], for |r| < 3/2 m."""
    return select(fp.absolute(r) * 2.0 > m, r - fp.copysign(m, r), r)


def _times_modulo(a: Expr, b: Expr, m: Expr) -> Expr:
    """a b modulo m, all centred integers: every step is exact as long as |a|, |b| <= m/2."""
    product = a * b
    low = fma(a, b, -product)
    q = unary("rint", product / m)
    return _centred(fma(-q, m, product) + low, m)


def _long_remainder(a: Expr, b: Expr) -> Expr:
    """a mod b for positive a, b with a large quotient."""
    m, e = _significand(a)
    n, f = _significand(b)
    d = e - f
    steps = 5 if fp.is32(a) else 6
    power = fp.power_of_two(d >> steps)  # at most 2**35: below n / 2
    for bit in reversed(range(steps)):
        power = _times_modulo(power, power, n)
        power = select((d & (1 << bit)).ne(0), _centred(power + power, n), power)
    rest = _times_modulo(_centred(_centred(m, n), n), power, n)
    rest = select(rest < 0.0, rest + n, rest)
    result = fp.scaled(rest, f)
    result = select(b.eq(math.inf), a, result)
    return select((a < math.inf) & (b > 0.0), result, fp.like(a, math.nan))


def nextafter(x: Expr, y: Expr) -> Expr:
    """The next float from x towards y."""
    away = (y > x) ^ (x < 0.0)  # grows in size
    moved = fp.from_bits(fp.bits(x) + select(away, fp.integer(x, 1), fp.integer(x, -1)))
    smallest = fp.copysign(fp.from_bits(fp.integer(x, 1)), y)
    result = select(x.eq(y), y, select(x.eq(0.0), smallest, moved))
    return select(isnan(x) | isnan(y), x + y, result)


def ldexp(x: Expr, n: Expr) -> Expr:
    """x * 2**n for an integer n of x's width: one rounding, whatever the sizes.

    Three factors reach from the smallest to the largest number. On the way down the first two stop
    a mantissa's length short of the subnormal range, so that only the last one rounds.
    """
    g = fp.format_of(x)
    max_exponent, min_exponent = g.bias, 1 - g.bias
    for _ in range(2):
        step = select(n > max_exponent, fp.integer(x, max_exponent), fp.integer(x, 0))
        step = select(n < min_exponent, fp.integer(x, min_exponent + g.mantissa + 1), step)
        x, n = x * fp.power_of_two(step), n - step
    return x * fp.power_of_two(minimum(maximum(n, min_exponent), max_exponent))


def frexp(x: Expr) -> tuple[Expr, Expr]:
    """(m, n) with x = m 2**n and 1/2 <= |m| < 1; zeros, infinities and NaN come back with n = 0."""
    g = fp.format_of(x)
    size = fp.absolute(x)
    i, n = _normalized(size, g.bias - 1)
    m = fp.from_bits((i & (g.smallest_normal - 1)) | (g.one - g.smallest_normal))
    plain = size.eq(0.0) | ~(size < math.inf)
    return select(plain, x, fp.copysign(m, x)), select(plain, fp.integer(x, 0), n)
