"""sinh, cosh, tanh, asinh, acosh, atanh."""

from __future__ import annotations

from numus.compiler.ir import Expr, fma, select
from numus.kernels.math._tools import (
    absolute,
    at_most,
    copysign,
    is32,
    polynomial,
)
from numus.kernels.math.exponential import exp_of_reduced, held_power, reduce_exp

# (tanh(x) / x - 1) / x**2 in x**2, |x| <= 0.625
TANH_32 = (-0.333332807, 0.133314058, -0.0537365228, 0.0206282325, -0.00569243217)
TANH_64 = (
    *(-0.33333333333333315, 0.13333333333329961, -0.053968253966149425, 0.02186948847069814),
    *(-0.0088632343387308465, 0.0035921142221440809, -0.0014557272075127697),
    *(0.00058945660739663302, -0.00023702395265138399, 9.1578241150775723e-05),
    *(-3.0205799041068073e-05, 6.0501172648522005e-06),
)


def tanh(x: Expr) -> Expr:
    """A polynomial up to 0.625, 1 - 2 / (exp(2|x|) + 1) beyond."""
    size = absolute(x)
    square = x * x
    near = fma(square * x, polynomial(square, TANH_32 if is32(x) else TANH_64), x)
    twice = at_most(size, 9.5 if is32(x) else 20.0) * 2.0  # 1 beyond
    r, held = reduce_exp(twice)
    far = copysign(1.0 - 2.0 / fma(exp_of_reduced(r), held_power(held), 1.0), x)
    return select(size < 0.625, near, far)
