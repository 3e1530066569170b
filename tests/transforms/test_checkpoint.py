"""checkpoint: the same derivatives, nothing kept."""

import gc
import weakref

import numpy as np
import pytest

import numus as nm


def array(values):
    return nm.asarray(values, dtype=nm.float64)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)


def block(x, w):
    y = nm.tanh(x @ w)
    return {"out": y * nm.sin(y), "top": nm.argmax(y), "same": x}


def holds_a_value(reference):
    """A node may live on as a description of how to compute it, but not hold memory."""
    return reference() is not None and reference().view is not None


X = np.random.default_rng(0).standard_normal((4, 3))
W = np.random.default_rng(1).standard_normal((3, 3))


@pytest.mark.parametrize(
    "function",
    [
        lambda f: nm.grad(lambda x, w: (f(x, w)["out"] * f(x, w)["same"]).sum(), (0, 1)),
        lambda f: nm.grad(lambda x, w: f(f(x, w)["out"], w)["out"].sum(), (0, 1)),
        lambda f: lambda x, w: nm.hvp(lambda x: f(x, w)["out"].sum(), (x,), (x,)),
        lambda f: nm.hessian(lambda x, w: f(x[0], w)["out"].sum()),
        lambda f: nm.jacrev(lambda x, w: nm.grad(lambda x: f(x, w)["out"].sum())(x)[0], 1),
        lambda f: nm.vmap(nm.grad(lambda x, w: f(x, w)["out"].sum(), (0, 1)), (0, None)),
        lambda f: nm.grad(lambda x, w: nm.vmap(lambda x: f(x, w)["out"])(x).sum(), argnums=(0, 1)),
        lambda f: lambda x, w: nm.linearize(lambda x: f(x, w)["out"], x)[1](x),
    ],
)
def test_same_derivatives(function):
    found = nm.tree.leaves(function(nm.checkpoint(block))(array(X), array(W)))
    expected = nm.tree.leaves(function(block)(array(X), array(W)))
    for a, b in zip(found, expected, strict=True):
        close(a, b.numpy())


def test_closed_over_tensors_get_gradients():
    x, w = array(X), array(W)
    w.requires_grad = True
    out = nm.checkpoint(lambda x: block(x, w)["out"])(x)
    out.sum().backward()
    close(w.grad, nm.grad(lambda w: block(x, w)["out"].sum())(array(W)).numpy())
    w.grad = None
    nm.checkpoint(lambda: block(x, w)["out"])().sum().backward()
    close(w.grad, nm.grad(lambda w: block(x, w)["out"].sum())(array(W)).numpy())


def test_closed_over_vmapped_values():
    x = array(X)
    f = lambda row: nm.checkpoint(lambda w: nm.sin(w * row).sum())(row)
    close(nm.vmap(nm.grad(f))(x), nm.vmap(nm.grad(lambda r: nm.sin(r * r).sum()))(x).numpy() / 1)


def test_the_function_runs_once():
    calls = []

    @nm.checkpoint
    def f(x):
        calls.append(1)
        return nm.exp(x) if x.sum() > 0 else x

    nm.grad(lambda x: f(x).sum())(array([1.0, 2.0])).numpy()
    assert len(calls) == 1


def test_random_draws_are_the_same_on_the_way_back():
    @nm.checkpoint
    def dropout(x):
        return x * nm.random.uniform((1000,), dtype=nm.float64)

    x = nm.ones(1000, dtype=nm.float64)
    value, g = nm.value_and_grad(lambda x: (dropout(x)).sum())(x)
    close(g.sum(), value.numpy())


def test_nested():
    inner = nm.checkpoint(lambda x: nm.sin(x) * x)
    outer = nm.checkpoint(lambda x: inner(inner(x)) + x)
    f = lambda x: nm.sin(x) * x
    plain = lambda x: f(f(x)) + x
    x = array(1.3)
    close(nm.grad(outer)(x), nm.grad(plain)(x).numpy())
    close(nm.grad(nm.grad(outer))(x), nm.grad(nm.grad(plain))(x).numpy())


def test_no_grad_inside_stays_so():
    def f(x):
        with nm.no_grad():
            c = x * x
        return c * x

    close(nm.grad(nm.checkpoint(f))(array(3.0)), 9)


def test_untracked_calls_cost_nothing():
    out = nm.checkpoint(lambda x: nm.sin(x))(array(1.0))
    assert not out.requires_grad
    assert out._node.prim.name != "custom"


def test_inner_values_are_freed():
    """Between the way there and the way back only the result is alive; after it likewise."""
    inner = []

    @nm.checkpoint
    def f(x):
        for _ in range(5):
            x = nm.sin(x)
            inner.append(weakref.ref(x._node))
        return x

    gc.collect()
    gc.disable()  # by reference counts alone
    try:
        x = array(np.ones(10))
        x.requires_grad = True
        y = nm.exp(f(x))
        y.numpy()
        assert not any(map(holds_a_value, inner[:4]))
        y.sum().backward()
        x.grad.numpy()
        close(x.grad, nm.grad(lambda x: nm.exp(f(x)).sum())(array(np.ones(10))).numpy())
        assert not any(map(holds_a_value, inner[:4]))
    finally:
        gc.enable()
