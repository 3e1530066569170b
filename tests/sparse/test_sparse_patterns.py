"""Patterns of compressed rows: transposes, sorted and merged columns, patterns of products."""

import gc
import itertools
import weakref

import numpy as np
import pytest

import numus as nm
from numus import sparse
from numus.sparse.pattern import Pattern, product_pattern
from numus.sparse.structure import CSR

RNG = np.random.default_rng(0)


def rows_of(pattern):
    ends = pattern.pointers.array
    return [pattern.indices.array[a:b].tolist() for a, b in itertools.pairwise(ends)]


def pattern_of(rows, columns, dtype):
    ends = np.cumsum([0, *map(len, rows)]).astype(dtype)
    flat = np.array([c for row in rows for c in row], dtype)
    return Pattern((len(rows), columns), ends, flat)


def drawn(rows, columns, most, dtype="i4"):
    """Columns in any order, some of them twice; some rows without any, one in runs."""
    found = [RNG.integers(0, columns, RNG.integers(0, most)).tolist() for _ in range(rows)]
    found[rows // 2] = []
    if columns > 300:
        found[-1] = [*range(columns - 200, columns), *range(60, 70), 0]
    return pattern_of(found, columns, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((40, 9), "i4"), ((30, 13_000), "i4"), ((2, 1), "i4"), ((9, 70), "i8")]
)
def test_sorted_and_merged_columns(shape, dtype):
    pattern = drawn(*shape, 12, dtype)
    merged, sums = pattern.canonical
    assert rows_of(merged) == [sorted(set(row)) for row in rows_of(pattern)]
    assert merged.is_canonical
    entries = pattern.rows.array * shape[1] + pattern.indices.array
    mine = merged.rows.array * shape[1] + merged.indices.array
    for place, group in zip(mine, rows_of(sums), strict=True):
        assert group == np.flatnonzero(entries == place).tolist()
    swapped, order = pattern.transposed
    by_column = np.argsort(pattern.indices.array, kind="stable")
    np.testing.assert_array_equal(order.array, by_column)
    np.testing.assert_array_equal(swapped.indices.array, pattern.rows.array[by_column])


@pytest.mark.parametrize(("columns", "dtype"), [(1, "i4"), (64, "i4"), (9000, "i4"), (65, "i8")])
def test_patterns_of_products(columns, dtype):
    a = drawn(25, 31, 8, dtype).canonical[0]
    b = drawn(31, columns, 40, dtype).canonical[0]
    found, others = product_pattern(a, b), rows_of(b)
    wanted = [sorted({c for k in row for c in others[k]}) for row in rows_of(a)]
    assert rows_of(found) == wanted
    values = [nm.asarray(RNG.standard_normal(p.nnz)) for p in (a, b)]
    left, right = (sparse.SparseTensor(CSR(p), v) for p, v in zip((a, b), values, strict=True))
    product = (left @ right).to_dense().numpy()
    dense = left.to_dense().numpy() @ right.to_dense().numpy()
    np.testing.assert_allclose(product, dense, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 5)), ((3, 0), (0, 5)), ((3, 4), (4, 0))])
def test_products_without_entries(shapes):
    a, b = (sparse.from_dense(nm.zeros(shape, dtype="float64")) for shape in shapes)
    product = a @ b
    assert product.shape == (shapes[0][0], shapes[1][1])
    assert product.nnz == 0


def test_patterns_go_with_their_last_tensor():
    a = sparse.from_dense(nm.eye(5, dtype="float64") + 1)
    product = a @ a
    nm.eval(product.values, a @ nm.ones(5, dtype="float64"))
    kept = [weakref.ref(x.structure.pattern) for x in (a, product)]
    gc.disable()
    try:
        del a, product
        assert [r() for r in kept] == [None, None]
    finally:
        gc.enable()


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
def test_products_of_rows_alike_and_others(dtype):
    lengths = [3, 3, 3, 3, 2, 3, 3, 3, 0, 0, 0, 0, 5, 5, 5]  # by fours, the last three left over
    rows = [sorted(RNG.choice(17, n, replace=False).tolist()) for n in lengths]

    def product(order):
        pattern = pattern_of([rows[i] for i in order], 17, "i4")
        own = np.concatenate([values[i] for i in order])
        a = sparse.SparseTensor(CSR(pattern), nm.asarray(own.astype(dtype)))
        return a, (a @ x).numpy()

    values = [RNG.standard_normal(n) for n in lengths]
    x = nm.asarray(RNG.standard_normal(17).astype(dtype))
    a, found = product(range(15))
    dense = a.to_dense().numpy() @ x.numpy()
    np.testing.assert_allclose(found, dense, rtol=1e-5, atol=1e-6)
    other = RNG.permutation(15)
    np.testing.assert_array_equal(product(other)[1], found[other])  # whatever is beside a row


def stencil_rows(n, rng):
    """Rows whose columns move with them, in runs of all lengths, some of them empty, and others."""
    rows = []
    while len(rows) < n - 60:
        offsets = np.unique(rng.integers(-50, 50, rng.integers(0, 8)))
        for row in range(len(rows), len(rows) + rng.integers(1, 120)):
            inside = (row + offsets >= 0).all() and (row + offsets < n).all()
            rows.append((row + offsets).tolist() if inside else [row % 7])
    return [*rows[: n - 60], *(rng.integers(0, n, 3).tolist() for _ in range(60))]


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64"])
def test_products_of_runs_of_rows(dtype):
    rng = np.random.default_rng(5)
    n = 3000
    rows = stencil_rows(n, rng)
    a = pattern_of(rows, n, "i4")
    tasks, first, template, _ = (x.array for x in a.runs)
    assert first[0] == 0
    assert first[-1] == n
    assert (template >= 0).any()
    assert (template < 0).any()
    assert tasks[-1] == template.size
    values = (10 * rng.standard_normal(a.nnz)).astype(dtype)
    x = nm.asarray((10 * rng.standard_normal(n)).astype(dtype))
    found = (sparse.SparseTensor(CSR(a), nm.asarray(values)) @ x).numpy()
    order = rng.permutation(n)
    ends = a.pointers.array
    shuffled = pattern_of([rows[i] for i in order], n, "i4")
    assert not shuffled.runs
    own = np.concatenate([values[ends[i] : ends[i + 1]] for i in order])
    other = sparse.SparseTensor(CSR(shuffled), nm.asarray(own))
    np.testing.assert_array_equal((other @ x).numpy(), found[order])  # bit by bit
    wanted = np.zeros(n, dtype)
    np.add.at(wanted, a.rows.array, values * x.numpy()[a.indices.array])
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
    if dtype == "float64":
        batch = nm.stack([nm.asarray(values), nm.asarray(2 * values)])
        both = nm.vmap(lambda v: sparse.SparseTensor(CSR(a), v) @ x)(batch).numpy()
        np.testing.assert_array_equal(both, [found, 2 * found])
        whole = sparse.SparseTensor(CSR(a), nm.asarray(values))
        by_x = nm.vmap(lambda x: whole @ x)(nm.stack([x, 2 * x])).numpy()
        np.testing.assert_allclose(by_x, [found, 2 * found], rtol=1e-12)
