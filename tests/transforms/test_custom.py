"""Functions with a derivative of their own."""

import gc
import weakref

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError


def array(values):
    return nm.asarray(values, dtype=nm.float64)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)


def make_product(calls=None):
    """x y and sin x, with the true derivative but counting how often it is asked for."""

    @nm.custom_vjp
    def product(x, y):
        return {"p": x * y, "s": nm.sin(x)}

    def forward(x, y):
        return product(x, y), (x, y)

    def backward(residuals, g):
        if calls is not None:
            calls.append(1)
        x, y = residuals
        return g["p"] * y + g["s"] * nm.cos(x), g["p"] * x

    product.defvjp(forward, backward)
    return product


def plain(x, y):
    return {"p": x * y, "s": nm.sin(x)}


# -- custom_vjp -----------------------------------------------------------------------------------


def test_several_outputs_are_gathered():
    calls = []
    product = make_product(calls)

    def f(x, y, product):
        out = product(x, y)
        return (out["p"] * out["s"] + out["p"]).sum()

    x, y = array([1.0, 2.0]), array([3.0, 4.0])
    for a, b in zip(
        nm.grad(f, argnums=(0, 1))(x, y, product),
        nm.grad(f, argnums=(0, 1))(x, y, plain),
        strict=True,
    ):
        close(a, b.numpy())
    assert len(calls) == 1


def test_one_used_output_of_several():
    product = make_product()
    close(nm.grad(lambda x: product(x, array(2.0))["s"])(array(1.0)), np.cos(1))


def test_higher_orders():
    product = make_product()
    f = lambda x, product: product(product(x, x)["p"], x)["s"]
    x = array(0.8)
    for order in range(3):
        a, b = f, f
        for _ in range(order + 1):
            a = nm.grad(a)
            b = nm.grad(b)
        close(a(x, product), b(x, plain).numpy())


def test_a_forward_rule_may_call_the_function():
    """And keep its result: at every order it is the rule that counts."""

    @nm.custom_vjp
    def tripled(x):  # exp, but with three times its derivative
        return nm.exp(x)

    def forward(x):
        y = tripled(x)
        return y, y

    tripled.defvjp(forward, lambda y, g: (3 * g * y,))
    close(nm.grad(tripled)(array(0.0)), 3)
    close(nm.grad(nm.grad(tripled))(array(0.0)), 9)
    close(nm.grad(nm.grad(nm.grad(tripled)))(array(0.0)), 27)
    close(nm.vmap(nm.grad(nm.grad(tripled)))(array([0.0, 1.0])), [9, 9 * np.e])


def test_under_vmap_both_ways():
    product = make_product()

    def f(x, y, product):
        out = product(x, y)
        return out["p"] * out["s"] + out["p"]

    x, y = array([1.0, 2.0, 3.0]), array(2.0)
    for function in (
        lambda p: nm.vmap(nm.grad(lambda x, y: f(x, y, p), argnums=(0, 1)), (0, None))(x, y),
        lambda p: nm.grad(
            lambda x, y: nm.vmap(lambda x, y: f(x, y, p), (0, None))(x, y).sum(), argnums=(0, 1)
        )(x, y),
        lambda p: nm.jacrev(nm.vmap(lambda x, y: f(x, y, p), (0, None)), argnums=(0, 1))(x, y),
        lambda p: nm.vmap(
            lambda x: nm.grad(lambda y: nm.vmap(lambda x, y: f(x, y, p))(x, y * x).sum())(x)
        )(x[:, None] * x),
    ):
        found = nm.tree.leaves(function(product))
        expected = nm.tree.leaves(function(plain))
        for a, b in zip(found, expected, strict=True):
            close(a, b.numpy())


def test_the_rule_is_used_and_not_the_function():
    @nm.custom_vjp
    def clip_gradient(x, limit):
        return x

    clip_gradient.defvjp(
        lambda x, limit: (x, limit), lambda limit, g: (nm.clip(g, -limit, limit), None)
    )
    g = nm.grad(lambda x: (clip_gradient(x, array(1.0)) * array([0.5, 10.0, -10.0])).sum())
    close(g(array([1.0, 1.0, 1.0])), [0.5, 1, -1])


