"""The worker threads that share launches with their caller."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable

from numus import config
from numus.runtime.cpu import thread_pool_source
from numus.runtime.cpu.compiler import Compiler

_SPIN_SECONDS = 30e-6  # an idle worker is at hand for so long, then sleeps
_SHARE_SECONDS = 3e-6  # less work than this is done before another core has its part of it
_WAKE_SECONDS = 60e-6  # less work than this is done before a sleeping thread has woken
_EXIT_SECONDS = 1.0  # how long the interpreter's end waits for a worker


class Pool:
    """One per process. Threads start with the first launch that has work for them.

    The native side (see `pool_source`) gives right results whatever the number of workers that
    show up, so starting late, stopping, or forking never needs care anywhere else.
    """

    def __init__(self, compiler: Compiler) -> None:
        self.threads = config.default_threads()
        self.started = False
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()
        run, worker, wake, spin, repeat, ticks = compiler.native(
            thread_pool_source.source(compiler.jit.target), thread_pool_source.SYMBOLS
        )
        self.run_address = run
        self.run: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(run)
        words = (ctypes.c_int64, ctypes.c_void_p)
        self.repeat: Callable[..., int] = ctypes.CFUNCTYPE(
            words[0], words[1], words[0], words[1], words[0], words[0], words[1]
        )(repeat)
        self._worker = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(worker)
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
        """Launches may begin with so many threads; 0: not before others have been started."""
        self._state[thread_pool_source.STARTED] = threads
        self.started = threads > 0

    def _calibrate(self) -> tuple[int, float]:
        """How many turns of a spin loop last for the time that workers spin, and how fast the
        native clock goes.
        """
        count = 200
        began, first = time.perf_counter(), self._ticks()
        self._spin(count)
        seconds, ticks = time.perf_counter() - began, self._ticks() - first
        each = max(seconds / count, 1e-9)
        return max(10, int(_SPIN_SECONDS / each)), ticks / max(seconds, 1e-9)

    def _reset(self) -> None:
        """The shared memory as it is before anything has run."""
        state = self._state
        ctypes.memset(self.address, 0, ctypes.sizeof(state))
        state[thread_pool_source.STATE] = thread_pool_source.CLOSED
        state[thread_pool_source.SPINS] = self._spins
        state[thread_pool_source.THREADS] = self.threads
        state[thread_pool_source.LIMIT] = self.threads
        state[thread_pool_source.SHARE_FROM] = int(_SHARE_SECONDS * self.ticks_per_second)
        state[thread_pool_source.WAKE_FROM] = int(_WAKE_SECONDS * self.ticks_per_second)
        for i, address in enumerate(_system_calls(self.address)):
            state[thread_pool_source.CALLS + i] = address
        self._workers = []
        self._mark_started(0)

    def _after_fork(self) -> None:
        # no thread but this one came along, and another may have held the locks
        self._lock = threading.Lock()
        self._reset()

    def start(self) -> None:
        """Start the workers that are missing."""
        with self._lock:
            if self.started:
                return
            for worker_id in range(len(self._workers) + 1, self.threads):
                thread = threading.Thread(
                    target=self._worker,
                    args=(self.address, worker_id),
                    name=f"numus-worker-{worker_id}",
                    daemon=True,
                )
                thread.start()
                self._workers.append(thread)
            self._mark_started(self.threads)

    def set_threads(self, count: int) -> None:
        """Share launches between `count` threads, the caller's included."""
        if count < 1:
            raise ValueError(f"the number of threads must be at least 1, not {count}")
        with self._lock:
            self.threads = count
            self._state[thread_pool_source.THREADS] = count
            leaving = self._workers[max(0, count - 1) :]
            del self._workers[max(0, count - 1) :]
            self._mark_started(0)
            self._dismiss(count, leaving)

    def _dismiss(
        self, limit: int, leaving: list[threading.Thread], patience: float | None = None
    ) -> None:
        """Workers with ids from `limit` on leave; a launch that they are in is finished first."""
        self._state[thread_pool_source.LIMIT] = limit
        if leaving:
            self._wake(self.address)
            for thread in leaving:
                thread.join(patience)

    def stop(self) -> None:
        """Send all workers home; later launches run on their caller's thread alone."""
        with self._lock:
            leaving, self._workers = self._workers, []
            self._state[thread_pool_source.THREADS] = 1
            self._dismiss(0, leaving, _EXIT_SECONDS)
            self._mark_started(1)


def _system_calls(pool: int) -> list[int]:
    """Addresses of the functions that `SYSTEM` names, in its order."""

    def address(function: object) -> int:
        return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]

    if sys.platform == "win32":
        kernel = ctypes.WinDLL("kernel32")
        base = ctypes.WinDLL("api-ms-win-core-synch-l1-2-0")
        return [
            address(kernel.SwitchToThread),
            address(base.WaitOnAddress),
            address(base.WakeByAddressAll),
        ]
    c = ctypes.CDLL(None)
    c.pthread_mutex_init.argtypes = c.pthread_cond_init.argtypes = [ctypes.c_void_p] * 2
    if c.pthread_mutex_init(pool + 8 * thread_pool_source.MUTEX, None):
        raise OSError("cannot make a mutex for the worker pool")
    if c.pthread_cond_init(pool + 8 * thread_pool_source.CONDITION, None):
        raise OSError("cannot make a condition variable for the worker pool")
    return [
        address(c.sched_yield),
        address(c.pthread_mutex_lock),
        address(c.pthread_mutex_unlock),
        address(c.pthread_cond_wait),
        address(c.pthread_cond_broadcast),
    ]
