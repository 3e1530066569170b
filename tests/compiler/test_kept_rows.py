"""Rows that lanes of a vector keep in registers, against NumPy."""

import group_machine
import numpy as np
import pytest

import numus as nm
from numus.compiler.loops import work

group_machine.install()


HERE = (
    [("webgpu", 168), ("webgpu", 512), ("webgpu", 64)]
    if group_machine.has_software_adapter()
    else []
)
CASES = [("lockstep8", 168), ("lockstep4", 96), ("lockstep16", 128), *HERE]


@pytest.fixture(autouse=True)
def _few_rows_are_enough(monkeypatch):
    monkeypatch.setattr(work, "SMALL", 0)


def softmax(x):
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def rows_of(columns):
    """Many rows, among them some that are special."""
    x = np.random.default_rng(0).standard_normal((9, columns)).astype(np.float32) * 4
    x[0, ::3] = -np.inf
    x[1] = -np.inf
    x[2, 5] = np.nan
    x[3, columns - 1] = np.inf
    x[4, 0] = 1e4
    x[5, 7] = np.copysign(np.nan, -1)
    return x


@pytest.mark.parametrize(("device", "columns"), CASES)
def test_softmax_reads_a_row_once(device, columns):
    x = rows_of(columns)
    y = nm.asarray(x).to(device)
    np.testing.assert_allclose(nm.softmax(y).numpy(), softmax(x), rtol=4e-6, atol=1e-37)
    top = nm.max(y, axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        want = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(nm.exp(y - top).numpy(), want, rtol=1e-6, atol=2e-38)
    if device != "webgpu":
        assert "kept_rows" in [p.name for p in nm.device(device).runtime.launched]


@pytest.mark.parametrize(("device", "columns"), CASES)
def test_norms_weights_places_and_gradients(device, columns):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((9, columns)).astype(np.float32)
    w, g = rng.standard_normal((2, columns)).astype(np.float32)
    y, v, h = (nm.asarray(a).to(device) for a in (x, w, g))
    off = x - x.mean(-1, keepdims=True)
    want = off / np.sqrt((off**2).mean(-1, keepdims=True) + 1e-5) * w + g
    np.testing.assert_allclose(nm.layer_norm(y, v, h).numpy(), want, atol=2e-5)
    largest = nm.argmax(y - nm.mean(y, axis=1, keepdims=True), axis=1)
    np.testing.assert_array_equal(largest.numpy(), (x - x.mean(1, keepdims=True)).argmax(1))
    got = nm.grad(lambda t: nm.sum(nm.softmax(t) * v))(y)
    s = softmax(x)
    np.testing.assert_allclose(got.numpy(), s * (w - (s * w).sum(1, keepdims=True)), atol=1e-6)


@pytest.mark.parametrize("device", [d for d in ("lockstep8", "webgpu") if d != "webgpu" or HERE])
def test_rows_that_begin_anywhere_and_other_dtypes(device):
    x = np.random.default_rng(2).standard_normal((11, 168)).astype(np.float32)
    y = nm.asarray(x).to(device)
    for part in (np.s_[1:], np.s_[:, 8:152], np.s_[:, 3:163], np.s_[::2], np.s_[:, ::-1]):
        np.testing.assert_allclose(nm.softmax(y[part]).numpy(), softmax(x[part]), rtol=2e-6)
    both = nm.softmax(nm.concat([y, y], axis=1)).numpy()
    np.testing.assert_allclose(both, softmax(np.concatenate([x, x], axis=1)), rtol=2e-6)
    half = y.astype(nm.float16)
    got = nm.softmax(half).numpy()
    np.testing.assert_allclose(got, softmax(half.numpy()), rtol=2e-3, atol=1e-4)
    wide = nm.softmax(y.astype(nm.float64)).numpy()
    np.testing.assert_allclose(wide, softmax(x.astype(np.float64)), rtol=1e-13)
    whole = nm.asarray((x * 100).astype(np.int32)).to(device)
    want = whole.numpy() - whole.numpy().max(1, keepdims=True)
    np.testing.assert_array_equal((whole - nm.max(whole, axis=1, keepdims=True)).numpy(), want)
