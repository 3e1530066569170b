"""Initial value problems, against SciPy's solutions and closed forms."""

import numpy as np
import pytest

import numus as nm
from numus import integrate
from numus.errors import ShapeError, TracingError

EXPLICIT = ["RK23", "RK45", "DOP853"]


def f64(x):
    return nm.asarray(np.asarray(x, float))


def predators(t, z):
    return nm.stack([1.5 * z[0] - z[0] * z[1], -3 * z[1] + z[0] * z[1]])


# of SciPy: the solver's steps and evaluations, and the last state
STEPS = {"RK23": (171, 593), "RK45": (57, 470), "DOP853": (36, None)}
LAST = {
    "RK23": [0.6221306849, 0.0832843921],
    "RK45": [0.5820213745, 0.0916541180],
    "DOP853": [0.7128160762, 0.0754933715],
}


@pytest.mark.parametrize("method", EXPLICIT)
def test_own_steps_as_scipy(method):
    found = integrate.solve_ivp(predators, (0, 15), f64([10, 5]), method, dense_output=True)
    steps, nfev = STEPS[method]
    assert found.t.shape == (steps,)
    assert found.y.shape == (2, steps)
    assert nfev is None or found.nfev.item() == nfev
    np.testing.assert_allclose(found.y[:, -1], LAST[method], rtol=1e-5)
    assert found.success.item()
    assert found.status.item() == 0
    assert "reached" in found.message
    np.testing.assert_allclose(found.sol(found.t), found.y, rtol=1e-9)
    assert found.sol(3.3).shape == (2,)


@pytest.mark.parametrize("method", EXPLICIT)
def test_errors_follow_the_tolerance(method):
    def oscillate(t, y):
        return nm.stack([y[1], -y[0]])

    t = np.linspace(0, 6, 7)
    exact = np.stack([np.cos(t), -np.sin(t)])
    for tolerance in (1e-4, 1e-7):
        found = integrate.solve_ivp(
            oscillate, (0, 6), f64([1, 0]), method, t_eval=f64(t), rtol=tolerance, atol=tolerance
        )
        assert np.abs(found.y.numpy() - exact).max() < 30 * tolerance
    back = integrate.solve_ivp(
        oscillate, (6, 0), f64(exact[:, -1]), method, t_eval=f64(t[::-1]), rtol=1e-7, atol=1e-7
    )
    assert np.abs(back.y.numpy() - exact[:, ::-1]).max() < 3e-6


def test_complex_states_and_matrices():
    y = integrate.odeint(lambda y, t: 1j * y, nm.asarray(np.ones((2, 1)) + 0j), f64([0, 1.0]))
    np.testing.assert_allclose(y[1], np.full((2, 1), np.exp(1j)), rtol=1e-6)


def test_events():
    def hit(t, y):
        return y[0]

    hit.terminal, hit.direction = True, -1
    fall = lambda t, y: [y[1], 0 * y[0] - 9.81]
    found = integrate.solve_ivp(fall, (0, 100), f64([0, 10]), events=[hit, lambda t, y: y[1]])
    assert found.status.item() == 1
    assert "event" in found.message
    np.testing.assert_allclose(found.t_events[0], [20 / 9.81], rtol=1e-9)
    np.testing.assert_allclose(found.t_events[1], [10 / 9.81], rtol=1e-9)
    np.testing.assert_allclose(found.y_events[0], [[0, -10]], atol=1e-9)
    assert found.t[-1].item() == found.t_events[0][0].item()


def decay(w, y0, ts):
    y = integrate.odeint(lambda y, t: w @ y + nm.sin(t) * w[0], y0, ts, rtol=1e-9, atol=1e-10)
    return nm.sum(y**2)


def test_adjoint_gradients():
    w, y0, ts = f64([[0.0, 1.0], [-1.0, -0.1]]), f64([1, 0]), f64([0, 0.5, 2])
    found = nm.grad(decay, argnums=(0, 1, 2))(w, y0, ts)
    args, rng = (w, y0, ts), np.random.default_rng(0)
    for k in range(3):
        d = f64(rng.normal(size=args[k].shape))
        up, down = list(args), list(args)
        up[k], down[k] = args[k] + 1e-5 * d, args[k] - 1e-5 * d
        slope = (decay(*up) - decay(*down)).item() / 2e-5
        assert abs(nm.sum(found[k] * d).item() - slope) < 1e-6 * max(1, abs(slope))
    tangent = nm.jvp(lambda y: decay(w, y, ts), (y0,), (y0,))[1]
    assert abs(tangent.item() - nm.sum(found[1] * y0).item()) < 1e-7


def test_gradients_of_steps_that_the_solver_chose():
    y0 = f64([1.0])
    f = lambda y0: integrate.solve_ivp(lambda t, y: -y, (0, 2), y0, rtol=1e-8, atol=1e-9).y[0, -1]
    assert abs(nm.grad(f)(y0)[0].item() - np.exp(-2)) < 1e-6


def test_batches_have_their_own_steps():
    rates, t = np.array([0.1, 1.0, 30.0]), f64([0, 0.5, 2])
    one = lambda rate: integrate.odeint(lambda y, t: -rate * y, f64([1.0]), t, rtol=1e-7, atol=1e-9)
    found = nm.jit(nm.vmap(one))(f64(rates))
    np.testing.assert_allclose(found[:, :, 0], np.exp(-np.outer(rates, t.numpy())), atol=1e-6)
    slopes = nm.vmap(nm.grad(lambda r: one(r)[2, 0]))(f64(rates[:2]))
    np.testing.assert_allclose(slopes, -2 * np.exp(-2 * rates[:2]), atol=1e-6)
    result = nm.jit(
        lambda r: integrate.solve_ivp(lambda t, y: -r * y, (0, 2), f64([1.0]), t_eval=t)
    )(f64(2.0))
    assert result.success.item()
    assert result.y.shape == (1, 3)


def test_what_is_not_reached():
    found = integrate.solve_ivp(
        lambda t, y: y * y, (0, 2), f64([1.0]), t_eval=f64([0.5, 0.9, 1.5]), max_steps=500
    )
    assert found.status.item() == -1
    assert not found.success.item()
    assert found.t.tolist() == [0.5, 0.9]
    assert "not reached" in found.message
    y = integrate.odeint(lambda y, t: y * y, f64([1.0]), f64([0, 0.5, 2]), mxstep=300)
    assert np.isnan(y[2, 0].item())
    assert abs(y[1, 0].item() - 2) < 1e-6


def test_refusals():
    f = lambda t, y: -y
    with pytest.raises(ValueError, match="no method"):
        integrate.solve_ivp(f, (0, 1), [1.0], "Euler")
    with pytest.raises(ShapeError, match="y0 must be a vector"):
        integrate.solve_ivp(f, (0, 1), 1.0)
    with pytest.raises(ShapeError, match="the function gives shape"):
        integrate.solve_ivp(lambda t, y: y[:1], (0, 1), [1.0, 2.0])
    with pytest.raises(ValueError, match="within t_span"):
        integrate.solve_ivp(f, (0, 1), [1.0], t_eval=[0.5, 2.0])
    with pytest.raises(ValueError, match="finite"):
        integrate.solve_ivp(f, (0, 1), [nm.nan])
    with pytest.raises(ValueError, match="ascend or descend"):
        integrate.odeint(lambda y, t: -y, [1.0], [0.0, 2.0, 1.0])
    with pytest.raises(TracingError, match="give t_eval"):
        nm.jit(lambda y: integrate.solve_ivp(f, (0, 1), y).y)(f64([1.0]))
