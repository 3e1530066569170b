"""Matrices without elements, and arguments that NumPy refuses: results and errors as NumPy's."""

import numpy as np
import pytest

import numus as nm
import numus.numpy

SQUARE = [(0, 0), (3, 0, 0), (0, 3, 3), (2, 0, 2, 2)]
ANY = [(0, 3), (3, 0), (2, 0, 3), (2, 3, 0), (0, 2, 3)]


def parts(found):
    found = found if isinstance(found, tuple) else (found,)
    return [np.asarray(x.numpy() if isinstance(x, nm.Tensor) else x) for x in found]


def agree(call, *arrays):
    want = parts(call(np.linalg, *arrays))
    found = parts(call(nm.linalg, *(nm.asarray(a) for a in arrays)))
    assert len(found) == len(want)
    for x, y in zip(found, want, strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, a: f.det(a),
        lambda f, a: f.slogdet(a),
        lambda f, a: f.inv(a),
        lambda f, a: f.solve(a, a[..., :1]),
        lambda f, a: f.solve(a, a[..., :0]),
        lambda f, a: f.cholesky(a),
        lambda f, a: f.eigh(a),
        lambda f, a: f.eigvalsh(a),
        lambda f, a: f.matrix_power(a, 0),
        lambda f, a: f.matrix_power(a, -3),
    ],
)
def test_square_matrices_without_elements(call, dtype):
    for shape in SQUARE:
        agree(call, np.zeros(shape, dtype))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize(
    "call",
    [
        lambda f, a: f.svd(a),
        lambda f, a: f.svd(a, full_matrices=False),
        lambda f, a: f.svdvals(a),
        lambda f, a: f.qr(a),
        lambda f, a: f.qr(a, mode="complete"),
        lambda f, a: f.pinv(a),
        lambda f, a: f.matrix_rank(a),
        lambda f, a: f.trace(a, offset=1),
        lambda f, a: f.diagonal(a, offset=-1),
        lambda f, a: f.matrix_norm(a, keepdims=True),
        lambda f, a: f.matrix_norm(a, ord="nuc"),
        lambda f, a: f.norm(a, axis=(-2, -1), ord=1),
        lambda f, a: f.vector_norm(a, axis=(), ord=1),
        lambda f, a: f.norm(a, keepdims=True),
    ],
)
def test_matrices_without_elements(call, dtype):
    for shape in ANY:
        agree(call, np.zeros(shape, dtype))


@pytest.mark.parametrize(
    "call",
    [
        lambda f, a: f.cond(a[:0]),
        lambda f, a: f.cond(a[:, :0], -2),
        lambda f, a: f.cond(a, 1),
        lambda f, a: f.det(a),
        lambda f, a: f.eigvals(a[0]),
        lambda f, a: f.cholesky(a),
        lambda f, a: f.solve(a[:, :2], a[0]),
        lambda f, a: f.matrix_power(a, 2),
        lambda f, a: f.lstsq(a, a[0]),
        lambda f, a: f.matrix_rank(a * np.nan),
        lambda f, a: f.matrix_rank(a, rtol=0.1, tol=0.1),
        lambda f, a: f.norm(a, "fro", axis=0),
        lambda f, a: f.norm(a[0], "nuc"),
        lambda f, a: f.norm(a, 3),
        lambda f, a: f.norm(a, -1, axis=(0, 0)),
        lambda f, a: f.matrix_norm(a[:0], ord=-2),
        lambda f, a: f.vector_norm(a[:0], ord=-np.inf),
        lambda f, a: f.cross(a, a[:1, :2]),
        lambda f, a: f.outer(a, a[0]),
        lambda f, a: f.vecdot(a, a[:, :1]),
        lambda f, a: f.multi_dot([a, a]),
    ],
)
def test_what_numpy_refuses_is_refused(call):
    a = np.asarray([[1, 2, 3], [4, 5, 6]], np.float32)
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        call(np.linalg, a)
    for library, x in ((nm.linalg, nm.asarray(a)), (numus.numpy.linalg, numus.numpy.asarray(a))):
        with pytest.raises(type(theirs.value)):
            call(library, x)


def test_condition_numbers_of_no_matrices():
    for order in (None, -2, 1, "fro"):
        found = numus.numpy.linalg.cond(numus.numpy.zeros((2, 0, 3, 3)), order)
        assert found.shape == (2, 0)
        assert nm.linalg.cond(nm.zeros((0, 3, 3)), order).shape == (0,)
    assert numus.numpy.linalg.matrix_norm(numus.numpy.ones((2, 2), numus.numpy.float16)) == 2


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_matrices_that_are_not_finite(device, bad):
    a = np.asarray([[[2, 0], [0, 1]], [[1, bad], [0, 1]]], np.float32)
    x = nm.asarray(a, device=device)
    for name in ("svd_ex", "eigh_ex"):
        symmetric = nm.triu(x).mT + nm.triu(x, k=1)
        *found, info = getattr(nm.linalg, name)(symmetric)
        assert info.tolist() == [0, 1]
        assert all(np.isfinite(f.numpy()[0]).all() for f in found)
        assert any(np.isnan(f.numpy()[1]).any() for f in found)
    for name in ("svd", "svdvals", "matrix_rank"):
        with pytest.raises(nm.linalg.LinAlgError, match="matrix 1 of the batch"):
            getattr(nm.linalg, name)(x)
    np.testing.assert_array_equal(np.isnan(nm.linalg.pinv(x).numpy()).any(axis=(-2, -1)), [0, 1])
    np.testing.assert_array_equal(nm.linalg.cond(x).numpy(), [2, np.nan])
    assert np.isnan(nm.linalg.lstsq(x[1], x[0, 0]).x.numpy()).any()
