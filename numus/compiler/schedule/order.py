"""In which order the kernels of a program run, and which of them side by side.

Kernels are taken in the order that keeps the fewest bytes alive, step by step: what frees memory
comes before what needs more. Kernels that don't need each other then form waves, in which a runtime
may run them at the same time: a hundred small updates are one wave, not a hundred launches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel

LOOK_BACK = 4  # waves that a kernel may be moved forward by
LEAST_BUDGET = 1 << 18  # bytes of temporaries that are never worth a wave of their own

Job = Sequence[LoweredKernel]  # the kernels of a group, one after the other


def reads(step: LoweredKernel) -> set[Value]:
    """What is in memory before a kernel runs and is read by it."""
    return _with_access(step, "read")


def writes(step: LoweredKernel) -> set[Value]:
    """What a kernel leaves in memory."""
    return _with_access(step, "write")


def _with_access(step: LoweredKernel, access: str) -> set[Value]:
    pairs = zip(step.kernel.buffers, step.buffers, strict=False)  # scratch comes after them
    return {val for buffer, val in pairs if buffer.access == access}


def order(
    jobs: Sequence[Job], temporary: Callable[[Value], int], replaced: Mapping[Value, Value]
) -> list[int]:
    """The order of the jobs. `temporary` gives the bytes that a value takes while it lives: 0 for
    what is there before and after. A result that is best written in the place of another value
    (`replaced` gives it) waits until nobody else has to read that.
    """
    made = [set().union(*map(writes, job)) for job in jobs]
    used = [set().union(*map(reads, job)) - made[i] for i, job in enumerate(jobs)]
    maker = {v: i for i, values in enumerate(made) for v in values}
    users: dict[Value, list[int]] = {}
    for i, values in enumerate(used):
        for v in values:
            users.setdefault(v, []).append(i)
    over: dict[Value, list[int]] = {}  # which jobs are best written over a value
    for v, old in replaced.items():
        if v in maker:
            over.setdefault(old, []).append(maker[v])
    waiting = [sum(v in maker for v in values) for values in used]
    left = {v: len(found) for v, found in users.items()}  # users that have not run yet

    def growth(i: int) -> int:
        """By how many bytes memory in use grows when this job runs next."""
        needed = sum(temporary(v) for v in made[i] if v in users)
        return needed - sum(temporary(v) for v in used[i] if left[v] == 1)

    def early(i: int) -> bool:
        """Whether others have still to read what this job is best written over."""
        old = {replaced[v] for v in made[i] if v in replaced}
        return any(left.get(x, 0) > (x in used[i]) for x in old)

    def turn(i: int) -> tuple[bool, int, int, int]:
        """Which of the jobs that could run is next: of equals, the one whose input is warm."""
        return early(i), growth(i), -since[i], i

    since = [0] * len(jobs)  # when the last of its inputs was made
    heap = [turn(i) for i in range(len(jobs)) if not waiting[i]]
    heapq.heapify(heap)
    found: list[int] = []
    done: set[int] = set()
    while heap:
        *_, i = heapq.heappop(heap)
        if i in done:  # it came again with another growth
            continue
        done.add(i)
        found.append(i)
        for v in used[i]:
            left[v] -= 1
            if left[v] <= 1:  # the last user frees it
                for user in (*users[v], *over.get(v, ())):
                    if user not in done and not waiting[user]:
                        heapq.heappush(heap, turn(user))
        for v in made[i]:
            for user in users.get(v, ()):
                waiting[user] -= 1
                since[user] = len(found)
                if not waiting[user]:
                    heapq.heappush(heap, turn(user))
    assert len(found) == len(jobs), "kernels that wait for each other"
    return found


class _Wave:
    """Kernels that don't need each other."""

    def __init__(self, live: int) -> None:
        self.members: list[int] = []
        self.read: set[Value] = set()
        self.written: set[Value] = set()
        self.blocks = 0
        self.pitch = 0  # bytes of scratch memory that a worker needs
        self.live = live  # bytes of temporaries while it runs

    def scratch(self, workers: int, pitch: int = 0, blocks: int = 0) -> int:
        """Bytes of scratch memory, if a kernel joined that needs so much for each worker."""
        return min(workers, self.blocks + blocks) * max(self.pitch, pitch)

    def clashes(self, read: set[Value], written: set[Value]) -> bool:
        """Whether a kernel has to wait for this wave."""
        return not (
            self.written.isdisjoint(read)
            and self.written.isdisjoint(written)
            and self.read.isdisjoint(written)
        )


def waves(
    steps: Sequence[LoweredKernel],
    temporary: Callable[[Value], int],
    takeovers: Sequence[Sequence[tuple[Value, Value]]],
    replaced: Mapping[Value, Value],
    workers: int,
) -> list[list[int]]:
    """The steps, by number, in the waves in which they run.

    A kernel joins an earlier wave only where memory allows: no more is in use at any time than when
    the kernels run one by one. `takeovers` tells for each which temporaries (the first of a pair)
    may take the place of others (the second) that nobody else reads then or later. Each of the
    `workers` needs as much scratch memory as the kernel of a wave that needs most.
    """
    touched = [(reads(step), writes(step)) for step in steps]
    last: dict[Value, int] = {}
    for i, (read, written) in enumerate(touched):
        last.update(dict.fromkeys(read | written, i))
    first: set[Value] = set()
    grows, frees = [], []
    overwritten: list[list[Value]] = []  # by each step, when they run one by one
    for i, (read, written) in enumerate(touched):
        pairs = [(v, s) for v, s in takeovers[i] if last[s] == i and s in first]
        overwritten.append(list(dict(pairs).values()))
        handed = sum(map(temporary, set(overwritten[i])))
        grows.append(sum(temporary(v) for v in written - first) - handed)
        first |= written
        frees.append(sum(temporary(v) for v in read | written if last[v] == i) - handed)
    budget, live = LEAST_BUDGET, 0
    for grow, free, step in zip(grows, frees, steps, strict=True):
        live += grow
        budget = max(budget, live + step.scratch_bytes(workers))
        live -= free
    found: list[_Wave] = []
    live = 0  # when the waves so far are done
    for i, (step, (read, written)) in enumerate(zip(steps, touched, strict=True)):
        pitch = sum(step.scratch)
        written = written | {replaced[v] for v in written if v in replaced}
        into, grow = len(found), grows[i]
        more = grow  # where others of the wave still read what would be overwritten
        for w in range(len(found) - 1, max(-1, len(found) - 1 - LOOK_BACK), -1):
            more += sum(temporary(s) for s in overwritten[i] if s in found[w].read)
            room = budget - found[w].live - more
            if found[w].clashes(read, written) or found[w].scratch(workers) > room:
                break
            if found[w].scratch(workers, pitch, step.grid) <= room:
                into, grow = w, more
        if into == len(found):
            found.append(_Wave(live))
        for wave in found[into:]:
            wave.live += grow
        wave = found[into]
        wave.members.append(i)
        wave.read |= read
        wave.written |= written
        wave.blocks += step.grid
        wave.pitch = max(wave.pitch, pitch)
        live += grows[i] - frees[i]
    return [wave.members for wave in found]
