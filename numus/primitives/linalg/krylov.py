"""Products with the first vectors of a basis, of which there are as many as a tensor says.

A basis (batch, vectors, n) is filled while it is used, as Arnoldi's is: what comes after the first
`count` vectors is not read. Solutions are differentiated by the equation they solve, so neither has
a derivative of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.graph import Array, Node, Nodes
from numus.primitives.base import nondifferentiable
from numus.primitives.broadcast import batch_all
from numus.primitives.views import reshape


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    count, basis, *more = batch_all(inputs, batched, size)
    merged = [reshape(x, (size * x.shape[1], *x.shape[2:])) for x in (basis, *more)]
    counts = reshape(count, (size * count.shape[1],))
    shape = (size * node.shape[0], *node.shape[1:])
    out = apply(node.prim, (counts, *merged), None, shape, node.dtype)
    return reshape(out, (size, *node.shape))


def _products_reference(node: Node, count: Array, basis: Array, *others: Array) -> Array:
    out = np.zeros(node.shape, node.dtype.np)
    for b, k in enumerate(np.clip(count, 0, basis.shape[1])):
        for i, x in enumerate(others):
            with np.errstate(all="ignore"):
                out[b, i, :k] = basis[b, :k] @ x[b]
    return out


_products = nondifferentiable("basis_products", "sparse", _products_reference, _batch)


def basis_products(count: Node, basis: Node, *others: Node) -> Node:
    """Products of the first count[b] real vectors with some others (batch, n): (batch, others,
    vectors), zero for the rest. Each vector is read once for all others."""
    shape = (basis.shape[0], len(others), basis.shape[1])
    return apply(_products, (count, basis, *others), None, shape, basis.dtype)


def _remainder_reference(node: Node, count: Array, basis: Array, y: Array, x: Array) -> Array:
    out = x.copy()
    for b, k in enumerate(np.clip(count, 0, basis.shape[1])):
        with np.errstate(all="ignore"):
            out[b] -= y[b, :k] @ basis[b, :k]
    return out


_remainder = nondifferentiable("basis_remainder", "sparse", _remainder_reference, _batch)


def basis_remainder(count: Node, basis: Node, y: Node, x: Node) -> Node:
    """x (batch, n) without the sum of the first count[b] vectors times y (batch, vectors)."""
    return apply(_remainder, (count, basis, y, x), None, x.shape, x.dtype)
