"""Eigenproblems of real symmetric tridiagonal matrices by divide and conquer (Cuppen 1981), all
merges of a level at once.

Halves are the matrix less a rank-one term; the secular equation of their merge is solved by
bisection on the bits of a root's distance to the nearest pole, and its vectors are those of a
nearby problem whose roots these are (Gu & Eisenstat 1995), so that they are orthogonal. There is no
deflation, for which shapes would depend on values: equal poles are moved apart by rounding errors,
and couplings are at least such.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.functions.creation.creation import arange
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import maximum, minimum
from numus.functions.elementwise.comparison import where
from numus.functions.elementwise.transcendental import exp2, log2
from numus.functions.numeric.bits import bitcast
from numus.functions.reduction.cumulative import cummax, cummin
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.reduction.reductions import prod
from numus.functions.shape.concatenation import concat
from numus.functions.shape.manipulation import flip
from numus.functions.shape.tiling import pad
from numus.linalg.factor.jacobi import symmetric_by_rotations
from numus.tensor import Tensor
from numus.transforms.control import fori_loop

LEAF = 32  # largest order of matrices that are not divided
# Eigenvalues are scaled to at most 1/2: differences of a rounding error of 1 are exact below 1.
BEYOND = 0.75  # those that fill up the last leaf


def eigh_tridiagonal(d: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues (batch, n) and eigenvectors in columns, of diagonals (batch, n) and of
    what is beside them (batch, n - 1)."""
    batch, n = d.shape
    beside = abs(e)
    rows = abs(d) + pad(beside, ((0, 0), (0, 1))) + pad(beside, ((0, 0), (1, 0)))
    bound = maximum_of(rows, axis=-1, keepdims=True)
    scale = exp2(log2(where(bound > 0, bound, 1.0)).ceil() + 1)
    levels = max((-(-n // LEAF) - 1).bit_length(), 0)
    leaf = -(-n // (1 << levels))
    more = (leaf << levels) - n
    d = pad(d / scale, ((0, 0), (0, more)), constant_values=BEYOND)
    e = pad(e / scale, ((0, 0), (0, more)))
    values, vectors = _leaves(d, e, leaf)
    for level in range(levels):
        half = leaf << level
        coupling = e[:, half - 1 :: 2 * half]
        values, vectors = _merged(values, vectors, coupling.reshape((-1, 1)))
    size = n + more
    values, vectors = values.reshape((batch, size)), vectors.reshape((batch, size, size))
    return values[:, :n] * where(bound > 0, scale, 0.0), vectors[:, :n, :n]


def _strength(coupling: Tensor) -> Tensor:
    """Of the rank-one term between two halves."""
    return maximum(abs(coupling), finfo(coupling.dtype).eps)


def _leaves(d: Tensor, e: Tensor, leaf: int) -> tuple[Tensor, Tensor]:
    """Spectra of (batch * count, leaf, leaf) matrices, without the terms that couple them."""
    batch, n = d.shape
    count = n // leaf
    beside = e if e.shape[1] == n else pad(e, ((0, 0), (0, n - e.shape[1])))
    last = arange(n, device=d.device) % leaf == leaf - 1
    torn = where(last & (arange(n, device=d.device) < n - 1), _strength(beside), 0.0)
    d = d - torn - pad(torn[:, :-1], ((0, 0), (1, 0)))
    d, beside = (x.reshape((batch * count, leaf)) for x in (d, where(last, 0.0, beside)))
    i, j = arange(leaf, device=d.device)[:, None], arange(leaf, device=d.device)
    matrix = where(i == j, d[:, None, :], 0.0)
    matrix = matrix + where(i == j + 1, beside[:, None, :], 0.0)
    matrix = matrix + where(j == i + 1, beside[:, :, None], 0.0)
    return symmetric_by_rotations(matrix)


def _merged(values: Tensor, vectors: Tensor, coupling: Tensor) -> tuple[Tensor, Tensor]:
    """Pairs of neighbours (2 batch, s) and (2 batch, s, s) as spectra of twice the order."""
    s = values.shape[-1]
    pairs = vectors.reshape((-1, 2, s, s))
    upper, lower = pairs[:, 0], pairs[:, 1]
    poles = values.reshape((-1, 2 * s))
    sign = where(coupling < 0, -1.0, 1.0)
    z = concat([upper[:, -1], sign * lower[:, 0]], axis=-1) * 0.5**0.5
    eps = finfo(z.dtype).eps
    z = where(z < 0, minimum(z, -eps), maximum(z, eps))
    strength = 2 * _strength(coupling)
    order = poles.argsort(axis=-1)
    place = order.argsort(axis=-1)
    poles = _apart(poles.take_along_axis(order, axis=-1))
    origin, distance = _roots(poles, z.take_along_axis(order, axis=-1), strength)
    own = poles.take_along_axis(place, axis=-1)
    gaps = (own[:, :, None] - origin[:, None, :]) - distance[:, None, :]  # of pole i and root j
    between = own[:, :, None] - poles[:, None, :]
    ratios = abs(gaps) / where(between == 0, 1.0, abs(between))
    weights = prod(ratios, axis=-1).sqrt()
    weights = where(z < 0, -weights, weights)
    mixed = weights[:, :, None] / gaps
    mixed = mixed / maximum_of(abs(mixed), axis=-2, keepdims=True)
    mixed = mixed / (mixed * mixed).sum(axis=-2, keepdims=True).sqrt()
    vectors = concat([upper @ mixed[:, :s], lower @ mixed[:, s:]], axis=-2)
    return origin + distance, vectors


def _apart(poles: Tensor) -> Tensor:
    """Ascending poles, at least a rounding error apart: half of those that are too close move up,
    half down."""
    least = finfo(poles.dtype).eps * arange(poles.shape[-1], device=poles.device)
    least = least.astype(poles.dtype)
    up = cummax(poles - least, axis=-1) + least
    down = flip(cummin(flip(poles - least, axis=-1), axis=-1), axis=-1) + least
    return (up + down) / 2


def _roots(poles: Tensor, z: Tensor, strength: Tensor) -> tuple[Tensor, Tensor]:
    """Of 1 + strength Σ z² / (pole - x): for each root the nearest pole, and what it is beyond."""
    squares = (z * z)[:, None, :]
    inverse = 1 / strength
    after = concat([poles[:, 1:], poles[:, -1:]], axis=-1)
    last = arange(poles.shape[-1], device=poles.device) == poles.shape[-1] - 1
    eps = finfo(z.dtype).eps
    reach = strength * squares.sum(axis=-1) * (1 + 8 * eps)
    half = where(last, reach, (after - poles) / 2)

    def secular(origin: Tensor, distance: Tensor) -> Tensor:
        gaps = (poles[:, None, :] - origin[:, :, None]) - distance[:, :, None]
        return inverse + (squares / gaps).sum(axis=-1)

    is_left = last | (secular(poles, half) >= 0)
    origin = where(is_left, poles, after)
    sign = where(is_left, 1.0, -1.0).astype(z.dtype)
    integer = dt.int32 if z.dtype.itemsize == 4 else dt.int64
    high = bitcast(half, integer)

    def narrowed(_: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        low, high = state
        middle = low + (high - low) // 2
        beyond = secular(origin, sign * bitcast(middle, z.dtype)) * sign < 0
        return where(beyond, middle, low), where(beyond, high, middle)

    steps = 8 * z.dtype.itemsize - 1
    _, high = fori_loop(0, steps, narrowed, (high * 0, high))
    return origin, sign * bitcast(high, z.dtype)
