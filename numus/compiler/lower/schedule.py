"""Schedules of fusion groups: objects in ordered lists, one list for each family.

A family (matmul, convolution, attention...) has a problem and a list of schedules. The one of least
cost among those that support the problem lowers it; of equal costs, the first in the list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.emitter import Kernels
from numus.target import Target

Lowering = Callable[[FusionGroup, Layouts, Target], Kernels]


@dataclass(frozen=True)
class Problem:
    """A fusion group to be lowered. Families extend it by what their schedules ask for."""

    group: FusionGroup
    layouts: Layouts
    target: Target

    @property
    def val(self) -> Value:
        return self.group.members[0]


P = TypeVar("P", bound=Problem, contravariant=True)
Q = TypeVar("Q", bound=Problem)


class Schedule(Protocol[P]):
    """One way of computing a problem."""

    @property
    def name(self) -> str: ...

    def supports(self, problem: P, target: Target) -> bool:
        """The schedule can compute the problem on the target, and is meant for it."""
        ...

    def cost(self, problem: P, target: Target) -> float:
        """Expected time, in a unit that the schedules of a list share."""
        ...

    def lower(self, problem: P) -> Kernels:
        """Kernels in the order in which they run."""
        ...


class InOrder:
    """Base of schedules that are chosen by their position in the list alone."""

    def cost(self, problem: Problem, target: Target) -> float:
        return 0.0


class Fallback(InOrder):
    """Base of schedules for every problem, at the end of a list."""

    def supports(self, problem: Problem, target: Target) -> bool:
        return True


@dataclass(frozen=True)
class Candidate(InOrder, Generic[P]):
    """A schedule of two functions, used wherever it is supported."""

    name: str
    lowering: Callable[[P], Kernels]
    supported: Callable[[P], bool] = lambda problem: True

    def supports(self, problem: P, target: Target) -> bool:
        return self.supported(problem)

    def lower(self, problem: P) -> Kernels:
        return self.lowering(problem)


def select(schedules: Sequence[Schedule[P]], problem: P) -> Schedule[P]:
    """The schedule of least cost among those that support the problem, the first of equal ones.

    Costs are not negative: a supported schedule of cost 0 ends the search.
    """
    best: Schedule[P] | None = None
    lowest = math.inf
    for s in schedules:
        if not s.supports(problem, problem.target):
            continue
        cost = s.cost(problem, problem.target)
        if best is None or cost < lowest:
            best, lowest = s, cost
        if cost == 0:
            break
    if best is None:
        names = ", ".join(s.name for s in schedules)
        raise AssertionError(f"no schedule for {problem.group!r} among {names}")
    return best


def family(problem: type[Q], *schedules: Schedule[Q]) -> Lowering:
    """The lowering of a family: by the best of its schedules."""

    def lower(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
        p = problem(group, group.input_layouts(layouts), target)
        return select(schedules, p).lower(p)

    return lower
