"""lgamma, digamma, trigamma.

Positive arguments: the recurrence to a short interval with a minimax polynomial, and Stirling's
series for large ones. Negative arguments: reflection formulas, as a slow path.
"""

from __future__ import annotations

import math

from numus.ir import Expr, approx_div, fma, select, slow_path_select, unary
from numus.kernels.math import _coefficients as table
from numus.kernels.math._tools import absolute, is32, like, parts, polynomial, two_product
from numus.kernels.math.logarithm import log, natural, reduce_log
from numus.kernels.math.trigonometry import cos_reduced, sin_reduced


def lgamma(x: Expr) -> Expr:
    """log |gamma(x)|. 3 ulp, of at least 1 near the zeros of negative arguments.

    [1, 3]: (z - 1) (z - 2) P(z), which is exact at the two zeros. Below 1, lgamma(x + 1) - log(x);
    from -4 to 0 the recurrence up to z in [1, 2]: lgamma(z) - log |x (x + 1) ... (z - 1)|. All of
    these have one polynomial and one logarithm in common. Beyond, slow paths: Stirling's series,
    and for negative arguments `_lgamma_negative`.
    """
    a, negative = absolute(x), x < 0.0
    whole = unary("floor", x)
    below = a < 1.0
    if is32(x):
        shifted, argument = a, select(negative, absolute(_rising(x, _FEW_STEPS)), a)
    else:
        shifted, argument = _recurrence(a, negative)
        argument = select(negative | ~below, argument, a)
    v = select(negative, x - whole, select(below, a, shifted - 1.0))
    u = v - 1.0
    logarithm = log(argument)
    above = like(x, 0.0) if is32(x) else logarithm  # +0 at 1
    near = u * v * polynomial(u, table.LGAMMA) + select(negative | below, -logarithm, above)
    near = select(negative & x.eq(whole), like(x, math.inf), near)  # the poles
    few = like(x, _FEW_STEPS - 1)
    far = _lgamma_far(a)
    slow = select(negative, _lgamma_negative(x, a, far), far)
    return slow_path_select(
        a >= select(negative, few, like(x, 3.0 if is32(x) else 8.0)), slow, near
    )


def _recurrence(a: Expr, negative: Expr) -> tuple[Expr, Expr]:
    """(a - k, (a - 1) ... (a - k)) with a - k in [2, 3] for a in [3, 8): Stirling's series would be
    too long there. For negative arguments, the product up to the first factor below 1."""
    product, shifted = like(a, 1.0), a
    steps = select(negative, a + 3.0, a)  # so near an integer that it is rounded, factors are 1
    for j in range(6):
        step = steps >= float(j + 2)
        if j == 0:
            step = step & negative
        factor = a - float(j)
        product = select(step, product * factor, product)
        shifted = select(step, factor, shifted)
    return shifted, absolute(product)


def _lgamma_far(a: Expr) -> Expr:
    """Stirling's series."""
    if is32(a):  # log(a) - 1, where it is small as well
        found = _stirling(a, approx_div(like(a, 1.0), a), natural(*reduce_log(a), less=1.0))
    else:
        found = _stirling(a, 1.0 / a, log(a) - 1.0)
    return select(a.eq(math.inf), a, found)


def _stirling(a: Expr, inverse: Expr, log_less_1: Expr) -> Expr:
    """(a - 1/2) (log(a) - 1) + log(2 pi) / 2 - 1/2 + P(1 / a**2) / a."""
    rest = fma(
        polynomial(inverse * inverse, table.STIRLING), inverse, 0.5 * math.log(2 * math.pi) - 0.5
    )
    return fma(a - 0.5, log_less_1, rest)


_FEW_STEPS = 5  # of the recurrence, for arguments that are not far below 0


def _lgamma_negative(x: Expr, a: Expr, positive: Expr) -> Expr:
    """lgamma(x) for x = -a < 1 - `_FEW_STEPS`, given lgamma(a).

    Down to where the zeros between the poles are too narrow for floats to come near, the recurrence
    up to z in [1, 2], both terms small where the result is. Beyond, the reflection
    -lgamma(a) - log(a |sin(pi a)| / pi).
    """
    steps = 16 if is32(x) else 24
    near = a < float(steps - 1)
    s, _ = _sin_cos_half_turns(a)
    product = select(near, _rising(x, steps), a * s * (1 / math.pi))
    whole = unary("floor", x)
    u = (x - whole) - 1.0
    core = u * (x - whole) * polynomial(u, table.LGAMMA)
    result = select(near, core, -positive) - log(absolute(product))
    result = select(x.eq(whole), like(x, math.inf), result)  # the poles
    return select(a.eq(math.inf), a, result)


