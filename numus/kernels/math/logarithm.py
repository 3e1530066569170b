"""log, log2, log10, log1p.

All split x = 2**e (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)) by integer arithmetic on the bits of
x, and use log(1 + f) = f - f**2 / 2 + f**3 Q(f): no division, and exact leading terms near x = 1.
Minimax polynomials; zero, negative numbers, subnormals, infinity and NaN take a slow path.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.ir import Expr, fma, select, slow_path_select
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import LN2, LOG, LOG2_E, LOG10_2, LOG10_E
from numus.kernels.math.exponential import exp


def reduce_log(x: Expr) -> tuple[Expr, Expr]:
    """(e, f) with x = 2**e (1 + f), for positive normal x; e as a float."""
    g = fp.format_of(x)
    root = g.bits_of(math.sqrt(0.5))
    i = fp.bits(x) - root
    e = (i >> g.mantissa).cast(x.dtype)
    return e, fp.from_bits((i & (g.smallest_normal - 1)) + root) - 1.0


def log_tail(f: Expr) -> Expr:
    """(log(1 + f) - f) / f**2."""
    return fma(fp.polynomial(f, LOG), f, -0.5)


def natural(e: Expr, f: Expr, f_low: Expr | None = None, less: float = 0.0) -> Expr:
    """log(2**e (1 + f + f_low)) - less."""
    high, low = fp.parts(f, LN2)
    rest = e * low if f_low is None else fma(e, low, f_low)
    rest = fma(f * f, log_tail(f), rest) + f
    return fma(e, high, -less) + rest if less else fma(e, high, rest)


def base2(e: Expr, f: Expr) -> Expr:
    """log2(2**e (1 + f))."""
    high, low = fp.parts(f, LOG2_E)
    square_part = f * f * log_tail(f)
    return e + fma(f, high, fma(square_part, high, f * low))


def base10(e: Expr, f: Expr) -> Expr:
    """log10(2**e (1 + f))."""
    high, low = fp.parts(f, LOG10_E)
    two, two_low = fp.parts(f, LOG10_2)
    square_part = f * f * log_tail(f)
    small = fma(square_part, high, fma(f, low, e * two_low))
    return fma(e, two, fma(f, high, small))


def _guarded(x: Expr, formula: Callable[[Expr, Expr], Expr]) -> Expr:
    """formula(e, f), and the special values of a logarithm."""
    usual = formula(*reduce_log(x))
    # Subnormals are scaled into the normal range.
    step = fp.format_of(x).mantissa + 1
    e, f = reduce_log(x * 2.0**step)
    slow = formula(e - float(step), f)
    slow = select(x.eq(0.0), fp.like(x, -math.inf), slow)
    slow = select(x < 0.0, fp.like(x, math.nan), slow)
    slow = select(x < math.inf, slow, x + x)  # infinity and NaN
    return slow_path_select(fp.is_special(x), slow, usual)


def log(x: Expr) -> Expr:
    """The natural logarithm. 0.9 ulp."""
    return _guarded(x, natural)


def log2(x: Expr) -> Expr:
    """The logarithm to base 2; exact for powers of two. 1.1 ulp."""
    return _guarded(x, base2)


def log10(x: Expr) -> Expr:
    """The logarithm to base 10. 1 ulp."""
    return _guarded(x, base10)


def log1p_pair(x: Expr, low: Expr | None = None) -> Expr:
    """log(1 + x + low) for x > -1, not huge; +0 for -0.

    The exponent is that of the rounded 1 + x; f = x 2**-e + (2**-e - 1) has one rounding, which is
    made good, and none where e is 0.
    """
    g = fp.format_of(x)
    i = fp.bits(x + 1.0) - g.bits_of(math.sqrt(0.5))
    scale = fp.from_bits(g.one - (i & -g.smallest_normal))
    below = scale - 1.0
    f = fma(x, scale, below)
    f_low = fma(x, scale, below - f)
    if low is not None:
        f_low = fma(low, scale, f_low)
    return natural((i >> g.mantissa).cast(x.dtype), f, f_low)


def log1p(x: Expr) -> Expr:
    """log(1 + x), which keeps its digits near 0. 1 ulp."""
    g = fp.format_of(x)
    u = x + 1.0
    rare = (fp.unsigned_bits(u) - g.smallest_normal) >= (100 << g.mantissa) + g.one
    # Beyond, the 1 is lost in x; at -1 and below and for NaN log has the right answer.
    return slow_path_select(rare, log(u), fp.copysign(log1p_pair(x), x))


def logaddexp(x: Expr, y: Expr) -> Expr:
    """log(exp(x) + exp(y)) = max + log1p(exp(-|x - y|)), infinities kept. 1 ulp of at least 1."""
    large, small = select(x < y, y, x), select(x < y, x, y)
    ratio = exp(select(x.eq(y), fp.like(x, 0.0), small - large))
    return large + log1p_pair(ratio)
