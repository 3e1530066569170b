"""Structurally equal fusion groups are lowered once."""

import numpy as np
import pytest

import numus as nm
from numus import nn
from numus.compiler.lower import templates
from numus.compiler.plan import clear_plans


@pytest.fixture
def lowered(monkeypatch):
    """The groups that were lowered: cache misses."""
    found = []
    lower = templates.lower_group

    def watched(group, layouts, target):
        found.append(group)
        return lower(group, layouts, target)

    monkeypatch.setattr(templates, "lower_group", watched)
    clear_plans()
    return found


def test_layers_are_lowered_once(lowered):
    def run(count):
        clear_plans()
        lowered.clear()
        nm.random.seed(0)
        layers = [nn.Linear(40, 40) for _ in range(count)]
        norm = nn.LayerNorm(40)
        x = y = nm.random.normal((30, 40))
        nm.eval(x, *[p for layer in layers for p in layer.parameters()])
        lowered.clear()
        for layer in layers:
            y = norm(nm.tanh(layer(y)) + y)
        got = y.numpy()
        y = x.numpy()
        for layer in layers:
            w, b = layer.weight.numpy(), layer.bias.numpy()
            z = np.tanh(y @ w.T + b) + y
            y = (z - z.mean(-1, keepdims=True)) / np.sqrt(z.var(-1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(got, y, atol=1e-4)
        return len(lowered)

    assert run(8) == run(3)


def test_groups_see_what_they_read(lowered, monkeypatch):
    """A model has thousands of other values."""
    seen = []
    lower = templates.lower_group

    def watched(group, layouts, target):
        seen.append((group, layouts))
        return lower(group, layouts, target)

    monkeypatch.setattr(templates, "lower_group", watched)
    xs = [nm.ones((300 + i, 40)) for i in range(4)]
    nm.eval(*xs)
    seen.clear()
    nm.eval([nm.cumsum(nm.tanh(x), axis=1) for x in xs])
    assert seen
    for group, layouts in seen:
        assert {v.shape[0] for v in layouts} == {group.members[0].shape[0]}


def test_groups_keep_their_constants(lowered):
    x = nm.ones((3000,))
    parts = [nm.cumsum(x * (i + 2.5)) - (3.5 + i) for i in range(6)]
    nm.eval(*parts)
    for i, part in enumerate(parts):
        np.testing.assert_allclose(part[-1].numpy(), 3000 * (i + 2.5) - (3.5 + i), rtol=1e-6)
    assert len(lowered) < 12


def test_different_groups_are_lowered_separately(lowered):
    x = nm.asarray(np.arange(12.0, dtype=np.float32).reshape(3, 4))
    found = [nm.cumsum(x, axis=0), nm.cumsum(x, axis=1), nm.cumsum(x.T, axis=0), nm.cumprod(x, 1)]
    nm.eval(*found)
    a = x.numpy()
    wanted = [a.cumsum(0), a.cumsum(1), a.T.cumsum(0), a.cumprod(1)]
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(got.numpy(), want)


def test_partial_sums_are_not_shared(lowered):
    a = np.random.default_rng(0).standard_normal((5, 70001)).astype(np.float32)
    x = nm.asarray(a)
    rows = [x[i] for i in range(5)]
    nm.eval(*rows)
    sums = [nm.sum(nm.cumsum(r) * 0.5) for r in rows]
    nm.eval(*sums)
    for s, row in zip(sums, a, strict=True):
        np.testing.assert_allclose(
            s.numpy(), 0.5 * row.astype(np.float64).cumsum().sum(), rtol=1e-4
        )
