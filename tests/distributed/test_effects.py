"""Collectives are effects: they run as often as they are called, whatever their operands are."""

import numpy as np
import pytest

import numus as nm
from numus.distributed import calls

dist = nm.distributed


@pytest.fixture
def begun():
    """Names of the collectives that have begun."""
    found = []
    watcher = lambda key, call, state: state and found.append(call.kind)
    calls.watchers.append(watcher)
    yield found
    calls.watchers.remove(watcher)


def counted(begun, function, *args):
    """How many collectives a call begins, and what it gives."""
    before = len(begun)
    result = function(*args)
    return len(begun) - before, result


def test_a_constant_in_a_traced_function(begun):
    @nm.jit
    def step(x):
        ones = nm.ones(3)
        dist.broadcast(nm.zeros(2))  # not used
        return x + dist.all_reduce(ones) + dist.all_gather(ones * 2)

    for i in range(4):
        count, y = counted(begun, step, nm.full((3,), float(i)))
        assert count == 3
        assert y.tolist() == [i + 3.0] * 3


def test_a_constant_is_all_there_is(begun):
    step = nm.jit(lambda: dist.all_reduce(nm.arange(3.0), "mean"))
    for _ in range(3):
        count, y = counted(begun, step)
        assert (count, y.tolist()) == (1, [0.0, 1.0, 2.0])


def test_a_constant_with_gradients(begun):
    @nm.jit
    def step(x):
        w = nm.ones(2, requires_grad=True)
        (dist.all_reduce(w) * x).sum().backward()
        return w.grad

    for i in range(3):
        count, grad = counted(begun, step, nm.full((2,), float(i)))
        assert (count, grad.tolist()) == (2, [float(i)] * 2)


@pytest.mark.parametrize("wrap", [nm.jit, lambda f: f], ids=["jit", "eager"])
def test_a_loop(begun, wrap):
    """Each iteration calls them, of a constant and of a value from outside."""

    @wrap
    def loop(x):
        def iteration(carry, _):
            return carry + dist.all_reduce(nm.ones(2)) + dist.all_reduce(x), None

        return nm.scan(iteration, nm.zeros(2), nm.arange(3.0))[0]

    for i in range(2):
        count, y = counted(begun, loop, nm.full((2,), float(i)))
        assert (count, y.tolist()) == (6, [3.0 * (1 + i)] * 2)

    @wrap
    def until(x):
        return nm.while_loop(lambda x: (x < 4).all(), lambda x: x + dist.all_reduce(nm.ones(2)), x)

    for i in range(2):
        assert counted(begun, until, nm.full((2,), float(i)))[0] == 4 - i


@pytest.mark.parametrize("wrap", [nm.jit, lambda f: f], ids=["jit", "eager"])
def test_results_that_nobody_uses(begun, wrap):
    @wrap
    def loop(x):
        def iteration(carry, k):
            dist.all_gather(carry + 1)
            dist.all_reduce((nm.ones((1, 2)) + k) * 1j)
            return carry, None

        return nm.scan(iteration, x, nm.arange(3.0))[0]

    for _ in range(2):
        count, y = counted(begun, loop, nm.ones(2))
        assert (count, y.tolist()) == (6, [1.0, 1.0])

    @wrap
    def until(x):
        def step(x):
            dist.all_reduce(x)
            return x + 1

        return nm.while_loop(lambda x: x < 3, step, x)

    count, y = counted(begun, until, nm.asarray(0.0))
    assert (count, y.item()) == (3, 3.0)


@pytest.mark.parametrize("wrap", [nm.jit, lambda f: f], ids=["jit", "eager"])
def test_a_branch(begun, wrap):
    """The effects of the branch that is taken."""

    def one(x):
        dist.all_gather(x)
        return x + dist.all_reduce(nm.ones(2))

    choose = wrap(lambda p, x: nm.cond(p, one, lambda x: x * 2, x))
    for i, p in enumerate((True, False, True)):
        count, y = counted(begun, choose, nm.asarray(p), nm.full((2,), i + 2.0))
        assert (count, y.tolist()) == ((2, [i + 3.0] * 2) if p else (0, [2 * (i + 2.0)] * 2))


def test_a_loop_in_vmap_and_its_derivative(begun):
    def loop(x):
        def iteration(carry, k):
            return carry * k + dist.all_reduce(x * 2), None

        return nm.scan(iteration, x, nm.arange(1.0, 4.0))[0].sum()

    xs = np.arange(6.0).reshape(3, 2)
    count, found = counted(begun, nm.vmap(nm.grad(loop)), nm.asarray(xs))
    assert count >= 3
    # ((x + 2x) * 2 + 2x) * 3 + 2x
    np.testing.assert_allclose(found.numpy(), np.full((3, 2), 26.0))
