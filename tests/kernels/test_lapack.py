"""Routines of LAPACK through SciPy's function pointers, against their definitions."""

import numpy as np
import pytest

import numus as nm
from numus.linalg.factor import lapack
from numus.runtime.cpu import lapack as library
from numus.runtime.devices import device
from numus.runtime.lapack_routines import described

pytestmark = pytest.mark.skipif(
    not library.is_supported(described("eigh", 1, np.zeros((1, 2, 2)))), reason="needs SciPy"
)
DTYPES = ("float32", "float64", "complex64", "complex128")
by_dtype = pytest.mark.parametrize("dtype", DTYPES)


def matrices(dtype, m=7, n=7, batch=3):
    rng = np.random.default_rng(m * n)
    a = rng.standard_normal((batch, m, n))
    if dtype.startswith("complex"):
        a = a + 1j * rng.standard_normal((batch, m, n))
    return a.astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def positive(dtype, n=7):
    a = matrices(dtype, n, n)
    return a @ adjoint(a) + np.eye(n, dtype=dtype)


def arrays(xs):
    return [np.asarray(x.numpy()) for x in xs]


def close(x, y):
    x, y = np.asarray(x), np.asarray(y)
    scale = 200 * np.finfo(y.dtype).eps * max(1, np.abs(y).max())
    np.testing.assert_allclose(x, y, rtol=0, atol=scale)


@by_dtype
def test_symmetric(dtype):
    h = positive(dtype)
    x = nm.asarray(h, device="cpu")
    low = np.tril(lapack.cholesky(x).numpy())
    close(low @ adjoint(low), h)
    only_lower = nm.asarray(np.tril(h), device="cpu")
    values, vectors = arrays(lapack.eigh(only_lower))
    assert (np.diff(values) >= 0).all()
    close(h @ vectors, vectors * values[:, None, :])
    close(adjoint(vectors) @ vectors, np.broadcast_to(np.eye(7, dtype=dtype), h.shape))
    for columns in (1, 4):
        b = matrices(dtype, 7, columns)
        for lower, triangle in ((True, np.tril(h)), (False, np.triu(h))):
            found = lapack.solve_triangular(x, nm.asarray(b, device="cpu"), lower, False)
            close(triangle @ found.numpy(), b)
        turned = nm.asarray(np.swapaxes(h, -1, -2).copy(), device="cpu").mT[:, 1:, 1:]
        found = lapack.solve_triangular(turned, nm.asarray(b[:, 1:], device="cpu"), True, False)
        close(np.tril(h[:, 1:, 1:]) @ found.numpy(), b[:, 1:])


@by_dtype
@pytest.mark.parametrize(("m", "n"), [(6, 6), (8, 5), (5, 8)])
def test_rectangular(dtype, m, n):
    a = matrices(dtype, m, n)
    x = nm.asarray(a, device="cpu")
    k = min(m, n)
    packed, order, swaps = arrays(lapack.lu(x))
    low = np.tril(packed[:, :, :k], -1) + np.eye(m, k, dtype=dtype)
    close(low @ np.triu(packed[:, :k]), np.take_along_axis(a, order[:, :, None], 1))
    assert swaps.shape == (3, k)
    assert (swaps >= np.arange(k)).all()
    for columns in {k, m}:
        q, r = arrays(lapack.qr(x, columns))
        assert q.shape == (3, m, columns)
        close(q[:, :, :k] @ np.triu(r)[:, :k], a)
        close(adjoint(q) @ q, np.broadcast_to(np.eye(columns, dtype=dtype), (3, columns, columns)))
    for job in "SA":
        u, s, vh = arrays(lapack.svd(x, job))
        close((u[:, :, :k] * s[:, None, :]) @ vh[:, :k], a)
    close(lapack.svd(x, "N")[1].numpy(), s)


