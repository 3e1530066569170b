"""Least squares, fits and zeros of systems, against SciPy's results."""

import numpy as np
import pytest

import numus as nm
from numus import optimize
from numus.errors import ShapeError


def f64(x):
    return nm.asarray(np.asarray(x, float))


def valley(x):
    return nm.stack([10 * (x[1] - x[0] ** 2), 1 - x[0]])


def decay(x, a, b, c):
    return a * nm.exp(-b * x) + c


T = np.linspace(0, 4, 30)
Y = 2.5 * np.exp(-1.3 * T) + 0.5 + 0.05 * np.random.default_rng(0).normal(size=30)


@pytest.mark.parametrize("method", ["lm", "trf"])
def test_least_squares(method):
    found = optimize.least_squares(valley, f64([-1.2, 1]), method=method)
    assert found.success.item()
    assert found.nfev.item() < 30
    np.testing.assert_allclose(found.x, [1, 1], atol=1e-7)
    given = optimize.least_squares(valley, f64([-1.2, 1]), nm.jacrev(valley), method=method)
    np.testing.assert_allclose(given.x, found.x, atol=1e-9)


def test_bounds():
    found = optimize.least_squares(valley, f64([-1.2, 1]), bounds=([-2, -2], [0.5, 2]))
    np.testing.assert_allclose(found.x, [0.5, 0.25], atol=1e-7)
    assert found.active_mask.tolist() == [1, 0]


OUTLIERS = np.where(np.arange(30) % 7 == 3, Y + 3, Y)


def exponential(y):
    return lambda p: decay(f64(T), *(p[i] for i in range(3))) - f64(y)


@pytest.mark.parametrize("loss", ["huber", "soft_l1", "cauchy", "arctan"])
def test_robust_losses_as_scipy(loss):
    reference = pytest.importorskip("scipy.optimize")
    options = {"loss": loss, "f_scale": 0.1, "ftol": 1e-12, "xtol": 1e-12, "gtol": 1e-12}

    def residuals(p):
        return p[0] * np.exp(-p[1] * T) + p[2] - OUTLIERS

    want = reference.least_squares(residuals, [2.0, 1.0, 0.4], **options)
    found = optimize.least_squares(exponential(OUTLIERS), f64([2.0, 1.0, 0.4]), **options)
    np.testing.assert_allclose(found.x, want.x, rtol=1e-6)
    np.testing.assert_allclose(found.cost, want.cost, rtol=1e-8)
    np.testing.assert_allclose(found.fun, want.fun, atol=1e-6)
    np.testing.assert_allclose(found.jac, want.jac, atol=1e-4)
    np.testing.assert_allclose(found.x, [2.5, 1.3, 0.5], atol=0.15)  # the outliers do not count


def test_a_loss_of_ones_own():
    def rho(z):
        return nm.log1p(z), 1 / (1 + z), -1 / (1 + z) ** 2

    start, f = f64([2.0, 1.0, 0.4]), exponential(OUTLIERS)
    own = optimize.least_squares(f, start, loss=rho, f_scale=0.1)
    named = optimize.least_squares(f, start, loss="cauchy", f_scale=0.1)
    np.testing.assert_allclose(own.x, named.x, rtol=1e-9)
    with pytest.raises(ValueError, match="no loss 'cubic'"):
        optimize.least_squares(f, start, loss="cubic")
    with pytest.raises(ShapeError, match="second derivative"):
        optimize.least_squares(f, start, loss=lambda z: (z, z))
    with pytest.raises(ValueError, match="lm takes no loss"):
        optimize.least_squares(f, start, loss="huber", method="lm")
    with pytest.raises(ValueError, match="f_scale must be positive"):
        optimize.least_squares(f, start, loss="huber", f_scale=0.0)


def test_derivatives_through_a_robust_fit():
    def fitted(y):
        f = lambda p: decay(f64(T), *(p[i] for i in range(3))) - y
        return optimize.least_squares(
            f, f64([2.0, 1.0, 0.4]), loss="soft_l1", f_scale=0.1, xtol=1e-14, ftol=1e-14, gtol=1e-13
        ).x[1]

    slope = nm.grad(fitted)(f64(OUTLIERS)).numpy()
    step = np.zeros(30)
    step[4] = 1e-3
    ends = (fitted(f64(OUTLIERS + s)).item() for s in (step, -step))
    np.testing.assert_allclose(slope[4], np.subtract(*ends) / 2e-3, rtol=1e-4)


