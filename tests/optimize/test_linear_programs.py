"""Assignments, linear programs, and minima of functions of one variable."""

import itertools
import math

import numpy as np
import pytest

import numus as nm
from numus import optimize
from numus.errors import ShapeError


def f64(x):
    return nm.asarray(np.asarray(x, float))


# -- assignments ----------------------------------------------------------------------------------


def cheapest(cost):
    """The smallest sum, by trying all."""
    if cost.shape[0] > cost.shape[1]:
        cost = cost.T
    n, m = cost.shape
    return min(sum(cost[i, p[i]] for i in range(n)) for p in itertools.permutations(range(m), n))


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (4, 6), (6, 4)])
def test_assignments_are_optimal(shape):
    rng = np.random.default_rng(sum(shape))
    for cost in (rng.normal(size=shape), rng.integers(-3, 4, size=shape)):
        rows, columns = optimize.linear_sum_assignment(nm.asarray(cost))
        assert rows.tolist() == sorted(set(rows.tolist()))
        assert len(set(columns.tolist())) == min(shape)
        total = cost[rows.numpy(), columns.numpy()].sum()
        assert abs(total - cheapest(cost)) < 1e-12
        rows, columns = optimize.linear_sum_assignment(nm.asarray(cost), maximize=True)
        total = cost[rows.numpy(), columns.numpy()].sum()
        assert abs(total + cheapest(-cost)) < 1e-12


def test_larger_assignments_and_batches_as_scipy():
    scipy = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(0)
    for shape in ((30, 30), (20, 45)):
        cost = rng.uniform(size=shape)
        found = optimize.linear_sum_assignment(f64(cost))[1]
        assert found.tolist() == scipy.linear_sum_assignment(cost)[1].tolist()
    many = rng.uniform(size=(20, 4, 6))
    found = nm.vmap(lambda c: optimize.linear_sum_assignment(c)[1])(f64(many))
    assert found.tolist() == [scipy.linear_sum_assignment(c)[1].tolist() for c in many]


def test_assignments_of_impossible_costs():
    found = optimize.linear_sum_assignment(f64([[nm.inf, 1], [2, nm.inf]]))
    assert found[1].tolist() == [1, 0]
    with pytest.raises(ValueError, match="infeasible"):
        optimize.linear_sum_assignment(f64([[nm.inf, nm.inf], [1, 2]]))
    with pytest.raises(ValueError, match="NaN"):
        optimize.linear_sum_assignment(f64([[nm.nan, 1], [1, 2]]))
    with pytest.raises(ShapeError, match="matrix"):
        optimize.linear_sum_assignment(nm.ones(3))
    assert optimize.linear_sum_assignment(nm.ones((0, 3)))[0].shape == (0,)


# -- linear programs ------------------------------------------------------------------------------


def test_linear_programs_as_scipy():
    scipy = pytest.importorskip("scipy.optimize")
    for seed in range(4):
        rng = np.random.default_rng(seed)
        inner, A, Ae, c = (rng.normal(size=s) for s in (12, (8, 12), (3, 12), 12))
        x = np.abs(inner) % 1
        b, be = A @ x + rng.uniform(size=8), Ae @ x
        bounds = [(0, 2)] * 6 + [(-1, 1)] * 4 + [(None, 1), (0, 3)]
        wanted = scipy.linprog(c, A, b, Ae, be, bounds)
        found = optimize.linprog(*map(f64, (c, A, b, Ae, be)), bounds)
        assert found.status.item() == wanted.status == 0
        assert abs(found.fun.item() - wanted.fun) < 1e-8 * max(1, abs(wanted.fun))
        np.testing.assert_allclose(found.x, wanted.x, atol=1e-7)
        assert nm.min(found.slack).item() > -1e-8
        assert nm.max(nm.abs(found.con)).item() < 1e-8


def test_free_variables_and_dependent_rows():
    found = optimize.linprog(
        f64([-1, 4]), f64([[-3, 1], [1, 2]]), f64([6, 4]), bounds=[(None, None), (-3, None)]
    )
    assert abs(found.fun.item() + 22) < 1e-8
    same = optimize.linprog(
        f64([1, 2, 3]), A_eq=f64([[1, 1, 1], [2, 2, 2], [1, 0, 0]]), b_eq=f64([1, 2, 0.3])
    )
    assert abs(same.fun.item() - 1.7) < 1e-8


def test_programs_without_an_optimum():
    infeasible = optimize.linprog(f64([-1, -2]), f64([[1, 1]]), f64([-1]))
    assert infeasible.status.item() == 2
    assert "infeasible" in infeasible.message
    assert math.isnan(infeasible.fun.item())
    assert optimize.linprog(f64([-1, -2]), f64([[1, -1]]), f64([1])).status.item() == 3
    short = optimize.linprog(f64([-1, -2]), f64([[1, 1]]), f64([4]), options={"maxiter": 1})
    assert short.status.item() == 1
    assert not short.success.item()


def test_derivatives_and_batches_of_programs():
    A, b = f64([[1, 1], [-1, 1]]), f64([4, 2])
    solve = lambda c, b: optimize.linprog(c, A, b)
    c = f64([-1, -2])
    for jacobian in (nm.jacrev, nm.jacfwd):
        found = jacobian(lambda b: solve(c, b).x)(b)
        np.testing.assert_allclose(found, [[0.5, -0.5], [0.5, 0.5]], atol=1e-8)
    np.testing.assert_allclose(nm.grad(lambda c: solve(c, b).fun)(c), [1, 3], atol=1e-8)
    many = nm.jit(nm.vmap(solve, in_axes=(None, 0)))(c, f64([[4, 2], [6, 0]]))
    np.testing.assert_allclose(many.x, [[1, 3], [3, 3]], atol=1e-8)


def test_refusals_of_programs():
    with pytest.raises(ShapeError, match="A_ub has shape"):
        optimize.linprog([1.0, 1.0], [[1.0]], [1.0])
    with pytest.raises(ValueError, match="come together"):
        optimize.linprog([1.0, 1.0], A_eq=[[1.0, 1.0]])
    with pytest.raises(ValueError, match="variable 0 has the bounds"):
        optimize.linprog([1.0], bounds=[(1, 0)])


# -- one variable ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["brent", "golden"])
def test_minima_of_one_variable(method):
    found = optimize.minimize_scalar(
        lambda x: (x - 2) * x * (x + 2) ** 2, bracket=(f64(0), f64(1)), method=method
    )
    assert found.success.item()
    assert abs(found.x.item() - 1.2807764) < 1e-7
    assert found.nfev.item() < 60


def test_minima_in_an_interval():
    f = lambda x: (x - 2) * x * (x + 2) ** 2
    found = optimize.minimize_scalar(f, bounds=(f64(-3), f64(-1)))
    assert abs(found.x.item() + 2) < 1e-5
    centres = f64([0.5, 2.0, 9.0])
    many = lambda c: (
        optimize.minimize_scalar(lambda x: nm.cosh(x - c), bounds=(nm.zeros_like(c), 4.0)).x
    )
    np.testing.assert_allclose(many(centres), [0.5, 2, 4], atol=1e-5)
    np.testing.assert_allclose(nm.vmap(many)(centres), many(centres), atol=1e-7)
    assert abs(nm.grad(many)(f64(2.0)).item() - 1) < 1e-6
    short = optimize.minimize_scalar(f, bounds=(f64(-3), f64(-1)), options={"maxiter": 2})
    assert short.status.item() == 1
    with pytest.raises(ValueError, match="bounds go with"):
        optimize.minimize_scalar(f, method="bounded")
