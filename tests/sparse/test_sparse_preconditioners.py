"""Preconditioners: against their definitions, iterations, devices, traces, bad input."""

import numpy as np
import pytest
from sparse_matrices import anisotropic, convection, on_webgpu, poisson

import numus as nm
from numus import sparse
from numus.errors import LinAlgError, ShapeError
from numus.sparse import linalg

POISSON = poisson(20, 20)
RIGHT = np.random.default_rng(0).standard_normal(400)


def made(dense):
    return sparse.from_dense(nm.asarray(dense))


def iterations(method, dense, M, **options):
    found = getattr(linalg, method)(made(dense), RIGHT[: len(dense)], rtol=1e-8, M=M, **options)
    assert found.converged
    return found.iterations.item()


def test_ssor_is_its_definition():
    a, omega = made(convection(5, 2.0)), 1.3
    dense = a.numpy()
    d, lower, upper = np.diag(np.diag(dense)), np.tril(dense, -1), np.triu(dense, 1)
    middle = np.linalg.inv(d) * omega / (2 - omega)
    m = (d / omega + lower) @ middle @ (d / omega + upper)
    near, b = linalg.ssor_preconditioner(a, omega), RIGHT[:25]
    np.testing.assert_allclose((near @ b).numpy(), np.linalg.solve(m, b), rtol=1e-12)
    np.testing.assert_allclose((near.H @ b).numpy(), np.linalg.solve(m.T, b), rtol=1e-12)


def test_ilu_keeps_the_pattern():
    dense = convection(6, 2.0)
    inverse = linalg.ilu_preconditioner(made(dense))
    m = np.linalg.inv(np.stack([(inverse @ e).numpy() for e in np.eye(36)], 1))
    np.testing.assert_allclose(m[dense != 0], dense[dense != 0], rtol=1e-10)
    assert np.abs(m - dense).max() > 1e-3


def test_full_fill_is_the_inverse():
    dense = convection(6, 2.0)
    x = linalg.ilu_preconditioner(made(dense), 40) @ RIGHT[:36]
    np.testing.assert_allclose(x.numpy(), np.linalg.solve(dense, RIGHT[:36]), rtol=1e-10)


def test_iterations():
    a = made(POISSON)
    plain = iterations("cg", POISSON, None)
    ssor = iterations("cg", POISSON, linalg.ssor_preconditioner(a, 1.5))
    ic = iterations("cg", POISSON, linalg.ic_preconditioner(a))
    filled = iterations("cg", POISSON, linalg.ic_preconditioner(a, 2))
    amg = linalg.smoothed_aggregation(a, coarsest=20)
    multigrid = iterations("cg", POISSON, amg.preconditioner())
    assert multigrid < filled < ic < plain / 2
    assert ssor < plain / 2
    assert multigrid <= 9
    dense = convection(15, 20.0)
    assert iterations("bicgstab", dense, linalg.ilu_preconditioner(made(dense))) <= 5


@pytest.mark.slow
def test_multigrid_does_not_grow_with_the_grid():
    counts = []
    for n in (16, 32, 64):
        a = made(poisson(n, n))
        b = np.random.default_rng(1).standard_normal(n * n)
        amg = linalg.smoothed_aggregation(a, coarsest=50)
        assert amg.operator_complexity < 1.6
        counts.append(linalg.cg(a, b, rtol=1e-8, M=amg.preconditioner()).iterations.item())
    assert counts[-1] <= counts[0] + 3
    a = made(anisotropic(30, 1e-3))
    strong = linalg.smoothed_aggregation(a, theta=0.1, coarsest=50)
    found = linalg.cg(a, np.ones(900), rtol=1e-8, M=strong.preconditioner())
    assert found.iterations.item() < 15


@pytest.mark.slow
@pytest.mark.parametrize("cycle", ["W", "F"])
def test_cycles(cycle):
    a = made(POISSON)
    way = linalg.smoothed_aggregation(a, coarsest=10, cycle=cycle)
    first = linalg.smoothed_aggregation(a, coarsest=10)
    more = iterations("cg", POISSON, way.preconditioner())
    assert more <= iterations("cg", POISSON, first.preconditioner())


