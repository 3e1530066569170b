"""Explicit Runge-Kutta methods with embedded error estimates: RK23, RK45, DOP853."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.integrate.stepping import (
    MAX_FACTOR,
    MIN_FACTOR,
    SAFETY,
    Attempt,
    Problem,
    State,
    norm,
)
from numus.integrate.tableaus import (
    BOGACKI_SHAMPINE,
    DORMAND_PRINCE,
    DORMAND_PRINCE_8,
    Row,
    Tableau,
)
from numus.tensor import Tensor


def _combined(row: Row, stages: list[Tensor]) -> Tensor:
    """A weighted sum of stages."""
    total: Any = None
    for i, weight in row.items():
        total = weight * stages[i] if total is None else total + weight * stages[i]
    return total


class RungeKutta:
    """An explicit method by its tableau. Its inner state is the derivative at the current point."""

    starting_nfev = 0

    def __init__(self, tableau: Tableau) -> None:
        self.tableau = tableau
        self.order = tableau.order

    def start(self, problem: Problem, t: Tensor, y: Tensor, f: Tensor, h: Tensor) -> Any:
        return f

    def blank(self, y: Tensor) -> Any:
        return (y, *(nm.zeros_like(y) for _ in self.tableau.interpolant))

    def attempt(self, problem: Problem, s: State, t_new: Tensor, h: Tensor) -> Attempt:
        stages = self._stages(problem, s, h)
        y = s.y + h * _combined(self.tableau.weights, stages)
        stages.append(problem.rhs(t_new, y))
        error = self._error(problem.scale(s.y, y), stages, h)
        safe = nm.maximum(error, 1e-10)
        factor = nm.clip(SAFETY * safe ** (-1 / (self.order + 1)), MIN_FACTOR, MAX_FACTOR)
        factor = nm.where(nm.isnan(error), MIN_FACTOR, factor)
        saved = self._saved(s.y, y, stages, h)
        nfev = len(self.tableau.nodes)
        return Attempt(y, error < 1, factor, saved, stages[-1], s.inner, nfev)

    def _stages(self, problem: Problem, s: State, h: Tensor) -> list[Tensor]:
        stages = [s.inner]
        for c, row in zip(self.tableau.nodes[1:], self.tableau.stages, strict=True):
            stages.append(problem.rhs(s.t + c * h, s.y + h * _combined(row, stages)))
        return stages

    def _error(self, scale: Tensor, stages: list[Tensor], h: Tensor) -> Tensor:
        return norm(_combined(self.tableau.errors[0], stages) * h / scale)

    def _saved(self, y_old: Tensor, y: Tensor, stages: list[Tensor], h: Tensor) -> Any:
        return (y_old, *(h * _combined(row, stages) for row in self.tableau.interpolant))

    def interpolate(self, problem: Problem, saved: Any, t: Tensor, h: Tensor, x: Tensor) -> Tensor:
        y_old, *powers = saved
        total = powers[-1]
        for q in powers[-2::-1]:
            total = total * x + q
        return y_old + x * total


class DormandPrince8(RungeKutta):
    """DOP853: two error estimates, and an interpolant with three more stages, which are computed
    only where it is evaluated."""

    def blank(self, y: Tensor) -> Any:
        return (y, y, *(nm.zeros_like(y) for _ in range(13)))

    def _error(self, scale: Tensor, stages: list[Tensor], h: Tensor) -> Tensor:
        fifth, third = (norm(_combined(row, stages) / scale) for row in self.tableau.errors)
        size = nm.sqrt(nm.square(fifth) + 0.01 * nm.square(third))
        zero = size == 0
        return nm.where(zero, 0.0, nm.abs(h) * nm.square(fifth) / nm.where(zero, 1.0, size))

    def _saved(self, y_old: Tensor, y: Tensor, stages: list[Tensor], h: Tensor) -> Any:
        return (y_old, y, *stages)

    def interpolate(self, problem: Problem, saved: Any, t: Tensor, h: Tensor, x: Tensor) -> Tensor:
        y_old, y, *stages = saved
        tableau = self.tableau
        for c, row in zip(tableau.extra_nodes, tableau.extra_stages, strict=True):
            stages.append(problem.rhs(t + c * h, y_old + h * _combined(row, stages)))
        change = y - y_old
        first, last = h * stages[0], h * stages[12]
        terms = [change, first - change, 2 * change - (last + first)]
        terms += [h * _combined(row, stages) for row in tableau.interpolant]
        total: Any = nm.zeros_like(y)
        for i, term in enumerate(reversed(terms)):
            total = (total + term) * (x if i % 2 == 0 else 1 - x)
        return y_old + total


RK23 = RungeKutta(BOGACKI_SHAMPINE)
RK45 = RungeKutta(DORMAND_PRINCE)
DOP853 = DormandPrince8(DORMAND_PRINCE_8)
