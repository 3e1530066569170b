"""Series of orthogonal polynomials by their three-term recurrences: NumPy's series classes."""

from __future__ import annotations

from typing import Any, ClassVar, Self

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor

Line = tuple[float, float]


class Polynomial:
    """A sum of powers, the lowest first, of x mapped from a domain to a window.

    >>> p = nm.polynomial.Polynomial(nm.asarray([1.0, 2.0, 3.0]))
    >>> p(2.0).item(), (p * p).coef.tolist()
    (17.0, [1.0, 4.0, 10.0, 12.0, 9.0])
    """

    default_domain: ClassVar[Line] = (-1.0, 1.0)

    def __init__(self, coef: ArrayLike, domain: Any = None, window: Any = None) -> None:
        given = nm.atleast_1d(nm.asarray(coef))
        if given.ndim != 1 or given.size == 0:
            raise ShapeError(f"a series has a vector of coefficients, not shape {given.shape}")
        self.coef: Tensor = given if given.dtype.is_inexact else nm.astype(given, nm.float32)
        self.domain: Line = tuple(self.default_domain if domain is None else domain)
        self.window: Line = tuple(self.default_domain if window is None else window)

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        """a, b and c of the recurrence P(n+1) = (a x + b) P(n) + c P(n-1)."""
        return 1.0, 0.0, 0.0

    # -- values -----------------------------------------------------------------------------------

    def _map(self) -> tuple[float, float]:
        """The offset and scale from the domain to the window."""
        (a, b), (c, d) = self.domain, self.window
        return (b * c - a * d) / (b - a), (d - c) / (b - a)

    def _basis(self, t: Tensor, count: int) -> list[Tensor]:
        found = [nm.ones_like(t)]
        for n in range(count - 1):
            a, b, c = self._step(n)
            following = found[-1] * (a * t + b) if b else found[-1] * (a * t)
            found.append(following if n == 0 or c == 0 else following + c * found[-2])
        return found

    def __call__(self, x: Any) -> Tensor:
        """The value of the series at x."""
        at = x if isinstance(x, Tensor) else nm.asarray(x, dtype=self.coef.dtype)
        offset, scale = self._map()
        t = at if (offset, scale) == (0.0, 1.0) else offset + scale * at
        total: Any = None
        for i, value in enumerate(self._basis(t, self.coef.shape[0])):
            term = self.coef[i] * value
            total = term if total is None else total + term
        found: Tensor = total
        return found

    def degree(self) -> int:
        """The degree of the series."""
        return self.coef.shape[0] - 1

    # -- arithmetic, through powers ---------------------------------------------------------------

    @classmethod
    def _to_powers(cls, count: int) -> np.ndarray[Any, Any]:
        """The powers of the first polynomials, as columns."""
        table = np.zeros((count, count))
        table[0, 0] = 1
        for n in range(count - 1):
            a, b, c = cls._step(n)
            table[1:, n + 1] = a * table[:-1, n]
            table[:, n + 1] += b * table[:, n]
            if n:
                table[:, n + 1] += c * table[:, n - 1]
        return table

    def _times(self, matrix: np.ndarray[Any, Any], coef: Tensor) -> Tensor:
        wide = nm.asarray(matrix, dtype=coef.dtype, device=coef.device)
        return nm.matmul(wide, coef)

    def _powers(self) -> Tensor:
        return self._times(self._to_powers(self.coef.shape[0]), self.coef)

    def _from_powers(self, powers: Tensor) -> Self:
        inverse = np.linalg.inv(self._to_powers(powers.shape[0]))
        return type(self)(self._times(inverse, powers), self.domain, self.window)

    def _other(self, other: Any) -> Tensor:
        if isinstance(other, Polynomial):
            same = (type(other), other.domain, other.window)
            if same != (type(self), self.domain, self.window):
                raise TypeError("series of different kinds, domains or windows do not combine")
            return other.coef
        return nm.atleast_1d(nm.asarray(other, dtype=self.coef.dtype))

    def _combined(self, other: Any, sign: int) -> Self:
        b = self._other(other)
        n = max(self.coef.shape[0], b.shape[0])
        a, b = (nm.pad(c, ((0, n - c.shape[0]),)) for c in (self.coef, b))
        return type(self)(a + b if sign > 0 else a - b, self.domain, self.window)

    def __add__(self, other: Any) -> Self:
        """The sum of two series."""
        return self._combined(other, 1)

    def __sub__(self, other: Any) -> Self:
        """The difference of two series."""
        return self._combined(other, -1)

    def __mul__(self, other: Any) -> Self:
        """The product of two series."""
        factor = type(self)(self._other(other), self.domain, self.window)
        return self._from_powers(nm.convolve(self._powers(), factor._powers()))

    __radd__, __rmul__ = __add__, __mul__

    def deriv(self, m: int = 1) -> Self:
        """The m-th derivative."""
        powers = self._powers()
        _, scale = self._map()
        for _ in range(m):
            n = powers.shape[0]
            if n == 1:
                return type(self)(powers * 0, self.domain, self.window)
            powers = powers[1:] * nm.arange(1, n, dtype=powers.dtype, device=powers.device) * scale
        return self._from_powers(powers)

    def integ(self, m: int = 1) -> Self:
        """The m-th antiderivative, 0 where the window's 0 lies."""
        powers = self._powers()
        _, scale = self._map()
        for _ in range(m):
            n = powers.shape[0]
            count = nm.arange(1, n + 1, dtype=powers.dtype, device=powers.device)
            powers = nm.concat([powers[:1] * 0, powers / (count * scale)])
        return self._from_powers(powers)

    def roots(self) -> Tensor:
        """The roots, complex."""
        offset, scale = self._map()
        found = nm.roots(nm.flip(self._powers()))
        return (found - offset) / scale

    @classmethod
    def fit(cls, x: ArrayLike, y: ArrayLike, deg: int, domain: Any = None) -> Self:
        """The series of a degree that fits points best; its domain is that of the points."""
        at, values = nm.asarray(x), nm.asarray(y)
        ends = (float(nm.min(at)), float(nm.max(at))) if domain is None else domain
        made = cls(nm.zeros((deg + 1,), dtype=at.dtype), ends)
        offset, scale = made._map()
        table = nm.stack(made._basis(offset + scale * at, deg + 1), 1)
        coef = nm.linalg.lstsq(table, nm.expand_dims(values, 1))[0][:, 0]
        return cls(coef, ends)

    def convert(self, kind: type[Polynomial]) -> Polynomial:
        """The same function as a series of another kind."""
        bare = kind(self.coef, self.domain, self.window)
        return bare._from_powers(self._powers())


class Chebyshev(Polynomial):
    """A sum of Chebyshev's polynomials of the first kind."""

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        return (1.0, 0.0, 0.0) if n == 0 else (2.0, 0.0, -1.0)


class Legendre(Polynomial):
    """A sum of Legendre's polynomials."""

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        return (2 * n + 1) / (n + 1), 0.0, -n / (n + 1)


class Hermite(Polynomial):
    """A sum of Hermite's polynomials (the physicists')."""

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        return 2.0, 0.0, -2.0 * n


class HermiteE(Polynomial):
    """A sum of Hermite's polynomials (the probabilists')."""

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        return 1.0, 0.0, -float(n)


class Laguerre(Polynomial):
    """A sum of Laguerre's polynomials."""

    default_domain: ClassVar[Line] = (0.0, 1.0)

    @staticmethod
    def _step(n: int) -> tuple[float, float, float]:
        return -1 / (n + 1), (2 * n + 1) / (n + 1), -n / (n + 1)
