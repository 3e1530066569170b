"""Complex and real transforms along the last axis, of any length, without scaling."""

from __future__ import annotations

from numus import dtypes as dt
from numus.dtypes import DType
from numus.fft.tables import chirp, chirp_spectrum, half_roots, roots
from numus.functions.shape.tiling import cycle
from numus.graph import Node
from numus.kernels.fft.chirp import chirp_length
from numus.kernels.fft.radices import is_mixed_radix
from numus.kernels.fft.tables import TUNING, is_chirp_in_block, is_real_in_block, layout
from numus.primitives import elementwise as ew
from numus.primitives import views
from numus.primitives.broadcast import broadcast
from numus.primitives.fft import fft, fft2, irfft, rfft
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.runtime.devices import Device, default

PLANE_SHARE = 2  # of a core's L2 cache, of which a plane takes one at most
PLANES_PER_CORE = 4  # at least: they are shared out evenly


def resized(x: Node, n: int) -> Node:
    """The last axis cut off, or continued by zeros, to n elements."""
    have = x.shape[-1]
    if n < have:
        return views.take_range(x, x.ndim - 1, 0, n)
    before = (0,) * x.ndim
    return views.pad(x, before, (*before[:-1], n - have))


def transform(x: Node, inverse: bool) -> Node:
    """The sum over j of x_j exp(-2 pi i j k / n), with the other sign for the inverse."""
    n = x.shape[-1]
    if n == 1 or 0 in x.shape:
        return x
    device = x.device or default.device
    target = device.runtime.target
    if is_mixed_radix(n, target.simt) or is_chirp_in_block(n, x.dtype, target):
        return fft(x, roots(n, x.dtype, x.device), inverse)
    if inverse:
        return ew.conj(_bluestein(ew.conj(x), n))
    return _bluestein(x, n)


def are_planes(x: Node, rows: int, columns: int, count: int) -> bool:
    """`count` planes of this size are best transformed along both axes at once: on CPUs, where each
    fits the cache of a core, and where there are enough of them for all cores."""
    target = (x.device or default.device).runtime.target
    if target.simt or min(rows, columns, count) < 2 or 0 in x.shape:
        return False
    fits = PLANE_SHARE * rows * columns * x.dtype.itemsize <= target.l2_bytes
    enough = count >= PLANES_PER_CORE * target.num_cores
    return fits and enough and is_mixed_radix(rows) and is_mixed_radix(columns)


def transform_planes(x: Node, inverse: bool) -> Node:
    """As `transform`, along both of the last axes."""
    rows, columns = (roots(n, x.dtype, x.device) for n in x.shape[-2:])
    return fft2(x, columns, rows, inverse)


def _bluestein(x: Node, n: int) -> Node:
    """A transform as the convolution with a chirp, for lengths with large prime factors: with
    j k = (j^2 + k^2 - (k - j)^2) / 2, the sum over j is one over k - j (Bluestein 1970)."""
    m = chirp_length(n)
    factor = chirp(n, x.dtype, x.device)
    table = roots(m, x.dtype, x.device)
    spectrum = fft(resized(ew.mul(x, factor), m), table)
    product = ew.mul(spectrum, chirp_spectrum(n, x.dtype, x.device))
    return ew.mul(resized(fft(product, table, True), n), factor)


def _reversed(z: Node, count: int) -> Node:
    """z at -k for k < count, along a periodic last axis."""
    axis = z.ndim - 1
    return cycle(views.flip(z, (axis,)), axis, z.shape[-1] - 1, count)


def _is_one_pass(half: int, x: Node) -> bool:
    """The transform of half the length is in the cache of a CPU's core, or the shared memory of a
    GPU's block, where it is packed or unpacked."""
    dtype, target = dt.complex_of(x.dtype), (x.device or default.device).runtime.target
    if target.simt:
        return is_real_in_block(half, dtype, target)
    if half == 1 or not is_mixed_radix(half):
        return False
    return half <= TUNING.max_length_real or layout(half, dtype, target).first_radix > 0


