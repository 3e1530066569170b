"""Products with quantised weights: bytes of activations times packed codes, or tiles unpacked.

Activations become integers of 16 or 24 bits, relative to the largest of their row, in planes of
bytes (as llama.cpp's Q8 activations, with two or three of them): the product is then one of bytes
(`numus/kernels/matmul/packed.py`, `blocks.py`), and reads the codes once. Formats that no such
kernel reads are products whose operand is the expression of unpacking, which the compiler fuses.
"""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.dtypes import DType
from numus.errors import DTypeError, ShapeError
from numus.functions._base import wrap
from numus.functions.template_cache import templated
from numus.graph import Nodes
from numus.kernels.matmul.blocks import LAYOUTS
from numus.kernels.matmul.cpu.byte_gemm import is_faster_as_floats, tile_rows
from numus.kernels.matmul.packed import MMA_TUNING, SCALED_BLOCK, Packing, has_mma
from numus.primitives.custom import graft
from numus.primitives.quantized.packed import packed_gemv, packed_matmul, unpack
from numus.primitives.quantized.scaled_matmul import code_matmul, scaled_matmul
from numus.quant import block_products
from numus.quant.digits import byte_planes, every, words_of_bytes
from numus.quant.floats import LARGEST, BlockFP8
from numus.quant.formats import grouped, safe_reciprocal, ungrouped
from numus.quant.gguf_blocks import Blocks
from numus.quant.integers import Integers
from numus.quant.packing import CHUNK
from numus.quant.q8 import Q8
from numus.quant.qtensor import QTensor
from numus.tensor import Tensor

