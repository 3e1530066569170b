"""Products with GGUF's blocks: bytes of activations in the order in which codes are read."""

from __future__ import annotations

import numus as nm
from numus.functions._base import wrap
from numus.functions.template_cache import templated
from numus.kernels.matmul.blocks import LAYOUTS, BlockLayout, BlockPlanes, ByteCodes
from numus.kernels.matmul.cpu.blocks import decoded_rows, side_by_side, whole_vectors
from numus.primitives.blocks import block_planes, block_values, blocks_matmul, byte_matmul
from numus.quant.digits import byte_planes, words_of_bytes
from numus.tensor import Tensor

MAX_STORED_VALUES = 1 << 25  # of weights as float32: 128 MiB


@templated
def matvec(x: Tensor, blocks: Tensor, kind: str, planes: int, width: int) -> Tensor:
    """A few rows times the rows of a matrix of blocks; `width`: words of a vector."""
    layout = LAYOUTS[kind]
    count = blocks.shape[1] // layout.size
    own, short = x.astype(nm.float32, copy=False), count * layout.values - x.shape[1]
    own = nm.pad(own, [(0, 0), (0, short)]) if short else own
    lanes = whole_vectors(count * decoded_rows(count, side_by_side(layout), width), width)
    how = BlockPlanes(kind, planes, lanes)
    out = wrap(blocks_matmul(block_planes(own._node, how), blocks._node, how))
    return out.astype(x.dtype, copy=False)


def _whole_panels(x: Tensor, rows: int) -> Tensor:
    """Rows of zeros added, so that panels of `rows` are full; float32."""
    x, short = x.astype(nm.float32, copy=False), -x.shape[0] % rows
    return nm.pad(x, [(0, short), (0, 0)]) if short else x


def _panels(words: Tensor, rows: int) -> Tensor:
    """(m, planes, words) in panels of a few rows: (panels, words, planes, rows)."""
    m, planes, count = words.shape
    return nm.permute_dims(words.reshape(m // rows, rows, planes, count), (0, 3, 2, 1))


def _panel_sums(sums: Tensor, rows: int) -> Tensor:
    """(m, groups) as (panels, groups, rows), float32."""
    return _panels(sums[:, None], rows)[:, :, 0].astype(nm.float32)


@templated
def block_gemm(x: Tensor, blocks: Tensor, kind: str, planes: int, rows: int) -> Tensor:
    """Many rows times the rows of a matrix of blocks, in panels of `rows`."""
    layout = LAYOUTS[kind]
    width = blocks.shape[1] // layout.size * layout.values
    digits, whole, unit = byte_planes(_whole_panels(x, rows), width, planes)
    words = nm.stack([_group_order(words_of_bytes(d), layout) for d in digits], axis=1)
    size = 4 * layout.group_words
    groups = _group_order(whole, layout, 4).reshape(whole.shape[0], width // size, size)
    sums = _panel_sums(nm.sum(groups, axis=-1, dtype=nm.int32), rows)
    inputs = (_panels(words, rows)._node, sums._node, unit[: x.shape[0]]._node, blocks._node)
    return wrap(byte_matmul(inputs, ByteCodes(kind))).astype(x.dtype, copy=False)


@templated
def float_gemm(x: Tensor, blocks: Tensor, kind: str) -> Tensor:
    """Many rows times the values of blocks, which a kernel stores as float32: some rows of the
    matrix at a time, so that they take a bounded memory."""
    layout = LAYOUTS[kind]
    rows, width = blocks.shape[0], blocks.shape[1] // layout.size * layout.values
    own = x.astype(nm.float32, copy=False)
    parts = max(1, -(-rows * width // MAX_STORED_VALUES))
    step = max(1, -(-rows // parts))
    found = []
    for start in range(0, max(1, rows), step):
        some = blocks[start : start + step] if parts > 1 else blocks
        values = wrap(block_values(some._node, kind))
        found.append(own @ values[:, : x.shape[1]].T)
    out = nm.concat(found, axis=1) if parts > 1 else found[0]
    return out.astype(x.dtype, copy=False)


def _group_order(words: Tensor, layout: BlockLayout, size: int = 1) -> Tensor:
    """The words of rows, or values of `size` to a word, with those of a group side by side."""
    m, count = words.shape[0], words.shape[-1]
    spans = layout.run // layout.span
    shape = (
        m,
        count // (size * layout.fields * layout.run),
        layout.fields,
        spans,
        layout.span * size,
    )
    return nm.permute_dims(words.reshape(shape), (0, 1, 3, 2, 4)).reshape(m, count)


@templated
def integer_gemm(
    x: Tensor,
    codes: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bits: int,
    group: int,
    zero: int,
    planes: int,
    rows: int,
) -> Tensor:
    """Many rows times the rows of a matrix of integers; `group`: values of a scale, 0: a row."""
    n, fields = codes.shape[0], 8 // bits
    width = codes.shape[1] * 32 // bits
    digits, whole, unit = byte_planes(_whole_panels(x, rows), width, planes)
    m = whole.shape[0]

    def in_fields(values: Tensor) -> Tensor:
        split = values.reshape(m, width // (4 * fields), 4, fields)
        return nm.matrix_transpose(split).reshape(m, width)

    words = nm.stack([words_of_bytes(in_fields(d)) for d in digits], axis=1)
    count = width // group if group else 1
    sums = nm.sum(whole.reshape(m, count, width // count), axis=-1, dtype=nm.int32)
    scales = nm.broadcast_to(scales.astype(nm.float32, copy=False), (n, count))
    offsets = scales * (zero if zeros is None else zeros.astype(nm.float32))
    own = (_panels(words, rows), _panel_sums(sums, rows), unit[: x.shape[0]])
    inputs = (*own, codes, scales, offsets)
    how = ByteCodes(bits=bits, group_words=group // 4)
    return wrap(byte_matmul(tuple(t._node for t in inputs), how)).astype(x.dtype, copy=False)
