"""grad, vjp, jvp, linearize and hvp: containers, nesting, mixing, errors."""

import dataclasses
import gc
import weakref
from typing import NamedTuple

import numpy as np
import pytest

import numus as nm
from numus.errors import GradientError


def array(values):
    return nm.asarray(values, dtype=nm.float64)


def close(a, b):
    np.testing.assert_allclose(a.numpy() if isinstance(a, nm.Tensor) else a, b, rtol=1e-10)


# -- grad -----------------------------------------------------------------------------------------


def test_grad_of_scalars_arrays_and_numpy():
    f = lambda x: (x * nm.sin(x)).sum()
    expected = lambda x: np.sin(x) + x * np.cos(x)
    close(nm.grad(f)(array(1.5)), expected(1.5))
    xs = np.linspace(0, 2, 5)
    close(nm.grad(f)(array(xs)), expected(xs))
    close(nm.grad(f)(xs), expected(xs))
    assert nm.grad(f)(1.5).dtype is nm.float32


def test_orders():
    f = lambda x: x**5
    value = array(2.0)
    for expected in (5 * 16, 20 * 8, 60 * 4, 120 * 2, 120, 0):
        f = nm.grad(f)
        close(f(value), expected)


def test_argnums():
    f = lambda a, b, c: a * b * c
    args = (array(2.0), array(3.0), array(5.0))
    close(nm.grad(f, argnums=1)(*args), 10)
    close(nm.grad(f, argnums=-1)(*args), 6)
    ga, gc_ = nm.grad(f, argnums=(0, 2))(*args)
    close(ga, 15)
    close(gc_, 6)
    with pytest.raises(ValueError, match="argnums"):
        nm.grad(f, argnums=3)(*args)
    with pytest.raises(ValueError, match="twice"):
        nm.grad(f, argnums=(0, -3))(*args)


class Pair(NamedTuple):
    w: object
    b: object


@dataclasses.dataclass(frozen=True)
class Layer:
    weight: object
    name: str = dataclasses.field(metadata={"static": True}, default="layer")


def test_containers():
    tree = {
        "layers": [Pair(array(2.0), array(3.0)), Pair(array(4.0), None)],
        "head": Layer(array([1.0, 2.0]), "last"),
        "empty": (),
    }

    def f(t, scale):
        first, second = t["layers"]
        return scale * (first.w * first.b + second.w**2 + (t["head"].weight ** 2).sum())

    g = nm.grad(f)(tree, 10.0)
    assert nm.tree.structure(g) == nm.tree.structure(tree)
    assert [x.tolist() for x in nm.tree.leaves(g)] == [[20.0, 40.0], 30.0, 20.0, 80.0]
    assert g["head"].name == "last"
    assert g["layers"][1].b is None


def test_keyword_and_other_arguments_pass_through():
    f = lambda x, mode, *, power: x**power if mode == "power" else x
    close(nm.grad(f)(array(3.0), "power", power=2), 6)


def test_value_and_grad_and_aux():
    def f(x):
        y = x * x
        return y.sum(), {"y": y, "note": "kept"}

    x = array([1.0, 2.0])
    (value, aux), g = nm.value_and_grad(f, has_aux=True)(x)
    close(value, 5)
    close(aux["y"], [1, 4])
    assert aux["note"] == "kept"
    close(g, [2, 4])
    g, aux = nm.grad(f, has_aux=True)(x)
    close(g, [2, 4])
    for t in (value, aux["y"], g):
        assert not t.requires_grad


def test_unused_arguments_have_zero_gradients():
    g = nm.grad(lambda t: t["a"] * 2)({"a": array(1.0), "b": array([1.0, 2.0])})
    close(g["b"], [0, 0])
    close(nm.grad(lambda x: 3.0)(array(1.0)), 0)


def test_python_control_flow_on_values():
    def f(x):
        while x < 100:
            x = x * x
        return x if x > 0 else -x

    close(nm.grad(f)(array(3.0)), 8 * 3.0**7)


def test_forcing_a_value_in_the_middle():
    def f(x):
        y = nm.exp(x)
        nm.eval(y)
        z = y * y
        assert z > 0
        return z * x

    close(nm.grad(f)(array(0.5)), np.exp(1.0) * 2)
    close(nm.grad(nm.grad(f))(array(0.5)), np.exp(1.0) * (4 + 2))


