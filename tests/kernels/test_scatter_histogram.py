"""Scatter-adds of integers by privatized histograms on an interpreted GPU with atomics."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.functions._base import wrap
from numus.primitives.indexing import scatter

simt_machine.install()
DEVICE = "simt_ordered"
rng = np.random.default_rng(3)


def run(function, *arrays):
    """The result, and the kernels that computed it."""
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    found = function(*(nm.asarray(a, device=DEVICE) for a in arrays)).numpy()
    return found, [p.name for p in runtime.launched]


@pytest.mark.parametrize("count", [40, 4096, 9001])
def test_counts(count):
    index = rng.integers(-2, 12, count)
    found, names = run(lambda x: nm.bincount(x, length=10), index)
    assert "scatter_histogram" in names
    inside = index[(index >= 0) & (index < 10)]
    np.testing.assert_array_equal(found, np.bincount(inside, minlength=10))


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_integers_wrap_as_they_do_elsewhere(dtype):
    info = np.iinfo(dtype)
    index = rng.integers(0, 7, 300)
    base = rng.integers(info.min, info.max, 7, dtype=dtype)
    updates = rng.integers(info.min, info.max, 300, dtype=dtype)

    def added(b, i, u):
        return wrap(scatter(b._node, (i._node,), u._node, (0,), "add"))

    found, names = run(added, base, index, updates)
    assert "scatter_histogram" in names
    wanted = base.copy()
    np.add.at(wanted, index, updates)
    np.testing.assert_array_equal(found, wanted)


def test_pairs_of_indices_and_a_base():
    rows, columns = rng.integers(0, 5, (2, 20, 9))

    def added(r, c):
        base = nm.ones((5, 5), dtype="int64", device=DEVICE)
        one = nm.ones((20, 9), dtype="int64", device=DEVICE)
        return wrap(scatter(base._node, (r._node, c._node), one._node, (0, 1), "add"))

    found, names = run(added, rows, columns)
    assert "scatter_histogram" in names
    wanted = np.ones((5, 5), np.int64)
    np.add.at(wanted, (rows, columns), 1)
    np.testing.assert_array_equal(found, wanted)


def test_destinations_with_axes_of_one_element():
    index = rng.integers(0, 6, 100)
    updates = rng.integers(-9, 9, (100, 1, 1))

    def added(i, u):
        base = nm.ones((1, 6, 1), dtype="int64", device=DEVICE)
        return wrap(scatter(base._node, (i._node,), u._node, (1,), "add"))

    found, names = run(added, index, updates)
    assert "scatter_histogram" in names
    wanted = np.ones((1, 6, 1), np.int64)
    np.add.at(wanted[0, :, 0], index, updates[:, 0, 0])
    np.testing.assert_array_equal(found, wanted)


def test_sums_of_floats_keep_their_order():
    _, names = run(
        lambda x: nm.bincount(x, weights=nm.ones(100, device=DEVICE), length=4),
        np.zeros(100, np.int64),
    )
    assert "scatter_histogram" not in names


def test_a_histogram():
    x = rng.standard_normal(5000).astype(np.float32)
    found, names = run(lambda t: nm.histogram(t, 16, (-2, 2))[0], x)
    assert "scatter_histogram" in names
    np.testing.assert_array_equal(found, np.histogram(x, 16, (-2, 2))[0])
