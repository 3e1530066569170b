"""Products and orders of compressed sparse rows (CSR).

Row i of a pattern has the positions pointers[i] … pointers[i + 1] - 1; `indices` has the column of
each. None has a derivative of its own: `numus.sparse` differentiates its operations on patterns,
whose transposes it keeps. Columns out of bounds are clamped: no kernel leaves its buffers.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from numus import dtypes as dt
from numus.dispatch.apply import apply
from numus.errors import GradientError
from numus.graph import Array, Node, Nodes
from numus.primitives.base import nondifferentiable
from numus.primitives.broadcast import batch_all
from numus.primitives.views import permute, reshape


def _fixed_patterns(batched: Sequence[bool]) -> None:
    if any(batched):
        raise GradientError("vmap: the structure of a sparse tensor is static and takes no batch")


# -- sparse × dense -------------------------------------------------------------------------------


def _product_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    pointers, indices, values, x, *known = inputs
    _fixed_patterns([*batched[:2], *batched[4:]])
    count, rows, columns = node.shape

    def product(values: Node, x: Node) -> Node:
        shape = (x.shape[0], rows, x.shape[2])
        is_same = node.prim is not _csr_matmul or x.shape[2] == 1
        own = (pointers, indices, values, x, *(known if is_same else ()))
        return apply(node.prim, own, node.params if is_same else None, shape, node.dtype)

    if not batched[2]:  # more columns for the same matrices, which are read once
        wide = permute(x, (1, 2, 0, 3))
        wide = reshape(wide, (count, wide.shape[1], size * columns))
        out = product(values, wide)
        return permute(reshape(out, (count, rows, size, columns)), (2, 0, 1, 3))
    values, x = batch_all((values, x), batched[2:4], size)
    values = reshape(values, (size * count, values.shape[-1]))
    x = reshape(x, (size * count, *x.shape[2:]))
    return reshape(product(values, x), (size, *node.shape))


def _product_reference(
    node: Node, pointers: Array, indices: Array, values: Array, x: Array, *known: Array
) -> Array:
    _, rows, _ = node.shape
    out = np.zeros(node.shape, x.dtype)
    if x.shape[1] == 0:
        return out
    at = np.clip(indices, 0, x.shape[1] - 1)
    row = np.repeat(np.arange(rows), np.diff(pointers))
    with np.errstate(all="ignore"):
        for b in range(node.shape[0]):
            np.add.at(out[b], row, values[b, : row.size, None] * x[b, at[: row.size]])
    return out


_csr_matmul = nondifferentiable("csr_matmul", "sparse", _product_reference, _product_batch)


def csr_matmul(
    pointers: Node,
    indices: Node,
    values: Node,
    x: Node,
    rows: str | None = None,
    known: Sequence[Node] = (),
) -> Node:
    """Matrices of one pattern, values (batch, nnz), times dense ones (batch, n, columns).

    What is known of the rows, for products with one column: "even", where they are short and about
    as long as each other; "runs" or "templates", of which `known` are the arrays of `RowRuns` or
    `row_templates` (numus/sparse/algorithms), by which CPUs or GPUs read no indices; "blocks", of
    which they are those of `ColumnBlocks`, by which CPUs read the vector in blocks of columns.
    """
    shape = (x.shape[0], pointers.shape[0] - 1, x.shape[2])
    return apply(_csr_matmul, (pointers, indices, values, x, *known), rows, shape, x.dtype)


PARTIAL_SUMS = 1 << 11  # of a dot product, after the elements of a vector


def _dotted_reference(
    node: Node, pointers: Array, indices: Array, values: Array, x: Array, *known: Array
) -> Array:
    n = pointers.size - 1
    out = np.zeros(node.shape, x.dtype)
    at = np.clip(indices, 0, n - 1)
    with np.errstate(all="ignore"):
        for b in range(node.shape[0]):
            rows = np.repeat(np.arange(n), np.diff(pointers))
            np.add.at(out[b, :n], rows, values[b, : rows.size] * x[b, at[: rows.size]])
            out[b, n] = out[b, :n] @ x[b]
    return out


def _dotted_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    pointers, indices, values, x, *known = inputs
    _fixed_patterns([*batched[:2], *batched[4:]])
    values, x = batch_all((values, x), batched[2:4], size)
    count, length = node.shape
    values = reshape(values, (size * count, values.shape[-1]))
    x = reshape(x, (size * count, x.shape[-1]))
    own = (pointers, indices, values, x, *known)
    out = apply(node.prim, own, node.params, (size * count, length), node.dtype)
    return reshape(out, (size, *node.shape))


_csr_dotted = nondifferentiable("csr_dotted", "sparse", _dotted_reference, _dotted_batch)


def csr_dotted(pointers: Node, indices: Node, values: Node, x: Node, known: Sequence[Node]) -> Node:
    """Square matrices with templates of rows (`csr_matmul`) times vectors (batch, n), followed by
    `PARTIAL_SUMS` numbers whose sum is the dot product of result and vector. GPUs only."""
    shape = (x.shape[0], pointers.shape[0] - 1 + PARTIAL_SUMS)
    inputs = (pointers, indices, values, x, *known)
    return apply(_csr_dotted, inputs, "templates", shape, x.dtype)


def _extreme_reference(
    node: Node, pointers: Array, indices: Array, values: Array, x: Array
) -> Array:
    combine, largest = node.params
    out = np.zeros(node.shape, node.dtype.np)
    if x.shape[1] == 0:
        return out
    at = np.clip(indices, 0, x.shape[1] - 1)
    pick = np.argmax if largest else np.argmin  # of NaNs the first, as of equal terms
    with np.errstate(all="ignore"):
        for b in range(node.shape[0]):
            for i in range(node.shape[1]):
                row = slice(pointers[i], pointers[i + 1])
                own = values[b, row, None]
                terms = own * x[b, at[row]] if combine == "mul" else own + x[b, at[row]]
                if terms.size:
                    out[b, i] = pointers[i] + pick(terms, 0)
    return out


_csr_extreme = nondifferentiable("csr_extreme", "sparse", _extreme_reference, _product_batch)


def csr_extreme(
    pointers: Node, indices: Node, values: Node, x: Node, combine: str, largest: bool
) -> Node:
    """The product over another semiring: which entry of each row has the largest or smallest
    value · x, or value + x (`combine` "mul", "add"); the first of equal ones, of NaNs before all
    else, and 0 for rows without entries. Its dtype is that of the indices."""
    shape = (x.shape[0], pointers.shape[0] - 1, x.shape[2])
    inputs = (pointers, indices, values, x)
    return apply(_csr_extreme, inputs, (combine, largest), shape, indices.dtype)


# -- sparse × sparse ------------------------------------------------------------------------------


def _masked_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    _fixed_patterns([b for i, b in enumerate(batched) if i not in (2, 5)])
    a, b = batch_all((inputs[2], inputs[5]), (batched[2], batched[5]), size)
    a, b = (reshape(x, (size * x.shape[1], x.shape[2])) for x in (a, b))
    first, second, mask = inputs[:2], inputs[3:5], inputs[6:]
    out = csr_masked_matmul((*first, a), (*second, b), mask, *node.params)
    return reshape(out, (size, *node.shape))


def _masked_reference(node: Node, *arrays: Array) -> Array:
    ap, ai, av, bp, bi, bv, mp, mi = arrays
    out = np.zeros(node.shape, av.dtype)
    with np.errstate(all="ignore"):
        for b in range(node.shape[0]):
            sums = np.zeros(node.params[0], av.dtype)
            for i in range(mp.size - 1):
                for p in range(ap[i], ap[i + 1]):
                    row = slice(bp[ai[p]], bp[ai[p] + 1])
                    np.add.at(sums, bi[row], av[b, p] * bv[b, row])
                mask = slice(mp[i], mp[i + 1])
                out[b, mask] = sums[mi[mask]]
                sums[:] = 0
    return out


_csr_masked_matmul = nondifferentiable(
    "csr_masked_matmul", "sparse", _masked_reference, _masked_batch
)


def csr_masked_matmul(a: Nodes, b: Nodes, mask: Nodes, columns: int, row_bits: int) -> Node:
    """Elements of a b at the positions of a mask: Gustavson's numeric phase.

    `a` and `b` are (pointers, indices, values), values (batch, nnz); the mask is (pointers,
    indices). Columns are sorted in the rows of b; no column is twice in a row of the mask. GPUs
    search rows of b, whose lengths have up to `row_bits` bits.
    """
    shape = (a[2].shape[0], mask[1].shape[0])
    params = (columns, row_bits)
    return apply(_csr_masked_matmul, (*a, *b, *mask), params, shape, a[2].dtype)


def _no_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    _fixed_patterns(batched)
    raise AssertionError("a node without batched inputs has no batch")


def _union(i: int, ap: Array, ai: Array, bp: Array, bi: Array) -> Array:
    parts = [bi[bp[k] : bp[k + 1]] for k in ai[ap[i] : ap[i + 1]]]
    return np.unique(np.concatenate(parts)) if parts else np.zeros(0, bi.dtype)


def _counts_reference(node: Node, *arrays: Array) -> Array:
    return np.array([_union(i, *arrays).size for i in range(node.shape[0])], np.int64)


_csr_counts = nondifferentiable("csr_product_counts", "sparse", _counts_reference, _no_batch)


def csr_product_counts(a: Nodes, b: Nodes, columns: int, row_bits: int = 0) -> Node:
    """How many elements each row of a product of two patterns has: half of the symbolic phase.

    GPUs take patterns whose columns are sorted in each row, and search rows of b, whose lengths
    have up to `row_bits` bits.
    """
    rows = a[0].shape[0] - 1
    return apply(_csr_counts, (*a, *b), (columns, row_bits), (rows,), dt.int64)


def _columns_reference(node: Node, *arrays: Array) -> Array:
    *patterns, pointers = arrays
    rows = [_union(i, *patterns) for i in range(pointers.size - 1)]
    return np.concatenate([*rows, np.zeros(0)]).astype(node.dtype.np)


_csr_columns = nondifferentiable("csr_product_columns", "sparse", _columns_reference, _no_batch)


def csr_product_columns(
    a: Nodes, b: Nodes, pointers: Node, columns: int, nnz: int, row_bits: int = 0
) -> Node:
    """The columns of a product of two patterns, sorted in each row: the symbolic phase's second.

    `pointers` are the running sum of `csr_product_counts`.
    """
    params = (columns, row_bits)
    return apply(_csr_columns, (*a, *b, pointers), params, (nnz,), b[1].dtype)


# -- 2:4 sparsity ---------------------------------------------------------------------------------


def _semi_structured_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    count, rows, columns = node.shape
    values, metadata, x = inputs
    if not (batched[0] or batched[1]):  # more columns for the same matrices
        wide = permute(x, (1, 2, 0, 3))
        wide = reshape(wide, (count, wide.shape[1], size * columns))
        out = reshape(semi_structured_matmul(values, metadata, wide), (count, rows, size, columns))
        return permute(out, (2, 0, 1, 3))
    found = batch_all(inputs, batched, size)
    values, metadata, x = (reshape(y, (size * count, *y.shape[2:])) for y in found)
    return reshape(semi_structured_matmul(values, metadata, x), (size, *node.shape))


def _semi_structured_reference(node: Node, values: Array, metadata: Array, x: Array) -> Array:
    count, rows, half = values.shape
    nibbles = np.stack([metadata & 15, metadata >> 4], axis=-1).reshape(count, rows, -1)
    at = np.stack([nibbles & 3, nibbles >> 2], axis=-1).astype(np.int64)
    dense = np.zeros((count, rows, half // 2, 4), values.dtype)
    np.put_along_axis(dense, at, values.reshape(*at.shape), axis=-1)
    wide = np.promote_types(values.dtype, np.float32)
    product = dense.reshape(count, rows, 2 * half).astype(wide) @ x.astype(wide)
    return product.astype(x.dtype)


_semi_structured = nondifferentiable(
    "semi_structured_matmul", "sparse", _semi_structured_reference, _semi_structured_batch
)


def semi_structured_matmul(values: Node, metadata: Node, x: Node) -> Node:
    """Matrices with 2:4 sparsity times dense ones (batch, k, n), on GPUs whose tensor cores take
    them. Values are (batch, m, k / 2), the positions of two in a group of four, of two bits each,
    bytes (batch, m, k / 8)."""
    shape = (x.shape[0], values.shape[1], x.shape[2])
    return apply(_semi_structured, (values, metadata, x), None, shape, x.dtype)


# -- transposes -----------------------------------------------------------------------------------


def _group_reference(node: Node, keys: Array) -> Array:
    groups = node.params
    starts = np.zeros(groups + 1, np.int64)
    starts[1:] = np.cumsum(np.bincount(keys, minlength=groups))
    return np.concatenate([starts, np.argsort(keys, kind="stable")]).astype(node.dtype.np)


_group = nondifferentiable("group", "sparse", _group_reference, _no_batch)


def group(keys: Node, groups: int) -> Node:
    """A stable counting sort of keys below `groups`: where each group starts, groups + 1 numbers,
    then the positions of the keys in their new order. Its dtype is that of the keys."""
    return apply(_group, (keys,), groups, (groups + 1 + keys.shape[0],), keys.dtype)


def _transpose_reference(node: Node, pointers: Array, indices: Array) -> Array:
    packed = _group_reference(node, indices)
    rows = np.repeat(np.arange(pointers.size - 1), np.diff(pointers))
    return np.concatenate([packed, rows[packed[node.params + 1 :]]]).astype(node.dtype.np)


_csr_transpose = nondifferentiable("csr_transpose", "sparse", _transpose_reference, _no_batch)


def csr_transpose(pointers: Node, indices: Node, columns: int) -> Node:
    """The pattern by columns: `group` of its columns, then the row of each entry in that order."""
    shape = (columns + 1 + 2 * indices.shape[0],)
    return apply(_csr_transpose, (pointers, indices), columns, shape, indices.dtype)


# -- triangular solutions -------------------------------------------------------------------------


def _solve_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    levels, order, pointers, indices, values, b = inputs
    _fixed_patterns(batched[:4])
    count, rows, columns = node.shape
    if not batched[4]:
        wide = permute(b, (1, 2, 0, 3))
        wide = reshape(wide, (count, rows, size * columns))
        out = csr_solve((levels, order), (pointers, indices), values, wide, node.params)
        return permute(reshape(out, (count, rows, size, columns)), (2, 0, 1, 3))
    values, b = batch_all((values, b), batched[4:], size)
    values = reshape(values, (size * count, values.shape[-1]))
    b = reshape(b, (size * count, *b.shape[2:]))
    out = csr_solve((levels, order), (pointers, indices), values, b, node.params)
    return reshape(out, (size, *node.shape))


def _solve_reference(node: Node, *arrays: Array) -> Array:
    _, _, pointers, indices, values, b = arrays
    count, rows, _ = node.shape
    out = b.copy()
    with np.errstate(all="ignore"):
        for i in range(rows)[:: -1 if node.params else 1]:
            row = slice(pointers[i], pointers[i + 1])
            for k in range(count):
                out[k, i] -= values[k, row] @ out[k, indices[row]]
    return out


_csr_solve = nondifferentiable("csr_solve", "sparse", _solve_reference, _solve_batch)


def csr_solve(levels: Nodes, pattern: Nodes, values: Node, b: Node, upper: bool) -> Node:
    """x with (1 + T) x = b, T strictly triangular with values (batch, nnz), for right-hand sides
    (batch, n, columns).

    `levels` are (starts, order): the rows order[starts[k]] … of level k read rows of earlier levels
    alone. CPUs go from the first row to the last, or back where T is `upper`.
    """
    return apply(_csr_solve, (*levels, *pattern, values, b), upper, b.shape, b.dtype)


def _supernodal_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    *factor, b = inputs
    _fixed_patterns(batched[:-1])
    rows, columns = node.shape
    wide = reshape(permute(b, (1, 0, 2)), (rows, size * columns))
    out = supernodal_solve(factor, wide, node.params)
    return permute(reshape(out, (rows, size, columns)), (1, 0, 2))


def _supernodal_reference(node: Node, *arrays: Array) -> Array:
    first, starts, below, entries, values, b = arrays
    out = b.copy()
    with np.errstate(all="ignore"):
        for s in range(first.size - 1)[:: -1 if node.params else 1]:
            own = np.arange(first[s], first[s + 1])
            rows = np.concatenate([own, below[starts[s] : starts[s + 1]]])
            for k in range(own.size)[:: -1 if node.params else 1]:
                at = entries[own[k]]
                column = values[at : at + rows.size - k - 1]
                if node.params:
                    out[own[k]] -= column @ out[rows[k + 1 :]]
                else:
                    out[rows[k + 1 :]] -= column[:, None] * out[own[k]]
    return out


_supernodal_solve = nondifferentiable(
    "supernodal_solve", "sparse", _supernodal_reference, _supernodal_batch
)


def supernodal_solve(factor: Nodes, b: Node, transposed: bool) -> Node:
    """x with L x = b, or Lᵀ x = b, of a unit lower triangle by supernodes and columns (n, k), on
    CPUs.

    `factor` is (first, starts, rows, entries, values): supernode s has the columns first[s] …
    first[s + 1] - 1, below them the rows rows[starts[s]] … rows[starts[s + 1] - 1], and column k
    the elements after its diagonal, those of the supernode first, from values[entries[k]] on.
    """
    return apply(_supernodal_solve, (*factor, b), transposed, b.shape, b.dtype)
