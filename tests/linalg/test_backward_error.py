"""Backward errors and orthogonality, at most 10 n eps, over a gallery of difficult matrices."""

import numpy as np
import pytest
from test_solvers import KNOWN, adjoint

import numus as nm

DTYPES = [d for d in (np.float32, np.float64, np.complex64, np.complex128) if d.__name__ in KNOWN]
SIZES = [1, 2, 3, 10, 33, 100, 300]


def drawn(rng, shape, dtype):
    a = rng.standard_normal(shape)
    return a + 1j * rng.standard_normal(shape) if np.dtype(dtype).kind == "c" else a


def with_spectrum(rng, values, dtype):
    q = np.linalg.qr(drawn(rng, (len(values), len(values)), dtype))[0]
    return (q * values) @ adjoint(q)


def gallery(n, dtype):
    """Matrices by name, their largest element about 1 but for the scaled ones."""
    rng = np.random.default_rng(n)
    single = np.finfo(dtype).eps > 1e-10
    i = np.arange(n)
    base = drawn(rng, (n, n), dtype)
    angle = 1.2
    kahan = np.sin(angle) ** i[:, None] * (np.eye(n) - np.cos(angle) * np.triu(np.ones((n, n)), 1))
    made = {
        "random": base,
        "hilbert": 1 / (i[:, None] + i + 1.0),
        "vandermonde": np.vander(np.linspace(-1, 1, n)),
        "kahan": kahan,
        "graded": base * np.logspace(0, -6 if single else -14, n),
        "rank-deficient": base[:, : max(n // 2, 1)] @ drawn(rng, (max(n // 2, 1), n), dtype),
        "repeated": with_spectrum(rng, np.where(i % 3, 1.0, -2.0), dtype),
        "identity": np.eye(n),
        "nilpotent": np.eye(n, k=1) + 0.5 * np.eye(n, k=-1) * (i % 2),
        "clustered": with_spectrum(rng, 1 + 1e-6 * i, dtype),
        "large": base * (1e30 if single else 1e150),
        "small": base * (1e-30 if single else 1e-150),
    }
    return {name: a.astype(dtype) for name, a in made.items()}


def close(found, want, n, size):
    """found is want up to 10 n eps of a size; scaled first, so that nothing overflows."""
    bound = 10 * max(n, 4) * np.finfo(want.dtype).eps
    return np.max(np.abs(found / size - want / size), initial=0.0) <= bound


def unitary(q, n):
    return close(adjoint(q) @ q, np.eye(q.shape[-1], dtype=q.dtype), n, 1)


def parts(results):
    return [x.numpy() for x in results]


def check_lu(a, n, size):
    p, lower, upper = parts(nm.linalg.lu(nm.asarray(a)))
    assert close(p @ lower @ upper, a, n, size)


def check_qr(a, n, size):
    for m in (a, a[:, : n // 2 + 1], a[: n // 2 + 1]):
        q, r = parts(nm.linalg.qr(nm.asarray(m)))
        assert unitary(q, n)
        assert close(q @ r, m, n, size)


def check_svd(a, n, size):
    u, s, vh = parts(nm.linalg.svd(nm.asarray(a), full_matrices=False))
    assert unitary(u, n)
    assert unitary(adjoint(vh), n)
    assert close((u * s) @ vh, a, n, size * max(n, 4) ** 0.5)


def check_eigh(a, n, size):
    a = (a / 2 + adjoint(a) / 2).astype(a.dtype)
    w, v = parts(nm.linalg.eigh(nm.asarray(a)))
    assert unitary(v, n)
    assert close((v * w) @ adjoint(v), a, n, size * max(n, 4) ** 0.5)


def check_cholesky(a, n, size):
    a = a / size
    a = (a @ adjoint(a) + 100 * n * n * np.finfo(a.dtype).eps * np.eye(n)).astype(a.dtype)
    found = nm.linalg.cholesky(nm.asarray(a)).numpy()
    assert close(found @ adjoint(found), a, n, np.max(np.abs(a)))


def check_schur(a, n, size):
    t, z = parts(nm.linalg.schur(nm.asarray(a)))
    assert unitary(z, n)
    assert close(z @ t @ adjoint(z), a, n, size * max(n, 4) ** 0.5)


def check_hessenberg(a, n, size):
    h, q = parts(nm.linalg.hessenberg(nm.asarray(a)))
    assert unitary(q, n)
    assert close(q @ h @ adjoint(q), a, n, size * max(n, 4) ** 0.5)


CHECKS = {
    "lu": check_lu,
    "qr": check_qr,
    "svd": check_svd,
    "eigh": check_eigh,
    "cholesky": check_cholesky,
    "schur": check_schur,
    "hessenberg": check_hessenberg,
}


def check_all(function, n, dtype):
    for name, a in gallery(n, dtype).items():
        try:
            CHECKS[function](a, n, np.max(np.abs(a)) or 1)
        except AssertionError as error:
            raise AssertionError(f"linalg.{function}: {name} of order {n}") from error


@pytest.mark.parametrize("function", CHECKS)
def test_small(function):
    check_all(function, 10, np.float32)


def test_sweeps_within_a_cluster_of_eigenvalues():
    """There, the first column of a double shift is a difference of nearly equal products."""
    a = gallery(100, np.float32)["repeated"]
    with nm.kernels.prefer("native"):
        check_schur(a, 100, 1)


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["auto", "native"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("function", CHECKS)
def test_gallery(function, n, dtype, kernels):
    with nm.kernels.prefer(kernels):
        check_all(function, n, dtype)
