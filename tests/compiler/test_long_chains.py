"""Long elementwise expressions: cut into pieces that share kernels, with the same results."""

import numpy as np
import pytest

import numus as nm
from numus.compiler.fusion.tuning import TUNING, FusionTuning
from numus.compiler.plan import clear_plans

NULL = nm.device("null")


def damped(state):
    (x,) = state
    return (x * 0.99 + nm.sin(x) * 0.01,)


def sine(state):
    return (nm.sin(state[0]),)


def pendulum(state):
    x, v = state
    return x + 0.01 * v, v - 0.01 * nm.sin(x)


def logistic_of_rows(state):
    x, scale = state
    return scale * x * (1 - x), scale


LOOPS = [(damped, 1), (sine, 1), (pendulum, 2), (logistic_of_rows, 2)]


def start(count, device=None):
    x = np.linspace(0.1, 0.9, 35, dtype="float32").reshape(5, 7)
    return tuple(nm.asarray(x[i:] if i == 0 else x[0], device=device) for i in range(count))


def repeat(turn, state, count):
    for _ in range(count):
        state = turn(state)
    return state[0]


def cut_after(monkeypatch, max_code_size):
    limits = FusionTuning(max_code_size=max_code_size, min_piece_size=max_code_size // 2)
    monkeypatch.setattr("numus.compiler.fusion.long_chains.TUNING", limits)
    clear_plans()


@pytest.mark.parametrize(("turn", "count"), LOOPS)
@pytest.mark.parametrize("jitted", [False, True])
def test_results_are_those_of_single_turns(turn, count, jitted, monkeypatch):
    cut_after(monkeypatch, 32)

    def whole(*state):
        return repeat(turn, state, 40)

    got = (nm.jit(whole) if jitted else whole)(*start(count))
    state = start(count)
    for _ in range(40):
        state = turn(state)
        nm.eval(state)
    np.testing.assert_array_equal(got.numpy(), state[0].numpy())


@pytest.mark.parametrize(("turn", "count"), LOOPS)
def test_gradients_are_those_of_one_kernel(turn, count, monkeypatch):
    def gradients():
        return nm.grad(lambda *state: repeat(turn, state, 12).sum())(*start(count)).numpy()

    cut_after(monkeypatch, 1 << 30)
    whole = gradients()
    cut_after(monkeypatch, 24)
    np.testing.assert_array_equal(gradients(), whole)


@pytest.mark.parametrize(("turn", "count"), LOOPS)
def test_number_of_kernels_does_not_grow(turn, count):
    def compiled(turns):
        state = start(count, NULL)
        NULL.runtime.reset()
        nm.eval(nm.jit(lambda *s: repeat(turn, s, turns))(*state))
        found = NULL.runtime.launched
        NULL.runtime.reset()
        return len(found), len(set(found))

    launches, distinct = compiled(400)
    more_launches, as_distinct = compiled(800)
    assert distinct <= as_distinct <= 4
    assert launches < more_launches < 2.5 * launches


def test_pieces_of_a_gradient_share_kernels():
    def f(x):
        return repeat(sine, (x,), 200).sum()

    (x,) = start(1, NULL)
    NULL.runtime.reset()
    nm.eval(nm.jit(nm.grad(f))(x))
    found = NULL.runtime.launched
    NULL.runtime.reset()
    assert len(set(found)) <= 8 < len(found)


def test_short_expressions_stay_one_kernel():
    (x,) = start(1, NULL)
    NULL.runtime.reset()
    nm.eval(repeat(damped, (x,), TUNING.max_code_size // 16))
    assert NULL.runtime.reset().kernels == 1


def test_independent_expressions_are_not_cut():
    """Together they are long, each by itself is not."""
    xs = [nm.asarray(np.ones((3, n), "float32"), device=NULL) for n in range(2, 40)]
    nm.eval(xs)
    NULL.runtime.reset()
    nm.eval([repeat(damped, (x,), 3) for x in xs])
    assert NULL.runtime.reset().kernels == len(xs)
