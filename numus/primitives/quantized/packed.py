"""Products of activations, in planes of bytes or as floats, with packed codes
(`numus/kernels/matmul/packed.py`).

They have no derivatives of their own: `numus.quant` differentiates the product that they stand for.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.dtypes import DType, float32
from numus.graph import Array, Node, Nodes
from numus.kernels.matmul.packed import BYTES, Packing
from numus.primitives.base import nondifferentiable
from numus.primitives.structure import concat
from numus.primitives.views import reshape, take_range


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    vectors, rows = node.shape
    if not any(batched[3:]):  # more vectors for the same matrix
        own = tuple(reshape(x, (size * vectors, *x.shape[2:])) for x in inputs[:3])
        out = packed_matmul(own, inputs[3:], node.params)
        return reshape(out, (size, vectors, rows))

    def item(x: Node, i: int) -> Node:
        return reshape(take_range(x, 0, i, i + 1), x.shape[1:])

    parts = []
    for i in range(size):
        own = tuple(item(x, i) if b else x for x, b in zip(inputs, batched, strict=True))
        out = packed_matmul(own[:3], own[3:], node.params)
        parts.append(reshape(out, (1, vectors, rows)))
    return concat(tuple(parts), 0)


def _reference(
    node: Node, x: Array, x_sum: Array, unit: Array, codes: Array, scales: Array, *zeros: Array
) -> Array:
    p: Packing = node.params
    signed = np.ascontiguousarray(x).view(np.int8).reshape(*x.shape[:3], -1, 4).astype(np.float64)
    chunks = signed.shape[3]
    group = p.group or chunks
    groups = -(-chunks // group)
    rows = codes.shape[0]
    if p.header:
        blocks = codes.reshape(rows, groups, group * p.words + 1)
        scales = (blocks[..., 0] & 0xFFFF).astype(np.uint16).view(np.float16)
        codes = blocks[..., 1:].reshape(rows, -1)
    words = codes.reshape(rows, chunks, p.words) ^ np.uint32(128 * BYTES if p.signed else 0)
    fields = []
    for s in p.streams:
        for f in range(s.fields):
            masked = (words[..., s.word] >> np.uint32(s.width * f)) & np.uint32(
                ((1 << s.width) - 1) * BYTES
            )
            fields.append(masked << np.uint32(s.shift))
    unsigned = np.ascontiguousarray(np.stack(fields, 1)).view(np.uint8)  # (rows, F, 4 chunks)
    unsigned = unsigned.reshape(rows, p.fields, chunks, 4).astype(np.float64)
    weights = 256.0 ** np.arange(x.shape[1])[::-1]
    dots = np.einsum("nfcb,vpfcb,p->vnc", unsigned, signed, weights)

    def spread(v: Array) -> Array:
        wide = np.repeat(np.broadcast_to(v, (v.shape[0], groups)), group, axis=1)[:, :chunks]
        return wide.astype(np.float64)

    zero = spread(zeros[0]) if zeros else float(p.zero)
    sums = x_sum[:, None, :].astype(np.float64)
    out = (dots - zero * sums) * spread(scales)
    return out.sum(-1).astype(np.float32) * unit


_packed_matmul = nondifferentiable("packed_matmul", "packed", _reference, _batch)


def packed_matmul(vectors: Nodes, weights: Nodes, packing: Packing) -> Node:
    """Vectors times the rows of a matrix of codes: (vectors, rows), float32.

    `vectors`: uint32 (vectors, planes, fields, chunks), four signed bytes each, or on CPUs int8
    (vectors, planes, fields, bytes of chunks), the most significant plane first; float32 (vectors,
    chunks), what the values of a chunk add up to, or those of a group (vectors, groups) on CPUs;
    the unit (vectors, 1) of these integers.
    `weights`: codes (rows, words), scales (rows, groups) and perhaps zero points like them.
    """
    shape = (vectors[0].shape[0], weights[0].shape[0])
    return apply(_packed_matmul, (*vectors, *weights), packing, shape, float32)


def _gemv_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    vectors, rows = node.shape
    if not any(batched[1:]):  # more vectors for the same matrix
        x = reshape(inputs[0], (1, size * vectors, inputs[0].shape[3]))
        return reshape(packed_gemv(x, inputs[1:], node.params), (size, vectors, rows))
    parts = []
    for own in _items(inputs, batched, size):
        found = packed_gemv(own[0], tuple(own[1:]), node.params)
        parts.append(reshape(found, (1, vectors, rows)))
    return concat(tuple(parts), 0)


def _items(inputs: Nodes, batched: Sequence[bool], size: int) -> Iterator[list[Node]]:
    """The inputs of each element of a batch."""
    for i in range(size):
        yield [
            reshape(take_range(x, 0, i, i + 1), x.shape[1:]) if b else x
            for x, b in zip(inputs, batched, strict=True)
        ]


def _matrix(p: Packing, k: int, codes: Array, scales: Array, *zeros: Array) -> Array:
    """The values of a matrix of codes, (rows, k)."""
    rows, chunks = codes.shape[1], k // p.values
    group = p.group or chunks
    groups = -(-chunks // group)
    words = codes[0]
    if p.header:
        blocks = words.reshape(rows, groups, group + 1)
        scales = (blocks[..., 0] & 0xFFFF).astype(np.uint16).view(np.float16)
        words = blocks[..., 1:].reshape(rows, -1)
    words = words[:, :chunks] ^ np.uint32(128 * BYTES if p.signed else 0)
    shifts = np.arange(p.values, dtype=np.uint32) * np.uint32(p.bits)
    values = ((words[..., None] >> shifts) & np.uint32((1 << p.bits) - 1)).astype(np.float64)

    def spread(v: Array) -> Array:
        wide = np.repeat(np.broadcast_to(v, (rows, groups)), group, axis=1)[:, :chunks, None]
        return wide.astype(np.float64)

    zero = spread(zeros[0]) if zeros else float(p.zero)
    found: Array = ((values - zero) * spread(scales)).reshape(rows, -1)
    return found


def _gemv_reference(node: Node, x: Array, *weights: Array) -> Array:
    matrix = _matrix(node.params, x.shape[2], *weights)
    return (x[0].astype(np.float64) @ matrix.T).astype(x.dtype)


_packed_gemv = nondifferentiable("packed_gemv", "packed_gemv", _gemv_reference, _gemv_batch)


def packed_gemv(x: Node, weights: Nodes, packing: Packing) -> Node:
    """Vectors (1, vectors, k) of floats times the rows of a matrix of codes: (vectors, rows).

    `weights`: codes (1, rows, words), scales (rows or 1, groups) and perhaps zero points like them.
    """
    shape = (x.shape[1], weights[0].shape[1])
    return apply(_packed_gemv, (x, *weights), packing, shape, x.dtype)


def _unpack_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    parts = []
    for own in _items(inputs, batched, size):
        found = unpack(tuple(own), node.params, node.shape[1], node.dtype)
        parts.append(reshape(found, (1, *node.shape)))
    return concat(tuple(parts), 0)


def _unpack_reference(node: Node, *weights: Array) -> Array:
    codes, scales, *zeros = weights
    scales = np.ones_like(scales) if node.dtype.is_integer else scales
    values = _matrix(node.params, node.shape[1], codes, scales, *zeros)
    return values.astype(np.float32).astype(node.dtype.np)


_unpack = nondifferentiable("unpack", "unpack", _unpack_reference, _unpack_batch)


def unpack(weights: Nodes, packing: Packing, k: int, dtype: DType) -> Node:
    """The values of a matrix of codes, (rows, k), in memory: products of many rows read them often.

    `weights`: those of `packed_gemv`; `k` is a multiple of four words of values. As int8, values
    are not scaled, and have neither zero points of their own nor a header.
    """
    return apply(_unpack, tuple(weights), packing, (weights[0].shape[1], k), dtype)
