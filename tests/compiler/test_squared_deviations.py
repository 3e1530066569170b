"""Sums of squared deviations that share a kernel with other reductions."""

import numpy as np

import numus as nm
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, reduce_sum
from numus.primitives.reduce import reduce_sqdev
from numus.primitives.views import reshape


def node(array):
    return nm.asarray(array, device="cpu")._node


def test_two_in_one_kernel():
    z = np.array([[0, 1], [1, 1]]) + 1j * np.array([[1, 0], [1, 1]])
    n = node(z)
    both = ew.add(reduce_sqdev(ew.real(n), (0,)), reduce_sqdev(ew.imag(n), (0,)))
    np.testing.assert_allclose(nm.Tensor(both).numpy(), z.var(0) * 2, rtol=1e-12)


def test_with_a_sum_that_comes_later():
    x = np.random.default_rng(0).standard_normal((5, 40))
    n = node(x)
    squares = broadcast(reshape(reduce_sqdev(n, (1,)), (5, 1)), x.shape)
    total = broadcast(reshape(reduce_sum(n, (1,)), (5, 1)), x.shape)
    scaled = ew.add(ew.sub(squares, n), total)
    expected = x.var(1, keepdims=True) * 40 - x + x.sum(1, keepdims=True)
    np.testing.assert_allclose(nm.Tensor(scaled).numpy(), expected, rtol=1e-12)


def test_long_float32_sums_are_accurate_along_rows_and_columns():
    a = (np.random.default_rng(0).standard_normal((300_000, 3)) + 1e4).astype(np.float32)
    want = a.astype(np.float64).mean(0)
    np.testing.assert_allclose(nm.asarray(a).mean(axis=0).numpy(), want, rtol=2e-7)
    np.testing.assert_allclose(nm.asarray(a.T.copy()).mean(axis=1).numpy(), want, rtol=2e-7)
