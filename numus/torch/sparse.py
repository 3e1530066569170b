"""`torch.sparse`: products and sums of sparse tensors; they are numus's `SparseTensor`."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.sparse import SparseTensor
from numus.torch._owned import owning


def mm(mat1: Any, mat2: Any) -> Any:
    """The product of a sparse matrix and another one."""
    return mat1 @ mat2


def addmm(mat: Any, mat1: Any, mat2: Any, *, beta: float = 1.0, alpha: float = 1.0) -> Any:
    """beta * mat + alpha * (mat1 @ mat2)."""
    return nm.multiply(mat, beta) + nm.multiply(mat1 @ mat2, alpha)


def sum(input: Any, dim: Any = None, dtype: Any = None) -> Any:
    """The sum of the elements, or of those along axes."""
    found = nm.sum(input.to_dense() if isinstance(input, SparseTensor) else input, axis=dim)
    return found if dtype is None else nm.astype(found, dtype)


mm, addmm, sum = owning(mm), owning(addmm), owning(sum)
