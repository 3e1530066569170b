"""Cholesky, LU and triangular systems: backward errors, errors about values, derivatives, jit."""

import numpy as np
import pytest

import numus as nm
from numus.errors import LinAlgError, ShapeError
from numus.linalg.factor import cholesky
from numus.primitives.linalg import factor

RNG = np.random.default_rng(0)
KNOWN = nm.default_device().runtime.target.dtypes
DTYPES = [
    pytest.param(d, marks=[pytest.mark.slow] if d in (np.float64, np.complex64) else [])
    for d in (np.float32, np.complex128, np.float64, np.complex64)
    if d.__name__ in KNOWN
]


def drawn(shape, dtype):
    a = RNG.standard_normal(shape)
    return (a + 1j * RNG.standard_normal(shape) if dtype().dtype.kind == "c" else a).astype(dtype)


def adjoint(a):
    return np.conj(np.swapaxes(a, -1, -2))


def kinds(n, dtype):
    """Matrices that are random, Hilbert's, graded, of low rank, huge and tiny."""
    single = np.finfo(dtype).eps > 1e-10
    a = drawn((n, n), dtype)
    grades = np.logspace(0, -6 if single else -12, n).astype(a.real.dtype)
    yield a
    yield (1 / (np.arange(n)[:, None] + np.arange(n) + 1)).astype(dtype)
    yield a * grades
    yield a[:, :1] @ adjoint(a[:, :1])
    yield a * dtype(1e30 if single else 1e150)
    yield a * dtype(1e-30 if single else 1e-150)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 65, 150])
def test_backward_error_of_lu(n, dtype):
    for a in kinds(n, dtype):
        p, lower, upper = (x.numpy() for x in nm.linalg.lu(nm.asarray(a)))
        error = np.max(np.abs(p @ lower @ upper - a))
        assert error <= 10 * n * np.finfo(dtype).eps * np.max(np.abs(a))
        assert np.max(np.abs(lower)) <= 1 + (np.iscomplexobj(a) * 0.5)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [7, 150])
def test_backward_error_of_cholesky(n, dtype):
    for a in kinds(n, dtype):
        a = a / np.max(np.abs(a))
        a = a @ adjoint(a) + n * np.eye(n, dtype=dtype) * np.finfo(dtype).eps * 100
        found = nm.linalg.cholesky(nm.asarray(a)).numpy()
        assert np.max(np.abs(found @ adjoint(found) - a)) <= 10 * n * np.finfo(dtype).eps
        assert not np.triu(found, 1).any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_backward_error_of_solve(dtype):
    for n in (40, 130):
        for a in list(kinds(n, dtype))[:3]:
            b = drawn((n, 3), dtype)
            found = nm.linalg.solve(nm.asarray(a), nm.asarray(b)).numpy()
            size = np.max(np.abs(a)) * np.max(np.abs(found)) * n + np.max(np.abs(b))
            assert np.max(np.abs(a @ found - b)) <= 10 * n * np.finfo(dtype).eps * size


def test_tall_and_wide_factors_have_scipys_shapes():
    for m, n in ((100, 40), (40, 100), (70, 3), (3, 70)):
        a = drawn((2, m, n), np.float32)
        p, lower, upper = (x.numpy() for x in nm.linalg.lu(nm.asarray(a)))
        assert lower.shape == (2, m, min(m, n))
        np.testing.assert_allclose(p @ lower @ upper, a, atol=1e-4)


# -- errors ---------------------------------------------------------------------------------------

INDEFINITE = np.stack([np.eye(3), np.diag([1.0, 2.0, -1.0])]).astype(np.float32)
SINGULAR = np.stack([np.eye(2), np.ones((2, 2))]).astype(np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: nm.linalg.cholesky(nm.asarray(INDEFINITE)), "cholesky: matrix 1 .* order 3"),
        (lambda: nm.linalg.cholesky(nm.asarray(INDEFINITE[1])), "cholesky: the matrix is not pos"),
        (
            lambda: nm.linalg.solve(nm.asarray(SINGULAR), nm.ones((2, 1))),
            "solve: matrix 1 .*pivot 2",
        ),
        (lambda: nm.linalg.inv(nm.asarray(SINGULAR[1])), "inv: the matrix is singular"),
        (lambda: nm.linalg.inv(nm.asarray(SINGULAR[None])), r"inv: matrix \(0, 1\) of the batch"),
        (lambda: nm.linalg.inv(nm.ones((2, 3))), "inv: takes square matrices"),
        (lambda: nm.linalg.cholesky(nm.ones((2, 3))), "cholesky: takes square matrices"),
        (lambda: nm.linalg.det(nm.ones(3)), "det: takes square matrices"),
    ],
)
def test_errors_name_the_function_and_the_matrix(call, message):
    with pytest.raises(LinAlgError, match=message):
        call()
    with pytest.raises(np.linalg.LinAlgError):  # code that was written for NumPy catches them
        call()


