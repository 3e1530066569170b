"""Matrices that CPUs factorise in blocks, in place: sizes around tiles, bad input, jit, vmap."""

import functools

import numpy as np
import pytest
from test_solvers import KNOWN, adjoint, drawn

import numus as nm
from numus.errors import LinAlgError


@pytest.fixture(autouse=True)
def native():
    with nm.kernels.prefer("native"):
        yield


def bound(a, n):
    return 10 * n * np.finfo(a.dtype).eps * np.max(np.abs(a))


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (66, np.float32),
        *(
            pytest.param(n, dtype, marks=pytest.mark.slow)
            for n in (65, 80, 129, 131)
            for dtype in (np.float32, np.float64, np.complex64, np.complex128)
            if dtype.__name__ in KNOWN
        ),
    ],
)
def test_stacks_are_factorised(n, dtype):
    a = drawn((2, n, n), dtype)
    p, lower, upper = (x.numpy() for x in nm.linalg.lu(nm.asarray(a)))
    assert np.max(np.abs(p @ lower @ upper - a)) <= bound(a, n)
    b = drawn((2, n, 3), dtype)
    x = nm.linalg.solve(nm.asarray(a), nm.asarray(b)).numpy()
    assert np.max(np.abs(a @ x - b)) <= bound(a, n) * n * np.max(np.abs(x))
    positive = a @ adjoint(a) + n * np.eye(n, dtype=dtype)
    half = np.tril(positive) + np.triu(np.full_like(positive, np.nan), 1)
    factor = nm.linalg.cholesky(nm.asarray(half)).numpy()
    assert np.max(np.abs(factor @ adjoint(factor) - positive)) <= bound(positive, n)
    assert not np.triu(factor, 1).any()
    q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(a[..., :70])))
    assert np.max(np.abs(q @ r - a[..., :70])) <= bound(a, n)
    assert np.max(np.abs(adjoint(q) @ q - np.eye(q.shape[-1]))) <= 10 * n * np.finfo(dtype).eps


@pytest.mark.slow
def test_columns_that_are_nothing_or_nearly_so():
    a = drawn((90, 90), np.complex64)
    a[:, 7], a[:, 8] = a[:, 6], 0
    a[:, 40:] *= np.float32(1e-25)  # squares underflow
    q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(a)))
    assert np.max(np.abs(q @ r - a)) <= bound(a, 90)
    assert np.max(np.abs(adjoint(q) @ q - np.eye(90))) <= 900 * np.finfo(np.float32).eps
    tiny = drawn((70, 70), np.complex64) * np.float32(1e-40)  # reciprocals of pivots overflow
    assert np.isfinite(nm.linalg.lu_factor(nm.asarray(tiny))[0].numpy()).all()


def test_singular_and_indefinite_matrices_are_named():
    a = np.stack([np.eye(100), np.eye(100)]).astype(np.float32)
    a[1, 70, 70] = 0
    with pytest.raises(LinAlgError, match=r"solve: matrix 1 .*pivot 71"):
        nm.linalg.solve(nm.asarray(a), nm.ones((2, 100, 1)))
    with pytest.raises(LinAlgError, match=r"cholesky: matrix 1 .* order 71"):
        nm.linalg.cholesky(nm.asarray(a))
    found = nm.jit(nm.linalg.inv)(nm.asarray(a)).numpy()
    np.testing.assert_array_equal(found[0], np.eye(100))
    assert np.isnan(found[1]).all()


def test_tracked_solutions_agree_with_direct_ones():
    a, b = drawn((2, 66, 66), np.float32), drawn((2, 66, 2), np.float32)
    direct = nm.linalg.solve(nm.asarray(a), nm.asarray(b))
    by_factors, _ = nm.linalg.solve_ex(nm.asarray(a), nm.asarray(b))
    np.testing.assert_allclose(direct.numpy(), by_factors.numpy(), rtol=2e-3, atol=1e-4)
    mapped = nm.vmap(nm.linalg.solve)(nm.asarray(a), nm.asarray(b))
    np.testing.assert_array_equal(mapped.numpy(), direct.numpy())


def test_eigenvalues_of_low_rank_converge():
    for n, rank in ((130, 12), (140, 17)):
        b = drawn((n, rank), np.float32)
        a = b @ b.T
        w, v = (x.numpy() for x in nm.linalg.eigh(nm.asarray(a)))
        assert np.max(np.abs((v * w) @ v.T - a)) <= bound(a, n)
        assert np.max(np.abs(v.T @ v - np.eye(n))) <= 10 * n * np.finfo(np.float32).eps


def test_values_alone_are_nearly_those_with_vectors():
    """They are found by other steps."""
    a = drawn((2, 66, 66), np.float32)
    values = nm.vmap(nm.linalg.eigvalsh)(nm.asarray(a)).numpy()
    with_vectors = nm.linalg.eigh(nm.asarray(a))[0].numpy()
    np.testing.assert_allclose(values, with_vectors, rtol=0, atol=bound(a, 66))
    values = nm.jit(nm.linalg.svdvals)(nm.asarray(a)).numpy()
    with_vectors = nm.linalg.svd(nm.asarray(a))[1].numpy()
    np.testing.assert_allclose(values, with_vectors, rtol=0, atol=bound(a, 66))


def test_one_bad_matrix_of_a_stack_is_nan_alone():
    a = drawn((2, 66, 66), np.float32)
    a[1, 40, 3] = np.nan
    for found in (*nm.linalg.eigh_ex(nm.asarray(a))[:2], *nm.linalg.svd_ex(nm.asarray(a))[:3]):
        assert np.isfinite(found[0].numpy()).all()
        assert np.isnan(found[1].numpy()).all()


def test_tall_matrices_are_decomposed_by_their_triangle():
    a = drawn((200, 70), np.float32)
    for part in (a, a.T):
        u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(part), full_matrices=False))
        assert np.max(np.abs((u * s) @ vh - part)) <= bound(a, 200)


def test_least_squares_of_many_small_matrices():
    a, b = drawn((17, 30, 18), np.float32), drawn((17, 30, 2), np.float32)
    x = nm.linalg.lstsq(nm.asarray(a), nm.asarray(b)).x.numpy()
    np.testing.assert_allclose(x, np.linalg.pinv(a) @ b, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_least_squares_by_triangles(dtype):
    tall = drawn((1100, 20), dtype)  # in ranges of rows
    low = drawn((40, 3), dtype) @ drawn((3, 20), dtype)
    for a in (tall, low, low.T, drawn((20, 40), dtype)):
        b = drawn((a.shape[0], 2), dtype)
        solve = functools.partial(nm.linalg.lstsq, rcond=1e-4)
        found = solve(nm.asarray(a), nm.asarray(b))
        x, _, rank, values = np.linalg.lstsq(a, b, rcond=1e-4)
        scale = 100 * np.finfo(dtype).eps * max(a.shape)
        np.testing.assert_allclose(found.x.numpy(), x, atol=scale * np.max(np.abs(x)), rtol=0)
        assert found.rank.item() == rank
        np.testing.assert_allclose(found.s.numpy(), values, atol=scale * values[0])
        jitted = nm.jit(solve)(nm.asarray(a), nm.asarray(b))
        np.testing.assert_allclose(jitted[0].numpy(), x, atol=scale * np.max(np.abs(x)), rtol=0)