def test_stop_gradient_and_no_grad_inside():
    close(nm.grad(lambda x: x * x.detach())(array(3.0)), 3)

    def f(x):
        with nm.no_grad():
            c = x * x
        return x * c

    close(nm.grad(f)(array(3.0)), 9)
    close(nm.jvp(f, (array(3.0),), (array(1.0),))[1], 9)


def test_transforms_work_under_no_grad():
    f = lambda x: x * x * x
    with nm.no_grad():
        close(nm.grad(f)(array(2.0)), 12)
        close(nm.grad(nm.grad(f))(array(2.0)), 12)
        close(nm.hvp(f, (array(2.0),), (array(1.0),)), 12)
        _y, pull = nm.vjp(f, array(2.0))
        close(pull(array(1.0))[0], 12)


def test_errors_name_the_place():
    with pytest.raises(GradientError, match=r"argument 0\['a'\]\[1\] is int64"):
        nm.grad(lambda t: t["a"][0])({"a": [1.0, 2]})
    with pytest.raises(GradientError, match=r"scalar, not shape \(2,\)"):
        nm.grad(lambda x: x)(array([1.0, 2.0]))
    with pytest.raises(GradientError, match="has_aux"):
        nm.grad(lambda x: (x, x))(array(1.0))
    with pytest.raises(GradientError, match="int64"):
        nm.grad(lambda x: nm.argmax(x))(array([1.0, 2.0]))
    with pytest.raises(TypeError, match=r"argument 0\[0\] is a str"):
        nm.grad(lambda x: x)(["a"])
    with pytest.raises(TypeError, match=r"has_aux .* \(result, aux\)"):
        nm.grad(lambda x: x, has_aux=True)(array(1.0))
    with pytest.raises(TypeError, match="the result"):
        nm.grad(lambda x: "text")(array(1.0))


# -- nesting: perturbations are never confused ---------------------------------------------------


def test_classic_perturbation_confusion():
    one = array(1.0)
    inner = lambda x: nm.grad(lambda y: x + y)(one)
    close(nm.grad(lambda x: x * inner(x))(one), 1)
    inner = lambda x: nm.jvp(lambda y: x + y, (one,), (one,))[1]
    close(nm.grad(lambda x: x * inner(x))(one), 1)
    close(nm.jvp(lambda x: x * inner(x), (one,), (one,))[1], 1)
    close(nm.jvp(lambda x: x * nm.grad(lambda y: x + y)(one), (one,), (one,))[1], 1)


def test_confusion_with_products():
    x = array(3.0)
    f = lambda x: x * nm.grad(lambda y: x * y * y)(array(5.0))  # x * 10 x
    close(nm.grad(f)(x), 60)
    close(nm.jvp(f, (x,), (array(1.0),))[1], 60)
    g = lambda x: x * nm.grad(lambda y: x * y * y)(x)  # 2 x^3
    close(nm.grad(g)(x), 54)
    close(nm.grad(nm.grad(g))(x), 36)


def test_confusion_through_curried_functions():
    """D(s)(f)(x) = f(x + s): the derivative by s is again a function to be differentiated."""
    shift = lambda s: lambda f: lambda x: f(x + s)
    zero = array(0.0)

    def D(f):
        return lambda x: nm.grad(lambda s: shift(s)(f)(x))(zero)

    close(D(nm.exp)(array(1.0)), np.e)
    close(D(D(nm.exp))(array(1.0)), np.e)
    close(D(D(lambda x: x**4))(array(2.0)), 48)


def test_the_same_tensor_at_two_levels():
    x = array(2.0)
    f = lambda a: nm.grad(lambda b: a * b * x)(x) * a  # (a x) a
    close(nm.grad(f)(x), 8)


def test_every_pair_of_modes():
    f = lambda x: nm.sin(x) * x * x
    x, one = array(0.7), array(1.0)
    reverse = lambda f: nm.grad(f)
    forward = lambda f: lambda x: nm.jvp(f, (x,), (one,))[1]
    pulled = lambda f: lambda x: nm.vjp(f, x)[1](one)[0]
    linear = lambda f: lambda x: nm.linearize(f, x)[1](one)
    results = [
        outer(inner(middle(f)))(x).item()
        for outer in (reverse, forward, pulled, linear)
        for inner in (reverse, forward, pulled, linear)
        for middle in (reverse, forward)
    ]
    s, c = np.sin(0.7), np.cos(0.7)
    np.testing.assert_allclose(results, 6 * c - 6 * 0.7 * s - 0.49 * c, rtol=1e-9)


