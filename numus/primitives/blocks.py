"""Products with GGUF's blocks of bytes (`numus/kernels/matmul/blocks.py`), and their values.

They have no derivatives of their own: `numus.quant` differentiates the product that they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.dtypes import DType, float32, uint32
from numus.graph import Array, Node, Nodes
from numus.kernels.matmul.blocks import BYTES, LAYOUTS, BlockLayout, BlockPlanes, ByteCodes
from numus.primitives.base import nondifferentiable
from numus.primitives.structure import concat
from numus.primitives.views import reshape, take_range


def _item(x: Node, i: int) -> Node:
    return reshape(take_range(x, 0, i, i + 1), x.shape[1:])


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    vectors, rows = node.shape
    if not batched[1]:  # more vectors for the same matrix
        own = reshape(inputs[0], (size * vectors, inputs[0].shape[2]))
        return reshape(blocks_matmul(own, inputs[1], node.params), (size, vectors, rows))
    parts = []
    for i in range(size):
        x, blocks = (_item(x, i) if b else x for x, b in zip(inputs, batched, strict=True))
        parts.append(reshape(blocks_matmul(x, blocks, node.params), (1, vectors, rows)))
    return concat(tuple(parts), 0)


def _planes_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    (x,) = inputs
    out = block_planes(reshape(x, (x.shape[0] * x.shape[1], x.shape[2])), node.params)
    return reshape(out, (size, *node.shape))


def _planes_reference(node: Node, x: Array) -> Array:
    p: BlockPlanes = node.params
    layout, rows = p.layout, x.shape[0]
    count, runs, spans = x.shape[1] // layout.values, layout.words // layout.run, layout.spans
    top = np.max(np.abs(x), axis=1, keepdims=True, initial=0)
    limit = np.float32(127 << (8 * (p.planes - 1)))
    unit = np.where(top > 1e-30, top / limit, np.where(np.isnan(top), top, np.float32(1)))
    unit = unit.astype(np.float32)
    with np.errstate(invalid="ignore"):
        whole = np.rint(x * (np.float32(1) / unit)).astype(np.int32)
    split = whole.reshape(rows, count * runs, layout.fields, layout.run, 4)
    rest, digits = np.moveaxis(split, 2, 1), []  # fields, low words
    for _ in range(p.planes):
        digits.append(rest.astype(np.int8))
        rest = (rest + 128) >> 8
    words = np.ascontiguousarray(np.stack(digits[::-1], axis=1)).reshape(rows, -1)
    sums = split.reshape(rows, count, runs, layout.fields, layout.run // layout.span, -1).sum(-1)
    sums = np.transpose(sums, (0, 3, 2, 4, 1)).reshape(rows, layout.fields, spans, count)
    sums = sums.sum(1) if layout.joined else sums.reshape(rows, layout.groups, count)
    sums = np.tile(sums, (1, 1, -(-p.lanes // max(1, count))))[..., : p.lanes]
    floats = np.concatenate([sums.reshape(rows, -1), unit], axis=1).astype(np.float32)
    return np.concatenate([words.view(np.uint32), floats.view(np.uint32)], axis=1)


_block_planes = nondifferentiable("block_planes", "planes", _planes_reference, _planes_batch)


def block_planes(x: Node, planes: BlockPlanes) -> Node:
    """Activations (vectors, values of whole blocks), float32, as integers relative to the largest
    of their row, in the bytes that `blocks_matmul` reads: uint32 (vectors, words). CPUs only."""
    count = x.shape[1] // planes.layout.values
    return apply(_block_planes, (x,), planes, (x.shape[0], planes.size(count)), uint32)


class _Elements(np.ndarray):
    """Arrays that layouts read as they read expressions of the kernel IR."""

    def cast(self, dtype: DType) -> Array:
        return self.astype(dtype.np)

    def bitcast(self, dtype: DType) -> Array:
        return self.view(dtype.np)


class _Rows:
    """Codes, scales and offsets of all rows, by the layout of their blocks."""

    def __init__(self, layout: BlockLayout, blocks: Array) -> None:
        self.layout = layout
        self.count = blocks.shape[1] // layout.size  # blocks of a row
        self._bytes = blocks.astype(np.uint32)

    def _load(self, byte: Array) -> Array:
        found = self._bytes[:, byte]
        for i in range(1, 4):
            found = found | self._bytes[:, byte + i] << np.uint32(8 * i)
        return found.view(_Elements)

    def codes(self) -> Array:
        """(fields, rows, low words, 4)"""
        words = np.arange(self.count * self.layout.words).view(_Elements)
        found = [np.asarray(c) for c in self.layout.codes(self._load, words)]  # type: ignore[arg-type]
        bytes_ = np.ascontiguousarray(np.stack(found)).view(np.uint8)
        return bytes_.reshape(*bytes_.shape[:2], -1, 4)

    def scales(self) -> tuple[Array, Array]:
        """Scales and offsets (groups, rows, blocks)."""
        at = np.arange(self.count).view(_Elements)
        found, step = self.layout.scales(self._load, at)  # type: ignore[arg-type]
        scales, offsets = (np.asarray(np.stack(x), np.float64) for x in zip(*found, strict=True))
        return scales, offsets * np.asarray(step, np.float64)

    def spread(self, groups: Array) -> Array:
        """(groups, rows, blocks) to each low word of each field: (fields, rows, words)."""
        layout = self.layout
        fields = 1 if layout.joined else layout.fields
        wide = groups.reshape(fields, layout.spans, *groups.shape[1:])
        wide = np.moveaxis(wide, 1, -1).reshape(fields, groups.shape[1], -1)
        wide = np.repeat(wide, layout.span, axis=-1)
        return np.broadcast_to(wide, (layout.fields, *wide.shape[1:]))


def _reference(node: Node, x: Array, blocks: Array) -> Array:
    p: BlockPlanes = node.params
    layout, rows = p.layout, _Rows(p.layout, blocks)
    words, unit_at = p.words(rows.count), p.unit_word(rows.count)
    signed = np.ascontiguousarray(x[:, :words]).view(np.int8)
    signed = signed.reshape(x.shape[0], p.planes, layout.fields, -1, 4).astype(np.float64)
    x_sum, unit = (
        np.ascontiguousarray(part).view(np.float32)
        for part in (x[:, words:unit_at], x[:, unit_at:])
    )
    weights = 256.0 ** np.arange(p.planes)[::-1]
    scales, offsets = rows.scales()
    dots = np.einsum("fnwb,vpfwb,p->fvnw", rows.codes().astype(np.float64), signed, weights)
    out = np.einsum("fvnw,fnw->vn", dots, rows.spread(scales))
    sums = x_sum.reshape(x.shape[0], layout.groups, p.lanes)[..., : rows.count]
    out -= np.einsum("gnb,vgb->vn", offsets, sums.astype(np.float64))
    return (out * unit).astype(np.float32)


_blocks_matmul = nondifferentiable("blocks_matmul", "blocks", _reference, _batch)


def blocks_matmul(x: Node, blocks: Node, planes: BlockPlanes) -> Node:
    """Vectors times the rows of a matrix of blocks: (vectors, rows), float32. CPUs only.

    Inputs: what `block_planes` gives, for as many blocks as have their scales decoded at once;
    bytes (rows, blocks of a row * their size).
    """
    shape = (x.shape[0], blocks.shape[0])
    return apply(_blocks_matmul, (x, blocks), planes, shape, float32)


# -- values in memory -----------------------------------------------------------------------------


def _values_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    parts = [
        reshape(block_values(_item(inputs[0], i), node.params), (1, *node.shape))
        for i in range(size)
    ]
    return concat(tuple(parts), 0)


def _values_reference(node: Node, blocks: Array) -> Array:
    layout: BlockLayout = LAYOUTS[node.params]
    rows = _Rows(layout, blocks)
    scales, offsets = (rows.spread(x)[..., None] for x in rows.scales())
    values = rows.codes().astype(np.float64) * scales - offsets  # fields, rows, low words, 4
    split = values.reshape(*values.shape[:2], -1, layout.run, 4)
    out: Array = np.transpose(split, (1, 2, 0, 3, 4)).reshape(node.shape)
    return out.astype(np.float32)


_block_values = nondifferentiable("block_values", "unpack", _values_reference, _values_batch)


def block_values(blocks: Node, kind: str) -> Node:
    """The values of a matrix of blocks, bytes (rows, bytes), in memory: (rows, values), float32.
    Products of many rows read them often. CPUs only."""
    layout = LAYOUTS[kind]
    shape = (blocks.shape[0], blocks.shape[1] // layout.size * layout.values)
    return apply(_block_values, (blocks,), kind, shape, float32)


# -- products with many rows ----------------------------------------------------------------------


def _byte_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    parts = []
    for i in range(size):
        own = tuple(_item(x, i) if b else x for x, b in zip(inputs, batched, strict=True))
        out = byte_matmul(own, node.params)
        parts.append(reshape(out, (1, *out.shape)))
    return concat(tuple(parts), 0)


def _byte_codes(codes: ByteCodes, weights: Sequence[Array]) -> tuple[Array, Array, Array]:
    """Codes (rows, groups, words, 4), scales and offsets (rows, groups), in the kernel's order."""
    if not codes.kind:
        words, scales, offsets = weights
        fields = 8 // codes.bits
        mask = np.uint32(((1 << codes.bits) - 1) * BYTES)
        found = [(words >> np.uint32(codes.bits * f)) & mask for f in range(fields)]
        flat = np.ascontiguousarray(np.stack(found, axis=-1)).reshape(words.shape[0], -1)
        split = flat.view(np.uint8).reshape(words.shape[0], scales.shape[1], -1, 4)
        return split.astype(np.float64), scales.astype(np.float64), offsets.astype(np.float64)
    layout = codes.layout
    rows = _Rows(layout, weights[0])
    fields, count = layout.fields, layout.spans * rows.count
    split = rows.codes().reshape(fields, -1, count, layout.span, 4)
    split = np.moveaxis(split, 0, 2)  # rows, spans, fields, words, bytes
    split = split.reshape(split.shape[0], -1, layout.group_words, 4)
    found = []
    for x in rows.scales():
        own = x.reshape(1 if layout.joined else fields, layout.spans, *x.shape[1:])
        found.append(np.transpose(own, (2, 3, 1, 0)).reshape(x.shape[1], -1))
    return split.astype(np.float64), found[0], found[1]


