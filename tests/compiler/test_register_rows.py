"""Register-resident row reductions, against the CPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    devices.BACKENDS["registers"] = lambda index: simt_machine.Machine(simt_machine.HOPPER)
    return nm.device("registers").runtime


@pytest.fixture(scope="module")
def waiting():
    target = replace(
        simt_machine.HOPPER,
        forward_progress=True,
        num_cores=40,
    )
    devices.BACKENDS["waiting"] = lambda index: simt_machine.Machine(target)
    return nm.device("waiting").runtime


def normed(x):
    w = nm.arange(x.shape[-1], dtype=nm.float32, device=x.device) * 0.01
    return nm.layer_norm(x, w, w + 1)


PROGRAMS = {
    "softmax": lambda x: nm.softmax(x, axis=-1),
    "layer norm": normed,
    "gradient": lambda x: nm.grad(lambda x: (normed(x) * x).sum())(x),
    "sums": lambda x: nm.sum(x * x, axis=-1),
    "argmax": lambda x: nm.argmax(x, axis=-1),
    "logs": lambda x: x - nm.logsumexp(x, axis=-1, keepdims=True),
    "any": lambda x: nm.any(x > 2, axis=-1),
    "bfloat16": lambda x: nm.softmax(x.astype(nm.bfloat16), axis=-1).astype(nm.float32),
}


@pytest.mark.parametrize("length", [33, 256, 768, 1001, 2500])
@pytest.mark.parametrize("name", PROGRAMS)
def test_register_rows(name, length, machine):
    x = np.random.default_rng(length).standard_normal((3, length)).astype(np.float32)
    machine.launched.clear()
    got = PROGRAMS[name](nm.asarray(x, device="registers")).numpy()
    assert "register_row_reduction" in {p.name for p in machine.launched}
    want = PROGRAMS[name](nm.asarray(x)).numpy()
    if got.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-2 if name == "bfloat16" else 3e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


def test_views_and_columns(machine):
    """Rows not aligned to a vector, and operands that every row reads."""
    x = np.random.default_rng(0).standard_normal((5, 515)).astype(np.float32)
    for at in (np.s_[:, 1:513], np.s_[1:, ::2], np.s_[4:1:-1, :]):
        t = nm.asarray(x, device="registers")[at]
        got = nm.softmax(t * t[0], axis=-1).numpy()
        want = nm.softmax(nm.asarray(x[at] * x[at][0]), axis=-1).numpy()
        np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-7)


def test_rows_are_read_once(machine):
    """One load of each input for all stages; reused values stay in registers."""
    x = nm.asarray(np.ones((2, 4096), np.float32), device="registers")
    machine.launched.clear()
    nm.eval(nm.softmax(x, axis=-1))
    (program,) = machine.launched
    assert program.source.count("load b0") == 1
    assert program.kernel.block_size == 256
    assert not [b for b in program.kernel.buffers if b.access == "scratch"]


def test_empty(machine):
    for shape in ((3, 0), (0, 40)):
        x = nm.asarray(np.ones(shape, np.float32), device="registers")
        np.testing.assert_array_equal(nm.sum(x, axis=-1).numpy(), np.zeros(shape[:1]))
        assert nm.softmax(x, axis=-1).numpy().shape == shape


@pytest.mark.parametrize(("length", "blocks"), [(40000, 4), (100003, 8)])
@pytest.mark.parametrize("name", ["softmax", "layer norm", "gradient", "bfloat16"])
def test_long_rows_span_several_ctas(name, length, blocks, waiting):
    x = np.random.default_rng(length).standard_normal((2, length)).astype(np.float32)
    waiting.launched.clear()
    got = PROGRAMS[name](nm.asarray(x, device="waiting")).numpy()
    kernels = [p.kernel for p in waiting.launched if p.name == "register_row_reduction"]
    ctas = max(kernel.cluster_size for kernel in kernels)
    assert ctas == blocks or (name == "gradient" and ctas > 1)
    want = PROGRAMS[name](nm.asarray(x)).numpy()
    atol = (3e-3 if name == "bfloat16" else 1e-5) * np.abs(want).max()
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=atol)


@pytest.mark.parametrize("rows", [1, 3, 20])
def test_longer_rows_use_global_flags(rows, waiting):
    """One kernel for any number of rows, and one that clears the flags."""
    x = np.random.default_rng(rows).standard_normal((rows, 150000)).astype(np.float32)
    waiting.launched.clear()
    got = nm.softmax(nm.asarray(x, device="waiting"), axis=-1).numpy()
    clear, kernel = (p.kernel for p in waiting.launched)
    assert (clear.name, kernel.cluster_size) == ("clear_flags", 16)
    assert kernel.flags is not None
    np.testing.assert_allclose(got, nm.softmax(nm.asarray(x), axis=-1).numpy(), rtol=1e-5)


def test_too_long(machine):
    """Rows too long for a cluster are reread, where blocks cannot wait for each other."""
    x = nm.asarray(np.ones((1, 70000), np.float32), device="registers")
    machine.launched.clear()
    np.testing.assert_allclose(nm.softmax(x, axis=-1).numpy(), 1 / 70000, rtol=1e-5)
    assert "register_row_reduction" not in {p.name for p in machine.launched}
