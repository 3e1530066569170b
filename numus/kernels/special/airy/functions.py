"""Airy's functions Ai, Bi and their derivatives: polynomials, exponential forms, modulus and phase.

zeta = 2/3 |x|**(3/2) is a double-word: its exponential for x > 0 and its sine for x < 0 keep all
digits. Polynomials on intervals with zeros are divided by the differences from them.
"""

from __future__ import annotations

import math
from typing import Any

from numus.ir import Expr, fma, select, slow_path_select, sqrt
from numus.kernels.math import _tools as fp
from numus.kernels.math.exponential import exp
from numus.kernels.math.trigonometry import cos, sin, sin_shifted
from numus.kernels.special.airy import _ai_tables, _bi_tables

_ZEROS = {"AI": (0, 2), "AIP": (1, 1), "BI": (1, 1), "BIP": (0, 2)}  # in t < 2, in 2 < t < 4.5
_FARTHEST = (2.0**40, 2.0**300)  # zeta stays finite; values beyond are 0 or infinite


def _table(name: str) -> Any:
    return getattr(_ai_tables if name.startswith("AI") else _bi_tables, name)


def _zeta(size: Expr) -> fp.Pair:
    """2/3 size**(3/2)."""
    root = sqrt(size)
    root_low = fma(-root, root, size) / (root + root)
    power, power_low = fp.two_product(size, root)
    power_low = fma(size, root_low, power_low)
    third = 0.6666666865348816 if fp.is32(size) else 2 / 3
    third_low = -1.9868215517249155e-08 if fp.is32(size) else 3.700743415417188e-17
    zeta, zeta_low = fp.two_product(power, fp.like(size, third))
    return zeta, zeta_low + fma(power, third_low, power_low * third)


def _from_zeros(name: str, t: Expr, outer: bool) -> Expr:
    """(t - zero) (t - zero) ..., the zeros double-words."""
    inner, more = _ZEROS[name]
    product = fp.like(t, 1.0)
    for i in range(inner, inner + more) if outer else range(inner):
        high, low = _table(f"{name}_ZERO{i}")[0 if fp.is32(t) else 1]
        product = product * ((t - high) - low)
    return product


def _quarter_power(size: Expr) -> Expr:
    return sqrt(sqrt(size))


def _right(name: str, x: Expr, scaled: bool) -> Expr:
    """x >= 0; scaled by exp(zeta), or exp(-zeta) for Bi."""
    pieces = {end: _table(f"{name}{end}") for end in ("", "_NEXT", "_MIDDLE", "_FAR")}
    near = select(x < 1.0, pieces[""](x), pieces["_NEXT"](fp.at_most(x, 2.0)))
    at = fp.clamped(x, 2.0, _FARTHEST[0 if fp.is32(x) else 1])
    zeta, zeta_low = _zeta(at)
    sign = -1.0 if name.startswith("AI") else 1.0
    root = _quarter_power(at)
    value = select(at < 5.0, pieces["_MIDDLE"](fp.at_most(at, 5.0)), pieces["_FAR"](1.0 / zeta))
    value = value * root if name.endswith("P") else value / root
    if scaled:
        small, small_low = _zeta(fp.at_most(x, 2.0))
        small_low = select(x.eq(0.0), fp.like(x, 0.0), small_low)
        near = near * exp(-sign * small)
        return select(x > 2.0, value, near)
    # in two factors: exp overflows before the product does
    half = exp(zeta * (0.5 * sign))
    far = value * half * fma(half, sign * zeta_low, half)
    far = select(half.eq(math.inf), half, select(half.eq(0.0), fp.like(x, 0.0), far))
    return select(x > 2.0, far, near)


def _left(name: str, t: Expr) -> Expr:
    """x = -t <= 0."""
    near = _table(f"{name}_LEFT")(fp.at_most(t, 2.0)) * _from_zeros(name, t, False)
    middle = _table(f"{name}_WAVE")(fp.at_most(t, 4.5)) * _from_zeros(name, t, True)
    at = fp.clamped(t, 4.5, _FARTHEST[0 if fp.is32(t) else 1])
    zeta, zeta_low = _zeta(at)
    inverse = 1.0 / zeta
    v = inverse * inverse
    root = _quarter_power(at)
    # Ai = M sin(zeta + pi/4 - psi), Bi = M sin(zeta + 3 pi/4 - psi);
    # Ai' = N sin(zeta - pi/4 - chi), Bi' = N sin(zeta + pi/4 - chi)
    if name.endswith("P"):
        size, phase = _ai_tables.SLOPE_MODULUS(v) * root, _ai_tables.SLOPE_PHASE(v)
        eighths = -1 if name == "AIP" else 1
    else:
        size, phase = _ai_tables.MODULUS(v) / root, _ai_tables.PHASE(v)
        eighths = 1 if name == "AI" else 3
    size = size * (1 / math.sqrt(math.pi))
    shift = phase * inverse
    wave = sin_shifted(zeta, eighths, zeta_low - shift)
    huge = zeta > (2.0**22 if fp.is32(t) else 2.0**51)  # the low word is a turn, or more
    rotated = sin_shifted(zeta, eighths, -shift) * cos(zeta_low)
    rotated = fma(sin_shifted(zeta, eighths + 2, -shift), sin(zeta_low), rotated)
    far = size * slow_path_select(huge, rotated, wave)
    return slow_path_select(t > 4.5, far, select(t > 2.0, middle, near))


def _airy(name: str, x: Expr, scaled: bool = False) -> Expr:
    size = fp.absolute(x)
    right = _right(name, size, scaled)
    growing = name.startswith("BI")
    end = fp.like(x, math.inf if growing and not scaled else 0.0)
    if scaled and name.endswith("P"):
        end = fp.like(x, math.inf if growing else -math.inf)
    right = select(size.eq(math.inf), end, right)
    if scaled and not growing:
        left = fp.like(x, math.nan)
    else:
        end = fp.like(x, math.nan if name.endswith("P") else 0.0)
        left = select(size.eq(math.inf), end, _left(name, size))
    value = slow_path_select(x < 0.0, left, right)
    return select(x.eq(x), value, x)


def airy_ai(x: Expr) -> Expr:
    """Ai."""
    return _airy("AI", x)


def airy_ai_slope(x: Expr) -> Expr:
    """Ai'."""
    return _airy("AIP", x)


def airy_bi(x: Expr) -> Expr:
    """Bi."""
    return _airy("BI", x)


def airy_bi_slope(x: Expr) -> Expr:
    """Bi'."""
    return _airy("BIP", x)


def airye_ai(x: Expr) -> Expr:
    """exp(zeta) Ai(x) for x >= 0."""
    return _airy("AI", x, True)


def airye_ai_slope(x: Expr) -> Expr:
    """exp(zeta) Ai'(x) for x >= 0."""
    return _airy("AIP", x, True)


def airye_bi(x: Expr) -> Expr:
    """exp(-zeta) Bi(x); Bi(x) for x < 0."""
    return _airy("BI", x, True)


def airye_bi_slope(x: Expr) -> Expr:
    """exp(-zeta) Bi'(x); Bi'(x) for x < 0."""
    return _airy("BIP", x, True)
