"""Eigenvalues and singular values: against dense ones, shifts, derivatives, bad input."""

import numpy as np
import pytest
from sparse_matrices import convection, poisson, random

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg

POISSON = poisson(13, 11)
VALUES = np.linalg.eigvalsh(POISSON)
WIDE = random(30, 80, 0.1, 4)
COMPLEX = random(60, 60, 0.2) + 1j * random(60, 60, 0.2, 3)


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def check(dense, w, v, rtol=1e-12):
    w, v = w.numpy(), v.numpy()
    size = np.abs(w).max()
    np.testing.assert_allclose(dense @ v, v * w, atol=1e3 * rtol * size)
    np.testing.assert_allclose(np.linalg.norm(v, axis=0), 1.0, rtol=1e-10)


@pytest.mark.parametrize("which", ["LM", pytest.param("SA", marks=pytest.mark.slow)])
def test_hermitian(which):
    w, v = linalg.eigsh(made(POISSON), 5, which=which, ncv=50)
    want = VALUES[:5] if which == "SA" else VALUES[-5:]
    np.testing.assert_allclose(w.numpy(), want, rtol=1e-11)
    check(POISSON, w, v)
    np.testing.assert_allclose(v.numpy().T @ v.numpy(), np.eye(5), atol=1e-10)


def test_shift_and_invert():
    w, v = linalg.eigsh(made(POISSON), 5, sigma=0.0)
    np.testing.assert_allclose(w.numpy(), VALUES[:5], rtol=1e-11)
    check(POISSON, w, v)
    near = 0.5 * (VALUES[70] + VALUES[71])
    w, _ = linalg.eigsh(made(POISSON), 3, sigma=near)
    want = np.sort(VALUES[np.argsort(np.abs(VALUES - near))[:3]])
    np.testing.assert_allclose(w.numpy(), want, rtol=1e-10)


def test_complex_hermitian():
    dense = COMPLEX + COMPLEX.conj().T
    w, v = linalg.eigsh(made(dense), 4, which="LA")
    np.testing.assert_allclose(w.numpy(), np.linalg.eigvalsh(dense)[-4:], rtol=1e-11)
    check(dense, w, v)


@pytest.mark.parametrize(("which", "key"), [
    ("LM", lambda x: -np.abs(x)),
    ("SR", lambda x: x.real),
    pytest.param("LI", lambda x: -np.abs(x.imag), marks=pytest.mark.slow),
])  # fmt: skip
def test_any_matrix(which, key):
    dense = convection(9, 3.0) + random(81, 81, 0.05, 9)
    w, v = linalg.eigs(made(dense), 6, which=which)
    exact = np.linalg.eigvals(dense)
    want = np.sort(key(exact))[:6]
    np.testing.assert_allclose(np.sort(key(w.numpy())), want, rtol=1e-9)
    check(dense, w, v)


def test_complex_shift():
    w, v = linalg.eigs(made(COMPLEX), 3, sigma=1.0 + 1.0j)
    check(COMPLEX, w, v)
    exact = np.linalg.eigvals(COMPLEX)
    want = np.sort(np.abs(exact - (1 + 1j)))[:3]
    np.testing.assert_allclose(np.sort(np.abs(w.numpy() - (1 + 1j))), want, rtol=1e-9)


@pytest.mark.parametrize(
    "dense",
    [random(70, 40, 0.1, 3), *(pytest.param(x, marks=pytest.mark.slow) for x in (WIDE, COMPLEX))],
)
def test_singular_values(dense):
    u, s, vh = (x.numpy() for x in linalg.svds(made(dense), 5))
    np.testing.assert_allclose(s, np.linalg.svd(dense)[1][:5], rtol=1e-11)
    np.testing.assert_allclose(dense @ vh.conj().T, u * s, atol=1e-10)
    np.testing.assert_allclose(u.conj().T @ u, np.eye(5), atol=1e-11)


def test_lobpcg():
    a, first = made(POISSON), np.random.default_rng(0).standard_normal((143, 4))
    factor = linalg.cholesky(a)
    w, v = linalg.lobpcg(a, first, M=lambda x: factor.solve(x, refine=0), largest=False)
    np.testing.assert_allclose(w.numpy(), VALUES[:4], rtol=1e-8)
    w, v = linalg.lobpcg(a, first)
    np.testing.assert_allclose(w.numpy(), VALUES[::-1][:4], rtol=1e-8)
    check(POISSON, w, v, 1e-8)
    with pytest.raises(LinAlgError, match="after 2 iterations"):
        linalg.lobpcg(a, first, maxiter=2)


def test_derivative_of_eigenvalues():
    a = made(POISSON)
    slope = nm.grad(lambda v: linalg.eigsh(a.with_values(v), 1)[0].sum())(a.values)
    _, v = linalg.eigsh(a, 1)
    row, column = a.structure.coordinates
    want = v.numpy()[row, 0] * v.numpy()[column, 0]
    np.testing.assert_allclose(slope.numpy(), want, atol=1e-10)


def test_invariant_subspaces():
    assert linalg.eigsh(sparse.eye(6, dtype=nm.float64), 3)[0].tolist() == [1.0, 1.0, 1.0]
    w, _ = linalg.eigsh(sparse.diags([3.0, 3.0, 3.0, 1.0, 0.0], dtype=nm.float64), 3)
    np.testing.assert_allclose(w.numpy(), [3.0, 3.0, 3.0], rtol=1e-12)


def test_operators():
    double = linalg.LinearOperator((40, 40), lambda x: x * nm.arange(40.0), dtype=nm.float32)
    w, _ = linalg.eigsh(double, 2)
    np.testing.assert_allclose(w.numpy(), [38.0, 39.0], rtol=1e-5)


def test_bad_input():
    a = made(POISSON)
    with pytest.raises(ValueError, match="k=143 is not between"):
        linalg.eigsh(a, 143)
    with pytest.raises(ValueError, match="which="):
        linalg.eigsh(a, 2, which="LI")
    with pytest.raises(ValueError, match="below k"):
        linalg.eigs(a, 5, ncv=6)
    with pytest.raises(ShapeError, match="not square"):
        linalg.eigs(sparse.eye(3, 4), 1)
    with pytest.raises(LinAlgError, match="of 3 eigenvalues converged in 1 restarts"):
        linalg.eigsh(a, 3, which="SA", maxiter=1)
    with pytest.raises(LinAlgError, match="not finite"):
        linalg.eigsh(made(np.diag([np.nan, 1.0, 2.0, 3.0])), 1)
    with pytest.raises(LinAlgError, match="cannot be traced"):
        nm.jit(lambda a: linalg.eigsh(a, 2)[0])(a)
    with pytest.raises(ShapeError, match="first vectors"):
        linalg.lobpcg(a, nm.ones((143, 60)))
    with pytest.raises(ValueError, match="smaller side"):
        linalg.svds(a, 0)


def test_small_eigenvalues_of_large_matrices_converge():
    """Their error is that of the matrix: relative to themselves, rounding never gets there."""
    values = np.concatenate([np.linspace(1e-3, 1.0, 40), np.linspace(2.0, 8.0, 160)])
    a = sparse.diags(nm.asarray(values), format="csr")
    w, v = linalg.eigsh(a, 3, which="SA")
    np.testing.assert_allclose(w.numpy(), values[:3], atol=1e-13)
    assert np.linalg.norm((a @ v - v * w).numpy(), axis=0).max() < 1e-13
