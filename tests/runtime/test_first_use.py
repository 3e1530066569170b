"""The first use of numus, by several threads at once: everything is created a single time."""

from __future__ import annotations

import time

import processes
import pytest
from in_threads import in_threads

from numus.runtime.locks import once, once_property

FIRST_USE = """
import faulthandler, threading
faulthandler.enable()
import numus as nm

together = threading.Barrier(4)
found = [None] * 4

def work(i):
    together.wait()
    found[i] = (nm.full((50, 50), i) * 2).sum().item()

threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
[t.start() for t in threads]
[t.join() for t in threads]
assert found == [0, 5000, 10000, 15000], found
"""

EVERY_FUNCTION = """
import faulthandler, sys, threading
faulthandler.enable()
import numpy as np
import numus as nm

name = sys.argv[1]
f = getattr(nm, name)
x = np.linspace(0.1, 0.9, 9, dtype=np.float32).reshape(3, 3)
calls = [lambda: f(nm.asarray(x)), lambda: f(nm.asarray(x), nm.asarray(x)), lambda: f((3, 3)),
         lambda: f([nm.asarray(x)] * 2), lambda: f(3), lambda: f()]
together = threading.Barrier(4)
found = [[] for _ in range(4)]

def work(i):
    together.wait()
    for call in calls:
        try:
            result = call()
            result = [np.asarray(r).tobytes() for r in
                      (result if isinstance(result, (tuple, list)) else (result,))
                      if isinstance(r, nm.Tensor)]
        except Exception as error:
            result = type(error).__name__
        found[i].append(result)

threads = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(4)]
[t.start() for t in threads]
[t.join(60) for t in threads]
assert not any(t.is_alive() for t in threads), "hangs"
if name not in sys.argv[2:]:
    assert found[1:] == found[:-1], found
"""

# they continue one sequence of keys, or give what memory holds
UNEQUAL = [
    *("bernoulli", "normal", "rand", "rand_like", "randint", "randn", "randn_like", "randperm"),
    *("empty", "empty_like"),
]

# they change settings of the process, run its main loop, or write files
LEFT_OUT = {"save", "savez", "load", "main", "set_num_threads", "seed", "manual_seed", "test"}


def public_functions():
    import numus as nm

    names = [n for n in dir(nm) if not n.startswith("_") and n not in LEFT_OUT]
    functions = [n for n in names if callable(getattr(nm, n)) and n.islower()]
    return [n for n in functions if not isinstance(getattr(nm, n), type)]


def test_four_threads():
    for process in [processes.start(FIRST_USE) for _ in range(2)]:
        processes.finish(process)


@pytest.mark.slow
def test_four_threads_200_times():
    for _ in range(50):
        for process in [processes.start(FIRST_USE) for _ in range(4)]:
            processes.finish(process)


@pytest.mark.slow
@pytest.mark.parametrize("name", public_functions())
def test_every_public_function(name):
    processes.run(EVERY_FUNCTION, name, *UNEQUAL)


def test_a_runtime_creates_its_parts_once(monkeypatch):
    from numus.runtime.cpu import compiler, runtime

    made = []

    class Slow(compiler.Jit):
        def __init__(self):
            made.append(1)
            time.sleep(0.02)  # another thread looks, meanwhile
            super().__init__()

    monkeypatch.setattr(compiler, "Jit", Slow)
    cpu = runtime.CpuRuntime()
    pools = in_threads(lambda _: (cpu.compiler.jit, cpu.pool, cpu.call_vm(), cpu.byte_ops), 4)
    assert len(made) == 1
    assert all(pool == pools[0] for pool in pools)


def test_once():
    calls = []

    @once
    def make(x):
        calls.append(x)
        time.sleep(0.01)
        return object()

    class Owner:
        @once_property
        def part(self):
            calls.append("part")
            time.sleep(0.01)
            return object()

    owner = Owner()
    assert len(set(in_threads(lambda _: make(1), 4))) == 1
    assert len(set(in_threads(lambda _: owner.part, 4))) == 1
    assert calls == [1, "part"]
    assert make(2) is not make(1)
    assert owner.part is not Owner().part


def test_what_could_not_be_created_is_tried_again():
    tries = []

    @once
    def make():
        tries.append(1)
        if len(tries) < 2:
            raise TimeoutError
        return 3

    with pytest.raises(TimeoutError):
        make()
    assert make() == 3
