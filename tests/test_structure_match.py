"""Signatures by fast calls: one structure in ever new sizes is walked a few times only."""

from __future__ import annotations

import numpy as np
import pytest

import numus as nm
from numus.compiler.graph.signature import GraphSignature
from numus.compiler.plan import clear_plans
from numus.evaluation import structure_match
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]
WALKS = structure_match._WALKS_BEFORE


@pytest.fixture(autouse=True)
def walks(monkeypatch):
    """The graphs that were walked, by their numbers of nodes."""
    clear_plans()
    found = []
    walk = GraphSignature._walk

    def counted(self, *args):
        walk(self, *args)
        found.append(len(self.nodes))

    monkeypatch.setattr(GraphSignature, "_walk", counted)
    yield found
    clear_plans()


def tensor(*shape, seed=0):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    nm.eval(x)
    return x


def chain(m, x, weight, number=0.6):
    """A graph of some twenty nodes with views, sizes as parameters, and constants; of numus or
    NumPy."""
    for i in range(3):
        y = x @ weight + 0.7 * i
        x = m.concatenate([y[1:], x[:1]], axis=0) * number
        x = x - m.mean(x, axis=0, keepdims=True)
    return m.exp(m.reshape(x, (-1,)) * 0.13)


def check(found, x, weight, number=0.6):
    expected = chain(np, x.numpy(), weight.numpy(), np.float32(number))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-4, atol=1e-4)


def test_growing_sizes_are_matched(walks):
    weight = tensor(4, 4)
    for n in range(2, WALKS + 12):
        x = tensor(n, 4, seed=n)
        found = chain(nm, x, weight)
        nm.eval(found)
        check(found, x, weight)
    # means of 2, 4, 8 and 16 elements are another structure: products, not quotients
    assert len([n for n in walks if n >= structure_match._MIN_NODES]) <= WALKS + 4


def test_what_differs_is_walked(walks):
    """Constants, strides, dtypes, who is referenced, which operands are one."""
    weight = tensor(4, 4)
    for n in range(2, WALKS + 4):
        nm.eval(chain(nm, tensor(n, 4), weight))
    x = tensor(20, 4, seed=5)
    before = len(walks)
    for number in (0.25, -0.6, 1.0):
        check(chain(nm, x, weight, number), x, weight, number)
    assert len(walks) > before
    for shape in ((40, 4), (4, 30), (33, 8)):
        whole = tensor(*shape, seed=6)
        part = whole.T if shape == (4, 30) else whole[::2, :4]
        nm.eval(part)
        check(chain(nm, part, weight), part, weight)
    square = tensor(4, 4, seed=7)
    check(chain(nm, square, square), square, square)
    half = chain(nm, x.astype(nm.float16), weight.astype(nm.float16))
    assert half.dtype is nm.float16
    np.testing.assert_allclose(half.numpy(), chain(np, x.numpy(), weight.numpy()), atol=0.1)


@pytest.mark.parametrize("kept", [False, True])
def test_referenced_intermediates_are_kept(kept):
    weight = tensor(4, 4)
    for n in range(2, 2 * WALKS + 4):
        x = tensor(n, 4, seed=n)
        y = nm.exp(x * 0.1)
        z = chain(nm, y, weight)
        if n % 2 == kept or n == WALKS:  # the one that is matched, or another
            nm.eval(z)
            assert y._node.view is not None
            np.testing.assert_allclose(y.numpy(), np.exp(x.numpy() * 0.1), rtol=1e-5)
        else:
            expected = nm.asarray(np.exp(x.numpy() * np.float32(0.1)))
            del y
            nm.eval(z)
            check(z, expected, weight)


def test_gradients_of_growing_sizes():
    weight = tensor(4, 4)
    weight.requires_grad_()
    for n in range(2, WALKS + 8):
        x = tensor(n, 4, seed=n)
        weight.grad = None
        chain(nm, x, weight).sum().backward()
        nm.eval(weight.grad)
        direct = nm.grad(lambda w, x=x: chain(nm, x, w).sum())(weight.detach())
        np.testing.assert_allclose(weight.grad.numpy(), direct.numpy(), rtol=1e-3, atol=1e-3)


def test_several_values_at_once():
    weight = tensor(4, 4)
    for n in range(2, WALKS + 8):
        x = tensor(n, 4, seed=n)
        first = chain(nm, x, weight)
        second = nm.sum(first * first)
        nm.eval(first, second)
        check(first, x, weight)
        np.testing.assert_allclose(second.numpy(), (first.numpy() ** 2).sum(), rtol=1e-4)


def test_a_part_that_is_evaluated_meanwhile():
    weight = tensor(4, 4)
    for n in range(2, WALKS + 8):
        x = tensor(n, 4, seed=n)
        y = nm.exp(x * 0.1)
        z = chain(nm, y, weight)
        if n % 3 == 0:
            nm.eval(y)
        check(z, nm.asarray(y.numpy()), weight)
