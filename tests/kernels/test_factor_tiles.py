"""Cholesky factorisation, and substitution of vectors, by tiles that wait for each other, on an
interpreted GPU."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.linalg.factor import blocked
from numus.primitives.linalg import factor
from numus.runtime import devices
from numus.tensor import Tensor

RNG = np.random.default_rng(0)


@pytest.fixture(scope="module", autouse=True)
def machines():
    target = replace(simt_machine.HOPPER, forward_progress=True)
    devices.BACKENDS["tiles"] = lambda index: simt_machine.Machine(target)
    with nm.kernels.prefer("native"):
        yield


def positive(n, dtype, batch):
    a = RNG.standard_normal((batch, n, n))
    if dtype().dtype.kind == "c":
        a = a + 1j * RNG.standard_normal((batch, n, n))
    return (a @ np.conj(np.swapaxes(a, 1, 2)) + n * np.eye(n)).astype(dtype)


def on(device, a):
    return Tensor(factor.lower_cholesky(nm.asarray(a, device=nm.device(device))._node)).numpy()


@pytest.mark.parametrize(
    ("m", "n", "dtype", "batch"),
    [
        (150, 150, np.float32, 1),
        (200, 70, np.complex64, 2),  # rows beyond a square matrix, in tiles of their own
        pytest.param(256, 192, np.float64, 1, marks=pytest.mark.slow),
        pytest.param(129, 129, np.complex128, 1, marks=pytest.mark.slow),
    ],
)
def test_tiles(m, n, dtype, batch):
    a = positive(m, dtype, batch)[:, :, :n]
    a[:, :n] += np.triu(np.full((n, n), np.nan), 1)  # nobody reads what is above the diagonal
    found, want = on("tiles", a), on("reference", a)
    names = [program.kernel.name for program in nm.device("tiles").runtime.launched[-2:]]
    assert names == ["clear_flags", "cholesky_tiles"]
    bound = 200 * np.finfo(dtype).eps
    np.testing.assert_allclose(found, want, rtol=bound, atol=bound * np.max(np.abs(want)))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_columns_are_nan_from_an_indefinite_pivot_on(dtype):
    a = positive(140, dtype, 2)
    a[1, 70, 70] = -1
    given = nm.asarray(a, device="tiles")
    found, info = nm.linalg.cholesky_ex(given)
    assert info.tolist() == [0, 71]
    assert np.isfinite(found.numpy()[0]).all()
    columns = on("tiles", a)[1]
    assert np.isfinite(columns[:, :64]).all()
    assert np.isnan(np.diag(columns)[70:]).all()


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize("scale", [1e-306, 1e300])
def test_pivots_near_the_ends_of_the_range(dtype, scale):
    """Inverse roots of subnormal pivots are not approximated."""
    a = positive(132, dtype, 1) / 1000
    given = a * scale
    found = on("tiles", given)[0].astype(np.clongdouble)
    residual = np.abs(found @ np.conj(found.T) - given[0]) / scale
    rounding = 132 * np.finfo(dtype).eps * np.max(np.abs(a)) + 2.0**-1074 / scale
    assert np.max(residual) <= 10 * rounding


def test_right_hand_sides_of_factors():
    a, b = positive(130, np.float64, 1), RNG.standard_normal((1, 70, 130))
    found = blocked.cholesky_below(*(nm.asarray(x, device="tiles") for x in (a, b))).numpy()
    want = np.linalg.solve(np.linalg.cholesky(a), np.swapaxes(b, 1, 2))
    np.testing.assert_allclose(found, np.swapaxes(want, 1, 2), atol=1e-12)


@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("solve", [blocked.solve_lower, blocked.solve_upper])
@pytest.mark.parametrize(
    ("n", "dtype", "batch", "count"),
    [
        (150, np.float32, 1, 1),
        (128, np.complex64, 2, 3),
        pytest.param(200, np.float64, 1, 4, marks=pytest.mark.slow),
    ],
)
def test_few_vectors(n, dtype, batch, count, solve, unit_diagonal):
    a = positive(n, dtype, batch) / n
    b = RNG.standard_normal((batch, n, count)).astype(dtype)
    given = [nm.asarray(x, device="tiles") for x in (a, b)]
    x = solve(*given, unit_diagonal).numpy()
    names = [program.kernel.name for program in nm.device("tiles").runtime.launched]
    assert "vector_tiles" in names
    triangle = np.tril(a) if solve is blocked.solve_lower else np.triu(a)
    if unit_diagonal:
        triangle = triangle * (1 - np.eye(n)) + np.eye(n)
    bound = 10 * n * np.finfo(dtype).eps * np.max(np.abs(triangle)) * np.max(np.abs(x))
    assert np.max(np.abs(triangle @ x - b)) <= bound