# -- mixing with the tape -------------------------------------------------------------------------


def test_grad_closes_over_tape_tensors():
    w, x = array(3.0), array(2.0)
    w.requires_grad = True
    g = nm.grad(lambda x: w * w * x * x)(x)
    assert g.requires_grad
    close(g, 36)
    g.backward()
    close(w.grad, 24)
    assert x.grad is None


def test_grad_by_a_tape_tensor():
    w = array(3.0)
    w.requires_grad = True
    g = nm.grad(lambda w: w**3)(w)
    assert g.requires_grad
    g.backward()
    close(w.grad, 18)
    h = nm.grad(lambda x: x * x)(w.detach())
    assert not h.requires_grad


def test_a_gradient_that_does_not_depend_on_the_tape_is_not_tracked():
    w, x = array(3.0), array(2.0)
    w.requires_grad = True
    value, g = nm.value_and_grad(lambda x: x * x + w)(x)
    assert value.requires_grad
    assert not g.requires_grad


def test_backward_inside_a_function():
    w = array(3.0)
    w.requires_grad = True

    def f(x):
        (w * w).backward()
        return x * w.grad

    close(nm.grad(f)(array(2.0)), 6)


def test_a_loop_of_steps_is_differentiable():
    """Gradients through gradient descent; each step walks only its own part of the graph."""
    f = lambda x, a: (x - a) ** 2

    def solve(a):
        x = array(0.0)
        for _ in range(30):
            x = x - 0.3 * nm.grad(f)(x, a)
        return x

    close(nm.grad(solve)(array(2.0)), 1 - 0.4**30)


# -- vjp, jvp, linearize, hvp ---------------------------------------------------------------------


def test_vjp_with_containers():
    f = lambda t, x: {"a": t[0] * x, "b": (t[1] + x).sum()}
    t, x = (array(2.0), array([1.0, 2.0])), array([3.0, 4.0])
    y, pull = nm.vjp(f, t, x)
    close(y["a"], [6, 8])
    assert not y["a"].requires_grad
    gt, gx = pull({"a": array([1.0, 10.0]), "b": array(100.0)})
    close(gt[0], 43)
    close(gt[1], [100, 100])
    close(gx, [2 + 200 - 100, 20 + 100])
    gt, gx = pull({"a": None, "b": 1.0})  # None is zero, a Python scalar is weak
    close(gx, [1, 1])
    y.numpy() if isinstance(y, nm.Tensor) else y["b"].numpy()
    close(pull({"a": None, "b": 1.0})[1], [1, 1])  # again, after evaluation


def test_vjp_of_integers_and_aux():
    labels = nm.asarray([1, 0])
    f = lambda x, i: (x[i] * 2, "aux")
    _y, pull, aux = nm.vjp(f, array([1.0, 2.0]), labels, has_aux=True)
    assert aux == "aux"
    gx, gi = pull(array([1.0, 10.0]))
    close(gx, [20, 2])
    assert gi is None


def test_a_call_without_float_arguments_keeps_what_it_closes_over():
    w = array([1.0, 2.0])
    w.requires_grad = True
    y, pull = nm.vjp(lambda i: w[i] * w[i], nm.asarray(1))
    assert pull(array(1.0)) == (None,)
    y.backward()
    close(w.grad, [0, 4])


def test_vjp_is_differentiable_in_everything():
    f = lambda x: x**3
    g = lambda x, v: nm.vjp(f, x)[1](v)[0]
    gx, gv = nm.grad(g, argnums=(0, 1))(array(2.0), array(5.0))
    close(gx, 5 * 12)
    close(gv, 12)
    _, pull = nm.vjp(f, array(2.0))
    close(nm.grad(lambda v: pull(v)[0])(array(5.0)), 12)


def test_cotangents_must_fit():
    _, pull = nm.vjp(lambda x: {"a": x}, array([1.0, 2.0]))
    with pytest.raises(GradientError, match=r"the cotangent\['a'\] is float64\[3\]"):
        pull({"a": nm.zeros(3, dtype=nm.float64)})
    with pytest.raises(GradientError, match="float32"):
        pull({"a": nm.zeros(2, dtype=nm.float32)})
    with pytest.raises(ValueError, match="the cotangent is list where dict"):
        pull([1.0])
    with pytest.raises(ValueError, match="entries"):
        pull({"b": 1.0})