@by_dtype
def test_nonsymmetric(dtype):
    a, b = matrices(dtype), positive(dtype)
    x, y = nm.asarray(a, device="cpu"), nm.asarray(b, device="cpu")
    values, vectors, info = arrays(lapack.eig(x))
    assert not info.any()
    close(a @ vectors, vectors * values[:, None, :])
    close(np.sort(lapack.eig(x, vectors=False)[0].numpy().real), np.sort(values.real))
    t, z, values, info = arrays(lapack.schur(x))
    close(z @ t @ adjoint(z), a)
    s, t, q, z, alpha, beta, info = arrays(lapack.qz(x, y))
    close(q @ s @ adjoint(z), a)
    close(q @ t @ adjoint(z), b)
    assert alpha.shape == beta.shape == (3, 7)
    assert not info.any()


def test_views_and_expressions_are_copied():
    a = matrices("float64", 6, 6)
    x = nm.asarray(a, device="cpu")
    close(lapack.svd((x + 1).mT[:, 1:])[1].numpy(), np.linalg.svd((a + 1).mT[:, 1:])[1])


@by_dtype
def test_systems(dtype):
    a, b = matrices(dtype), matrices(dtype, 7, 4)
    a[1, 3] = a[1, 2] = 0
    x, info = arrays(lapack.system(*(nm.asarray(v, device="cpu") for v in (a, b))))
    close(a[::2] @ x[::2], b[::2])
    assert (info != 0).tolist() == [False, True, False]
    with nm.kernels.prefer("vendor"):
        x, info = arrays(nm.linalg.solve_ex(nm.asarray(a, device="cpu"), b))
    assert np.isnan(x[1]).all()
    close(a[::2] @ x[::2], b[::2])


def test_indefinite_matrices_have_nan_from_their_minor_on():
    h = positive("float64")
    h[1, 3, 3] = -1
    found = lapack.cholesky(nm.asarray(h, device="cpu")).numpy()
    assert np.isfinite(found[[0, 2]]).all()
    assert np.isfinite(found[1, :3]).all()
    assert np.isnan(found[1, 3:]).all()


def test_preferences():
    a = nm.asarray(positive("float64", 5), device="cpu")
    with nm.kernels.prefer("vendor"):
        assert lapack.is_chosen("eigh", a, option=1)
        assert "lapack" in str(nm.explain(nm.linalg.eigh, a))
        by_library = nm.linalg.eigh(a)[0].numpy()
    with nm.kernels.prefer("native"):
        assert not lapack.is_chosen("eigh", a, option=1)
        close(nm.linalg.eigh(a)[0].numpy(), by_library)


def test_batched_jitted_and_on_the_reference():
    a = positive("float64", 5)
    with nm.kernels.prefer("vendor"):
        whole = nm.linalg.cholesky(nm.asarray(a, device="cpu")).numpy()
        each = nm.vmap(nm.linalg.cholesky)(nm.asarray(a, device="cpu")).numpy()
        jitted = nm.jit(nm.linalg.cholesky)(nm.asarray(a, device="cpu")).numpy()
    np.testing.assert_array_equal(each, whole)
    np.testing.assert_array_equal(jitted, whole)
    out = np.empty((3, 26))
    runtime = device("cpu").runtime
    library.run(runtime, described("cholesky", 0, a), [a, out])
    np.testing.assert_array_equal(np.tril(out[:, :25].reshape(3, 5, 5)), whole)


LOSSES = {
    "cholesky": lambda x: nm.linalg.cholesky(x)[:, 1:, 0].sum(),
    "inv": lambda x: nm.linalg.inv(x)[:, 0].sum(),
    "det": lambda x: nm.linalg.det(x).sum(),
    "lu_factor": lambda x: nm.linalg.lu_factor(x)[0][:, 2].sum(),
    "qr": lambda x: abs(nm.linalg.qr(x)[1]).sum(),
    "eigh": lambda x: (nm.linalg.eigh(x)[1] ** 2)[:, 0].sum(axis=0)[0],
    "svd": lambda x: (nm.linalg.svd(x)[0] ** 2)[:, 0].sum(axis=0)[0],
}


@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_are_those_of_native_kernels(name):
    x = nm.asarray(positive("float64", 5), device="cpu")
    gradients = []
    for which in ("native", "vendor"):
        with nm.kernels.prefer(which):
            gradients.append(nm.grad(LOSSES[name])(x).numpy())
    scale = 1e-10 * np.abs(gradients[0]).max()
    np.testing.assert_allclose(gradients[1], gradients[0], rtol=0, atol=scale)
