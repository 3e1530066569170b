"""Contractions named by axes (XLA's DotGeneral), and products of rows in groups (ragged dot)."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.functions import api as nm
from numus.tensor import Tensor


def dot_general(lhs: Any, rhs: Any, dimension_numbers: Any) -> Tensor:
    """A product that sums over contracting axes, batched over others: dimension numbers are
    ((contracting axes of each), (batch axes of each))."""
    (contract_a, contract_b), (batch_a, batch_b) = dimension_numbers
    a, b = nm.asarray(lhs), nm.asarray(rhs)
    pairs = (*zip(batch_a, batch_b, strict=True), *zip(contract_a, contract_b, strict=True))
    # labels of the shared axes come first, then those of a, then those of b
    count = len(pairs)
    of_a = list(range(count, count + a.ndim))
    of_b = list(range(count + a.ndim, count + a.ndim + b.ndim))
    for label, (i, j) in enumerate(pairs):
        of_a[i] = of_b[j] = label
    free = [i for i in (*of_a, *of_b) if i >= count]
    return nm.einsum(a, of_a, b, of_b, [*range(len(batch_a)), *free])


def ragged_dot(lhs: Any, rhs: Any, group_sizes: Any) -> Tensor:
    """Rows in groups, each group multiplied by a matrix of its own."""
    x, w, sizes = nm.asarray(lhs), nm.asarray(rhs), nm.asarray(group_sizes)
    ends = nm.cumsum(nm.astype(sizes, dt.int64), 0)
    group = nm.searchsorted(ends, nm.arange(x.shape[0], device=x.device), side="right")
    number = nm.arange(w.shape[0], device=x.device)
    one = nm.astype(nm.equal(nm.expand_dims(group, axis=1), number), x.dtype)
    return nm.einsum("mk,gkn,mg->mn", x, w, one)
