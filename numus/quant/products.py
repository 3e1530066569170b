"""Products with quantised weights: bytes of activations times packed codes, or tiles unpacked.

Activations of a few rows become integers of 16 or 24 bits, relative to the largest of their row, in
planes of bytes (as llama.cpp's Q8 activations, with two or three of them): the product is then one
of bytes (`numus/kernels/matmul/packed.py`), and reads the codes once. Many rows, and other formats,
are products whose operand is the expression of unpacking, which the compiler fuses.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.functions._base import wrap
from numus.functions.template_cache import templated
from numus.graph import Nodes
from numus.kernels.matmul.packed import Packing
from numus.primitives.custom import graft
from numus.primitives.packed import packed_gemv, packed_matmul
from numus.quant.integers import Integers
from numus.quant.packing import CHUNK
from numus.quant.q8 import Q8
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

MAX_VECTORS = 8  # rows of activations up to which a product is bound by the memory of the weights
PLANES = {nm.float32: 3}  # bytes of an activation; 2 of 16-bit floats


def packing_of(q: QTensor) -> Packing | None:
    """The packing of a matrix of codes, if its format is one of integers in words."""
    if q.ndim != 2 or not q.size:
        return None
    f = q.format
    if isinstance(f, Integers):
        values = CHUNK if f.bits == 3 else 32 // f.bits
        return Packing(f.bits, max(0, f.group) // values, f.symmetric << (f.bits - 1))
    if isinstance(f, Q8) and q.stored_shape[1] % f.block == 0:
        return Packing(8, f.block // 4, 128, header=True, signed=True)
    return None


def _planes(x: Tensor, packing: Packing, chunks: int, planes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as integers: bytes (rows, planes, fields, chunks), sums of chunks, and the unit."""
    short = chunks * packing.values - x.shape[1]
    largest = nm.max(nm.abs(x), axis=-1, keepdims=True)
    limit = float(127 << (8 * (planes - 1)))
    unit = nm.where(largest > 1e-30, largest / limit, nm.where(nm.isnan(largest), largest, 1.0))
    whole = nm.round(x / unit).astype(nm.int32)
    if short:
        whole = nm.pad(whole, [(0, 0), (0, short)])
    whole = whole.reshape(x.shape[0], chunks, packing.values)
    digits, rest = [], whole
    for _ in range(planes - 1):
        low = ((rest + 128) & 255) - 128  # balanced, so that each is a signed byte
        digits.append(low)
        rest = (rest - low) >> 8
    digits.append(rest)
    words = []
    for digit in reversed(digits):
        for s in packing.streams:
            own = (digit[..., s.first : s.first + 4 * s.fields] & 255).astype(nm.uint32)
            for f in range(s.fields):
                word = own[..., f]
                for i in range(1, 4):
                    word = word | (own[..., i * s.fields + f] << (8 * i))
                words.append(word[:, None, :])  # (rows, 1, chunks)
    stacked = nm.concat(words, axis=1) if len(words) > 1 else words[0]
    stacked = stacked.reshape(x.shape[0], planes, packing.fields, chunks)
    return stacked, nm.sum(whole, axis=-1).astype(nm.float32), unit


def _parts(x: Tensor, codes: Tensor, scales: Tensor | None, zeros: Tensor | None) -> Nodes:
    """The weights of a product; scales that are in the codes count as one."""
    if scales is None:
        scales = nm.ones((1, 1), dtype=nm.float32, device=x.device)
    return tuple(t._node for t in (codes, scales, zeros) if t is not None)


@templated
def _matvec(
    x: Tensor,
    codes: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    rows: int,
    bits: int,
    group: int,
    zero: int,
    header: bool,
) -> Tensor:
    """A few rows times the rows of codes; the last arguments are those of a `Packing`."""
    p = Packing(bits, group, zero, header, header)
    codes = codes.reshape(rows, codes.size // rows)
    width = codes.shape[1]
    chunks = width // (p.group * p.words + 1) * p.group if header else width // p.words
    words, sums, unit = _planes(x.astype(nm.float32, copy=False), p, chunks, PLANES.get(x.dtype, 2))
    parts = _parts(x, codes, scales, zeros)
    out = wrap(packed_matmul(words._node, sums._node, parts, p)) * unit
    return out.astype(x.dtype, copy=False)


def _reads_floats(x: Tensor, p: Packing) -> bool:
    """Whether an activation stays a vector of floats: on GPUs, where rounding it to bytes takes
    longer than the product, if each group of codes is a multiple of 16 bytes."""
    target = nm.device(x.device).runtime.target
    aligned = x.shape[-1] % (4 * p.values) == 0 and p.group % 4 == 0
    return target.subgroup_size > 0 and x.shape[0] == 1 and p.bits in (4, 8) and aligned


@templated
def _gemv(
    x: Tensor,
    codes: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    rows: int,
    bits: int,
    group: int,
    zero: int,
    header: bool,
) -> Tensor:
    """As `_matvec`, of floats."""
    p = Packing(bits, group, zero, header, header)
    codes = codes.reshape(1, rows, codes.size // rows)
    scales, zeros = (s if s is None else s.reshape(-1, s.shape[-1]) for s in (scales, zeros))
    parts = _parts(x, codes, scales, zeros)
    return wrap(packed_gemv(x.reshape(1, *x.shape)._node, parts, p))


def matmul(x: Any, q: QTensor) -> Tensor:
    """`x @ q`: the last axis of `x` times the last but one of a quantised matrix.

    It is differentiable with respect to `x`.

    >>> import numus as nm
    >>> q = nm.quant.quantize(nm.ones((4, 64)), "int8-row")
    >>> nm.quant.matmul(nm.ones((2, 64)), q.T)[0]
    tensor([64., 64., 64., 64.])
    """
    if not isinstance(q, QTensor):
        raise TypeError(f"quant.matmul: the second operand is a QTensor, not {type(q).__name__}")
    x = nm.asarray(x, device=q.device)
    if x.dtype.kind != "float" or x.dtype.itemsize == 1:
        raise DTypeError(f"quant.matmul takes float16, bfloat16, float32 or float64, not {x.dtype}")
    if q.ndim < 2 or x.ndim < 1 or x.shape[-1] != q.shape[-2]:
        raise ShapeError(
            f"quant.matmul: shapes {x.shape} and {q.shape} do not fit: the last axis of the first "
            "must be the last but one of the second, which q.T exchanges"
        )
    rows = x.size // max(1, x.shape[-1])
    few = 0 < rows <= MAX_VECTORS and x.dtype is not nm.float64
    p = packing_of(q) if few and q.axis == -2 else None
    if p is None:
        return nm.matmul(x, q.dequantize(x.dtype))
    flat = x.detach()
    flat = flat if x.ndim == 2 else flat.reshape(rows, x.shape[-1])
    codes, *rest = q.parts
    scales, zeros = (*rest, None, None)[:2]
    product = _gemv if _reads_floats(flat, p) else _matvec
    out = product(flat, codes, scales, zeros, q.shape[-1], p.bits, p.group, p.zero, p.header)
    out = out if x.ndim == 2 else out.reshape(*x.shape[:-1], q.shape[-1])
    if not x._node.tracked:
        return out
    return wrap(graft(out._node, nm.matmul(x, q.dequantize(x.dtype))._node))


QTensor.multiply = matmul
