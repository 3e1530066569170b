"""Unblocked factorisations against their references, on CPUs and on an interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.compiler.lower.factor import divide_and_conquer
from numus.primitives.linalg import factor
from numus.tensor import Tensor

simt_machine.install()
RNG = np.random.default_rng()
DTYPES = (np.float32, np.float64, np.complex64, np.complex128)


@pytest.fixture(autouse=True)
def _seeded():
    """The same numbers whatever ran before."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def on(device, function, *args):
    place = nm.device(device)
    given = [nm.asarray(a, device=place)._node if isinstance(a, np.ndarray) else a for a in args]
    return Tensor(function(*given)).numpy()


def agree(device, function, *args):
    found, want = (on(d, function, *args) for d in (device, "reference"))
    bound = 200 * np.finfo(found.dtype).eps
    np.testing.assert_allclose(found, want, rtol=bound, atol=bound * np.max(np.abs(want)))


def check_all(device, dtype, batch, m, n):
    a = drawn((batch, m, n), dtype)
    square = a @ adjoint(a) + m * np.eye(m, dtype=dtype)
    agree(device, factor.cholesky, square)
    agree(device, factor.lu, a)
    agree(device, factor.householder, a)
    for unit_diagonal in (False, True):
        b = drawn((batch, m, 3), dtype)
        agree(device, factor.solve_lower, square / m, b, unit_diagonal)
    found = on(device, factor.orthogonalize, a, n)
    products = found @ adjoint(found)
    diagonal = np.diagonal(products, 0, -2, -1).real
    bound = 50 * max(m, n) * np.finfo(dtype).eps * np.max(diagonal)
    np.testing.assert_allclose(products, np.eye(m) * diagonal[:, None, :], rtol=0, atol=bound)
    np.testing.assert_allclose(adjoint(found) @ found, adjoint(a) @ a, rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "shape",
    [
        *[(3, 5, 5), (2, 17, 9), (1, 6, 11), (1, 1, 1), (4, 2, 3)],
        *[(70, 4, 4), (67, 5, 7), (65, 9, 4), (64, 1, 1)],  # a matrix per lane
    ],
)
def test_factorisations_on_the_device(shape, dtype):
    if np.dtype(dtype).name not in nm.default_device().runtime.target.dtypes:
        pytest.skip("the device has no such dtype")
    check_all(nm.default_device().name, dtype, *shape)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_factorisations_by_threads(dtype):
    check_all("simt", dtype, 2, 5, 4)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 11, 9), np.complex64),
        pytest.param((2, 33, 40), np.float64, marks=pytest.mark.slow),
        pytest.param((1, 1, 3), np.float32, marks=pytest.mark.slow),
    ],
)
def test_threads_share_pairs_of_rows(shape, dtype):
    a = drawn(shape, dtype)
    width = min(shape[2], 9)
    found = on("simt", factor.orthogonalize, a, width)
    part = found[..., :width]
    products = part @ adjoint(part)
    off = products * (1 - np.eye(shape[1]))
    assert np.max(np.abs(off)) <= 50 * shape[1] * np.finfo(dtype).eps * np.max(np.abs(products))
    np.testing.assert_allclose(  # unitary combinations
        adjoint(found) @ found, adjoint(a) @ a, rtol=0, atol=1e3 * np.finfo(dtype).eps * shape[1]
    )


in_registers = pytest.mark.parametrize(
    ("n", "dtype"),
    [
        *[(7, dtype) for dtype in DTYPES],
        *[
            pytest.param(n, dtype, marks=pytest.mark.slow)
            for n in (1, 13, 20, 33)
            for dtype in DTYPES
        ],
    ],
)


