"""Minima of functions of many variables: the minima that SciPy's methods reach."""

import numpy as np
import pytest

import numus as nm
from numus import optimize
from numus.errors import ShapeError


def f64(x):
    return nm.asarray(np.asarray(x, float))


def rosenbrock(x):
    return nm.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def beale(x):
    a, b = x[0], x[1]
    return (1.5 - a + a * b) ** 2 + (2.25 - a + a * b**2) ** 2 + (2.625 - a + a * b**3) ** 2


def himmelblau(x):
    return (x[0] ** 2 + x[1] - 11) ** 2 + (x[0] + x[1] ** 2 - 7) ** 2


def logs(x):
    return nm.sum(nm.exp(x) - nm.arange(1, 6, dtype=x.dtype) * x)


# function, start, minimum
CASES = [
    (rosenbrock, [-1.2, 1, 1], 0.0),
    (beale, [1, 1], 0.0),
    (himmelblau, [1, 1], 0.0),
    (logs, np.zeros(5), -3.274498233773531),
]
METHODS = ["BFGS", "L-BFGS-B", "CG"]
NEWTON = ["Newton-CG", "trust-ncg"]


@pytest.mark.parametrize("method", METHODS + NEWTON)
@pytest.mark.parametrize("case", range(len(CASES)))
def test_minima(method, case):
    f, x0, wanted = CASES[case]
    found = optimize.minimize(f, f64(x0), method=method)
    assert found.success.item()
    assert abs(found.fun.item() - wanted) < 1e-7
    assert found.nfev.item() < 300
    assert nm.max(nm.abs(found.jac)).item() < 1e-2
    assert "success" in found.message


def test_gradients_may_be_given():
    both = nm.value_and_grad(beale)
    for options in ({"jac": True}, {"jac": nm.grad(beale)}):
        f = both if options["jac"] is True else beale
        assert optimize.minimize(f, f64([1, 1]), **options).fun.item() < 1e-9
    found = optimize.minimize(lambda x, a: nm.sum((x - a) ** 2), f64([0, 0]), args=(f64([1, 2]),))
    np.testing.assert_allclose(found.x, [1, 2], atol=1e-6)


def test_bounds():
    # of SciPy's L-BFGS-B
    wanted = [0.8, 0.66004641, 0.44827138, 0.20885852, 0.04362168]
    found = optimize.minimize(rosenbrock, f64([0.5] * 5), bounds=[(0, 0.8)] * 5, tol=1e-10)
    assert found.success.item()
    np.testing.assert_allclose(found.x, wanted, atol=2e-6)
    far = optimize.minimize(himmelblau, f64([9, 9]), bounds=[(None, 1), (-1, None)])
    assert far.x[0].item() <= 1
    held = lambda c: (
        optimize.minimize(lambda x: nm.sum((x - c) ** 2), f64([0, 0]), bounds=[(0, 1), (0, 1)]).x
    )
    jacobian = nm.jacrev(held)(f64([0.5, 2]))
    np.testing.assert_allclose(jacobian, [[1, 0], [0, 0]], atol=1e-10)


@pytest.mark.parametrize("method", METHODS)
def test_derivatives_of_minima(method):
    f = lambda c: optimize.minimize(
        lambda x: nm.sum(nm.exp(x) - c * x), nm.zeros(3, dtype=nm.float64), tol=1e-10, method=method
    )
    c = f64([1.0, 2.0, 3.0])
    for jacobian in (nm.jacrev, nm.jacfwd):
        found = jacobian(lambda c: f(c).x)(c)
        np.testing.assert_allclose(found, np.diag(1 / np.array([1, 2, 3])), atol=1e-7)
    np.testing.assert_allclose(nm.grad(lambda c: f(c).fun)(c), -np.log([1, 2, 3]), atol=1e-7)


def test_batches():
    starts = f64(np.random.default_rng(0).normal(size=(20, 2)) * 2)
    found = nm.jit(nm.vmap(lambda x: optimize.minimize(himmelblau, x)))(starts)
    assert found.x.shape == (20, 2)
    assert nm.all(found.success).item()
    assert nm.max(found.fun).item() < 1e-8
    alone = optimize.minimize(himmelblau, starts[3])
    np.testing.assert_allclose(found.x[3], alone.x, atol=1e-9)
    assert found.nit[3].item() == alone.nit.item()
    assert len(found.message) == 20


def test_a_thousand_variables():
    found = optimize.minimize(rosenbrock, f64(np.full(1000, 0.5)), method="L-BFGS-B")
    assert found.success.item()
    assert found.fun.item() < 1e-7
    assert found.nit.item() < 150


def test_honest_ends():
    short = optimize.minimize(rosenbrock, f64([-1.2, 1]), options={"maxiter": 3})
    assert short.status.item() == 1
    assert not short.success.item()
    assert "maximum number" in short.message
    assert optimize.minimize(lambda x: nm.sum(nm.log(x)), f64([-1.0])).status.item() == 3
    low = optimize.minimize(rosenbrock, nm.asarray([-1.2, 1.0]))  # float32
    assert low.fun.item() < 1e-3


def test_refusals():
    with pytest.raises(ValueError, match="no method"):
        optimize.minimize(beale, [1.0, 1.0], method="magic")
    with pytest.raises(ShapeError, match="one number"):
        optimize.minimize(lambda x: x, [1.0, 1.0])
    with pytest.raises(ValueError, match="finite"):
        optimize.minimize(beale, [1.0, nm.nan])
    with pytest.raises(ValueError, match="takes no bounds"):
        optimize.minimize(beale, [1.0, 1.0], method="CG", bounds=[(0, 1)] * 2)
    with pytest.raises(ValueError, match="no option"):
        optimize.minimize(beale, [1.0, 1.0], options={"gtoll": 1})
    with pytest.raises(ShapeError, match="pairs"):
        optimize.minimize(beale, [1.0, 1.0], bounds=[(0, 1)])


@pytest.mark.parametrize("case", [1, *(pytest.param(i, marks=pytest.mark.slow) for i in (0, 2, 3))])
def test_nelder_mead(case):
    f, x0, wanted = CASES[case]
    found = optimize.minimize(f, f64(x0), method="Nelder-Mead", tol=1e-9)
    assert found.success.item()
    assert abs(found.fun.item() - wanted) < 1e-8
    edge = optimize.minimize(lambda x: nm.sum(nm.abs(x - 3)), f64([0, 0]), method="Nelder-Mead")
    np.testing.assert_allclose(edge.x, [3, 3], atol=1e-3)


def test_hessians_may_be_given():
    hess = nm.hessian(himmelblau)
    for method in NEWTON:
        for more in ({"hess": hess}, {"hessp": lambda x, p: hess(x) @ p}):
            found = optimize.minimize(himmelblau, f64([1, 1]), method=method, **more)
            assert found.fun.item() < 1e-8
    starts = f64([[1, 1], [-3, 3], [4, -2]])
    many = nm.vmap(lambda x: optimize.minimize(himmelblau, x, method="trust-ncg").fun)(starts)
    assert nm.max(many).item() < 1e-8
