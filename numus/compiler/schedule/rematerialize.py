"""Rematerialisation: lower peak memory at bounded extra compute.

GEMMs at the peak pack one operand ahead instead of both. Cheap values that are live across the
peak, but unused at it, are freed and recomputed after it (the slow function inside an activation,
from the activation's input). On CPUs that costs arithmetic, on GPUs traffic: a kernel that reads
the operands and writes the value again.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import EXPENSIVE_OPS, nbytes
from numus.compiler.graph.value import PACKED, Layouts, Value, walk
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.index_rules import is_inline
from numus.compiler.schedule.tuning import TUNING
from numus.shapes import row_major

Steps = list[tuple[LoweredKernel, FusionGroup]]
Lower = Callable[[FusionGroup], Sequence[LoweredKernel]]
Bytes = Callable[[Value], int]  # of a value in the arena, 0 for inputs and results
Cost = Callable[[Sequence[Value], Sequence[Value]], int]  # of values, from operands in memory
# Pairs (output, input) of a step's temporaries that may share memory.
InPlace = Callable[[LoweredKernel, FusionGroup], Sequence[tuple[Value, Value]]]
_TOO_MUCH = 1 << 62


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A value to recompute."""

    value: Value
    cost: int
    last: int  # the last step before the peak that uses it
    next: int  # the first one after it
    sources: tuple[Value, ...]  # operands in memory


class Liveness:
    """Live bytes of each step of a sequential execution.

    Steps have labels in ascending order, so that further ones come between them without a new
    label for all that follow.
    """

    def __init__(
        self,
        temporary: Bytes,
        workers: int,
        steps: Steps,
        in_place: InPlace = lambda step, group: (),
    ) -> None:
        self.temporary, self._workers = temporary, workers
        self.labels = [float(i) for i in range(len(steps))]
        self._in_place = [
            (float(i), v, x) for i, (step, g) in enumerate(steps) for v, x in in_place(step, g)
        ]
        self._scratch = [step.scratch_bytes(workers) for step, _ in steps]
        self.uses: dict[Value, list[float]] = {}  # labels of steps
        for i, (step, _) in enumerate(steps):
            self._add_uses(step, float(i))
        self._update()

    def _add_uses(self, step: LoweredKernel, label: float) -> None:
        for v in step.buffers:
            found = self.uses.setdefault(v, [])
            if not found or found[-1] < label:
                found.append(label)
            elif label not in found:
                bisect.insort(found, label)

    def _update(self) -> None:
        """The live bytes, by where lives begin and end."""
        lives = [(n, found) for v, found in self.uses.items() if (n := self.temporary(v))]
        labels = np.array(self.labels)
        change = np.zeros(len(labels) + 1, np.int64)
        sizes = np.array([n for n, _ in lives], np.int64)
        begins = np.array([found[0] for _, found in lives])
        ends = np.array([found[-1] for _, found in lives])
        np.add.at(change, np.searchsorted(labels, begins), sizes)
        np.subtract.at(change, np.searchsorted(labels, ends) + 1, sizes)
        self.live = np.cumsum(change[:-1]) + np.array(self._scratch, np.int64)
        taken: set[Value] = set()  # inputs that die where an output is written over them
        for label, v, x in self._in_place:
            if not {v, x} & taken and self.uses[v][0] == label == self.uses[x][-1]:
                taken |= {v, x}
                self.live[self.number(label)] -= self.temporary(v)

    def number(self, label: float) -> int:
        """Of a step, in order."""
        return bisect.bisect_left(self.labels, label)

    def insert(self, at: int, steps: Steps, old: Value, new: Value) -> None:
        """Account for further steps ahead of step `at`, from which on `new` replaces `old`."""
        first = self.labels[at]
        before = self.labels[at - 1] if at else first - 1
        gap = (first - before) / (len(steps) + 1)
        labels = [before + gap * (i + 1) for i in range(len(steps))]
        self.labels[at:at] = labels
        self._scratch[at:at] = [step.scratch_bytes(self._workers) for step, _ in steps]
        found = self.uses[old]
        cut = bisect.bisect_left(found, first)
        self.uses[old], self.uses[new] = found[:cut], found[cut:]
        for (step, _), label in zip(steps, labels, strict=True):
            self._add_uses(step, label)
        self._update()

    def without(self, candidate: _Candidate) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """Live bytes if a value were recomputed."""
        live = self.live.copy()
        live[candidate.last + 1 : candidate.next] -= self.temporary(candidate.value)
        for s in candidate.sources:
            after = self.number(self.uses[s][-1]) + 1
            live[after : candidate.next + 1] += self.temporary(s)
        return live


