"""NumPy's polynomials: numus's classes, over NumPy's arrays."""

from __future__ import annotations

from typing import Any

from numus.numpy._convert import result, to_tensor
from numus.polynomial import Chebyshev, Hermite, HermiteE, Laguerre, Legendre, Polynomial
from numus.polynomial import poly1d as _poly1d
from numus.tensor import Tensor


class poly1d(_poly1d):  # noqa: N801
    """A polynomial by its coefficients, the highest first, or by its roots."""

    def _tensor(self, x: Any) -> Tensor:
        return to_tensor(x)

    def _result(self, x: Tensor) -> Any:
        return result(x)


__all__ = ["Chebyshev", "Hermite", "HermiteE", "Laguerre", "Legendre", "Polynomial", "poly1d"]
