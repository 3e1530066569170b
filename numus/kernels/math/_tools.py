"""Bit manipulation of floats, polynomial evaluation, double-word arithmetic (Dekker).

A *double-word* number is an unevaluated sum (high, low) of two floats, |low| at most half an ulp of
high. The sequences below are exact or good to a few units of 2**-2p; they hold only where the
target keeps IEEE rounding and never reassociates.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from numus import dtypes as dt
from numus.dtypes import DType
from numus.ir import Expr, binary, const, fma, select, unary
from numus.kernels.math._coefficients import Table

Pair = tuple[Expr, Expr]


class Format:
    """The numbers that describe a binary float format."""

    def __init__(self, dtype: DType, signed: DType, unsigned: DType) -> None:
        self.dtype, self.signed, self.unsigned = dtype, signed, unsigned
        self.mantissa = dtype.mantissa  # stored bits
        self.bias = (1 << (dtype.exponent - 1)) - 1
        self.one = self.bias << self.mantissa  # the bits of 1.0
        self.infinity = ((1 << dtype.exponent) - 1) << self.mantissa  # the bits of inf
        self.smallest_normal = 1 << self.mantissa  # the bits of 2**(1 - bias)
        self.sign = 1 << (dtype.bits - 1)
        # Adding this to a float below 2**(mantissa - 1) leaves its nearest integer, in two's
        # complement, in the low bits of the sum.
        self.rounder = 1.5 * 2.0**self.mantissa

    def bits_of(self, value: float) -> int:
        """The bits of a positive float."""
        return int.from_bytes(struct.pack("<f" if self.mantissa == 23 else "<d", value), "little")


_FORMATS = {
    dt.float32: Format(dt.float32, dt.int32, dt.uint32),
    dt.float64: Format(dt.float64, dt.int64, dt.uint64),
}


def format_of(x: Expr) -> Format:
    """The format of an expression's dtype: float32 or float64."""
    return _FORMATS[x.dtype]


def is32(x: Expr) -> bool:
    return x.dtype is dt.float32


def like(x: Expr, value: float) -> Expr:
    """A constant of x's dtype."""
    return const(value, x.dtype)


def integer(x: Expr, value: int) -> Expr:
    """An integer constant as wide as x."""
    return const(value, format_of(x).signed)


def bits(x: Expr) -> Expr:
    """The bits of a float as a signed integer."""
    return x.bitcast(format_of(x).signed)


def unsigned_bits(x: Expr) -> Expr:
    """The bits of a float as an unsigned integer."""
    return x.bitcast(format_of(x).unsigned)


def from_bits(i: Expr) -> Expr:
    """The float whose bits are the integer i."""
    return i.bitcast(dt.float32 if i.dtype.bits == 32 else dt.float64)


def absolute(x: Expr) -> Expr:
    return unary("abs", x)


def copysign(magnitude: Expr, sign: Expr) -> Expr:
    return binary("copysign", magnitude, sign)


def at_most(x: Expr, bound: float | Expr) -> Expr:
    """min(x, bound), NaN kept: one instruction where the NaN rule of `minimum` costs three."""
    c = bound if isinstance(bound, Expr) else like(x, bound)
    return select(c < x, c, x)


def at_least(x: Expr, bound: float) -> Expr:
    """max(x, bound), NaN kept."""
    c = like(x, bound)
    return select(c > x, c, x)


def clamped(x: Expr, low: float, high: float) -> Expr:
    """x within these bounds, NaN kept."""
    return at_most(at_least(x, low), high)


def is_special(x: Expr) -> Expr:
    """x is not a positive normal number."""
    f = format_of(x)
    return (unsigned_bits(x) - f.smallest_normal) >= (f.infinity - f.smallest_normal)


def parts(x: Expr, table: Table) -> tuple[float, ...]:
    """The half of a table that is made for x's dtype."""
    return table[0 if is32(x) else 1]


def polynomial(x: Expr, table: Table) -> Expr:
    """Horner's rule with the coefficients made for x's dtype."""
    return horner(x, parts(x, table))


