"""Eigenvalues and Schur forms of general matrices, by the library's kernels and by LAPACK."""

import numpy as np
import pytest
from test_solvers import adjoint, drawn, kinds

import numus as nm
from numus.errors import LinAlgError

DTYPES = [
    pytest.param(d, marks=[pytest.mark.slow] if d in (np.float64, np.complex64) else [])
    for d in (np.float32, np.complex128, np.float64, np.complex64)
]


@pytest.fixture(params=["native", "auto"])
def kernels(request):
    with nm.kernels.prefer(request.param):
        yield request.param


def repeated(n, dtype):
    """Equal eigenvalues, defective and not."""
    yield np.eye(n, dtype=dtype)
    yield (np.eye(n) + np.eye(n, k=1)).astype(dtype)
    yield np.zeros((n, n), dtype)
    yield np.roll(np.eye(n), 1, axis=0).astype(dtype)  # needs exceptional shifts
    # turns by a right angle: blocks whose elements are equal or opposite
    yield np.kron(np.eye(n // 2), [[0, 1], [-1, 0]]).astype(dtype)


def check_backward_errors(a):
    """Of the Schur and Hessenberg forms of a matrix, and of its eigenvectors."""
    n = len(a)
    bound = 10 * max(n, 4) * np.finfo(a.dtype).eps
    size = max(np.max(np.abs(a)), np.finfo(a.dtype).tiny)
    t, z = (x.numpy() for x in nm.linalg.schur(nm.asarray(a)))
    assert np.max(np.abs(adjoint(z) @ z - np.eye(n))) <= bound
    assert np.max(np.abs(z @ (t / size) @ adjoint(z) - a / size)) <= bound
    assert not np.tril(t, -1 if np.iscomplexobj(a) else -2).any()
    h, q = (x.numpy() for x in nm.linalg.hessenberg(nm.asarray(a)))
    assert np.max(np.abs(q @ (h / size) @ adjoint(q) - a / size)) <= bound
    assert not np.tril(h, -2).any()
    values, vectors = (x.numpy() for x in nm.linalg.eig(nm.asarray(a)))
    residual = (a / size) @ vectors - vectors * (values / size)
    assert np.max(np.abs(residual)) <= bound
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=0), 1, rtol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error(dtype, kernels):
    for n in (2, 24):  # one block alone; many
        for a in (*kinds(n, dtype), *repeated(n, dtype)):
            check_backward_errors(a)


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_many_shifts(dtype):
    """Panels of reflectors, chains of bulges, windows that deflate."""
    n = 116
    with nm.kernels.prefer("native"):
        for a in (*kinds(n, dtype), *repeated(n, dtype)):
            check_backward_errors(a)


def test_threads_do_not_change_eigenvectors():
    a = drawn((3, 130, 130), np.float64)
    with nm.kernels.prefer("native"):
        whole = nm.linalg.eig(nm.asarray(a))
        for i in range(len(a)):
            for x, y in zip(whole, nm.linalg.eig(nm.asarray(a[i])), strict=True):
                np.testing.assert_array_equal(x[i].numpy(), y.numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_pencils(dtype):
    for n in (2, 12):
        for singular in (False, True):
            a, b = drawn((n, n), dtype), drawn((n, n), dtype)
            if singular:
                b = np.triu(b)
                b[0, 0] = b[n // 2, n // 2] = 0
            s, t, q, z = (x.numpy() for x in nm.linalg.qz(nm.asarray(a), nm.asarray(b)))
            bound = 10 * max(n, 4) * np.finfo(dtype).eps * max(np.abs(a).max(), np.abs(b).max())
            for outer in (q, z):
                assert np.max(np.abs(adjoint(outer) @ outer - np.eye(n))) <= bound
            assert np.max(np.abs(q @ s @ adjoint(z) - a)) <= bound
            assert np.max(np.abs(q @ t @ adjoint(z) - b)) <= bound
            values = nm.linalg.eigvals(nm.asarray(a), nm.asarray(b)).numpy()
            assert np.isinf(values).any() == singular


def test_real_blocks_are_standardised():
    with nm.kernels.prefer("native"):
        t = nm.linalg.schur(nm.asarray(drawn((20, 20), np.float32))).T.numpy()
    pairs = np.flatnonzero(np.diagonal(t, -1))
    assert len(pairs)
    for k in pairs:
        assert t[k, k] == t[k + 1, k + 1]
        assert t[k, k + 1] * t[k + 1, k] < 0


def test_conjugate_pairs_are_exact():
    with nm.kernels.prefer("native"):
        found = nm.linalg.eig(nm.asarray(drawn((15, 15), np.float32)))
    values, vectors = (x.numpy() for x in found)
    for k in np.flatnonzero(values.imag > 0):
        assert values[k + 1] == np.conj(values[k])
        np.testing.assert_allclose(np.abs(vectors[:, k + 1]), np.abs(vectors[:, k]), atol=1e-4)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_ends(bad, kernels):
    a = np.eye(6, dtype=np.float32)
    a[3, 2] = bad
    both = np.stack([np.eye(6, dtype=np.float32), a])
    found = nm.jit(nm.linalg.eigvals)(nm.asarray(both)).numpy()
    np.testing.assert_array_equal(found[0], 1)
    assert not np.isfinite(found[1]).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nm.linalg.eig(nm.ones((2, 3))), "eig: takes square matrices"),
        (lambda: nm.linalg.schur(nm.ones(3)), "schur: takes square matrices"),
        (lambda: nm.linalg.sqrtm(nm.asarray([[-1.0]])), "sqrtm: .* no square root.*as a complex"),
        (lambda: nm.linalg.logm(nm.zeros((2, 2, 2))), r"logm: matrix 0 .*\(and 1 more\)"),
        (lambda: nm.linalg.fractional_matrix_power(nm.asarray([[-1.0]]), 0.3), "fractional_m"),
        (lambda: nm.linalg.signm(nm.zeros((2, 2))), "signm: .*imaginary axis"),
        (lambda: nm.linalg.solve_banded((0, 0), nm.zeros((1, 2)), nm.ones(2)), "banded: .*pivot 1"),
        (
            lambda: nm.linalg.solve_sylvester(nm.eye(2), -nm.eye(2), nm.eye(2)),
            "solve_sylvester: .*no unique solution",
        ),
    ],
)
def test_errors_name_the_function(call, message):
    with pytest.raises(LinAlgError, match=message):
        call()


def test_complex_roots_of_negative_matrices():
    found = nm.linalg.sqrtm(nm.asarray([[-4.0 + 0j]])).numpy()
    np.testing.assert_allclose(found, [[2j]], atol=1e-6)
    found = nm.linalg.logm(nm.asarray([[-1.0 + 0j]])).numpy()
    np.testing.assert_allclose(found, [[np.pi * 1j]], atol=1e-6)


def test_derivatives_of_matrix_functions_at_equal_eigenvalues():
    """The derivative of the square root at the identity is half of the direction."""
    one = nm.eye(3)
    towards = nm.asarray(drawn((3, 3), np.float32))
    _, tangent = nm.jvp(nm.linalg.sqrtm, (one,), (towards,))
    np.testing.assert_allclose(tangent.numpy(), towards.numpy() / 2, atol=1e-5)
    g = nm.grad(lambda a: (nm.linalg.logm(a) * towards).sum())(one).numpy()
    np.testing.assert_allclose(g, towards.numpy(), atol=1e-5)
