"""The problem that schedules of loop groups solve."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.nest import Loop, LoopNest
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.schedule import Candidate, Problem
from numus.ir import Expr, Stmt


@dataclass(frozen=True, eq=False)
class LoopProblem(Problem):
    """A loop group: its stages, its loops, and of these the one whose iterations are lanes."""

    work: StagedGroup
    nest: LoopNest
    lane: Loop | None
    attempts: dict[str, Kernels] = field(init=False, default_factory=dict)  # that succeeded

    @property
    def lanes(self) -> Loop:
        assert self.lane is not None
        return self.lane

    @property
    def across_rows(self) -> bool:
        """Each lane reduces a row of its own."""
        return self.lane is not None and not self.lane.reduced

    def stores(self, e: Emitter, members: Iterable[Value], index: Sequence[Expr]) -> list[Stmt]:
        """Compute and store an element of each member, by an index of the (squeezed) space."""
        out: list[Stmt] = []
        for m in members:
            point = index_of(m.shape, index)
            out += e.store(m, point, e.value(m, point))
        return out


def attempt(
    name: str,
    lowering: Callable[[LoopProblem], Kernels | None],
    supported: Callable[[LoopProblem], bool] = lambda p: True,
) -> Candidate[LoopProblem]:
    """A schedule whose lowering finds out whether it is supported."""

    def supports(p: LoopProblem) -> bool:
        found = lowering(p) if supported(p) else None
        if found is not None:
            p.attempts[name] = found
        return found is not None

    return Candidate(name, lambda p: p.attempts[name], supports)