def _real_tables(n: int, dtype: DType, device: Device | None) -> tuple[Node, Node]:
    """Of transforms of n real numbers: of half the length, and of the rotations."""
    target = (device or default.device).runtime.target
    whole = half_roots if target.simt else roots
    return roots(n // 2, dtype, device), whole(n, dtype, device)


def real_transform(x: Node) -> Node:
    """The first n // 2 + 1 elements of the transform of a real node; the rest are conjugates."""
    parts = real_parts(x)
    return concat(parts, x.ndim - 1) if len(parts) > 1 else parts[0]


def real_parts(x: Node) -> tuple[Node, ...]:
    """`real_transform` in parts, which follow each other along the last axis.

    An even length is packed into a complex one of half: the transforms of even and odd elements are
    the Hermitian and anti-Hermitian parts of the result. A periodic index of it would be a division
    for every element and no vector load on CPUs: there, both ends are parts of their own.
    """
    n, dtype = x.shape[-1], dt.complex_of(x.dtype)
    count, half = n // 2 + 1, n // 2
    if n % 2 or 0 in x.shape:
        return (resized(transform(ew.cast(x, dtype), False), count),)
    if _is_one_pass(half, x):
        return (rfft(x, *_real_tables(n, dtype, x.device)),)
    pairs = views.reshape(x, (*x.shape[:-1], half, 2))
    even, odd = (
        views.reshape(views.take_range(pairs, x.ndim, i, i + 1), (*x.shape[:-1], half))
        for i in (0, 1)
    )
    z = transform(ew.complex_(even, odd), False)
    axis, table = z.ndim - 1, half_roots(n, dtype, z.device)
    if (x.device or default.device).runtime.target.simt:
        return (_unpacked(cycle(z, axis, 0, count), _reversed(z, count), table),)
    first = views.take_range(z, axis, 0, 1)
    middle = views.take_range(z, axis, 1, half)
    inner = _unpacked(middle, views.flip(middle, (axis,)), views.take_range(table, 0, 1, half))
    ends = (op(ew.real(first), ew.imag(first)) for op in (ew.add, ew.sub))
    left, right = (ew.cast(end, dtype) for end in ends)
    return (left, inner, right) if half > 1 else (left, right)


def _unpacked(forward: Node, back: Node, rotations: Node) -> Node:
    """Elements of the transform of a real signal, from those of half the length at k and -k."""
    back = ew.conj(back)
    sums, differences = ew.add(forward, back), ew.sub(forward, back)
    by_minus_i = ew.complex_(ew.imag(differences), ew.neg(ew.real(differences)))
    return scaled(ew.add(sums, ew.mul(by_minus_i, rotations)), 0.5)


def _real_ends(x: Node, n: int) -> Node:
    """A half spectrum whose elements 0 and n / 2 are taken as real: they are of a real signal."""
    k = iota(x.shape[-1], dt.int64, x.device)
    zero = constant(0, dt.int64)
    end = ew.eq(k, zero)
    if n % 2 == 0:
        end = ew.or_(end, ew.eq(k, constant(n // 2, dt.int64)))
    part = ew.real(x)
    return ew.where(end, ew.cast(part, x.dtype), x)


def inverse_real_transform(x: Node, n: int) -> Node:
    """The n real elements whose transform begins with the n // 2 + 1 elements of x."""
    half, dtype, axis = n // 2, x.dtype, x.ndim - 1
    if n % 2 == 0 and 0 not in x.shape and _is_one_pass(half, x):
        return irfft(x, *_real_tables(n, dtype, x.device))
    x = _real_ends(x, n)
    if n % 2 or 0 in x.shape:
        whole = _hermitian(x, n)
        return ew.real(transform(whole, True))
    front = views.take_range(x, axis, 0, half)
    back = ew.conj(views.flip(views.take_range(x, axis, 1, half + 1), (axis,)))
    sums, differences = ew.add(front, back), ew.sub(front, back)
    table = views.take_range(half_roots(n, dtype, x.device), 0, 0, half)
    rotated = ew.mul(differences, ew.conj(table))
    z = transform(ew.add(sums, ew.mul(rotated, constant(1j, dtype))), True)
    pairs = broadcast(views.reshape(z, (*z.shape, 1)), (*z.shape, 2))
    first = ew.eq(iota(2, dt.int64, x.device), constant(0, dt.int64))
    parts = ew.where(first, ew.real(pairs), ew.imag(pairs))
    return views.reshape(parts, (*x.shape[:-1], n))


def _hermitian(x: Node, n: int) -> Node:
    """All n elements of a spectrum from the first n // 2 + 1."""
    count = x.shape[-1]
    k = iota(n, dt.int64, x.device)
    first = ew.lt(k, constant(count, dt.int64))
    front = resized(x, n)
    rest = views.flip(views.take_range(x, x.ndim - 1, 1, n - count + 1), (x.ndim - 1,))
    before = (0,) * (x.ndim - 1)
    back = views.pad(ew.conj(rest), (*before, count), (*before, 0))
    return ew.where(first, front, back)


def complex_input(x: Node) -> Node:
    """x in the complex dtype that its transform is computed in."""
    return ew.cast(x, dt.complex_of(x.dtype) if x.dtype.is_inexact else dt.default_complex)


def real_input(x: Node) -> Node:
    """A real x in the dtype that its transform is computed in."""
    return ew.cast(x, dt.float64 if x.dtype is dt.float64 else dt.float32)


def scaled(x: Node, factor: float) -> Node:
    """x times a real number, part by part: infinities meet no zero."""
    if factor == 1:
        return x
    if not x.dtype.is_complex:
        return ew.mul(x, constant(factor, x.dtype))
    by = constant(factor, dt.real_of(x.dtype))
    return ew.complex_(ew.mul(ew.real(x), by), ew.mul(ew.imag(x), by))
