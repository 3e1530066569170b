"""Derivatives, batches and traces of sparse operations against dense ones, and other devices."""

import numpy as np
import pytest
import simt_machine
from sparse_matrices import ANY, random

import numus as nm
from numus import sparse
from numus.errors import DeviceError

A = sparse.from_dense(nm.asarray(random(6, 5, 0.5, 1)))
B = sparse.from_dense(nm.asarray(random(5, 4, 0.5, 2)))
X = nm.asarray(random(5, 3, 1.0, 3))
Y = nm.asarray(random(6, 2, 1.0, 4))


def on(x, a):
    """An operand on the device of a."""
    return x.to(a.device)


OPERATIONS = {
    "matmul": lambda a: a @ on(X, a),
    "vector": lambda a: a @ on(X, a)[:, 0],
    "transposed": lambda a: a.T @ on(Y, a),
    "csc": lambda a: a.to_csc() @ on(X, a),
    "bsr": lambda a: a.to_bsr((2, 1)) @ on(X, a),
    "dia": lambda a: a.to_dia() @ on(X, a),
    "sparse": lambda a: a @ on(B, a),
    "gram": lambda a: a.T @ a,
    "sum": lambda a: a + 2 * a.to_coo()[::-1],
    "product": lambda a: a * a,
    "scaled": lambda a: a * on(Y, a)[:, :1],
    "slice": lambda a: a[1:4, ::2],
    "row sums": lambda a: a.sum(1),
    "sampled": lambda a: sparse.sddmm(A, a @ on(X, a), on(X, a).T),
}


def dense(x):
    return x.to_dense() if hasattr(x, "to_dense") else x


@pytest.fixture
def reference():
    """Compositions need no compiler to be right."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


@pytest.mark.usefixtures("reference")
@pytest.mark.parametrize("name", OPERATIONS)
def test_derivatives_by_values(name):
    function, a = OPERATIONS[name], A.to("reference")
    check_derivatives(function, a)


@pytest.mark.parametrize("name", ["vector", pytest.param("sparse", marks=pytest.mark.slow)])
def test_compiled_derivatives(name):
    check_derivatives(OPERATIONS[name], A)


def check_derivatives(function, a):

    def loss(values):
        return nm.sum(nm.sin(dense(function(a.with_values(values)))))

    v, t = a.values, nm.cos(a.values)
    h = 1e-6
    slope = (loss(v + h * t) - loss(v - h * t)) / (2 * h)
    gradient = nm.grad(loss)(v)
    np.testing.assert_allclose((gradient * t).sum().item(), slope.item(), rtol=1e-6, atol=1e-8)
    _, forward = nm.jvp(loss, (v,), (t,))
    np.testing.assert_allclose(forward.item(), slope.item(), rtol=1e-6, atol=1e-8)
    second = (nm.grad(loss)(v + h * t) - nm.grad(loss)(v - h * t)) / (2 * h)
    _, hvp = nm.jvp(nm.grad(loss), (v,), (t,))
    np.testing.assert_allclose(hvp.numpy(), second.numpy(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(nm.jit(nm.grad(loss))(v).numpy(), gradient.numpy(), rtol=1e-12)
    both = nm.stack([v, 2 * v])
    batch = nm.vmap(nm.grad(loss))(both)
    np.testing.assert_allclose(batch[0].numpy(), gradient.numpy(), rtol=1e-12)
    np.testing.assert_allclose(batch[1].numpy(), nm.grad(loss)(2 * v).numpy(), rtol=1e-12)


def test_derivatives_by_dense_operands():
    def loss(x):
        return nm.sum(nm.sin(A @ x))

    def of_dense(x):
        return nm.sum(nm.sin(A.to_dense() @ x))

    for transform in (nm.grad, nm.hessian, lambda f: nm.jit(nm.grad(f))):
        np.testing.assert_allclose(
            transform(loss)(X).numpy(), transform(of_dense)(X).numpy(), 1e-10
        )
    stack = nm.stack([X, 2 * X])
    np.testing.assert_allclose(nm.vmap(lambda x: A @ x)(stack).numpy(), (A @ stack).numpy(), 1e-12)


def test_containers():
    gradient = nm.grad(lambda a: nm.sum((a @ X) ** 2))(A)
    assert gradient.structure is A.structure
    traced = nm.jit(lambda a, x: (a @ x, (2 * a).T))
    product, swapped = traced(A, X)
    np.testing.assert_allclose(product.numpy(), (A @ X).numpy())
    assert swapped.format == "csc"
    again = sparse.csr_tensor(*A.structure.arrays(), 3 * A.values, A.shape)
    np.testing.assert_allclose(traced(again, X)[0].numpy(), 3 * product.numpy(), rtol=1e-12)
    with pytest.raises(ValueError, match="structure"):
        nm.jit(lambda x: sparse.from_dense(x).values)(X)


def test_complex_numbers():
    c = A * (1 + 2j)
    np.testing.assert_allclose((c @ (X * 1j)).numpy(), c.to_dense().numpy() @ (X.numpy() * 1j))
    np.testing.assert_allclose((c.H @ c).to_dense().numpy(), c.H.to_dense().numpy() @ c.numpy())
    gradient = nm.grad(lambda v: nm.sum(nm.abs(c.with_values(v) @ X) ** 2))(c.values)
    whole = nm.grad(lambda d: nm.sum(nm.abs(d @ X) ** 2))(c.to_dense())
    np.testing.assert_allclose(gradient.numpy(), whole.numpy()[c.structure.coordinates])


def devices():
    simt_machine.install()
    return ["reference", "simt", "webgpu"]


@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize(
    "name",
    ["empty rows", *(pytest.param(n, marks=pytest.mark.slow) for n in ("random", "power law"))],
)
def test_other_devices(device, name):
    whole = ANY[name].astype(np.float32)
    try:
        a = sparse.from_dense(nm.asarray(whole)).to(device)
    except DeviceError as reason:
        pytest.skip(str(reason))
    x = np.random.default_rng(1).standard_normal((whole.shape[1], 3)).astype(np.float32)
    on_device = nm.asarray(x, device=device)
    tolerance = {"rtol": 1e-5, "atol": 1e-5}
    np.testing.assert_allclose((a @ on_device).numpy(), whole @ x, **tolerance)
    np.testing.assert_allclose((a @ on_device[:, 0]).numpy(), whole @ x[:, 0], **tolerance)
    np.testing.assert_allclose((a @ a.T).to_dense().numpy(), whole @ whole.T, **tolerance)
    gradient = nm.grad(lambda v: nm.sum((a.with_values(v) @ on_device) ** 2))(a.values)
    wanted = (2 * (whole @ x) @ x.T)[a.structure.coordinates]
    np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float32", "complex64"])
def test_dtypes(dtype):
    whole = np.round(random(8, 9, 0.4, 3) * 3)
    a = sparse.from_dense(nm.asarray(whole)).astype(getattr(nm, dtype))
    x = nm.ones((9, 20), dtype=getattr(nm, dtype))
    assert (a @ x).dtype.name == dtype
    np.testing.assert_allclose((a @ x).astype(nm.complex64).numpy(), whole @ np.ones((9, 20)))
    found = (a @ a.T).to_dense().astype(nm.complex64).numpy()
    np.testing.assert_allclose(found, whole @ whole.T)
