"""In which order the kernels of a program run, and which of them side by side.

Kernels are taken in the order that keeps the fewest bytes alive, step by step: what frees memory
comes before what needs more. Kernels that don't need each other then form waves, in which a runtime
may run them at the same time: a hundred small updates are one wave, not a hundred launches.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence

from numus.compiler.emit import Step
from numus.compiler.local import Val

LOOK_BACK = 4  # waves that a kernel may be moved forward by
LEAST_BUDGET = 1 << 18  # bytes of temporaries that are never worth a wave of their own
MOST_SCRATCH = 1 << 23  # bytes that the kernels of a wave need of each worker, at most

Job = Sequence[Step]  # the kernels of a group, one after the other


def reads(step: Step) -> set[Val]:
    """What is in memory before a kernel runs and is read by it."""
    return _with_access(step, "read")


def writes(step: Step) -> set[Val]:
    """What a kernel leaves in memory."""
    return _with_access(step, "write")


def _with_access(step: Step, access: str) -> set[Val]:
    pairs = zip(step.kernel.buffers, step.buffers, strict=False)  # scratch comes after them
    return {val for buffer, val in pairs if buffer.access == access}


def order(jobs: Sequence[Job], temporary: Callable[[Val], int]) -> list[int]:
    """The order of the jobs. `temporary` gives the bytes that a value takes while it lives: 0 for
    what is there before and after.
    """
    made = [set().union(*map(writes, job)) for job in jobs]
    used = [set().union(*map(reads, job)) - made[i] for i, job in enumerate(jobs)]
    maker = {v: i for i, values in enumerate(made) for v in values}
    users: dict[Val, list[int]] = {}
    for i, values in enumerate(used):
        for v in values:
            users.setdefault(v, []).append(i)
    waiting = [sum(v in maker for v in values) for values in used]
    left = {v: len(found) for v, found in users.items()}  # users that have not run yet

    def growth(i: int) -> int:
        """By how many bytes memory in use grows when this job runs next."""
        needed = sum(temporary(v) for v in made[i] if v in users)
        return needed - sum(temporary(v) for v in used[i] if left[v] == 1)

    def turn(i: int) -> tuple[int, int, int]:
        """Which of the jobs that could run is next: of equals, the one whose input is warm."""
        return growth(i), -since[i], i

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
            if left[v] == 1:  # the last user frees it
                for user in users[v]:
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
        self.read: set[Val] = set()
        self.written: set[Val] = set()
        self.scratch = 0
        self.live = live  # bytes of temporaries while it runs

    def clashes(self, read: set[Val], written: set[Val]) -> bool:
        """Whether a kernel has to wait for this wave."""
        return not (
            self.written.isdisjoint(read)
            and self.written.isdisjoint(written)
            and self.read.isdisjoint(written)
        )


def waves(
    steps: Sequence[Step],
    temporary: Callable[[Val], int],
    takeovers: Sequence[Sequence[tuple[Val, Val]]],
) -> list[list[int]]:
    """The steps, by number, in the waves in which they run.

    A kernel joins an earlier wave only where memory allows: no more is in use at any time than when
    the kernels run one by one. `takeovers` tells for each which temporaries (the first of a pair)
    may take the place of others (the second) that nobody else reads then or later.
    """
    touched = [(reads(step), writes(step)) for step in steps]
    last: dict[Val, int] = {}
    for i, (read, written) in enumerate(touched):
        last.update(dict.fromkeys(read | written, i))
    first: set[Val] = set()
    grows, frees = [], []
    replaced: list[list[Val]] = []  # by each step, when they run one by one
    for i, (read, written) in enumerate(touched):
        pairs = [(v, s) for v, s in takeovers[i] if last[s] == i and s in first]
        replaced.append(list(dict(pairs).values()))
        handed = sum(map(temporary, set(replaced[i])))
        grows.append(sum(temporary(v) for v in written - first) - handed)
        first |= written
        frees.append(sum(temporary(v) for v in read | written if last[v] == i) - handed)
    budget, live = LEAST_BUDGET, 0
    for grow, free in zip(grows, frees, strict=True):
        live += grow
        budget = max(budget, live)
        live -= free
    found: list[_Wave] = []
    live = 0  # when the waves so far are done
    for i, ((read, written), step) in enumerate(zip(touched, steps, strict=True)):
        scratch = sum(step.scratch)
        into, grow = len(found), grows[i]
        more = grow  # where others of the wave still read what would be replaced
        for w in range(len(found) - 1, max(-1, len(found) - 1 - LOOK_BACK), -1):
            more += sum(temporary(s) for s in replaced[i] if s in found[w].read)
            if found[w].clashes(read, written) or found[w].live + more > budget:
                break
            if found[w].scratch + scratch <= MOST_SCRATCH:
                into, grow = w, more
        if into == len(found):
            found.append(_Wave(live))
        for wave in found[into:]:
            wave.live += grow
        wave = found[into]
        wave.members.append(i)
        wave.read |= read
        wave.written |= written
        wave.scratch += scratch
        live += grows[i] - frees[i]
    return [wave.members for wave in found]
