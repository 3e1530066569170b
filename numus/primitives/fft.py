"""Fourier transforms along the last axis, without scaling."""

from __future__ import annotations

import numpy as np

from numus.dispatch.apply import apply
from numus.graph import Array, Node, Primitive
from numus.primitives.base import unary_jvp


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

    `roots` is the table of n points for x's dtype, which is complex, and device: it begins with the
    n roots of unity exp(-2 pi i k / n) (`kernels.fft.tables`). n has no prime factor above
    `kernels.fft.radices.MAX_PRIME`.
    """
    return apply(_fft, (x, roots), inverse, x.shape, x.dtype)
