"""Derivatives where a naive rule divides by zero, overflows, or has to choose a side."""

import numpy as np
import pytest

import numus as nm

inf, nan = np.inf, np.nan


def array(values, dtype=nm.float64):
    return nm.asarray(values, dtype=dtype)


def gradients(f, *args):
    args = tuple(map(array, args))
    return [g.item() for g in nm.grad(f, argnums=tuple(range(len(args))))(*args)]


def second(f, *args):
    total = lambda *xs: sum(nm.grad(f, argnums=tuple(range(len(xs))))(*xs))
    return gradients(total, *args)


FIRST = [
    ("sqrt", nm.sqrt, (0.0,), [inf]),
    ("log", nm.log, (0.0,), [inf]),
    ("abs", nm.abs, (0.0,), [0]),
    ("sign", nm.sign, (0.0,), [0]),
    ("asin", nm.asin, (1.0,), [inf]),
    ("tanh", nm.tanh, (400.0,), [0]),
    ("exp", nm.exp, (-1000.0,), [0]),
    ("expm1", nm.expm1, (-1000.0,), [0]),
    ("sigmoid", nm.sigmoid, (-800.0,), [0]),
    ("hypot", nm.hypot, (0.0, 0.0), [0, 0]),
    ("hypot-large", nm.hypot, (3e300, 4e300), [0.6, 0.8]),
    ("atan2", nm.atan2, (0.0, 0.0), [0, 0]),
    ("atan2-large", nm.atan2, (3e300, 4e300), [4 / 25e300, -3 / 25e300]),
    ("maximum-tie", nm.maximum, (1.0, 1.0), [0.5, 0.5]),
    ("minimum-tie", nm.minimum, (1.0, 1.0), [0.5, 0.5]),
    ("pow-0-0", nm.pow, (0.0, 0.0), [0, 0]),
    ("pow-0-1", nm.pow, (0.0, 1.0), [1, 0]),
    ("pow-0-2", nm.pow, (0.0, 2.0), [0, 0]),
    ("pow-0-half", nm.pow, (0.0, 0.5), [inf, 0]),
    ("pow-negative", nm.pow, (-2.0, 3.0), [12, nan]),
    ("pow-negative-0", nm.pow, (-2.0, 0.0), [0, nan]),
    ("square-0", lambda x: x**2, (0.0,), [0]),
    ("cube-negative", lambda x: x**3, (-2.0,), [12]),
    ("power-0", lambda x: x**0, (0.0,), [0]),
    ("power-1", lambda x: x**1, (0.0,), [1]),
    ("power-inverse", lambda x: x**-1, (-2.0,), [-0.25]),
    ("remainder", nm.remainder, (5.5, -2.0), [1, 3]),
    ("remainder-negative", nm.remainder, (-5.5, 2.0), [1, 3]),
    ("copysign", nm.copysign, (2.0, -1.0), [-1, 0]),
    ("divide", nm.divide, (1.0, 0.0), [inf, -inf]),
]


@pytest.mark.parametrize(
    ("f", "args", "expected"), [c[1:] for c in FIRST], ids=[c[0] for c in FIRST]
)
def test_first_derivatives(f, args, expected):
    np.testing.assert_allclose(gradients(f, *args), expected, rtol=1e-12)


SECOND = [
    ("square", lambda x: x**2, (0.0,), [2]),
    ("cube", lambda x: x**3, (0.0,), [0]),
    ("power-1", lambda x: x**1, (0.0,), [0]),
    ("power-tensor", lambda x: nm.pow(x, array(2.0)), (0.0,), [2]),
    ("product", lambda x, y: x * y, (0.0, 0.0), [1, 1]),
]


@pytest.mark.parametrize(
    ("f", "args", "expected"), [c[1:] for c in SECOND], ids=[c[0] for c in SECOND]
)
def test_second_derivatives(f, args, expected):
    np.testing.assert_allclose(second(f, *args), expected, rtol=1e-12)


def test_where_does_not_look_at_the_other_side():
    x = array([1.0, -1.0])
    f = lambda x, y: nm.where(x > 0, x, y).sum()
    gx, gy = nm.grad(f, argnums=(0, 1))(x, array([nan, 2.0]))
    assert gx.tolist() == [1.0, 0.0]
    assert gy.tolist() == [0.0, 1.0]
    tangents = (array([1.0, nan]), array([nan, 1.0]))
    assert nm.jvp(f, (x, x), tangents)[1].item() == 2.0


def test_complex_length_at_zero():
    z = nm.asarray([0j, 3 + 4j], dtype=nm.complex128)
    g = nm.grad(lambda z: nm.abs(z).sum())(z)
    np.testing.assert_allclose(g.numpy(), [0, 0.6 + 0.8j])
    h = nm.grad(lambda z: (nm.abs(z) ** 2).sum())(z)
    np.testing.assert_allclose(h.numpy(), 2 * z.numpy())


def test_largest_elements_share():
    x = array([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    g = nm.grad(lambda x: nm.max(x, axis=1).sum())(x)
    np.testing.assert_allclose(g.numpy(), [[0, 0.5, 0.5], [1 / 3] * 3])


@pytest.mark.parametrize("zeros", [[], [1], [0, 2], [0, 1, 2, 3]])
def test_products_with_zeros(zeros):
    x = np.array([2.0, 3.0, 5.0, 7.0])
    x[zeros] = 0
    others = np.array([np.prod(np.delete(x, i)) for i in range(4)])
    np.testing.assert_allclose(nm.grad(nm.prod)(array(x)).numpy(), others)
    pairs = np.array(
        [[0 if i == j else np.prod(np.delete(x, [i, j])) for j in range(4)] for i in range(4)]
    )
    np.testing.assert_allclose(nm.hessian(nm.prod)(array(x)).numpy(), pairs)
    running = lambda x: nm.cumulative_prod(x)[-1]
    np.testing.assert_allclose(nm.grad(running)(array(x)).numpy(), others)
    np.testing.assert_allclose(nm.hessian(running)(array(x)).numpy(), pairs)


def test_running_log_sum_far_apart_twice():
    """Second derivatives too, where cotangents vanish and neither power is finite alone."""
    x = array([0.0, -3.0, 2000.0, 1999.0])
    f = lambda x: (
        0.5 * (nm.logcumsumexp(x, axis=0) - nm.logcumsumexp(x, axis=0).detach()) ** 2
    ).sum()
    jac = nm.jacrev(lambda x: nm.logcumsumexp(x, axis=0))(x).numpy()
    np.testing.assert_allclose(nm.hessian(f)(x).numpy(), jac.T @ jac, atol=1e-12)
    assert np.isfinite(jac).all()


@pytest.mark.parametrize("order", [2, 3, 4])
def test_gamma_to_every_order(order):
    special = pytest.importorskip("scipy.special")
    x = np.array([-3.3, -0.7, 0.01, 0.3, 0.5, 1.0, 2.5, 9.0, 30.0, 1e4])
    f = nm.digamma
    for _ in range(order):
        f = (lambda g: lambda x: nm.grad(lambda x: g(x).sum())(x))(f)
    expected = special.polygamma(order, np.abs(x))
    ours = f(array(np.abs(x))).numpy()
    np.testing.assert_allclose(ours, expected, rtol=1e-9)
    if order == 2:  # by reflection; scipy's polygamma is for positive x
        mpmath = pytest.importorskip("mpmath")
        exact = [float(mpmath.polygamma(2, v)) for v in x]
        np.testing.assert_allclose(f(array(x)).numpy(), exact, rtol=1e-11)
