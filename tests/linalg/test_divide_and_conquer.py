"""Spectra of tridiagonal and Hermitian matrices by divide and conquer: backward errors and
orthogonality of matrices that are hard for it."""

import numpy as np
import pytest

import numus as nm
from numus.linalg.factor import tridiagonal
from numus.linalg.factor.divide_and_conquer import eigh_tridiagonal
from numus.linalg.factor.tridiagonal import by_tridiagonal

RNG = np.random.default_rng(0)


def check(a, values, vectors):
    n = a.shape[-1]
    bound = 4 * max(n, 4) * np.finfo(vectors.dtype).eps
    size = max(np.linalg.norm(a, 2), 1e-300)
    assert np.max(np.abs(a @ vectors - vectors * values)) <= bound * size
    assert np.max(np.abs(np.conj(vectors.T) @ vectors - np.eye(n))) <= bound
    assert (np.diff(values) >= 0).all()


def hard(n):
    d, e = RNG.standard_normal(n), RNG.standard_normal(n - 1)
    falling = 10.0 ** -np.linspace(0, 6, n)
    return {
        "random": (d, e),
        "zeros": (d * 0, e * 0),
        "ones": (d * 0 + 1, e * 0),
        "Toeplitz": (d * 0 + 2, e * 0 - 1),
        "Wilkinson": (np.abs(np.arange(n) - n // 2.0), e * 0 + 1),
        "graded": (falling, e * falling[1:]),
        "glued": (d, np.where(np.arange(n - 1) % 10 == 9, 1e-7, e)),
        "two values": (np.arange(n) % 2.0, e * 1e-9),
        "large": (d * 1e30, e * 1e30),
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "n", [1, 33, pytest.param(2, marks=pytest.mark.slow), pytest.param(150, marks=pytest.mark.slow)]
)
def test_tridiagonal_matrices(n, dtype):
    cases = list(hard(n).values())
    d, e = (np.stack([case[i] for case in cases]).astype(dtype) for i in (0, 1))
    values, vectors = (x.numpy() for x in eigh_tridiagonal(nm.asarray(d), nm.asarray(e)))
    for i in range(len(cases)):
        a = np.diag(d[i]) + np.diag(e[i], 1) + np.diag(e[i], -1)
        scale = 1e30 if i == len(cases) - 1 else 1
        check(a / dtype(scale), values[i] / dtype(scale), vectors[i])


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_hermitian_matrices(dtype):
    for n in (3, 70):
        a = RNG.standard_normal((2, n, n)).astype(dtype)
        if np.iscomplexobj(a):
            a = a + 1j * RNG.standard_normal(a.shape)
        a = a + np.conj(np.swapaxes(a, -1, -2))
        a[1] = np.diag(np.arange(n) % 2)
        values, vectors = (x.numpy() for x in by_tridiagonal(nm.asarray(a)))
        for i in range(2):
            check(a[i], values[i], vectors[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [97, pytest.param(150, marks=pytest.mark.slow)])
def test_merges_of_a_cpu(n, dtype):
    """Poles that are deflated and rows that are rotated, within halves and between them, and blocks
    without a second half."""
    cases = list(hard(n).values())
    band = np.stack([np.diag(d) + np.diag(e, 1) + np.diag(e, -1) for d, e in cases])
    rank = RNG.standard_normal((n, 3))
    q = np.linalg.qr(RNG.standard_normal((n, n)))[0]
    equal = q @ np.diag(1 + 1e-9 * (np.arange(n) % 3 == 0)) @ q.T
    a = np.concatenate([band, (rank @ rank.T)[None], (equal + equal.T)[None]]).astype(dtype)
    with nm.kernels.prefer("native"):
        values, vectors = (x.numpy() for x in nm.linalg.eigh(nm.asarray(a)))
    for i, matrix in enumerate(a):
        scale = dtype(max(abs(matrix).max(), 1e-30))
        check(matrix / scale, values[i] / scale, vectors[i])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [97, pytest.param(150, marks=pytest.mark.slow)])
def test_merges_of_singular_values(n, dtype):
    """Blocks that are zero, rows that couple nothing, poles at 0 and equal ones."""
    band = [np.diag(d) + np.diag(e, 1) for d, e in hard(n).values()]
    half = np.diag(RNG.standard_normal(n) * (np.arange(n) < n // 2))
    tiny = np.diag(np.where(np.arange(n) == 0, 1, 1e-20))
    q = np.linalg.qr(RNG.standard_normal((n, n)))[0]
    graded = q * 10.0 ** -np.linspace(0, 30, n) @ q
    shift = np.eye(n) + np.eye(n, k=1)
    low_rank = RNG.standard_normal((n, 3)) @ RNG.standard_normal((3, n))
    a = np.stack([*band, half, tiny, graded, shift, low_rank]).astype(dtype)
    with nm.kernels.prefer("native"):
        u, s, vh = (x.numpy() for x in nm.linalg.svd(nm.asarray(a)))
    bound = 4 * n * np.finfo(dtype).eps
    for i, matrix in enumerate(a):
        size = max(s[i, 0], dtype(1e-30))
        assert np.max(np.abs((u[i] * (s[i] / size)) @ vh[i] - matrix / size)) <= bound
        assert np.max(np.abs(u[i].T @ u[i] - np.eye(n))) <= bound
        assert np.max(np.abs(vh[i] @ vh[i].T - np.eye(n))) <= bound
        assert (np.diff(s[i]) <= 0).all()
        exact = np.linalg.svd(matrix / float(size), compute_uv=False)
        assert np.max(np.abs(s[i] / size - exact)) <= bound


@pytest.mark.parametrize("n", [97, pytest.param(200, marks=pytest.mark.slow)])
def test_large_matrices_are_left_for_smaller_ones(n, monkeypatch):
    monkeypatch.setattr(tridiagonal, "WHOLE", 64)
    a = RNG.standard_normal((2, n, n))
    a = a + np.swapaxes(a, -1, -2)
    values, vectors = (x.numpy() for x in by_tridiagonal(nm.asarray(a)))
    for i in range(2):
        check(a[i], values[i], vectors[i])


def test_programs_are_as_many_for_any_order():
    """Levels and panels are iterations of loops: a graph does not grow with the matrix. Schedules
    of a GPU add up long rows by more kernels."""

    def count(n):
        numbers = RNG.standard_normal((1, n)), RNG.standard_normal((1, n - 1))
        d, e = (nm.asarray(x, device=nm.device("cpu")) for x in numbers)
        jitted = nm.jit(eigh_tridiagonal)
        return len(str(nm.explain(jitted, d, e)).splitlines())

    assert count(70) == count(300)
