"""Rows in registers, where threads are lanes of a vector: each row is read once.

Every access to memory is dear there and registers are many, because what does not fit is spilled in
whole vectors. So all elements of a row are written out: a lane has runs of neighbours, as long as
are read at once, and keeps what several stages need of them. The number of runs is part of a
kernel; sizes are not, but for being multiples of a run.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from numus.compiler import ir
from numus.compiler.emit import Step
from numus.compiler.groups import place
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops.rows import Row, in_turn, whole
from numus.compiler.loops.space import ZERO, Dim, Space, block, blocks_of, digits, extent_of
from numus.compiler.loops.work import Work
from numus.kernels.vector_contraction import RUN

MOST_RUNS = 32  # of a lane: beyond, code takes longer to compile than it is worth


def fits_kept(work: Work, space: Space, lane: Dim | None) -> bool:
    """Whether rows lie in memory by whole runs, few enough to be written out, and are needed by
    more than one stage."""
    lanes = work.facts.lockstep
    if not lanes or lane is None or [lane] != space.inner or work.is_small:
        return False
    size = space.row_size
    if work.rounds < 2 or size % RUN or blocks_of(size, RUN * lanes) > MOST_RUNS:
        return False
    if not space.in_runs(lane, RUN):
        return False
    touched = [v for v in (*work.read(), *work.stored) if v.size > space.row_count]
    if any(v.dtype.itemsize != 4 for v in touched):
        return False
    row = _Kept(work, space, work.emitter(), {}, [], lane)
    row.keep_costly()
    return bool(row.kept)


def lower_kept(work: Work, space: Space) -> Step:
    """One kernel for all stages of all rows."""
    e = work.emitter()
    e.unit = RUN
    e.group = work.facts.lockstep
    per_block = max(1, work.share() // space.row_size)
    grid = blocks_of(space.row_count, per_block)
    g, r = ir.var("g"), ir.var("r")
    per = e.parameter(per_block)
    row = _Kept(work, space, e, digits(e, r, space.rows), whole(e, space), space.inner[0])
    row.keep_costly()
    body = row.stages() + row.results()
    if space.rows:
        span = block(ir.mul(g, per), per, extent_of(e, space.rows))
        body = [ir.For(r, *span, "serial", body)]
    return e.blocks("kept_rows", g, body, grid, work.notes)


@dataclass(slots=True)
class _Kept(Row):
    """A row whose elements have registers: those of a lane, one after the other."""

    # since which stage values are kept, and where
    kept: dict[Val, tuple[int, list[ir.Register]]] = field(default_factory=dict)

    @property
    def runs(self) -> int:
        """How many runs a lane has."""
        return blocks_of(self.space.row_size, RUN * self.e.group)

    def keep_costly(self) -> None:
        for v, stages in in_turn(self.needed_again()[0]):
            names = (f"k{v.id}_{i}" for i in range(self.runs * RUN))
            registers = [ir.Register(name, v.dtype, lanes=True) for name in names]
            self.kept[v] = (min(stages), registers)

    def _stage(self, stage: int) -> list[Stmt]:
        """All elements, each through the reductions of this stage and the maps that are ready."""
        e, reduces = self.e, self.work.reduces_of(stage)
        out: list[Stmt] = []
        state = {r: self._registers(r, out) for r in reduces}
        lane = ir.var(f"lane{stage}")
        lanes, work = const(e.group), list[Stmt]()
        for run in range(self.runs):
            number = ir.add(lane, ir.mul(const(run), lanes))
            body = self._run(stage, run, ir.mul(number, const(RUN)), state)
            if (run + 1) * RUN * e.group > self.space.row_size:
                body = [ir.If(number < e.parameter(self.space.row_size // RUN), body)]
            work += body
        out.append(ir.For(lane, ZERO, lanes, "lanes", work))
        for r in reduces:
            out += self._finish(r, state[r])
        for m, r in self.work.aliases.items():
            if r in reduces:
                e.known[m] = e.known[r]
        return out

    def _run(
        self, stage: int, run: int, start: Expr, state: dict[Val, list[ir.Register]]
    ) -> list[Stmt]:
        """The elements of a run; what they store comes last, at once."""
        e, inner = self.e, self.space.inner[0]
        body: list[Stmt] = []
        stores: dict[Val, list[Stmt]] = {m: [] for m in self.work.maps_of(stage)}
        for k in range(RUN):
            position = ir.add(start, const(k))
            e.extents[position] = e.number(inner.extent)
            index = self.space.index({**self.at, inner: position})
            for v, (first, registers) in self.kept.items():
                point, register = place(v.shape, index), registers[run * RUN + k]
                if stage > first:
                    e.hold(v, ir.read(register), point)
                elif stage == first:
                    body.append(ir.Set(register, e.value(v, point)))
            for r, registers in state.items():
                body += self._step(r, registers, index, position)
            for m, found in stores.items():
                point = place(m.shape, index)
                found += e.store(m, point, e.value(m, point))
        return body + [s for found in stores.values() for s in found]
