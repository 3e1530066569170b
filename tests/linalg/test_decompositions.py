"""Tensor decompositions and low-rank approximation: accuracy, derivatives, errors."""

import derivatives
import numpy as np
import pytest
from test_solvers import drawn

import numus as nm
from numus.errors import LinAlgError, ShapeError, TracingError


def low_rank(*extents, rank=2, dtype=np.float32):
    factors = [drawn((n, rank), dtype) for n in extents]
    return np.einsum("ir,jr,kr->ijk", *factors)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_exact_decompositions(dtype):
    a = low_rank(4, 5, 6, dtype=dtype)
    for found in (
        nm.linalg.cp(nm.asarray(a), 2, iterations=200),
        nm.linalg.tucker(nm.asarray(a), 2),
        nm.linalg.tensor_train(nm.asarray(a), 2),
    ):
        np.testing.assert_allclose(found.full().numpy(), a, atol=1e-6)
    assert nm.linalg.tucker(nm.asarray(a), (2, 2, 2)).core.shape == (2, 2, 2)


@pytest.mark.slow
def test_derivatives_of_decompositions():
    a = low_rank(3, 3, 2, rank=1, dtype=np.float64) + 0.1 * drawn((3, 3, 2), np.float64)
    for function in (
        lambda x: nm.linalg.tucker(x, 1, iterations=6).full(),
        lambda x: nm.linalg.cp(x, 1, iterations=12).full(),
        lambda x: nm.linalg.tensor_train(x, 1).full(),
    ):
        derivatives.check(function, a, step=1e-5, rtol=1e-4, atol=1e-4)


def test_randomised_singular_values():
    a = drawn((40, 4), np.float32) @ drawn((4, 30), np.float32)
    u, s, vh = (x.numpy() for x in nm.linalg.svd_lowrank(nm.asarray(a), 6))
    np.testing.assert_allclose((u * s) @ vh, a, atol=1e-3)
    np.testing.assert_allclose(s[:4], np.linalg.svd(a, compute_uv=False)[:4], rtol=1e-4)


def test_errors():
    with pytest.raises(ValueError, match="rank must be at least 1"):
        nm.linalg.cp(nm.ones((2, 2)), 0)
    with pytest.raises(ValueError, match="2 ranks are needed, not 1"):
        nm.linalg.tucker(nm.ones((2, 2)), [1])
    with pytest.raises(ShapeError, match="elements"):
        nm.linalg.tensor_train(nm.ones((0, 2)), 1)
    with pytest.raises(ValueError, match="q=9 is not between 0 and 3"):
        nm.linalg.svd_lowrank(nm.ones((3, 4)), 9)
    with pytest.raises(TracingError, match="orth: the shape of the result depends on values"):
        nm.jit(nm.linalg.orth)(nm.ones((3, 2)))
    different = np.stack([np.eye(2), np.ones((2, 2))]).astype(np.float32)
    with pytest.raises(LinAlgError, match=r"null_space: .* ranks \[1, 2\]"):
        nm.linalg.null_space(nm.asarray(different))
    with pytest.raises(LinAlgError, match="tensorsolve: the matrix is singular"):
        nm.linalg.tensorsolve(nm.ones((2, 2, 4)), nm.ones((2, 2)))
    with pytest.raises(LinAlgError, match=r"solve_toeplitz: .* minor of order 2"):
        nm.linalg.solve_toeplitz(nm.ones(3), nm.ones(3))
    with pytest.raises(LinAlgError, match="eigh: the matrix of b is not positive definite"):
        nm.linalg.eigh(nm.eye(2), -nm.eye(2))
