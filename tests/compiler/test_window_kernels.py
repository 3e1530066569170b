"""Poolings as windows of constant size: an element per thread."""

import dataclasses

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.loops import windows
from numus.compiler.plan import clear_plans
from numus.runtime import devices

devices.BACKENDS.setdefault("simt_windows", lambda i: simt_machine.Machine(simt_machine.HOPPER))
rng = np.random.default_rng(0)


@pytest.fixture
def machine(monkeypatch):
    """A machine on which small problems are large."""
    small = dataclasses.replace(windows.TUNING, window_min_elements=64)
    monkeypatch.setattr(windows, "TUNING", small)
    clear_plans()
    yield nm.device("simt_windows").runtime
    clear_plans()


def values(function, device, *arrays):
    xs = [nm.asarray(a, device=device) for a in arrays]
    return [y.numpy() for y in function(*xs)]


def max_pooled(kernel, **how):
    def run(x, g):
        y, pull = nm.vjp(lambda x: nm.max_pool2d(x, kernel, **how), x)
        g = g[..., : y.shape[-2], : y.shape[-1]]
        indices = nm.max_pool2d(x, kernel, return_indices=True, **how)[1]
        return y, pull(g)[0], indices, nm.max_pool2d(x, kernel, **how)

    return run


def avg_pooled(kernel, **how):
    def run(x, g):
        y, pull = nm.vjp(lambda x: nm.avg_pool2d(x, kernel, **how), x)
        return y, pull(g[..., : y.shape[-2], : y.shape[-1]])[0]

    return run


CASES = {
    "max 3x3/2": max_pooled(3, stride=2, padding=1),
    "max 2x2": max_pooled(2),
    "max 3x3/1": max_pooled(3, stride=1, padding=1),
    "max dilated": max_pooled((3, 2), stride=2, padding=1, dilation=2, ceil_mode=True),
    "max 2x3/3x1": max_pooled((2, 3), stride=(3, 1), padding=(1, 1), ceil_mode=True),
    "average 3x3/2": avg_pooled(3, stride=2, padding=1),
    "average 5x4/2x3": avg_pooled((5, 4), stride=(2, 3), padding=2, count_include_pad=False),
}


@pytest.mark.parametrize("name", CASES)
def test_poolings_are_windows(name, machine):
    x = np.round(rng.standard_normal((2, 3, 11, 13)) * 4).astype(np.float32)  # with ties
    x[0, 0, :5, :5] = -np.inf if name.startswith("max") else 0
    x[1, 1, 4:6, 7] = np.nan if name.startswith("max") else 0
    g = rng.standard_normal((2, 3, 11, 13)).astype(np.float32)
    machine.launched.clear()
    got = values(CASES[name], "simt_windows", x, g)
    assert "windows" in {program.name for program in machine.launched}
    for a, b in zip(got, values(CASES[name], "reference", x, g), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_windows_of_bfloat16(machine):
    x = rng.standard_normal((2, 3, 12, 12)).astype(np.float32)

    def run(x):
        x = x.astype(nm.bfloat16)
        y = nm.avg_pool2d(x, 3, stride=2, padding=1), nm.max_pool2d(x, 3, stride=2, padding=1)
        return [z.astype(nm.float32) for z in y]

    for a, b in zip(values(run, "simt_windows", x), values(run, "reference", x), strict=True):
        np.testing.assert_array_equal(a, b)
    assert "windows" in {program.name for program in machine.launched}


def test_gradients_read_only_the_windows_that_cover_an_element(machine):
    x, g = np.zeros((1, 2, 12, 12), np.float32), np.zeros((1, 2, 6, 6), np.float32)
    machine.launched.clear()
    values(lambda x, g: nm.vjp(lambda x: nm.avg_pool2d(x, 3, 2, 1), x)[1](g), "simt_windows", x, g)
    assert machine.launched[-1].text.count("load b") == 4
