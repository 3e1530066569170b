"""Derivatives of products and running reductions where a naive rule over- or underflows."""

import derivatives
import numpy as np
import pytest

import numus as nm
from numus.primitives.reduce import reduce_prod
from numus.primitives.scan import scan


def running(op, reverse=False):
    return lambda x: nm.Tensor(scan(op, x._node, x.ndim - 1, reverse))


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min", "logsumexp"])
def test_running_reductions(op, reverse):
    x = np.random.default_rng(1).standard_normal((3, 6))
    derivatives.check(running(op, reverse), x)


@pytest.mark.parametrize("zeros", [[], [0], [5], [2, 4]])
def test_running_product_with_zeros(zeros):
    x = np.linspace(0.5, 2, 6)
    x[zeros] = 0
    derivatives.check(running("prod"), x)


def test_running_product_of_complex():
    rng = np.random.default_rng(2)
    derivatives.check(running("prod"), rng.standard_normal(5) + 1j * rng.standard_normal(5))


def test_logsumexp_far_apart():
    """dy_i / dx_j = exp(x_j - y_i), though neither power is finite alone."""
    x = np.array([-2000.0, 0.0, 2000.0, 1999.0])
    (g,) = derivatives.reverse(running("logsumexp"), [x], np.ones(4))
    y = np.logaddexp.accumulate(x)
    expected = np.tril(np.exp(np.minimum(x - y[:, None], 0))).sum(0)
    np.testing.assert_allclose(g, expected)
    t = np.array([1.0, -1.0, 2.0, 3.0])
    forward = derivatives.forward(running("logsumexp"), [x], [t])
    np.testing.assert_allclose(forward, np.tril(np.exp(np.minimum(x - y[:, None], 0))) @ t)


def test_logsumexp_after_minus_infinity():
    x = np.array([-np.inf, -np.inf, 1.0, 2.0])
    (g,) = derivatives.reverse(running("logsumexp"), [x], np.array([0.0, 1.0, 1.0, 1.0]))
    weight = np.exp(1 - np.logaddexp(1, 2))
    np.testing.assert_allclose(g, [0, 0, 1 + weight, 1 - weight])


def test_product_of_tiny_factors():
    """The product of the others is kept to its last bit, however small."""
    x = np.array([1e-12, 2e-12, 3.0])
    (g,) = derivatives.reverse(lambda t: nm.Tensor(reduce_prod(t._node, (0,))), [x], np.ones(()))
    np.testing.assert_allclose(g, [6e-12, 3e-12, 2e-24], rtol=1e-14)