MAX_VECTORS = 8  # rows of activations up to which a product is bound by the memory of the weights
PLANES = {nm.float32: 3}  # bytes of an activation; 2 of 16-bit floats
MAX_INT32_COLUMNS = 1 << 16  # whose products of bytes add up to an int32
MMA_MIN_EXTENT = 16  # of a product on tensor cores
FP8_ROW_BYTES = 16  # of which tensor cores take multiples


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
    """Rows as integers: words (rows, planes, fields, chunks) of four bytes, sums of chunks, and the
    unit. CPUs read words of bytes, (rows, planes, fields, bytes), and sums of groups."""
    digits, whole, unit = byte_planes(x, chunks * packing.values, planes)
    as_bytes = nm.device(x.device).runtime.target.language == "llvm"
    parts = []
    for digit in digits:
        split = digit.reshape(x.shape[0], chunks, packing.values)
        for s in packing.streams:
            own = split[..., s.first : s.first + 4 * s.fields].reshape(x.shape[0], -1)
            for field in every(own, s.fields):
                found = field.astype(nm.int8) if as_bytes else words_of_bytes(field)
                parts.append(found[:, None])
    words = nm.concat(parts, axis=1) if len(parts) > 1 else parts[0]
    words = words.reshape(x.shape[0], planes, packing.fields, words.shape[-1])
    size = packing.values * ((packing.group or chunks) if as_bytes else 1)
    whole = whole.reshape(x.shape[0], chunks * packing.values // size, size)
    if as_bytes:  # exact: totals are float64
        return words, nm.sum(whole.astype(nm.float32), axis=-1), unit
    return words, nm.sum(whole, axis=-1).astype(nm.float32), unit


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
    planes: int,
) -> Tensor:
    """A few rows times the rows of codes; the last but one arguments are those of a `Packing`."""
    p = Packing(bits, group, zero, header, header)
    codes = codes.reshape(rows, codes.size // rows)
    width = codes.shape[1]
    chunks = width // (p.group * p.words + 1) * p.group if header else width // p.words
    vectors = _planes(x.astype(nm.float32, copy=False), p, chunks, planes)
    parts = _parts(x, codes, scales, zeros)
    out = wrap(packed_matmul(tuple(t._node for t in vectors), parts, p))
    return out.astype(x.dtype, copy=False)


def _has_words(p: Packing, k: int, target: Any) -> bool:
    """A GPU's kernels read the codes as words of whole values; warps take 16 bytes of a group."""
    if target.subgroup_size == 0:
        return target.simt and p.words == 1 and k % p.values == 0
    aligned = k % (4 * p.values) == 0 and p.group % 4 == 0
    return p.bits in (4, 8) and aligned


def _reads_floats(x: Tensor, p: Packing) -> bool:
    """Whether activations stay vectors of floats: on GPUs, where rounding them to bytes takes
    longer than the product of one, and tensor cores multiply some."""
    target = nm.device(x.device).runtime.target
    if not _has_words(p, x.shape[-1], target):
        return False
    return x.shape[0] <= MAX_VECTORS or has_mma(p, x.shape[0], x.dtype, target)


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


@templated
def _unpack(
    codes: Tensor,
    scales: Tensor | None,
    zeros: Tensor | None,
    rows: int,
    bits: int,
    group: int,
    zero: int,
    header: bool,
    k: int,
    dtype: DType,
) -> Tensor:
    """The values of a matrix, (rows, k)."""
    p = Packing(bits, group, zero, header, header)
    codes = codes.reshape(1, rows, codes.size // rows)
    scales, zeros = (s if s is None else s.reshape(-1, s.shape[-1]) for s in (scales, zeros))
    return wrap(unpack(_parts(codes, codes, scales, zeros), p, k, dtype))


def _values(q: QTensor, dtype: DType) -> Tensor:
    """The values of a matrix that many rows are multiplied with, (k, columns): by a kernel of
    their own where a GPU has one, else an expression."""
    k, columns = q.shape[-2:]
    p, target = packing_of(q), nm.device(q.device).runtime.target
    fixed = q.axis == -2 and not any(part._node.tracked for part in q.parts)
    narrow = dtype.kind == "float" and 2 <= dtype.itemsize <= 4
    vectors = target.simt and target.vector_access_bytes > 0
    if p is None or not (fixed and narrow and vectors and _has_words(p, k, target)):
        return q.dequantize(dtype)
    codes, *rest = q.parts
    scales, zeros = (*rest, None, None)[:2]
    how = (columns, p.bits, p.group, p.zero, p.header, k, dtype)
    return _unpack(codes, scales, zeros, *how).T


def _few_rows(x: Tensor, q: QTensor, planes: int, exact: bool) -> Tensor | None:
    """The product as one that is bound by the memory of the weights; None: it is not."""
    p = packing_of(q)
    if p is None:
        return None
    floats = exact and _reads_floats(x, p)
    if x.shape[0] > MAX_VECTORS and not floats:
        return None
    codes, *rest = q.parts
    scales, zeros = (*rest, None, None)[:2]
    parts = (x, codes, scales, zeros, q.shape[-1], p.bits, p.group, p.zero, p.header)
    return _gemv(*parts) if floats else _matvec(*parts, planes)


def _bytes(x: Tensor, q: QTensor, planes: int, activations: str | None) -> Tensor | None:
    """The product by bytes of codes, where a CPU's kernels read the format; None: they do not."""
    target = nm.device(x.device).runtime.target
    if target.language != "llvm" or q.ndim != 2:
        return None
    f, few = q.format, x.shape[0] <= MAX_VECTORS
    rows = tile_rows(target, planes)
    if isinstance(f, Blocks):
        if few:
            width = max(1, target.vector_bytes // 4)
            return block_products.matvec(x, q.parts[0], f.kind, planes, width)
        layout = LAYOUTS[f.kind]
        if is_faster_as_floats(target, x.shape[0], planes, layout.group_words, layout.small):
            own = x if activations is None else _rounded(x, activations)
            return block_products.float_gemm(own, q.parts[0], f.kind)
        return block_products.block_gemm(x, q.parts[0], f.kind, planes, rows)
    short = x.shape[1] <= MAX_INT32_COLUMNS or (isinstance(f, Integers) and f.group > 0)
    if few or activations != "int8" or not isinstance(f, Integers) or f.bits == 3 or not short:
        return None
    if is_faster_as_floats(target, x.shape[0], planes, max(0, f.group) // 4, f.bits < 8):
        return None
    zeros = q.parts[2] if len(q.parts) > 2 else None
    zero = f.symmetric << (f.bits - 1)
    how = (f.bits, max(0, f.group), zero, planes, rows)
    return block_products.integer_gemm(x, q.parts[0], q.parts[1], zeros, *how)


def _rounded(x: Tensor, activations: str) -> Tensor:
    """Activations rounded, each to a value that it is multiplied as."""
    if activations == "int8":
        (whole,), _, unit = byte_planes(x.astype(nm.float32, copy=False), x.shape[-1], 1)
        return (whole.astype(nm.float32) * unit).astype(x.dtype, copy=False)
    codes, scales = _float8(x)
    values = grouped(codes.astype(nm.float32), SCALED_BLOCK) * scales[..., None]
    return ungrouped(values, x.shape).astype(x.dtype, copy=False)


def _float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """Values as float8, and the scale of each block of a row."""
    groups = grouped(x.astype(nm.float32, copy=False), SCALED_BLOCK)
    scale = nm.max(nm.abs(groups), axis=-1, keepdims=True) / LARGEST[nm.float8_e4m3fn]
    codes = (groups * safe_reciprocal(scale)).astype(nm.float8_e4m3fn)
    return ungrouped(codes, x.shape), scale[..., 0]


def _float8_product(x: Tensor, q: QTensor) -> Tensor | None:
    """Rows rounded to float8 times float8 weights in blocks, on a GPU's tensor cores."""
    f, target = q.format, nm.device(q.device).runtime.target
    if not isinstance(f, BlockFP8) or (f.dtype, f.block) != (nm.float8_e4m3fn, SCALED_BLOCK):
        return None
    (rows, k), columns = x.shape, q.shape[-1]
    large = q.ndim == 2 and min(rows, columns, k) >= MMA_MIN_EXTENT
    if not (large and target.wgmma and k % FP8_ROW_BYTES == 0):
        return None
    operands = (*_float8(x), *q.parts)
    return wrap(scaled_matmul(tuple(t._node for t in operands), x.dtype))


def _int8_product(x: Tensor, q: QTensor) -> Tensor | None:
    """Rows rounded to int8 times int8 weights of one scale a row, on a GPU's tensor cores."""
    f, p, target = q.format, packing_of(q), nm.device(q.device).runtime.target
    if p is None or not isinstance(f, Integers) or f.group > 0 or not f.symmetric:
        return None
    (rows, k), columns = x.shape, q.shape[-1]
    large = min(rows, columns, k) >= MMA_MIN_EXTENT and k <= MAX_INT32_COLUMNS
    if not (large and "int8" in target.mma and _has_words(p, k, target)):
        return None
    codes, scales = q.parts
    (whole,), _, unit = byte_planes(x.astype(nm.float32, copy=False), k, 1)
    rounded = whole.astype(nm.int8)
    if p.bits == 8 and target.wgmma:  # which multiplies signed bytes by codes as they are
        sums = wrap(code_matmul(rounded._node, codes._node))
        sums = sums - p.zero * nm.sum(whole, axis=-1, keepdims=True, dtype=nm.int32)
    else:
        weights = _unpack(codes, scales, None, columns, p.bits, 0, p.zero, False, k, nm.int8)
        sums = nm.matmul(rounded, weights.T, dtype=nm.int32)
    by = scales.astype(nm.float32).reshape(1, -1)
    return (sums.astype(nm.float32) * unit * by).astype(x.dtype, copy=False)


def _packed_product(x: Tensor, q: QTensor, activations: str | None) -> Tensor | None:
    """The product of a matrix by a kernel that reads the codes; None: there is none."""
    if activations == "fp8":
        return _float8_product(x, q)
    planes = 1 if activations == "int8" else PLANES.get(x.dtype, 2)
    out = _bytes(x, q, planes, activations)
    if out is None and x.shape[0] <= max(MAX_VECTORS, MMA_TUNING.max_vectors):
        out = _few_rows(x, q, planes, activations is None)
    if out is None and activations == "int8":
        out = _int8_product(x, q)
    return out


def matmul(x: Any, q: QTensor, *, activations: str | None = None) -> Tensor:
    """`x @ q`: the last axis of `x` times the last but one of a quantised matrix.

    It is differentiable with respect to `x`; rounded activations are straight through.

    >>> import numus as nm
    >>> q = nm.quant.quantize(nm.ones((4, 64)), "int8-row")
    >>> nm.quant.matmul(nm.ones((2, 64)), q.T)[0]
    tensor([64., 64., 64., 64.])

    Args:
        activations: None keeps all bits of `x`. "int8" rounds each row to 8 bits, relative to its
            largest value, and multiplies integers where the device has them: twice to three times
            as fast for many rows, with errors of about 1 % of the largest result. "fp8" rounds to
            float8 (e4m3) with a scale for each 128 values of a row, and multiplies weights in
            "fp8-e4m3-b128" on the tensor cores of Hopper GPUs.
    """
    if not isinstance(q, QTensor):
        raise TypeError(f"quant.matmul: the second operand is a QTensor, not {type(q).__name__}")
    if activations not in (None, "int8", "fp8"):
        raise ValueError(f'quant.matmul: activations={activations!r} must be None, "int8" or "fp8"')
    x = nm.asarray(x, device=q.device)
    if x.dtype.kind != "float" or x.dtype.itemsize == 1:
        raise DTypeError(f"quant.matmul takes float16, bfloat16, float32 or float64, not {x.dtype}")
    if q.ndim < 2 or x.ndim < 1 or x.shape[-1] != q.shape[-2]:
        raise ShapeError(
            f"quant.matmul: shapes {x.shape} and {q.shape} do not fit: the last axis of the first "
            "must be the last but one of the second, which q.T exchanges"
        )
    rows = x.size // max(1, x.shape[-1])
    out = None
    if rows and q.size and x.dtype is not nm.float64 and q.axis == -2:
        flat = x.detach()
        flat = flat if x.ndim == 2 else flat.reshape(rows, x.shape[-1])
        out = _packed_product(flat, q, activations)
    if out is None and activations is None:
        return nm.matmul(x, _values(q, x.dtype))
    if out is None and activations is not None:
        out = nm.matmul(_rounded(x.detach(), activations), _values(q, x.dtype))
    assert out is not None
    shape = (*x.shape[:-1], q.shape[-1])
    out = out if out.shape == shape else out.reshape(shape)
    if not x._node.tracked:
        return out
    return wrap(graft(out._node, nm.matmul(x, _values(q, x.dtype))._node))


QTensor.multiply = matmul
