"""Worker threads that share launches with their caller."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from numus import config
from numus.runtime.cpu import thread_pool_source
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.thread_pool_source import POOL
from numus.runtime.llvm_macros import function_address
from numus.runtime.locks import Rank, new_lock


@dataclass(frozen=True)
class PoolTuning:
    """Durations, measured on 2-core Neoverse N1 and x86-64 machines."""

    spin_seconds: float = 100e-6  # of an idle worker before it sleeps: longer than most code
    # between two eager operations takes
    share_seconds: float = 3e-6  # shorter launches end before another core has its chunk
    # Work that ends before a sleeping thread has woken: a guess, and the bounds of what is learnt.
    wake_seconds: float = 40e-6
    wake_bounds_seconds: tuple[float, float] = (20e-6, 160e-6)


TUNING = PoolTuning()
_EXIT_SECONDS = 1.0  # how long interpreter shutdown waits for a worker


class Pool:
    """One per process. Threads start with the first launch.

    Results do not depend on how many workers show up (`thread_pool_source`), so starting late,
    stopping and forking need no care elsewhere.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.threads = config.default_threads()
        self.started = False
        self._workers: list[threading.Thread] = []
        self._lock = new_lock(Rank.WORKERS)
        run, worker, wake, spin, repeat, ticks = compiler.native(
            thread_pool_source.source(compiler.jit.target), thread_pool_source.SYMBOLS
        )
        self.run_address = run
        self.run: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)
        n, p = ctypes.c_int64, ctypes.c_void_p
        self.repeat: Callable[..., int] = ctypes.CFUNCTYPE(n, p, n, p, n, n, p)(repeat)
        self._worker = ctypes.CFUNCTYPE(None, p, n)(worker)
        self._wake = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(wake)
        self._spin = ctypes.CFUNCTYPE(None, ctypes.c_int64)(spin)
        self._ticks: Callable[[], int] = ctypes.CFUNCTYPE(ctypes.c_int64)(ticks)
        self._words = (ctypes.c_int64 * (thread_pool_source.WORDS + 16))()
        start = ctypes.addressof(self._words)
        self.address = (start + 127) & -128
        self._state = (ctypes.c_int64 * thread_pool_source.WORDS).from_address(self.address)
        self._spins, self.ticks_per_second = self._calibrate()
        self._reset()
        atexit.register(self.stop)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _mark_started(self, threads: int) -> None:
        """Publish the number of running threads; 0: they must be started before a launch."""
        self._state[POOL["started"]] = threads
        self.started = threads > 0

    def _calibrate(self) -> tuple[int, float]:
        """Iterations of a worker's spin loop, and ticks per second of the native clock."""
        count = 2000
        began, first = time.perf_counter(), self._ticks()
        self._spin(count)
        seconds, ticks = time.perf_counter() - began, self._ticks() - first
        task_seconds = max(seconds / count, 1e-9)
        return max(10, int(TUNING.spin_seconds / task_seconds)), ticks / max(seconds, 1e-9)

    def _reset(self) -> None:
        """Initialise the shared memory."""
        state = self._state
        ctypes.memset(self.address, 0, ctypes.sizeof(state))
        state[POOL["state"]] = thread_pool_source.CLOSED
        state[POOL["spins"]] = self._spins
        state[POOL["threads"]] = self.threads
        state[POOL["limit"]] = self.threads
        least, most = TUNING.wake_bounds_seconds
        durations = {
            "share_from": TUNING.share_seconds,
            "wake_from": TUNING.wake_seconds,
            "wake_least": least,
            "wake_most": most,
            "burst": TUNING.spin_seconds,
        }
        for name, seconds in durations.items():
            state[POOL[name]] = int(seconds * self.ticks_per_second)
        for i, address in enumerate(_system_calls(self.address), POOL["calls"]):
            state[i] = address
        self._workers = []
        self._mark_started(0)

    def _after_fork(self) -> None:
        self._reset()  # no worker survives a fork

    def start(self) -> None:
        """Start the workers that are missing."""
        with self._lock:
            if self.started:
                return
            for worker_id in range(len(self._workers) + 1, self.threads):
                name, args = f"numus-worker-{worker_id}", (self.address, worker_id)
                thread = threading.Thread(target=self._worker, name=name, args=args, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # no memory for its stack: launches do without
                    break
                self._workers.append(thread)
            self._mark_started(self.threads)

    def set_threads(self, count: int) -> None:
        """Share launches between `count` threads, the caller's included."""
        if count < 1:
            raise ValueError(f"the number of threads must be at least 1, not {count}")
        with self._lock:
            self.threads = count
            self._state[POOL["threads"]] = count
            leaving = self._workers[max(0, count - 1) :]
            del self._workers[max(0, count - 1) :]
            self._mark_started(0)
            self._dismiss(count, leaving)

    def _dismiss(
        self, limit: int, leaving: list[threading.Thread], timeout: float | None = None
    ) -> None:
        """Workers with ids from `limit` on exit, after the launch they are in."""
        self._state[POOL["limit"]] = limit
        if leaving:
            self._wake(self.address)
            for thread in leaving:
                thread.join(timeout)

    def stop(self) -> None:
        """End all workers; later launches run on their caller's thread alone."""
        with self._lock:
            leaving, self._workers = self._workers, []
            self._state[POOL["threads"]] = 1
            self._dismiss(0, leaving, _EXIT_SECONDS)
            self._mark_started(1)


def _system_calls(pool: int) -> list[int]:
    """Addresses of the functions of `SYSTEM`."""
    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        base = ctypes.WinDLL("api-ms-win-core-synch-l1-2-0")
        functions = (kernel.SwitchToThread, base.WaitOnAddress, base.WakeByAddressAll)
        return [function_address(f) for f in functions]
    c = ctypes.CDLL(None)
    c.pthread_mutex_init.argtypes = c.pthread_cond_init.argtypes = [ctypes.c_void_p] * 2
    if c.pthread_mutex_init(pool + 8 * POOL["mutex"], None):
        raise OSError("cannot initialise the worker pool's mutex")
    if c.pthread_cond_init(pool + 8 * POOL["condition"], None):
        raise OSError("cannot initialise the worker pool's condition variable")
    mutex = (c.pthread_mutex_lock, c.pthread_mutex_unlock)
    condition = (c.pthread_cond_wait, c.pthread_cond_broadcast)
    return [function_address(f) for f in (c.sched_yield, *mutex, *condition)]
