"""Kernels for thread groups, run on an imitation of such a machine: no GPU is needed."""

import group_machine
import numpy as np
import pytest

import numus as nm

group_machine.install()
rng = np.random.default_rng(0)


def on_groups(function, *arrays):
    """The results of a function on the imitated machine."""
    xs = [nm.asarray(a, device="groups") for a in arrays]
    out = function(*xs)
    outs = out if isinstance(out, tuple) else (out,)
    assert all(o.device == "groups" for o in outs)
    return [o.numpy() for o in outs]


def check(function, reference, *arrays, rtol=2e-6, atol=1e-6):
    wants = reference(*arrays)
    wants = wants if isinstance(wants, tuple) else (wants,)
    for got, want in zip(on_groups(function, *arrays), wants, strict=True):
        assert got.shape == np.shape(want)
        np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)


def draw(*shape):
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 7), (700,), (1030, 3), (2, 65, 33)])
def test_maps(shape):
    check(lambda x, y: x * y + 2, lambda x, y: x * y + 2, draw(*shape), draw(*shape))


def test_transposed_maps():
    x = draw(70, 70)
    check(lambda x: x + x.T, lambda x: x + x.T, x)
    check(
        lambda x: nm.permute_dims(x, (2, 0, 1)) * 2.0,
        lambda x: 2 * x.transpose(2, 0, 1),
        draw(3, 40, 50),
    )


@pytest.mark.parametrize("shape", [(7, 5), (3, 500), (2, 5000), (300, 9)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("name", ["sum", "max", "argmin", "var"])
def test_reductions(shape, axis, name):
    f, g = getattr(nm, name), getattr(np, name)
    check(
        lambda x: f(x, axis=axis),
        lambda x: g(x.astype(np.float64), axis=axis),
        draw(*shape),
        rtol=1e-4,
        atol=1e-4,
    )


def test_arg_reductions_take_the_first():
    x = np.zeros((3, 700), np.float32)
    x[:, [5, 300, 650]] = 1
    check(lambda x: nm.argmax(x, axis=1), lambda x: np.argmax(x, axis=1), x)
    x[1, 77] = x[1, 400] = np.nan
    check(lambda x: nm.argmax(x, axis=1), lambda x: np.argmax(x, axis=1), x)


def test_complex_products():
    x = (draw(3, 200) + 1j * draw(3, 200)).astype(np.complex64)
    x /= np.abs(x)
    check(lambda x: nm.prod(x, axis=1), lambda x: np.prod(x, axis=1), x, rtol=1e-4, atol=1e-4)


def test_row_programs():
    def softmax(x):
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    check(lambda x: nm.softmax(x, axis=-1), softmax, draw(5, 333))
    check(lambda x: nm.softmax(x, axis=-1), softmax, draw(200, 6))


@pytest.mark.parametrize("causal", [False, True])
def test_attention_and_its_gradients(causal):
    arrays = [draw(1, 9, 5), draw(1, 20, 5), draw(1, 20, 3), draw(1, 9, 3)]

    def gradients(q, k, v, g):
        def pulled(*xs):
            y = nm.scaled_dot_product_attention(*xs, is_causal=causal)
            return (y * g).sum()

        y = nm.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return (y, *nm.grad(pulled, (0, 1, 2))(q, k, v))

    want = [x.numpy() for x in gradients(*(nm.asarray(a) for a in arrays))]
    check(gradients, lambda *_: tuple(want), *arrays, rtol=1e-5, atol=1e-5)
