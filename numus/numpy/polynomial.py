"""NumPy's series of orthogonal polynomials: numus's classes, over NumPy's arrays."""

from numus.polynomial import Chebyshev, Hermite, HermiteE, Laguerre, Legendre, Polynomial

__all__ = ["Chebyshev", "Hermite", "HermiteE", "Laguerre", "Legendre", "Polynomial"]
