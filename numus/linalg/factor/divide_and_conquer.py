"""Eigenproblems of real symmetric tridiagonal matrices by divide and conquer (Cuppen 1981), all
merges of a level at once.

Halves are the matrix less a rank-one term; the secular equation of their merge is solved by
rational interpolation, within bounds, for a root's distance to the nearest pole, and its vectors
are those of a nearby problem whose roots these are (Gu & Eisenstat 1995): they are orthogonal.
There is no deflation, for which shapes would depend on values: equal poles are moved apart by
rounding errors, and couplings are at least such.

Levels are iterations of one loop, whose code is compiled once: vectors are blocks along the
diagonal of a matrix of full order, and terms of other blocks are masked.
"""

from __future__ import annotations

from typing import NamedTuple

from numus import dtypes as dt
from numus.functions.creation.creation import arange, zeros
from numus.functions.creation.dtype_functions import finfo
from numus.functions.elementwise.arithmetic import copysign, maximum, minimum
from numus.functions.elementwise.comparison import where
from numus.functions.elementwise.transcendental import exp2, log2
from numus.functions.numeric.bits import bitcast
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.reduction.reductions import min as minimum_of
from numus.functions.reduction.reductions import prod
from numus.functions.shape.manipulation import broadcast_to
from numus.functions.shape.tiling import pad
from numus.linalg.factor.jacobi import symmetric_by_rotations
from numus.tensor import Tensor
from numus.transforms.control import scan, while_loop

LEAF = 32  # largest order of matrices that are not divided
# Eigenvalues are scaled to at most 1/2: differences of a rounding error of 1 are exact below 1.
BEYOND = 0.75  # those that fill up the last leaf

State = tuple[Tensor, Tensor]
PATIENCE = 12  # steps, before every second one bisects
MAX_STEPS = PATIENCE + 128  # half of them have bisected all bits then


class _Bracket(NamedTuple):
    """Of roots' distances to the nearest poles: bits of positive numbers, which are in order."""

    low: Tensor
    high: Tensor
    at: Tensor  # the next one to be tried
    done: Tensor
    number: Tensor  # of the step


class _Merge(NamedTuple):
    """Blocks of a level, pairs of halves: for each index below n."""

    first: Tensor  # of its pair
    is_upper: Tensor  # in the first half
    middle: Tensor  # the last index of that half
    is_last: Tensor  # of its pair
    same: Tensor  # (n, n): both in one pair


def _merge(first: Tensor, half: Tensor) -> _Merge:
    i = arange(first.shape[0], device=first.device)
    middle = first + half - 1
    same = first[:, None] == first
    return _Merge(first, i <= middle, middle, i == first + 2 * half - 1, same)


