"""Sums over axes that cannot be collapsed are as accurate as plain ones."""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm

pytestmark = pytest.mark.on_cpu("blocks of SIMD sums")


def ulps(found, exact):
    return float((np.abs(found - exact) / np.spacing(exact.astype(np.float32))).max())


def broadcast_last(x):
    """The largest of each pair is broadcast along the pair."""
    return nm.sum(nm.where(x > nm.max(x, axis=2, keepdims=True) - 1, x, 0), axis=(1, 2))


def stored_and_broadcast(x):
    y = nm.where(x > nm.max(x, axis=2, keepdims=True) - 1, x, 0)
    return nm.sum(y, axis=(1, 2)), y


CASES = {
    "pairs": (broadcast_last, (4, 2048, 2), (1, 2)),
    "short rows": (broadcast_last, (3, 1500, 5), (1, 2)),
    "pairs, stored": (stored_and_broadcast, (4, 2048, 2), (1, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_accuracy(name):
    function, shape, axes = CASES[name]
    f = nm.jit(function)
    for seed in range(8):
        x = np.random.default_rng(seed).uniform(0, 1, shape).astype(np.float32)
        found = f(nm.asarray(x))
        if isinstance(found, tuple):
            found, y = found
            assert np.array_equal(y.numpy(), x)
        assert ulps(found.numpy(), x.sum(axes, dtype=np.float64)) <= 2.5


@pytest.mark.parametrize("extents", [(300, 1), (257, 2), (2, 300, 3), (129, 3, 2), (5, 7, 64)])
def test_all_terms_are_added(extents):
    """Blocks that do not divide their loops; whole numbers are exact."""
    x = np.random.default_rng(3).integers(-9, 9, (3, *extents)).astype(np.float32)
    axes = tuple(range(1, x.ndim))

    def f(x):
        y = nm.where(x > nm.max(x, axis=-1, keepdims=True) - 100, x, 0)
        return nm.sum(y, axis=axes), y, nm.sum(y, axis=(0, 1))

    total, y, other = nm.jit(f)(nm.asarray(x))
    assert np.array_equal(total.numpy(), x.sum(axes))
    assert np.array_equal(y.numpy(), x)
    assert np.array_equal(other.numpy(), x.sum((0, 1)))