def test_nondiff_argnums_and_keywords():
    scale = nm.custom_vjp(lambda power, x, name="": x**power, nondiff_argnums=(0, 2))
    scale.defvjp(
        lambda power, x, name="": (x**power, x),
        lambda power, name, x, g: (g * power * x ** (power - 1),),
    )
    close(nm.grad(lambda x: scale(3, x, name="here"))(array(2.0)), 12)
    close(nm.grad(lambda x: scale(3, x, "here"))(array(2.0)), 12)


def test_tape_tensors():
    product = make_product()
    x = array(2.0)
    x.requires_grad = True
    out = product(x, array(3.0))
    assert out["p"].requires_grad
    (out["p"] * out["p"]).backward()
    close(x.grad, 36)
    with nm.no_grad():
        assert not product(x, array(3.0))["p"].requires_grad


def test_forward_mode_transposes_the_backward_rule():
    product = make_product()
    f = lambda x: product(x, x)["p"]
    close(nm.jacfwd(f)(array(3.0)), 6)
    close(nm.jvp(f, (array(3.0),), (array(2.0),))[1], 12)
    close(nm.hessian(f)(array(1.0)), 2)


def test_second_derivatives_where_the_value_is_used_too():
    """The gradient of cube(x)**2 reads cube's value: forward mode passes through the rule."""

    @nm.custom_vjp
    def cube(x):
        return x * x * x

    cube.defvjp(lambda x: (x * x * x, x), lambda x, g: (nm.conj(3.0 * x * x) * g,))
    f = lambda x: nm.sum(cube(x) * cube(x) * nm.asarray([1.0, 2.0]))
    x, v = array([1.0, 2.0]), array([1.0, -1.0])
    exact = np.diag([30.0, 2 * 480.0])
    close(nm.hessian(f)(x), exact)
    close(nm.hvp(f, (x,), (v,)), exact @ v.numpy())
    close(nm.jacrev(nm.jacrev(f))(x), exact)
    close(nm.jacfwd(nm.jacfwd(f))(x), exact)
    close(nm.jit(nm.hessian(f))(x), exact)
    close(nm.vmap(nm.hessian(lambda y: cube(y) * cube(y)))(x), [30.0, 480.0])

    def complex_part(z):
        return nm.real(cube(z) * cube(z))

    z, t = nm.asarray(1.0 + 2.0j), nm.asarray(0.5 - 1.0j)
    exact = nm.jvp(lambda z: nm.real(z**6), (z,), (t,))[1]
    np.testing.assert_allclose(
        nm.jvp(complex_part, (z,), (t,))[1].numpy(), exact.numpy(), rtol=1e-5
    )


def test_wrong_rules_are_explained():
    f = nm.custom_vjp(lambda x: x)
    with pytest.raises(GradientError, match="defvjp"):
        f(array(1.0))
    f.defvjp(lambda x: x, lambda r, g: (g,))
    with pytest.raises(TypeError, match=r"\(result, residuals\)"):
        nm.grad(f)(array(1.0))
    f.defvjp(lambda x: (x, None), lambda r, g: g)
    with pytest.raises(GradientError, match="tuple of 1"):
        nm.grad(f)(array(1.0))
    f.defvjp(lambda x: (x, None), lambda r, g: (g.reshape(1),))
    with pytest.raises(GradientError, match=r"entry \[0\] is float64\[1\]"):
        nm.grad(f)(array(1.0))


def test_nothing_but_residuals_is_kept():
    inner = []

    @nm.custom_vjp
    def f(x):
        return nm.exp(nm.sin(x))

    def forward(x):
        middle = nm.sin(x)
        inner.append(weakref.ref(middle._node))
        y = nm.exp(middle)
        return y, x

    f.defvjp(forward, lambda x, g: (g * nm.cos(x) * nm.exp(nm.sin(x)),))
    x = array([1.0, 2.0])
    x.requires_grad = True
    y = f(x)
    y.numpy()
    gc.collect()
    assert inner[0]() is None or inner[0]().view is None  # no memory is held
    y.sum().backward()
    close(x.grad, np.cos([1, 2]) * np.exp(np.sin([1, 2])))


