"""Long elementwise expressions: cut into pieces that share kernels, with the same results."""

import sys

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


# -- work of a compilation -------------------------------------------------------------------------


def sines(turns):
    """The gradient of repeated sines: each turn's value is kept for its derivative."""
    (x,) = start(1, NULL)
    nm.eval(x)
    nm.eval(nm.grad(lambda x: repeat(sine, (x,), turns).sum())(x))


def jitted_sines(turns):
    (x,) = start(1, NULL)
    nm.eval(nm.jit(nm.grad(lambda x: repeat(sine, (x,), turns).sum()))(x))


def jitted_adds(turns):
    (x,) = start(1, NULL)
    nm.eval(nm.jit(lambda x: repeat(lambda s: (s[0] + 1,), (x,), turns))(x))


def work(program, turns):
    """Python calls that a program makes, with nothing planned before, and the text of the kernels
    that it has to compile."""
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call"

    clear_plans()
    NULL.runtime.reset()
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        program(turns)
    finally:
        sys.setprofile(before)
    text = sum(len(kernel.text) for kernel in set(NULL.runtime.launched))
    NULL.runtime.reset()
    return calls, text


def check_growth(program, turns):
    program(turns)  # imports and inline caches
    calls, text = work(program, turns)
    more_calls, more_text = work(program, 2 * turns)
    assert more_calls < 2.5 * calls
    assert more_text < 2.5 * text


@pytest.mark.parametrize("program", [sines, jitted_sines, jitted_adds])
def test_work_grows_no_faster_than_the_length(program):
    check_growth(program, 120 if program is sines else 400)


def test_kernels_that_keep_their_values_stay_short():
    """A gradient's tape stores each turn, so nothing is inline; code is bounded all the same."""
    work_of = []
    for turns in (60, 120):
        (x,) = start(1, NULL)
        nm.eval(x)
        NULL.runtime.reset()
        nm.eval(nm.grad(lambda x, n=turns: repeat(sine, (x,), n).sum())(x))
        notes = [kernel.notes for kernel in NULL.runtime.launched]
        NULL.runtime.reset()
        work_of.append(max(ops.count("sin") + ops.count("cos") for ops in notes))
    assert max(work_of) <= TUNING.max_expensive_members


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "turns"), [(sines, 400), (jitted_sines, 400), (jitted_adds, 8000)]
)
def test_work_of_long_programs_grows_no_faster_than_their_length(program, turns):
    check_growth(program, turns)