def _rising(x: Expr, steps: int) -> Expr:
    """x (x + 1) ... up to the last factor below 1, `steps` of them at most."""
    product = x
    for j in range(1, steps):
        t = x + float(j)  # exact, but for |x| < 1
        product = select(t < 1.0, product * t, product)
    return product


def _is_tiny(a: Expr) -> Expr:
    """So near the pole at 0 that the other terms do not count."""
    return a < (2.0**-30 if is32(a) else 2.0**-60)


def _sin_cos_half_turns(a: Expr) -> tuple[Expr, Expr]:
    """|sin(pi a)|, and cos(pi a) with the sign that makes their quotient the cotangent of pi a."""
    r = a - unary("rint", a)  # exact
    size = absolute(r)
    small = size <= 0.25
    t = select(small, size, 0.5 - size)  # exact
    pi, pi_low, _ = parts(a, table.PI)
    angle, error = two_product(t, like(a, pi))
    angle_low = fma(t, pi_low, error)
    s, c = sin_reduced(angle, angle_low), cos_reduced(angle, angle_low)
    sine, cosine = select(small, s, c), select(small, c, s)
    return sine, select(r < 0.0, -cosine, cosine)


def digamma(x: Expr) -> Expr:
    """The derivative of lgamma. 3 ulp for positive arguments.

    [1, 2]: (x - x0) P(x) with the zero x0 as a double-word. Below 1 and up to 6 by the recurrence,
    its reciprocals summed as one fraction; beyond, the asymptotic series. For x < 0,
    digamma(a) + 1/a + pi cot(pi a) with a = -x.
    """
    a = absolute(x)
    below, beyond = a < 1.0, a >= 6.0
    top, bottom, shifted = like(x, 0.0), like(x, 1.0), a
    for j in range(1, 5):
        step = a >= float(j + 1)
        factor = a - float(j)
        top = select(step, fma(top, factor, bottom), top)
        bottom = select(step, bottom * factor, bottom)
        shifted = select(step, factor, shifted)
    top = select(below, like(x, -1.0), select(beyond, like(x, 1.0), top))
    bottom = select(below | beyond, a, bottom)
    fraction = top / bottom
    root, root_low = parts(x, table.DIGAMMA_ROOT)
    less, less_low = parts(x, table.DIGAMMA_ROOT_LESS_1)
    distance = select(below, (a - less) - less_low, (shifted - root) - root_low)
    u = select(below, a - 0.5, shifted - 1.5)
    near = fma(distance, polynomial(u, table.DIGAMMA), fraction)
    t = fraction * fraction
    far = log(a) - fma(t, polynomial(t, table.DIGAMMA_FAR), fraction * 0.5)
    positive = select(beyond, far, near)
    s, c = _sin_cos_half_turns(a)
    reflected = positive + fma(c / s, math.pi, 1.0 / a)
    reflected = select(s.eq(0.0), like(x, math.nan), reflected)
    reflected = select(_is_tiny(a), 1.0 / a, reflected)
    positive = select(a.eq(0.0), -1.0 / x, positive)
    return slow_path_select(x < 0.0, reflected, positive)


def trigamma(x: Expr) -> Expr:
    """The derivative of digamma: six terms 1 / (x + j)**2, then the asymptotic series at x + 6.

    For x < 0, pi**2 / sin(pi a)**2 - trigamma(a) + 1 / a**2 with a = -x. 4 ulp, if x > 0.
    """
    a = absolute(x)
    beyond = a >= 6.0
    top, bottom = like(x, 0.0), like(x, 1.0)
    for j in range(1, 6):
        square = (a + float(j)) * (a + float(j))
        top, bottom = fma(top, square, bottom), bottom * square
    y = select(beyond, a, a + 6.0)
    inverse = 1.0 / y
    t = inverse * inverse
    series = fma(t * inverse, polynomial(t, table.TRIGAMMA_FAR), fma(t, 0.5, inverse))
    own = 1.0 / a
    own = own * own
    positive = select(beyond, series, (series + top / bottom) + own)
    s, _ = _sin_cos_half_turns(a)
    ratio = math.pi / s
    reflected = select(_is_tiny(a), own, fma(ratio, ratio, own - positive))
    reflected = select(s.eq(0.0), like(x, math.inf), reflected)  # the poles
    return slow_path_select(x < 0.0, reflected, positive)
