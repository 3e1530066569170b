"""Eigenvectors of triangular pencils, and their derivatives."""

from __future__ import annotations

from numus.functions._base import wrap
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.comparison import where
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat
from numus.linalg._base import stacked, unstacked
from numus.linalg.products import diagonal
from numus.primitives.linalg import spectral
from numus.tensor import Tensor


def unit_columns(v: Tensor) -> Tensor:
    """Columns of length 1."""
    v = v / maximum_of(abs(v), axis=-2, keepdims=True)
    return v / (abs(v) ** 2).sum(axis=-2, keepdims=True).sqrt()


def triangular_vectors(s: Tensor, t: Tensor, size: Tensor) -> Tensor:
    """Columns x_k with (t_kk s - s_kk t) x_k = 0 for upper triangular matrices; `size` is that of
    s and t, below whose rounding errors differences of eigenvalues do not fall."""
    least = (finfo(s.dtype).eps * where(size == 0, 1.0, size)).astype(s.dtype)
    nodes = (stacked(x)._node for x in (s, t, least))
    return unstacked(wrap(spectral.triangular_vectors(*nodes)), s.shape[:-2]).mT


def quasi_triangular_vectors(t: Tensor, z: Tensor) -> Tensor:
    """Columns of length 1: z times the eigenvectors of real quasi-triangular matrices with
    standardised blocks, those of `values_of_blocks`."""
    n = t.shape[-1]
    size = maximum_of(abs(t), axis=(-2, -1), keepdims=True)
    least = (finfo(t.dtype).eps * where(size == 0, 1.0, size)).astype(t.dtype)
    found = wrap(spectral.quasi_vectors(stacked(t)._node, stacked(least)._node))
    v = z @ unstacked(found, t.shape[:-2])
    real, imaginary = v[..., :n], v[..., n:]
    # some element of each column of `found` is about 1, and none far beyond: squares are safe
    factors = 1 / (real**2 + imaginary**2).sum(axis=-2, keepdims=True).sqrt()
    return real * factors + 1j * (imaginary * factors)


def eigen_tangent(packed: Tensor, inner: Tensor) -> Tensor:
    """That of values in a first row, vectors of length 1 below and a last row, from V⁻¹ dA V."""
    n = packed.shape[-1]
    values, vectors = packed[..., 0, :], packed[..., 1 : n + 1, :]
    gaps = values[..., None, :] - values[..., :, None]
    size = maximum_of(abs(values), axis=-1)[..., None, None]
    close = abs(gaps) <= 4 * finfo(gaps.dtype).eps * size
    turn = inner * where(close, 0.0, 1 / where(close, 1.0, gaps))
    moved = vectors @ turn
    along = (vectors.conj() * moved).sum(axis=-2, keepdims=True).real
    moved = moved - vectors * along
    return concat([diagonal(inner)[..., None, :], moved, packed[..., n + 1 :, :] * 0.0], axis=-2)
