"""QR, eigenvalues and singular values: backward errors, orthogonality, derivatives."""

import numpy as np
import pytest
from test_solvers import DTYPES, adjoint, drawn, kinds

import numus as nm
from numus.errors import GradientError, LinAlgError

RNG = np.random.default_rng(1)


def check_unitary(q, n):
    assert np.max(np.abs(adjoint(q) @ q - np.eye(q.shape[-1]))) <= 10 * n * np.finfo(q.dtype).eps


def bound(a, n):
    return 10 * n * np.finfo(a.dtype).eps * np.max(np.abs(a))


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_qr(dtype):
    for a in kinds(70, dtype):
        for part in (a, a[:, :33], a[:33]):
            q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(part)))
            check_unitary(q, 70)
            assert np.max(np.abs(q @ r - part)) <= bound(part, 70)
            assert not np.tril(r, -1).any()


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_reflectors_of_qr_give_the_matrix(dtype):
    for shape in ((2, 40, 34), (3, 5), (4, 4)):
        a = drawn(shape, dtype)
        h, tau = nm.linalg.qr(nm.asarray(a), mode="raw")
        assert h.shape == (*shape[:-2], shape[-1], shape[-2])
        assert tau.shape == (*shape[:-2], min(shape[-2:]))
        k = min(shape[-2:])
        q = nm.linalg.householder_product(h.mT[..., :k], tau).numpy()
        assert np.max(np.abs(q @ np.triu(h.mT.numpy())[..., :k, :] - a)) <= bound(a, 40)
    assert not nm.linalg.qr(nm.zeros((2, 2)), mode="raw")[1].any()  # nothing to reflect


def test_condition_number_of_nothing_is_infinite():
    a = nm.asarray([[[0.0, 0.0], [0.0, 0.0]], [[2.0, 0.0], [0.0, 1.0]]])
    assert nm.linalg.cond(a).tolist() == [np.inf, 2.0]
    assert nm.linalg.cond(a, -2).tolist() == [np.inf, 0.5]


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_svd(dtype):
    for a in kinds(24, dtype):
        for part in (a, a[:, :9], a[:9]):
            u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(part), full_matrices=False))
            check_unitary(u, 24)
            check_unitary(adjoint(vh), 24)
            assert (np.diff(s) <= 0).all()
            assert np.max(np.abs((u * s) @ vh - part)) <= bound(part, 24)


@pytest.mark.parametrize("kind", ["random", "low rank", "repeated"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_singular_values_of_columns_in_several_strips(dtype, kind):
    a = drawn((420, 390), dtype)
    if kind == "low rank":
        a = a[:, :5] @ drawn((5, 390), dtype)
    if kind == "repeated":
        a = np.linalg.qr(a)[0]
    with nm.kernels.prefer("native"):
        u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(a), full_matrices=False))
    check_unitary(u, 420)
    check_unitary(adjoint(vh), 420)
    size = np.linalg.norm(a, 2)
    limit = 10 * 420 * np.finfo(a.dtype).eps * size
    assert np.max(np.abs((u * s) @ vh - a)) <= limit
    assert np.max(np.abs(s - np.linalg.svd(a, compute_uv=False))) <= limit


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_eigh(dtype):
    unitary = np.linalg.qr(drawn((24, 24), dtype))[0]
    repeated = (unitary * np.repeat([1.0, 2.0, -3.0], 8)) @ adjoint(unitary)
    clustered = (unitary * (1 + 1e-7 * np.arange(24))) @ adjoint(unitary)
    for a in (*kinds(24, dtype), repeated.astype(dtype), clustered.astype(dtype)):
        a = (a / 2 + adjoint(a) / 2).astype(dtype)
        w, v = (x.numpy() for x in nm.linalg.eigh(nm.asarray(a)))
        check_unitary(v, 24)
        assert (np.diff(w) >= 0).all()
        assert np.max(np.abs((v * w) @ adjoint(v) - a)) <= bound(a, 24)


def test_full_matrices_are_unitary():
    for shape in ((2, 7, 3), (2, 3, 7)):
        u, _, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(drawn(shape, np.float32))))
        assert (u.shape, vh.shape) == ((2, shape[1], shape[1]), (2, shape[2], shape[2]))
        check_unitary(u, 10)
        check_unitary(vh, 10)