def _byte_reference(node: Node, x: Array, x_sum: Array, unit: Array, *weights: Array) -> Array:
    codes, scales, offsets = _byte_codes(node.params, weights)
    panels, _, planes, rows = x.shape
    signed = np.ascontiguousarray(x).view(np.int8).reshape(*x.shape, 4).astype(np.float64)
    signed = np.einsum("twprb,p->trwb", signed, 256.0 ** np.arange(planes)[::-1])
    signed = signed.reshape(panels * rows, scales.shape[1], -1, 4)
    out = np.einsum("mgwb,ngwb,ng->mn", signed, codes, scales)
    sums = np.swapaxes(x_sum, 1, 2).reshape(panels * rows, -1).astype(np.float64)
    out = (out - sums @ offsets.T)[: unit.shape[0]]
    return (out * unit).astype(np.float32)


_byte_matmul = nondifferentiable("byte_matmul", "bytes", _byte_reference, _byte_batch)


def byte_matmul(inputs: tuple[Node, ...], codes: ByteCodes) -> Node:
    """Rows of integers times the rows of a matrix of codes: (m, n), float32. CPUs only.

    Inputs: uint32 (panels, words, planes, rows of a panel), four signed bytes each, the most
    significant plane first; float32 (panels, groups, rows), what the values of a group add up to;
    float32 (m, 1), what rows are multiples of; then blocks (n, bytes), or words of codes (n, words)
    with scales and offsets, float32 (n, groups).
    """
    shape = (inputs[2].shape[0], inputs[3].shape[0])
    return apply(_byte_matmul, inputs, codes, shape, float32)
