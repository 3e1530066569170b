"""Exponentials, logarithms, trigonometry, special functions and activations."""

import math

import mpmath
import numpy as np
import scipy.special

from ops.elementwise import one, two
from ops.row import COMPLEX_FRACTIONS, FLOATS, FRACTIONS, case, exactly, fraction, op, x


def exact(function):
    """An mpmath function of arrays, rounded to float64."""

    def apply(a):
        with mpmath.workdps(40):
            return np.vectorize(lambda v: float(function(mpmath.mpf(float(v)))), otypes=[float])(a)

    return apply


def smooth(name, reference, low=-4.0, high=4.0, **options):
    """A function of real and complex numbers."""
    options = {"dtypes": COMPLEX_FRACTIONS, "out": fraction, "signs": True, **options}
    return one(name, reference, low, high, **options)


def special(name, reference, low=-4.0, high=4.0, **options):
    """A function of real numbers whose poles are its own affair."""
    options = {"dtypes": FRACTIONS, "out": fraction, "values": [], **options}
    return one(name, reference, low, high, **options)


def activation(name, reference, *more, **options):
    large = case(exactly(0.0, -0.0, 90.0, -90.0, 1e4, -1e4, math.nan))
    return one(name, reference, dtypes=FLOATS, values=[large, *more], **options)


def gelu(a, approximate="none"):
    if approximate == "none":
        return a * scipy.special.ndtr(a)
    u = math.sqrt(2 / math.pi) * (a + 0.044715 * a**3)
    return a * scipy.special.expit(2 * u)


def elu(a, alpha=1.0):
    return np.where(a > 0, a, alpha * np.expm1(np.minimum(a, 0)))


ROWS = [
    smooth("exp", np.exp),
    smooth("exp2", np.exp2),
    smooth("expm1", np.expm1),
    smooth("log", np.log, 0.3, 3),
    smooth("log1p", np.log1p, -0.6, 3),
    smooth("log2", np.log2, 0.3, 3),
    smooth("log10", np.log10, 0.3, 3),
    two("logaddexp", np.logaddexp, dtypes=FRACTIONS, out=fraction, signs=True),
    smooth("sin", np.sin, -3, 3),
    smooth("cos", np.cos, -3, 3),
    smooth("tan", np.tan, -1.2, 1.2),
    smooth("asin", np.arcsin, -0.8, 0.8, aliases=["arcsin"]),
    smooth("acos", np.arccos, -0.8, 0.8, aliases=["arccos"]),
    smooth("atan", np.arctan, aliases=["arctan"]),
    two(
        *("atan2", np.arctan2),
        dtypes=FRACTIONS,
        out=fraction,
        signs=True,
        aliases=["arctan2"],
    ),
    smooth("sinh", np.sinh),
    smooth("cosh", np.cosh),
    smooth("tanh", np.tanh, aliases=["Tensor.tanh_act"]),
    smooth("asinh", np.arcsinh, aliases=["arcsinh"]),
    smooth("acosh", np.arccosh, 1.3, 3, aliases=["arccosh"]),
    smooth("atanh", np.arctanh, -0.8, 0.8, aliases=["arctanh"]),
    special("deg2rad", np.deg2rad, -360, 360, aliases=["radians"]),
    special("rad2deg", np.rad2deg, aliases=["degrees"]),
    special(
        *("sinc", np.sinc),
        values=[case(exactly(0.0, 1e-5, -1e-3, 0.0031, 20.25))],
        relative=False,  # the angle is rounded, as NumPy's is
    ),
    # -- special functions
    special(
        *("erf", scipy.special.erf),
        values=[case(exactly(0.0, -0.0, 9.0, -9.0, math.inf, math.nan, 1e-30))],
    ),
    special("erfc", scipy.special.erfc, values=[case(exactly(0.0, 9.0, -9.0, math.inf, math.nan))]),
    special(
        *("ndtr", exact(mpmath.ncdf)),
        values=[case(exactly(0.0, -9.0, 9.0, 14.0, -math.inf, math.inf, math.nan))],
    ),
    special("erfinv", exact(mpmath.erfinv), -0.8, 0.8),
    special("lgamma", exact(mpmath.loggamma), 0.3, 4, dtypes=FLOATS, ulps=32),
    special("digamma", exact(mpmath.digamma), 0.3, 4, dtypes=FLOATS, ulps=8, orders=1),
    # -- activations
    activation("relu", lambda a: np.where(a <= 0, 0, a)),
    op(
        "leaky_relu",
        lambda a, slope=0.01: np.where(a > 0, a, slope * a),
        case(x(3, 5)),
        case(x(), 0.2),
        case(x(2, 0)),
        values=[case(exactly(0.0, math.nan, -math.inf))],
    ),
    op(
        "elu",
        elu,
        case(x(3, 5)),
        case(x(), 0.5),
        case(x(2, 0)),
        values=[case(exactly(0.0, math.nan, -math.inf, 1e4))],
    ),
    activation("sigmoid", scipy.special.expit),
    activation("silu", lambda a: a * scipy.special.expit(a)),
    op(
        "softplus",
        lambda a, beta=1.0: np.logaddexp(beta * a, 0) / beta,
        case(x(3, 5)),
        case(x(), 3.0),
        case(x(2, 0)),
        values=[case(exactly(0.0, 90.0, -90.0, 1e4, -1e4, math.nan))],
    ),
    activation("gelu", gelu, case(exactly(-10.0, -30.0, 30.0), approximate="tanh")).replace(
        cases=(case(x(3, 5)), case(x(), approximate="tanh"), case(x(2, 0)))
    ),
]
