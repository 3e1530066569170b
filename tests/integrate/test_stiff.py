"""Stiff equations by Radau and BDF, against solutions of tight tolerances (SciPy's Radau)."""

import numpy as np
import pytest

import numus as nm
from numus import integrate

METHODS = ["Radau", "BDF"]


def f64(x):
    return nm.asarray(np.asarray(x, float))


def robertson(t, y):
    a, b, c = 0.04 * y[0], 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
    return nm.stack([b - a, a - b - c, c])


def van_der_pol(t, y):
    return nm.stack([y[1], 1000 * (1 - y[0] ** 2) * y[1] - y[0]])


# at 0.4, 40, 4000 and 1e5, by SciPy's Radau with rtol 1e-11
ROBERTSON = [
    [0.985172114, 3.38639538e-05, 0.0147940222],
    [0.715827069, 9.18553476e-06, 0.284163746],
    [0.183202258, 8.94237125e-07, 0.816796848],
    [0.0178659211, 7.27475147e-08, 0.982134006],
]
VAN_DER_POL = [1.59676895, 1.70616773]


@pytest.mark.parametrize("method", METHODS)
def test_robertson(method):
    found = integrate.solve_ivp(
        robertson, (0, 1e5), f64([1, 0, 0]), method, t_eval=f64([0.4, 40, 4000, 1e5]),
        rtol=1e-6, atol=1e-10,
    )  # fmt: skip
    assert found.success.item()
    np.testing.assert_allclose(found.y.numpy().T, ROBERTSON, rtol=2e-5, atol=1e-9)
    np.testing.assert_allclose(nm.sum(found.y, axis=0), 1, atol=1e-6)
    assert found.nfev.item() < 3000
    assert found.njev.item() > 0


@pytest.mark.parametrize("method", METHODS)
def test_van_der_pol(method):
    found = integrate.solve_ivp(
        van_der_pol, (0, 2000), f64([2, 0]), method, t_eval=f64([500, 2000]), rtol=1e-6, atol=1e-8
    )
    np.testing.assert_allclose(found.y[0], VAN_DER_POL, rtol=2e-3)
    assert found.nfev.item() < 12000


@pytest.mark.slow
def test_own_steps_and_given_jacobians():
    jac = lambda t, y: nm.asarray([[-1000.0, 0.0], [0.0, -0.5]], dtype=nm.float64)
    f = lambda t, y: nm.stack([-1000 * (y[0] - nm.cos(t)), -0.5 * y[1]])
    for method in METHODS:
        found = integrate.solve_ivp(f, (0, 2), f64([0, 1]), method, jac=jac, dense_output=True)
        assert found.t.shape[0] < 80
        np.testing.assert_allclose(found.y[1, -1], np.exp(-1), rtol=1e-2)
        np.testing.assert_allclose(found.sol(1.0)[0], np.cos(1), atol=2e-3)
        matrix = integrate.solve_ivp(f, (0, 2), f64([0, 1]), method, jac=[[-1000, 0], [0, -0.5]])
        np.testing.assert_allclose(matrix.y[1, -1], found.y[1, -1], rtol=1e-9)


def last(rate):
    f = lambda y, t: -rate * (y - nm.cos(t))
    y = integrate.odeint(f, f64([0.0]), f64([0, 1.0]), rtol=1e-7, atol=1e-9, method="BDF")
    return y[1, 0]


def test_batches():
    rates = f64([3.0, 300.0])
    k, s, c = rates.numpy(), np.sin(1), np.cos(1)
    wanted = (k * k * c + k * s - k * k * np.exp(-k)) / (1 + k * k)
    np.testing.assert_allclose(nm.vmap(last)(rates), wanted, atol=2e-6)


@pytest.mark.slow
def test_gradients():
    rate = f64(3.0)
    slope = (last(rate + 1e-3) - last(rate - 1e-3)).item() / 2e-3
    assert abs(nm.grad(last)(rate).item() - slope) < 1e-3


def test_complex_states_are_refused():
    with pytest.raises(TypeError, match="real states"):
        integrate.solve_ivp(lambda t, y: 1j * y, (0, 1), nm.asarray([1 + 0j]), "BDF")
