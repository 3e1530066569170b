"""Iterative solvers: solutions, iterations, several right-hand sides, derivatives, bad input."""

import numpy as np
import pytest
from sparse_matrices import anisotropic, arrow, convection, poisson, random

import numus as nm
from numus import sparse
from numus.errors import LinAlgError
from numus.sparse import linalg

HERMITIAN = {"cg": {}, "minres": {}}
ANY = {"bicgstab": {}, "cgs": {}, "qmr": {}, "tfqmr": {}, "gmres": {}, "fgmres": {}}
ANY |= {"lgmres": {}}
RELAXED = {"jacobi": {}, "gauss_seidel": {}, "sor": {"omega": 1.2}}
POISSON = poisson(6, 6)
EIGENVALUES = np.linalg.eigvalsh(POISSON)
CHEBYSHEV = {"chebyshev": {"bounds": (EIGENVALUES[0], EIGENVALUES[-1])}}
METHODS = {**HERMITIAN, **ANY, **RELAXED, **CHEBYSHEV}
# iterations of SciPy 1.17 at rtol=1e-8, maxiter=2000, GMRES of 20 vectors, on `right` below
MATRICES = {"poisson": poisson(12, 12), "anisotropic": anisotropic(10, 0.05)}
MATRICES |= {"convection": convection(10, 3.0), "arrow": arrow(40)}
SCIPY = {
    "poisson": {"cg": 39, "bicgstab": 30, "cgs": 29, "qmr": 39, "gmres": 62},
    "anisotropic": {"cg": 56, "bicgstab": 40, "cgs": 34, "qmr": 56, "gmres": 66},
    "convection": {"bicgstab": 17, "cgs": 18, "qmr": 30, "gmres": 36},
    "arrow": {"cg": 3, "bicgstab": 2, "cgs": 3, "qmr": 3, "gmres": 3},
}


