"""nm.jit: memory that calls use again, the log, many calls, and threads."""

import gc

import numpy as np
import pytest
import simt_machine
from in_threads import in_threads
from jit_calls import arrays

import numus as nm
from numus import nn, optim
from numus.errors import TracingError

simt_machine.install()
IN_PLACE = nm.device().on_host  # others than NVIDIA's of late write beside what they read


def address(x):
    return x._node.view.storage.memory.address


def test_solely_referenced_tensors_are_updated_in_place():
    w, m = nm.asarray(np.ones(1000, np.float32)), nm.asarray(np.zeros(1000, np.float32))

    @nm.jit
    def step(g):
        nonlocal w, m
        m *= 0.5
        m += g
        w -= 0.1 * m

    g = arrays((1000,))[0]
    want_w, want_m = w.numpy(), m.numpy()
    for k in range(4):
        step(g)
        if k == 0:  # the trace has made new ones
            places = address(w), address(m)
        want_m = want_m * np.float32(0.5) + g.numpy()
        want_w = want_w - np.float32(0.1) * want_m
        np.testing.assert_allclose(w.numpy(), want_w, rtol=1e-6)
        np.testing.assert_allclose(m.numpy(), want_m, rtol=1e-6)
        assert not IN_PLACE or (address(w), address(m)) == places
    held = w.detach()
    step(g)
    np.testing.assert_array_equal(held.numpy(), w.numpy())  # a view sees what is written
    assert not IN_PLACE or address(m) == places[1]


@pytest.mark.parametrize(("kind", "in_place"), [("simt_sm90", True), ("simt_sm80", False)])
def test_kernels_of_gpus_with_dependent_launches_update_in_place(kind, in_place):
    size = 20_003
    w, m = (nm.asarray(x, device=kind) for x in np.ones((2, size), np.float32))

    @nm.jit
    def step(g):
        nonlocal w, m
        m *= 0.5
        m += g
        w -= g * g  # the machine loads again what is used after a store

    g = arrays((size,))[0]
    want_w, want_m = np.ones((2, size), np.float32)
    for k in range(3):
        step(g.to(kind))
        if k == 0:
            places = address(w), address(m)
        want_m = want_m * np.float32(0.5) + g.numpy()
        want_w = want_w - g.numpy() ** 2
        np.testing.assert_allclose(w.numpy(), want_w, rtol=1e-6)
        np.testing.assert_allclose(m.numpy(), want_m, rtol=1e-6)
    assert ((address(w), address(m)) == places) is in_place


def test_gradients_that_a_step_replaces_make_room_for_the_new_ones():
    w = given = nm.ones((1 << 16,), device="null").requires_grad_()
    nm.eval(w)

    @nm.jit
    def step(x):
        given.grad = None
        loss = (given * x).sum()
        loss.backward()
        return loss

    x = nm.ones((), device="null")
    for _ in range(3):
        step(x)
    runtime = nm.device("null").runtime
    runtime.reset()
    step(x)
    held = runtime.counts.bytes_in_use
    assert w.grad is not None
    assert runtime.counts.peak < held + w.nbytes


def test_values_of_the_first_call_are_freed():
    w = nm.asarray(np.ones(1 << 20, np.float32))

    @nm.jit
    def step(x):
        nonlocal w
        w += x

    x = nm.ones(())
    nm.eval(x)
    gc.collect()
    before = nm.memory_stats()["in_use"]
    for _ in range(3):
        step(x)
    gc.collect()
    assert nm.memory_stats()["in_use"] < before + (1 << 20)


def test_a_trace_keeps_no_values_until_the_garbage_collector_runs():
    """Its nodes and numbers refer to it, and what it met may be all of a model."""
    w = nm.ones((1 << 16,), device="null")
    nm.eval(w)

    @nm.jit
    def step(x, rate):
        nonlocal w
        w = w + x * (rate * 2)

    x = nm.ones((), device="null")
    counts = nm.device("null").runtime.counts
    gc.collect()
    gc.disable()
    try:
        before = counts.bytes_in_use
        step(x, 0.5)
        assert counts.bytes_in_use < before + w.nbytes
    finally:
        gc.enable()


