"""Polynomials as objects, the highest coefficient first: NumPy's `poly1d`."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

import numus as nm
from numus.tensor import Tensor

__all__ = ["poly1d"]


class poly1d:  # noqa: N801
    """A polynomial by its coefficients, the highest first, or by its roots.

    >>> p = nm.polynomial.poly1d([1.0, 2.0, 3.0])
    >>> p(2.0).item(), (p * p).order, p.deriv().coeffs.tolist()
    (11.0, 4, [2.0, 2.0])
    """

    def __init__(self, c_or_r: Any, r: bool = False, variable: str | None = None) -> None:
        given = c_or_r._c if isinstance(c_or_r, poly1d) else nm.reshape(self._tensor(c_or_r), -1)
        kept = nm.trim_zeros(nm.poly(given) if r else given, "f")
        self._c: Tensor = kept if kept.size else nm.zeros(1, dtype=given.dtype)
        self.variable = variable or "x"

    def _tensor(self, x: Any) -> Tensor:
        """What is given as numbers."""
        return nm.asarray(x)

    def _result(self, x: Tensor) -> Any:
        """What is given back as numbers."""
        return x

    def _like(self, c: Any) -> poly1d:
        return type(self)(c, variable=self.variable)

    @property
    def coeffs(self) -> Any:
        """The coefficients, the highest first."""
        return self._result(self._c)

    @property
    def roots(self) -> Any:
        """Where it is zero."""
        return self._result(nm.roots(self._c))

    @property
    def order(self) -> int:
        """Its degree."""
        return self._c.shape[0] - 1

    c, r, o = coeffs, roots, order

    def __call__(self, val: Any) -> Any:
        if not isinstance(val, poly1d):
            return self._result(nm.polyval(self._c, self._tensor(val)))
        found = self._like(self._c[:1])
        for i in range(1, self.order + 1):
            found = found * val + self._like(self._c[i : i + 1])
        return found

    def deriv(self, m: int = 1) -> poly1d:
        """The m-th derivative."""
        return self._like(nm.polyder(self._c, m))

    def integ(self, m: int = 1, k: Any = 0.0) -> poly1d:
        """The m-th antiderivative."""
        return self._like(nm.polyint(self._c, m, k))

    def __getitem__(self, power: int) -> Any:
        return self._result(self._c[self.order - power]) if 0 <= power <= self.order else 0

    def __len__(self) -> int:
        return self.order

    def __iter__(self) -> Any:
        return (self._result(self._c[i]) for i in range(self.order + 1))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self._c.__array__(dtype)

    def __add__(self, other: Any) -> poly1d:
        return self._like(nm.polyadd(self._c, self._like(other)._c))

    def __sub__(self, other: Any) -> poly1d:
        return self._like(nm.polysub(self._c, self._like(other)._c))

    def __rsub__(self, other: Any) -> poly1d:
        return self._like(other) - self

    def __mul__(self, other: Any) -> poly1d:
        return self._like(nm.polymul(self._c, self._like(other)._c))

    __radd__, __rmul__ = __add__, __mul__

    def __truediv__(self, other: Any) -> Any:
        if isinstance(other, numbers.Number):
            return self._like(self._c / other)
        return tuple(self._like(c) for c in nm.polydiv(self._c, self._like(other)._c))

    def __pow__(self, exponent: int) -> poly1d:
        found = self._like([1])
        for _ in range(exponent):
            found = found * self
        return found

    def __neg__(self) -> poly1d:
        return self._like(-self._c)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, poly1d) and bool(nm.array_equal(self._c, other._c))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"poly1d({self._c.tolist()})"

    def __str__(self) -> str:
        return str(np.poly1d(self._c.numpy(), variable=self.variable))
