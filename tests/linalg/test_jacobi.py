"""Jacobi rotations by rounds over a whole device, which CPUs have no use for, against NumPy."""

import numpy as np
import pytest

import numus as nm
from numus.linalg.factor import jacobi, svd


@pytest.fixture(autouse=True)
def by_rounds(monkeypatch):
    for module in (jacobi, svd):
        monkeypatch.setattr(module, "orthogonalized", jacobi.by_rounds)


@pytest.mark.parametrize(("n", "dtype"), [(2, np.float32), (9, np.complex128)])
def test_spectra_by_rounds(n, dtype):
    rng = np.random.default_rng(n)
    a = rng.standard_normal((2, n, n))
    a = (a + 1j * rng.standard_normal((2, n, n)) if dtype().dtype.kind == "c" else a).astype(dtype)
    a[1, :, 0] = a[1, :, 1]  # singular
    bound = 100 * n * np.finfo(dtype).eps
    found = nm.jit(lambda x: svd._by_rotations(x, True))(nm.asarray(a)).numpy()
    u, v, s = found[:, :n], found[:, n : 2 * n], found[:, 2 * n].real
    np.testing.assert_allclose((u * s[:, None]) @ v.conj().swapaxes(1, 2), a, rtol=0, atol=bound)
    np.testing.assert_allclose(s, np.linalg.svd(a)[1], rtol=0, atol=bound)
    values = svd._by_rotations(nm.asarray(a), False).numpy()[:, 0].real
    np.testing.assert_allclose(values, s, rtol=0, atol=bound)
    h = a + a.conj().swapaxes(1, 2)
    values, vectors = (x.numpy() for x in jacobi.symmetric_by_rotations(nm.asarray(h)))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(h), rtol=0, atol=bound)
    np.testing.assert_allclose(h @ vectors, vectors * values[:, None], rtol=0, atol=bound)
