"""SIMD argmax and argmin along rows: the first of equal elements, and NaN wins."""

import numpy as np
import pytest

import numus as nm

DTYPES = ["float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "int32", "int64"]
DTYPES += ["uint32", "uint64", "bool"]


def compare(array, dtype, axis=None):
    x = nm.asarray(array).astype(dtype)
    for y in (x, x[::-1]):
        exact = y.astype("float32").numpy() if dtype == "bfloat16" else y.numpy()
        for name in ("argmax", "argmin"):
            got = getattr(nm, name)(y, axis=axis).numpy()
            np.testing.assert_array_equal(got, getattr(np, name)(exact, axis=axis))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 17, 64, 65, 1000, 70_001])
def test_ties_and_extreme_values(dtype, size):
    rng = np.random.default_rng(size)
    compare(rng.integers(0, 4, size), dtype)
    compare(rng.integers(0, 100, size), dtype)
    kind = getattr(nm, dtype)
    if kind.is_floating:
        compare(np.full(size, -np.inf), dtype)
        compare(np.full(size, np.inf), dtype)
        holes = rng.standard_normal(size)
        holes[rng.integers(0, size, 1 + size // 50)] = np.nan
        compare(holes, dtype)
    elif kind.is_integer:
        limits = np.iinfo(dtype)
        compare(np.full(size, limits.min, dtype), dtype)
        compare(np.full(size, limits.max, dtype), dtype)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
@pytest.mark.parametrize("shape", [(5, 40, 33), (3, 2, 257)])
def test_along_an_axis(shape, axis):
    compare(np.random.default_rng(0).integers(0, 9, shape), "float32", axis)


@pytest.mark.on_cpu("vectors of its kernels")
def test_whole_arrays_are_vectorized():
    x = nm.ones((1 << 16,))
    kernel = nm.explain(nm.argmax(x), timed=False).kernels[0]
    assert "lanes_min_where" in kernel.ir
