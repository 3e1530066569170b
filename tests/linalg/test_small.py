"""Many small matrices: kernels that hold one in each SIMD lane."""

import numpy as np
import pytest

import numus as nm
from numus.errors import LinAlgError
from numus.functions._base import wrap
from numus.primitives.linalg import factor

BATCH = 37  # no multiple of any number of lanes
DTYPES = ("float32", "float64", "complex128")


@pytest.fixture(autouse=True)
def _native():
    with nm.kernels.prefer("native"):
        yield


def _general(m, n, dtype):
    rng = np.random.default_rng(m * 100 + n)
    a = rng.standard_normal((BATCH, m, n))
    if dtype.startswith("complex"):
        a = a + 1j * rng.standard_normal(a.shape)
    return a.astype(dtype)


def _eps(dtype):
    return float(np.finfo(dtype).eps)


def _sizes(x):
    return np.abs(x).max(axis=(-2, -1), initial=0.0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 4, 18])
def test_systems(n, dtype):
    a = _general(n, n, dtype) + 2 * np.sqrt(n) * np.eye(n, dtype=dtype)
    b = _general(n, 3, dtype)
    x = nm.linalg.solve(nm.asarray(a), nm.asarray(b)).numpy()
    bound = 20 * n * _eps(dtype)
    assert (_sizes(a @ x - b) <= bound * (_sizes(a) * _sizes(x) * n + _sizes(b))).all()
    inverse = nm.linalg.inv(nm.asarray(a)).numpy()
    assert (_sizes(a @ inverse - np.eye(n)) <= bound * n * _sizes(a) * _sizes(inverse)).all()
    det = nm.linalg.det(nm.asarray(a)).numpy()
    np.testing.assert_allclose(det, np.linalg.det(a), rtol=100 * n * _eps(dtype))
    square = a @ np.conj(np.swapaxes(a, -1, -2)) + np.eye(n, dtype=dtype)
    found = nm.linalg.cholesky(nm.asarray(square)).numpy()
    assert (np.triu(found, 1) == 0).all()
    back = found @ np.conj(np.swapaxes(found, -1, -2))
    assert (_sizes(back - square) <= 10 * n * _eps(dtype) * _sizes(square)).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(9, 5), (18, 18)])
def test_orthogonal_factors(m, n, dtype):
    a = _general(m, n, dtype)
    a[1] *= 1e-30
    a[2] *= 1e30
    a[3] = 1
    q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(a)))
    assert (np.tril(r, -1) == 0).all()
    bound = 10 * m * _eps(dtype)
    assert (_sizes(q @ r - a) <= bound * _sizes(a)).all()
    assert (_sizes(np.conj(np.swapaxes(q, -1, -2)) @ q - np.eye(n)) <= bound).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 18])
def test_eigenvalues(n, dtype):
    a = _general(n, n, dtype)
    a = a + np.swapaxes(a, -1, -2)
    rng = np.random.default_rng(n)
    a[3] = np.eye(n)
    a[4] = 0
    a[5] = np.diag(np.arange(n) // 2)
    a[6] *= 1e25
    a[7] *= 1e-25
    basis = np.linalg.qr(rng.standard_normal((n, n)))[0]
    a[9] = 1
    a[8] = basis @ np.diag(1.0 + 1e-6 * rng.standard_normal(n)) @ basis.T
    a = (a + np.swapaxes(a, -1, -2)) / 2
    values, vectors = (x.numpy() for x in nm.linalg.eigh(nm.asarray(a)))
    bound = 10 * n * _eps(dtype)
    assert (np.diff(values) >= 0).all()
    assert (_sizes(a @ vectors - vectors * values[:, None]) <= bound * _sizes(a)).all()
    assert (_sizes(np.swapaxes(vectors, -1, -2) @ vectors - np.eye(n)) <= bound).all()
    upper = nm.linalg.eigvalsh(nm.asarray(np.triu(a)), UPLO="U").numpy()
    np.testing.assert_array_equal(upper, values)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (5, 5), (4, 9), (18, 18)])
def test_singular_values(m, n, dtype):
    a = _general(m, n, dtype)
    a[3] = np.eye(m, n)
    a[4] = 0
    a[5] = 1
    a[6] *= 1e25
    a[7] *= 1e-25
    a[8] = np.triu(np.ones((m, n)), 1)
    a[9] = np.diag(np.arange(max(m, n)) // 2)[:m, :n]
    a[10, :, 0] = 0
    a[11] = 1 / (np.arange(m)[:, None] + np.arange(n) + 1)
    a[12] = a[12] * 10.0 ** -np.arange(m)[:, None]
    u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(a), full_matrices=False))
    bound, k = 10 * max(m, n) * _eps(dtype), min(m, n)
    assert (np.diff(s) <= 0).all()
    assert (s >= 0).all()
    assert (_sizes(u * s[:, None] @ vh - a) <= bound * _sizes(a)).all()
    for columns in (u, np.swapaxes(vh, -1, -2)):
        assert (_sizes(np.swapaxes(columns, -1, -2) @ columns - np.eye(k)) <= bound).all()
    np.testing.assert_allclose(nm.linalg.svdvals(nm.asarray(a)).numpy(), s, rtol=1e-3, atol=1e-6)


