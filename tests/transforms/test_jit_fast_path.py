"""Fast path of jitted functions: the same results, whatever happens around them.

`NUMUS_STRESS_SECONDS=60 python -m pytest tests/transforms/test_jit_fast_path.py -k stress` lets the
threads of the stress tests go on for a minute, and replays a hundred thousand times.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import threading
import time
import types
import warnings

import numpy as np
import processes
import pytest
from in_threads import in_threads

import numus as nm
from numus import runtime
from numus.dispatch.call_cache import GUARD_FAILED
from numus.evaluation import storage_lock
from numus.graph import Storage, View
from numus.primitives.source import value
from numus.runtime import launch_lock
from numus.runtime.pycall import vm
from numus.tensor import Tensor

SECONDS = float(os.environ.get("NUMUS_STRESS_SECONDS", "0.5"))
REPLAYS = 100_000 if SECONDS >= 10 else 10_000

pytestmark = [
    pytest.mark.skipif(not vm.is_supported(), reason="no fast-call VM in this Python"),
    pytest.mark.skipif(nm.device().kind not in ("cpu", "cuda"), reason="no fast calls there"),
]


def tensor(*shape, seed=0, dtype=np.float32):
    x = nm.asarray(np.random.default_rng(seed).standard_normal(shape).astype(dtype))
    nm.eval(x)
    return x


def fast_path(f):
    """The fast path of a jitted function."""
    return f.__closure__[0].cell_contents._fast_path


def warmed(function, *args):
    """A jitted function that takes its fast path."""
    f = nm.jit(function)
    f(*args)
    assert isinstance(fast_path(f), types.BuiltinFunctionType)
    return f


def same(y, expected):
    return np.array_equal(y.numpy(), expected)


def test_containers_of_tensors_take_it():
    f = nm.jit(lambda state, x: (state["w"] @ x + state["b"][0], state["b"][1]))
    w, x, b = tensor(3, 4), tensor(4, seed=1), [tensor(3, seed=2), 2.0]
    f({"w": w, "b": b}, x)
    fast = fast_path(f)
    state = {"b": [b[0] + 1, 2.0], "w": 2 * w}
    nm.eval(state)
    y, number = fast(state, x)
    wanted = 2 * w.numpy() @ x.numpy() + b[0].numpy() + 1
    np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-5, atol=1e-5)
    assert float(number) == 2.0
    for other in ({"w": w}, {"w": w, "b": b[:1]}, {"w": w, "b": tuple(b)}, w, {"w": [w], "b": b}):
        assert fast(other, x) is GUARD_FAILED


def test_results_are_those_of_the_function():
    x, y = tensor(5, 7), tensor(5, 7, seed=1)
    f = warmed(lambda x, y: (x * y + 1, nm.sum(x)), x, y)
    product, total = f(x, y)
    assert np.allclose(product.numpy(), x.numpy() * y.numpy() + 1)
    assert np.allclose(total.numpy(), x.numpy().sum(), rtol=1e-5)
    assert product.shape == (5, 7)
    assert total.shape == ()
    assert product.dtype is nm.float32
    assert product.device is nm.device()
    assert product.is_contiguous()
    assert not product.requires_grad
    more = product + 1  # they are tensors like others
    assert same(more, product.numpy() + 1)


def test_results_have_everything():
    """Native code sets each attribute as the constructors do."""
    x = tensor(4)
    short = warmed(lambda x: x + 1, x)(x)
    memory = short._node.view.storage.memory
    plain = Tensor(value(View(Storage(memory), 0, (1,)), (4,), nm.float32, nm.device()))
    for a, b in (
        (short._node, plain._node),
        (short._node.view, plain._node.view),
        (short._node.view.storage, plain._node.view.storage),
    ):
        names = set(type(a).__slots__) - {"__weakref__", "serial", "handle", "view", "storage"}
        for name in names:
            assert getattr(a, name) == getattr(b, name), name
    assert short._node.handle() is short
    assert x._node.serial < short._node.serial < plain._node.serial


def test_referenced_outputs_are_not_recycled():
    xs = [tensor(4, seed=i) for i in range(20)]
    f = warmed(lambda x: x * 2, xs[0])
    held = [f(x) for x in xs]
    for x, y in zip(xs, held, strict=True):
        assert same(y, x.numpy() * 2)


RECYCLING = """
import numus as nm

x = nm.arange(8.0)
f = nm.jit(lambda x: x + 1)
y = f(f(x))
device = nm.device().runtime
before = device.memory_stats()["allocations"]
for _ in range(100):
    y = f(x)
y.numpy()
with y.data():
    pass
for _ in range(100):
    y = f(x)
