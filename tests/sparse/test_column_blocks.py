"""Products with a vector that is read in blocks of columns, on CPUs."""

import dataclasses
import itertools

import numpy as np
import pytest

import numus as nm
from numus import sparse
from numus.runtime.devices import device
from numus.sparse import pattern as patterns
from numus.sparse.algorithms import column_blocks
from numus.sparse.pattern import Pattern
from numus.sparse.structure import CSR

ROWS, COLUMNS = 4000, 3 * column_blocks.BLOCK_COLUMNS + 5
TARGET = dataclasses.replace(device("cpu").runtime.target, l2_bytes=1 << 10, num_cores=1)


def arrays(seed=0, longest=40):
    """Random columns in no order, some of them twice in a row; rows of all lengths."""
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, longest, ROWS) * rng.integers(0, 2, ROWS)
    counts[:3] = counts[-3:] = 0
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = rng.integers(0, COLUMNS, pointers[-1]).astype(np.int32)
    indices[1000:1010], indices[-1], indices[-2] = indices[1000], COLUMNS - 1, 0
    return pointers, indices


@pytest.fixture
def panels(monkeypatch):
    """Panels of a few rows."""
    monkeypatch.setattr(column_blocks, "PANEL_ENTRIES", 1 << 10)
    monkeypatch.setattr(column_blocks, "SAMPLE_ENTRIES", 1 << 10)
    found = column_blocks.column_blocks

    def small(columns, pointers, indices, target):
        return found(columns, pointers, indices, TARGET)

    monkeypatch.setattr(patterns, "column_blocks", small)


def both(values, seed=0):
    """A matrix whose products have no blocks yet, and one whose products have some."""
    first, second = (Pattern((ROWS, COLUMNS), *arrays(seed)) for _ in range(2))
    assert len(second.blocks) == 4
    second._products = 10
    return tuple(sparse.SparseTensor(CSR(p), values) for p in (first, second))


def test_blocks_sort_entries_stably(panels):
    pointers, indices = arrays()
    found = column_blocks.column_blocks(COLUMNS, pointers, indices, TARGET)
    edges = pointers[found.panels]
    assert edges[0] == 0
    assert edges[-1] == indices.size
    assert 0 < np.diff(edges).max() <= 1 << 10
    for t, (begin, end) in enumerate(itertools.pairwise(edges)):
        blocks = indices[begin:end] // column_blocks.BLOCK_COLUMNS
        order = np.argsort(blocks, kind="stable")
        np.testing.assert_array_equal(found.places[begin:end][order], np.arange(end - begin))
        np.testing.assert_array_equal(
            found.offsets[begin:end], (indices[begin:end] % column_blocks.BLOCK_COLUMNS)[order]
        )
        starts = found.starts[4 * t : 4 * t + 5] - begin
        np.testing.assert_array_equal(starts, np.searchsorted(blocks[order], np.arange(5)))


def test_blocks_are_for_columns_in_random_order(panels):
    pointers, indices = arrays()
    find = column_blocks.column_blocks
    assert find(COLUMNS, pointers, indices, TARGET) is not None
    assert find(COLUMNS, pointers, np.sort(indices), TARGET) is None
    assert find(COLUMNS, pointers, indices, dataclasses.replace(TARGET, l2_bytes=1 << 30)) is None
    assert find(COLUMNS, pointers, indices, dataclasses.replace(TARGET, num_cores=999)) is None
    long = np.minimum(pointers, 0)
    long[-1] = indices.size
    assert find(COLUMNS, long, indices, TARGET) is None
    for wrong in (-1, COLUMNS):
        out = indices.copy()
        out[7] = wrong
        assert find(COLUMNS, pointers, out, TARGET) is None


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "int64", "float16"])
def test_products_by_blocks_have_the_bits_of_those_by_rows(panels, dtype):
    rng = np.random.default_rng(1)
    count = arrays()[1].size
    values = nm.asarray((10 * rng.standard_normal(count)).astype(dtype))
    x = (10 * rng.standard_normal(COLUMNS)).astype(dtype)
    x[5] = x[COLUMNS - 1] = np.nan if np.dtype(dtype).kind in "fc" else 0
    plain, blocked = both(values)
    wanted = (plain @ nm.asarray(x)).numpy()
    np.testing.assert_array_equal((blocked @ nm.asarray(x)).numpy(), wanted)
    assert plain.structure.pattern._products == 1
    fused = nm.asarray(x) * 2 + 1  # computed by the product
    np.testing.assert_array_equal(
        (blocked @ fused).numpy(), (plain @ nm.asarray(fused.numpy())).numpy()
    )


def test_blocks_come_in_programs_and_after_a_few_products(panels):
    values = nm.ones(arrays()[1].size)
    plain, _ = both(values)
    pattern, x = plain.structure.pattern, nm.asarray(np.arange(COLUMNS, dtype=np.float32))
    wanted = (plain @ x).numpy()
    assert "blocks" not in pattern.__dict__
    for _ in range(5):
        np.testing.assert_array_equal((plain @ x).numpy(), wanted)
    assert "blocks" in pattern.__dict__
    again = sparse.SparseTensor(CSR(Pattern(plain.shape, *arrays())), values)
    np.testing.assert_array_equal(nm.jit(lambda x: again @ x)(x).numpy(), wanted)
    assert "blocks" in again.structure.pattern.__dict__


def test_products_by_blocks_in_batches_and_their_gradients(panels):
    rng = np.random.default_rng(2)
    count = arrays()[1].size
    values = nm.asarray(rng.standard_normal(count))
    plain, blocked = both(values)
    xs = nm.asarray(rng.standard_normal((3, COLUMNS)))
    found = nm.vmap(lambda x: blocked @ x)(xs).numpy()
    np.testing.assert_allclose(found, [(plain @ x).numpy() for x in xs], rtol=1e-12, atol=1e-12)
    several = nm.stack([values, 2 * values])
    structure = blocked.structure
    found = nm.vmap(lambda v: sparse.SparseTensor(structure, v) @ xs[0])(several).numpy()
    one = (plain @ xs[0]).numpy()
    np.testing.assert_array_equal(found, [one, 2 * one])

    def gradients(a):
        def loss(v, x):
            return nm.sum((sparse.SparseTensor(a.structure, v) @ x) ** 2)

        return nm.grad(loss, (0, 1))(values, xs[0])

    for one, other in zip(gradients(plain), gradients(blocked), strict=True):
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-12, atol=1e-12)
