"""The problem that schedules of loop groups solve."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import Loop, LoopNest
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.schedule import Problem
from numus.target import Target

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class LoopProblem(Problem):
    """A loop group: its stages, its loops, and of these the one whose iterations are lanes."""

    work: StagedGroup
    nest: LoopNest
    lane: Loop | None
    _found: dict[str, object] = field(default_factory=dict)

    def find(self, name: str, of: Callable[[LoopProblem], T]) -> T:
        """A result that a schedule computes to decide, kept for its lowering."""
        if name not in self._found:
            self._found[name] = of(self)
        return self._found[name]  # type: ignore[return-value]


LoopPredicate = Callable[[LoopProblem], bool]
Attempt = Callable[[LoopProblem], LoweredKernel | None]


@dataclass(frozen=True)
class LoopSchedule:
    """A schedule that is used wherever it is supported."""

    name: str
    supported: LoopPredicate
    lowering: Callable[[LoopProblem], list[LoweredKernel]]

    def supports(self, problem: LoopProblem, target: Target) -> bool:
        return self.supported(problem)

    def cost(self, problem: LoopProblem, target: Target) -> float:
        return 0.0

    def lower(self, problem: LoopProblem) -> list[LoweredKernel]:
        return self.lowering(problem)


def attempt(name: str, supported: LoopPredicate, lowering: Attempt) -> LoopSchedule:
    """A schedule whose lowering finds out whether it is supported."""
    return LoopSchedule(
        name,
        lambda p: supported(p) and p.find(name, lowering) is not None,
        lambda p: [k for k in [p.find(name, lowering)] if k is not None],
    )