def pack_one_operand(
    steps: Steps, analyse: Callable[[Steps], Liveness], lower: Lower, ignored_peak: int
) -> Steps:
    """The steps, with GEMMs at a peak of more bytes than these lowered for low memory."""
    tried: set[FusionGroup] = set()
    while True:
        liveness = analyse(steps)
        peak_bytes = int(liveness.live.max(initial=0))
        if peak_bytes <= ignored_peak:
            return steps
        group = _packs_both(steps, liveness, tried)
        if group is None:
            return steps
        tried.add(group)
        group.low_memory = True
        own = [i for i, (_, g) in enumerate(steps) if g is group]
        instead = [(step, group) for step in lower(group)]
        changed = [*steps[: own[0]], *instead, *steps[own[-1] + 1 :]]
        if analyse(changed).live.max() < peak_bytes:
            steps = changed


def _packs_both(steps: Steps, liveness: Liveness, tried: set[FusionGroup]) -> FusionGroup | None:
    """A GEMM with both operands packed at the peak."""
    peak = int(liveness.live.argmax())
    once: set[FusionGroup] = set()
    for v, uses in liveness.uses.items():
        if v.op == PACKED and uses[0] <= peak <= uses[-1]:  # labels of steps are their numbers
            group = steps[int(uses[0])][1]
            if group in once and group not in tried:
                return group
            once.add(group)
    return None


def rematerialize(
    steps: Steps,
    analyse: Callable[[Steps], Liveness],
    lower: Lower,
    ignored_peak: int,
    layouts: Layouts,
    budget: int,
    cost: Cost,
) -> Steps:
    """The steps, with further ones that recompute values after the peak, which cost no more than
    `budget` in all. `layouts` has the values in memory."""
    liveness = analyse(steps)
    known: dict[Value, _Recomputation | None] = {}
    while liveness.live.max(initial=0) > ignored_peak:
        candidate = _best(liveness, layouts, budget, cost, known)
        if candidate is None:
            return steps
        steps = _recompute(steps, candidate, layouts, lower, liveness)
        budget -= candidate.cost
    return steps


class _Recomputation(NamedTuple):
    """What computes a value again, wherever the peak is."""

    cost: int
    operands: list[Value]  # in memory


def _best(
    liveness: Liveness,
    layouts: Layouts,
    budget: int,
    cost: Cost,
    known: dict[Value, _Recomputation | None],
) -> _Candidate | None:
    """The candidate that lowers the peak most, of these the cheapest; None where none does."""
    peak = int(liveness.live.argmax())
    label = liveness.labels[peak]
    enough = liveness.live[peak] * (1 - 1 / TUNING.remat_min_gain_fraction)
    best: tuple[int, int, int] | None = None
    found = None
    for v, uses in liveness.uses.items():
        if not (uses[0] < label < uses[-1] and v.kind == "elementwise" and liveness.temporary(v)):
            continue
        if label in uses:
            continue
        if v not in known:
            known[v] = _recomputation(v, layouts, cost)
        how = known[v]
        if how is None or how.cost > budget:
            continue
        at = bisect.bisect_left(uses, label)
        candidate = _Candidate(
            *(v, how.cost, liveness.number(uses[at - 1]), liveness.number(uses[at])),
            tuple(x for x in how.operands if x in liveness.uses),  # others are always in memory
        )
        new_peak = int(liveness.without(candidate).max())
        rank = new_peak, candidate.cost, candidate.last - candidate.next
        if new_peak < enough and (best is None or rank < best):
            best, found = rank, candidate
    return found


def _recomputation(v: Value, layouts: Layouts, cost: Cost) -> _Recomputation | None:
    """How a value is computed from memory; None where it is not inline."""
    values, operands = [], []
    for x in walk([v], lambda x: x is v or x not in layouts):
        if x in layouts and x is not v:
            operands.append(x)
        elif not is_inline(x) or x.kind == "gather":
            return None
        else:
            values.append(x)
    return _Recomputation(cost(values, operands), operands)


def arithmetic(values: Sequence[Value], operands: Sequence[Value]) -> int:
    """The cost of recomputing values on a CPU, in operations."""
    expensive = TUNING.remat_expensive_flops
    return sum(x.size * (expensive if x.op in EXPENSIVE_OPS else 1) for x in values)


def traffic(values: Sequence[Value], operands: Sequence[Value]) -> int:
    """On a GPU: bytes, of the operands and of the first value, which is stored. Too many where the
    operands are clearly larger."""
    stored, read = nbytes(values[0]), sum(map(nbytes, operands))
    return stored + read if 8 * read <= 9 * stored else _TOO_MUCH


def _recompute(
    steps: Steps, candidate: _Candidate, layouts: Layouts, lower: Lower, liveness: Liveness
) -> Steps:
    """The steps with one more, whose result replaces the value in those that follow."""
    v = candidate.value
    again = v.replace(v.inputs, v.params)
    layouts[again] = row_major(again.shape)
    group = FusionGroup.of_stored(again, v.id)
    for step, _ in steps[candidate.next :]:
        step.buffers = [again if x is v else x for x in step.buffers]
    own = [(step, group) for step in lower(group)]
    liveness.insert(candidate.next, own, v, again)
    return [*steps[: candidate.next], *own, *steps[candidate.next :]]