def test_curve_fit_as_scipy():
    scipy = pytest.importorskip("scipy.optimize")
    plain = lambda x, a, b, c: a * np.exp(-b * x) + c
    for options in ({}, {"sigma": 0.1 + T, "absolute_sigma": True}, {"bounds": (0, [3, 1, 1])}):
        ours = {k: f64(v) if k == "sigma" else v for k, v in options.items()}
        p, covariance = optimize.curve_fit(decay, f64(T), f64(Y), **ours)
        q, wanted = scipy.curve_fit(plain, T, Y, **options)
        np.testing.assert_allclose(p, q, rtol=1e-6)
        np.testing.assert_allclose(covariance, wanted, rtol=2e-4, atol=1e-9)


def test_derivatives_of_fits():
    fit = lambda y: optimize.curve_fit(decay, f64(T), y, xtol=1e-14, ftol=1e-14, gtol=1e-13)[0]
    found = nm.jacrev(fit)(f64(Y))[:, 3]
    h = np.zeros(30)
    h[3] = 1e-3  # a fit ends within about 1e-9 of its solution
    slope = (fit(f64(Y + h)) - fit(f64(Y - h))).numpy() / 2e-3
    np.testing.assert_allclose(found, slope, rtol=2e-5, atol=1e-7)
    many = nm.vmap(lambda y: optimize.least_squares(lambda p: p - y, f64([0, 0])).x)(f64(np.eye(2)))
    np.testing.assert_allclose(many, np.eye(2), atol=1e-7)


SYSTEMS = [
    (
        lambda x: nm.stack([x[0] * nm.cos(x[1]) - 4, x[0] * x[1] - x[1] - 5]),
        [1, 1],
        [6.50409711, 0.90841421],
    ),
    (
        lambda x: nm.stack([x[0] + 0.5 * (x[0] - x[1]) ** 3 - 1, 0.5 * (x[1] - x[0]) ** 3 + x[1]]),
        [0, 0],
        [0.8411639, 0.1588361],
    ),
    (valley, [-1.2, 1], [1, 1]),
]


@pytest.mark.parametrize("method", ["hybr", "lm", "broyden1", "newton"])
@pytest.mark.parametrize("case", range(len(SYSTEMS)))
def test_root(method, case):
    f, x0, wanted = SYSTEMS[case]
    found = optimize.root(f, f64(x0), method=method)
    assert found.success.item()
    np.testing.assert_allclose(found.x, wanted, rtol=1e-6)
    assert nm.max(nm.abs(found.fun)).item() < 1e-9


def test_derivatives_and_batches_of_zeros():
    f = lambda c: optimize.root(
        lambda x: nm.stack([x[0] + x[1] - c[0], x[0] * x[1] - c[1]]), f64([0, 5])
    )
    c = f64([3, 2])
    for jacobian in (nm.jacrev, nm.jacfwd):
        np.testing.assert_allclose(jacobian(lambda c: f(c).x)(c), [[-1, 1], [2, -1]], atol=1e-9)
    many = nm.jit(nm.vmap(f))(nm.stack([c, f64([4, 3]), f64([5, 4])]))
    np.testing.assert_allclose(many.x, [[1, 2], [1, 3], [1, 4]], atol=1e-9)


def test_honest_ends():
    for method in ("hybr", "lm", "newton"):
        none = optimize.root(lambda x: x * x + 1, f64([1.0]), method=method)
        assert not none.success.item()
    short = optimize.least_squares(valley, f64([-1.2, 1]), max_nfev=3)
    assert short.status.item() == 0
    assert not short.success.item()
    assert optimize.root(valley, f64([-1.2, 1]), options={"maxfev": 3}).status.item() == 2


def test_refusals():
    with pytest.raises(ShapeError, match="3 numbers for 2"):
        optimize.root(lambda x: nm.concat([x, x[:1]]), [1.0, 2.0])
    with pytest.raises(ValueError, match="lm takes no bounds"):
        optimize.least_squares(valley, [0.0, 0.0], method="lm", bounds=(0, 1))
    with pytest.raises(ValueError, match="give p0"):
        optimize.curve_fit(lambda x, *p: x, f64(T), f64(Y))
    with pytest.raises(ValueError, match="below"):
        optimize.least_squares(valley, [0.0, 0.0], bounds=(1, 0))
