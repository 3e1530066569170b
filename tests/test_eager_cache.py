"""The eager plan cache: small graphs evaluated by fast calls from the second time on."""

from __future__ import annotations

import os
import random
import time

import numpy as np
import pytest
from in_threads import in_threads

import numus as nm
from numus import runtime
from numus.compiler.plan import clear_plans
from numus.dispatch import call_cache
from numus.dispatch.call_cache import eager_calls
from numus.evaluation.eager_cache import TUNING
from numus.runtime.pycall import vm

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]


@pytest.fixture(autouse=True)
def _anew():
    clear_plans()
    yield
    clear_plans()


def tensor(*shape, seed=0):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))
    nm.eval(x)
    return x


def native():
    """How many structures have a fast call."""
    return sum(
        type(call).__name__.startswith("builtin") for call in eager_calls.structures.values()
    )


def test_the_third_is_like_the_first():
    x, y = tensor(5, 6), tensor(5, 6, seed=1)
    for i in range(4):
        z = x * y
        nm.eval(z)
        assert np.array_equal(z.numpy(), x.numpy() * y.numpy())
        assert native() == (i > 0)


def test_repeated_operands():
    x, y = tensor(4), tensor(4, seed=1)
    for _ in range(3):
        for a, b in ((x, x), (x, y), (y, y), (y, x)):
            assert np.array_equal((a + b).numpy(), a.numpy() + b.numpy())


@pytest.mark.parametrize("first", [(0, 1, 1), (0, 1, 2)])
def test_three_operands(first):
    """Whether two of them are one is seen, whichever came first."""
    xs = [tensor(9) > 0, tensor(9, seed=1), tensor(9, seed=2)]
    nm.eval(*xs)
    for pattern in [first, first, (0, 1, 2), (0, 1, 1), (0, 2, 1)] * 3:
        mask, a, b = (xs[i] for i in pattern)
        expected = np.where(mask.numpy(), a.numpy(), b.numpy())
        assert np.array_equal(nm.where(mask, a, b).numpy(), expected)


def test_layouts_and_offsets():
    x = tensor(6, 8)
    views = [x, x[1:], x[:, 2:], x.T, x[::2], x[2:4, 1:3]]
    for view in views * 3:
        assert np.array_equal(nm.exp(view).numpy(), nm.exp(nm.asarray(view.numpy())).numpy())


def test_empty_and_large_results():
    for n in (0, 1, 100_000):
        x = tensor(n)
        for _ in range(3):
            assert np.array_equal((x + x).numpy(), x.numpy() * 2)


def test_referenced_results_are_not_recycled():
    xs = [tensor(7, seed=i) for i in range(10)]
    seen = [np.asarray(x + x) for x in xs]
    held = [x + x for x in xs]
    for y in held:
        nm.eval(y)
    for x, y, array in zip(xs, held, seen, strict=True):
        assert np.array_equal(y.numpy(), x.numpy() * 2)
        assert np.array_equal(array, x.numpy() * 2)


def test_gradients_go_through():
    for _ in range(4):
        x = tensor(3)
        x.requires_grad = True
        y = x * x
        nm.eval(y)  # its history is kept
        y.sum().backward()
        assert np.allclose(x.grad.numpy(), 2 * x.numpy())


def test_memory_is_given_back():
    x = tensor(5000)
    for _ in range(3):
        nm.eval(x + x)
    stats = nm.device().runtime.memory_stats
    before = stats()["in_use"]
    for _ in range(100):
        nm.eval(x + x)
    assert stats()["in_use"] == before
    clear_plans()
    assert stats()["in_use"] < before


@pytest.mark.on_cpu("threads")
def test_another_number_of_threads():
    x = tensor(200, 200)
    expected = (x @ x).numpy()
    cpu = runtime.get("cpu")
    before = cpu.get_num_threads()
    try:
        for count in (1, 3, 2):
            cpu.set_num_threads(count)
            for _ in range(4):
                assert np.array_equal((x @ x).numpy(), expected)
            assert native() == 1
    finally:
        cpu.set_num_threads(before)


def test_one_node_from_two_threads():
    x = tensor(64, 64)
    expected = (x @ x).numpy()
    for _ in range(50):
        y = x @ x
        found = in_threads(lambda _, y=y: y.numpy(), 2)
        assert all(np.array_equal(f, expected) for f in found)


def test_explanations_see_them():
    x = tensor(4)
    for _ in range(3):
        nm.eval(x + x)
    assert "add" in str(nm.explain(lambda: x + x))


