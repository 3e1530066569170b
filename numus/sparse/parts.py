"""Operations on the two parts of a sparse tensor, its structure and its values.

Each gives a structure and values that are gathered from, or add up, the operands' own: one linear
map per operation, so that derivatives, batches and traces follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.errors import ShapeError
from numus.runtime.devices import default
from numus.shapes import Shape
from numus.sparse.pattern import (
    Array,
    OnDevices,
    Pattern,
    grouped,
    index_dtype,
    product_pattern,
)
from numus.sparse.products import masked, product, sampled, taken, transposed_product
from numus.sparse.structure import BSR, COO, CSC, CSR, DIA, Structure, linear_index, require_matrix
from numus.tensor import Tensor

Parts = tuple[Structure, Tensor]


def kept(structure: Structure, name: str, make: Callable[[], Any]) -> Any:
    """Something that follows from a structure alone, found once."""
    if name not in structure.__dict__:
        structure.__dict__[name] = make()
    return structure.__dict__[name]


def flat(values: Tensor) -> Tensor:
    return values if values.ndim == 1 else values.reshape(-1)


def by_rows(structure: Structure, values: Tensor) -> tuple[Pattern, Tensor]:
    """A matrix as a pattern of rows and their values."""
    pattern, order = structure.rows
    return pattern, flat(values) if order is None else taken(flat(values), order)


def entries(structure: Structure, values: Tensor) -> Tensor:
    """The value of each entry, in the order of `coordinates`."""
    if isinstance(structure, COO):
        return values
    return by_rows(structure, values)[1]


# -- formats --------------------------------------------------------------------------------------


def to_csr(structure: Structure, values: Tensor) -> Parts:
    if isinstance(structure, CSR):
        return structure, values
    pattern, values = by_rows(structure, values)
    return kept(structure, "as_csr", lambda: CSR(pattern)), values


def to_csc(structure: Structure, values: Tensor) -> Parts:
    if isinstance(structure, CSC):
        return structure, values
    pattern, values = by_rows(structure, values)
    swapped, order = pattern.transposed
    return kept(structure, "as_csc", lambda: CSC(swapped)), taken(values, order)


def to_coo(structure: Structure, values: Tensor) -> Parts:
    if isinstance(structure, COO):
        return structure, values

    def make() -> COO:
        return COO(structure.shape, np.stack(structure.coordinates))

    return kept(structure, "as_coo", make), entries(structure, values)


def canonical(structure: Structure, values: Tensor) -> tuple[Pattern, Tensor]:
    """A matrix by rows, with columns sorted and duplicates added up."""
    pattern, values = by_rows(structure, values)
    if pattern.is_canonical:
        return pattern, values
    merged, sums = pattern.canonical
    if merged.nnz == pattern.nnz:
        return merged, taken(values, sums.indices)
    return merged, added_up(sums, values)


def added_up(sums: Pattern, values: Tensor) -> Tensor:
    """For each row of a pattern, the sum of the values that it names."""
    ones = nm.ones((sums.nnz,), dtype=values.dtype, device=values.device)
    return product(sums, ones, values[:, None])[:, 0]


def to_bsr(structure: Structure, values: Tensor, block: tuple[int, int]) -> Parts:
    m, n = require_matrix(structure.shape, "to_bsr")
    height, width = block
    if height < 1 or width < 1 or m % height or n % width:
        raise ShapeError(f"to_bsr: blocks of {block} do not tile a matrix of shape {(m, n)}")
    if isinstance(structure, BSR) and structure.block == tuple(block):
        return structure, values
    pattern, values = canonical(structure, values)
    row, column = (x.astype(np.int64) for x in (pattern.rows.array, pattern.indices.array))
    number = (row // height) * (n // width) + column // width
    blocks, at = np.unique(number, return_inverse=True)
    dtype = index_dtype(m, n, blocks.size * height * width)
    pointers = np.zeros(m // height + 1, dtype)
    rows = blocks // max(1, n // width)
    pointers[1:] = np.cumsum(np.bincount(rows, minlength=m // height))
    columns = (blocks % max(1, n // width)).astype(dtype)
    made = BSR((m, n), (height, width), Pattern((m // height, n // width), pointers, columns))
    place = (at * height + row % height) * width + column % width
    return made, spread(values, place, made.nnz).reshape(made.values_shape)


def spread(values: Tensor, place: Array, count: int) -> Tensor:
    """Values at different places among zeros."""
    source = np.full(count, -1, np.int64)
    source[place] = np.arange(place.size)
    found = taken_or_zero(values, source)
    return found


def taken_or_zero(values: Tensor, source: Array) -> Tensor:
    """values[source], zero where it is negative."""
    if values.shape[0] == 0:
        return nm.zeros(source.shape, dtype=values.dtype, device=values.device)
    dtype = index_dtype(values.shape[0])
    there = OnDevices(np.maximum(source, 0).astype(dtype))
    found = taken(values, there)
    if (source >= 0).all():
        return found
    inside = nm.asarray(source >= 0, device=values.device)
    return nm.where(inside, found, nm.zeros((), dtype=values.dtype, device=values.device))


def to_dia(structure: Structure, values: Tensor) -> Parts:
    m, n = require_matrix(structure.shape, "to_dia")
    if isinstance(structure, DIA):
        return structure, values
    pattern, values = canonical(structure, values)
    row, column = (x.astype(np.int64) for x in (pattern.rows.array, pattern.indices.array))
    offsets, at = np.unique(column - row, return_inverse=True)
    made = DIA((m, n), offsets.astype(index_dtype(m, n)), n)
    return made, spread(values, at * n + column, made.nnz).reshape(made.values_shape)


def to_dense(structure: Structure, values: Tensor) -> Tensor:
    coordinates = structure.coordinates
    number = linear_index(coordinates, structure.shape)
    size = math.prod(structure.shape)
    found = entries(structure, values)
    starts, order = grouped(number, size) if size < 2**31 else (None, None)
    if starts is None or order is None:
        raise ShapeError(f"to_dense: a tensor of shape {structure.shape} is too large")
    if (np.diff(starts) <= 1).all():
        source = np.full(size, -1, np.int64)
        source[number] = np.arange(number.size)
        return taken_or_zero(found, source).reshape(structure.shape)
    sums = Pattern((size, number.size), starts, order)
    return added_up(sums, found).reshape(structure.shape)


def transpose(structure: Structure, values: Tensor, axes: Sequence[int]) -> Parts:
    axes = tuple(axes)
    if axes == tuple(range(structure.ndim)):
        return structure, values
    if isinstance(structure, COO):
        shape = tuple(structure.shape[a] for a in axes)
        return COO(shape, structure.indices[list(axes)]), values
    if isinstance(structure, BSR):
        swapped, order = structure.pattern.transposed
        made = kept(
            *(structure, "swapped"),
            lambda: BSR(structure.shape[::-1], structure.block[::-1], swapped),
        )
        return made, taken(values, order).mT
    if isinstance(structure, DIA):
        return to_dia(*to_coo(*transpose(*to_coo(structure, values), axes)))
    return structure.transposed, values


# -- products -------------------------------------------------------------------------------------


def matmul_dense(structure: Structure, values: Tensor, x: Tensor) -> Tensor:
    """A X of a matrix and dense columns (n, columns)."""
    if isinstance(structure, DIA) and len(structure.offsets) <= _MAX_FUSED_DIAGONALS:
        return _diagonals_times(structure, values, x)
    if isinstance(structure, CSC):
        return transposed_product(structure.pattern, values, x)
    pattern, values = by_rows(structure, values)
    return product(pattern, values, x)


def transposed_matmul_dense(structure: Structure, values: Tensor, x: Tensor) -> Tensor:
    """Aᵀ X."""
    if isinstance(structure, CSC):
        return product(structure.pattern, values, x)
    pattern, values = by_rows(structure, values)
    return transposed_product(pattern, values, x)


_MAX_FUSED_DIAGONALS = 16  # each is a shifted product, and their sum one kernel


def _diagonals_times(structure: DIA, values: Tensor, x: Tensor) -> Tensor:
    """A sum of shifted products: no index is read."""
    m, n = structure.shape
    total: Tensor | None = None
    for k, offset in enumerate(structure.offsets.tolist()):
        start, stop = max(0, offset), min(n, structure.width, m + offset)
        if stop <= start:
            continue
        part = values[k, start:stop][:, None] * x[start:stop]
        part = nm.pad(part, ((start - offset, m - (stop - offset)), (0, 0)))
        total = part if total is None else total + part
    if total is None:
        return nm.zeros((m, x.shape[1]), dtype=x.dtype, device=x.device)
    return total


def matmul_sparse(a: Parts, b: Parts) -> Parts:
    """A B, whose structure is kept with those of A and B."""
    left, values = canonical(*a)
    right, others = canonical(*b)
    key = right if right is not left else None  # a pattern that kept itself would stay for long
    found = left.__dict__.setdefault("products", {})
    if key not in found:
        dev = values._node.device or others._node.device or default.device
        found[key] = CSR(product_pattern(left, right, dev))
    made: CSR = found[key]
    return made, masked(left, right, made.pattern, values, others)


def masked_product(mask: Structure, a: Parts, b: Parts) -> tuple[Structure, Tensor]:
    """A B at the positions of a mask."""
    place, _ = canonical(mask, nm.zeros((mask.nnz,)).reshape(mask.values_shape))
    left, values = canonical(*a)
    right, others = canonical(*b)
    return csr_of(place), masked(left, right, place, values, others)


def sampled_product(structure: Structure, a: Tensor, b: Tensor) -> Parts:
    """The elements of a b at a structure's positions: SDDMM."""
    pattern, _ = structure.rows
    made = structure if isinstance(structure, CSR) else csr_of(pattern)
    return made, sampled(pattern, a, b.mT)