# -- custom_jvp -----------------------------------------------------------------------------------


def make_log_sum(calls=None):
    @nm.custom_jvp
    def log_sum(x, y):
        return nm.log(nm.exp(x) + nm.exp(y))

    @log_sum.defjvp
    def rule(primals, tangents):
        if calls is not None:
            calls.append(1)
        (x, y), (tx, ty) = primals, tangents
        out = log_sum(x, y)
        return out, tx * nm.exp(x - out) + ty * nm.exp(y - out)

    return log_sum


def test_custom_jvp_in_every_mode():
    calls = []
    log_sum = make_log_sum(calls)
    true = lambda x, y: nm.log(nm.exp(x) + nm.exp(y))
    x, y = array([0.3, 2.0]), array(1.0)
    for function in (
        lambda f: nm.jvp(f, (x, y), (x, y)),
        lambda f: nm.grad(lambda x, y: f(x, y).sum(), argnums=(0, 1))(x, y),
        lambda f: nm.hessian(lambda x: f(x, y).sum())(x),
        lambda f: nm.jacfwd(nm.jacfwd(lambda x: f(x, y).sum()))(x),
        lambda f: nm.jacrev(nm.jacfwd(lambda x: f(x, y).sum()))(x),
        lambda f: nm.vmap(nm.grad(f), (0, None))(x, y),
        lambda f: nm.grad(lambda y: nm.vmap(f, (0, None))(x, y).sum())(y),
        lambda f: nm.jvp(nm.vmap(f, (0, None)), (x, y), (x, y)),
        lambda f: nm.linearize(f, x, y)[1](x, y),
        lambda f: nm.vjp(f, x, y)[1](x),
    ):
        found, expected = nm.tree.leaves(function(log_sum)), nm.tree.leaves(function(true))
        for a, b in zip(found, expected, strict=True):
            close(a, b.numpy())
    assert calls


def test_custom_jvp_of_several_outputs():
    @nm.custom_jvp
    def both(x):
        return nm.sin(x), nm.argmax(x), nm.cos(x)

    @both.defjvp
    def rule(primals, tangents):
        (x,), (t,) = primals, tangents
        return both(x), (t * nm.cos(x), None, -t * nm.sin(x))

    f = lambda x: (both(x)[0] * both(x)[2]).sum()
    x = np.array([0.5, 1.0])
    close(nm.grad(f)(array(x)), np.cos(2 * x))
    close(nm.jvp(f, (array(x),), (array([1.0, 1.0]),))[1], np.cos(2 * x).sum())


def test_custom_jvp_with_fixed_arguments():
    power = nm.custom_jvp(lambda n, x: x**n, nondiff_argnums=(0,))
    power.defjvp(
        lambda n, primals, tangents: (power(n, *primals), n * primals[0] ** (n - 1) * tangents[0])
    )
    close(nm.grad(lambda x: power(3, x))(array(2.0)), 12)
    close(nm.grad(nm.grad(lambda x: power(3, x)))(array(2.0)), 12)


# -- Function -------------------------------------------------------------------------------------


class Scale(nm.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, note):
        ctx.save_for_backward(x)
        ctx.factor = factor
        assert note == "note"
        return x * x * factor, x * 2

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        assert ctx.needs_input_grad[1:] == (False, False)
        return 2 * g * x * ctx.factor + 2 * h, None, None


def test_function_class():
    def f(x):
        a, b = Scale.apply(x, 3.0, "note")
        return (a * b).sum()

    x = np.array([1.0, 2.0])
    close(nm.grad(f)(array(x)), 18 * x**2)
    close(nm.vmap(nm.grad(f))(array(x)), 18 * x**2)
    close(nm.grad(lambda x: nm.grad(f)(x).sum())(array(x)), 36 * x)
    t = array(x)
    t.requires_grad = True
    f(t).backward()
    close(t.grad, 18 * x**2)
    a, _ = Scale.apply(array(x), 3.0, "note")
    assert not a.requires_grad
