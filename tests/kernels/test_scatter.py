"""Scatters of many updates: in tables, by columns; every update once, none outside."""

import numpy as np
import pytest

import numus as nm
from numus.functions._base import wrap
from numus.primitives.indexing import scatter

RNG = np.random.default_rng(0)
MODES = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def node(array):
    return nm.asarray(array)._node


def scattered(base, indices, updates, axes, mode):
    return wrap(scatter(node(base), tuple(map(node, indices)), node(updates), axes, mode)).numpy()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.float16])
def test_many_updates_of_few_elements(mode, dtype):
    if dtype is np.float16 and mode in ("add", "mul"):
        pytest.skip("its rounding errors grow with every update")
    for count, size in ((70_003, 10), (100_003, 1_000), (40_000, 1)):
        index = RNG.integers(-2, size + 2, count)  # some of them outside
        near_one = RNG.random(count) * 1e-4 + 1 if mode == "mul" else RNG.random(count) * 3
        updates, base = near_one.astype(dtype), np.ones(size, dtype)
        inside = (index >= 0) & (index < size)
        wanted = base.astype(np.float64 if np.dtype(dtype).kind == "f" else dtype)
        MODES[mode].at(wanted, index[inside], updates[inside].astype(wanted.dtype))
        found = scattered(base, (index,), updates, (0,), mode)
        np.testing.assert_allclose(
            found, wanted, rtol=2e-3 if np.dtype(dtype).itemsize < 8 else 1e-9
        )


def test_tables_with_columns_between_the_indexed_axes():
    i, j = RNG.integers(0, 5, 80_000), RNG.integers(0, 4, 80_000)
    updates = RNG.random((80_000, 3)).astype(np.float32)
    wanted = np.zeros((5, 3, 4))
    np.add.at(wanted, (i, slice(None), j), updates)
    found = scattered(np.zeros((5, 3, 4), np.float32), (i, j), updates, (0, 2), "add")
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


@pytest.mark.parametrize("columns", [1, 15, 17, 130, 1_025])
def test_columns_are_owned_by_one_block_each(columns):
    index = RNG.integers(0, 50, 300)
    updates = RNG.standard_normal((300, columns))
    wanted = np.zeros((50, columns))
    np.add.at(wanted, index, updates)
    found = scattered(np.zeros((50, columns)), (index,), updates, (0,), "add")
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", [*MODES, "set"])
def test_single_elements_are_owned_by_one_block_each(mode):
    shape, count = (301, 199), 70_003
    i, j = RNG.integers(-2, shape[0] + 2, count), RNG.integers(-2, shape[1] + 2, count)
    updates = RNG.integers(1, 4, count).astype(np.float32)
    inside = (i >= 0) & (i < shape[0]) & (j >= 0) & (j < shape[1])
    wanted = np.ones(shape, np.float32)
    if mode == "set":
        wanted[i[inside], j[inside]] = updates[inside] * 2
    else:
        MODES[mode].at(wanted, (i[inside], j[inside]), updates[inside] * 2)
    doubled = (nm.asarray(updates) * 2)._node
    base = node(np.ones(shape, np.float32))
    found = wrap(scatter(base, (node(i), node(j)), doubled, (0, 1), mode)).numpy()
    np.testing.assert_array_equal(found, wanted)