# From this number of terms on, even and odd powers are two interleaved chains (Estrin) for latency.
_MIN_TWO_CHAIN_TERMS = 14


def horner(x: Expr, coefficients: Sequence[float], loose: bool = False) -> Expr:
    """A polynomial of coefficients of 1, x, x**2, ...; the last two steps are plain Horner.

    `loose` (see `fma`): where two roundings a step are good enough.
    """
    first, second, *rest = coefficients
    if len(coefficients) < _MIN_TWO_CHAIN_TERMS:
        return chain(x, coefficients, loose)
    square = x * x
    tail = fma(chain(square, rest[1::2], loose), x, chain(square, rest[0::2], loose), loose)
    return fma(fma(tail, x, second, loose), x, first, loose)


def chain(x: Expr, coefficients: Sequence[float], loose: bool = False) -> Expr:
    """Horner's rule."""
    result = like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        result = fma(result, x, c, loose)
    return result


def nearest_integer(x: Expr, scale: float) -> Pair:
    """rint(x * scale) by adding a magic number: the result, and the biased sum with it in its low
    bits. For results below 2**(mantissa - 2)."""
    rounder = format_of(x).rounder
    biased = fma(x, scale, rounder, allow_unfused=True)  # near a half, either neighbour is as good
    return biased - rounder, biased


def times_power_of_two(x: Expr, biased: Expr) -> Expr:
    """x * 2**n by adding n, from `nearest_integer`'s second result, to the exponent of x.

    Right as long as x and the result are normal numbers.
    """
    shift = format_of(x).mantissa
    return from_bits(bits(x) + (bits(biased) << shift))


def biased_integer(biased: Expr) -> Expr:
    """The integer that `nearest_integer` left in the lowest bits, sign-extended."""
    f = format_of(biased)
    return bits(biased) - f.bits_of(f.rounder)


def biased_power(biased: Expr) -> Expr:
    """2**n for the n that `nearest_integer` left in the lowest bits, if that is a normal number."""
    f = format_of(biased)
    return from_bits((bits(biased) << f.mantissa) + f.one)


def power_of_two(n: Expr) -> Expr:
    """2**n for an integer n whose power is a normal number."""
    f = _FORMATS[dt.float32 if n.dtype.bits == 32 else dt.float64]
    return from_bits((n + f.bias) << f.mantissa)


def scaled(x: Expr, n: Expr) -> Expr:
    """x * 2**n in two steps, for |n| up to twice the exponent range; one rounding."""
    half = n >> 1
    return x * power_of_two(half) * power_of_two(n - half)


def scaled_positive(x: Expr, n: Expr) -> Expr:
    """x * 2**n for positive normal x (NaN is kept), with one rounding: subnormal numbers, zero
    and infinity come out where they should. x * 2**n is below 2**(bias + 2), and far above the
    square of the smallest number.

    The exponent is changed by integer arithmetic: subnormal products take a hundred cycles.
    """
    f = format_of(x)
    moved = bits(x) + (n << f.mantissa)  # below the smallest normal number, or negative: too small
    # then counted in units of the smallest number, and rounded by a sum whose last place is 1
    units = from_bits(moved + ((f.bias + f.mantissa - 1) << f.mantissa))
    whole = 2.0**f.mantissa
    small = bits(units + whole) - f.bits_of(whole)
    large = binary("min", moved, integer(x, f.infinity))
    result = select(moved < f.smallest_normal, small, large)
    return select(x.ne(x), x, from_bits(result))


# -- double-word arithmetic -----------------------------------------------------------------------


def fast_two_sum(a: Expr, b: Expr) -> Pair:
    """a + b exactly, where |a| >= |b| or a = 0."""
    s = a + b
    return s, b - (s - a)


def two_sum(a: Expr, b: Expr) -> Pair:
    """a + b exactly (Knuth)."""
    s = a + b
    back = s - a
    return s, (a - (s - back)) + (b - back)


def two_product(a: Expr, b: Expr) -> Pair:
    """a * b exactly, unless it underflows."""
    p = a * b
    return p, fma(a, b, -p)
