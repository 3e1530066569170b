"""Integrals of samples and functions, against SciPy and closed forms."""

import math

import numpy as np
import pytest

import numus as nm
from numus import integrate
from numus.errors import ShapeError


def f64(x):
    return nm.asarray(np.asarray(x, float))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9])
def test_samples_as_scipy(n):
    scipy = pytest.importorskip("scipy.integrate")
    rng = np.random.default_rng(n)
    y, x = rng.normal(size=(3, n)), np.sort(rng.normal(size=n))
    for options in ({}, {"dx": 0.3}, {"x": x}):
        ours = {k: f64(v) if k == "x" else v for k, v in options.items()}
        found = integrate.simpson(f64(y), **ours)
        np.testing.assert_allclose(found, scipy.simpson(y, **options), rtol=1e-10, atol=1e-12)
        if n > 1:
            wanted = scipy.cumulative_simpson(y, initial=2.0, **options)
            found = integrate.cumulative_simpson(f64(y), initial=2.0, **ours)
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
    if n > 1:
        wanted = scipy.cumulative_simpson(y.T, axis=0)
        np.testing.assert_allclose(integrate.cumulative_simpson(f64(y.T), axis=0), wanted)
    if n == 9:
        np.testing.assert_allclose(integrate.romb(f64(y), dx=0.1), scipy.romb(y, dx=0.1))


def test_samples_refuse():
    with pytest.raises(ShapeError, match="2\\^k"):
        integrate.romb(nm.ones(4))
    with pytest.raises(ShapeError, match="coordinates"):
        integrate.simpson(nm.ones(4), x=nm.ones(3))


CASES = [
    (nm.exp, 0.0, 1.0, math.e - 1),
    (lambda x: nm.sqrt(nm.abs(x - 0.3)), 0.0, 1.0, 2 / 3 * (0.3**1.5 + 0.7**1.5)),
    (lambda x: nm.sin(50 * x) ** 2, 0.0, 3.0, 1.5 - math.sin(300) / 200),
    (lambda x: 1 / (1 + x * x), 2.0, -1.0, math.atan(-1) - math.atan(2)),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_quad(case):
    f, a, b, wanted = CASES[case]
    value, error, info = integrate.quad(f, f64(a), f64(b), full_output=True)
    assert abs(value.item() - wanted) <= max(error.item(), 1e-13)
    assert error.item() < 2e-8
    assert info["ier"].item() == 0
    assert info["last"].item() <= 50


def test_quad_of_infinite_ranges():
    half = math.sqrt(math.pi) / 2
    f = lambda x: nm.exp(-x * x)
    for a, b, wanted in ((f64(0.0), nm.inf, half), (-nm.inf, f64(0.0), half), (nm.inf, 0.0, -half)):
        assert abs(integrate.quad(f, a, b)[0].item() - wanted) < 1e-6
    assert abs(integrate.quad(f, -nm.inf, nm.inf)[0].item() - 2 * half) < 1e-6


def test_quad_says_that_it_did_not_converge():
    wild = lambda x: nm.where(x > 0.1234, 1.0, 0.0)
    _, error, info = integrate.quad(wild, f64(0), f64(1), limit=5, full_output=True)
    assert info["ier"].item() == 1
    assert error.item() > 1e-8
    assert info["last"].item() == 5


def test_quad_derivatives_and_batches():
    def area(a, b, c):
        return integrate.quad(lambda x: nm.sin(c * x) / (1 + x * x), a, b)[0]

    at = (0.2, 1.5, 2.0)
    found = nm.grad(area, argnums=(0, 1, 2))(*map(f64, at))
    for k in range(3):
        up, down = list(at), list(at)
        up[k] += 1e-5
        down[k] -= 1e-5
        slope = (area(*map(f64, up)) - area(*map(f64, down))).item() / 2e-5
        assert abs(found[k].item() - slope) < 1e-8
    ends = f64([0.5, 1.0, 2.0])
    many = nm.jit(nm.vmap(area, in_axes=(None, 0, None)))(f64(0.2), ends, f64(3.0))
    each = [area(f64(0.2), ends[i], f64(3.0)).item() for i in range(3)]
    np.testing.assert_allclose(many, each, rtol=1e-12)


def test_fixed_rules():
    assert abs(integrate.romberg(nm.exp, f64(0), f64(1)).item() - (math.e - 1)) < 1e-12
    assert abs(integrate.fixed_quad(nm.cos, f64(0), f64(2), n=7)[0].item() - math.sin(2)) < 1e-11
    with pytest.raises(ShapeError, match="one real number"):
        integrate.quad(nm.exp, nm.zeros(2), 1.0)
    with pytest.raises(ValueError, match="at least 1"):
        integrate.fixed_quad(nm.exp, 0.0, 1.0, n=0)
