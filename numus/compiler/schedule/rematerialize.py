"""What is done otherwise than by itself, because a program would need more memory at its peak.

Products at the peak pack only one of their operands beforehand, where they would pack both.

And values are computed twice. Of what the first half of a training step leaves for the second, some
is cheap to compute from the rest: the slow function inside an activation, from what the activation
was applied to. Where such a value is alive at the peak and used only before and after, it is let
go, and a kernel of its own makes it again for those who come after. The time for it is bounded by a
part of the program's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.cost_model import HEAVY
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.index_rules import is_inline
from numus.compiler.schedule.order import reads, writes
from numus.shapes import Shape, row_major

PART = 64  # of a program's work, the part that may be done again
HEAVY_WORK = 64  # operations that an elementwise function takes which is no single one

Steps = list[tuple[LoweredKernel, FusionGroup]]
Lower = Callable[[FusionGroup], Sequence[LoweredKernel]]


@dataclass(frozen=True, slots=True)
class _Choice:
    """A value to be made again."""

    value: Value
    cost: int
    last: int  # the last step before the peak that uses it
    next: int  # the first one after it
    sources: tuple[Value, ...]  # what it is made from


class _Lives:
    """Which values are alive when steps run one by one, and how many bytes they take."""

    def __init__(
        self,
        steps: Steps,
        temporary: Callable[[Value], int],
        scratch: Callable[[LoweredKernel], int],
    ) -> None:
        self.temporary = temporary
        self.uses: dict[Value, list[int]] = {}
        for i, (step, _) in enumerate(steps):
            for v in reads(step) | writes(step):
                self.uses.setdefault(v, []).append(i)
        self.live = np.array([scratch(step) for step, _ in steps], np.int64)
        for v, found in self.uses.items():
            self.live[found[0] : found[-1] + 1] += temporary(v)

    def without(self, choice: _Choice) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The bytes in use, if a value were made again."""
        live = self.live.copy()
        live[choice.last + 1 : choice.next] -= self.temporary(choice.value)
        for s in choice.sources:
            live[self.uses[s][-1] + 1 : choice.next + 1] += self.temporary(s)
        return live


def frugal(
    steps: Steps,
    temporary: Callable[[Value], int],
    scratch: Callable[[LoweredKernel], int],
    lower: Lower,
    least: int,
) -> Steps:
    """The steps, those of products at the peak replaced by what needs less memory. Up to `least`
    bytes, the peak is of no concern.
    """
    tried: set[FusionGroup] = set()
    while True:
        lives = _Lives(steps, temporary, scratch)
        highest = int(lives.live.max(initial=0))
        if highest <= least:
            return steps
        group = _packing_both(steps, lives, tried)
        if group is None:
            return steps
        tried.add(group)
        group.low_memory = True
        own = [i for i, (_, g) in enumerate(steps) if g is group]
        instead = [(step, group) for step in lower(group)]
        changed = [*steps[: own[0]], *instead, *steps[own[-1] + 1 :]]
        if _Lives(changed, temporary, scratch).live.max() < highest:
            steps = changed


def _packing_both(steps: Steps, lives: _Lives, tried: set[FusionGroup]) -> FusionGroup | None:
    """A product that has packed both operands at the peak."""
    peak = int(lives.live.argmax())
    once: set[FusionGroup] = set()
    for v, uses in lives.uses.items():
        if v.op == "packed" and uses[0] <= peak <= uses[-1]:
            group = steps[uses[0]][1]
            if group in once and group not in tried:
                return group
            once.add(group)
    return None


def recomputed(
    steps: Steps,
    temporary: Callable[[Value], int],
    scratch: Callable[[LoweredKernel], int],
    lower: Lower,
    layouts: dict[Value, Shape],
    work: int,
    least: int,
) -> Steps:
    """The steps, and among them those that make values again. `work` is what the program does, in
    operations; `least` the bytes up to which its peak is of no concern; `layouts` has what is in
    memory, `lower` makes kernels of a group.
    """
    budget = work // PART
    while True:
        lives = _Lives(steps, temporary, scratch)
        if lives.live.max(initial=0) <= least:
            return steps
        choice = _best(lives, layouts, budget)
        if choice is None:
            return steps
        steps = _with(steps, choice, layouts, lower)
        budget -= choice.cost


def _best(lives: _Lives, layouts: dict[Value, Shape], budget: int) -> _Choice | None:
    """What lowers the peak most, of that the cheapest; None where nothing does."""
    peak = int(lives.live.argmax())
    best: tuple[int, int, int] | None = None
    found = None
    for v, uses in lives.uses.items():
        if not (lives.temporary(v) and v.kind == "elementwise" and uses[0] < peak < uses[-1]):
            continue
        choice = _choice(v, uses, peak, layouts, lives)
        if choice is None or choice.cost > budget:
            continue
        rank = int(lives.without(choice).max()), choice.cost, choice.last - choice.next
        if rank[0] < lives.live[peak] and (best is None or rank < best):
            best, found = rank, choice
    return found


def _choice(
    v: Value, uses: list[int], peak: int, layouts: dict[Value, Shape], lives: _Lives
) -> _Choice | None:
    """How to make a value again after the peak; None where it is used there, or can't be."""
    if peak in uses:
        return None
    cost, sources = 0, []
    for x in walk([v], lambda x: x is v or x not in layouts):
        if x in layouts and x is not v:
            if x in lives.uses:  # else it is there all the time
                sources.append(x)
        elif not is_inline(x) or x.kind == "gather":
            return None
        else:
            cost += x.size * (HEAVY_WORK if x.op in HEAVY else 1)
    last, following = max(i for i in uses if i < peak), min(i for i in uses if i > peak)
    return _Choice(v, cost, last, following, tuple(sources))


def _with(steps: Steps, choice: _Choice, layouts: dict[Value, Shape], lower: Lower) -> Steps:
    """The steps with one more, which makes a value again for those that follow."""
    v = choice.value
    again = Value(v.id, v.op, v.kind, v.inputs, v.params, v.shape, v.dtype)
    layouts[again] = row_major(again.shape)
    group = FusionGroup.of_stored(again, v.id)
    for step, _ in steps[choice.next :]:
        step.buffers = [again if x is v else x for x in step.buffers]
    own = [(step, group) for step in lower(group)]
    return [*steps[: choice.next], *own, *steps[choice.next :]]
