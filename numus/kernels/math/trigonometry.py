"""sin, cos, tan and sincos.

Cody-Waite reduction modulo pi/2: a sum of three floats subtracted by fma, the first exactly, the
last kept as the low word of the remainder. Huge arguments take a slow path, Payne-Hanek reduction:
the integer product of the mantissa with the relevant bits of 2/pi.
"""

from __future__ import annotations

import itertools
import math

from numus import dtypes as dt
from numus.ir import Expr, binary, const, fma, select, slow_path_select
from numus.kernels.math import _tools as fp
from numus.kernels.math._coefficients import COS, PI_2, SIN

# Above these the nearest multiple of pi/2 is no longer found with enough certainty.
HUGE_32 = 65536.0
HUGE_64 = 2.0**30

# 2/pi, 32 bits a word, the first word of weight 2**-32. (Its integer part is 0.)
_HEX = (
    "a2f9836e4e441529fc2757d1f534ddc0db6295993c439041fe5163abdebbc561b7246e3a424dd2e0"
    "06492eea09d1921cfe1deb1cb129a73ee88235f52ebb4484e99c7026b45f7e413991d639835339f4"
    "9c845f8bbdf9283b1ff897ffde05980fef2f118b5a0a6d1f6d367ecf27cb09b74f463f669e5fea2d"
    "7527bac7ebe5f17b3d0739f78a5292ea6bfb5fb11f8d5d0856033046fc7b6babf0cfbc209af4361d"
)
TWO_OVER_PI = tuple(int(_HEX[i : i + 8], 16) for i in range(0, len(_HEX), 8))


def _reduce_twice(size: Expr) -> tuple[Expr, Expr, Expr]:
    """size - n pi/2 as a double-word; n in the low bits of an integer."""
    first, second, third = fp.parts(size, PI_2)
    n, biased = fp.nearest_integer(size, 2 / math.pi)
    a = fma(n, -first, size)  # exact
    b = n * second
    r = a - b
    low = ((a - r) - b) + fma(n, -second, b)
    return r, fma(n, -third, low), fp.bits(biased)


def sin_reduced(r: Expr, low: Expr | None = None) -> Expr:
    """sin(r + low) for |r| <= pi/4."""
    square = r * r
    tail = fp.polynomial(square, SIN)
    if low is None:
        return fma(square * r, tail, r)
    return fma(square * r, tail, low) + r


def cos_reduced(r: Expr, low: Expr | None = None) -> Expr:
    """cos(r + low) for |r| <= pi/4."""
    square = r * r
    tail = fma(fp.polynomial(square, COS), square, -0.5)
    if low is None:
        return fma(tail, square, 1.0)
    return fma(tail, square, -r * low) + 1.0


def sin(x: Expr) -> Expr:
    """The sine, for every argument. 1.6 ulp; 1.2 in float64."""
    return negated_if(_sine(fp.absolute(x), 0), x)


def cos(x: Expr) -> Expr:
    """The cosine, for every argument. 1.6 ulp; 1.2 in float64."""
    return _sine(fp.absolute(x), 1)


def _sine(size: Expr, quarters: int) -> Expr:
    """sin(size + quarters pi/2) for size >= 0."""
    usual = _in_quadrant(*_reduced(size), quarters)
    slow = _in_quadrant(*_payne_hanek(size), quarters)
    return slow_path_select(_is_huge(size), slow, usual)


