"""Schedules: the ways of computing one family of fusion groups, as objects in ordered lists.

A family (matmul, convolution, attention...) has a problem and a list of schedules for it. The first
of least cost among those that support the problem lowers it; where costs are equal, the order of
the list decides, so a list without cost models reads as "the first that can".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.shapes import Shape
from numus.target import Target


@dataclass(frozen=True)
class Problem:
    """A fusion group to be lowered. Families extend it by what their schedules ask for."""

    group: FusionGroup
    layouts: dict[Value, Shape]  # strides of the values in memory, in elements
    target: Target


P = TypeVar("P", bound=Problem, contravariant=True)


class InOrder:
    """Base of schedules that are chosen by their position in the list alone."""

    def cost(self, problem: Problem, target: Target) -> float:
        return 0.0


class Schedule(Protocol[P]):
    """One way of computing a problem."""

    @property
    def name(self) -> str: ...

    def supports(self, problem: P, target: Target) -> bool:
        """The schedule computes such a problem on such a target, and is meant for it."""
        ...

    def cost(self, problem: P, target: Target) -> float:
        """Expected time, in a unit that the schedules of a list share."""
        ...

    def lower(self, problem: P) -> list[LoweredKernel]:
        """Kernels in the order in which they run."""
        ...


def select(schedules: Sequence[Schedule[P]], problem: P) -> Schedule[P]:
    """The schedule of least cost among those that support the problem, the first of equal ones."""
    supported = [s for s in schedules if s.supports(problem, problem.target)]
    if not supported:
        names = ", ".join(s.name for s in schedules)
        raise AssertionError(f"no schedule for {problem.group!r} among {names}")
    return min(supported, key=lambda s: s.cost(problem, problem.target))
