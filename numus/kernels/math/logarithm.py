"""log, log2, log10, log1p.

All split x = 2**e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)) by integer arithmetic on the bits of
x, and use log(1 + f) = f - f**2 / 2 + f**3 Q(f): no division, and exact leading terms near x = 1.
Zero, negative numbers, subnormals, infinity and NaN take a guarded path.
"""

from __future__ import annotations

import math

from numus.compiler.ir import Expr, fma, guard, select
from numus.kernels.math._tools import (
    bits,
    copysign,
    format_of,
    from_bits,
    is32,
    like,
    polynomial,
    unsigned_bits,
)

# (log(1 + f) - f + f**2 / 2) / f**3
LOG_32 = (
    *(0.333333164, -0.250008136, 0.200022876, -0.16624485),
    *(0.141811281, -0.131294295, 0.12882331, -0.0785847828),
)
LOG_64 = (
    *(0.33333333333333248, -0.24999999999987524, 0.20000000000027038, -0.16666666669908942),
    *(0.14285714284983148, -0.12499999687769028, 0.1111111085956917, -0.10000015139039529),
    *(0.09090933236511152, -0.083329230748849709, 0.076913569124126779, -0.071491423622197736),
    *(0.066863868385318034, -0.06201059317627617, 0.056594874482447495, -0.056459550204350485),
    *(0.065092208466561594, -0.060734909481451257, 0.026910767512820007),
)
LN2_32 = (0.693147182, -1.90465421e-09)
LN2_64 = (0.6931471805599453, 2.3190468138462996e-17)
LOG2_E_32 = (1.44269502, 1.92596303e-08)
LOG2_E_64 = (1.4426950408889634, 2.0355273740931033e-17)
LOG10_E_32 = (0.434294492, -1.010305e-08)
LOG10_E_64 = (0.4342944819032518, 1.0983196502167651e-17)
LOG10_2_32 = (0.30103001, -1.43209888e-08)
LOG10_2_64 = (0.3010299956639812, -2.8037281277851704e-18)


def reduce_log(x: Expr) -> tuple[Expr, Expr]:
    """(e, f) with x = 2**e (1 + f), for positive normal x; e as a float."""
    g = format_of(x)
    root = bits(like(x, math.sqrt(0.5)))
    i = bits(x) - root
    e = (i >> g.mantissa).cast(x.dtype)
    return e, from_bits((i & (g.smallest_normal - 1)) + root) - 1.0


def log_tail(f: Expr) -> Expr:
    """(log(1 + f) - f) / f**2."""
    return fma(polynomial(f, LOG_32 if is32(f) else LOG_64), f, -0.5)


def natural(e: Expr, f: Expr, f_low: Expr | None = None) -> Expr:
    """log(2**e (1 + f + f_low))."""
    high, low = LN2_32 if is32(f) else LN2_64
    rest = e * low if f_low is None else fma(e, low, f_low)
    return fma(e, high, fma(f * f, log_tail(f), rest) + f)


def base2(e: Expr, f: Expr) -> Expr:
    """log2(2**e (1 + f))."""
    high, low = LOG2_E_32 if is32(f) else LOG2_E_64
    square_part = f * f * log_tail(f)
    return e + fma(f, high, fma(square_part, high, f * low))


def base10(e: Expr, f: Expr) -> Expr:
    """log10(2**e (1 + f))."""
    high, low = LOG10_E_32 if is32(f) else LOG10_E_64
    two, two_low = LOG10_2_32 if is32(f) else LOG10_2_64
    square_part = f * f * log_tail(f)
    small = fma(square_part, high, fma(f, low, e * two_low))
    return fma(e, two, fma(f, high, small))


def _guarded(x: Expr, formula: object) -> Expr:
    """formula(e, f), and the special values of a logarithm."""
    g = format_of(x)
    usual = formula(*reduce_log(x))  # type: ignore[operator]
    u = unsigned_bits(x)
    rare = (u - g.smallest_normal) >= (g.infinity - g.smallest_normal)
    # Subnormals are scaled into the normal range.
    step = g.mantissa + 1
    e, f = reduce_log(x * 2.0**step)
    slow = formula(e - float(step), f)  # type: ignore[operator]
    slow = select(x.eq(0.0), like(x, -math.inf), slow)
    slow = select(x < 0.0, like(x, math.nan), slow)
    slow = select(x < math.inf, slow, x + x)  # infinity and NaN
    slow = select(x.eq(-math.inf), like(x, math.nan), slow)
    return guard(rare, slow, usual)


def log(x: Expr) -> Expr:
    """The natural logarithm. Below 1 ulp."""
    return _guarded(x, natural)


def log2(x: Expr) -> Expr:
    """The logarithm to base 2; exact for powers of two."""
    return _guarded(x, base2)


def log10(x: Expr) -> Expr:
    """The logarithm to base 10."""
    return _guarded(x, base10)


def log1p(x: Expr) -> Expr:
    """log(1 + x), which keeps its digits near 0.

    The exponent is that of the rounded 1 + x; f = x 2**-e + (2**-e - 1) has one rounding, which is
    made good, and none where e is 0. Below 1 ulp.
    """
    g = format_of(x)
    u = x + 1.0
    i = bits(u) - bits(like(x, math.sqrt(0.5)))
    scale = from_bits(bits(like(x, 1.0)) - (i & -g.smallest_normal))
    below = scale - 1.0
    f = fma(x, scale, below)
    f_low = fma(x, scale, below - f)
    e = (i >> g.mantissa).cast(x.dtype)
    usual = copysign(natural(e, f, f_low), x)
    rare = (unsigned_bits(u) - g.smallest_normal) >= (101 << g.mantissa) + g.one
    # Beyond, the 1 is lost in x; at -1 and below and for NaN log has the right answer.
    return guard(rare, log(u), usual)
