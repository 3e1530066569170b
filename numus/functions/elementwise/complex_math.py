"""Functions of a complex variable, composed of real primitives.

Each takes and returns a complex node, computed as the pair (x, y) of its real and
imaginary parts. Values at infinities, NaN and signed zeros follow C99's annex G, as the array API
standard does. The plain formula is right wherever it is finite, also in its derivatives; a
`where` replaces it only where it is not, so that no gradient passes through the replacement.
Branches that are chosen by size get a harmless argument where they are not chosen. Inverse
functions are Kahan's.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from numus.dtypes import DType
from numus.graph import Node
from numus.primitives import elementwise as ew
from numus.primitives.source import constant

Parts = tuple[Node, Node]
_not = ew.invert


def _c(number: float, like: Node) -> Node:
    return constant(float(number), like.dtype)


def _largest(dtype: DType) -> float:
    """The largest finite number of a real dtype that a complex one is made of."""
    return (2 - 2.0**-dtype.mantissa) * 2.0 ** ((1 << (dtype.exponent - 1)) - 1)


def _finite(x: Node) -> Node:
    return ew.le(ew.abs_(x), _c(_largest(x.dtype), x))


def _infinite(x: Node) -> Node:
    return ew.eq(ew.abs_(x), _c(math.inf, x))


def _is(x: Node, number: float) -> Node:
    return ew.eq(x, _c(number, x))


def _half(x: Node) -> Node:
    return ew.mul(x, _c(0.5, x))


def _signed_one(x: Node) -> Node:
    """1 or -1, by the sign bit: a constant to gradients, unlike abs at zero."""
    return ew.copysign(_c(1, x), x)


def _magnitude(x: Node) -> Node:
    return ew.mul(x, _signed_one(x))


def _product(a: Parts, b: Parts) -> Parts:
    return (
        ew.sub(ew.mul(a[0], b[0]), ew.mul(a[1], b[1])),
        ew.add(ew.mul(a[0], b[1]), ew.mul(a[1], b[0])),
    )


def _function(parts: Callable[[Node, Node], Parts]) -> Callable[[Node], Node]:
    """A function of complex nodes from one of their parts."""

    def function(z: Node) -> Node:
        return ew.complex_(*parts(ew.real(z), ew.imag(z)))

    function.__name__ = function.__qualname__ = parts.__name__.lstrip("_")
    function.__doc__ = parts.__doc__
    return function


def _rotated(parts: Callable[[Node, Node], Parts]) -> Callable[[Node, Node], Parts]:
    """sin from sinh, tan from tanh, …: f(z) = -i g(iz) for odd g is g with its parts exchanged."""

    def rotated(x: Node, y: Node) -> Parts:
        u, v = parts(y, x)
        return v, u

    return rotated


def _exp(x: Node, y: Node) -> Parts:
    """e to the power z."""
    # in two factors where exp(x) may overflow but its product with a small sine does not;
    # NaN counts as large: such elements are replaced below
    large = _not(ew.lt(x, _c(math.log(_largest(x.dtype)), x)))
    growth = ew.exp(ew.where(large, _half(x), x))
    again = ew.where(large, growth, _c(1, x))
    re = ew.mul(ew.mul(growth, ew.cos(y)), again)
    im = ew.mul(ew.mul(growth, ew.sin(y)), again)
    im = ew.where(ew.and_(large, _is(y, 0)), y, im)
    lost = _not(_finite(y))  # no direction: only the size is known, at infinite x
    re = ew.where(ew.and_(lost, _is(x, math.inf)), x, re)
    vanished = ew.and_(lost, _is(x, -math.inf))
    return ew.where(vanished, _c(0, x), re), ew.where(vanished, _c(0, x), im)


def _expm1(x: Node, y: Node) -> Parts:
    """e to the power z, minus one, accurate near zero."""
    re, im = _exp(x, y)
    near = ew.lt(ew.abs_(x), _c(1, x))
    small = ew.where(near, x, _c(0, x))
    half_sine = ew.sin(_half(y))
    inner = ew.mul(ew.expm1(small), ew.cos(y))
    inner = ew.sub(inner, ew.mul(_c(2, x), ew.mul(half_sine, half_sine)))
    inner = ew.add(inner, _c(0, x))  # the standard asks for 0, not -0, of -0
    return ew.where(near, inner, ew.sub(re, _c(1, x))), im


def _exp_scale(x: Node) -> tuple[Node, Node, Node, Node]:
    """sinh x and cosh x, both short of a last factor where they may overflow; and where that is."""
    size = ew.abs_(x)
    large = _not(ew.lt(size, _c(math.log(_largest(x.dtype)), x)))
    factor = ew.exp(ew.where(large, _half(size), _c(0, x)))
    inner = ew.where(large, _c(0, x), x)
    half = _half(factor)
    sine = ew.where(large, ew.mul(half, _signed_one(x)), ew.sinh(inner))
    cosine = ew.where(large, half, ew.cosh(inner))
    return sine, cosine, ew.where(large, factor, _c(1, x)), large


def _sinh(x: Node, y: Node) -> Parts:
    """(e^z - e^-z) / 2."""
    sine, cosine, again, large = _exp_scale(x)
    re = ew.mul(ew.mul(sine, ew.cos(y)), again)
    im = ew.mul(ew.mul(cosine, ew.sin(y)), again)
    lost = ew.and_(_not(_finite(y)), ew.or_(_is(x, 0), _infinite(x)))
    return ew.where(lost, x, re), ew.where(ew.and_(large, _is(y, 0)), y, im)


def _cosh(x: Node, y: Node) -> Parts:
    """(e^z + e^-z) / 2."""
    sine, cosine, again, large = _exp_scale(x)
    re = ew.mul(ew.mul(cosine, ew.cos(y)), again)
    im = ew.mul(ew.mul(sine, ew.sin(y)), again)
    lost = _not(_finite(y))
    re = ew.where(ew.and_(lost, _infinite(x)), ew.abs_(x), re)
    im = ew.where(ew.and_(lost, _is(x, 0)), x, im)
    return re, ew.where(ew.and_(large, _is(y, 0)), ew.mul(y, _signed_one(x)), im)


def _tanh(x: Node, y: Node) -> Parts:
    """sinh z / cosh z."""
    one, zero, nan = _c(1, x), _c(0, x), _c(math.nan, x)
    # past this, tanh x is 1 to the last bit and 1 / cosh² x is 4 exp(-2|x|)
    large = ew.lt(_c(0.25 * math.log(_largest(x.dtype)), x), ew.abs_(x))
    lost = _not(_finite(y))
    unknown = ew.and_(lost, _finite(x))
    angle = ew.where(ew.and_(large, lost), zero, y)
    decay = ew.exp(ew.mul(_c(-2, x), ew.where(large, ew.abs_(x), zero)))
    far = ew.mul(ew.mul(_c(4, x), ew.mul(ew.sin(angle), ew.cos(angle))), decay)
    inner = ew.where(large, zero, x)
    tangent = ew.tan(ew.where(large, zero, y))
    beta = ew.add(one, ew.mul(tangent, tangent))
    sine = ew.sinh(inner)
    below = ew.add(one, ew.mul(beta, ew.mul(sine, sine)))
    re = ew.div(ew.mul(beta, ew.mul(ew.cosh(inner), sine)), below)
    im = ew.div(tangent, below)
    re = ew.where(large, ew.where(unknown, nan, _signed_one(x)), re)
    im = ew.where(large, ew.where(unknown, nan, far), im)
    re = ew.where(ew.and_(lost, _is(x, 0)), x, re)
    return re, ew.where(ew.and_(ew.ne(x, x), _is(y, 0)), y, im)


def _log_size(x: Node, y: Node) -> Node:
    """log |z|, accurate near |z| = 1 and without overflow."""
    ax, ay = _magnitude(x), _magnitude(y)  # abs would lose second derivatives on the axes
    swap = ew.lt(ax, ay)
    larger, smaller = ew.where(swap, ay, ax), ew.where(swap, ax, ay)
    near = ew.and_(ew.lt(_c(0.7, x), larger), ew.lt(larger, _c(1.4, x)))
    a, b = ew.where(near, larger, _c(1, x)), ew.where(near, smaller, _c(0, x))
    one = _c(1, x)
    excess = ew.add(ew.mul(ew.sub(a, one), ew.add(a, one)), ew.mul(b, b))
    huge = ew.lt(_c(_largest(x.dtype) / 4, x), larger)
    scale = ew.where(huge, _c(0.25, x), one)
    far = ew.log(ew.hypot(ew.mul(x, scale), ew.mul(y, scale)))
    far = ew.add(far, ew.where(huge, _c(math.log(4), x), _c(0, x)))
    return ew.where(near, _half(ew.log1p(excess)), far)


def _log(x: Node, y: Node) -> Parts:
    """The natural logarithm, cut along the negative real axis."""
    return _log_size(x, y), ew.atan2(y, x)


def _log1p(x: Node, y: Node) -> Parts:
    """log(1 + z), accurate near zero."""
    one = _c(1, x)
    near = ew.and_(ew.lt(ew.abs_(x), _c(0.5, x)), ew.lt(ew.abs_(y), _c(0.5, x)))
    a, b = ew.where(near, x, _c(0, x)), ew.where(near, y, _c(0, x))
    inner = _half(ew.log1p(ew.add(ew.mul(a, ew.add(a, _c(2, x))), ew.mul(b, b))))
    moved = ew.add(x, one)
    return ew.where(near, inner, _log_size(moved, y)), ew.atan2(y, moved)


def _sqrt(x: Node, y: Node) -> Parts:
    """The square root in the right half plane, cut along the negative real axis."""
    zero = _c(0, x)
    larger = ew.maximum(ew.abs_(x), ew.abs_(y))
    huge = ew.lt(_c(_largest(x.dtype) / 4, x), larger)
    scale = ew.where(huge, _c(0.25, x), _c(1, x))
    a, b = ew.mul(x, scale), ew.mul(y, scale)
    root = ew.sqrt(_half(ew.add(_magnitude(a), ew.hypot(a, b))))
    nothing = _is(root, 0)
    twice = ew.where(nothing, _c(1, x), ew.mul(_c(2, x), root))
    other = ew.div(b, twice)
    right = ew.lt(zero, _signed_one(x))  # -0 is on the left: `_magnitude` has that slope
    back = ew.where(huge, _c(2, x), _c(1, x))
    re = ew.mul(back, ew.where(right, root, _magnitude(other)))
    im = ew.mul(back, ew.where(right, other, ew.mul(root, _signed_one(y))))
    upright = _infinite(y)
    unknown = ew.ne(x, x)
    re = ew.where(unknown, x, re)
    im = ew.where(unknown, x, im)
    return ew.where(upright, ew.abs_(y), re), ew.where(upright, y, im)


def _roots(x: Node, y: Node) -> tuple[Parts, Parts]:
    """sqrt(1 - z) and sqrt(1 + z)."""
    one = _c(1, x)
    return _sqrt(ew.sub(one, x), ew.neg(y)), _sqrt(ew.add(one, x), y)


def _either_infinite(x: Node, y: Node) -> Node:
    return ew.or_(_infinite(x), _infinite(y))


def _ends(x: Node, y: Node, signed: Node) -> tuple[Node, Node]:
    """Whether a part is not finite, and the infinity (or NaN) that the result then has."""
    size = ew.where(_either_infinite(x, y), _c(math.inf, x), _c(math.nan, x))
    return _not(ew.and_(_finite(x), _finite(y))), ew.mul(size, _signed_one(signed))


def _asin(x: Node, y: Node) -> Parts:
    """The inverse of sin, cut along the real axis outside [-1, 1]."""
    minus, plus = _roots(x, y)
    re = ew.atan2(x, _product(minus, plus)[0])
    im = ew.asinh(_product((minus[0], ew.neg(minus[1])), plus)[1])
    special, end = _ends(x, y, y)
    angle = ew.where(_is(x, 0), x, ew.atan2(x, ew.abs_(y)))
    return ew.where(special, angle, re), ew.where(special, end, im)


def _acos(x: Node, y: Node) -> Parts:
    """The inverse of cos, cut along the real axis outside [-1, 1]."""
    minus, plus = _roots(x, y)
    re = ew.mul(_c(2, x), ew.atan2(minus[0], plus[0]))
    im = ew.asinh(_product((plus[0], ew.neg(plus[1])), minus)[1])
    special, end = _ends(x, y, y)
    angle = ew.where(_is(x, 0), _c(math.pi / 2, x), ew.atan2(ew.abs_(y), x))
    return ew.where(special, angle, re), ew.where(special, ew.neg(end), im)


def _acosh(x: Node, y: Node) -> Parts:
    """The inverse of cosh, cut along the real axis below 1."""
    u, v = _acos(x, y)
    sign = _signed_one(y)
    return ew.neg(ew.mul(v, sign)), ew.mul(u, sign)


def _atanh(x: Node, y: Node) -> Parts:
    """The inverse of tanh, cut along the real axis outside [-1, 1]."""
    one, zero = _c(1, x), _c(0, x)
    limit = math.sqrt(_largest(x.dtype)) / 4
    far = _not(ew.and_(ew.lt(ew.abs_(x), _c(limit, x)), ew.lt(ew.abs_(y), _c(limit, x))))
    a, b = ew.where(far, zero, _magnitude(x)), ew.where(far, zero, y)
    one_minus_a = ew.sub(one, a)
    below = ew.add(ew.mul(one_minus_a, one_minus_a), ew.mul(b, b))
    quarter = _c(0.25, x)
    re = ew.mul(quarter, ew.log1p(ew.div(ew.mul(_c(4, x), a), below)))
    twice = ew.mul(_c(2, x), b)
    im = _half(ew.atan2(twice, ew.sub(ew.mul(one_minus_a, ew.add(one, a)), ew.mul(b, b))))
    # for large z the value is 1/z plus a right angle; 1/z vanishes at infinity
    h = ew.hypot(ew.where(far, x, one), ew.where(far, y, one))
    beyond = ew.where(_either_infinite(x, y), zero, ew.div(ew.div(_magnitude(x), h), h))
    unknown = ew.or_(ew.and_(ew.ne(x, x), _not(_infinite(y))), ew.ne(y, y))
    right_angle = ew.where(unknown, _c(math.nan, x), ew.copysign(_c(math.pi / 2, x), y))
    re = ew.mul(ew.where(far, beyond, re), _signed_one(x))
    re = ew.where(ew.and_(_is(x, 0), ew.ne(y, y)), x, re)
    return re, ew.where(far, right_angle, im)


exp = _function(_exp)
expm1 = _function(_expm1)
sinh = _function(_sinh)
cosh = _function(_cosh)
tanh = _function(_tanh)
sin = _function(_rotated(_sinh))
cos = _function(lambda x, y: _cosh(ew.neg(y), x))
tan = _function(_rotated(_tanh))
log = _function(_log)
log1p = _function(_log1p)
sqrt = _function(_sqrt)
asin = _function(_asin)
acos = _function(_acos)
asinh = _function(_rotated(_asin))
acosh = _function(_acosh)
atanh = _function(_atanh)
atan = _function(_rotated(_atanh))


def scaled_log(base: float) -> Callable[[Node], Node]:
    """The logarithm to another base."""

    def function(z: Node) -> Node:
        re, im = _log(ew.real(z), ew.imag(z))
        factor = _c(1 / math.log(base), re)
        return ew.complex_(ew.mul(re, factor), ew.mul(im, factor))

    return function


def exp2(z: Node) -> Node:
    """2 to the power z."""
    factor = _c(math.log(2), ew.real(z))
    return ew.complex_(*_exp(ew.mul(ew.real(z), factor), ew.mul(ew.imag(z), factor)))


def pow_(z: Node, w: Node) -> Node:
    """exp(w log z); 0 to a power is 0 or 1, or NaN where that has no meaning."""
    zero, one = constant(0j, z.dtype), constant(1 + 0j, z.dtype)
    at_zero = ew.eq(z, zero)
    safe = ew.where(at_zero, one, z)
    power = exp(ew.mul(w, log(safe)))
    positive = ew.lt(_c(0, ew.real(w)), ew.real(w))
    nothing = ew.where(positive, zero, constant(complex(math.nan, math.nan), z.dtype))
    power = ew.where(at_zero, nothing, power)
    return ew.where(ew.eq(w, zero), one, power)
