"""vmap against loops: axes, containers, nesting, errors."""

import numpy as np
import pytest

import numus as nm
from numus.errors import ShapeError, TracingError


def array(values):
    return nm.asarray(values, dtype=nm.float64)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def close(a, b):
    np.testing.assert_allclose(a.numpy(), b, rtol=1e-10, atol=1e-12)


FUNCTIONS = {
    "softmax": lambda x: nm.softmax(x, axis=-1),
    "matmul": lambda x: x @ x.T,
    "vector": lambda x: x @ nm.ones(x.shape[-1], dtype=x.dtype),
    "norm": lambda x: nm.sqrt((x * x).sum(axis=0, keepdims=True)) + x.mean(),
    "index": lambda x: x[1:, ::-1][0],
    "assign": lambda x: nm.cumulative_sum(x, axis=0)[:, None],
    "sort": lambda x: nm.sort(x, axis=0),
    "gather": lambda x: x[nm.argmax(x, axis=0), 0],
    "where": lambda x: nm.where(x > 0, nm.log(nm.abs(x)), x),
    "concat": lambda x: nm.concat([x, x * 2, nm.zeros((1, 4), dtype=x.dtype)]),
    "prod": lambda x: nm.prod(x, axis=1),
    "std": lambda x: nm.std(x, axis=1),
    "transpose": lambda x: nm.permute_dims(x, (1, 0)).reshape(2, -1),
    "einsum": lambda x: nm.einsum("ij,kj->ik", x, x),
    "constant": lambda x: nm.arange(3.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_against_a_loop(name):
    f, x = FUNCTIONS[name], draw(5, 3, 4)
    expected = np.stack([f(array(row)).numpy() for row in x])
    close(nm.vmap(f)(array(x)), expected)
    close(nm.vmap(f, in_axes=2)(array(np.moveaxis(x, 0, 2))), expected)
    close(
        nm.vmap(f, in_axes=-1, out_axes=-1)(array(np.moveaxis(x, 0, -1))),
        np.moveaxis(expected, 0, -1),
    )


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "constant"])
def test_gradients_per_example(name):
    f, x = FUNCTIONS[name], draw(3, 3, 4)
    loss = lambda x: (f(x) ** 2).sum()
    expected = np.stack([nm.grad(loss)(array(row)).numpy() for row in x])
    close(nm.vmap(nm.grad(loss))(array(x)), expected)
    close(nm.grad(lambda x: nm.vmap(loss)(x).sum())(array(x)), expected)
    tangent = draw(3, 3, 4, seed=1)
    pushed = nm.vmap(lambda x, t: nm.jvp(loss, (x,), (t,))[1])(array(x), array(tangent))
    close(pushed, (expected * tangent).sum(axis=(1, 2)))


def test_axes_of_several_arguments():
    f = lambda a, b, c: a * b + c
    a, b, c = draw(5), draw(3, 5), draw()
    close(nm.vmap(f, in_axes=(0, 1, None))(array(a), array(b), array(c)), (a * b + c).T)
    close(
        nm.vmap(f, in_axes=(0, None, None), out_axes=1)(array(a), array(b[:, 0]), array(c)),
        b[:, :1] * a + c,
    )


def test_containers_and_prefixes():
    def f(t, scale):
        return {"y": t["w"] @ t["x"][0], "z": t["x"][1]}, scale

    t = {"w": array(draw(2, 3)), "x": (array(draw(4, 3)), array(draw(2, 4)))}
    axes = ({"w": None, "x": (0, 1)}, None)
    out, scale = nm.vmap(f, in_axes=axes, out_axes=(0, None))(t, array(2.0))
    close(out["y"], t["x"][0].numpy() @ t["w"].numpy().T)
    close(out["z"], t["x"][1].numpy().T)
    assert scale.shape == ()


def test_keyword_arguments_are_mapped():
    f = lambda x, *, y: x * y
    close(nm.vmap(f)(array([1.0, 2.0]), y=array([3.0, 4.0])), [3, 8])


def test_nested():
    f = lambda a, b: nm.sin(a) * b
    a, b = draw(3), draw(4)
    outer = nm.vmap(nm.vmap(f, in_axes=(None, 0)), in_axes=(0, None))
    close(outer(array(a), array(b)), np.sin(a)[:, None] * b)
    close(nm.vmap(nm.vmap(lambda x: x.sum()))(array(draw(2, 3, 4))), draw(2, 3, 4).sum(-1))


def test_hessians_per_example():
    f = lambda x: (x**3).sum() * x[0]
    x = draw(4, 3)
    expected = np.stack([nm.hessian(f)(array(row)).numpy() for row in x])
    close(nm.vmap(nm.hessian(f))(array(x)), expected)


def test_grad_of_vmap_of_grad():
    f = lambda w, x: nm.tanh(w * x)
    x, w = draw(5), array(0.7)
    inner = lambda w: nm.vmap(nm.grad(f, argnums=1), in_axes=(None, 0))(w, array(x)).sum()
    expected = sum(nm.grad(lambda w, x=v: nm.grad(f, argnums=1)(w, array(x)))(w).item() for v in x)
    close(nm.grad(inner)(w), expected)


def test_tape_gradients_pass_through():
    w, x = array(draw(3)), array(draw(5, 3))
    w.requires_grad = True
    out = nm.vmap(lambda x: nm.exp(x @ w))(x)
    assert out.requires_grad
    out.sum().backward()
    close(w.grad, (np.exp(x.numpy() @ w.numpy())[:, None] * x.numpy()).sum(0))


def test_no_grad_inside_stays_so():
    x = array(draw(3))

    def f(x):
        with nm.no_grad():
            c = x * x
        return c * x

    close(nm.grad(lambda x: nm.vmap(f)(x).sum())(x), x.numpy() ** 2)


def test_a_batch_of_none():
    out = nm.vmap(lambda x: nm.sin(x) @ x)(nm.zeros((0, 3)))
    assert out.shape == (0,)
    assert nm.vmap(lambda: nm.ones(2), axis_size=3)().shape == (3, 2)


def test_random_draws_are_shared():
    out = nm.vmap(lambda x: x + nm.random.normal(()))(nm.zeros(3)).numpy()
    assert out[0] == out[1] == out[2]


def test_errors():
    x = array(draw(3, 2))
    with pytest.raises(TracingError, match="vmap"):
        nm.vmap(lambda x: x if x.sum() > 0 else -x)(x)
    with pytest.raises(TracingError, match="vmap"):
        nm.vmap(lambda x: x.numpy())(x)
    with pytest.raises(ShapeError, match="argument 0 has 3, argument 1 has 2"):
        nm.vmap(lambda a, b: a)(x, array(draw(2)))
    with pytest.raises(ShapeError, match=r"argument 1\['a'\] has no axis"):
        nm.vmap(lambda a, b: a)(x, {"a": array(1.0)})
    with pytest.raises(ShapeError, match="out of range"):
        nm.vmap(lambda a: a, in_axes=2)(x)
    with pytest.raises(ShapeError, match="axis_size"):
        nm.vmap(lambda a: a, in_axes=None)(x)
    with pytest.raises(ShapeError, match="out_axes None"):
        nm.vmap(lambda a: a, out_axes=None)(x)
    with pytest.raises(ValueError, match="in_axes"):
        nm.vmap(lambda a, b: a, in_axes=(0,))(x, x)
