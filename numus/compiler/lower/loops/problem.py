"""The problem that schedules of loop groups solve.

A store that misses the caches fetches its line first. Where a CPU does not do that early enough by
itself, stores along lanes come with a prefetch of the line some way ahead (`prefetched`), which is
in a following row where rows are short: rows of results follow each other in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.nest import Loop, LoopNest
from numus.compiler.lower.loops.stages import StagedGroup
from numus.compiler.lower.loops.tuning import TUNING
from numus.compiler.lower.schedule import Candidate, Problem
from numus.ir import Buffer, Expr, Prefetch, Stmt, Store, add, const, split_constant, walk


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

    def prefetched(self, e: Emitter, stores: list[Stmt], lane: Expr) -> list[Stmt]:
        """These stores along lanes, with prefetches of results ahead."""
        if not self.target.prefetches_results or self.work.is_small or self.work.redirect:
            return stores
        found: dict[tuple[Buffer, Expr], Stmt] = {}
        for s in stores:
            if isinstance(s, Store) and s.mask is None and _stride(s.index, lane) in (1, 2):
                distance = TUNING.result_bytes_ahead // s.buffer.dtype.itemsize
                ahead = add(s.index, const(distance))
                key = s.buffer, split_constant(s.index)[0]  # parts of a number share their line
                found.setdefault(key, Prefetch(s.buffer, ahead, lanes=True))
        return [*found.values(), *stores]


def _stride(index: Expr, lane: Expr) -> int | None:
    """The stride along lanes; None where it is not known."""
    if index is lane:
        return 1
    if index.op in ("add", "sub"):
        a, b = (_stride(x, lane) for x in index.args)
        if a is None or b is None:
            return None
        return a + b if index.op == "add" else a - b
    if index.op == "mul" and index.args[1].op == "const":
        a = _stride(index.args[0], lane)
        return None if a is None else a * int(index.args[1].attr)
    return None if any(x is lane for x in walk(index, lambda x: True)) else 0


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
