"""NumPy's polynomials: numus's classes, over NumPy's arrays."""

from __future__ import annotations

from numus.numpy._convert import OfFace
from numus.polynomial import Chebyshev, Hermite, HermiteE, Laguerre, Legendre, Polynomial
from numus.polynomial import poly1d as _poly1d


class poly1d(OfFace, _poly1d):  # noqa: N801
    """A polynomial by its coefficients, the highest first, or by its roots."""


__all__ = ["Chebyshev", "Hermite", "HermiteE", "Laguerre", "Legendre", "Polynomial", "poly1d"]