def csr_of(pattern: Pattern) -> CSR:
    if "structure" not in pattern.__dict__:
        pattern.__dict__["structure"] = CSR(pattern)
    found: CSR = pattern.__dict__["structure"]
    return found


# -- sums of structures ---------------------------------------------------------------------------


def add(a: Parts, b: Parts) -> Parts:
    """A + B on the union of two structures; on the same one, of their values alone."""
    (sa, va), (sb, vb) = a, b
    if sa is sb or sa == sb:
        return sa, va + vb
    if sa.ndim != 2:
        joined = COO(
            sa.shape, np.concatenate([to_coo(*a)[0].arrays()[0], to_coo(*b)[0].arrays()[0]], 1)
        )
        return merged(joined, nm.concatenate([to_coo(*a)[1], to_coo(*b)[1]]))
    left, values = canonical(*a)
    right, others = canonical(*b)
    found = left.__dict__.setdefault("sums", {})
    if right not in found:
        # A + B = [I I] (A over B), whose pattern the symbolic phase finds
        m, n = left.shape
        dtype = index_dtype(m, n, left.nnz + right.nnz)
        ends = right.pointers.array[1:].astype(np.int64) + left.nnz
        pointers = np.concatenate([left.pointers.array, ends]).astype(dtype)
        columns = np.concatenate([left.indices.array, right.indices.array]).astype(dtype)
        stacked = Pattern((2 * m, n), pointers, columns)
        pairs = np.stack([np.arange(m), np.arange(m) + m], 1).ravel()
        twice = Pattern((m, 2 * m), np.arange(0, 2 * m + 1, 2, dtype=dtype), pairs.astype(dtype))
        found[right] = twice, stacked, CSR(product_pattern(twice, stacked))
    twice, stacked, made = found[right]
    both = nm.concatenate([values, others])
    ones = nm.ones((twice.nnz,), dtype=both.dtype, device=both.device)
    return made, masked(twice, stacked, made.pattern, ones, both)


