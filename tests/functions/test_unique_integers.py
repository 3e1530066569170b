"""unique of integers by counting and by narrow sorts; histograms whose graphs are templates."""

import numpy as np
import pytest

import numus as nm
from numus.functions.ordering import sets


@pytest.mark.parametrize("dtype", ["int8", "uint32", "int64", "uint64"])
def test_unique_finds_the_range_first(dtype, monkeypatch):
    monkeypatch.setattr(sets, "MIN_COUNTED", 1)
    info = np.iinfo(dtype)
    rng = np.random.default_rng(0)
    ends = (info.min, info.max), (info.max - 3, info.max), (info.min, info.min + 9)
    for low, high in (*ends, (5, min(info.max, 1 << 31))):  # close together or not
        x = rng.integers(low, high, 70, dtype=dtype, endpoint=True)
        values, counts = nm.unique(nm.asarray(x), return_counts=True)
        wanted = np.unique(x, return_counts=True)
        assert values.dtype == nm.asarray(x).dtype
        np.testing.assert_array_equal(values.numpy(), wanted[0])
        np.testing.assert_array_equal(counts.numpy(), wanted[1])


def test_histograms_of_changing_ranges_and_bins():
    x = np.random.default_rng(1).random((6, 5)).astype(np.float32)
    for k in range(12):
        bins, limits = (10, 7)[k % 2], ((0.0, 1.0), (0.0, 2.0), (-1.0, 0.5), None)[k % 4]
        counts, edges = nm.histogram(nm.asarray(x), bins, limits)
        wanted, at = np.histogram(x, bins, limits)
        np.testing.assert_allclose(edges.numpy(), at, rtol=1e-6, atol=1e-7)
        assert counts.tolist() == wanted.tolist()