def test_what_is_read_elsewhere_is_not_overwritten():
    w = nm.asarray(np.arange(6.0).reshape(2, 3), dtype=nm.float32)

    @nm.jit
    def shift(x):
        nonlocal w
        w += nm.roll(w, 1, axis=1) * x  # each element is read for two

    want = w.numpy()
    for _ in range(3):
        shift(nm.ones(()))
        want = want + np.roll(want, 1, axis=1)
        np.testing.assert_array_equal(w.numpy(), want)

    v = nm.asarray(np.arange(9.0).reshape(3, 3), dtype=nm.float32)

    @nm.jit
    def turn():
        nonlocal v
        old = v + 0
        v += v.T
        return old @ old + v.sum(0)

    want = v.numpy()
    got = turn()
    np.testing.assert_array_equal(got.numpy(), want @ want + (want + want.T).sum(0))
    np.testing.assert_array_equal(v.numpy(), want + want.T)


def test_donated_arguments():
    jitted = nm.jit(lambda p, g: (p - 0.1 * g, g.sum()), donate=0)
    g = nm.ones(1000)
    p = nm.asarray(np.ones(1000, np.float32))
    place = address(p)
    for k in range(3):
        q, _ = jitted(p, g)
        assert not IN_PLACE or address(q) == place
        np.testing.assert_allclose(q.numpy(), 1 - 0.1 * (k + 1), rtol=1e-6)
        for use in (lambda x: x + 1, lambda x: x.numpy()):
            with pytest.raises(TracingError, match="donated"):
                use(p)
        p = q
    kept = p.detach()
    q, _ = jitted(p, g)
    np.testing.assert_allclose(kept.numpy(), 0.7, rtol=1e-6)
    assert q.shape == (1000,)


def test_the_log_says_why_a_function_was_traced_again():
    box = {"w": nm.ones(2)}
    jitted = nm.jit(lambda x, flag=False: x * box["w"].sum())
    jitted(nm.ones(3))
    jitted(nm.ones(4))
    jitted(nm.ones(4), True)
    box["w"] = nm.zeros(3)
    jitted(nm.ones(4))
    notes = [r.notes[0] for r in nm.compile_log() if r.cause == "traced"][-4:]
    assert notes[0] == "the first call"
    device = nm.device()
    assert notes[1] == f"argument 0: float32[4] on {device} where float32[3] on {device} was"
    assert "the arguments differ" in notes[2]
    assert "captured" in notes[3]


def test_explain_shows_the_program_and_its_memory():
    jitted = nm.jit(lambda x: nm.softmax(x @ x, axis=-1))
    found = nm.explain(jitted, nm.ones((32, 32)))
    assert len(found.programs) == 1
    assert found.peak_bytes >= 32 * 32 * 4


# -- many calls -----------------------------------------------------------------------------------


def test_many_calls_hold_no_memory_and_give_the_same_bits():
    x = arrays((64,))[0]
    total = nm.zeros(64)

    @nm.jit
    def f(x):
        nonlocal total
        total += x
        return nm.sin(x) * 2 + x.sum()

    first = f(x).numpy()
    in_use = nm.memory_stats()["in_use"]
    objects = len(gc.get_objects())
    for _ in range(20_000):
        y = f(x)
    np.testing.assert_array_equal(y.numpy(), first)
    assert nm.memory_stats()["in_use"] <= in_use + 4096
    assert len(gc.get_objects()) < objects + 1000


# -- threads --------------------------------------------------------------------------------------


def test_calls_from_several_threads():
    w, total = nm.asarray([1.0, 2.0]), nm.zeros(2)

    @nm.jit
    def f(x, y):
        nonlocal total
        total += x
        return (x * w + y).sum()

    def work(k):
        for i in range(40):
            x = nm.full((2,), float(k + i))
            got = f(x, nm.ones(2 + 0 * k)).item()
            assert got == (k + i) * 3 + 2

    in_threads(work, 4)
    assert total.tolist() == [sum(k + i for k in range(4) for i in range(40))] * 2


@pytest.mark.parametrize("first", [True, False])
def test_a_step_that_drops_gradients_serves_with_and_without_them(first):
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1)
    x = nm.ones((4, 3))
    traces = []

    @nm.jit
    def step(x):
        traces.append(1)
        if first:
            optimizer.zero_grad()
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        if not first:
            model.zero_grad()
        return loss

    for _ in range(3):
        step(x)
    assert len(traces) == 1
    assert (model.weight.grad is None) is not first


def test_a_gradient_that_is_dropped_goes_though_there_was_none_at_first():
    w = nm.ones(3).requires_grad_()

    @nm.jit
    def forget(x):
        w.grad = None
        return x + w.detach()

    forget(nm.ones(3))
    w.grad = nm.ones(3)
    forget(nm.ones(3))
    assert w.grad is None