@pytest.mark.slow
@on_webgpu
def test_devices():
    a = made(poisson(8, 8).astype(np.float32))
    b = nm.ones(64)
    for make in (linalg.ssor_preconditioner, linalg.ilu_preconditioner):
        there = make(a.to("webgpu")) @ b.to("webgpu")
        np.testing.assert_allclose(there.numpy(), (make(a) @ b).numpy(), rtol=1e-4)
    amg = linalg.smoothed_aggregation(a.to("webgpu"), coarsest=10).preconditioner()
    near = linalg.smoothed_aggregation(a, coarsest=10).preconditioner()
    np.testing.assert_allclose((amg @ b.to("webgpu")).numpy(), (near @ b).numpy(), rtol=1e-3)


def test_bad_input():
    with pytest.raises(LinAlgError, match="diagonal has a zero"):
        linalg.ssor_preconditioner(made(np.array([[0.0, 1.0], [1.0, 1.0]])))
    with pytest.raises(ValueError, match="omega"):
        linalg.ssor_preconditioner(sparse.eye(2), 2.0)
    with pytest.raises(LinAlgError, match=r"element \(0, 0\) of the diagonal is not stored"):
        linalg.ilu_preconditioner(made(np.array([[0.0, 1.0], [1.0, 1.0]])))
    with pytest.raises(LinAlgError, match="pivot 1 is zero"):
        linalg.ilu_preconditioner(made(np.ones((2, 2))))
    with pytest.raises(LinAlgError, match="pivot 1 is not positive"):
        linalg.ic_preconditioner(made(np.array([[1.0, 2.0], [2.0, 1.0]])))
    with pytest.raises(ValueError, match="negative"):
        linalg.ilu_preconditioner(sparse.eye(2), -1)
    with pytest.raises(ShapeError, match="not square"):
        linalg.smoothed_aggregation(sparse.eye(2, 3))
    with pytest.raises(ValueError, match="cycle"):
        linalg.smoothed_aggregation(sparse.eye(2), cycle="X")
    with pytest.raises(LinAlgError, match="diagonal of level 0 is not positive"):
        linalg.smoothed_aggregation(made(-POISSON))
    with pytest.raises(LinAlgError, match="not a number"):
        linalg.smoothed_aggregation(made(np.diag([np.nan, 1.0])))


def test_complex_factors():
    """On the whole pattern they are the matrix's own; of Hermitian ones, conjugate gradients stay
    short."""
    rng = np.random.default_rng(3)
    dense = rng.standard_normal((12, 12)) + 1j * rng.standard_normal((12, 12)) + 9j * np.eye(12)
    b = rng.standard_normal(12) + 1j * rng.standard_normal(12)
    whole = linalg.ilu_preconditioner(sparse.from_dense(nm.asarray(dense)))
    np.testing.assert_allclose((whole @ b).numpy(), np.linalg.solve(dense, b), atol=1e-12)
    adjoint = np.linalg.solve(dense.conj().T, b)
    np.testing.assert_allclose((whole.H @ b).numpy(), adjoint, atol=1e-12)
    real = poisson(12, 12)
    phase = np.exp(1j * rng.random(144))
    a = sparse.from_dense(nm.asarray(phase[:, None] * real * phase.conj()))
    right = nm.asarray(phase * rng.standard_normal(144))
    found = linalg.cg(a, right, rtol=1e-9, M=linalg.ic_preconditioner(a))
    assert found.converged
    plain = sparse.from_dense(nm.asarray(real))
    m = linalg.ic_preconditioner(plain)
    other = linalg.cg(plain, nm.real(right / nm.asarray(phase)), rtol=1e-9, M=m)
    assert abs(found.iterations.item() - other.iterations.item()) <= 1


@pytest.mark.parametrize("cycle", ["V", "F"])
def test_complex_multigrid(cycle):
    """A real matrix multiplied by phases has the same hierarchy around the candidate of these, but
    for the estimate of spectral radii."""
    rng = np.random.default_rng(3)
    phase = np.exp(1j * rng.random(400))
    turned = made(phase[:, None] * POISSON * phase.conj())
    amg = linalg.smoothed_aggregation(turned, coarsest=20, cycle=cycle, candidate=phase)
    own = linalg.smoothed_aggregation(made(POISSON), coarsest=20, cycle=cycle)
    near, plain = amg.preconditioner(), own.preconditioner()
    wanted = (plain @ RIGHT).numpy()
    np.testing.assert_allclose((near @ (phase * RIGHT)).numpy() / phase, wanted, atol=1e-3)
    np.testing.assert_allclose(
        (near.H @ (phase * RIGHT)).numpy() / phase, (plain.H @ RIGHT).numpy(), atol=1e-3
    )
    found = linalg.cg(turned, phase * RIGHT, rtol=1e-8, M=near)
    assert found.converged
    assert found.iterations.item() < 15
