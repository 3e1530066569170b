"""Reductions of few, short columns on NVIDIA GPUs: a thread for each."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices

RNG = np.random.default_rng(4)


@pytest.fixture(scope="module")
def machine():
    devices.BACKENDS["columns"] = lambda index: simt_machine.Machine(
        replace(simt_machine.HOPPER, forward_progress=True)
    )
    return nm.device("columns").runtime


def run(machine, function, *arrays):
    """The results there and on the CPU, and the kernels."""
    given = [nm.asarray(a, device="columns") for a in arrays]
    nm.eval(*given)
    (found,) = nm.explain(function, *given, timed=False).programs
    return function(*given).numpy(), function(*map(nm.asarray, arrays)).numpy(), found.kernels


CASES = {
    "sums": lambda x: x.sum(axis=1),
    "largest": lambda x: x.max(axis=1),
    "places": lambda x: x.argmin(axis=1),
    "variances": lambda x: x.var(axis=1),
    "stages": lambda x: nm.softmax(x, axis=1),
    "backwards": lambda x: x[::-1, ::-2, ::-1].sum(axis=1),
    "of a middle axis": lambda x: x.reshape(20, 15, 6, 4).sum(axis=(0, 2)),
    "of what is repeated": lambda x: (x + x[:1]).sum(axis=1, keepdims=True),
}


@pytest.mark.parametrize("name", CASES)
def test_rows(name, machine):
    x = RNG.standard_normal((300, 6, 4)).astype(np.float32)
    got, want, _ = run(machine, CASES[name], x)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, np.int8, np.complex64])
@pytest.mark.parametrize("shapes", [((600, 4, 4), (600, 4, 4)), ((600, 3, 3), (600, 3, 1))])
def test_small_matrices(dtype, shapes, machine):
    x, y = (RNG.integers(-3, 4, shape).astype(dtype) for shape in shapes)
    with nm.kernels.prefer("native"):
        got, want, (kernel,) = run(machine, nm.matmul, x, y)
    np.testing.assert_array_equal(got, want)
    assert kernel.blocks <= -(-got.size // 256)
