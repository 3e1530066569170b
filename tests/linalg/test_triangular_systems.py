"""Triangular systems that CPUs solve by one primitive: every triangle, layout and number of
right-hand sides; the order of rows after swaps."""

import itertools

import numpy as np
import pytest
from test_solvers import KNOWN, adjoint, drawn

import numus as nm
from numus.primitives.linalg import factor
from numus.tensor import Tensor


@pytest.fixture(autouse=True)
def native():
    with nm.kernels.prefer("native"):
        yield


def system(n, dtype, lower, unit):
    """The matrix, with NaN in elements that are not read, and its triangle."""
    triangle, offset = (np.tril, -int(unit)) if lower else (np.triu, int(unit))
    a = drawn((2, n, n), dtype) / n + 2 * np.eye(n)
    part = triangle(a, offset).astype(dtype)
    given = np.where(triangle(np.ones((n, n), bool), offset), a, np.nan).astype(dtype)
    return given, part + unit * np.eye(n, dtype=dtype)


TRANSPOSED = {0: lambda a: a, 1: lambda a: np.swapaxes(a, -1, -2), 2: adjoint}


EVERY = list(itertools.product((True, False), (True, False), (0, 1, 2)))


def check(n, columns, dtype, kinds=EVERY):
    b = drawn((2, n, columns), dtype)
    for lower, unit, trans in kinds:
        a, part = system(n, dtype, lower, unit)
        given = nm.asarray(a), nm.asarray(b)
        x = nm.linalg.solve_triangular(*given, lower=lower, unit_diagonal=unit, trans=trans)
        error = np.abs(TRANSPOSED[trans](part) @ x.numpy() - b)
        assert np.max(error) <= 10 * n * np.finfo(dtype).eps * np.max(np.abs(x.numpy()))


ALL = [d for d in (np.float32, np.float64, np.complex64, np.complex128) if d.__name__ in KNOWN]


@pytest.mark.parametrize("columns", [2, 21])
def test_triangles(columns):
    check(67, columns, ALL[0], [(True, False, 0), (False, True, 0), (False, False, 1)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ALL)
@pytest.mark.parametrize("columns", [1, 2, 4, 5, 70])
@pytest.mark.parametrize("n", [65, 100, 128, 200])
def test_every_dtype_and_size(n, columns, dtype):
    check(n, columns, dtype)


@pytest.mark.parametrize(
    "dtype", [ALL[0], *(pytest.param(d, marks=pytest.mark.slow) for d in ALL[1:])]
)
@pytest.mark.parametrize("triangle", [(True, False), (False, False), (False, True)])
def test_primitives_agree_with_references(triangle, dtype):
    for n in (1, 3, 17):  # smaller than a block, and than a tile
        _, part = system(n, dtype, *triangle)
        b = drawn((2, n, 3), dtype)
        vectors = np.swapaxes(b, -1, -2).copy()
        for solve, right in ((factor.solve_triangular, b), (factor.solve_vectors, vectors)):
            found, want = (
                Tensor(
                    solve(
                        nm.asarray(part, device=nm.device(place))._node,
                        nm.asarray(right, device=nm.device(place))._node,
                        triangle,
                    )
                ).numpy()
                for place in ("cpu", "reference")
            )
            np.testing.assert_allclose(found, want, rtol=0, atol=50 * np.finfo(dtype).eps)


def test_matrices_and_right_hand_sides_are_views():
    n, dtype = 70, np.float32
    whole, b = drawn((3 * n, 2 * n), dtype), drawn((n, 8), dtype)
    a = whole[::3, 1::2]
    a[np.arange(n), np.arange(n)] = 3 * np.sqrt(n)
    view, right = nm.asarray(whole)[::3, 1::2], nm.asarray(b)
    for given, columns in (
        (right[:, ::4], b[:, ::4]),
        (right[::-1], b[::-1]),
        (right[:, 0], b[:, 0]),
    ):
        x = nm.linalg.solve_triangular(view, given, lower=True).numpy()
        np.testing.assert_allclose(np.tril(a) @ x, columns, rtol=0, atol=1e-5)
        x = nm.linalg.solve_triangular(view * 2, given, lower=False, trans=1).numpy()
        np.testing.assert_allclose(2 * np.triu(a).T @ x, columns, rtol=0, atol=1e-5)


def test_zeros_on_the_diagonal_give_infinities():
    a = np.eye(80, dtype=np.float32)
    a[79, 79] = 0
    for columns in (1, 9):
        b = np.ones((80, columns), np.float32)
        x = nm.linalg.solve_triangular(nm.asarray(a), nm.asarray(b), lower=True).numpy()
        assert np.isinf(x[79]).all()
        assert (x[:79] == 1).all()


def test_jit_vmap_and_nothing():
    a, b = (
        drawn((3, 66, 66), np.float32) + 9 * np.eye(66, dtype=np.float32),
        drawn((3, 66), np.float32),
    )
    want = nm.linalg.solve_triangular(nm.asarray(a), nm.asarray(b)[..., None]).numpy()[..., 0]
    solve = nm.vmap(nm.linalg.solve_triangular)
    np.testing.assert_array_equal(solve(nm.asarray(a), nm.asarray(b)).numpy(), want)
    np.testing.assert_array_equal(nm.jit(solve)(nm.asarray(a), nm.asarray(b)).numpy(), want)
    assert nm.linalg.solve_triangular(nm.zeros((0, 66, 66)), nm.zeros((0, 66, 2))).shape == (
        0,
        66,
        2,
    )
    assert nm.linalg.solve_triangular(nm.asarray(a), nm.zeros((3, 66, 0))).shape == (3, 66, 0)


def test_factors_solve_systems():
    a, b = drawn((2, 70, 70), np.float32), drawn((2, 70, 3), np.float32)
    factors = nm.linalg.lu_factor(nm.asarray(a))
    for trans in (0, 1):
        x = nm.linalg.lu_solve(factors, nm.asarray(b), trans=trans).numpy()
        error = np.max(np.abs(TRANSPOSED[trans](a) @ x - b))
        assert error <= 700 * np.finfo(np.float32).eps * np.max(np.abs(a)) * np.max(np.abs(x))
    packed, swaps = factors
    short = nm.linalg.lu_solve((packed, swaps.astype("int32")), nm.asarray(b)).numpy()
    np.testing.assert_array_equal(short, nm.linalg.lu_solve(factors, nm.asarray(b)).numpy())


def test_swaps_of_rows_that_do_not_exist_stay_inside():
    swaps = nm.asarray(np.array([[7, -3, 2], [0, 1, 99]]), device=nm.device("cpu"))
    order = Tensor(factor.row_order(swaps._node, 3)).numpy()
    np.testing.assert_array_equal(np.sort(order, axis=-1), [[0, 1, 2]] * 2)