def test_right_hand_sides_have_to_fit():
    with pytest.raises(ShapeError, match=r"solve: .*3 unknowns meet right-hand sides of 2"):
        nm.linalg.solve(nm.eye(3), nm.ones((2, 1)))
    for call in (
        lambda: nm.linalg.solve(nm.eye(3), nm.ones(2)),
        lambda: nm.linalg.lstsq(nm.ones((3, 2)), nm.ones(2)),
        lambda: nm.linalg.solve_banded((1, 1), nm.ones((3, 4)), nm.ones(3)),
    ):
        with pytest.raises(np.linalg.LinAlgError):
            call()
    with pytest.raises(ValueError, match="one of 0, 1, 2"):
        nm.linalg.solve_triangular(nm.eye(3), nm.ones(3), trans="H")


def test_in_jit_only_the_matrix_at_fault_is_nan():
    found = nm.jit(nm.linalg.cholesky)(nm.asarray(INDEFINITE)).numpy()
    np.testing.assert_array_equal(found[0], np.eye(3))
    assert np.isnan(found[1][np.tril_indices(3)]).all()
    solved = nm.jit(nm.linalg.solve)(nm.asarray(SINGULAR), nm.ones((2, 1))).numpy()
    assert np.isfinite(solved[0]).all()
    assert np.isnan(solved[1]).all()


def test_info_numbers():
    assert nm.linalg.cholesky_ex(nm.asarray(INDEFINITE))[1].tolist() == [0, 3]
    assert nm.linalg.inv_ex(nm.asarray(SINGULAR))[1].tolist() == [0, 2]
    assert nm.linalg.solve_ex(nm.asarray(SINGULAR), nm.ones((2, 1)))[1].tolist() == [0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_ends(bad):
    a = np.eye(70, dtype=np.float32)
    a[40, 3] = bad
    assert nm.linalg.cholesky_ex(nm.asarray(a))[1].item() > 0
    assert not np.isfinite(nm.linalg.inv_ex(nm.asarray(a))[0].numpy()).all()


def test_upper_triangle_is_not_read():
    a = np.tril(np.full((3, 3), 0.5)) + np.eye(3)
    a[0, 2] = np.nan
    expected = np.linalg.cholesky(np.tril(a) + np.tril(a, -1).T)
    np.testing.assert_allclose(
        nm.linalg.cholesky(nm.asarray(a.astype(np.float32))).numpy(), expected, rtol=1e-6
    )


# -- derivatives ----------------------------------------------------------------------------------


def test_gradients_through_blocks():
    """Of orders above those of one kernel."""
    a = (RNG.standard_normal((70, 70)) / 20 + np.eye(70)).astype(np.float32)
    positive = (a @ a.T).astype(np.float32)
    gradient = nm.grad(lambda x: 2 * nm.log(nm.linalg.diagonal(nm.linalg.cholesky(x))).sum())
    np.testing.assert_allclose(
        gradient(nm.asarray(positive)).numpy(), np.linalg.inv(positive), atol=1e-3
    )
    gradient = nm.grad(lambda x: nm.linalg.slogdet(x)[1])
    np.testing.assert_allclose(gradient(nm.asarray(a)).numpy(), np.linalg.inv(a).T, atol=1e-3)


def test_the_gradient_of_a_hermitian_argument_is_hermitian():
    a = nm.asarray(np.array([[2.0, 0.5], [0.5, 1.0]], np.float32))
    g = nm.grad(lambda x: nm.linalg.cholesky(x).sum())(a).numpy()
    np.testing.assert_allclose(g, g.T, rtol=1e-6)


def test_backward_solves_with_the_factors_of_forward(monkeypatch):
    made = []
    once = factor.lu
    monkeypatch.setattr(factor, "lu", lambda a: made.append(a) or once(a))
    a = nm.asarray(np.eye(3, dtype=np.float32) * 2, requires_grad=True)
    nm.linalg.solve(a, nm.ones(3)).sum().backward()
    np.testing.assert_allclose(a.grad.numpy(), -np.full((3, 3), 0.25), rtol=1e-6)
    assert len(made) == 1


def test_gaussian_process_likelihood_is_fitted():
    x = np.linspace(0, 1, 30, dtype=np.float32)
    y = nm.asarray(np.sin(6 * x))
    squares = nm.asarray((x[:, None] - x) ** 2)

    @nm.jit
    def loss(log_scale):
        kernel = nm.exp(-squares / nm.exp(log_scale)) + 1e-3 * nm.eye(30)
        factor = nm.linalg.cholesky(kernel)
        fit = nm.linalg.cho_solve((factor, True), y)
        return y @ fit / 2 + nm.log(nm.linalg.diagonal(factor)).sum()

    scale = nm.asarray(0.0)
    first = loss(scale).item()
    for _ in range(20):
        scale = scale - 0.02 * nm.grad(loss)(scale)
    assert loss(scale).item() < first - 1


# -- determinants ---------------------------------------------------------------------------------


def cofactors(a):
    n = len(a)
    minors = [[np.delete(np.delete(a, i, 0), j, 1) for j in range(n)] for i in range(n)]
    signs = (-1.0) ** np.add.outer(np.arange(n), np.arange(n))
    return np.linalg.det(np.array(minors)) * signs


def test_gradients_of_singular_determinants_are_cofactors():
    a = np.array([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]], np.float32)
    regular = drawn((3, 3), np.float32)
    gradient = nm.grad(lambda a: nm.linalg.det(a).sum())
    both = np.stack([a, regular])
    expected = np.stack([cofactors(m) for m in both])
    np.testing.assert_allclose(gradient(nm.asarray(both)).numpy(), expected, atol=1e-4)
    with_jit = nm.jit(gradient)(nm.asarray(a)).numpy()
    np.testing.assert_allclose(with_jit, expected[0], atol=1e-4)
    assert not gradient(nm.zeros((3, 3))).numpy().any()


