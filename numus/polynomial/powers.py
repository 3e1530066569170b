"""Polynomials by their coefficients, the highest power first: NumPy's poly functions."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import ShapeError
from numus.tensor import ArrayLike, Tensor


def _coefficients(op: str, p: Any) -> Tensor:
    given = nm.atleast_1d(nm.asarray(p))
    if given.ndim != 1 or given.size == 0:
        raise ShapeError(f"{op}: coefficients are a vector, not an array of shape {given.shape}")
    found: Tensor = given
    return found


def _floats(x: Tensor) -> Tensor:
    return x if x.dtype.is_inexact else nm.astype(x, nm.float32)


def polyval(p: ArrayLike, x: Any) -> Tensor:
    """The value of a polynomial at x, by Horner's rule.

    >>> nm.polyval(nm.asarray([3.0, 0.0, 1.0]), 5.0).item()
    76.0
    """
    c = _coefficients("polyval", p)
    at = x if isinstance(x, Tensor) else nm.asarray(x, device=c.device)
    value = nm.zeros_like(at) + c[0]
    for i in range(1, c.shape[0]):
        value = value * at + c[i]
    return value


def _aligned(op: str, a: Any, b: Any) -> tuple[Tensor, Tensor]:
    p, q = _coefficients(op, a), _coefficients(op, b)
    n = max(p.shape[0], q.shape[0])
    padded = (nm.pad(c, ((n - c.shape[0], 0),)) for c in (p, q))
    first, second = padded
    return first, second


def polyadd(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """The sum of two polynomials.

    >>> nm.polyadd(nm.asarray([1, 2]), nm.asarray([9, 5, 4])).tolist()
    [9, 6, 6]
    """
    p, q = _aligned("polyadd", a1, a2)
    return p + q


def polysub(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """The difference of two polynomials."""
    p, q = _aligned("polysub", a1, a2)
    return p - q


def polymul(a1: ArrayLike, a2: ArrayLike) -> Tensor:
    """The product of two polynomials.

    >>> nm.polymul(nm.asarray([1, 2]), nm.asarray([1, 3])).tolist()
    [1, 5, 6]
    """
    return nm.convolve(_coefficients("polymul", a1), _coefficients("polymul", a2))


def polydiv(u: ArrayLike, v: ArrayLike) -> tuple[Tensor, Tensor]:
    """The quotient and the remainder of two polynomials; the divisor's first coefficient is not 0.

    The remainder has as many coefficients as the divisor less one, leading zeros included.

    >>> quotient, rest = nm.polydiv(nm.asarray([3.0, 5.0, 2.0]), nm.asarray([2.0, 1.0]))
    >>> quotient.tolist(), rest.tolist()
    ([1.5, 1.75], [0.25])
    """
    a, b = _floats(_coefficients("polydiv", u)), _floats(_coefficients("polydiv", v))
    n, m = a.shape[0], b.shape[0]
    if n < m:
        return nm.zeros((1,), dtype=a.dtype, device=a.device), a
    found = []
    rest = a
    for _ in range(n - m + 1):
        factor = rest[0] / b[0]
        found.append(factor)
        rest = nm.concat([rest[1:m] - factor * b[1:], rest[m:]])
    return nm.stack(found), rest if m > 1 else nm.zeros((1,), dtype=a.dtype, device=a.device)


def polyder(p: ArrayLike, m: int = 1) -> Tensor:
    """The m-th derivative of a polynomial.

    >>> nm.polyder(nm.asarray([1, 1, 1])).tolist()
    [2, 1]
    """
    if m < 0:
        raise ValueError(f"polyder: a derivative of order {m}; polyint integrates")
    c = _coefficients("polyder", p)
    for _ in range(m):
        n = c.shape[0]
        if n == 1:
            return nm.zeros((0,), dtype=c.dtype, device=c.device)
        c = c[:-1] * nm.astype(nm.arange(n - 1, 0, -1, device=c.device), c.dtype)
    return c


def polyint(p: ArrayLike, m: int = 1, k: Any = 0.0) -> Tensor:
    """The m-th antiderivative of a polynomial, with k for the constants of integration.

    >>> nm.polyint(nm.asarray([2.0, 1.0])).tolist()
    [1.0, 1.0, 0.0]
    """
    if m < 0:
        raise ValueError(f"polyint: an integral of order {m}; polyder differentiates")
    c = _floats(_coefficients("polyint", p))
    k = 0.0 if k is None else k
    constants = list(k) if isinstance(k, (list, tuple)) else [k] * m
    for constant in constants[:m]:
        n = c.shape[0]
        powers = nm.astype(nm.arange(n, 0, -1, device=c.device), c.dtype)
        c = nm.concat([c / powers, nm.full((1,), constant, dtype=c.dtype, device=c.device)])
    return c


def polyfit(
    x: ArrayLike,
    y: ArrayLike,
    deg: int,
    *,
    w: Any = None,
    rcond: float | None = None,
    full: bool = False,
    cov: bool | str = False,
) -> Any:
    """The polynomial of a degree that fits points best, by least squares.

    Args:
        y: values, or several sets of them as columns.
        w: what each residual is multiplied by.
        rcond: singular values below this share of the largest count as zero.
        full: give back residuals, rank, singular values and rcond, too.
        cov: give back the covariance of the coefficients, too; "unscaled" trusts the weights.

    >>> [round(c, 4) for c in nm.polyfit(nm.arange(4.0), nm.arange(4.0) * 2 + 1, 1).tolist()]
    [2.0, 1.0]
    """
    at, values = _floats(nm.asarray(x)), _floats(nm.asarray(y))
    if at.ndim != 1 or values.shape[:1] != at.shape:
        raise ShapeError(f"polyfit: needs as many values as points: {values.shape}, {at.shape}")
    left = nm.vander(at, deg + 1)
    right = nm.reshape(values, (at.shape[0], -1))
    if w is not None:
        weight = nm.reshape(nm.asarray(w), (-1, 1))
        left, right = left * weight, right * weight
    # columns of one length: powers of large x differ by orders of magnitude
    scale = nm.sqrt(nm.sum(left * left, 0))
    cut = at.shape[0] * float(nm.finfo(at.dtype).eps) if rcond is None else rcond
    solution, residuals, rank, s = nm.linalg.lstsq(left / scale, right, rcond=cut)
    found = solution / nm.expand_dims(scale, 1)
    found = found if values.ndim > 1 else found[:, 0]
    if full:
        return found, residuals, rank, s, cut
    if not cov:
        return found
    unit = left / scale
    base = nm.linalg.inv(nm.matrix_transpose(unit) @ unit) / nm.outer(scale, scale)
    if cov == "unscaled":
        return found, base
    free = at.shape[0] - (deg + 1)
    if free <= 0:
        raise ValueError(
            f"polyfit: {at.shape[0]} points are too few to scale the covariance of degree {deg}; "
            'give more, or cov="unscaled"'
        )
    errors = nm.sum(nm.square(right - left @ nm.reshape(found, (deg + 1, -1))), 0) / free
    return found, base * errors[0] if values.ndim == 1 else base[:, :, None] * errors


def polyfromroots(roots: ArrayLike) -> Tensor:
    """The polynomial with these roots and first coefficient 1.

    >>> nm.polynomial.polyfromroots(nm.asarray([1.0, 2.0])).tolist()
    [1.0, -3.0, 2.0]
    """
    r = nm.reshape(_floats(nm.asarray(roots)), -1)
    c = nm.ones((1,), dtype=r.dtype, device=r.device)
    for i in range(r.shape[0]):
        c = nm.concat([c, c[:1] * 0]) - nm.concat([c[:1] * 0, c]) * r[i]
    return c


def poly(seq_of_zeros: ArrayLike) -> Tensor:
    """The polynomial with these roots; of a square matrix, its characteristic polynomial.

    >>> nm.poly(nm.asarray([1.0, 2.0])).tolist()
    [1.0, -3.0, 2.0]
    """
    given = nm.asarray(seq_of_zeros)
    return polyfromroots(nm.linalg.eigvals(given) if given.ndim == 2 else given)


def roots(p: ArrayLike) -> Tensor:
    """The roots of a polynomial, complex: the eigenvalues of its companion matrix. Its first
    coefficient is not 0.

    >>> sorted(round(z.real, 4) for z in nm.roots(nm.asarray([1.0, -3.0, 2.0])).tolist())
    [1.0, 2.0]
    """
    c = _floats(_coefficients("roots", p))
    if c.shape[0] < 2:
        wide = nm.complex128 if c.dtype in (nm.float64, nm.complex128) else nm.complex64
        return nm.zeros((0,), dtype=wide, device=c.device)
    return nm.linalg.eigvals(nm.linalg.companion(c))


polyroots = roots
