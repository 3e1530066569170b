"""Cosine transforms of types I to IV along the last axis, by real transforms, without scaling.

Types II and III are one real transform of the same length (Makhoul 1980), type I one of twice the
length. Type IV is a complex transform of half an even length; of an odd one it is a real transform
of permuted points (Chan and Ho 1990). Sine transforms are cosine transforms of reversed points
with alternating signs.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from numus import dtypes as dt
from numus.fft.tables import centred_roots, permutation, quarter_roots
from numus.fft.transform import (
    inverse_real_transform,
    real_parts,
    real_transform,
    scaled,
    transform,
)
from numus.functions.indexing.index_checks import take_axis
from numus.graph import Array, Node
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.runtime.devices import Device, default

_MIN_FUSED_LENGTH = 1 << 15


def _every_other(x: Node, start: int, count: int) -> Node:
    starts, steps = (0,) * (x.ndim - 1), (1,) * (x.ndim - 1)
    return views.slice_(x, (*starts, start), (*steps, 2), (*x.shape[:-1], count))


def _flip(x: Node) -> Node:
    return views.flip(x, (x.ndim - 1,))


def _range(x: Node, start: int, stop: int) -> Node:
    return views.take_range(x, x.ndim - 1, start, stop)


def _joined(*parts: Node) -> Node:
    return concat(tuple(p for p in parts if p.shape[-1]), parts[0].ndim - 1)


def _is_read_in_parts(n: int, device: Device) -> bool:
    return n >= _MIN_FUSED_LENGTH and device.runtime.target.simt


def _joined_input(first: Node, second: Node) -> Node:
    """Two parts one after another. On GPUs a long transform reads them itself, by a choice for each
    point; rows that stay in the cache are joined before. Lanes of a CPU would be loaded one by
    one (2^20 points took 20 ms, 11 with a pass that joins them)."""
    here, n = first.shape[-1], first.shape[-1] + second.shape[-1]
    if not _is_read_in_parts(n, first.device or default.device):
        return _joined(first, second)
    before = (0,) * (first.ndim - 1)
    wide = (
        views.pad(first, (*before, 0), (*before, n - here)),
        views.pad(second, (*before, here), (*before, 0)),
    )
    return ew.where(ew.lt(iota(n, dt.int64, first.device), _integer(here)), *wide)


def _interleaved(even: Node, odd: Node) -> Node:
    """even[0], odd[0], even[1], ...; there is one more of the even ones, or as many."""
    before, inner = (0,) * even.ndim, (*(0,) * (even.ndim - 1), 1)
    n = even.shape[-1] + odd.shape[-1]
    spread = [views.pad(x, before, before, inner) for x in (even, odd)]  # 2 m - 1 elements
    last = (0,) * (even.ndim - 1)
    wide = [
        views.pad(x, (*last, i), (*last, n - i - x.shape[-1]))
        for i, x in enumerate(spread)
        if x.shape[-1]
    ]
    if len(wide) == 1:
        return wide[0]
    parity = ew.eq(ew.and_(iota(n, dt.int64, even.device), constant(1, dt.int64)), _integer(0))
    return ew.where(parity, *wide)


def _integer(k: int) -> Node:
    return constant(k, dt.int64)


def alternated(x: Node) -> Node:
    """x times 1, -1, 1, ..."""
    k = iota(x.shape[-1], dt.int64, x.device)
    even = ew.eq(ew.and_(k, _integer(1)), _integer(0))
    return ew.where(even, x, ew.neg(x))


def _cosine1(x: Node) -> Node:
    n = x.shape[-1]
    mirrored = _joined_input(x, _flip(_range(x, 1, n - 1)))
    return ew.real(real_transform(mirrored))


def _cosine2(x: Node) -> Node:
    n = x.shape[-1]
    ordered = _joined_input(_every_other(x, 0, (n + 1) // 2), _flip(_every_other(x, 1, n // 2)))
    parts = real_parts(ordered)
    table, start = quarter_roots(n, parts[0].dtype, x.device), 0
    rotated = []
    for part in parts:
        end = start + part.shape[-1]
        rotated.append(scaled(ew.mul(part, views.take_range(table, 0, start, end)), 2))
        start = end
    if len(parts) == 3:  # without both ends
        rest = ew.imag(rotated[1])
    else:
        rest = _range(ew.imag(_joined(*rotated)), 1, (n - 1) // 2 + 1)
    return _joined(*(ew.real(part) for part in rotated), _flip(ew.neg(rest)))


def _cosine3(x: Node) -> Node:
    n = x.shape[-1]
    half = n // 2 + 1
    before = (0,) * (x.ndim - 1)
    front = _range(x, 0, half)
    back = views.pad(_flip(_range(x, n - half + 1, n)), (*before, 1), (*before, 0))
    rotation = quarter_roots(n, dt.complex_of(x.dtype), x.device)
    spectrum = ew.mul(ew.complex_(front, ew.neg(back)), ew.conj(rotation))
    ordered = inverse_real_transform(spectrum, n)
    even = (n + 1) // 2
    return _interleaved(_range(ordered, 0, even), _flip(_range(ordered, even, n)))


def _cosine4(x: Node) -> Node:
    n = x.shape[-1]
    if n % 2:
        return _odd_cosine4(x)
    half = n // 2
    pairs = ew.complex_(_every_other(x, 0, half), _flip(_every_other(x, 1, half)))
    rotation = centred_roots(n, pairs.dtype, x.device)
    z = scaled(ew.mul(transform(ew.mul(pairs, rotation), False), rotation), 2)
    return _interleaved(ew.real(z), _flip(ew.neg(ew.imag(z))))


def _odd_points(n: int) -> tuple[Array, Array]:
    """For each point k of an odd length the number a = 1 modulo 8 with cos(2 pi a b / 8n) =
    sign cos(2 pi (2 k + 1) b / 8n) for odd b, and the sign."""
    k = np.arange(n, dtype=np.int64)
    a = 2 * k + 1
    a = np.where(a % 4 == 3, -a, a)  # cosines are even, and negated half a period on
    far = a % 8 == 5
    return np.where(far, a + 4 * n, a) % (8 * n), np.where(far, -1, 1)


def _odd_sources(n: int) -> Array:
    """The point that is read at each position, as k, or as k - n where its sign is negative."""
    a, sign = _odd_points(n)
    at = np.empty(n, np.int64)
    at[a % n] = np.where(sign > 0, np.arange(n), np.arange(n) - n)
    return at


def _odd_frequencies(n: int) -> Array:
    """The frequency of each result, as j, or as j - n where its sign is negative."""
    b, sign = _odd_points(n)
    j = b % n * pow(8, -1, n) % n if n > 1 else b % n
    return np.where(sign > 0, j, j - n)


def _permuted(x: Node, name: str, make: Callable[[int], Array]) -> Node:
    """Points in the order of a table, whose negative entries change signs too."""
    n = x.shape[-1]
    table = permutation(name, n, x.device, make)
    negative = ew.lt(table, _integer(0))
    at = ew.where(negative, ew.add(table, _integer(n)), table)
    found = take_axis(x, at, x.ndim - 1)
    return ew.where(negative, ew.neg(found), found)


def _odd_cosine4(x: Node) -> Node:
    """With 1 / 8n = u / 8 + v / n modulo 1, cos(2 pi a b / 8n) of a, b = 1 modulo 8 is the real
    part of exp(2 pi i u / 8) exp(2 pi i v a b / n): a transform of n points."""
    n = x.shape[-1]
    spectrum = real_transform(_permuted(x, "dct4 points", _odd_sources))
    u = pow(n, -1, 8)
    real = scaled(ew.real(spectrum), 2 * math.cos(math.pi * u / 4))
    imaginary = scaled(ew.imag(spectrum), 2 * math.sin(math.pi * u / 4))
    front, back = ew.add(real, imaginary), ew.sub(real, imaginary)
    whole = _joined(front, _flip(_range(back, 1, n // 2 + 1)))
    return _permuted(whole, "dct4 frequencies", _odd_frequencies)


def _sine1(x: Node) -> Node:
    n = x.shape[-1]
    before = (0,) * (x.ndim - 1)
    first = views.pad(x, (*before, 1), (*before, 1))
    mirrored = _joined_input(first, ew.neg(_flip(x)))
    return ew.neg(_range(ew.imag(real_transform(mirrored)), 1, n + 1))


COSINE: dict[int, Callable[[Node], Node]] = {
    1: _cosine1,
    2: _cosine2,
    3: _cosine3,
    4: _cosine4,
}
SINE: dict[int, Callable[[Node], Node]] = {
    1: _sine1,
    2: lambda x: _flip(_cosine2(alternated(x))),
    3: lambda x: alternated(_cosine3(_flip(x))),
    4: lambda x: alternated(_cosine4(_flip(x))),
}
