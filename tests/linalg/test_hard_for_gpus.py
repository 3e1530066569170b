"""Matrices that are hard for factorisations of GPUs, on interpreted ones: squares that underflow,
zeros on diagonals, triangles that nobody may read."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.linalg.factor.svd import _by_polar
from numus.runtime import devices

simt_machine.install()
MACHINES = ("simt", "simt_sm90")  # threads of the second exchange registers


@pytest.fixture(autouse=True, scope="module")
def _machines():
    target = replace(simt_machine.HOPPER, forward_progress=True)
    devices.BACKENDS["dataflow"] = lambda index: simt_machine.Machine(target)
    with nm.kernels.prefer("native"):
        yield


def drawn(shape, dtype):
    rng = np.random.default_rng(0)
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def small_corner(n, dtype):
    """Elements of about 1 above what is far smaller, whose squares are subnormal."""
    a = drawn((n, n), dtype)
    a[2:, :2] = 0
    a[2:, 2:] *= 10.0 ** {4: -22, 8: -161}[a.real.dtype.itemsize]
    return a


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex128])
@pytest.mark.parametrize("machine", MACHINES)
def test_reflectors_are_orthogonal_where_squares_underflow(machine, dtype):
    a = np.stack([small_corner(7, dtype), np.ones((7, 7), dtype), drawn((7, 7), dtype)])
    info = np.finfo(dtype)
    a[2] *= float(info.max) ** (-np.arange(7) / 7)  # columns whose directions count
    q, r = (x.numpy() for x in nm.linalg.qr(nm.asarray(a, device=machine)))
    bound = 70 * info.eps
    assert (np.abs(adjoint(q) @ q - np.eye(7)) <= bound).all()
    sizes = np.abs(a).max(axis=-2, keepdims=True)
    assert (np.abs(q @ (r / sizes) - a / sizes) <= bound).all()
    assert (np.tril(r, -1) == 0).all()


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_tridiagonal_forms_are_similar_where_squares_underflow(dtype):
    from numus.linalg.factor.tridiagonal import by_tridiagonal

    a = small_corner(9, dtype)
    a[:2, 2:] = 0
    a = a + adjoint(a)
    a[:2, :2] = np.eye(2)
    values, vectors = (x.numpy()[0] for x in by_tridiagonal(nm.asarray(a[None])))
    bound = 90 * np.finfo(dtype).eps
    assert (np.abs(adjoint(vectors) @ vectors - np.eye(9)) <= bound).all()
    assert (np.abs(a @ vectors - vectors * values) <= bound).all()


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
def test_other_triangles_are_not_read(machine, dtype):
    lower = np.tril(drawn((5, 5), dtype))
    np.fill_diagonal(lower, lower.diagonal().real)
    lower *= 1e-30  # without scaling, squares would be zero
    expected = np.linalg.eigvalsh(lower.astype(np.complex128))
    for other in (np.nan, np.inf, 1e30):
        a = lower + np.triu(np.full((5, 5), other, dtype), 1)
        for given, side in ((a, "L"), (a.T.conj().copy(), "U")):
            x = nm.asarray(given, device=machine)
            values, vectors = (found.numpy() for found in nm.linalg.eigh(x, UPLO=side))
            np.testing.assert_allclose(values, expected, rtol=0, atol=1e-35)
            assert (np.abs(adjoint(vectors) @ vectors - np.eye(5)) <= 1e-5).all()
            alone = nm.linalg.eigvalsh(x, UPLO=side).numpy()
            np.testing.assert_allclose(alone, expected, rtol=0, atol=1e-35)


@pytest.mark.parametrize("machine", [*MACHINES, "dataflow"])
def test_zeros_on_the_diagonal_give_infinities(machine):
    for n, at, columns in ((80, 79, 1), (80, 40, 9), (70, 66, 2), (9, 8, 3)):
        a = np.tril(drawn((n, n), np.float32)) / n + np.eye(n, dtype=np.float32)
        b = drawn((n, columns), np.float32)
        expected = np.linalg.solve(a, b)[:at]
        a[at, at] = 0
        for matrix, right, lower in ((a, b, True), (a[::-1, ::-1], b[::-1], False)):
            x, y = (nm.asarray(np.ascontiguousarray(z), device=machine) for z in (matrix, right))
            found = nm.linalg.solve_triangular(x, y, lower=lower).numpy()
            found = found if lower else found[::-1]
            np.testing.assert_allclose(found[:at], expected, rtol=1e-4, atol=1e-5)
            rest = b[at] - a[at, :at] @ expected
            np.testing.assert_array_equal(found[at], np.copysign(np.inf, rest))
            assert not np.isfinite(found[at + 1 :]).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_singular_values_by_polar_decomposition_descend(dtype):
    """Some of those that are as good as zero are eigenvalues below zero of the Hermitian factor."""
    a = drawn((2, 40, 3), dtype) @ drawn((2, 3, 40), dtype)
    a[1] = np.diag(10.0 ** -np.linspace(0, 30, 40))
    for vectors in (False, True):
        found = _by_polar(nm.asarray(a), vectors).numpy()
        values = found[:, -1]
        assert (np.diff(values) <= 0).all()
        assert (values >= 0).all()
    u, v = found[:, :40], found[:, 40:80]
    bound = 400 * np.finfo(dtype).eps
    size = np.abs(a).max(axis=(-2, -1), keepdims=True)
    assert (np.abs((u * values[:, None]) @ adjoint(v) - a) <= bound * size).all()
    for q in (u, v):
        assert (np.abs(adjoint(q) @ q - np.eye(40)) <= bound).all()
