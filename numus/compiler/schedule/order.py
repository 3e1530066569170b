"""List scheduling of kernels for low peak memory, and waves of independent kernels.

Ready kernels run in the order of least growth of live bytes. Kernels that do not depend on each
other then form waves, which a runtime may run concurrently: a hundred small updates are one wave.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.schedule.tuning import TUNING

Job = Sequence[LoweredKernel]  # the kernels of a fusion group, in order


def reads(step: LoweredKernel) -> set[Value]:
    return _with_access(step, "read")


def writes(step: LoweredKernel) -> set[Value]:
    return _with_access(step, "write")


def _with_access(step: LoweredKernel, access: str) -> set[Value]:
    pairs = zip(step.kernel.buffers, step.buffers, strict=False)  # scratch comes after them
    return {val for buffer, val in pairs if buffer.access == access}


def order(
    jobs: Sequence[Job], temporary: Callable[[Value], int], donated: Mapping[Value, Value]
) -> list[int]:
    """The order of the jobs. `temporary` gives the bytes of a value in the arena, 0 for inputs and
    results. A result that is best written over an input (`donated` gives it) waits for the other
    readers of that input."""
    made = [set().union(*map(writes, job)) for job in jobs]
    used = [set().union(*map(reads, job)) - made[i] for i, job in enumerate(jobs)]
    producer = {v: i for i, values in enumerate(made) for v in values}
    users: dict[Value, list[int]] = {}
    for i, values in enumerate(used):
        for v in values:
            users.setdefault(v, []).append(i)
    overwriters: dict[Value, list[int]] = {}
    for v, old in donated.items():
        if v in producer:
            overwriters.setdefault(old, []).append(producer[v])
    pending_inputs = [sum(v in producer for v in values) for values in used]
    pending_users = {v: len(found) for v, found in users.items()}

    def growth(i: int) -> int:
        """Bytes by which live memory grows when this job runs next."""
        needed = sum(temporary(v) for v in made[i] if v in users)
        return needed - sum(temporary(v) for v in used[i] if pending_users[v] == 1)

    def overwrites_early(i: int) -> bool:
        """Others have yet to read the input that this job is best written over."""
        old = {donated[v] for v in made[i] if v in donated}
        return any(pending_users.get(x, 0) > (x in used[i]) for x in old)

    def priority(i: int) -> tuple[bool, int, int, int]:
        """The least runs next: of equals, the one whose input is still in cache."""
        return overwrites_early(i), growth(i), -ready_since[i], i

    ready_since = [0] * len(jobs)  # when the last of its inputs was made
    heap = [priority(i) for i in range(len(jobs)) if not pending_inputs[i]]
    heapq.heapify(heap)
    found: list[int] = []
    done: set[int] = set()
    while heap:
        *_, i = heapq.heappop(heap)
        if i in done:  # pushed again with another growth
            continue
        done.add(i)
        found.append(i)
        for v in used[i]:
            pending_users[v] -= 1
            if pending_users[v] <= 1:  # the last user frees it
                for user in (*users[v], *overwriters.get(v, ())):
                    if user not in done and not pending_inputs[user]:
                        heapq.heappush(heap, priority(user))
        for v in made[i]:
            for user in users.get(v, ()):
                pending_inputs[user] -= 1
                ready_since[user] = len(found)
                if not pending_inputs[user]:
                    heapq.heappush(heap, priority(user))
    assert len(found) == len(jobs), "kernels depend on each other in a cycle"
    return found


class _Wave:
    """Kernels that do not depend on each other."""

    def __init__(self, live: int) -> None:
        self.members: list[int] = []
        self.read: set[Value] = set()
        self.written: set[Value] = set()
        self.blocks = 0
        self.worker_scratch = 0  # bytes
        self.live = live  # bytes of temporaries while it runs

    def scratch(self, workers: int, worker_scratch: int = 0, blocks: int = 0) -> int:
        """Bytes of scratch memory, with another kernel that needs so much of each worker."""
        return min(workers, self.blocks + blocks) * max(self.worker_scratch, worker_scratch)

    def conflicts(self, read: set[Value], written: set[Value]) -> bool:
        """A kernel has to wait for this wave (read-after-write and the like)."""
        return not (
            self.written.isdisjoint(read)
            and self.written.isdisjoint(written)
            and self.read.isdisjoint(written)
        )


def waves(
    steps: Sequence[LoweredKernel],
    temporary: Callable[[Value], int],
    in_place: Sequence[Sequence[tuple[Value, Value]]],
    donated: Mapping[Value, Value],
    workers: int,
) -> list[list[int]]:
    """The steps, by number, in waves.

    A kernel joins an earlier wave only if the peak of memory stays that of sequential execution.
    `in_place` has, for each step, the pairs (output, input) that may share memory where nobody else
    reads the input then or later.
    """
    accesses = [(reads(step), writes(step)) for step in steps]
    last: dict[Value, int] = {}
    for i, (read, written) in enumerate(accesses):
        last.update(dict.fromkeys(read | written, i))
    defined: set[Value] = set()
    grows, frees = [], []
    overwritten: list[list[Value]] = []  # by each step of a sequential execution
    for i, (read, written) in enumerate(accesses):
        pairs = [(v, x) for v, x in in_place[i] if last[x] == i and x in defined]
        overwritten.append(list(dict(pairs).values()))
        reused = sum(map(temporary, set(overwritten[i])))
        grows.append(sum(temporary(v) for v in written - defined) - reused)
        defined |= written
        frees.append(sum(temporary(v) for v in read | written if last[v] == i) - reused)
    budget, live = TUNING.wave_min_budget_bytes, 0
    for grow, free, step in zip(grows, frees, steps, strict=True):
        live += grow
        budget = max(budget, live + step.scratch_bytes(workers))
        live -= free
    found: list[_Wave] = []
    live = 0  # after the waves so far
    for i, (step, (read, written)) in enumerate(zip(steps, accesses, strict=True)):
        worker_scratch = sum(step.scratch)
        written = written | {donated[v] for v in written if v in donated}
        into, grow = len(found), grows[i]
        blocked = grow  # where others of the wave still read an input that would be overwritten
        for w in range(len(found) - 1, max(-1, len(found) - 1 - TUNING.wave_lookback), -1):
            blocked += sum(temporary(x) for x in overwritten[i] if x in found[w].read)
            room = budget - found[w].live - blocked
            if found[w].conflicts(read, written) or found[w].scratch(workers) > room:
                break
            if found[w].scratch(workers, worker_scratch, step.grid) <= room:
                into, grow = w, blocked
        if into == len(found):
            found.append(_Wave(live))
        for wave in found[into:]:
            wave.live += grow
        wave = found[into]
        wave.members.append(i)
        wave.read |= read
        wave.written |= written
        wave.blocks += step.grid
        wave.worker_scratch = max(wave.worker_scratch, worker_scratch)
        live += grows[i] - frees[i]
    return [wave.members for wave in found]
