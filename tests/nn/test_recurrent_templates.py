"""Recurrent layers, whose graphs are instantiated from templates from the third call on."""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.functions.template_cache import clear_templates

CASES = {
    "one layer": {},
    "both directions": {"num_layers": 2, "bidirectional": True},
    "dropout": {"num_layers": 2, "dropout": 0.5, "batch_first": True},
    "no bias": {"bias": False},
}


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("case", CASES)
def test_calls_agree(kind, case):
    rng = np.random.default_rng(0)
    x = nm.asarray(rng.standard_normal((3, 5, 6)).astype(np.float32))
    layer = kind(6, 7, **CASES[case])

    def values(state):
        """Outputs, last states and a gradient; `state`: given zeros, rather than none."""
        nm.random.seed(0)
        batch = 3 if layer.batch_first else 5
        count = layer.num_layers * (1 + layer.bidirectional)
        zeros = nm.zeros((count, batch, 7))
        given = ((zeros, zeros) if kind is nn.LSTM else zeros) if state else None
        layer.weight_hh_l0.grad = None
        out, last = layer(x, given)
        out.sum().backward()
        return [y.numpy() for y in (out, *nm.tree.leaves(last), layer.weight_hh_l0.grad)]

    clear_templates()
    want = values(False)
    for state in (False, False, False, True, True, True):
        for y, z in zip(values(state), want, strict=True):
            np.testing.assert_allclose(y, z, rtol=1e-6, atol=1e-6)
    layer.eval()
    once, again = layer(x)[0].numpy(), layer(x)[0].numpy()
    np.testing.assert_array_equal(once, again)
