"""2:4 structured sparsity against dense matrices."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus import ir, nn, sparse
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


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((300, 320, 264), "bfloat16"),  # partial tiles
        pytest.param((256, 256, 256), "float16", marks=pytest.mark.slow),
        pytest.param((257, 512, 520), "bfloat16", marks=pytest.mark.slow),
    ],
)
def test_sparse_tensor_cores(shape, dtype):
    """Exact: small integers, on an interpreted GPU that has them."""
    simt_machine.install()
    m, k, n = shape
    rng = np.random.default_rng(4)
    whole = pruned(rng.integers(-4, 5, (m, k)).astype(np.float32))
    x = rng.integers(-3, 4, (k, n)).astype(np.float32)
    kind = getattr(nm, dtype)
    packed = sparse.to_semi_structured(nm.asarray(whole, dtype=kind))
    on_device = sparse.SemiStructured(
        packed.values.to("simt_wgmma"), packed.metadata.to("simt_wgmma")
    )
    runtime = nm.device("simt_wgmma").runtime
    wanted = nm.asarray(whole @ x, dtype=kind).numpy()
    columns = nm.asarray(x, dtype=kind, device="simt_wgmma")
    for right in (columns, nm.asarray(x.T.copy(), dtype=kind, device="simt_wgmma").T, 1 * columns):
        runtime.launched.clear()
        np.testing.assert_array_equal((on_device @ right).numpy(), wanted)
        assert "wgmma_sp" in [program.name for program in runtime.launched]
    shifted = nm.asarray(np.pad(x, ((0, 0), (1, 7))), dtype=kind, device="simt_wgmma")[:, 1 : n + 1]
    np.testing.assert_array_equal((on_device @ shifted).numpy(), wanted)


@pytest.mark.slow
def test_sparse_tensor_cores_of_clusters(monkeypatch):
    simt_machine.install()
    runtime = nm.device("simt_wgmma").runtime
    monkeypatch.setattr(runtime, "target", replace(runtime.target, max_cluster_size=2))
    test_sparse_tensor_cores((512, 256, 264), "float16")
    kernel = runtime.launched[-1].kernel
    (loop,) = [s for s in ir.statements(kernel.body) if isinstance(s, ir.WgmmaMainloop)]
    assert (loop.b.sharing, kernel.cluster_blocks) == (2, 2)


@pytest.mark.slow
def test_sparse_tensor_cores_with_operands_at_odd_addresses():
    simt_machine.install()
    rng = np.random.default_rng(6)
    w, x = rng.integers(-4, 5, (256, 256)), rng.integers(-3, 4, (256, 256))
    packed = sparse.to_semi_structured(nm.asarray(w, dtype=nm.float16, device="simt_wgmma"))
    flat = nm.asarray(np.append(0, x.ravel()), dtype=nm.float16, device="simt_wgmma")
    columns = flat[1:].reshape(256, 256)
    nm.eval(packed, columns)  # a view, two bytes from the beginning of its memory
    wanted = packed.to_dense().astype(nm.float32).numpy() @ x
    np.testing.assert_array_equal((packed @ columns).numpy(), wanted)


@pytest.mark.slow
def test_sparse_tensor_cores_under_transformations():
    simt_machine.install()
    rng = np.random.default_rng(5)
    w = nm.asarray(rng.integers(-4, 5, (256, 256)), dtype=nm.float16, device="simt_wgmma")
    packed = sparse.to_semi_structured(w)
    x = nm.asarray(rng.integers(-3, 4, (2, 256, 256)), dtype=nm.float16, device="simt_wgmma")
    both = nm.vmap(lambda x: packed @ x)(x)
    dense = packed.to_dense().astype(nm.float32)
    wanted = (dense @ x.astype(nm.float32)).numpy()
    np.testing.assert_array_equal(both.numpy(), wanted)
    each = nm.vmap(lambda v: packed.with_values(v) @ x[0])(nm.stack([packed.values] * 2))
    np.testing.assert_array_equal(each[1].numpy(), wanted[0])
    slope = nm.grad(lambda v: nm.sum((packed.with_values(v) @ x[0]).astype(nm.float32)))
    by_dense = nm.grad(
        lambda v: nm.sum((packed.with_values(v).to_dense() @ x[0]).astype("float32"))
    )
    np.testing.assert_array_equal(slope(packed.values).numpy(), by_dense(packed.values).numpy())


def test_layer_learns():
    layer = nn.SparseLinear(16, 4)
    assert set(layer.state_dict()) == {"weight", "metadata", "bias"}
    other = nn.SparseLinear(16, 4)
    other.load_state_dict(layer.state_dict())
    x = nm.ones((2, 16))
    np.testing.assert_array_equal(other(x).numpy(), layer(x).numpy())
    (layer(x) ** 2).sum().backward()
    assert layer.weight.grad.shape == (4, 8)


@pytest.mark.slow
def test_layer_on_sparse_tensor_cores():
    simt_machine.install()
    rng = np.random.default_rng(7)
    layer = nn.SparseLinear(256, 264, dtype=nm.bfloat16)
    layer.weight = nn.Parameter(nm.asarray(rng.integers(-3, 4, (264, 128)), dtype=nm.bfloat16))
    layer.bias = nn.Parameter(nm.asarray(rng.integers(-3, 4, 264), dtype=nm.bfloat16))
    x = nm.asarray(rng.integers(-1, 2, (2, 128, 256)), dtype=nm.bfloat16)
    wanted, runtime = layer(x).numpy(), nm.device("simt_wgmma").runtime
    layer = layer.to("simt_wgmma")
    runtime.launched.clear()
    np.testing.assert_array_equal(layer(x.to("simt_wgmma")).numpy(), wanted)
    assert "wgmma_sp" in [program.name for program in runtime.launched]


def test_bad_arguments():
    with pytest.raises(ShapeError, match="multiple of 8"):
        sparse.prune_2_4(np.ones((2, 12), np.float32))
    with pytest.raises(ShapeError, match="multiple of 8"):
        nn.SparseLinear(12, 4)
    with pytest.raises(DTypeError, match="floats"):
        sparse.to_semi_structured(np.ones((2, 8), np.int64))