def often(names, *quick):
    """Parameters of which some run by default; the others compile as much again."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def right(n, *more):
    return np.random.default_rng(0).standard_normal((n, *more))


@pytest.mark.parametrize("method", often(METHODS, "cg", "gmres", "bicgstab", "sor"))
def test_solutions(method):
    b = right(36, 2)
    found = getattr(linalg, method)(made(POISSON), b, rtol=1e-9, **METHODS[method])
    assert found.converged
    assert found.iterations.shape == (2,)
    np.testing.assert_allclose(found.x.numpy(), np.linalg.solve(POISSON, b), rtol=1e-6, atol=1e-7)
    true = np.linalg.norm(b - POISSON @ found.x.numpy(), axis=0)
    np.testing.assert_allclose(found.residual.numpy(), true, rtol=0.01, atol=1e-13)
    assert (true <= 1.1e-9 * np.linalg.norm(b, axis=0)).all()
    np.testing.assert_allclose(found.history[0].numpy(), np.linalg.norm(b, axis=0))
    np.testing.assert_allclose(found.history[-1].numpy(), true, rtol=0.1, atol=1e-13)


@pytest.mark.parametrize("name", often(MATRICES, "convection"))
def test_iterations(name):
    dense = MATRICES[name]
    b = right(dense.shape[0])
    for method, count in SCIPY[name].items():
        found = getattr(linalg, method)(made(dense), b, rtol=1e-8, maxiter=2000)
        assert found.info.item() == 0
        assert found.residual.item() <= 1.1e-8 * np.linalg.norm(b)
        assert found.iterations.item() <= max(1.2 * count, count + 1), method


def test_cycles():
    """Errors of earlier cycles, and cycles of changing length, need fewer iterations."""
    a, b = made(poisson(16, 16)), right(256)
    plain = linalg.gmres(a, b, rtol=1e-8, restart=8)
    augmented = linalg.lgmres(a, b, rtol=1e-8, inner_m=8, outer_k=2)
    adaptive = linalg.gmres(a, b, rtol=1e-8, restart=8, adaptive=True)
    for found in (plain, augmented, adaptive):
        assert found.info.item() == 0
        true = np.linalg.norm(b - poisson(16, 16) @ found.x.numpy())
        assert true <= 1.1e-8 * np.linalg.norm(b)
    assert augmented.iterations.item() < 0.9 * plain.iterations.item()
    assert adaptive.iterations.item() < 1.1 * plain.iterations.item()
    singular = linalg.gmres(made(np.diag([1.0, 2.0, 0.0])), np.ones(3))
    assert singular.info.item() == -1
    assert singular.iterations.item() < 10
    np.testing.assert_allclose(singular.x.numpy()[:2], [1.0, 0.5], rtol=1e-6)


@pytest.mark.parametrize("method", often(["cg", "gmres", "sor"], "cg"))
def test_derivatives(method):
    dense, options = (POISSON[:9, :9] + 0.1 * np.eye(9)), METHODS[method]
    if method == "gmres":
        dense = dense + 0.3 * np.triu(dense, 1)
    a, b = made(dense), nm.asarray(right(9))

    def loss(values, b):
        solve = getattr(linalg, method)
        return nm.sum(nm.sin(solve(a.with_values(values), b, rtol=1e-12, **options).x))

    def direct(values, b):
        return nm.sum(nm.sin(nm.linalg.solve(a.with_values(values).to_dense(), b)))

    for i in (0, 1):
        wanted = nm.grad(direct, i)(a.values, b).numpy()
        np.testing.assert_allclose(nm.grad(loss, i)(a.values, b).numpy(), wanted, 1e-7, 1e-9)
    tangents = (nm.cos(a.values), nm.sin(b))
    _, wanted = nm.jvp(direct, (a.values, b), tangents)
    _, found = nm.jvp(loss, (a.values, b), tangents)
    np.testing.assert_allclose(found.item(), wanted.item(), rtol=1e-7)


def test_second_derivatives_traces_and_batches():
    a, b = made(POISSON[:5, :5]), nm.asarray(right(5))

    def loss(b):
        return nm.sum(linalg.cg(a, b, rtol=1e-12).x ** 3)

    def direct(b):
        return nm.sum(nm.linalg.solve(a.to_dense(), b) ** 3)

    wanted = nm.hessian(direct)(b).numpy()
    np.testing.assert_allclose(nm.hessian(loss)(b).numpy(), wanted, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(nm.jit(nm.grad(loss))(b).numpy(), nm.grad(direct)(b).numpy(), 1e-7)
    both = nm.stack([b, 2 * b])
    found = nm.vmap(nm.grad(loss))(both).numpy()
    np.testing.assert_allclose(found, nm.vmap(nm.grad(direct))(both).numpy(), rtol=1e-7)


def test_operators_and_their_parameters():
    dense = nm.asarray(POISSON[:6, :6])
    b = nm.asarray(right(6))
    operator = linalg.LinearOperator((6, 6), lambda m, x: m @ x, parameters=dense)
    np.testing.assert_allclose((operator.H @ b).numpy(), (dense.mT @ b).numpy(), rtol=1e-12)

    def loss(m):
        a = linalg.LinearOperator((6, 6), lambda m, x: m @ x, parameters=m)
        return nm.sum(linalg.gmres(a, b, rtol=1e-12).x)

    wanted = nm.grad(lambda m: nm.sum(nm.linalg.solve(m, b)))(dense).numpy()
    np.testing.assert_allclose(nm.grad(loss)(dense).numpy(), wanted, rtol=1e-7, atol=1e-10)
    stacked = linalg.cg(linalg.LinearOperator((6, 6), lambda x: dense @ x), nm.stack([b, b], 1))
    assert stacked.converged


PRECONDITIONED = ["cg", "gmres", "qmr", "bicgstab", "fgmres", "minres", "tfqmr"]


@pytest.mark.parametrize("method", often(PRECONDITIONED, "cg"))
def test_preconditioners(method):
    scale = np.diag(10.0 ** np.linspace(0, 1, 36))
    dense = scale @ POISSON @ scale
    a, b = made(dense), right(36)
    solve = getattr(linalg, method)
    plain = solve(a, b, rtol=1e-8, maxiter=300)
    for m in (linalg.jacobi_preconditioner(a), linalg.block_jacobi_preconditioner(a, 6)):
        found = solve(a, b, rtol=1e-8, maxiter=300, M=m)
        assert found.info.item() == 0
        assert found.iterations.item() < plain.iterations.item()


@pytest.mark.slow
def test_complex_systems():
    dense = POISSON[:12, :12] + 1j * (np.eye(12, k=1) - np.eye(12, k=-1)) * 0.5
    hermitian = POISSON[:12, :12] + 0.3j * (np.eye(12, k=1) - np.eye(12, k=-1))
    b = right(12) + 1j * right(12)[::-1]
    for method in ("bicgstab", "gmres", "lgmres", "fgmres", "cgs", "qmr", "tfqmr"):
        found = getattr(linalg, method)(made(dense), b, rtol=1e-10)
        np.testing.assert_allclose(found.x.numpy(), np.linalg.solve(dense, b), rtol=1e-7)
    for method in ("cg", "minres"):
        found = getattr(linalg, method)(made(hermitian), b, rtol=1e-10)
        np.testing.assert_allclose(found.x.numpy(), np.linalg.solve(hermitian, b), rtol=1e-7)


@pytest.mark.parametrize("method", ["lsqr", "lsmr"])
@pytest.mark.parametrize("damp", often([0.0, 0.5], 0.5))
@pytest.mark.parametrize("shape", often([(14, 8), (8, 14)], (14, 8)))
def test_least_squares(method, damp, shape):
    dense = random(*shape, 0.6, 3)
    b = right(shape[0], 2)
    found = getattr(linalg, method)(made(dense), b, damp=damp, atol=1e-12, btol=1e-12)
    assert found.converged
    stacked = np.vstack([dense, damp * np.eye(shape[1])])
    wanted = np.linalg.lstsq(stacked, np.vstack([b, np.zeros((shape[1], 2))]), rcond=None)[0]
    np.testing.assert_allclose(found.x.numpy(), wanted, rtol=1e-7, atol=1e-9)


def test_derivatives_of_least_squares():
    dense, b = random(9, 4, 0.9, 3), nm.asarray(right(9))
    a = made(dense)

    def loss(v, b):
        return nm.sum(linalg.lsqr(a.with_values(v), b, atol=1e-13, btol=1e-13).x ** 2)

    def direct(v, b):
        m = a.with_values(v).to_dense()
        return nm.sum(nm.linalg.solve(m.mT @ m, m.mT @ b) ** 2)

    for i in (0, 1):
        wanted = nm.grad(direct, i)(a.values, b).numpy()
        np.testing.assert_allclose(nm.grad(loss, i)(a.values, b).numpy(), wanted, 1e-6, 1e-8)


def test_honest_endings():
    a, b = made(POISSON), right(36)
    few = linalg.cg(a, b, rtol=1e-12, maxiter=3)
    assert (few.info.item(), few.iterations.item()) == (3, 3)
    assert few.residual.item() > 0.01
    done = linalg.cg(a, np.zeros(36))
    assert (done.info.item(), done.iterations.item()) == (0, 0)
    singular = linalg.cg(made(np.zeros((4, 4))), np.ones(4))
    assert singular.info.item() == -1
    skew = linalg.cg(made(np.array([[0.0, 1.0], [-1.0, 0.0]])), np.ones(2))
    assert skew.info.item() == -1
    broken = linalg.bicgstab(made(np.array([[0.0, 1.0], [-1.0, 0.0]])), np.ones(2))
    assert broken.info.item() != 0
    nan = linalg.gmres(made(np.full((3, 3), np.nan)), np.ones(3))
    assert nan.info.item() == -1
    for method in (linalg.cg, linalg.lsqr, linalg.lsmr):
        assert method(sparse.eye(3), np.full(3, np.nan)).info.item() == -1
    near = linalg.qmr(made(np.diag([*np.ones(19), 0.0])), np.ones(20), maxiter=200)
    assert near.info.item() == -1
    assert np.isfinite(near.x.numpy()).all()
    nothing = linalg.gauss_seidel(made(np.zeros((0, 0))), np.zeros(0))
    assert (nothing.info.item(), nothing.x.shape) == (0, (0,))
    assert len(linalg.cg(a, b).plot().splitlines()) == 12


def test_a_multigrid_is_a_preconditioner():
    a, b = made(poisson(12, 12)), right(144)
    levels = linalg.smoothed_aggregation(a)
    found, wanted = (linalg.cg(a, b, M=m, rtol=1e-9) for m in (levels, levels.preconditioner()))
    np.testing.assert_array_equal(found.x.numpy(), wanted.x.numpy())


def test_a_residual_that_departed_from_the_true_one_is_no_solution():
    """CGS squares the residual polynomial of BiCG: its iterates may grow by far before they end."""
    rng = np.random.default_rng(24)
    dense = rng.standard_normal((24, 24)) * (rng.random((24, 24)) < 0.15)
    a, b = made((dense + dense.T).astype(np.float32)), rng.standard_normal(24).astype(np.float32)
    found = linalg.cgs(a, b, rtol=1e-4, maxiter=400)
    true = np.linalg.norm(b - (dense + dense.T) @ found.x.numpy())
    assert (found.info.item() == 0) == (true < 1e-2 * np.linalg.norm(b))


BAD = {
    "not square": lambda: linalg.cg(made(np.ones((2, 3))), np.ones(2)),
    "another length": lambda: linalg.gmres(made(POISSON), np.ones(5)),
    "a negative tolerance": lambda: linalg.cg(made(POISSON), np.ones(36), rtol=-1.0),
    "a zero on the diagonal": lambda: linalg.jacobi(made(np.ones((2, 2)) - np.eye(2)), np.ones(2)),
    "omega": lambda: linalg.sor(made(POISSON), np.ones(36), omega=2.5),
    "a preconditioner": lambda: linalg.cg(made(POISSON), np.ones(36), M=made(np.eye(3))),
    "bounds": lambda: linalg.chebyshev(made(POISSON), np.ones(36), bounds=(2.0, 1.0)),
    "a shape": lambda: linalg.LinearOperator((2, -1), lambda x: x),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input(what):
    with pytest.raises((ValueError, TypeError, np.linalg.LinAlgError), match=r"\w+: "):
        BAD[what]()


CALLED = ("cg", "bicgstab", "gmres", "lsqr", "gauss_seidel")


@pytest.mark.parametrize("method", CALLED)
def test_callbacks(method):
    solve = getattr(linalg, method)
    a, b = made(POISSON), right(36)
    seen = []
    found = solve(a, b, callback=lambda count, residual: seen.append((count, residual)))
    plain = solve(a, b)
    assert found.iterations.item() == plain.iterations.item() == seen[-1][0]
    np.testing.assert_allclose(found.x.numpy(), plain.x.numpy(), rtol=1e-10)
    counts = [count for count, _ in seen]
    assert counts == sorted(set(counts))
    if method != "gmres":
        assert counts == [*range(1, len(counts) + 1)]
    own = [residual for _, residual in seen]
    np.testing.assert_allclose(own, plain.history.numpy()[counts], rtol=1e-6)
    if method == "cg":
        both = []
        two = np.stack([b, 2 * b], 1)
        linalg.cg(a, two, callback=lambda _, residual: both.append(residual.shape))
        assert set(both) == {(2,)}
        calls = len(seen)
        nm.grad(lambda b: nm.sum(linalg.cg(a, b, callback=lambda *x: seen.append(x)).x))(
            nm.asarray(b)
        )
        assert len(seen) == 2 * calls  # none of the adjoint solution
        with pytest.raises(LinAlgError, match="callback"):
            nm.jit(lambda b: linalg.cg(a, b, callback=print).x)(nm.asarray(b))
