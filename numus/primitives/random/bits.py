"""Counter-based random bits (Threefry, Salmon et al. 2011) and normals from bits (Box-Muller)."""

from __future__ import annotations

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.graph import Array, Node
from numus.primitives.base import nondifferentiable
from numus.primitives.elementwise import elementwise_batch
from numus.shapes import Shape
from numus.shapes import broadcast as broadcast_shapes

# -- threefry -------------------------------------------------------------------------------------


def _rotate(x: Array, by: int) -> Array:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def _threefry_reference(node: Node, k0: Array, k1: Array, c0: Array, c1: Array) -> Array:
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    rotations = ((13, 15, 26, 6), (17, 29, 16, 24))
    with np.errstate(over="ignore"):
        x0, x1 = c0 + k0, c1 + k1
        for block in range(5):
            for r in rotations[block % 2]:
                x0 = x0 + x1
                x1 = x0 ^ _rotate(x1, r)
            x0 = x0 + keys[(block + 1) % 3]
            x1 = x1 + keys[(block + 2) % 3] + np.uint32(block + 1)
    return x1 if node.params else x0


_threefry = nondifferentiable("threefry", "elementwise", _threefry_reference, elementwise_batch)


def threefry(k0: Node, k1: Node, c0: Node, c1: Node) -> tuple[Node, Node]:
    """Threefry-2x32 with 20 rounds: two random words per key and counter, all uint32."""
    inputs = (k0, k1, c0, c1)
    shape: Shape = ()
    for x in inputs:
        shape = broadcast_shapes(shape, x.shape, "threefry")
    return (
        apply(_threefry, inputs, 0, shape, dt.uint32),
        apply(_threefry, inputs, 1, shape, dt.uint32),
    )


# -- normal numbers -------------------------------------------------------------------------------


def _normal_reference(node: Node, x0: Array, x1: Array) -> Array:
    width = node.dtype.bits
    real, signed, word = node.dtype.np, np.dtype(f"int{width}"), x0.dtype.type
    unit = real.type(2.0 ** (1 - width))
    u = (x0 >> word(1)).view(signed).astype(real) * unit + unit / 2
    radius = np.sqrt(-2.0 * np.log(u)).astype(real)
    angle = (x1 << word(2)).view(signed).astype(real) * real.type(np.pi / 4) * unit
    along = np.where(x1 >> word(width - 1), -np.cos(angle), np.cos(angle))
    across = np.sin(angle)
    swap = (x1 >> word(width - 2)) & word(1) != 0
    if node.params:
        along, across = across, along
    return (radius * np.where(swap, across, along)).astype(real)


_normal = nondifferentiable("normal", "elementwise", _normal_reference, elementwise_batch)


def normal_pair(x0: Node, x1: Node) -> tuple[Node, Node]:
    """Two independent standard normals from two words (Box and Muller): float32 from uint32,
    float64 from uint64.
    """
    dtype = dt.float32 if x0.dtype is dt.uint32 else dt.float64
    shape = broadcast_shapes(x0.shape, x1.shape, "normal")
    return (apply(_normal, (x0, x1), 0, shape, dtype), apply(_normal, (x0, x1), 1, shape, dtype))