def test_jvp():
    y, t = nm.jvp(lambda a, b: (a * b, a), (array(2.0), array(3.0)), (array(1.0), array(10.0)))
    close(y[0], 6)
    close(t[0], 23)
    close(t[1], 1)
    y, t = nm.jvp(lambda a, b: a * b, (array(2.0), array(3.0)), (1.0, None))
    close(t, 3)
    y, t, aux = nm.jvp(lambda a: (a * a, "x"), (array(2.0),), (1.0,), has_aux=True)
    assert aux == "x"
    assert not t.requires_grad
    y, t = nm.jvp(lambda a: (array(1.0), nm.argmax(a)), (array([2.0]),), (array([1.0]),))
    close(t[0], 0)
    assert t[1] is None
    with pytest.raises(TypeError, match="2 tangents for 1"):
        nm.jvp(nm.sin, (1.0,), (1.0, 2.0))
    with pytest.raises(TypeError, match="tuples"):
        nm.jvp(nm.sin, 1.0, 1.0)
    with pytest.raises(GradientError, match="tangent 0 is"):
        nm.jvp(nm.sin, (array([1.0, 2.0]),), (array(1.0),))


def test_linearize():
    calls = []

    def f(x, t):
        calls.append(1)
        if x.sum() > 0:
            return {"y": nm.sin(x) * t["s"]}
        return {"y": x}

    x, t = array([1.0, 2.0]), {"s": array(3.0), "i": nm.asarray(1)}
    y, push = nm.linearize(f, x, t)
    close(y["y"], 3 * np.sin([1, 2]))
    for dx, ds in ((np.array([1.0, 0.0]), 0.0), (np.array([1.0, -2.0]), 5.0)):
        expected = 3 * np.cos([1, 2]) * dx + np.sin([1, 2]) * ds
        close(push(array(dx), {"s": array(ds), "i": None})["y"], expected)
    close(push(array([1.0, 1.0]), None)["y"], 3 * np.cos([1, 2]))
    assert len(calls) == 1
    g = nm.grad(lambda s: push(None, {"s": s, "i": None})["y"].sum())(array(1.0))
    close(g, np.sin([1, 2]).sum())


def test_hvp():
    f = lambda x: (x**3).sum() * x[0]
    x, v = array([1.0, 2.0, 3.0]), array([1.0, -1.0, 0.5])
    close(nm.hvp(f, (x,), (v,)), nm.hessian(f)(x).numpy() @ v.numpy())
    g = lambda a, b: (a * b**2).sum()
    ha, hb = nm.hvp(g, (x, v), (v, x))
    a, b = x.numpy(), v.numpy()
    close(ha, 2 * b * a)
    close(hb, 2 * b * b + 2 * a * a)


def test_complex_gradients():
    """df/dx + i df/dy for real f; the complex derivative for a holomorphic one."""
    z = nm.asarray(1.0 + 2.0j, dtype=nm.complex128)
    close(nm.grad(lambda z: nm.abs(z) ** 2)(z), 2 * (1 + 2j))
    close(nm.grad(lambda z: nm.real(z * z))(z), np.conj(2 * (1 + 2j)))
    close(nm.grad(lambda z: z**3, holomorphic=True)(z), 3 * (1 + 2j) ** 2)
    with pytest.raises(GradientError, match="holomorphic"):
        nm.grad(lambda z: z * z)(z)
    with pytest.raises(GradientError, match="holomorphic"):
        nm.grad(lambda x: x, holomorphic=True)(1.0)


# -- memory ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_kept_when_a_gradient_is_done(force):
    gc.collect()
    gc.disable()  # no cycles either
    try:
        inner = []

        def f(x):
            y = nm.exp(x)
            if force:
                nm.eval(y)
            inner.append(weakref.ref(y._node))
            return (y * y).sum()

        value, g = nm.value_and_grad(f)(array([1.0, 2.0]))
        assert not value.requires_grad
        assert not g.requires_grad
        value.numpy(), g.numpy()
        assert inner[0]() is None
    finally:
        gc.enable()
