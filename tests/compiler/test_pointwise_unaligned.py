"""Pointwise kernels of rows without aligned vectors, and gathers of rows, on an interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.plan import clear_plans

simt_machine.install()
DEVICE = "simt_sm90"


def on_gpu(function, *arrays):
    """A result, and the kernels that computed it."""
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    clear_plans()
    found = function(*(nm.asarray(a, device=DEVICE) for a in arrays)).numpy()
    return found, [p.name for p in runtime.launched]


@pytest.mark.parametrize(
    "shape", [(3, 4099), (70, 33), (5, 257), (2, 1025), (40, 2, 10), (2, 3000)], ids=str
)
def test_slices_of_odd_columns(shape):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found, names = on_gpu(lambda y: y[..., 1:] - y[..., :-1], x)
    np.testing.assert_array_equal(found, x[..., 1:] - x[..., :-1])
    assert names == ["pointwise_unaligned"]
    found, _ = on_gpu(lambda y: y[..., 3:] + y[..., :-3] * 2, x)
    np.testing.assert_array_equal(found, x[..., 3:] + x[..., :-3] * 2)


def test_aligned_rows_have_vectors():
    x = np.ones((6, 2048), np.float32)
    for function in (lambda y: y + 1, lambda y: y[:, 4:] * 2, lambda y: y[:, :1024] - y[:, 1024:]):
        assert on_gpu(function, x)[1] == ["pointwise"]


@pytest.mark.parametrize("width", [16, 260, 1024, 1031])
def test_gathers_of_rows(width):
    rng = np.random.default_rng(width)
    x = rng.standard_normal((20, width)).astype(np.float32)
    at = rng.integers(-20, 20, 31)
    found, _ = on_gpu(lambda y, i: y[i], x, at)
    np.testing.assert_array_equal(found, x[at])


def test_values_of_short_rows():
    x = np.random.default_rng(1).standard_normal((40, 16)).astype(np.float32)
    found, names = on_gpu(lambda y: nm.topk(y, 8).values, x)
    np.testing.assert_array_equal(found, -np.sort(-x)[:, :8])
    assert names == ["topk_bitonic", "pointwise"]