def merged(structure: COO, values: Tensor) -> tuple[COO, Tensor]:
    """Coordinates in row-major order, duplicates added up."""
    number = structure.linear
    order = np.argsort(number, kind="stable")
    ordered = number[order]
    new = np.ones(number.size, bool)
    new[1:] = ordered[1:] != ordered[:-1]
    first = np.flatnonzero(new)
    dtype = index_dtype(number.size)
    made = COO(structure.shape, structure.indices[:, order[first]])
    if first.size == number.size:
        return made, taken(values, OnDevices(order.astype(dtype)))
    ends = np.append(first, number.size).astype(dtype)
    sums = Pattern((first.size, number.size), ends, order.astype(dtype))
    return made, added_up(sums, values)


def multiply(a: Parts, b: Parts) -> Parts:
    """A * B on the intersection of two structures."""
    (sa, va), (sb, vb) = a, b
    if (sa is sb or sa == sb) and is_canonical(sa):
        return sa, va * vb
    (ca, va), (cb, vb) = merged(*_coo(a)), merged(*_coo(b))
    _, at, there = np.intersect1d(ca.linear, cb.linear, assume_unique=True, return_indices=True)
    dtype = index_dtype(ca.nnz, cb.nnz)
    made = COO(sa.shape, ca.indices[:, at])
    values = taken(va, OnDevices(at.astype(dtype))) * taken(vb, OnDevices(there.astype(dtype)))
    return format_like(made, values, sa)


