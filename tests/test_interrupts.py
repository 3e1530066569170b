"""Interrupts at random moments: none is lost, nothing stays locked, and results are right."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import numus as nm
from numus import graph
from tests import processes

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="this system has no timers"),
    pytest.mark.on_cpu("destructors and locks of the host"),
]


_AGAIN = 20.0  # seconds to the next interrupt


class Interrupts:
    """Interrupts the work some time after it begins."""

    def __init__(self, seed, most_seconds):
        self._rng = random.Random(seed)
        self._seconds = most_seconds
        self.lost = []
        self.missed = 0  # not raised, and not noted either: the next one ended the work

    def __enter__(self):
        def interrupt(number, frame):
            raise KeyboardInterrupt

        self._before = signal.signal(signal.SIGALRM, interrupt), sys.unraisablehook
        sys.unraisablehook = self._note
        # those of testing tools run Python code that loses interrupts
        self._callbacks, gc.callbacks[:] = gc.callbacks[:], []
        return self

    def __exit__(self, *error):
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before[0])
        sys.unraisablehook = self._before[1]
        gc.callbacks[:] = self._callbacks

    def _note(self, error):
        if not issubclass(error.exc_type, Warning):  # of a file that was just opened
            self.lost.append((error.exc_type, error.object))

    def during(self, work):
        """True if the work was interrupted. It runs until then, at most to the second interrupt."""
        begun = time.monotonic()
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + self._rng.random() * self._seconds, _AGAIN)
            for _ in range(10_000_000):
                work()
        except KeyboardInterrupt:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.missed += time.monotonic() - begun > _AGAIN
            return True
        return False


@pytest.mark.parametrize("times", [150, pytest.param(3000, marks=pytest.mark.slow)])
def test_destructors(times):
    """Blocks are freed all the time, as temporaries of any program are."""
    pool = nm.device("cpu").runtime.memory
    gc.collect()
    before = pool.stats()["in_use"]

    def work():
        pool.allocate(100)
        pool.allocate(1 << 18)

    with Interrupts(1, 0.001) as interrupts:
        assert all(interrupts.during(work) for _ in range(times))
    assert interrupts.lost == []
    # an interrupt between two steps of an allocation may cost that block, and nothing more
    assert pool.stats()["in_use"] - before < times * (1 << 19)


COMPUTATIONS = """
    import sys, threading
    import numpy as np
    import numus as nm
    from tests.test_interrupts import Interrupts

    times = int(sys.argv[1])
    x = nm.asarray(np.linspace(0, 1, 100, dtype=np.float32).reshape(10, 10))
    f = nm.jit(lambda x: nm.sin(x) * 2 + x)
    w = nm.ones((10, 10))
    generator = iter(range(10**9))

    def work():
        y = nm.tanh(x @ x) + next(generator) % 5
        nm.eval(y)
        f(y)
        nm.grad(lambda w: nm.sum((x @ w) ** 2))(w).numpy()
        with y.data_write() as a:
            a[0] = 1
        nm.random.normal((3,)).numpy()

    work()
    expected = f(x).numpy()
    with Interrupts(2, 0.02) as interrupts:
        assert all(interrupts.during(work) for _ in range(times))
    assert interrupts.lost == []
    assert interrupts.missed == 0
    found = []
    # another thread finds nothing locked
    other = threading.Thread(target=lambda: (work(), found.append(f(x).numpy())), daemon=True)
    other.start()
    other.join(60)
    assert not other.is_alive()
    assert np.array_equal(found[0], expected)