@in_registers
def test_cholesky_in_registers(dtype, n):
    a = drawn((2, n, n), dtype)
    square = a @ adjoint(a) + n * np.eye(n, dtype=dtype)
    for function in (factor.lower_cholesky, factor.cholesky_and_inverse):
        agree("simt", function, square)
    square[1, n // 2, n // 2] = -1
    found = on("simt", factor.cholesky_and_inverse, np.tril(square))
    assert np.isfinite(found[0]).all()
    assert np.isfinite(found[1, : n // 2, :n]).all()
    below = np.tril(np.ones((n, n), bool)) & (np.arange(n) >= n // 2)
    assert np.isnan(found[1, :, :n][below]).all()


@in_registers
def test_elimination_in_registers(dtype, n):
    # well-conditioned, as the bound is; pivots are below the diagonal
    a = drawn((3, n, n), dtype) / (2 * n) + np.roll(np.eye(n, dtype=dtype), 1, -1)
    a[1] = np.eye(n)[::-1]
    agree("simt_wgmma", factor.direct_solve, a, drawn((3, n, 1), dtype))
    agree("simt_wgmma", factor.direct_solve, a, drawn((3, n, min(n, 5)), dtype))
    agree("simt_wgmma", factor.direct_inverse, a)
    agree("simt_wgmma", factor.small_determinant, a)
    a[1, n // 2] = 0
    a[2] *= np.finfo(dtype).tiny ** (1 / 4)
    found = on("simt_wgmma", factor.direct_inverse, a)
    assert np.isfinite(found[[0, 2]]).all()
    assert np.isnan(found[1]).all()
    assert on("simt_wgmma", factor.small_determinant, a)[1] == 0


@in_registers
def test_qr_in_registers(n, dtype):
    for m in (n, n + 10):
        a = drawn((3, m, n), dtype)
        a[1, :, n // 2] = 0
        a[2] *= np.finfo(dtype).tiny ** (1 / 2)
        found = on("simt_wgmma", factor.direct_qr, a)
        q, r = found[:, :m], found[:, m:]
        bound = 100 * np.finfo(dtype).eps
        scale = np.abs(a).max(axis=(1, 2))[:, None, None]
        scale[scale == 0] = 1
        np.testing.assert_allclose(q @ (r / scale), a / scale, rtol=0, atol=bound * n)
        one = np.broadcast_to(np.eye(n), (3, n, n))
        np.testing.assert_allclose(adjoint(q) @ q, one, rtol=0, atol=bound)
        assert not np.tril(r, -1).any()
        np.testing.assert_array_equal(on("simt_wgmma", factor.direct_qr, a, False), r)


def test_columns_of_right_hand_sides_are_blocks():
    a = drawn((2, 7, 7), np.float32) + 5 * np.eye(7, dtype=np.float32)
    b = drawn((2, 7, 200), np.float32)
    agree(nm.default_device().name, factor.solve_lower, a, b, False)


def test_a_pivot_that_is_not_positive_is_nan_from_there_on():
    a = np.diag([1.0, 4.0, -1.0, 2.0])[None]
    found = on(nm.default_device().name, factor.cholesky, a.astype(np.float32))
    np.testing.assert_array_equal(np.diagonal(found[0])[:2], [1, 2])
    assert np.isnan(found[0, 2, 2])


def test_the_first_of_equal_pivots_is_taken():
    a = np.array([[[1.0, 2.0], [-1.0, 3.0]]], np.float32)
    assert on(nm.default_device().name, factor.lu, a)[0, :, 2].tolist() == [0, 1]


def check_alone(alone, values, bound):
    """Values without vectors, for which CPUs do not divide: the same where nothing is divided."""
    assert (np.diff(alone) >= 0).all()
    np.testing.assert_allclose(alone, values, rtol=0, atol=bound)
    if values.shape[1] <= divide_and_conquer.LEAF:
        np.testing.assert_array_equal(alone, values)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_hermitian_eigenproblems_by_tridiagonal_matrices(dtype):
    for n in (1, 2, 20, 70, 130):  # one panel and several, the last one whole or not
        a = drawn((2, n, n), dtype)
        a = a + adjoint(a)
        a[1] = np.diag(np.arange(n) % 2)  # nothing to reduce, equal eigenvalues
        found = on("cpu", factor.eigh, np.tril(a))
        values, vectors = found[:, 0].real, found[:, 1:]
        bound, size = 10 * max(n, 4) * np.finfo(dtype).eps, np.abs(a).max()
        error = np.abs(a @ vectors - vectors * values[:, None])
        assert np.max(error) <= bound * size
        assert np.max(np.abs(adjoint(vectors) @ vectors - np.eye(n))) <= bound
        assert (np.diff(values) >= 0).all()
        alone = on("cpu", factor.eigh, a, False)[:, 0].real
        check_alone(alone, values, bound * size)


@pytest.mark.parametrize("dtype", [np.float32, np.complex128])
def test_singular_values_by_bidiagonal_matrices(dtype):
    for m, n in ((1, 1), (3, 2), (20, 20), (75, 70), (130, 130)):
        a = drawn((2, m, n), dtype)
        a[1] = np.eye(m, n, k=1)  # a zero on the diagonal, equal values
        found = on("cpu", factor.svd, a)
        u, v, values = found[:, :m], found[:, m : m + n], found[:, -1].real
        bound, size = 10 * max(m, 4) * np.finfo(dtype).eps, np.abs(a).max()
        error = np.abs((u * values[:, None]) @ adjoint(v) - a)
        assert np.max(error) <= bound * size
        for q in (u, v):
            assert np.max(np.abs(adjoint(q) @ q - np.eye(n))) <= bound
        assert (np.diff(values) <= 0).all()
        assert (values >= 0).all()
        alone = on("cpu", factor.svd, a, False)[:, 0].real
        check_alone(alone[:, ::-1], values[:, ::-1], bound * size)


def test_eigenproblems_with_nan_end():
    a = np.eye(30)[None].repeat(2, axis=0)
    a[1, 3, 3] = np.nan
    found = on("cpu", factor.eigh, a)
    np.testing.assert_array_equal(found[0, 0], np.ones(30))
    assert np.isnan(found[1, 0]).any()
