"""nm.jit captures what a function reaches: tensors by handle, gradients, state, random draws."""

import numpy as np
import pytest
from jit_calls import arrays, counted, leaf

import numus as nm
from numus.errors import TracingError


def test_captured_tensors_are_read_at_each_call():
    w = nm.asarray([1.0, 2.0])
    f = counted(lambda x: x * w)
    jitted = nm.jit(f)
    assert jitted(nm.ones(2)).tolist() == [1, 2]
    w += 1
    assert jitted(nm.ones(2)).tolist() == [2, 3]
    with w.data_write() as a:
        a[:] = 7
    assert jitted(nm.ones(2)).tolist() == [7, 7]
    assert f.count == 1


def test_an_argument_is_not_mistaken_for_what_is_captured():
    w = nm.asarray([1.0, 2.0])
    jitted = nm.jit(lambda x: x * w)
    assert jitted(w).tolist() == [1, 4]
    assert jitted(nm.asarray([10.0, 10.0])).tolist() == [10, 20]


def test_a_captured_tensor_that_is_replaced():
    box = {"w": nm.ones(2)}
    f = counted(lambda x: x * box["w"])
    jitted = nm.jit(f)
    assert jitted(nm.ones(2)).tolist() == [1, 1]
    box["w"] = nm.full((2,), 3.0)
    assert jitted(nm.ones(2)).tolist() == [3, 3]
    assert f.count == 1  # the dict is read at each call


def test_two_tensors_on_one_node():
    a = nm.asarray([1.0, 2.0])
    b = a.reshape(2)
    jitted = nm.jit(lambda x: x + 10 * a + 100 * b)
    assert jitted(nm.zeros(2)).tolist() == [110, 220]
    a += 1
    assert jitted(nm.zeros(2)).tolist() == [220, 330]


def test_in_place_changes_are_written_back():
    count, total = nm.asarray(0), nm.zeros(2)

    @nm.jit
    def step(x):
        nonlocal count, total
        count += 1
        total *= 0.5
        total += x
        return total * 2

    for k in range(1, 5):
        before = total.numpy()
        got = step(nm.full((2,), float(k)))
        assert count.item() == k
        np.testing.assert_array_equal(total.numpy(), before * 0.5 + k)
        np.testing.assert_array_equal(got.numpy(), 2 * total.numpy())


def test_changes_of_arguments_are_the_callers():
    f = counted(lambda x, y: x.assign(x * y) + 1)
    jitted = nm.jit(f)
    for k in (2.0, 3.0):
        x = nm.ones(2)
        assert jitted(x, nm.full((2,), k)).tolist() == [k + 1] * 2
        assert x.tolist() == [k] * 2
    assert f.count == 1
    x = nm.full((2,), 3.0)
    assert jitted(x, x).tolist() == [10, 10]  # one tensor, twice
    assert x.tolist() == [9, 9]
    assert f.count == 2


def test_a_changed_tensor_that_is_reached_in_two_ways():
    w = nm.ones(2)

    def step(x):
        nonlocal w
        w += 1
        return x * w

    jitted = nm.jit(step)
    assert jitted(nm.ones(2)).tolist() == [2, 2]
    assert jitted(w).tolist() == [9, 9]
    assert w.tolist() == [3, 3]


def test_a_tensor_that_is_written_and_never_read():
    w = nm.zeros(3)
    jitted = nm.jit(lambda: w.assign(nm.random.uniform((3,))))
    jitted()
    first = w.tolist()
    jitted()
    assert w.tolist() != first


def test_old_values_are_those_of_results_and_not_of_views():
    w = nm.asarray([1.0, 2.0])

    @nm.jit
    def step():
        nonlocal w
        w += 1

    pending, view, seen = w * 10, w[:1], w.detach()
    with w.data() as lent:
        step()
        step()
        assert lent.tolist() == [1, 2]
    assert w.tolist() == [3, 4]
    assert pending.tolist() == [10, 20]
    assert view.tolist() == [3]
    assert seen.tolist() == [3, 4]


@pytest.mark.parametrize("clear", ["none", "before", "after"])
def test_a_training_step(clear):
    def train(wrap):
        w, b = leaf([[0.1, -0.2], [0.3, 0.4], [0.5, -0.6]]), leaf([0.0, 0.0])
        m = [nm.zeros_like(w), nm.zeros_like(b)]

        def step(x, y, lr):
            if clear == "before":
                w.grad = b.grad = None
            loss = ((nm.tanh(x @ w + b) - y) ** 2).mean()
            loss.backward()
            with nm.no_grad():
                for p, s in zip((w, b), m, strict=True):
                    s *= 0.9
                    s += p.grad
                    p -= lr * s
            if clear == "after":
                w.grad = b.grad = None
            return loss

        step = counted(step)
        run = wrap(step)
        losses = []
        for i in range(6):
            x, y = arrays((5, 3), (5, 2), seed=i)
            losses.append(run(x, y, 0.1 / (i + 1)).item())
        grads = [None if p.grad is None else p.grad.numpy() for p in (w, b)]
        return losses, w.numpy(), b.numpy(), grads, step.count, w

    plain, jitted = train(lambda f: f), train(nm.jit)
    np.testing.assert_allclose(plain[0], jitted[0], rtol=1e-6)
    np.testing.assert_allclose(plain[1], jitted[1], rtol=1e-5)
    np.testing.assert_allclose(plain[2], jitted[2], rtol=1e-5)
    assert jitted[4] == (2 if clear == "none" else 1)
    assert jitted[5].requires_grad
    assert jitted[5].is_leaf
    for a, b in zip(plain[3], jitted[3], strict=True):
        if clear == "after":
            assert a is None
            assert b is None
        else:
            np.testing.assert_allclose(a, b, rtol=1e-4)


def test_gradients_changed_in_place():
    def train(wrap):
        w = leaf([1.0, 2.0])
        others = []

        def step(x):
            (w * x).sum().backward()
            w.grad *= 0.5
            return w.grad.sum()

        run = wrap(step)
        for i in range(3):
            others.append(run(nm.full((2,), float(i))).item())
        return others, w.grad.tolist()

    assert train(lambda f: f) == train(nm.jit)


def test_leaves_among_the_arguments():
    @nm.jit
    def step(w, x):
        (w * x).sum().backward()
        return (w * x).sum().detach()

    for _ in range(2):
        w = leaf([1.0, 2.0])
        assert step(w, nm.asarray([3.0, 4.0])).item() == 11
        assert w.grad.tolist() == [3, 4]


def test_autograd_grad_of_a_captured_leaf():
    w = leaf([1.0, 2.0])
    jitted = nm.jit(lambda x: nm.autograd.grad((w * w * x).sum(), [w])[0])
    for k in (1.0, 2.0):
        assert jitted(nm.full((2,), k)).tolist() == [2 * k, 4 * k]
    assert w.grad is None


def test_random_draws_are_those_of_plain_calls():
    def f(x):
        return x + nm.random.normal((3,)), nm.random.uniform((2,))

    runs = []
    for g in (f, nm.jit(f)):
        nm.random.seed(5)
        runs.append([[y.tolist() for y in g(nm.zeros(3))] for _ in range(3)])
        runs.append(nm.random.get_state())
    assert runs[0] == runs[2]
    assert runs[1] == runs[3]
    assert runs[0][0] != runs[0][1]
    with pytest.raises(TracingError, match="outside"):
        nm.jit(lambda: nm.random.seed(0))()
