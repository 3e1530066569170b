"""Vectors of divisions and roots that many elements read are computed once, on GPUs."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.ir import kernel_text
from numus.runtime.cuda.properties import capability_fields
from numus.runtime.devices import BACKENDS
from numus.runtime.null import NullRuntime

simt_machine.install()
NULL = NullRuntime()
NULL.target = replace(simt_machine.HOPPER, **capability_fields(90))
BACKENDS["null_vectors"] = lambda index: NULL


@pytest.fixture
def null():
    NULL.reset()
    return NULL


def normalised(x, axes):
    mean = x.mean(axes, keepdims=True)
    return (x - mean) * nm.rsqrt(((x - mean) ** 2).mean(axes, keepdims=True) + 1e-3)


def roots(null):
    """Kernels by the loops that compute square roots in them."""
    return [p.name for p in null.launched if "sqrt" in kernel_text(p.kernel)]


def test_channels_have_one_root_each(null):
    x = nm.zeros((64, 64, 64, 64), dtype="bfloat16", device="null_vectors")  # channels last
    null.reset()
    nm.eval(nm.relu(normalised(x, (0, 1, 2))))
    assert roots(null) == ["combine_partials"]


def test_gradients_read_the_roots(null):
    def loss(x):
        return (nm.relu(normalised(x, (0, 1, 2))).astype("float32") ** 2).sum()

    x = nm.zeros((64, 64, 64, 64), dtype="bfloat16", device="null_vectors")
    null.reset()
    nm.eval(nm.grad(loss)(x))
    assert set(roots(null)) == {"combine_partials"}


def test_rows_keep_theirs_in_registers(null):
    x = nm.zeros((4096, 1024), device="null_vectors")
    null.reset()
    nm.eval(normalised(x, (1,)))
    assert len(null.launched) == 1


def test_little_data_is_worth_no_kernel(null):
    x, v = nm.zeros((100, 64), device="null_vectors"), nm.ones((64,), device="null_vectors")
    nm.eval(x, v)
    null.reset()
    nm.eval(x / nm.sqrt(v + 1))
    assert len(null.launched) == 1


def test_values():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1 << 13, 130)).astype(np.float32)
    v = rng.random(130).astype(np.float32)
    got = nm.asarray(x, device="simt_sm90") / nm.sqrt(nm.asarray(v, device="simt_sm90") + 1)
    names = [p.name for p in nm.device("simt_sm90").runtime.launched]
    np.testing.assert_allclose(got.numpy(), x / np.sqrt(v + 1), rtol=1e-6)
    assert len(nm.device("simt_sm90").runtime.launched) == len(names) + 2
