"""Kernels as rendered for NVIDIA GPUs, by threads of this process, against the CPU's."""

import numpy as np
import pytest
import thread_blocks

import numus as nm
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    made = thread_blocks.Machine()
    devices.STARTS["blocks"] = lambda index: made
    return nm.device("blocks").runtime


def gradients(x, w, b, g):
    return nm.concat([y.reshape(-1) for y in nm.vjp(nm.layer_norm, x, w, b)[1](g)])


CASES = {
    "whole rows": (nm.layer_norm, [(3, 256), (256,), (256,)]),
    "rows that end early": (nm.layer_norm, [(3, 300), (300,), (300,)]),
    "odd rows": (nm.layer_norm, [(2, 333), (333,), (333,)]),
    "rows anywhere": (lambda x, w, b: nm.layer_norm(x[:, 1:257], w, b), [(2, 260), (256,), (256,)]),
    "rows of several warps": (lambda x: nm.softmax(x, axis=-1), [(2, 1000)]),
    "rows of a packed block": (lambda x: x.sum(axis=-1), [(257, 300)]),
    "gradients": (gradients, [(4, 300), (300,), (300,), (4, 300)]),
    "a map": (lambda x: nm.gelu(x * 2 + 1), [(3000,)]),
    "a map of rows": (lambda x, b: nm.tanh(x + b), [(2, 4096), (4096,)]),
    "a map of a view": (lambda x: nm.sigmoid(x[1:]), [(1001,)]),
    "sums of columns": (lambda x: x.sum(axis=0), [(100, 1024)]),
}


@pytest.mark.parametrize("name", CASES)
def test_as_rendered(name, machine):
    function, shapes = CASES[name]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal(s).astype(np.float32) for s in shapes]
    machine.rendered.clear()
    got = function(*(nm.asarray(x, device="blocks") for x in given)).numpy()
    want = function(*map(nm.asarray, given)).numpy()
    assert machine.rendered
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=2e-6 * np.abs(want).max())
    if "packed" in name:
        assert machine.rendered[0].pack > 1