def test_other_triangle_is_not_read():
    a = np.tril(drawn((3, 3), np.float32))
    a[0, 2] = np.nan
    lower = np.tril(a)
    expected = np.linalg.eigvalsh(lower)
    np.testing.assert_allclose(nm.linalg.eigvalsh(nm.asarray(a)).numpy(), expected, atol=1e-5)
    upper = nm.linalg.eigvalsh(nm.asarray(a.T.copy()), UPLO="U").numpy()
    np.testing.assert_allclose(upper, expected, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("shape", [(5, 5), (2, 40, 40)])
def test_what_is_not_finite_has_no_spectrum(shape, bad):
    a = np.broadcast_to(np.eye(shape[-1], dtype=np.float32), shape).copy()
    a.reshape(-1, *shape[-2:])[-1, 3, 2] = bad
    x = nm.asarray(a)
    for name in ("eigh", "eigvalsh", "svd", "svdvals"):
        with pytest.raises(LinAlgError, match=f"{name}: .* not finite"):
            getattr(nm.linalg, name)(x)
    expected = np.array([0, 1]) if a.ndim > 2 else 1
    for function in (nm.linalg.eigh_ex, nm.linalg.svd_ex):
        *factors, info = function(x)
        np.testing.assert_array_equal(info.numpy(), expected)
        for factor in factors:
            found = factor.numpy() if a.ndim > 2 else factor.numpy()[None]
            assert np.isnan(found[-1]).all()
            assert a.ndim == 2 or np.isfinite(found[0]).all()
    traced = nm.jit(nm.linalg.eigvalsh)(x).numpy()  # nothing can be raised there
    assert np.isnan(traced.reshape(-1, shape[-1])[-1]).all()


def test_lstsq_of_deficient_rank_has_the_least_norm():
    a = drawn((6, 2), np.float32) @ drawn((2, 4), np.float32)
    b = drawn((6, 3), np.float32)
    found = nm.linalg.lstsq(nm.asarray(a), nm.asarray(b))
    np.testing.assert_allclose(found.x.numpy(), np.linalg.lstsq(a, b, rcond=1e-5)[0], atol=1e-4)
    assert found.rank.item() == 2


def test_gradients_of_equal_eigenvalues_are_finite():
    one = nm.asarray(np.eye(3, dtype=np.float32))
    g = nm.grad(lambda a: (nm.linalg.eigh(a)[0] ** 2).sum())(one).numpy()
    np.testing.assert_allclose(g, 2 * np.eye(3), atol=1e-5)
    g = nm.grad(lambda a: nm.linalg.matrix_norm(a, ord="nuc"))(one).numpy()
    np.testing.assert_allclose(g, np.eye(3), atol=1e-5)


def test_errors():
    with pytest.raises(LinAlgError, match="eigh: takes square matrices"):
        nm.linalg.eigh(nm.ones((2, 3)))
    with pytest.raises(ValueError, match="neither 'L' nor 'U'"):
        nm.linalg.eigh(nm.eye(2), UPLO="X")
    with pytest.raises(ValueError, match="must be one of 'reduced'"):
        nm.linalg.qr(nm.eye(2), mode="full")
    with pytest.raises(ValueError, match="must be one of 'fro'"):
        nm.linalg.matrix_norm(nm.eye(2), ord=3)
    with pytest.raises(GradientError, match="mode='complete'"):
        nm.grad(lambda a: nm.linalg.qr(a, mode="complete")[0].sum())(nm.ones((3, 2)))
    with pytest.raises(GradientError, match="mode='raw'"):
        nm.grad(lambda a: nm.linalg.qr(a, mode="raw")[0].sum())(nm.ones((3, 2)))
    with pytest.raises(ValueError, match="no pivoting"):
        nm.linalg.qr(nm.eye(2), mode="raw", pivoting=True)


def test_expm_of_large_and_mixed_norms():
    a = np.stack([np.diag([1e-3, 2e-3]), np.diag([3.0, -40.0])]).astype(np.float32)
    expected = np.stack([np.diag(np.exp(np.diag(m.astype(np.float64)))) for m in a])
    for function in (nm.linalg.expm, nm.jit(nm.linalg.expm)):
        np.testing.assert_allclose(function(nm.asarray(a)).numpy(), expected, rtol=1e-4, atol=1e-9)
