"""On CPUs, lanes across rows prefetch the lines that they store to, where these are far apart."""

import numpy as np
import pytest

import numus as nm
from numus import ir
from numus.compiler import hooks


def prefetches(function):
    """Prefetches of the kernels that evaluating a result takes, and the result."""
    found = []

    def watch(device, plan, leaves, constants):
        for step in plan.steps:
            found.extend(s for s in ir.statements(step.kernel.body) if isinstance(s, ir.Prefetch))

    hooks.before_run.append(watch)
    try:
        y = function().numpy()
    finally:
        hooks.before_run.remove(watch)
    return found, y


@pytest.mark.parametrize(
    ("shape", "far"), [((103, 777), True), ((333, 518), True), ((1003, 70), False)]
)
def test_softmax_of_columns(shape, far):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    found, y = prefetches(lambda: nm.softmax(nm.asarray(x, device="cpu"), axis=0))
    assert all(s.write for s in found)
    assert bool(found) == far
    e = np.exp(x.astype(np.float64) - x.max(0))
    np.testing.assert_allclose(y, e / e.sum(0), rtol=1e-5)
