"""Interleaved timing of several libraries in one process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

# Minimum length of a sample, to hide clock resolution and cold starts.
SAMPLE_SECONDS = 2e-3
# Worker threads spin for a while after a call (OpenBLAS: more than 100 ms), which would slow down
# the next library on few cores: wait until they sleep.
PAUSE_SECONDS = 10e-3
MAX_WAIT_SECONDS = 0.5  # for threads that never sleep


def once(call: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def wait_until_idle() -> None:
    """Return when the threads of this process sleep."""
    end = time.perf_counter() + MAX_WAIT_SECONDS
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(PAUSE_SECONDS)
        if time.process_time() - before < PAUSE_SECONDS / 10:
            return


def best_times(
    calls: Mapping[str, Callable[[], Any]], *, seconds: float = 1.0, rounds: int = 3
) -> dict[str, float]:
    """The best time of each call in seconds, interleaved.

    Interleaving distributes changes of the clock speed over all libraries. There are at least
    `rounds` rounds, and as many as fit into `seconds` per call, in varying order.
    """
    repeats = {}
    for name, call in calls.items():
        call()  # compiles
        # Beside another library's spinning threads a call would seem longer than it is: measured
        # once a sample, it would stay cold where the others are warm.
        wait_until_idle()
        fastest = min(once(call) for _ in range(4))
        repeats[name] = max(1, int(SAMPLE_SECONDS / max(fastest, 1e-7)))

    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    done = 0
    orders = list(itertools.permutations(calls.items()))
    random.Random(0).shuffle(orders)
    while done < rounds or time.perf_counter() < end:
        for name, call in orders[done % len(orders)]:
            wait_until_idle()
            count = repeats[name]
            if count > 1:
                call()  # wakes worker threads and warms the caches
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
        done += 1
    return best
