"""2:4 structured sparsity against dense matrices."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import nn, sparse
from numus.errors import DeviceError, DTypeError, ShapeError

W = np.random.default_rng(2).standard_normal((6, 24)).astype(np.float32)
X = np.random.default_rng(3).standard_normal((24, 5)).astype(np.float32)


def pruned(w):
    groups = w.reshape(-1, 4).copy()
    order = np.argsort(-np.abs(groups), axis=1, kind="stable")
    np.put_along_axis(groups, order[:, 2:], 0, axis=1)
    return groups.reshape(w.shape)


def devices():
    simt_machine.install()
    return ["cpu", "reference", "simt", "webgpu"]


@pytest.mark.parametrize("device", devices())
def test_products(device):
    try:
        w, x = nm.asarray(W, device=device), nm.asarray(X, device=device)
    except DeviceError as reason:
        pytest.skip(str(reason))
    np.testing.assert_array_equal(sparse.prune_2_4(w).numpy(), pruned(W))
    packed = sparse.to_semi_structured(w)
    assert packed.values.shape == (6, 12)
    assert packed.metadata.shape == (6, 3)
    assert packed.metadata.dtype is nm.uint8
    np.testing.assert_array_equal(packed.to_dense().numpy(), pruned(W))
    np.testing.assert_allclose((packed @ x).numpy(), pruned(W) @ X, rtol=1e-5, atol=1e-5)


def test_ties_zeros_and_exact_positions():
    w = np.array([[0, 0, 0, 0, 1, 1, 1, 1]], np.float32)
    packed = sparse.to_semi_structured(w)
    assert packed.to_dense().tolist() == [[0, 0, 0, 0, 1, 1, 0, 0]]
    assert packed.metadata.tolist() == [[0b0100_0100]]
    again = np.array([[0, 0, 5, 6, 7, 0, 0, 8]], np.float32)
    assert sparse.to_semi_structured(again).to_dense().tolist() == again.tolist()
    left = np.ones((3, 1), np.float32) @ sparse.to_semi_structured(again)
    np.testing.assert_array_equal(left.numpy(), np.repeat(again, 3, 0))


def test_derivatives():
    packed = sparse.to_semi_structured(W)
    x = nm.asarray(X)

    def loss(values):
        return nm.sum(nm.sin(packed.with_values(values) @ x))

    dense = nm.grad(lambda w: nm.sum(nm.sin(w @ x)))(packed.to_dense()).numpy()
    wanted = dense[pruned(W) != 0].reshape(6, 12)
    np.testing.assert_allclose(nm.grad(loss)(packed.values).numpy(), wanted, rtol=1e-4, atol=1e-5)
    traced = nm.jit(nm.grad(loss))(packed.values)
    np.testing.assert_allclose(traced.numpy(), wanted, rtol=1e-4, atol=1e-5)
    _, ahead = nm.jvp(loss, (packed.values,), (nm.ones((6, 12)),))
    np.testing.assert_allclose(ahead.item(), wanted.sum(), rtol=1e-4, atol=1e-4)
    product = nm.jit(lambda a, x: a @ x)(packed, x)
    np.testing.assert_allclose(product.numpy(), pruned(W) @ X, rtol=1e-5, atol=1e-5)


def test_layer_learns():
    layer = nn.SparseLinear(16, 4)
    assert set(layer.state_dict()) == {"weight", "metadata", "bias"}
    other = nn.SparseLinear(16, 4)
    other.load_state_dict(layer.state_dict())
    x = nm.ones((2, 16))
    np.testing.assert_array_equal(other(x).numpy(), layer(x).numpy())
    (layer(x) ** 2).sum().backward()
    assert layer.weight.grad.shape == (4, 8)


def test_bad_arguments():
    with pytest.raises(ShapeError, match="multiple of 8"):
        sparse.prune_2_4(np.ones((2, 12), np.float32))
    with pytest.raises(ShapeError, match="multiple of 8"):
        nn.SparseLinear(12, 4)
    with pytest.raises(DTypeError, match="floats"):
        sparse.to_semi_structured(np.ones((2, 8), np.int64))
