"""Timing that is fair to several libraries in one process."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Mapping
from typing import Any

# A sample lasts at least this long, so that the clock and a cold start weigh nothing in it.
SAMPLE_SECONDS = 2e-3
# Libraries leave their worker threads spinning for a while after a call (OpenBLAS for more than
# 100 ms); on few cores that would slow down whoever comes next. Wait until they sleep.
PAUSE_SECONDS = 10e-3
PATIENCE_SECONDS = 0.5  # with threads that never do


def once(call: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def settle() -> None:
    """Return when the threads of this process sleep."""
    end = time.perf_counter() + PATIENCE_SECONDS
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(PAUSE_SECONDS)
        if time.process_time() - before < PAUSE_SECONDS / 10:
            return


def best_times(
    calls: Mapping[str, Callable[[], Any]], *, seconds: float = 1.0, rounds: int = 3
) -> dict[str, float]:
    """The best time of each call in seconds, measured in turns.

    Turns, not one library after the other: a machine that slows down or speeds up half-way then
    does so for everybody. There are at least `rounds` rounds, and as many as fit into `seconds` per
    call. Their order changes from round to round, so that nobody always follows the same one.
    """
    repeats = {}
    for name, call in calls.items():
        call()  # compiles
        fastest = min(once(call), once(call))
        repeats[name] = max(1, int(SAMPLE_SECONDS / max(fastest, 1e-7)))

    best = dict.fromkeys(calls, float("inf"))
    end = time.perf_counter() + seconds * len(calls)
    done = 0
    orders = list(itertools.permutations(calls.items()))
    random.Random(0).shuffle(orders)
    while done < rounds or time.perf_counter() < end:
        for name, call in orders[done % len(orders)]:
            settle()
            count = repeats[name]
            if count > 1:
                call()  # wakes this library's own threads and brings its data into the caches
            start = time.perf_counter()
            for _ in range(count):
                call()
            best[name] = min(best[name], (time.perf_counter() - start) / count)
        done += 1
    return best
