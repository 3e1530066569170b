"""Matrices of one pattern against dense stacks."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import sparse
from numus.errors import DeviceError, ShapeError

RNG = np.random.default_rng(4)
POINTERS, INDICES = [0, 2, 2, 5], [0, 3, 1, 2, 3]
VALUES = RNG.standard_normal((3, 5)).astype(np.float32)
X = RNG.standard_normal((4, 6)).astype(np.float32)


def dense():
    out = np.zeros((3, 3, 4), np.float32)
    out[:, [0, 0, 2, 2, 2], INDICES] = VALUES
    return out


def made(device="cpu"):
    values = nm.asarray(VALUES, device=device)
    return sparse.batched_csr_tensor(POINTERS, INDICES, values, (3, 4))


def devices():
    simt_machine.install()
    return ["cpu", "reference", "simt", "webgpu"]


@pytest.mark.parametrize("device", devices())
def test_products(device):
    try:
        a, x = made(device), nm.asarray(X, device=device)
    except DeviceError as reason:
        pytest.skip(str(reason))
    np.testing.assert_array_equal(a.to_dense().numpy(), dense())
    np.testing.assert_allclose((a @ x).numpy(), dense() @ X, rtol=1e-5, atol=1e-6)


def test_parts_and_operands():
    a = made()
    assert a.shape == (3, 3, 4)
    np.testing.assert_array_equal(a[1].to_dense().numpy(), dense()[1])
    np.testing.assert_array_equal(a.mT.to_dense().numpy(), dense().transpose(0, 2, 1))
    np.testing.assert_allclose((a * [1.0, 2.0, 3.0]).values.numpy()[2], 3 * VALUES[2])
    each = RNG.standard_normal((3, 4, 2)).astype(np.float32)
    np.testing.assert_allclose((a @ each).numpy(), dense() @ each, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((a @ X[:, 0]).numpy(), dense() @ X[:, 0], rtol=1e-5, atol=1e-6)
    with pytest.raises(ShapeError, match="matmul"):
        a @ np.ones((5, 2), np.float32)
    with pytest.raises(ShapeError, match="batch, nnz"):
        sparse.batched_csr_tensor(POINTERS, INDICES, VALUES[0], (3, 4))
    with pytest.raises(ShapeError, match="number per matrix"):
        a * np.ones(2, np.float32)


def test_derivatives():
    def loss(a):
        return nm.sum(nm.sin(a @ X))

    a = made()
    gradient = nm.grad(loss)(a)
    assert gradient.structure is a.structure
    whole = nm.grad(lambda d: nm.sum(nm.sin(d @ X)))(a.to_dense()).numpy()
    wanted = whole[:, [0, 0, 2, 2, 2], INDICES]
    np.testing.assert_allclose(gradient.values.numpy(), wanted, rtol=1e-4, atol=1e-5)
    traced = nm.jit(nm.grad(loss))(a)
    np.testing.assert_allclose(traced.values.numpy(), wanted, rtol=1e-4, atol=1e-5)