print(device.memory_stats()["allocations"] - before)
"""


def test_unreferenced_outputs_are_recycled():
    """In a process of its own: modes and hooks of other tests may keep a function off its path."""
    assert int(processes.run(RECYCLING)) <= 100  # one of two has been looked at


@pytest.mark.on_cpu("memory of other libraries")
def test_lent_memory_keeps_functions_on_their_fast_path():
    """A call reads its inputs at once: what another library may write to later does not matter."""
    f = nm.jit(lambda x: x + 1)
    x = tensor(8)
    f(f(x))
    lent = np.from_dlpack(x)
    y = f(x)
    stats = nm.device().runtime.memory_stats
    before = stats()["allocations"]
    for _ in range(100):
        y = f(x)
    assert stats()["allocations"] < before + 10
    want = x.numpy() + 1
    sevens = np.full_like(lent, 7)
    ctypes.memmove(lent.ctypes.data, sevens.ctypes.data, lent.nbytes)
    assert same(y, want)
    assert same(f(x), np.full_like(want, 8))


LOOKS = [np.asarray, lambda y: y[1:], lambda y: y + 0]
if nm.device().on_host:  # NumPy takes no other memory
    LOOKS.append(np.from_dlpack)


@pytest.mark.parametrize("look", LOOKS)
def test_viewed_outputs_are_not_recycled(look):
    xs = [tensor(6, seed=i) for i in range(8)]
    f = warmed(lambda x: x + 1, xs[0])
    seen = [look(f(x)) for x in xs]  # the tensors themselves are gone
    for x in xs:
        f(x)
    for x, y in zip(xs, seen, strict=True):
        assert np.array_equal(np.asarray(y), np.asarray(look(x + 1)))


def test_inputs_of_another_kind_take_the_slow_path():
    x = tensor(4, 4)
    f = warmed(lambda x: x + x, x)
    for other in (
        tensor(4, 4, dtype=np.float64),
        tensor(3),
        tensor(4, 4).T,
        tensor(5, 4)[1:],  # an offset: the same layout
        tensor(4, 4) * 2,  # pending
        nm.asarray(np.arange(16).reshape(4, 4)),
    ):
        assert same(f(other), other.numpy() * 2)
    assert same(f(x=x), x.numpy() * 2)
    assert same(f(np.ones(3, np.float32)), np.full(3, 2))
    with pytest.raises(TypeError):
        f(x, x)
    with pytest.raises(TypeError):
        f()
    assert f(3.0) == 6.0


def test_modes_are_seen():
    x = tensor(4, 4)
    grads = warmed(lambda x: x @ x, x)
    with nm.autocast("bf16"):
        assert grads(x).dtype is nm.bfloat16
    assert grads(x).dtype is nm.float32
    with nm.no_grad():
        assert same(grads(x), grads(x).numpy())
    outer = nm.jit(lambda x: grads(x) + 1)
    np.testing.assert_allclose(outer(x).numpy(), grads(x).numpy() + 1, rtol=1e-6, atol=1e-6)
    x.requires_grad = True
    y = grads(x)
    y.sum().backward()
    assert x.grad is not None


def test_captured_tensors_are_read_at_each_call():
    x, w = tensor(4), tensor(4, seed=1)
    f = warmed(lambda x: x * w, x)
    w += 1
    assert same(f(x), x.numpy() * w.numpy())
    nm.eval(w)
    assert same(f(x), x.numpy() * w.numpy())


@pytest.mark.on_cpu("threads")
def test_another_number_of_threads():
    x = tensor(300, 300)
    f = warmed(lambda x: x @ x, x)
    expected = f(x).numpy()
    cpu = runtime.get("cpu")
    before = cpu.get_num_threads()
    try:
        for count in (1, 3, 2):
            cpu.set_num_threads(count)
            for _ in range(3):
                assert same(f(x), expected)
            assert isinstance(fast_path(f), types.BuiltinFunctionType)
    finally:
        cpu.set_num_threads(before)


def test_references_are_given_back():
    x = tensor(3, 3)
    f = warmed(lambda x: (x + 1, x - 1), x)
    f(x)
    things = [
        x,
        x._node,
        x._node.view,
        x._node.shape,
        nm.float32,
        x._node.device,
        storage_lock.lock,
    ]
    before = [sys.getrefcount(thing) for thing in things]
    for _ in range(1000):
        f(x)
    assert [sys.getrefcount(thing) for thing in things] == before


def test_calls_from_within_calls():
    """A collection in the middle of a call may call the same function."""
    x = tensor(4)
    f = warmed(lambda x: x * 3, x)
    expected = x.numpy() * 3
    inside = []

    def on_collection(phase, info):
        if phase == "start":
            inside.append(f(x))

    threshold = gc.get_threshold()
    gc.callbacks.append(on_collection)
    try:
        gc.set_threshold(1)
        found = [f(x) for _ in range(50)]
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(on_collection)
    assert inside
    for y in (*found, *inside):
        assert same(y, expected)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_errors_leave_nothing_behind(error, monkeypatch):
    device = nm.device().runtime
    # large enough for memory to be asked for at each call: GPUs keep that of smaller results
    x = tensor(max(1 << 15, device.target.memory_bytes >> 16))
    allocate = device.memory.allocate
    failing = False

    def sometimes(nbytes):
        if failing:
            raise error("no")
        return allocate(nbytes)

    monkeypatch.setattr(device.memory, "allocate", sometimes)
    monkeypatch.setattr(device, "allocate", sometimes)
    f = warmed(lambda x: x + 1, x)
    native = fast_path(f)
    for _ in range(3):
        failing = True
        with pytest.raises(error):
            native(x)
        failing = False
        assert storage_lock.lock.acquire(blocking=False)
        storage_lock.lock.release()
        assert fast_path(f) is native
        assert same(f(x), x.numpy() + 1)


def test_functions_that_are_gone_give_their_memory_back():
    device = nm.device().runtime
    x = tensor(1000)

    def once():
        f = warmed(lambda x: x + 1, x)
        f(x)

    once()
    gc.collect()
    before = device.memory_stats()["in_use"]
    for _ in range(5):
        once()
    gc.collect()
    assert device.memory_stats()["in_use"] <= before


@pytest.mark.on_cpu("processes that fork cannot use a GPU that was in use before")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_after_a_fork():
    x = tensor(64, 64)
    f = warmed(lambda x: x @ x, x)
    expected = f(x).numpy()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's and JAX's, where a test has imported it
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if all(same(f(x), expected) for _ in range(3)) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.on_cpu("processes that fork cannot use a GPU that was in use before")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_fork_while_another_thread_evaluates():
    """The child has no such thread, and does not wait for it."""
    x = tensor(8, 8)
    nm.eval(x * 2)
    begun = threading.Event()

    def evaluates():
        with launch_lock.lock:
            begun.set()
            time.sleep(0.1)

    other = threading.Thread(target=evaluates)
    other.start()
    begun.wait(10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # as above
        child = os.fork()
    if child == 0:
        threading.Timer(5, os._exit, (3,)).start()
        nm.eval(x + 3)
        os._exit(0)
    other.join()
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("size", [4, 200])
def test_stress_two_threads_one_function(size):
    """Both get what the function gives, though they share memory that is used again and again."""
    inputs = [tensor(size, size, seed=i) for i in range(2)]
    f = warmed(lambda x: x @ x - x, inputs[0])
    expected = [f(x).numpy() for x in inputs]
    end = time.monotonic() + SECONDS

    def work(which):
        held, count = [], 0
        while time.monotonic() < end:
            held = [*held[-3:], f(inputs[which])]
            assert all(same(y, expected[which]) for y in held)
            count += 1
        return count

    assert min(in_threads(work, 2)) > 0


def test_stress_replays_stay_the_same():
    """Many calls: the same bits, and no more memory than at first."""
    x, w = tensor(16, 16), tensor(16, 16, seed=1)
    f = warmed(lambda x: nm.tanh(x @ w) + x, x)
    expected = f(x).numpy().tobytes()
    device = nm.device().runtime
    for _ in range(1000):
        f(x)
    stats, objects = device.memory_stats(), len(gc.get_objects())
    for i in range(REPLAYS):
        y = f(x)
        if i % 1000 == 0:
            assert y.numpy().tobytes() == expected
    del y
    after = device.memory_stats()
    assert after["in_use"] <= stats["in_use"]
    assert after["mapped"] == stats["mapped"]
    assert len(gc.get_objects()) <= objects + 100


class Switch:
    def __init__(self):
        self.on = True


def test_flags_are_read_at_each_call():
    x, switch = tensor(4), Switch()
    f = warmed(lambda x: x + 1 if switch.on else x - 1, x)
    assert same(f(x), x.numpy() + 1)
    switch.on = False
    assert same(f(x), x.numpy() - 1)
    switch.on = True
    assert same(f(x), x.numpy() + 1)


def test_calls_under_hooks_take_the_slow_path():
    x = tensor(4)
    f = warmed(lambda x: nm.log(x - 100) + 1, x)
    f(x)
    with nm.debug_nans(), pytest.raises(FloatingPointError, match="log"):
        f(x)