"""


@pytest.mark.parametrize("times", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_computations(times):
    """In a process of its own: Python may be interrupted as any `with` ends, before it has undone
    what it began with, as that of `nm.no_grad()`."""
    processes.run(COMPUTATIONS, times)


def test_a_hook_that_is_interrupted_as_it_begins_is_gone(monkeypatch):
    """One that stayed kept all functions off their fast paths for good."""
    counts = len(graph.active_hooks), len(graph.observers)
    left = [KeyboardInterrupt]

    def interrupted(*assigned):
        setattr(*assigned)
        for error in left[:1]:
            left.clear()
            raise error

    monkeypatch.setattr(graph, "setattr", interrupted, raising=False)
    with pytest.raises(KeyboardInterrupt), graph.calling_node_hook(print):
        raise AssertionError("was not interrupted")
    assert graph.mode.node_hook is None
    assert (len(graph.active_hooks), len(graph.observers)) == counts


@pytest.mark.slow
@pytest.mark.parametrize("times", [6, 60])
def test_compilations(times, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMUS_CACHE_DIR", str(tmp_path))
    x = nm.asarray(np.linspace(0, 1, 30, dtype=np.float32))
    functions = [nm.sin, nm.cos, nm.tanh, nm.exp, nm.square, nm.abs, nm.expm1]
    rng = random.Random(5)

    def work():
        y = x
        for f in rng.choices(functions, k=5):
            y = f(y * 0.3)
        assert np.isfinite(y.numpy()).all()

    work()  # Python 3.11 turns interrupts of imports into errors of other kinds
    with Interrupts(3, 0.2) as interrupts:
        assert all(interrupts.during(work) for _ in range(times))
    for _ in range(3):
        work()
    assert not list(tmp_path.rglob(".new-*"))


AT_EVERY_INSTRUCTION = """
    import sys

    source = "define {} void @f(ptr %p) {{\\n  store i32 0, ptr %p\\n  ret void\\n}}"
    if sys.argv[1] == "cpu":
        from numus.runtime.cpu.jit import Jit

        tools = Jit()._idle_tools[0]
        compile_it = lambda: tools.object_code(source.format(""), False)
    else:
        from numus.codegen.nvptx.assembler import Assembler

        assembler = Assembler(90)
        compile_it = lambda: assembler.ptx(source.format("ptx_kernel"))
    lost, left = [], 0
    sys.unraisablehook = lambda error: lost.append(error.exc_value)

    def trace(frame, event, arg):
        global left
        at = frame
        while at is not None:
            if at.f_code.co_name == "__del__":
                return None
            at = at.f_back
        frame.f_trace_opcodes = True
        if event != "call":
            left -= 1
            if left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return trace

    def interrupted(moment):
        global left
        left = moment
        try:
            sys.settrace(trace)
            compile_it()
            return False
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)

    expected = compile_it()
    moment = 1
    while interrupted(moment):
        moment += int(sys.argv[2])
    assert moment > 100
    assert compile_it() == expected
    if sys.argv[1] == "cpu":  # an interrupt of a new toolchain leaves llvmlite's half-made objects
        assert lost == [], lost
"""


@pytest.mark.parametrize(("backend", "step"), [("cpu", 1), ("nvptx", 9)])
def test_an_interrupt_at_any_instruction_of_a_compilation(backend, step):
    """LLVM's modules were freed twice: by their context, and by destructors."""
    processes.run(AT_EVERY_INSTRUCTION, backend, step)


HANDLED = """
import sys
from numus.ir.symbolic_size import Recorder

def trace(frame, event, arg):
    if frame.f_code.co_name == "<module>" and "<" in frame.f_code.co_filename:
        sys.settrace(None)
        raise KeyboardInterrupt

try:
    sys.settrace(trace)
    Recorder((3,)).function(())
except KeyboardInterrupt:
    print("handled")
"""


def test_a_process_that_handles_an_interrupt_ends_well(tmp_path):
    """Python's exit status tells of an interrupt in `exec(text)`, even of one that was handled."""
    (tmp_path / "handled.py").write_text(HANDLED)
    command = [sys.executable, "-m", "handled"]  # no text of a program that would be the last one
    places = os.pathsep.join([str(tmp_path), *sys.path])
    environment = {**os.environ, "PYTHONPATH": places}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert (done.stdout, done.returncode) == ("handled\n", 0), done.stderr
