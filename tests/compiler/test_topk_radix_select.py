"""Top-k by radix select on an interpreted GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.sort import topk_gpu
from numus.compiler.plan import clear_plans

simt_machine.install()
rng = np.random.default_rng(0)


def selected(array, k, axis=-1, largest=True):
    """Indices, and which kernels found them."""
    runtime = nm.device("simt_ordered").runtime
    runtime.launched.clear()
    clear_plans()
    found = nm.topk(nm.asarray(array, device="simt_ordered"), k, axis, largest).indices.numpy()
    return found, [p.name for p in runtime.launched]


def wanted(array, k, axis=-1, largest=True):
    order = nm.argsort(nm.asarray(array), axis=axis, descending=largest).numpy()
    return np.take(order, range(k), axis=axis)


@pytest.mark.parametrize(
    ("dtype", "k", "largest"),
    [
        *(("float32", 5, True), ("float32", 300, False), ("float16", 17, True)),
        *(("int8", 40, True), ("uint64", 3, False), ("float64", 1, True), ("bool", 9, True)),
    ],
)
def test_every_dtype(dtype, k, largest):
    x = rng.standard_normal((3, 2500)) * 50
    x = x.astype(dtype) if dtype != "uint64" else rng.integers(0, 1 << 63, (3, 2500)).astype(dtype)
    if dtype == "float32":
        x[0, ::100], x[1, 7], x[2, ::2] = np.nan, -np.inf, 0.0
        x[2, ::4] = -0.0
    found, names = selected(x, k, largest=largest)
    assert names == ["topk"]
    np.testing.assert_array_equal(found, wanted(x, k, largest=largest))


def test_equal_elements_come_in_order():
    x = np.ones((2, 4100), np.float32)
    x[1, 4000:] = 2
    found, _ = selected(x, 150)
    np.testing.assert_array_equal(found[0], np.arange(150))
    np.testing.assert_array_equal(found[1], [*range(4000, 4100), *range(50)])


def test_parts_of_long_rows(monkeypatch):
    tuning = replace(topk_gpu.TUNING, part_elements=600)
    monkeypatch.setattr(topk_gpu, "TUNING", tuning)
    x = rng.integers(0, 900, (1, 9001)).astype(np.int32)
    found, names = selected(x, 100, largest=False)
    assert names == ["topk_parts", "topk"]
    np.testing.assert_array_equal(found, wanted(x, 100, largest=False))
    monkeypatch.setattr(topk_gpu, "TUNING", replace(tuning, parts_per_core=40))
    found, names = selected(x, 100)
    assert names == ["topk_parts", "topk_parts", "topk"]
    np.testing.assert_array_equal(found, wanted(x, 100))


def test_other_axes_and_fused_operands():
    x = rng.standard_normal((3000, 4)).astype(np.float32)
    found, _ = selected(x, 6, axis=0)
    np.testing.assert_array_equal(found, wanted(x, 6, axis=0))
    y = nm.asarray(x, device="simt_ordered")
    best = nm.topk(nm.abs(y) * 2, 3, 0)
    np.testing.assert_array_equal(best.values.numpy(), -np.sort(-2 * np.abs(x), axis=0)[:3])


def test_short_rows_and_large_k_are_sorted():
    x = rng.standard_normal((3, 2500)).astype(np.float32)
    for array, k in ((x[:, :2000], 5), (x, 1000), (x, 2500), (x, 0)):
        found, names = selected(np.ascontiguousarray(array), k)
        assert "topk" not in names
        np.testing.assert_array_equal(found, wanted(array, k))
