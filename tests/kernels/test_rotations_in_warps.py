"""Jacobi rotations of small matrices in registers of a warp, on an interpreted GPU."""

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.primitives.linalg import factor
from numus.tensor import Tensor

simt_machine.install()
DTYPES = (np.float32, np.float64, np.complex64)


def drawn(shape, dtype):
    rng = np.random.default_rng(shape)
    a = rng.standard_normal(shape)
    return (a + 1j * rng.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def rotated(a, width):
    given = nm.asarray(a, device="simt_sm90")._node
    return Tensor(factor.orthogonalize(given, width)).numpy()


def check(a, width):
    """Rows are orthogonal, each by its own size, and combinations of rows by a unitary matrix: what
    lanes of a pair did not agree on would not be."""
    found = rotated(a, width)
    n, info = a.shape[1], np.finfo(a.dtype)
    part = found[..., :width].astype(np.result_type(a.dtype, np.float64))
    sizes = np.linalg.norm(part, axis=-1)
    counted = sizes > np.sqrt(info.tiny / info.eps) * 1e3  # digits of smaller squares are lost
    unit = np.where(counted[..., None], part / np.where(counted, sizes, 1)[..., None], 0)
    off = np.abs(unit @ adjoint(unit)) * (1 - np.eye(n))
    assert off.max() <= 4 * n * info.eps
    wide = a.astype(part.dtype)
    error = np.abs(adjoint(found) @ found - adjoint(wide) @ wide).max(axis=(1, 2))
    assert (error <= 10 * n * info.eps * np.linalg.norm(wide, axis=(1, 2)) ** 2).all()
    return found


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 5, 16, 31, 32])
def test_square_matrices(n, dtype):
    a = drawn((3, n, n), dtype)
    a[1] *= (a.real.dtype.type(10) ** -np.linspace(0, 6, n))[:, None]  # rows of many sizes
    found = check(a, n)
    sizes = np.sort(np.linalg.norm(found, axis=-1))[:, ::-1]
    values = np.linalg.svd(a.astype(np.result_type(dtype, np.float64)), compute_uv=False)
    assert (np.abs(sizes - values) <= 10 * n * np.finfo(dtype).eps * values[:, :1]).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_depend_on_each_other(dtype):
    a = drawn((4, 13, 13), dtype)
    a[0] = 0
    a[1] = 1
    a[2, 6:12] = a[2, :6]
    a[3] = a[3, :, :3] @ a[3, :3]
    found = check(a, 13)
    assert (found[0] == 0).all()
    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "width", "total"), [(7, 7, 14), (3, 2, 9), (11, 9, 9), (9, 1, 6)])
def test_columns_beyond_those_that_count(rows, width, total, dtype):
    check(drawn((2, rows, total), dtype), width)


def test_rows_of_equal_sizes():
    """Either could be the longer one: both lanes must take the same."""
    a = np.stack([np.eye(8) + s for s in (0.25, -0.25, 1.0)]).astype(np.float32)
    a[:, 1::2] *= -1
    check(a, 8)


@pytest.mark.parametrize("size", [1e-12, 1e-17])
def test_rows_far_smaller_than_others(size):
    a = drawn((2, 6, 6), np.float32)
    a[:, 3:] *= size
    check(a, 6)


def test_matrices_share_a_warp():
    """Those that are not finite do not reach others."""
    a = drawn((11, 4, 4), np.float32)
    a[5, 2, 1] = np.nan
    a[6, 0, 0] = np.inf
    found = rotated(a, 4)
    whole = np.isfinite(a).all(axis=(1, 2))
    np.testing.assert_array_equal(found[whole], rotated(a[whole], 4))
    check(a[whole], 4)