def test_devices_without_fast_calls():
    x = tensor(4)
    for place in ("reference", "cpu"):
        moved = nm.asarray(np.arange(4.0, dtype=np.float32), device=place)
        for _ in range(4):
            y = moved + moved
            assert np.array_equal(y.numpy(), 2 * np.arange(4))
            assert y.device == place
            z = x.to(place)  # what crosses over is no operation of one device
            assert np.array_equal(z.numpy(), x.numpy())


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(eager_calls, "max_structures", 4)
    monkeypatch.setattr(eager_calls, "max_sites", 32)
    for n in range(1, 20):
        x = tensor(n)
        for _ in range(3):
            assert np.array_equal((x + x).numpy(), x.numpy() * 2)
    assert len(eager_calls.structures) <= 4
    assert len(eager_calls.sites) <= 32


# -- several operations ----------------------------------------------------------------------


def test_a_small_graph_is_one_fast_call():
    x, y, z = (tensor(5, 5, seed=i) for i in range(3))
    a, b, c = (t.numpy() for t in (x, y, z))
    for i in range(4):
        found = (x + y) * z - nm.abs(x + y)
        nm.eval(found)
        np.testing.assert_allclose(found.numpy(), (a + b) * c - abs(a + b), rtol=1e-6)
        assert native() == (i > 0)


def test_constants_are_compared_by_bits():
    x = tensor(6)
    a = x.numpy()
    for _ in range(3):
        for number in (2.0, 3.0, 0.0, -0.0, 1, True, float("nan"), float("inf")):
            found = (nm.abs(x) + 1) / (x * number)
            with np.errstate(all="ignore"):
                want = (abs(a) + np.float32(1)) / (a * np.float32(number))
            np.testing.assert_array_equal(found.numpy(), want)


def test_referenced_intermediates_are_kept():
    x, y = tensor(9), tensor(9, seed=1)
    for hold in (False, False, False, True, True, False, True):
        way = x + y
        found = way * x
        if not hold:
            del way
        nm.eval(found)
        assert np.array_equal(found.numpy(), (x.numpy() + y.numpy()) * x.numpy())
        if hold:
            assert np.array_equal(way.numpy(), x.numpy() + y.numpy())


def test_operands_of_small_graphs_that_are_one_or_views():
    x, y = tensor(6, 6), tensor(6, 6, seed=1)
    for a, b, c in [(x, y, x), (x, x, x), (x, y, y), (x.T, y, x[::-1]), (y, x.T, x.T)] * 3:
        found = (a + b) * (c - a)
        p, q, r = (t.numpy() for t in (a, b, c))
        np.testing.assert_array_equal(found.numpy(), (p + q) * (r - p))


def test_shapes_of_results_are_views_of_them():
    a, b = tensor(2, 3, 4, 5), tensor(2, 3, 5, 6, seed=1)
    v = tensor(5, seed=2)
    for _ in range(4):
        np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose((a @ v).numpy(), a.numpy() @ v.numpy(), rtol=1e-5, atol=1e-5)
        turned = (a + a).permute(3, 0, 2, 1).reshape(5, 2, 12)
        np.testing.assert_array_equal(
            turned.numpy(), (a.numpy() * 2).transpose(3, 0, 2, 1).reshape(5, 2, 12)
        )
    assert native() >= 3


def test_gradients_of_small_graphs():
    for _ in range(4):
        x, y = tensor(3, 3), tensor(3, 3, seed=1)
        x.requires_grad = True
        found = (x @ y + y).reshape(9)
        nm.eval(found)
        found.sum().backward()
        want = np.ones((3, 3), "f") @ y.numpy().T
        np.testing.assert_allclose(x.grad.numpy(), want, rtol=1e-5, atol=1e-6)


def test_memory_of_small_graphs_is_given_back():
    x, y = tensor(64, 64), tensor(64, 64, seed=1)
    for _ in range(4):
        nm.eval(nm.exp(x @ y + x) * 2)
    stats = nm.device().runtime.memory_stats
    before = stats()["in_use"]
    for _ in range(100):
        nm.eval(nm.exp(x @ y + x) * 2)
    assert stats()["in_use"] == before


def test_larger_graphs_take_the_slow_path():
    x = tensor(4)
    for _ in range(3):
        y = x
        for i in range(160):
            y = y + x * (i + 1)
        np.testing.assert_allclose(y.numpy(), x.numpy() * 12881, rtol=1e-4)
    assert native() == 0


def test_referenced_intermediates_come_from_the_same_call():
    x, y = tensor(9), tensor(9, seed=1)
    for i in range(5):
        way = x + y
        turned = way.reshape(3, 3)
        found = nm.exp(turned) * 2
        nm.eval(found)
        assert native() == (i > 0)
        total = x.numpy() + y.numpy()
        for held in (way, turned):
            assert held._node.view is not None
            assert held._node.inputs == ()
        np.testing.assert_array_equal(way.numpy(), total)
        np.testing.assert_array_equal(turned.numpy(), total.reshape(3, 3))
        np.testing.assert_allclose(found.numpy(), 2 * np.exp(total.reshape(3, 3)), rtol=1e-6)


