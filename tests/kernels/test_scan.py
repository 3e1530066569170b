"""CPU scan schedules: vectors of one row, a row per lane, reduce-then-scan."""

import numpy as np
import pytest

import numus as nm

RNG = np.random.default_rng(0)
# shape, axis: rows shorter and longer than a vector, rows side by side, parts of few long rows
SHAPES = (
    *(((5,), 0), ((1,), 0), ((0, 3), 1), ((0, 3), 0), ((3, 100), 1), ((3, 100), 0)),
    *(((50, 17), 1), ((50, 17), 0), ((5, 6, 7), 1), ((2, 3, 100), 2), ((4_000, 70), 0)),
    *(((150_001,), 0), ((2, 140_000), 1), ((30_000, 3), 0), ((140_000, 1), 0)),
)
SCANS = {
    "sum": (nm.cumsum, np.cumsum),
    "prod": (nm.cumprod, np.cumprod),
    "max": (nm.cummax, np.maximum.accumulate),
    "min": (nm.cummin, np.minimum.accumulate),
}


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.complex64])
def test_every_schedule(name, dtype):
    function, reference = SCANS[name]
    kind = np.dtype(dtype).kind
    if kind == "c" and name in ("max", "min"):
        pytest.skip("complex numbers have no order")
    rounding = {"f": 1e-9 if dtype is np.float64 else 2e-3, "i": 0, "c": 5e-3}[kind]
    for shape, axis in SHAPES:
        if kind == "i":
            a = RNG.integers(-1, 2, shape).astype(dtype)
        elif kind == "c":
            a = np.exp(1j * RNG.random(shape)).astype(dtype)
        else:
            a = (1 + RNG.random(shape) * 1e-4).astype(dtype)
        wide = a.astype({"f": np.float64, "i": np.int64, "c": np.complex128}[kind])
        wanted = reference(wide, axis=axis)
        found = function(nm.asarray(a), axis=axis)
        np.testing.assert_allclose(found.numpy(), wanted, rtol=rounding, atol=rounding)
        fused = function(nm.asarray(a) * 1, axis=axis) * 2 - 1  # fused at both ends
        np.testing.assert_allclose(fused.numpy(), wanted * 2 - 1, rtol=rounding, atol=rounding)


def test_cumsum_of_non_negative_elements_decreases_by_rounding_at_most():
    """Also across vectors and parts; not at all after cummax."""
    a = RNG.random(200_000).astype(np.float32)
    a[RNG.random(a.size) < 0.5] = 0
    total = nm.cumsum(nm.asarray(a))
    found = total.numpy()
    assert (np.diff(found) >= -1e-6 * found[1:]).all()
    assert (np.diff(nm.cummax(total).numpy()) >= 0).all()


def test_nan_propagates():
    a = RNG.standard_normal(200_000).astype(np.float32)
    a[77_777] = np.nan
    np.testing.assert_array_equal(nm.cummax(nm.asarray(a)).numpy(), np.maximum.accumulate(a))


def test_log_sums():
    a = RNG.standard_normal(150_000)
    wanted = np.logaddexp.accumulate(a)
    np.testing.assert_allclose(nm.logcumsumexp(nm.asarray(a)).numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("shape", [(1,), (5, 1), (1, 5), (1, 1)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_one_element(shape, dtype):
    """Every lane holds the same number then, and what is shifted in still differs."""
    array = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    for axis in range(len(shape)):
        found = nm.logcumsumexp(nm.asarray(array), axis=axis).numpy()
        np.testing.assert_allclose(found, np.logaddexp.accumulate(array, axis=axis), rtol=1e-5)
