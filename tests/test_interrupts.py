"""Interrupts at random moments: none is lost, nothing stays locked, and results are right."""

from __future__ import annotations

import gc
import random
import signal
import sys
import threading
import time

import numpy as np
import pytest

import numus as nm

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


@pytest.mark.parametrize("times", [40, pytest.param(600, marks=pytest.mark.slow)])
def test_computations(times):
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
