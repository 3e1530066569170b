"""Products of matrices of bytes on tensor cores: float8 with a scale for each block of the axis
they sum over, integers with the codes of packed words.

They have no derivatives of their own: `numus.quant` differentiates the product that they stand for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.dtypes import DType, int32
from numus.graph import Array, Node, Nodes
from numus.kernels.matmul.packed import SCALED_BLOCK
from numus.primitives.base import nondifferentiable
from numus.primitives.structure import concat
from numus.primitives.views import reshape, take_range


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    parts = []
    for i in range(size):
        own = tuple(
            reshape(take_range(x, 0, i, i + 1), x.shape[1:]) if b else x
            for x, b in zip(inputs, batched, strict=True)
        )
        parts.append(reshape(scaled_matmul(own, node.dtype), (1, *node.shape)))
    return concat(tuple(parts), 0)


def _reference(node: Node, a: Array, a_scales: Array, b: Array, b_scales: Array) -> Array:
    n, k = b.shape

    def wide(x: Array, axis: int, count: int) -> Array:
        return np.repeat(x.astype(np.float64), SCALED_BLOCK, axis).take(range(count), axis)

    left = a.astype(np.float64) * wide(a_scales, 1, k)
    right = b.astype(np.float64) * wide(wide(b_scales, 1, k), 0, n)
    return (left @ right.T).astype(node.dtype.np)


_scaled_matmul = nondifferentiable("scaled_matmul", "scaled", _reference, _batch)


def scaled_matmul(operands: Nodes, dtype: DType) -> Node:
    """A times the transpose of B: (m, n), summed in float32.

    `operands`: A (m, k), its scales (m, blocks of k), B (n, k), and its scales (blocks of n, blocks
    of k). Scales are float32; a row of A or B is a multiple of 16 bytes.
    """
    shape = (operands[0].shape[0], operands[2].shape[0])
    return apply(_scaled_matmul, tuple(operands), None, shape, dtype)


def _codes_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    parts = []
    for i in range(size):
        own = (
            reshape(take_range(x, 0, i, i + 1), x.shape[1:]) if b else x
            for x, b in zip(inputs, batched, strict=True)
        )
        parts.append(reshape(code_matmul(*own), (1, *node.shape)))
    return concat(tuple(parts), 0)


def _codes_reference(node: Node, x: Array, words: Array) -> Array:
    codes = np.ascontiguousarray(words).astype("<u4").view(np.uint8)[:, : x.shape[1]]
    found: Array = (x.astype(np.int64) @ codes.astype(np.int64).T).astype(np.int32)
    return found


_code_matmul = nondifferentiable("code_matmul", "scaled", _codes_reference, _codes_batch)


def code_matmul(x: Node, words: Node) -> Node:
    """Signed bytes (m, k) times the transpose of unsigned ones, four to a word (n, words): (m, n),
    int32. k is a multiple of 16; a row of words may have more bytes.
    """
    return apply(_code_matmul, (x, words), None, (x.shape[0], words.shape[0]), int32)
