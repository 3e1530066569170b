"""Gather and segment-reduce on a pattern: what rows and columns have at its entries, and sums and
extremes of what its entries have, by row or by column.

Each is linear in its operand, and sums are the transposes of gathers, so derivatives of any order
are among them; a gather is read through by the kernel that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

import numus as nm
from numus import dtypes as dt
from numus.graph import Node, Nodes, Tangents, grad_mode, mode
from numus.primitives import elementwise as ew
from numus.primitives import sparse as primitives
from numus.primitives.broadcast import full, reduce_sum
from numus.primitives.custom import custom
from numus.primitives.indexing import gather
from numus.primitives.views import permute, reshape
from numus.shapes import size_of
from numus.sparse.pattern import OnDevices, Pattern
from numus.sparse.products import Bilinear, at_positions, differentiated, product_nodes
from numus.tensor import Tensor
from numus.transforms.rules import CallRule

Linear = Callable[[Node], Node]


@dataclass(eq=False)
class _Linear(CallRule):
    """The rule of a linear function, by its transpose."""

    apply: Linear
    transpose: Linear

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        (g,) = cotangents
        return [None if g is None else self.transpose(g)]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        (t,) = tangents
        return [None if t is None else self.apply(t)]


def _linear(pattern: Pattern, key: str, compute: Linear, transpose: Linear, x: Node) -> Node:
    with grad_mode(False):
        value = compute(x)
    if not (mode.grad and x.tracked):
        return value
    rules = pattern.__dict__.setdefault("rules", {})  # the same object each time, as caches ask
    if key not in rules:
        rules[key] = _Linear(
            1, lambda t: _linear(pattern, key, compute, transpose, t), lambda g: transpose(g)
        )
    return custom(rules[key], 0, value, (x,))


def entry_rows(pattern: Pattern) -> Pattern:
    """Rows × entries: which entries each row has."""
    found = pattern.__dict__.get("entry_rows")
    if found is None:
        nnz, starts = pattern.nnz, pattern.pointers.array
        numbers = np.arange(nnz, dtype=starts.dtype)
        found = pattern.__dict__["entry_rows"] = Pattern((pattern.shape[0], nnz), starts, numbers)
    return found


def entry_columns(pattern: Pattern) -> Pattern:
    """Columns × entries: which entries each column has."""
    found = pattern.__dict__.get("entry_columns")
    if found is None:
        swapped, order = pattern.transposed
        shape = (swapped.shape[0], pattern.nnz)
        found = Pattern(shape, swapped.pointers.array, order.array)
        pattern.__dict__["entry_columns"] = found
    return found


def _read(x: Node, at: OnDevices) -> Node:
    return gather(x, (ew.cast(at.on(x.device), dt.int64),), (0,))


def _sums(pattern: Pattern, x: Node) -> Node:
    """Sums of the parts of x along its first axis that are listed in each row."""
    wide = reshape(x, (x.shape[0], size_of(x.shape[1:])))
    out = product_nodes(pattern, full((pattern.nnz,), 1, x.dtype), wide)
    return reshape(out, (pattern.shape[0], *x.shape[1:]))


def _at_rows(pattern: Pattern, x: Node) -> Node:
    return _linear(
        *(pattern, "at_rows", lambda x: _read(x, pattern.rows)),
        *(lambda g: _row_sums(pattern, g), x),
    )


def _row_sums(pattern: Pattern, x: Node) -> Node:
    return _linear(
        *(pattern, "row_sums", lambda x: _sums(entry_rows(pattern), x)),
        *(lambda g: _at_rows(pattern, g), x),
    )


def _at_columns(pattern: Pattern, x: Node) -> Node:
    return _linear(
        *(pattern, "at_columns", lambda x: _read(x, pattern.indices)),
        *(lambda g: _column_sums(pattern, g), x),
    )


def _column_sums(pattern: Pattern, x: Node) -> Node:
    return _linear(
        *(pattern, "column_sums", lambda x: _sums(entry_columns(pattern), x)),
        *(lambda g: _at_columns(pattern, g), x),
    )


# -- on tensors -----------------------------------------------------------------------------------


def at_rows(pattern: Pattern, x: Tensor) -> Tensor:
    """What the row of each entry has: (rows, …) to (entries, …)."""
    return Tensor(_at_rows(pattern, x._node))


def at_columns(pattern: Pattern, x: Tensor) -> Tensor:
    """What the column of each entry has: (columns, …) to (entries, …)."""
    return Tensor(_at_columns(pattern, x._node))


def row_sums(pattern: Pattern, x: Tensor) -> Tensor:
    """Sums over the entries of each row: (entries, …) to (rows, …)."""
    return Tensor(_row_sums(pattern, x._node))


def extremes(
    pattern: Pattern,
    values: Tensor | None,
    x: Tensor,
    *,
    combine: str = "mul",
    largest: bool = True,
) -> tuple[Tensor, Tensor]:
    """The largest or smallest value · x (or value + x, `combine` "add") of each row, of x
    (columns, k); and whether the row has any. Its derivative goes to the first that attains it."""
    n, k = x.shape
    with nm.no_grad():
        neutral = full((pattern.nnz,), int(combine == "mul"), x.dtype)
        own = neutral if values is None else values._node
        arrays = pattern.arrays(x.device)
        entry = primitives.csr_extreme(
            *(*arrays, reshape(own, (1, pattern.nnz)), reshape(x._node, (1, n, k))),
            *(combine, largest),
        )
        at = ew.cast(reshape(entry, (pattern.shape[0], k)), dt.int64)
    filled = nm.asarray(pattern.counts > 0, device=x.device)[:, None]
    if pattern.nnz == 0:
        return nm.zeros((pattern.shape[0], k), dtype=x.dtype, device=x.device), filled
    column = Tensor(gather(ew.cast(arrays[1], dt.int64), (at,), (0,)))
    term = nm.take_along_axis(x, column, axis=0)
    if values is not None:
        weight = Tensor(gather(values._node, (at,), (0,)))
        term = term * weight if combine == "mul" else term + weight
    return term, filled


def _heads_product(pattern: Pattern, weight: Node, x: Node) -> Node:
    def compute(weight: Node, x: Node) -> Node:
        arrays = pattern.arrays(x.device or weight.device)
        values, columns = permute(weight, (1, 0)), permute(x, (1, 0, 2))
        return permute(primitives.csr_matmul(*arrays, values, columns), (1, 0, 2))

    def by_weight(g: Node, x: Node) -> Node:
        # entry by entry, all heads of one at once: rows of x are read as they lie in memory
        return reduce_sum(ew.mul(_at_rows(pattern, g), _at_columns(pattern, x)), (2,))

    def by_columns(g: Node, weight: Node) -> Node:
        swapped, order = pattern.transposed
        return _heads_product(swapped, at_positions(weight, order), g)

    def make() -> Bilinear:
        apply = functools.partial(_heads_product, pattern)
        return Bilinear(1, apply, first=by_weight, second=by_columns)

    return differentiated(pattern, "heads", make, compute, weight, x)


def heads_product(pattern: Pattern, weight: Tensor, x: Tensor) -> Tensor:
    """A product per head: weights (entries, heads), x (columns, heads, channels)."""
    return Tensor(_heads_product(pattern, weight._node, x._node))
