"""QR factorisation of large matrices on GPUs by block Gram-Schmidt with reorthogonalisation
(Barlow & Smoktunowicz 2013), blocks by shifted Cholesky QR (Fukaya et al. 2020): products of
matrices, nearly all of it.

It fails where columns are as good as dependent, and says so.
"""

from __future__ import annotations

from numus.functions._base import wrap
from numus.functions.creation.creation import zeros
from numus.functions.creation.dtype_functions import finfo
from numus.functions.reduction.reductions import max as maximum_of
from numus.functions.shape.concatenation import concat, stack
from numus.linalg._base import adjoint, identity
from numus.linalg.factor.blocked import register_block
from numus.primitives.linalg import factor
from numus.tensor import Tensor

SHIFT = 4.0  # rounding errors per column of a block
MAX_OVERLAP = 0.7  # of a unit vector with the columns before: projected twice, it is orthogonal


def qr(a: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Q (batch, m, n) and R (batch, n, n) of matrices with m >= n, and whether columns of Q are not
    orthonormal."""
    batch, _, n = a.shape
    width = register_block(a)
    q, columns, errors = a[..., :0], [], []
    for start in range(0, n, width):
        block = a[..., start : start + width]
        above = adjoint(q) @ block if start else block[:, :0]
        block, triangle = _normalised(block - q @ above if start else block, SHIFT)
        if start:
            again = adjoint(q) @ block
            overlap = (abs(again) ** 2).sum(axis=-2) / MAX_OVERLAP**2
            errors.append(maximum_of(overlap))
            above = above + again @ triangle
            block = block - q @ again
        block, more = _normalised(block, 0.0)
        error = abs(adjoint(block) @ block - identity(block.shape[-1], a))
        errors.append(maximum_of(error) / (n * finfo(error.dtype).eps))
        left = n - start - block.shape[-1]
        below = zeros((batch, left, block.shape[-1]), dtype=a.dtype, device=a.device)
        columns.append(concat([above, more @ triangle, below], axis=-2))
        q = concat([q, block], axis=-1) if start else block
    lost = ~(stack(errors) <= 1).all()  # NaN is lost
    return q, concat(columns, axis=-1), lost


def _normalised(block: Tensor, shift: float) -> tuple[Tensor, Tensor]:
    """Columns Q and R = Lᴴ by the Cholesky factor L of a block's products with itself."""
    n = block.shape[-1]
    gram = adjoint(block) @ block
    if shift:
        largest = maximum_of(abs(gram), axis=(-2, -1), keepdims=True)
        more = largest * (shift * n * finfo(largest.dtype).eps)
        gram = gram + identity(n, gram) * more.astype(gram.dtype)
    both = wrap(factor.cholesky_and_inverse(gram._node))
    lower, inverse = both[..., :n], both[..., n:]
    return block @ adjoint(inverse), adjoint(lower)
