"""Memory: pending graphs are bounded, and nothing that was computed stays behind."""

import gc
import os
import subprocess
import sys
import weakref

import numpy as np
import pytest

import numus as nm
from numus.compiler.plan import clear_plans
from numus.graph import Node

stats = nm.device().runtime.memory_stats
pooled = pytest.mark.skipif("in_use" not in stats(), reason="the device keeps no count of memory")

LOOP = """
import resource
import numus as nm

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

x = nm.zeros(({extent},))
(x + 1).numpy()
before = peak()
for _ in range({steps}):
    x = x + 1
assert x.tolist() == [{steps}] * {extent}
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no resource module there")
@pytest.mark.parametrize(("extent", "steps"), [(10, 100_000), (100_000, 3_000)])
def test_a_loop_that_never_asks_runs_in_constant_memory(extent, steps):
    program = LOOP.format(extent=extent, steps=steps)
    environment = {**os.environ, "NUMUS_DEVICE": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert int(done.stdout) < 100 << 20


def varied(i):
    """A graph that is like those before it, but of other sizes and numbers: few sizes, so that the
    first evaluations make all templates that are kept."""
    n = 3 + i % 5
    x = nm.asarray(np.full((n, 5), i % 7, np.float32))
    w = nm.asarray(np.full((5, 4), 0.1, np.float32), requires_grad=i % 3 == 0)
    y = nm.softmax(x @ w * (i % 11 + 0.5))
    if i % 3 == 0:
        (y * y).sum().backward()
        return w.grad
    return nm.sort(y[:, i % 4]) if i % 3 == 1 else nm.concat([y, y[::-1]]).mean(0)


def evaluate(count):
    for i in range(count):
        varied(i).numpy()
    clear_plans()  # native calls keep memory on purpose
    gc.collect()


def live_nodes():
    return sum(type(o) is Node for o in gc.get_objects())


def resident():
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pooled
@pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.slow)])
def test_evaluations_leave_nothing_behind(count):
    evaluate(900)
    nodes = live_nodes()
    in_use = stats()["in_use"]
    size = resident() if sys.platform == "linux" else 0
    evaluate(count)
    assert stats()["in_use"] <= in_use
    assert live_nodes() <= nodes
    if sys.platform == "linux":
        assert resident() - size < 20 << 20


@pooled
def test_intermediate_values_go_when_nobody_holds_them():
    x = nm.asarray(np.ones((100, 100), np.float32))
    y = nm.exp(x)
    z = (y + 1).sum()
    held = weakref.ref(y._node)
    del y
    z.item()
    assert held() is None
    before = stats()["in_use"]
    big = nm.exp(x) * 2
    nm.eval(big)
    assert big.nbytes <= stats()["in_use"] - before < 2 * big.nbytes
    del big
    assert stats()["in_use"] == before


@pooled
def test_gradients_hold_what_they_need_and_let_it_go():
    w = nm.asarray(np.ones((200, 200), np.float32), requires_grad=True)
    nm.eval(w)
    gc.collect()
    before = stats()["in_use"]
    loss = nm.tanh(w @ w).sum()
    nm.eval(loss)
    loss.backward()
    nm.eval(w.grad)
    del loss
    w.grad = None
    gc.collect()
    assert stats()["in_use"] == before


@pooled
def test_an_error_leaves_nothing_behind():
    """Memory of a program that cannot be run goes back; the next one runs."""
    x = nm.asarray(np.ones(10, np.float32))
    before = stats()["in_use"]
    with pytest.raises((MemoryError, ValueError)):
        nm.eval(nm.broadcast_to(x, (1 << 40, 10)) + 1)
    gc.collect()
    assert stats()["in_use"] == before
    assert (x + 1).tolist() == [2.0] * 10
