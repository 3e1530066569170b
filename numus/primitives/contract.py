"""Matrix multiplication, of matrices or batches of them.

einsum, tensordot and 1×1 convolutions are views around it; its kernels read strided operands.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus.dispatch.apply import apply
from numus.dtypes import DType, float32
from numus.graph import TF32, Array, Node, Nodes, Primitive, Tangents, mode
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import batch_all
from numus.primitives.references import for_sums
from numus.primitives.views import permute, reshape
from numus.shapes import size_of

Precision = str | None  # of float32 operands: TF32 or full
AS_SET = "as set"  # by nm.autocast

_SWAPPED = {2: (1, 0), 3: (0, 2, 1)}


def _transpose(x: Node) -> Node:
    return permute(x, _SWAPPED[x.ndim])


def _adjoint(x: Node) -> Node:
    return ew.conjugate(_transpose(x))


def _vjp(node: Node, g: Node) -> tuple[Node | None, Node | None]:
    a, b = node.inputs
    g = ew.cast(g, a.dtype)
    return (
        _gradient_like(a, g, _adjoint(b), node.params) if a.tracked else None,
        _gradient_like(b, _adjoint(a), g, node.params) if b.tracked else None,
    )


def _gradient_like(x: Node, left: Node, right: Node, precision: Precision) -> Node:
    """left @ right as a gradient of x; where x is a transposed matrix (a layer's weights), in the
    memory layout of that matrix.
    """
    if x.prim.name == "permute" and x.params == _SWAPPED[x.ndim]:
        return _transpose(contract(_transpose(right), _transpose(left), x.dtype, precision))
    return contract(left, right, x.dtype, precision)


def _jvp(node: Node, tangents: Tangents) -> Node | None:
    (a, b), (ta, tb) = node.inputs, tangents
    return ew.total(
        None if ta is None else contract(ta, b, node.dtype, node.params),
        None if tb is None else contract(a, tb, node.dtype, node.params),
    )


def _batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    a, b = inputs
    *lead, rows, columns = node.shape
    depth = a.shape[-1]
    outer = size_of(tuple(lead))
    if not batched[1] and outer == 1:  # the batch joins the rows: one larger matmul
        left, right = reshape(a, (size * rows, depth)), reshape(b, (depth, columns))
        return reshape(contract(left, right, node.dtype, node.params), (size, *node.shape))
    a, b = batch_all(inputs, batched, size)
    a = reshape(a, (size * outer, rows, depth))
    b = reshape(b, (size * outer, depth, columns))
    return reshape(contract(a, b, node.dtype, node.params), (size, *node.shape))


def _reference(node: Node, a: Array, b: Array) -> Array:
    a, b = for_sums(a), for_sums(b)
    if node.dtype.is_integer:
        a, b = a.astype(node.dtype.np), b.astype(node.dtype.np)
    with np.errstate(all="ignore"):
        return np.matmul(a, b).astype(node.dtype.np)


_contract = Primitive("contract", "contract", _reference, _vjp, _jvp, _batch)


def matmul_precision(precision: Precision, *dtypes: DType) -> Precision:
    """TF32 or None for operands and a result of these dtypes."""
    if precision == AS_SET:
        precision = TF32 if mode.autocast is TF32 else None
    return precision if precision and all(dtype is float32 for dtype in dtypes) else None


def contract(a: Node, b: Node, dtype: DType, precision: Precision = AS_SET) -> Node:
    """(m, k) @ (k, n), accumulated in (at least) `dtype`; both may be batches.

    `precision` TF32 lets tensor cores round float32 operands to 11 bits, None does not.
    """
    precision = matmul_precision(precision, a.dtype, dtype)
    return apply(_contract, (a, b), precision, (*a.shape[:-1], b.shape[-1]), dtype)