def is_canonical(structure: Structure) -> bool:
    """No position is stored twice."""
    if isinstance(structure, DIA):
        return len(np.unique(structure.offsets)) == len(structure.offsets)
    if isinstance(structure, (CSR, CSC, BSR)):
        return structure.pattern.is_canonical
    return bool(
        np.unique(linear_index(structure.coordinates, structure.shape)).size == structure.nnz
    )


def _coo(parts: Parts) -> tuple[COO, Tensor]:
    structure, values = to_coo(*parts)
    assert isinstance(structure, COO)
    return structure, values


def format_like(structure: Structure, values: Tensor, like: Structure) -> Parts:
    """In the format of another, where that can be without storing more."""
    if like.format in ("csr", "bsr", "dia"):
        return to_csr(structure, values)
    return to_csc(structure, values) if like.format == "csc" else (structure, values)


def at_entries(structure: Structure, dense: Tensor) -> Tensor:
    """Elements of a dense tensor that broadcasts to the shape, at the entries."""
    shape = tuple(dense.shape)
    lead = structure.ndim - len(shape)
    ok = lead >= 0 and all(
        n in (1, m) for n, m in zip(shape, structure.shape[max(lead, 0) :], strict=False)
    )
    if not ok:
        raise ShapeError(
            f"multiply: a dense {shape} does not broadcast to a sparse tensor of {structure.shape}"
        )
    inner = structure.coordinates[lead:]
    parts = [np.zeros_like(c) if n == 1 else c for n, c in zip(shape, inner, strict=True)]
    if not parts or all(n == 1 for n in shape):
        return dense.reshape(())
    number = linear_index(tuple(parts), shape)
    return taken(dense.reshape(-1), OnDevices(number.astype(index_dtype(math.prod(shape)))))


def reduced(structure: Structure, values: Tensor, axes: Shape) -> tuple[Pattern, Tensor, Shape]:
    """Entries by what remains of their index: a pattern of (kept, reduced), and the kept shape."""
    keep = tuple(i for i in range(structure.ndim) if i not in axes)
    coordinates = structure.coordinates
    shape = tuple(structure.shape[i] for i in keep)
    rest = tuple(structure.shape[i] for i in axes)
    row = linear_index(tuple(coordinates[i] for i in keep), shape)
    column = linear_index(tuple(coordinates[i] for i in axes), rest)
    starts, order = grouped(np.broadcast_to(row, (coordinates[0].shape[0],)), math.prod(shape))
    pattern = Pattern((math.prod(shape), math.prod(rest)), starts, column[order])
    return pattern, taken(entries(structure, values), OnDevices(order)), shape


def row_sums(pattern: Pattern, values: Tensor) -> Tensor:
    ones = nm.ones((pattern.shape[1], 1), dtype=values.dtype, device=values.device)
    return product(pattern, values, ones)[:, 0]


def row_extremes(op: str, pattern: Pattern, values: Tensor) -> Tensor:
    """The largest or smallest element of each row; zero is one where a row is not full."""
    rows = nm.asarray(pattern.rows.array.astype(np.int64), device=values.device)
    reduce, combine = (nm.segment_max, nm.maximum) if op == "max" else (nm.segment_min, nm.minimum)
    found = reduce(values, rows, pattern.shape[0])
    full = nm.asarray(pattern.counts == pattern.shape[1], device=values.device)
    zero = nm.zeros((), dtype=values.dtype, device=values.device)
    return nm.where(full, found, combine(found, zero))


def selected(structure: Structure, values: Tensor, keep: Array) -> Parts:
    """Some entries of coordinates, by number."""
    coordinates = structure.coordinates
    made = COO(structure.shape, np.stack([c[keep] for c in coordinates]))
    return made, taken(
        entries(structure, values), OnDevices(keep.astype(index_dtype(structure.nnz)))
    )


def reshape(structure: Structure, values: Tensor, shape: Shape) -> Parts:
    size = math.prod(structure.shape)
    unknown = [i for i, n in enumerate(shape) if n == -1]
    if len(unknown) == 1:
        rest = math.prod(n for n in shape if n != -1)
        missing = size // rest if rest else 0
        shape = tuple(missing if n == -1 else n for n in shape)
    if math.prod(shape) != size or min(shape, default=0) < 0:
        raise ShapeError(f"reshape: {structure.shape} into {shape}")
    coo, values = _coo((structure, values))
    number = coo.linear
    indices = np.stack(np.unravel_index(number, shape)) if shape else np.zeros((0, 1))
    return COO(shape, indices.astype(index_dtype(*shape))), values
