"""Zeros of functions of one variable, against closed forms and SciPy's iteration counts."""

import math

import numpy as np
import pytest

import numus as nm
from numus import optimize
from numus.errors import ShapeError


def f64(x):
    return nm.asarray(np.asarray(x, float))


# function, bracket, zero, and how often SciPy's brentq evaluates it
CASES = [
    (lambda x: nm.cos(x) - x, 0, 1, 0.7390851332151607, 8),
    (lambda x: x**3 - 2 * x - 5, 2, 3, 2.0945514815423265, 8),
    (lambda x: nm.exp(x) - 1e-3, -20, 5, math.log(1e-3), 13),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_zeros(case):
    f, a, b, wanted, calls = CASES[case]
    x, found = optimize.brentq(f, f64(a), f64(b), full_output=True)
    assert abs(x.item() - wanted) < 4e-12
    assert found.function_calls.item() == calls
    assert found.flag == "converged"
    assert abs(optimize.bisect(f, f64(a), f64(b)).item() - wanted) < 4e-12
    start = f64((a + b) / 2)
    slope = nm.grad(f)
    for more in ({}, {"fprime": slope}, {"fprime": slope, "fprime2": nm.grad(slope)}):
        found = optimize.root_scalar(f, x0=start, **more)
        assert found.converged.item()
        assert abs(found.root.item() - wanted) < 1e-8


def test_many_zeros_at_once_and_their_gradients():
    cube = lambda c: optimize.brentq(lambda x: x**3 - c, nm.zeros_like(c), 10.0)
    c = f64([1.0, 8.0, 27.0])
    np.testing.assert_allclose(cube(c), [1, 2, 3], rtol=1e-12)
    np.testing.assert_allclose(nm.jit(nm.vmap(cube))(c), [1, 2, 3], rtol=1e-12)
    slopes = nm.vmap(nm.grad(cube))(c)
    np.testing.assert_allclose(slopes, [1 / 3, 1 / 12, 1 / 27], rtol=1e-10)
    second = nm.grad(nm.grad(cube))(f64(8.0))
    assert abs(second.item() + 2 / 9 * 8 ** (-5 / 3)) < 1e-10
    tangent = nm.jvp(cube, (f64(8.0),), (f64(2.0),))[1]
    assert abs(tangent.item() - 1 / 6) < 1e-10
    held = nm.grad(lambda c: optimize.newton(lambda x, c: x * x - c, f64(1.0), args=(c,)))(f64(4.0))
    assert abs(held.item() - 0.25) < 1e-8


def test_float32_ends():
    assert abs(optimize.brentq(lambda x: x * x - 2, 0.0, 2.0).item() - math.sqrt(2)) < 1e-6


def test_refusals_and_honest_flags():
    with pytest.raises(ValueError, match="different signs"):
        optimize.brentq(lambda x: x * x + 1, 0.0, 1.0)
    with pytest.raises(RuntimeError, match="no convergence after 3"):
        optimize.bisect(nm.cos, f64(0), f64(3), maxiter=3)
    with pytest.raises(ShapeError, match="elementwise"):
        optimize.brentq(nm.sum, nm.zeros(2), nm.ones(2))
    with pytest.raises(ValueError, match="finite"):
        optimize.newton(nm.sin, nm.inf)
    with pytest.raises(ValueError, match="needs x0 and fprime"):
        optimize.root_scalar(nm.sin, x0=3.0, method="newton")
    found = nm.jit(lambda c: optimize.root_scalar(lambda x: x * x + c, bracket=(0.0, 1.0)))(f64(1))
    assert not found.converged.item()
    assert math.isnan(found.root.item())
    assert "same sign" in found.message
