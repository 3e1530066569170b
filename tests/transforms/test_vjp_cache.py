"""The VJP cache: gradients of repeated tapes are the same graphs."""

from __future__ import annotations

import gc
import sys

import numpy as np
import pytest
from described import described

import numus as nm
from numus.runtime.pycall import vm
from numus.transforms import vjp_cache

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]


@pytest.fixture(autouse=True)
def _forget():
    vjp_cache.clear()


def tensor(*shape, seed=0):
    return nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype("float32"))


def known():
    """How many fast calls there are for tapes."""
    return sum(len(site.calls) for site in vjp_cache._cache.sites.values())


FUNCTIONS = {
    "arithmetic": lambda x, w: (x * 2 + w) / (w * w + 1) - x,
    "powers": lambda x, w: x**2 + nm.exp(w) ** 0.5,
    "layer norm": lambda x, w: nm.layer_norm(x, w[0], w[1]),
    "softmax": lambda x, w: nm.softmax(x * w, axis=-1),
    "gelu of a product": lambda x, w: nm.gelu(x @ w.T),
    "cross entropy": lambda x, w: nm.nn.functional.cross_entropy(x @ w.T, nm.asarray([0, 2, 1, 3])),
    "a maximum": lambda x, w: nm.max(nm.maximum(x, w), axis=1),
    "sums and views": lambda x, w: (x.T[::-1].sum(axis=1) * w[2]).reshape(2, 3),
    "slices": lambda x, w: nm.concat([x[:, :2], w[:, 2:]], axis=1) * x,
    "gathered": lambda x, w: x[nm.asarray([0, 0, 3])] * w[1:],
    "scanned": lambda x, w: nm.cumsum(x, axis=0) * w,
    "sorted": lambda x, w: nm.sort(x, axis=1) * w,
    "attention": lambda x, w: nm.scaled_dot_product_attention(x, w, x, is_causal=True),
    "convolution": lambda x, w: nm.conv1d(x[None], w.reshape(2, 4, 3), padding=1),
    "a matrix by itself": lambda x, w: x @ x.T + w @ w.T,
    "one of two": lambda x, w: nm.sin(x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_sixth_gradient_is_the_first(name):
    f = FUNCTIONS[name]
    x, w = tensor(4, 6), tensor(4, 6, seed=1)
    nm.eval(x, w)
    g = tensor(*f(x, w).shape, seed=2)
    nm.eval(g)
    graphs, values = [], []
    for _ in range(6):
        y, pull = nm.vjp(f, x, w)
        found = pull(g)
        graphs.append([described(t._node, (y._node, x._node, w._node, g._node)) for t in found])
        values.append([t.numpy() for t in found])
    for graph, value in zip(graphs, values, strict=True):
        assert graph == graphs[0]
        for a, b in zip(value, values[0], strict=True):  # a library looks at addresses, too
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert known() == 1


@pytest.mark.parametrize("name", FUNCTIONS)
def test_other_numbers_and_layouts(name):
    f = FUNCTIONS[name]
    for turn in range(5):
        x, w = tensor(4, 6, seed=turn), tensor(6, 4, seed=turn + 9).T
        x, w = (x * 1, w) if turn % 2 else (x, w * 1)
        y, pull = nm.vjp(f, x, w)
        g = nm.ones_like(y) if turn > 3 else tensor(*y.shape, seed=2)
        ours = [t.numpy() for t in pull(g)]
        vjp_cache.clear()
        walked = [t.numpy() for t in nm.vjp(f, x, w)[1](g)]
        for a, b in zip(ours, walked, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def step(model, x, scale):
    loss = (nm.gelu(model(x)) * scale).sum()
    loss.backward()
    return [p.grad.numpy() for p in model.parameters()]


def test_backward_of_a_model():
    model = nm.nn.Sequential(nm.nn.Linear(6, 5), nm.nn.LayerNorm(5), nm.nn.Linear(5, 3))
    x = tensor(4, 6)
    want = step(model, x, 1.0)
    for _ in range(5):
        model.zero_grad()
        for a, b in zip(step(model, x, 1.0), want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)
    assert known() == 1  # of parameters that are there: at first they are drawn
    for a, b in zip(step(model, x, 1.0), want, strict=True):  # gradients are added
        np.testing.assert_allclose(a, 2 * b, rtol=1e-5, atol=1e-6)
    model.zero_grad()
    for a, b in zip(step(model, x, -2.0), want, strict=True):  # another number on the tape
        np.testing.assert_allclose(a, -2 * b, rtol=1e-5, atol=1e-6)


def test_hooks_are_called_whenever_they_are_there():
    x = tensor(3)
    x.requires_grad = True
    seen = []

    def run(hook=None, on=None):
        x.grad = None
        y = nm.exp(x)
        handle = None
        if hook is not None:
            handle = (y if on == "inner" else x).register_hook(hook)
        (y * 2).sum().backward()
        if handle is not None:
            handle.remove()
        return x.grad.numpy()

    want = run()
    for _ in range(3):
        run()
    assert known() == 1
    for on in ("inner", "leaf"):
        got = run(lambda g: seen.append(on) or g * 10, on)  # noqa: B023
        np.testing.assert_allclose(got, 10 * want, rtol=1e-6)
    assert seen == ["inner", "leaf"]
    later = x.register_post_accumulate_grad_hook(lambda t: seen.append(t is x))
    np.testing.assert_allclose(run(), want, rtol=1e-6)
    later.remove()
    assert seen[-1] is True
    np.testing.assert_allclose(run(), want, rtol=1e-6)


def test_retained_gradients_of_intermediates():
    x = tensor(3)
    x.requires_grad = True
    for _ in range(4):
        y = x * 3
        y.retain_grad()
        (y * y).sum().backward()
        np.testing.assert_allclose(y.grad.numpy(), 6 * x.numpy(), rtol=1e-6)
        z = x * 3
        (z * z).sum().backward()
        assert z.grad is None


def test_gradients_of_gradients():
    def f(x):
        return (nm.sin(x) * x).sum()

    x = tensor(5)
    a = x.numpy()
    for _ in range(5):
        second = nm.grad(lambda x: nm.grad(f)(x).sum())(x)
        np.testing.assert_allclose(second.numpy(), 2 * np.cos(a) - a * np.sin(a), rtol=1e-4)
        first = nm.grad(f)(x)
        assert not first.requires_grad


def test_arguments_that_are_one():
    x, w = tensor(4), tensor(4, seed=1)
    f = nm.vjp
    for _ in range(4):
        for a, b in ((x, w), (x, x), (w, x)):
            da, db = f(lambda a, b: (a * b).sum(), a, b)[1](nm.asarray(1.0))
            np.testing.assert_array_equal(da.numpy(), b.numpy())
            np.testing.assert_array_equal(db.numpy(), a.numpy())


def test_one_leaf_instead_of_two():
    x, w = tensor(4), tensor(4, seed=1)
    x.requires_grad = w.requires_grad = True
    for a, b in ((x, w), (x, w), (x, w), (x, x), (x, w), (w, w)):
        x.grad = w.grad = None
        (a * b).sum().backward()
        want = 2 * a.numpy() if a is b else b.numpy()
        np.testing.assert_array_equal(a.grad.numpy(), want)


def test_rules_of_the_users_own_are_called():
    calls = []

    @nm.custom_vjp
    def double(x):
        return x * 2

    def forwards(x):
        return x * 2, None

    def backwards(kept, g):
        calls.append(1)
        return (g * 2,)

    double.defvjp(forwards, backwards)
    for turn in range(6):
        assert nm.grad(lambda x: double(x).sum())(tensor(3)).tolist() == [2.0, 2.0, 2.0]
        assert len(calls) == turn + 1


def test_inside_other_transformations():
    x = tensor(3, 4)

    def f(x):
        return (nm.tanh(x) * x).sum()

    want = nm.grad(f)(x).numpy()
    for _ in range(4):
        nm.grad(f)(x)
        np.testing.assert_allclose(nm.jit(nm.grad(f))(x).numpy(), want, rtol=1e-6)
        np.testing.assert_allclose(nm.vmap(nm.grad(f))(x).numpy(), want, rtol=1e-5)
    for _ in range(4):
        with nm.debug_nans():
            np.testing.assert_allclose(nm.grad(f)(x).numpy(), want, rtol=1e-6)


def test_nothing_is_left_behind():
    x, w = tensor(4, 6), tensor(4, 6, seed=1)
    x.requires_grad = True

    def turn():
        x.grad = None
        nm.layer_norm(x * 2 + w, w[0], 1 - w[1]).sum().backward()
        nm.eval(x.grad, *nm.vjp(FUNCTIONS["attention"], x.detach(), w)[1](w))

    for _ in range(20):
        turn()
    gc.collect()
    before = sys.getallocatedblocks()
    counts = [sys.getrefcount(thing) for thing in (x._node.shape, w._node, nm.float32)]
    for _ in range(300):
        turn()
    gc.collect()
    assert sys.getallocatedblocks() - before < 200
    now = [sys.getrefcount(thing) for thing in (x._node.shape, w._node, nm.float32)]
    assert all(b - a < 20 for a, b in zip(counts, now, strict=True))


def test_tapes_that_never_come_again_are_not_kept(monkeypatch):
    monkeypatch.setattr(vjp_cache._cache, "max_structures", 8)
    monkeypatch.setattr(vjp_cache._cache, "max_sites", 8)
    for n in range(1, 40):
        nm.grad(lambda x: (x * x).sum())(tensor(n))
    assert len(vjp_cache._cache.structures) <= 8
    assert len(vjp_cache._cache.sites) <= 8
    assert known() == 0
