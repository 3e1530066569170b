"""Sub-warp row reductions on an emulated GPU: a few threads for each short row."""

import numpy as np
import pytest
import simt_machine

import numus as nm

simt_machine.install()
MACHINE = nm.device("simt_wgmma").runtime
RNG = np.random.default_rng(3)


def run(function, *arrays):
    """The results, and the names of the kernels."""
    given = [nm.asarray(a, device="simt_wgmma") for a in arrays]
    nm.eval(*given)
    MACHINE.launched.clear()
    found = function(*given)
    found = found if isinstance(found, tuple) else (found,)
    nm.eval(*found)
    return [x.numpy() for x in found], [p.name for p in MACHINE.launched]


@pytest.mark.parametrize("width", [9, 16, 17, 31, 64, 100, 256])
def test_sums_of_products(width):
    a, b = RNG.standard_normal((2, 7, 9, width)).astype(np.float32)
    (found,), names = run(lambda a, b: (a * b).sum(2), a, b)
    np.testing.assert_allclose(found, (a * b).sum(2), rtol=1e-5, atol=1e-5)
    assert names == ["subwarp_row_reduction"]


def test_rows_in_several_stages():
    x = RNG.standard_normal((70, 50)).astype(np.float32)
    (soft,), names = run(lambda x: nm.softmax(x, axis=1), x)
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(soft, e / e.sum(1, keepdims=True), rtol=1e-5)
    assert names == ["subwarp_row_reduction"]
    (mean, variance), _ = run(lambda x: (x.mean(1), x.var(1)), x)
    np.testing.assert_allclose(mean, x.mean(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(variance, x.var(1), rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.uint8, np.complex64, np.float16])
def test_dtypes(dtype):
    x = (RNG.standard_normal((66, 33)) * 4).astype(dtype)
    (total,), names = run(lambda x: x.sum(1, dtype=x.dtype), x)
    near = 1e-2 if x.itemsize == 2 else 1e-5
    np.testing.assert_allclose(total, x.sum(1, dtype=dtype), rtol=near, atol=10 * near)
    assert names == ["subwarp_row_reduction"]


def test_argmax_and_argmin():
    x = RNG.integers(0, 5, (80, 40)).astype(np.float32)
    x[3, 20] = np.nan
    (first, last), names = run(lambda x: (x.argmax(1), x.argmin(1)), x)
    np.testing.assert_array_equal(first, x.argmax(1))
    np.testing.assert_array_equal(last, x.argmin(1))
    assert set(names) == {"subwarp_row_reduction"}


def test_any_and_all():
    x = RNG.random((90, 20)) < 0.1
    (some, every), _ = run(lambda x: (x.any(1), (~x).all(1)), x)
    np.testing.assert_array_equal(some, x.any(1))
    np.testing.assert_array_equal(every, (~x).all(1))


def test_columns_use_another_kernel():
    x = RNG.standard_normal((40, 200)).astype(np.float32)
    (found,), names = run(lambda x: x.sum(0), x)
    np.testing.assert_allclose(found, x.sum(0), rtol=1e-4, atol=1e-5)
    assert "subwarp_row_reduction" not in names
