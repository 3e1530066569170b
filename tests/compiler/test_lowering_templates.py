"""Templates of lowered groups: new sizes of a known structure are not lowered again, and get the
kernels and numbers that lowering gives."""

import numpy as np
import pytest

import numus as nm
from numus.compiler import hooks
from numus.compiler.lower import templates
from numus.compiler.lower.dispatch import lower_group
from numus.compiler.plan import clear_plans
from numus.ir import kernel_text
from numus.ir.symbolic_size import Recorder, decide


def _nothing(*plan):
    """A hook."""


@pytest.fixture
def checked(monkeypatch):
    """Compares all that templates give with lowering; counts (instantiated, lowered). Plans are
    full ones, as hooks ask for them: resized ones lower only what is new."""
    clear_plans()
    counts = {"groups": 0, "recorded": 0}
    lower, record = templates.lower, templates._record

    def compared(group, layouts, values, runtime):
        got = lower(group, layouts, values, runtime)
        wanted = lower_group(group, layouts, runtime.target)
        counts["groups"] += 1
        assert len(got) == len(wanted)
        for a, b in zip(got, wanted, strict=True):
            assert kernel_text(a.kernel) == kernel_text(b.kernel)
            assert (a.grid, a.scratch, a.scalars) == (b.grid, b.scratch, b.scalars)
            assert a.kernel.scalars == b.kernel.scalars
            for x, y in zip(a.buffers, b.buffers, strict=True):
                assert x is y or (x.id < 0 > y.id)
                assert (x.op, x.shape, x.dtype) == (y.op, y.shape, y.dtype)
            numbers = [a.grid, *a.scratch, *(n for x in a.buffers for n in x.shape)]
            assert all(type(n) is int for n in numbers)
        return got

    def counted(*args):
        counts["recorded"] += 1
        return record(*args)

    monkeypatch.setattr(templates, "lower", compared)
    monkeypatch.setattr(templates, "_record", counted)
    hooks.before_run.append(_nothing)
    yield counts
    hooks.before_run.remove(_nothing)
    clear_plans()


def softmax(n):
    x = nm.random.normal((n, 2 * n + 1))
    return nm.softmax(x, axis=-1), x.sum(axis=0), x.mean(), x.T.var(axis=1)


def views(n):
    x = nm.arange(3 * n).reshape(n, 3).astype(nm.float32)
    return x[-1], x[:, ::-1] * 2, nm.concat([x, x[:2]], axis=0), nm.flip(x, axis=0).T + 1


def linear(n):
    x, w = nm.random.normal((n, 24)), nm.random.normal((24, 40))
    return nm.relu(x @ w + 1), (w.T @ x.T).sum(), nm.random.normal((3, n, 8)) @ w[:8]


def others(n):
    x = nm.random.normal((2, n))
    return nm.cumsum(x, axis=1), nm.sort(x, axis=-1), nm.argmax(x, axis=0), nm.exp(x * (1 + 2j))


def attention(n):
    q = nm.random.normal((2, n, 16))
    return nm.scaled_dot_product_attention(q, q, q, is_causal=True)


def convolution(n):
    return nm.conv2d(nm.random.normal((1, 2, n + 2, 9)), nm.random.normal((3, 2, 3, 3)), padding=1)


@pytest.mark.parametrize("f", [softmax, views, linear, others, attention, convolution])
def test_numbers_are_those_of_lowering(f, checked):
    for n in (1, 2, 5, 16, 17, 33, 64, 65):
        nm.eval(f(n))
    assert checked["recorded"] < checked["groups"]


def test_gradients(checked):
    def loss(x, w):
        return (nm.tanh(x @ w) ** 2).mean()

    for n in (4, 6, 9, 14, 20, 27):
        x, w = nm.random.normal((n, 12)), nm.random.normal((12, 7))
        nm.eval(nm.grad(loss, argnums=(0, 1))(x, w))
    assert checked["recorded"] < checked["groups"] * 2 / 3


def test_growing_sequences_are_lowered_once(checked):
    """Past the smallest sizes, a longer sequence of elementwise and row operations is a look-up."""

    def step(n):
        x = nm.asarray(np.ones((n, 96), "float32"))
        nm.eval(nm.softmax(x * 0.5 + 1, axis=-1), x[-1] + x[0], nm.concat([x, x[:1]], axis=0))

    for n in range(100, 104):
        step(n)
    before = checked["recorded"]
    for n in range(104, 120):
        step(n)
    assert checked["recorded"] <= before + 1


def test_recorded_arithmetic():
    recorder = Recorder([12, 5])
    a, b = recorder.symbols
    results = [
        a * b + 1,
        -(-a // b),
        a % b,
        7 - b,
        min(a, b) << 1,
        a.bit_length(),
        abs(b - a),
        a / b,
    ]
    f = recorder.function(results)
    assert f(12, 5) == (61, 3, 2, 2, 10, 4, 7, 2.4)
    assert f(20, 6) == (121, 4, 2, 1, 12, 5, 14, 20 / 6)
    assert f(5, 12) is None  # the smaller one is another


@pytest.mark.parametrize(
    "ask",
    [int, hash, str, lambda n: range(n), lambda n: [0] * n, float, "{}".format, lambda n: {n}],
)
def test_values_that_leave_are_guarded(ask):
    recorder = Recorder([12])
    ask(recorder.symbols[0])
    f = recorder.function([])
    assert f(12) == ()
    assert f(13) is None


def test_decisions_are_guarded_by_their_result():
    recorder = Recorder([12])
    assert decide(lambda n: n > 10 or n == 3, recorder.symbols[0]) is True
    f = recorder.function([1])
    assert f(11) == f(3) == (1,)
    assert f(9) is None
