"""A forked process has one thread, and waits for none of its parent's."""

from __future__ import annotations

import importlib
import os
import sys
import threading
import time
import warnings

import numpy as np
import pytest
from in_threads import in_threads

import numus as nm
from numus.runtime import locks

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork"),
    pytest.mark.on_cpu("processes that fork cannot use a GPU that was in use before"),
]


def in_child(work, seconds=30):
    """Fork; the child does the work and must end in time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's and JAX's, where a test has imported it
        child = os.fork()
    if child == 0:
        threading.Timer(seconds, os._exit, (3,)).start()
        try:
            work()
        except BaseException:
            os._exit(2)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("access", ["data", "data_write"])
def test_while_another_thread_reads_or_writes(access):
    x = nm.arange(10) * 1.0
    nm.eval(x)
    begun, end = threading.Event(), threading.Event()

    def holds():
        with getattr(x, access)():
            begun.set()
            end.wait(30)

    other = threading.Thread(target=holds)
    other.start()
    begun.wait(10)

    def child():
        assert (x + 1).numpy()[0] == 1
        with x.data() as a:
            assert a[3] == 3
        with x.data_write() as a:
            a[0] = 5
        assert x.numpy()[0] == 5

    try:
        assert in_child(child) == 0
    finally:
        end.set()
        other.join()
    with x.data_write() as a:  # the parent's locks are as they were
        a[0] = 7
    assert x.numpy()[0] == 7


def test_inside_a_write_of_its_own():
    x = nm.arange(10) * 1.0

    def child():
        assert a[3] == 3

    with x.data_write() as a:
        a[0] = 5
        assert in_child(child) == 0
    assert x.numpy()[0] == 5


def test_while_other_threads_compute():
    """Also while they compile, allocate and create what is created once."""
    stop = threading.Event()

    def computes(seed):
        rng = np.random.default_rng(seed)
        done = 0
        while not stop.is_set():
            x = nm.asarray(rng.random((int(rng.integers(1, 40)), 5), np.float32))
            y = nm.sum(nm.sin(x) * float(rng.random()), axis=int(rng.integers(0, 2)))
            assert np.isfinite(y.numpy()).all()
            done += 1
        return done

    def forks():
        def child():
            x = nm.ones((3, 4))
            assert nm.sum(nm.cosh(x * 0), axis=0).tolist() == [3.0] * 4

        try:
            return [in_child(child) for _ in range(6)]
        finally:
            stop.set()

    found = in_threads(lambda i: forks() if i == 0 else computes(i), 3)
    assert found[0] == [0] * 6


def test_while_another_thread_imports(tmp_path, monkeypatch):
    """Modules are imported on first use."""
    (tmp_path / "slow_module.py").write_text("import time\ntime.sleep(0.5)\nx = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(locks, "_PACKAGES", ("slow_module",))
    other = threading.Thread(target=lambda: importlib.import_module("slow_module"))
    other.start()
    while "slow_module" not in sys.modules:
        time.sleep(0.01)

    def child():
        assert importlib.import_module("slow_module").x == 3

    assert in_child(child) == 0
    other.join()
    del sys.modules["slow_module"]


def test_while_another_thread_imports_one_module_after_the_other(tmp_path, monkeypatch):
    names = [f"slow_chain{i}" for i in range(40)]
    for name in names:
        (tmp_path / f"{name}.py").write_text("import time\ntime.sleep(0.02)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(locks, "_PACKAGES", ("slow_chain",))
    before = sys.getswitchinterval()
    other = threading.Thread(target=lambda: [importlib.import_module(n) for n in names])
    other.start()
    for _ in range(3):
        time.sleep(0.05)
        assert in_child(lambda: [importlib.import_module(n) for n in names[:20]]) == 0
    other.join()
    assert sys.getswitchinterval() == before
    for name in names:
        del sys.modules[name]


def test_a_fork_waits_for_every_lock():
    held = threading.Event()

    def holds(_):
        with locks.creation:
            held.set()
            time.sleep(0.2)

    other = threading.Thread(target=holds, args=(0,))
    other.start()
    held.wait(10)

    def child():
        with locks.creation:
            assert nm.ones(3).sum().item() == 3

    assert in_child(child) == 0
    other.join()
    assert locks._held == []
