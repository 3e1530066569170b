"""Polynomials and series of orthogonal polynomials with NumPy's names, and interpolation.

Functions have the highest power first, as those at the top of NumPy; the series classes have the
lowest first, a domain and a window, as those of `numpy.polynomial`.
"""

from numus.polynomial.interpolation import (
    CubicSpline,
    PchipInterpolator,
    PPoly,
    RegularGridInterpolator,
)
from numus.polynomial.poly1d import poly1d
from numus.polynomial.powers import (
    poly,
    polyadd,
    polyder,
    polydiv,
    polyfit,
    polyfromroots,
    polyint,
    polymul,
    polyroots,
    polysub,
    polyval,
    roots,
)
from numus.polynomial.series import (
    Chebyshev,
    Hermite,
    HermiteE,
    Laguerre,
    Legendre,
    Polynomial,
)

__all__ = [
    "Chebyshev", "CubicSpline", "Hermite", "HermiteE", "Laguerre", "Legendre", "PPoly",
    "PchipInterpolator", "Polynomial", "RegularGridInterpolator", "poly", "poly1d", "polyadd",
    "polyder", "polydiv", "polyfit", "polyfromroots", "polyint", "polymul", "polyroots",
    "polysub", "polyval", "roots",
]  # fmt: skip
