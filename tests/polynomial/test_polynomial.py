"""nm.polynomial against NumPy and SciPy."""

import numpy as np
import pytest
import scipy.interpolate as si

import numus as nm

rng = np.random.default_rng(3)
P, Q = rng.standard_normal(6), rng.standard_normal(3)
X = np.sort(rng.standard_normal(8))
Y = rng.standard_normal((8, 2))
AT = rng.uniform(X[0], X[-1], 11)


@pytest.fixture(autouse=True)
def reference():
    """Compositions need no compiler to be right."""
    before = nm.default_device()
    nm.set_default_device("reference")
    yield
    nm.set_default_device(before)


def close(found, want, rtol=1e-9):
    np.testing.assert_allclose(found.numpy(), want, rtol=rtol, atol=1e-12)


def test_functions_of_coefficients():
    p, q = nm.asarray(P), nm.asarray(Q)
    close(nm.polyval(p, nm.asarray(X)), np.polyval(P, X))
    for name in ("polyadd", "polysub", "polymul"):
        close(getattr(nm, name)(p, q), getattr(np, name)(P, Q))
    for found, want in zip(nm.polydiv(p, q), np.polydiv(P, Q), strict=True):
        close(found, want)
    close(nm.polyder(p, 2), np.polyder(P, 2))
    close(nm.polyint(p, 2, [1.0, 2.0]), np.polyint(P, 2, [1.0, 2.0]))
    close(nm.polyfit(nm.asarray(X), nm.asarray(Y), 3), np.polyfit(X, Y, 3), 1e-7)
    close(nm.polyfit(nm.asarray(X), nm.asarray(Y[:, 0]), 2, w=nm.asarray(AT[:8])),
          np.polyfit(X, Y[:, 0], 2, w=AT[:8]), 1e-7)  # fmt: skip
    close(nm.poly(q), np.poly(Q))
    found = np.sort_complex(nm.roots(p).numpy())
    np.testing.assert_allclose(found, np.sort_complex(np.roots(P)), rtol=1e-9)
    slope = nm.grad(lambda c: nm.sum(nm.polyval(c, nm.asarray(X))))(p)
    close(slope, np.vander(X, 6).sum(0))


@pytest.mark.parametrize(
    "kind", ["Polynomial", "Chebyshev", "Legendre", "Hermite", "HermiteE", "Laguerre"]
)
def test_series(kind):
    ours, theirs = getattr(nm.polynomial, kind), getattr(np.polynomial, kind)
    domain = (-2.0, 3.0)
    s, t = ours(nm.asarray(P), domain), ours(nm.asarray(Q), domain)
    a, b = theirs(P, domain), theirs(Q, domain)
    close(s(nm.asarray(X)), a(X))
    close((s + t)(nm.asarray(X)), (a + b)(X))
    close((s - t).coef, (a - b).coef)
    close((s * t)(nm.asarray(X)), (a * b)(X), 1e-8)
    close(s.deriv(2)(nm.asarray(X)), a.deriv(2)(X), 1e-8)
    whole = s.integ()(nm.asarray(X)) - s.integ()(nm.asarray(X[:1]))
    close(whole, a.integ()(X) - a.integ()(X[:1]), 1e-8)
    roots = np.sort_complex(s.roots().numpy())
    np.testing.assert_allclose(roots, np.sort_complex(a.roots().astype(complex)), rtol=1e-6)
    found = ours.fit(nm.asarray(X), nm.asarray(Y[:, 0]), 3)
    close(found(nm.asarray(AT)), theirs.fit(X, Y[:, 0], 3)(AT), 1e-7)
    power = s.convert(nm.polynomial.Polynomial)
    close(power(nm.asarray(X)), a(X), 1e-8)


@pytest.mark.parametrize("ends", ["not-a-knot", "natural", "clamped"])
def test_cubic_splines(ends):
    ours = nm.polynomial.CubicSpline(nm.asarray(X), nm.asarray(Y), ends)
    theirs = si.CubicSpline(X, Y, bc_type=ends)
    close(ours(nm.asarray(AT)), theirs(AT), 1e-8)
    close(ours(nm.asarray(AT), 1), theirs(AT, 1), 1e-7)
    close(ours.integrate(-0.5, 0.7), theirs.integrate(-0.5, 0.7), 1e-8)


def test_monotone_splines():
    ours = nm.polynomial.PchipInterpolator(nm.asarray(X), nm.asarray(Y))
    close(ours(nm.asarray(AT)), si.PchipInterpolator(X, Y)(AT), 1e-9)
    two = nm.polynomial.PchipInterpolator(nm.asarray(X[:2]), nm.asarray(Y[:2]))
    close(two(nm.asarray(X[:2])), Y[:2])


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_grids(method):
    axes = [np.sort(rng.standard_normal(n)) for n in (4, 5, 3)]
    values = rng.standard_normal((4, 5, 3, 2))
    points = rng.standard_normal((6, 2, 3))
    want = si.RegularGridInterpolator(axes, values, method, bounds_error=False, fill_value=-7.0)
    ours = nm.polynomial.RegularGridInterpolator(
        [nm.asarray(a) for a in axes], nm.asarray(values), method, False, -7.0
    )
    close(ours(nm.asarray(points)), want(points))
    strict = nm.polynomial.RegularGridInterpolator(
        [nm.asarray(axes[0])], nm.asarray(values[:, 0, 0])
    )
    with pytest.raises(ValueError, match="outside"):
        strict(nm.asarray([[99.0]]))