def sin_shifted(size: Expr, eighths: int, shift: Expr) -> Expr:
    """sin(size + eighths pi/4 + shift) for size >= 0, |shift| < pi/4 and odd `eighths`.

    The sum is a double-word, so that the sine keeps its relative accuracy near its zeros.
    """
    huge = _is_huge(size)
    usual, slow = _reduce_twice(size), _payne_hanek(size)
    r, low, quadrant = (slow_path_select(huge, b, a) for a, b in zip(usual, slow, strict=True))
    quarter, quarter_low, _ = fp.parts(size, PI_2)
    a, a_low = fp.two_sum(r, fp.like(size, quarter * 0.5))
    b, b_low = fp.two_sum(a, shift)
    beyond = b > quarter * 0.5
    zero = fp.like(size, 0.0)
    c, c_low = fp.two_sum(b, select(beyond, fp.like(size, -quarter), zero))
    lows = (a_low + b_low) + (c_low + low)
    half_low = select(beyond, fp.like(size, -0.5 * quarter_low), fp.like(size, 0.5 * quarter_low))
    quadrant = quadrant + beyond.cast(quadrant.dtype)
    return _in_quadrant(c, lows + half_low, quadrant, eighths // 2)


def sincos(x: Expr) -> tuple[Expr, Expr]:
    """sin(x) and cos(x) with one reduction."""
    return sin(x), cos(x)  # equal expressions are one


def tan(x: Expr) -> Expr:
    """The tangent, for every argument: sine over cosine of the remainder. 1.6 ulp."""
    size = fp.absolute(x)
    usual = _tan_in_quadrant(*_reduce_twice(size))
    slow = _tan_in_quadrant(*_payne_hanek(size))
    return negated_if(slow_path_select(_is_huge(size), slow, usual), x)


def _reduced(size: Expr) -> tuple[Expr, Expr | None, Expr]:
    """The remainder and its quadrant. In float32 half an ulp is given for five instructions."""
    if not fp.is32(size):
        return _reduce_twice(size)
    first, second, third = fp.parts(size, PI_2)
    n, biased = fp.nearest_integer(size, 2 / math.pi)
    r = fma(n, -third, fma(n, -second, fma(n, -first, size)))  # within one rounding
    return r, None, fp.bits(biased)


def _tan_in_quadrant(r: Expr, low: Expr, quadrant: Expr) -> Expr:
    """tan(r + low + quadrant pi/2), sine and cosine kept as double-words until the quotient."""
    square = r * r
    s_tail = fma(square * r, fp.polynomial(square, SIN), low)
    c_tail = fma(fp.polynomial(square, COS), square, -0.5)
    s, s_low = fp.fast_two_sum(r, s_tail)
    c, c_low = fp.fast_two_sum(fp.like(r, 1.0), fma(c_tail, square, -r * low))
    odd = (quadrant & 1).ne(0)
    top, top_low = select(odd, -c, s), select(odd, -c_low, s_low)
    bottom, bottom_low = select(odd, s, c), select(odd, s_low, c_low)
    inverse = 1.0 / bottom
    q = top * inverse
    error = fma(-q, bottom, top) + fma(-q, bottom_low, top_low)
    return fma(error, inverse, q)


def negated_if(value: Expr, sign: Expr) -> Expr:
    """value, or -value where the sign bit of `sign` is set."""
    flip = fp.unsigned_bits(sign) & fp.format_of(sign).sign
    return fp.from_bits(fp.unsigned_bits(value) ^ flip)


def _in_quadrant(r: Expr, low: Expr | None, quadrant: Expr, quarters: int) -> Expr:
    """sin(r + low + (quadrant + quarters) pi/2)."""
    quadrant = quadrant + quarters
    value = select((quadrant & 1).eq(0), sin_reduced(r, low), cos_reduced(r, low))
    sign = (quadrant & 2).bitcast(fp.format_of(r).unsigned) << (r.dtype.bits - 2)
    return fp.from_bits(fp.unsigned_bits(value) ^ sign)


def _is_huge(size: Expr) -> Expr:
    return ~(size <= (HUGE_32 if fp.is32(size) else HUGE_64))


# -- huge arguments -------------------------------------------------------------------------------


def _window(first: Expr, count: int, limit: int) -> list[Expr]:
    """`count` consecutive words of 2/pi (a zero word before them) from word number `first` on.

    A shifter of log2(most) steps of selects: constants have no address to be gathered from.
    """
    words = [const(w, first.dtype) for w in (0, *TWO_OVER_PI, 0, 0, 0, 0)]
    for step in (1 << i for i in reversed(range(limit.bit_length()))):
        bit = (first & step).ne(0)
        needed = count + step - 1
        zero = const(0, first.dtype)
        padded = words + [zero] * (needed + step - len(words))
        words = [select(bit, padded[i + step], padded[i]) for i in range(needed)]
    return words[:count]


def _payne_hanek(size: Expr) -> tuple[Expr, Expr, Expr]:
    """size modulo pi/2 as a double-word in [-pi/4, pi/4], and the quadrant (its low 2 bits).

    size = m 2**e with an integer m. Bits of 2/pi whose product with m 2**e is a multiple of 4 do
    not matter; the window starts right after them, with weight 2, and its product with m modulo the
    window's length is the quadrant in 2 bits and the fraction in all others.
    """
    r, low, quadrant = _payne_hanek_32(size) if fp.is32(size) else _payne_hanek_64(size)
    return r, low + (size - size), quadrant  # NaN for infinity and NaN


def _payne_hanek_32(size: Expr) -> tuple[Expr, Expr, Expr]:
    u = fp.unsigned_bits(size)
    m = (u & 0x7FFFFF) | 0x800000
    start = (u >> 23) - (127 + 23 + 2 - 32)  # 32: the zero word
    shift = start & 31
    words = _window(start >> 5, 4, 7)
    a, b, c = (
        (high << shift) | ((low >> 1) >> (31 - shift)) for high, low in itertools.pairwise(words)
    )
    second = b * m + binary("mulhi", c, m)
    carry = (second < b * m).cast(dt.uint32)
    top = a * m + binary("mulhi", b, m) + carry
    quadrant = (top + 0x20000000) >> 30
    fraction = ((top << 2) | (second >> 30)).bitcast(dt.int32)
    rest = ((second << 2) >> 8).bitcast(dt.int32)
    high = (fraction & -256).cast(dt.float32)
    low = fma(rest.cast(dt.float32), 2.0**-24, (fraction & 255).cast(dt.float32))
    high, low = fp.fast_two_sum(high, low)
    return *_times_quarter_turn(high, low, 2.0**-32), quadrant.bitcast(dt.int32)


def _payne_hanek_64(size: Expr) -> tuple[Expr, Expr, Expr]:
    u = fp.unsigned_bits(size)
    m = (u & ((1 << 52) - 1)) | (1 << 52)
    m_high, m_low = m >> 32, m & 0xFFFFFFFF
    start = (u >> 52) - (1023 + 52 + 2 - 32)
    shift = start & 31
    words = _window(start >> 5, 7, 31)
    w = [
        ((high << shift) & 0xFFFFFFFF) | (low >> (32 - shift))
        for high, low in itertools.pairwise(words)
    ]
    # Schoolbook multiplication in 32-bit limbs, each in a 64-bit word; the last only carries.
    columns: list[Expr] = []
    carry = (m_low * w[5]) >> 32
    for j in range(4, -1, -1):
        total = carry + (m_low * w[j] & 0xFFFFFFFF) + (m_high * w[j + 1] & 0xFFFFFFFF)
        columns.append(total & 0xFFFFFFFF)
        carry = (total >> 32) + (m_low * w[j] >> 32) + (m_high * w[j + 1] >> 32)
    _, fourth, third, second, first = columns
    top = (first << 32) | second
    after = (third << 32) | fourth
    quadrant = (top + (1 << 61)) >> 62
    fraction = ((top << 2) | (after >> 62)).bitcast(dt.int64)
    rest = ((after << 2) >> 11).bitcast(dt.int64)
    high = (fraction & -2048).cast(dt.float64)
    low = fma(rest.cast(dt.float64), 2.0**-53, (fraction & 2047).cast(dt.float64))
    high, low = fp.fast_two_sum(high, low)
    return *_times_quarter_turn(high, low, 2.0**-64), quadrant.bitcast(dt.int64)


def _times_quarter_turn(high: Expr, low: Expr, scale: float) -> tuple[Expr, Expr]:
    """(high + low) scale pi/2 as a double-word; scale is a power of two."""
    pi, pi_low, _ = fp.parts(high, PI_2)
    r, error = fp.two_product(high * scale, fp.like(high, pi))
    return fp.fast_two_sum(r, fma(low * scale, pi, fma(high * scale, pi_low, error)))
