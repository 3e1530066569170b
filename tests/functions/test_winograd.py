"""Winograd convolution on CPU vectors against the reference device, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import numus as nm
from numus.compiler import plan as plans
from numus.compiler.lower.conv import cpu_winograd

pytestmark = pytest.mark.on_cpu("schedules of its convolutions")

# (images, input channels, output channels), (height, width), padding, groups
CASES = {
    "one image": ((1, 16, 16), (8, 8), 1, 1),
    "partial vectors of channels": ((2, 19, 37), (9, 14), 1, 1),
    "a column": ((3, 20, 16), (7, 1), 1, 1),
    "less than a tile": ((9, 17, 24), (3, 2), 1, 1),
    "without padding": ((2, 16, 18), (13, 11), 0, 1),
    "the gradient's padding": ((1, 24, 16), (6, 21), 2, 1),
    "groups": ((2, 32, 40), (10, 9), 1, 2),
    "blocks of channels": ((2, 300, 16), (5, 6), 1, 1),
    "blocks of rows": ((2, 16, 20), (50, 37), 1, 1),
}


@pytest.fixture
def winograd(monkeypatch):
    """Winograd wherever it can be."""
    plans.clear_plans()
    always = replace(cpu_winograd.CPU, min_winograd_macs_each_call=0)
    monkeypatch.setattr(cpu_winograd, "CPU", always)
    monkeypatch.setattr(cpu_winograd.CpuWinograd, "cost", lambda *_: 0.0)
    yield
    plans.clear_plans()


def operands(name):
    (n, c, o), size, padding, groups = CASES[name]
    rng = np.random.default_rng(7)
    shapes = ((n, c, *size), (o, c // groups, 3, 3), (o, 1, 1))
    arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    return arrays, {"padding": padding, "groups": groups}


@pytest.mark.parametrize("name", CASES)
def test_values_and_epilogues(name, winograd):
    arrays, options = operands(name)

    def f(x, w, b):
        return nm.relu(nm.conv2d(x, w, **options) + b)

    got = f(*(nm.asarray(a, device="cpu") for a in arrays)).numpy()
    want = f(*(nm.asarray(a.astype(np.float64), device="reference") for a in arrays)).numpy()
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * np.abs(want).max())
    names = [k.name for k in nm.explain(f, *(nm.asarray(a) for a in arrays)).kernels]
    assert names == ["winograd_filters", "convolution"]


def test_gradients(winograd):
    (x, w, _), options = operands("partial vectors of channels")

    def slopes(device, dtype):
        given = (nm.asarray(a.astype(dtype), device=device) for a in (x, w))
        return nm.grad(lambda x, w: nm.conv2d(x, w, **options).square().sum(), (0, 1))(*given)

    for got, want in zip(slopes("cpu", "f4"), slopes("reference", "f8"), strict=True):
        want = want.numpy()
        np.testing.assert_allclose(got.numpy(), want, rtol=0, atol=5e-6 * np.abs(want).max())


def test_operands_that_are_views(winograd):
    (x, w, _), _ = operands("blocks of rows")

    def f(x, w):
        return nm.conv2d(nm.flip(nm.swapaxes(x, 2, 3), 3) * 0.5, nm.flip(w, 2), padding=1)[:, 3:]

    got, want = (f(*(nm.asarray(a, device=d) for a in (x, w))) for d in ("cpu", "reference"))
    np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=0, atol=3e-5)


def test_bits_do_not_depend_on_threads(winograd):
    (x, w, _), options = operands("blocks of rows")
    before, found = nm.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            nm.set_num_threads(count)
            found.append(nm.conv2d(nm.asarray(x), nm.asarray(w), **options).numpy().tobytes())
    finally:
        nm.set_num_threads(before)
    assert found.count(found[0]) == len(found)


def test_chosen_for_planes_of_many_channels_alone():
    """Of float32 with stride 1, where there is work enough."""
    x, w = nm.ones((2, 64, 32, 32)), nm.ones((64, 64, 3, 3))

    def first(x, w, **options):
        return nm.explain(lambda x, w: nm.conv2d(x, w, **options), x, w).kernels[0].name

    assert first(x, w) == "winograd_filters"
    assert first(x, w, stride=2) != "winograd_filters"
    assert first(x.astype(nm.float64), w.astype(nm.float64)) != "winograd_filters"
    assert first(x[:, :, :16, :16], w) != "winograd_filters"
    # transforms cost more than they save
    assert first(nm.ones((2, 3, 224, 224)), nm.ones((32, 3, 3, 3))) != "winograd_filters"


def test_filters_that_a_shared_cache_holds_are_loaded_quickly():
    cpu = cpu_winograd.CPU
    target = replace(nm.device("cpu").runtime.target, l2_bytes=1 << 20, l3_bytes=0)
    filters = (2 * cpu.winograd_cached_l2s << 20) // target.vector_bytes
    assert cpu_winograd._load(filters, target) == cpu.winograd_filter_load
    shared = replace(target, l3_bytes=2 * cpu.winograd_cached_l2s * cpu.winograd_l3_share << 20)
    assert cpu_winograd._load(filters, shared) == cpu.winograd_cached_load
