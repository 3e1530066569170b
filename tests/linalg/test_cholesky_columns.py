"""Cholesky factorisation in panels and blocks of columns, as on GPUs: backward errors, and rows
below a square matrix."""

import numpy as np
import pytest

import numus as nm
from numus.linalg.factor import blocked

RNG = np.random.default_rng(0)


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocked, "register_block", lambda a: 8)
    monkeypatch.setattr(blocked, "BLOCK_PANELS", 2)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
@pytest.mark.parametrize("n", [1, 8, 13, 16, 17, 70])
def test_blocks_of_columns(n, dtype):
    a = drawn((2, n, n), dtype)
    a = a @ adjoint(a) + n * np.eye(n, dtype=dtype)
    b = drawn((2, 5, n), dtype)
    half = np.tril(a) + np.triu(np.full_like(a, np.nan), 1)  # which is not read
    stacked = nm.asarray(np.concatenate([half, b], axis=1), device="reference")
    found = blocked._columns_joined(blocked.cholesky_columns(stacked)).numpy()
    lower, below = found[:, :n], found[:, n:]
    bound = 10 * n * np.finfo(dtype).eps
    assert not np.triu(lower, 1).any()
    assert np.max(np.abs(lower @ adjoint(lower) - a)) <= bound * np.max(np.abs(a))
    assert np.max(np.abs(below @ adjoint(lower) - b)) <= bound * np.max(np.abs(b)) * n


def test_products_with_the_inverse_agree():
    a, b = drawn((2, 20, 20), np.float64), drawn((2, 3, 20), np.float64)
    a = a @ adjoint(a) + np.eye(20)
    found = blocked.cholesky_below(nm.asarray(a), nm.asarray(b)).numpy()
    np.testing.assert_allclose(found @ adjoint(np.linalg.cholesky(a)), b, atol=1e-12)