def test_graphs_of_one_root_primitive_are_distinguished():
    x, y, z = (tensor(4, 4, seed=i) for i in range(3))
    a, b, c = (t.numpy() for t in (x, y, z))
    cases = [
        (lambda: (x + y) * z, (a + b) * c),
        (lambda: (x - y) * z, (a - b) * c),
        (lambda: (x + y) * (x + y), (a + b) * (a + b)),
        (lambda: (x + y) * (y + x), (a + b) * (b + a)),
        (lambda: (lambda s: s * s)(x + y), (a + b) * (a + b)),
        (lambda: (x + 2.0) * z, (a + 2) * c),
        (lambda: (x + -0.0) * z, (a + -0.0) * c),
        (lambda: (x.T + y) * z, (a.T + b) * c),
        (lambda: z * (x + y), c * (a + b)),
    ]
    for _ in range(4):
        for f, want in cases:
            np.testing.assert_array_equal(f().numpy(), want)
    parts = [tensor(2, 4), tensor(2, 4, seed=1), tensor(1, 4, seed=2), tensor(1, 4, seed=3)]
    for _ in range(4):
        for chosen in (parts[:2], [*parts[2:], parts[0]], [parts[0], *parts[2:]]):
            want = np.exp(np.concatenate([t.numpy() for t in chosen]))
            np.testing.assert_allclose(nm.exp(nm.concat(chosen)).numpy(), want, rtol=1e-6)


def test_numbers_that_never_come_again():
    x = tensor(5)
    for i in range(100):
        np.testing.assert_allclose((nm.abs(x) * (i + 0.5)).numpy(), abs(x.numpy()) * (i + 0.5))
    for _ in range(70):  # until they are looked at again
        np.testing.assert_allclose((nm.abs(x) * 7.0).numpy(), abs(x.numpy()) * 7)
    assert native() >= 1


def test_every_size_that_comes_often_has_a_fast_call():
    """However many sizes of an operation came before."""
    for n in range(2, 12):
        x = tensor(n, n)
        for _ in range(call_cache.MAX_RUNS_BEFORE + TUNING.miss_interval):
            nm.eval(x + x)
        assert native() == n - 1


