"""Fourier transforms along the last axis, without scaling: of complex numbers, and of real ones."""

from __future__ import annotations

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives import elementwise as ew
from numus.primitives.base import unary_jvp
from numus.primitives.source import constant, iota


def _reference(node: Node, x: Array, roots: Array) -> Array:
    wide = x.astype(np.clongdouble)
    found = np.fft.ifft(wide, norm="forward") if node.params else np.fft.fft(wide)
    return found.astype(x.dtype)


# The transform is symmetric and its conjugate is the other direction: the adjoint of either is the
# other one.
_fft = Primitive(
    "fft",
    "fft",
    reference=_reference,
    vjp=lambda node, g: (fft(g, node.inputs[1], not node.params), None),
    jvp=unary_jvp(lambda node, t: fft(t, node.inputs[1], node.params)),
    batch=lambda node, xs, batched, size: fft(xs[0], node.inputs[1], node.params),
)


def fft(x: Node, roots: Node, inverse: bool = False) -> Node:
    """sum over j of x_j exp(-2 pi i j k / n), or with the other sign.

    `roots` is the table of n points for x's dtype, which is complex, and device
    (`kernels.fft.tables`). n has no prime factor above `kernels.fft.radices.MAX_PRIME`; on GPUs, or
    is short enough for a convolution in shared memory.
    """
    return apply(_fft, (x, roots), inverse, x.shape, x.dtype)


_fft2 = Primitive(
    "fft2",
    "fft",
    reference=lambda node, x, *roots: _reference_of_planes(node, x),
    vjp=lambda node, g: (_along_both(node, g, not node.params), None, None),
    jvp=unary_jvp(lambda node, t: _along_both(node, t, node.params)),
    batch=lambda node, xs, batched, size: _along_both(node, xs[0], node.params),
)


def _along_both(node: Node, x: Node, inverse: bool) -> Node:
    return fft2(x, node.inputs[1], node.inputs[2], inverse)


def _reference_of_planes(node: Node, x: Array) -> Array:
    wide = x.astype(np.clongdouble)
    found = np.fft.ifft2(wide, norm="forward") if node.params else np.fft.fft2(wide)
    return found.astype(x.dtype)


def fft2(x: Node, roots: Node, other_roots: Node, inverse: bool = False) -> Node:
    """`fft` along the last axis and the one before it, with a table of roots for each.

    CPUs alone have kernels for it.
    """
    return apply(_fft2, (x, roots, other_roots), inverse, x.shape, x.dtype)


def _real_reference(node: Node, x: Array, roots: Array, whole: Array) -> Array:
    found = np.fft.rfft(x.astype(np.longdouble))
    return found.astype(node.dtype.np)


def _real_adjoint(node: Node, g: Node) -> tuple[Node | None, ...]:
    return irfft(_ends_once(g, 0.5), *node.inputs[1:]), None, None


_rfft = Primitive(
    "rfft",
    "fft",
    reference=_real_reference,
    vjp=_real_adjoint,
    jvp=unary_jvp(lambda node, t: rfft(t, *node.inputs[1:])),
    batch=lambda node, xs, batched, size: rfft(xs[0], *node.inputs[1:]),
)

# The adjoint of each is the other one, but for the elements at the ends, which count once.
_irfft = Primitive(
    "irfft",
    "fft",
    reference=lambda node, x, roots, whole: np.fft.irfft(
        x.astype(np.clongdouble), node.shape[-1], norm="forward"
    ).astype(node.dtype.np),
    vjp=lambda node, g: (_ends_once(rfft(g, *node.inputs[1:]), 2), None, None),
    jvp=unary_jvp(lambda node, t: irfft(t, *node.inputs[1:])),
    batch=lambda node, xs, batched, size: irfft(xs[0], *node.inputs[1:]),
)


def _ends_once(x: Node, factor: float) -> Node:
    """Half a spectrum times a factor, but for both of its ends."""
    count, real = x.shape[-1], dt.real_of(x.dtype)
    k, one = iota(count, dt.int64, x.device), constant(1.0, real)
    last = ew.eq(k, constant(count - 1, dt.int64))
    end = ew.or_(ew.eq(k, constant(0, dt.int64)), last)
    by = ew.where(end, one, constant(factor, real))
    return ew.mul(x, ew.cast(by, x.dtype))


def irfft(x: Node, roots: Node, whole: Node) -> Node:
    """The n real numbers, times n, whose transform begins with the n / 2 + 1 elements of x, the
    imaginary parts of whose ends count for nothing. See `rfft`."""
    shape = (*x.shape[:-1], 2 * (x.shape[-1] - 1))
    return apply(_irfft, (x, roots, whole), None, shape, dt.real_of(x.dtype))


def rfft(x: Node, roots: Node, whole: Node) -> Node:
    """Elements 0 to n / 2 of the transform of n real numbers, n even.

    `roots` is the table of n / 2 points, of the complex dtype and x's device. `whole` begins with
    the n-th roots of unity, up to n / 2. GPUs have kernels for what fits shared memory twice.
    """
    shape = (*x.shape[:-1], x.shape[-1] // 2 + 1)
    return apply(_rfft, (x, roots, whole), None, shape, dt.complex_of(x.dtype))