def test_nan_stays_in_its_matrix():
    a = _general(4, 4, "float64")
    a[11, 2, 1] = np.nan
    good = np.arange(BATCH) != 11
    for name in ("solve", "inv", "det", "qr"):
        more = [nm.asarray(_general(4, 2, "float64"))] if name == "solve" else []
        found = getattr(nm.linalg, name)(nm.asarray(a), *more)
        for part in found if isinstance(found, tuple) else (found,):
            assert not np.isnan(part.numpy()[good]).any(), name
            assert np.isnan(part.numpy()[11]).any(), name
    values, vectors, _ = nm.linalg.eigh_ex(nm.asarray(a))
    assert np.isnan(values.numpy()[11]).all()
    assert not np.isnan(vectors.numpy()[good]).any()


def test_nothing_is_found_of_a_matrix_that_is_not_finite():
    a = np.stack([np.eye(3), np.eye(3)])
    a[1, 0, 0] = np.inf
    for part in nm.linalg.svd_ex(nm.asarray(a))[:3]:
        assert np.isnan(part.numpy()[1]).all()
        assert np.isfinite(part.numpy()[0]).all()


def test_singular_matrices():
    a = _general(4, 4, "float64")
    a[5, :, 2] = 0
    a[9, 1] = 2 * a[9, 0]
    x = nm.asarray(a)
    assert nm.linalg.det(x).numpy()[5] == 0
    for call in (
        nm.linalg.inv,
        lambda x: nm.linalg.solve(x, nm.ones((BATCH, 4, 1), dtype="float64")),
    ):
        with pytest.raises(LinAlgError, match=r"matrix 5 of the batch.*is singular: its pivot 3"):
            call(x)
        found = nm.jit(call)(x).numpy()
        assert np.isnan(found[5]).all()
        assert np.isfinite(found[np.arange(BATCH) != 5]).all() or np.isnan(found[9]).all()
    square = a @ np.swapaxes(a, -1, -2) + np.eye(4)
    square[7, 2, 2] = -1
    with pytest.raises(
        LinAlgError, match=r"matrix 7 of the batch is not positive definite.* order 3"
    ):
        nm.linalg.cholesky(nm.asarray(square))
    found = nm.jit(nm.linalg.cholesky)(nm.asarray(square)).numpy()
    assert np.isnan(found[7]).any()
    assert np.isfinite(found[np.arange(BATCH) != 7]).all()


def test_vmap_and_derivatives_agree_with_single_matrices():
    a = nm.asarray(_general(4, 4, "float64") + 4 * np.eye(4))
    for f in (nm.linalg.inv, nm.linalg.det, lambda x: nm.linalg.qr(x)[1]):
        each = np.stack([f(a[i]).numpy() for i in range(BATCH)])
        np.testing.assert_allclose(nm.vmap(f)(a).numpy(), each, rtol=1e-12, atol=1e-13)

        def loss(x, f=f):
            return (f(x) ** 2).sum()

        found = nm.grad(loss)(a).numpy()
        single = np.stack([nm.grad(loss)(a[i]).numpy() for i in range(BATCH)])
        np.testing.assert_allclose(found, single, rtol=1e-9, atol=1e-9)
        _, moved = nm.jvp(loss, (a,), (nm.ones_like(a),))
        np.testing.assert_allclose(moved.item(), found.sum(), rtol=1e-9)


def test_operands_may_be_views_and_expressions():
    a = _general(5, 5, "float64") + 5 * np.eye(5)
    x = nm.asarray(a)
    np.testing.assert_allclose(
        nm.linalg.inv(2 * x.mT[::-1]).numpy(),
        np.linalg.inv(2 * np.swapaxes(a, -1, -2)[::-1]),
        rtol=1e-10,
    )


@pytest.mark.parametrize(
    "name",
    [
        "lower_cholesky",
        "direct_inverse",
        "small_determinant",
        "direct_qr",
        "eigh",
        "svd",
    ],
)
def test_kernels_agree_with_references(name):
    a = _general(6, 6, "float64")
    a = a @ np.swapaxes(a, -1, -2) + np.diag(np.arange(6.0))
    found, expected = (
        wrap(getattr(factor, name)(nm.asarray(a, device=place)._node)).numpy()
        for place in ("cpu", "reference")
    )
    if name in ("eigh", "svd"):  # vectors are determined up to signs
        found, expected = np.abs(found), np.abs(expected)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_equal_singular_values_of_bidiagonal_matrices_converge():
    a = np.eye(20, k=1, dtype=np.float32)  # nothing but zeros on the diagonal
    values = nm.linalg.svdvals(nm.asarray(np.stack([a] * 20))).numpy()
    np.testing.assert_allclose(values, np.tile(np.arange(20) < 19, (20, 1)), atol=1e-5)