RANK_TWO = [[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [1.0, 0.0, 1.0]]


@pytest.mark.slow
@pytest.mark.parametrize("a", [RANK_TWO, np.ones((3, 3)), np.diag([1.0, 0.0, 0.0])])
def test_second_derivatives_of_singular_determinants(a):
    a = np.array(a)
    with_noise = drawn((3, 3), np.float64)
    found = nm.hvp(nm.linalg.det, [nm.asarray(a)], [nm.asarray(with_noise)])
    step = 1e-5
    expected = (cofactors(a + step * with_noise) - cofactors(a - step * with_noise)) / (2 * step)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize("n", [3, 150])
def test_right_hand_sides_alone_may_be_batched_or_traced(n):
    a, b = nm.asarray(np.eye(n) * 4 + np.ones((n, n))), nm.asarray(np.ones((2, n)))
    found = nm.vmap(lambda b: nm.linalg.solve(a, b))(b)
    np.testing.assert_allclose(found.numpy(), 1 / (n + 4), rtol=1e-12)
    slope = nm.jacfwd(lambda b: nm.linalg.solve(a, b))(b[0])
    np.testing.assert_allclose(slope.numpy() @ a.numpy(), np.eye(n), atol=1e-12)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
def test_derivatives_by_halves_are_those_of_the_whole(dtype, monkeypatch):
    a, weights = drawn((2, 11, 11), dtype), nm.asarray(drawn((11, 11), dtype))
    k = nm.asarray(a @ np.conj(a.swapaxes(-1, -2)) + np.eye(11))

    def gradient(k):
        return nm.grad(lambda k: (abs(nm.linalg.cholesky(k) - weights) ** 4).sum())(k)

    whole, second = (nm.jvp(gradient, (k,), (k,))[i].numpy() for i in (0, 1))
    monkeypatch.setattr(cholesky, "_LEAF", 3)
    monkeypatch.setattr(cholesky, "_ALIGNMENT", 1)
    by_halves = nm.jvp(gradient, (k,), (k,))
    np.testing.assert_allclose(by_halves[0].numpy(), whole, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(by_halves[1].numpy(), second, rtol=1e-9, atol=1e-9)
