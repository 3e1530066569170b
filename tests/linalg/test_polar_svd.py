"""Singular values by polar decomposition, which CPUs have no use for: backward errors and
orthogonality, of singular matrices too."""

import numpy as np
import pytest

import numus as nm
from numus.linalg.factor import svd

RNG = np.random.default_rng(0)


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if np.dtype(dtype).kind == "c" else a).astype(dtype)


def stack_of(n, dtype):
    """Matrices with a spectrum each."""
    q, p = (np.linalg.qr(drawn((n, n), dtype))[0] for _ in range(2))
    digits = np.finfo(dtype).precision
    spectra = [
        np.linspace(1, 2, n),
        np.logspace(0, -digits - 2, n),
        np.where(np.arange(n) < n // 2, 1, 0),
        np.zeros(n),
    ]
    return np.stack([*((q * s) @ p for s in spectra), np.triu(drawn((n, n), dtype))]).astype(dtype)


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (12, np.float32),
        *(
            pytest.param(n, d, marks=pytest.mark.slow)
            for n in (3, 70)
            for d in (np.complex64, np.float64)
        ),
    ],
)
def test_backward_error_and_orthogonality(n, dtype):
    a = stack_of(n, dtype)
    tall = np.concatenate([a, drawn((len(a), 5, n), dtype)], axis=1)
    for x in (a, tall):
        packed = svd._by_polar(nm.asarray(x), True).numpy()
        m = x.shape[1]
        u, v, s = packed[:, :m], packed[:, m : m + n], packed[:, -1].real
        bound = 10 * m * np.finfo(dtype).eps
        size = np.linalg.norm(x, 2, axis=(1, 2))[:, None, None]
        error = (u * s[:, None, :]) @ np.conj(np.swapaxes(v, 1, 2)) - x
        assert (np.abs(error) <= bound * np.maximum(size, 1e-300)).all()
        for q in (u, v):
            assert np.max(np.abs(np.conj(np.swapaxes(q, 1, 2)) @ q - np.eye(n))) <= bound
        assert (s >= 0).all()
        want = np.linalg.svd(x, compute_uv=False)
        assert (np.abs(s - want) <= bound * size[:, 0]).all()
    values = svd._by_polar(nm.asarray(a), False).numpy()[:, 0].real
    assert (np.abs(values - np.linalg.svd(a, compute_uv=False)) <= bound * 3).all()
