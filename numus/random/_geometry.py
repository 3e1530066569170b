"""Orthogonal matrices uniform in Haar's measure (Mezzadri 2007), and points of unit balls."""

from __future__ import annotations

from typing import Any

from numus.functions import api as nm
from numus.functions.creation.conversion import asarray
from numus.random._continuous import gamma
from numus.random._distributions import exponential
from numus.random._keys import split
from numus.random._sampling import bernoulli, normal
from numus.shapes import as_shape
from numus.tensor import Tensor


def haar(shape: Any, *, dtype: Any = None, key: Tensor | None = None) -> Tensor:
    """Matrices with orthonormal columns, or rows where those are fewer: shape is (…, m, n)."""
    from numus.linalg.factor.qr import qr

    *lead, m, n = as_shape(shape, "haar")
    q, r = qr(normal((*lead, max(m, n), min(m, n)), dtype=dtype, key=key))[:2]
    # signs that the factorisation chooses would not be uniform
    q = q * nm.expand_dims(nm.sign(nm.diagonal(r, axis1=-2, axis2=-1)), axis=-2)
    return q if m >= n else nm.matrix_transpose(q)


def signs(shape: Any, *, key: Tensor | None = None) -> Tensor:
    """1 or -1, each half of the time (Rademacher's distribution)."""
    return nm.where(bernoulli(0.5, shape, key=key), asarray(1), asarray(-1))


def ball(shape: Any, d: int, p: float = 2, *, dtype: Any = None, key: Any) -> Tensor:
    """Points in the unit ball of a p-norm (Barthe and others, 2005): vectors of d numbers."""
    first, second, third = split(key, 3)
    size = (*shape, d)
    g = gamma(size, 1 / p, dtype=dtype, key=first) ** (1 / p) * signs(size, key=second)
    e = exponential(shape, dtype=dtype, key=third)
    norm = (nm.sum(nm.abs(g) ** p, axis=-1) + e) ** (1 / p)
    return g / nm.expand_dims(norm, axis=-1)