def test_tracked_graphs_have_fast_calls():
    w, b = tensor(4, 3), tensor(3, seed=1)
    w.requires_grad = b.requires_grad = True
    x = tensor(5, 4, seed=2)
    for i in range(3):
        nm.eval(nm.tanh(x @ w + b))
        assert native() == (i > 0)
    for _ in range(3):
        y = nm.tanh(x @ w + b)
        nm.eval(y)
        w.grad = b.grad = None
        (y * y).sum().backward()
        t = np.tanh(x.numpy() @ w.numpy() + b.numpy())
        g = 2 * t * (1 - t * t)
        np.testing.assert_allclose(b.grad.numpy(), g.sum(0), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(w.grad.numpy(), x.numpy().T @ g, rtol=1e-4, atol=1e-5)


def test_counting_and_filling_on_the_way():
    x = tensor(6)
    for i in range(4):
        found = nm.exp(x) + nm.arange(6) * 2 + nm.zeros(6)
        np.testing.assert_allclose(found.numpy(), np.exp(x.numpy()) + np.arange(6) * 2, rtol=1e-6)
        assert native() == (i > 0)


def test_parts_of_one_graph_from_many_threads():
    x, y = tensor(16, 16), tensor(16, 16, seed=1)
    total = x.numpy() + y.numpy()
    wants = [total, np.exp(total), np.exp(total) * 2 - y.numpy()]
    for _ in range(60):
        way = x + y
        ends = [way, nm.exp(way)]
        ends.append(ends[1] * 2 - y)
        found = in_threads(lambda i, ends=ends: ends[i].numpy(), 3)
        for got, want in zip(found, wants, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_several_values_are_one_call():
    x, y = tensor(6, 6), tensor(6, 6, seed=1)
    a, b = x.numpy(), y.numpy()
    for i in range(5):
        total = x + y
        root = nm.sqrt(nm.abs(total))
        both = total @ y
        turned = both.T
        nm.eval(root, both, turned, x)
        assert native() == (i > 0)
        assert all(t._node.inputs == () for t in (total, root, both, turned))
        np.testing.assert_array_equal(total.numpy(), a + b)
        np.testing.assert_allclose(root.numpy(), np.sqrt(abs(a + b)), rtol=1e-6)
        np.testing.assert_allclose(both.numpy(), (a + b) @ b, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(turned.numpy(), both.numpy().T)


def test_roots_that_depend_on_each_other():
    x = tensor(5)
    for order in ([0, 1, 2], [2, 1, 0], [1, 0, 2], [0, 2], [2, 0], [1, 1, 0]) * 3:
        first = x * 2
        second = nm.exp(first)
        third = second - first
        values = [first, second, third]
        nm.eval([values[i] for i in order])
        a = x.numpy() * 2
        for value, want in zip(values, (a, np.exp(a), np.exp(a) - a), strict=True):
            np.testing.assert_allclose(value.numpy(), want, rtol=1e-6)


def test_nothing_and_what_is_there():
    x = tensor(3)
    for _ in range(3):
        nm.eval([])
        nm.eval(x, [x, x])
        y = x + 1
        nm.eval(x, y, x, y)
        np.testing.assert_array_equal(y.numpy(), x.numpy() + 1)


def test_writers_and_hooks_force_the_slow_path():
    x, y = tensor(5), tensor(5, seed=1)
    for _ in range(3):
        nm.eval(nm.exp(x + y))
    (call,) = eager_calls.structures.values()
    with y.data_write() as a:
        a[:] = 2.0
        for _ in range(3):
            np.testing.assert_allclose(nm.exp(x + x).numpy(), np.exp(2 * x.numpy()), rtol=1e-6)
    assert list(eager_calls.structures.values()) == [call]
    assert "exp" in str(nm.explain(lambda: nm.exp(x + y)))
    assert call in eager_calls.structures.values()
    np.testing.assert_allclose(nm.exp(x + y).numpy(), np.exp(x.numpy() + 2), rtol=1e-6)


def test_a_training_step_is_one_call():
    model = nm.nn.Sequential(nm.nn.Linear(4, 8), nm.nn.ReLU(), nm.nn.Linear(8, 3))
    optimizer = nm.optim.AdamW(model.parameters(), 1e-2)
    x, y = tensor(16, 4), nm.asarray(np.arange(16) % 3)

    def step():
        optimizer.zero_grad()
        loss = nm.nn.cross_entropy_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return float(loss)

    twin = nm.nn.Sequential(nm.nn.Linear(4, 8), nm.nn.ReLU(), nm.nn.Linear(8, 3))
    twin.load_state_dict(model.state_dict())
    losses = [step() for _ in range(6)]
    before = len(eager_calls.structures)
    losses += [step() for _ in range(6)]
    assert len(eager_calls.structures) == before
    assert native() >= 1
    model, optimizer = twin, nm.optim.AdamW(twin.parameters(), 1e-2)
    again = []
    for _ in range(12):
        clear_plans()  # so that nothing comes again
        again.append(step())
    assert losses == again


def test_stress_of_many_threads():
    """Small graphs, some of them evaluated by several threads at a time; longer if asked for."""
    seconds = float(os.environ.get("NUMUS_STRESS_SECONDS", "1"))
    xs = [tensor(6, 6, seed=i) for i in range(3)]
    stack = tensor(2, 6, 6, seed=9)
    kinds = [
        lambda x, y: nm.gelu(x @ y.T + x),
        lambda x, y: nm.softmax(x + y),
        lambda x, y: (stack @ x).sum(0) * y[::-1],
        lambda x, y: nm.relu(x - y) @ x,
        lambda x, y: nm.layer_norm(x) + y.mean(),
    ]
    wants = {
        (k, i, j): f(xs[i], xs[j]).numpy()
        for k, f in enumerate(kinds)
        for i in range(3)
        for j in range(3)
    }
    last = [((0, 0, 0), kinds[0](xs[0], xs[0]))]  # what somebody has made of late
    end = time.monotonic() + seconds

    def work(seed):
        draw = random.Random(seed)
        while time.monotonic() < end:
            key = draw.randrange(len(kinds)), draw.randrange(3), draw.randrange(3)
            made = key, kinds[key[0]](xs[key[1]], xs[key[2]])
            if draw.random() < 0.3:
                last[0] = made
            if draw.random() < 0.3:
                nm.eval(made[1], last[0][1])
            for which, y in (made, last[0]):
                np.testing.assert_allclose(y.numpy(), wants[which], rtol=1e-5, atol=1e-6)

    in_threads(work, 6)


def test_views_of_a_loops_results_are_not_copied():
    xs = tensor(5, 4, 3)
    for _ in range(3):
        y = nm.scan(lambda h, x: (nm.tanh(h + x), h), nm.zeros((4, 3)), xs)[1].transpose(1, 0, 2)
        nm.eval(y)
    want = nm.scan(lambda h, x: (nm.tanh(h + x), h), nm.zeros((4, 3)), xs)[1].numpy()
    np.testing.assert_array_equal(y.numpy(), want.swapaxes(0, 1))
    assert y._node.view.strides == (3, 12, 1)
