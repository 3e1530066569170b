"""Bitonic sorts in registers, on an interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.plan import clear_plans
from numus.kernels.sort.gpu_bitonic import masks

simt_machine.install()
DEVICE = "simt_sm90"


def rows_of(dtype, rows, length):
    rng = np.random.default_rng(length)
    x = rng.standard_normal((rows, length)) * 40
    with np.errstate(invalid="ignore"):
        x = x.astype(dtype)
    if x.dtype.kind == "f":
        x[0, ::7], x[-1, ::3], x[-1, ::6] = np.nan, 0.0, -0.0
    return x


def on_gpu(function, x):
    """A result, and the kernels that computed it."""
    runtime = nm.device(DEVICE).runtime
    runtime.launched.clear()
    clear_plans()
    found = function(nm.asarray(x, device=DEVICE)).numpy()
    return found, [p.name for p in runtime.launched]


@pytest.mark.parametrize(
    ("dtype", "rows", "length"),
    [
        *(("float32", 70, 16), ("float64", 9, 16), ("float16", 40, 5), ("bool", 3, 1)),
        *(("uint64", 3, 100), ("float32", 2, 300), ("float64", 1, 600)),
    ],
)
def test_lengths_and_dtypes(dtype, rows, length):
    x = rows_of(dtype, rows, length)
    there = nm.asarray(x)
    for descending in (False, True):
        found, names = on_gpu(lambda y, d=descending: nm.argsort(y, descending=d), x)
        assert names == ["argsort_bitonic"]
        wanted = nm.argsort(there, descending=descending).numpy()
        np.testing.assert_array_equal(found, wanted)
        found, names = on_gpu(lambda y, d=descending: nm.sort(y, descending=d), x)
        assert names == ["sort_bitonic"]
        np.testing.assert_array_equal(found, nm.sort(there, descending=descending).numpy())
        k = (length + 2) // 3
        found, names = on_gpu(lambda y, d=descending, k=k: nm.topk(y, k, largest=d).indices, x)
        assert names == ["topk_bitonic" if k < length else "argsort_bitonic"]
        np.testing.assert_array_equal(found, wanted[:, :k])


def test_equal_elements_keep_their_order():
    x = np.zeros((3, 257), np.float32)
    x[1, 100:] = -1
    found, _ = on_gpu(nm.argsort, x)
    np.testing.assert_array_equal(found, np.argsort(x, kind="stable"))


def test_other_axes_and_views():
    x = rows_of("float32", 20, 24).reshape(5, 4, 24)
    for axis in (0, 1):
        found, _ = on_gpu(lambda y, a=axis: nm.argsort(y[:, ::2], axis=a), x)
        wanted = nm.argsort(nm.asarray(x)[:, ::2], axis=axis).numpy()
        np.testing.assert_array_equal(found, wanted)


def test_a_network_sorts_zeros_and_ones():
    """By the 0-1 principle, it then sorts everything."""
    size = 16
    lines = (np.arange(1 << size)[:, None] >> np.arange(size) & 1).astype(np.int8)
    at = np.arange(size)
    for mask in masks(size):
        low = at[at < (at ^ mask)]
        a, b = lines[:, low], lines[:, low ^ mask]
        lines[:, low], lines[:, low ^ mask] = np.minimum(a, b), np.maximum(a, b)
    assert (np.diff(lines) >= 0).all()