def eigh_tridiagonal(d: Tensor, e: Tensor) -> State:
    """Ascending eigenvalues (batch, n) and eigenvectors in columns, of diagonals (batch, n) and of
    subdiagonals (batch, n - 1)."""
    _, n = d.shape
    subdiagonal = abs(e)
    rows = abs(d) + pad(subdiagonal, ((0, 0), (0, 1))) + pad(subdiagonal, ((0, 0), (1, 0)))
    bound = maximum_of(rows, axis=-1, keepdims=True)
    scale = exp2(log2(where(bound > 0, bound, 1.0)).ceil() + 1)
    levels = max((-(-n // LEAF) - 1).bit_length(), 0)
    leaf = -(-n // (1 << levels))
    more = (leaf << levels) - n
    d = pad(d / scale, ((0, 0), (0, more)), constant_values=BEYOND)
    e = pad(e / scale, ((0, 0), (0, more + 1)))
    values, vectors = _leaves(d, e, leaf)
    if levels:
        halves = leaf * 2 ** arange(levels, device=d.device)
        pairs = 2 * halves[:, None]
        firsts = arange(n + more, device=d.device) // pairs * pairs  # divided here, not per term

        def merged(state: State, level: tuple[Tensor, Tensor]) -> tuple[State, None]:
            return _merged(*state, e, _merge(*level)), None

        (values, vectors), _ = scan(merged, (values, vectors), (firsts, halves))
    return values[:, :n] * where(bound > 0, scale, 0.0), vectors[:, :n, :n]


def _strength(coupling: Tensor) -> Tensor:
    """Of the rank-one term between two halves."""
    return maximum(abs(coupling), finfo(coupling.dtype).eps)


def _leaves(d: Tensor, subdiagonal: Tensor, leaf: int) -> State:
    """Spectra of blocks along the diagonal, without the terms that couple them."""
    batch, n = d.shape
    count = n // leaf
    index = arange(n, device=d.device)
    last = index % leaf == leaf - 1
    torn = where(last & (index < n - 1), _strength(subdiagonal), 0.0)
    d = d - torn - pad(torn[:, :-1], ((0, 0), (1, 0)))
    d, subdiagonal = (x.reshape((batch * count, leaf)) for x in (d, where(last, 0.0, subdiagonal)))
    i, j = arange(leaf, device=d.device)[:, None], arange(leaf, device=d.device)
    matrix = where(i == j, d[:, None, :], 0.0)
    matrix = matrix + where(i == j + 1, subdiagonal[:, None, :], 0.0)
    matrix = matrix + where(j == i + 1, subdiagonal[:, :, None], 0.0)
    values, vectors = symmetric_by_rotations(matrix)
    blocks = vectors.reshape((batch, count, leaf, 1, leaf))
    number = arange(count, device=d.device)
    blocks = where(number[:, None, None, None] == number[:, None], blocks, 0.0)
    return values.reshape((batch, n)), blocks.reshape((batch, n, n))


def _at(x: Tensor, index: Tensor) -> Tensor:
    return x.take_along_axis(broadcast_to(index, x.shape), axis=-1)


def _merged(values: Tensor, vectors: Tensor, e: Tensor, to: _Merge) -> State:
    """The spectra of pairs of blocks from those of their halves."""
    n = values.shape[-1]
    coupling = e.take(to.middle, axis=-1)
    row = where(to.is_upper, to.middle, to.middle + 1)
    row = broadcast_to(row, (vectors.shape[0], 1, n))
    z = vectors.take_along_axis(row, axis=-2)[:, 0] * 0.5**0.5
    z = where(to.is_upper | (coupling >= 0), z, -z)
    eps = finfo(z.dtype).eps
    z = where(z < 0, minimum(z, -eps), maximum(z, eps))
    order, place = _orders(values, to)
    poles = _apart(_at(values, order), to)
    origin, distance = _roots(poles, _at(z, order), 2 * _strength(coupling), to)
    own = _at(poles, place)
    gaps = (own[:, :, None] - origin[:, None, :]) - distance[:, None, :]  # of pole i and root j
    between = own[:, :, None] - poles[:, None, :]
    ratios = abs(gaps) / where(between == 0, 1.0, abs(between))
    weights = prod(where(to.same, ratios, 1.0), axis=-1).sqrt()
    weights = where(z < 0, -weights, weights)
    mixed = where(to.same, weights[:, :, None] / gaps, 0.0)
    mixed = mixed / maximum_of(abs(mixed), axis=-2, keepdims=True)
    mixed = mixed / (mixed * mixed).sum(axis=-2, keepdims=True).sqrt()
    return origin + distance, vectors @ mixed


def _orders(values: Tensor, to: _Merge) -> tuple[Tensor, Tensor]:
    """The indices of each pair's values as they ascend, and the place of each among them: counted,
    as keys of a sort would have to tell pairs apart."""
    i = arange(values.shape[-1], device=values.device)
    mine, other = values[:, :, None], values[:, None, :]
    before = (other < mine) | ((other == mine) & (i < i[:, None]))
    place = to.first + (to.same & before).astype("int64").sum(axis=-1)
    order = where(place[:, None, :] == i[:, None], i, 0).sum(axis=-1)
    return order, place


def _apart(poles: Tensor, to: _Merge) -> Tensor:
    """Ascending poles of each pair, at least a rounding error apart: half of those that are too
    close move up, half down."""
    i = arange(poles.shape[-1], device=poles.device)
    least = finfo(poles.dtype).eps * (i - to.first).astype(poles.dtype)
    near = (poles - least)[:, None, :]
    up = maximum_of(where(to.same & (i <= i[:, None]), near, float("-inf")), axis=-1)
    down = minimum_of(where(to.same & (i >= i[:, None]), near, float("inf")), axis=-1)
    return ((up + least) + (down + least)) / 2


def _roots(poles: Tensor, z: Tensor, strength: Tensor, to: _Merge) -> tuple[Tensor, Tensor]:
    """Of 1 + strength Σ z² / (pole - x): for each root the nearest pole, and what it is beyond."""
    squares = (z * z)[:, None, :]
    inverse = 1 / strength
    i = arange(poles.shape[-1], device=poles.device)
    before = maximum(i - 1, 0)
    after = _at(poles, where(to.is_last, i, i + 1))
    eps = finfo(z.dtype).eps
    total = where(to.same, squares, 0.0).sum(axis=-1)
    half = where(to.is_last, strength * total * (1 + 8 * eps), (after - poles) / 2)

    def gaps(origin: Tensor, distance: Tensor) -> Tensor:
        return (poles[:, None, :] - origin[:, :, None]) - distance[:, :, None]

    middle = inverse + where(to.same, squares / gaps(poles, half), 0.0).sum(axis=-1)
    is_left = to.is_last | (middle >= 0)
    nearest = where(is_left, i, i + 1)
    sign = where(is_left, 1.0, -1.0).astype(z.dtype)
    origin = where(is_left, poles, after)
    # the pole on the other side of a root, or of the last one the pole before
    other = where(is_left & ~to.is_last, after, where(is_left, _at(poles, before), poles))
    other = sign * (other - origin)
    own = _at(z * z, nearest)
    integer = dt.int32 if z.dtype.itemsize == 4 else dt.int64

    def narrowed(state: _Bracket) -> _Bracket:
        """By what g(t) = sign (1 / strength + Σ z² / (pole - x)) is at x = origin + sign t, which
        ascends from -∞ at 0: it is taken for c - r / t + s / (other - t), whose parts have the
        derivatives of the terms on either side (Li 1993)."""
        t = bitcast(state.at, z.dtype)
        inside_pair = to.same & (nearest[..., None] != i)
        share = where(inside_pair, 1 / gaps(origin, sign * t), 0.0)
        terms = squares * share
        rest, slopes = terms.sum(axis=-1), terms * share
        beyond = where(share * sign[..., None] > 0, slopes, 0.0).sum(axis=-1)
        before_it = slopes.sum(axis=-1) - beyond
        size = abs(inverse) + abs(terms).sum(axis=-1) + own / t
        value = sign * (inverse + rest) - own / t
        low, high = where(value < 0, state.at, state.low), where(value < 0, state.high, state.at)
        is_last = other < 0  # all poles are on one side: the second largest stands for the others
        # r is the origin's own term in every second step: some roots want the one, some the other
        fixed = is_last | (state.number % 2 == 1)
        r = own + where(fixed, 0.0, before_it * t * t)
        s = where(fixed, before_it + beyond, beyond) * (other - t) ** 2
        c = value + r / t - s / (other - t)
        b, d = r + c * other + s, r * other
        root = copysign(maximum(b * b - 4 * c * d, 0.0).sqrt(), b)
        found = where(is_last == (b >= 0), (b + root) / (2 * c), 2 * d / (b + root))
        guess = bitcast(found, integer)
        inside = (found > 0) & (guess > low) & (guess < high)
        bisects = ~inside | ((state.number >= PATIENCE) & (state.number % 4 < 2))
        guess = where(bisects, low + ((high - low) >> 1), guess)
        done = state.done | (abs(value) <= 8 * eps * size) | (high - low <= 1)
        at = where(done, state.at, guess)
        return _Bracket(low, high, at, done, state.number + 1)

    def again(state: _Bracket) -> Tensor:
        return ~state.done.all() & (state.number < MAX_STEPS)

    high = bitcast(half, integer)
    start = _Bracket(high * 0, high, high, half != half, zeros((), dtype="int32", device=z.device))
    found = while_loop(again, narrowed, start)
    return origin, sign * bitcast(found.at, z.dtype)
