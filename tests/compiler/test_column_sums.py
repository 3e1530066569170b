"""Column sums with values of each line: those are materialised, not recomputed."""

from dataclasses import replace

import numpy as np
import pytest
import simt_machine

import numus as nm
from numus.runtime import devices


@pytest.fixture(scope="module")
def machine():
    target = replace(simt_machine.HOPPER, num_cores=4)
    devices.BACKENDS["lines"] = lambda index: simt_machine.Machine(target)
    return nm.device("lines").runtime


@pytest.mark.parametrize("shape", [(200, 96), (8, 25, 96)])
def test_gradients_of_weights_recompute_no_division(shape, machine):
    """The divisor of a layer norm is stored once a row, not computed for each column."""
    rng = np.random.default_rng(0)
    numbers = [rng.standard_normal(s).astype(np.float32) for s in (shape, shape[-1:], shape[-1:])]

    def loss(x, w, b):
        return (nm.layer_norm(x, w, b) ** 2).sum()

    def gradients(device):
        found = nm.grad(loss, argnums=(0, 1, 2))(*(nm.asarray(a, device=device) for a in numbers))
        nm.eval(*found)
        return [g.numpy() for g in found]

    machine.launched.clear()
    ours = gradients("lines")
    for got, want in zip(ours, gradients("cpu"), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)
    _, *down = (p.text for p in machine.launched)  # the first is along rows
    assert down
    assert not any("= div(" in text or "= sqrt(" in text for text in down)
