"""Maps that cross memory, by threads that are lanes of a vector: runs are turned among the lanes.

Each lane reads runs as they lie, across its loops, and the lanes exchange elements until each has a
run along them: squares of as many runs as lanes, in registers.
"""

from __future__ import annotations

from numus.compiler import ir
from numus.compiler.affine import Strides
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import place
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.loops.space import ZERO, Dim, Space, blocks_of, count, digits
from numus.compiler.loops.turned import loads_of, replaced
from numus.compiler.loops.work import Work
from numus.kernels.vector_contraction import RUN, named

SIDE = 8  # squares along each side of what a group has: lines of memory stay in a cache


def lower_turned_lanes(work: Work, space: Space, lane: Dim, cross: Dim) -> Step | None:
    """The kernel; None where nothing is to be turned, or not all of it lies in whole runs."""
    if work.facts.lockstep != RUN or lane.extent % RUN or cross.extent % RUN:
        return None
    if any(v.dtype.itemsize != 4 for v in (*work.stored, *work.read())):
        return None
    made = _Turned(work, space, lane, cross, unit=1)
    turned = [n for n, x in enumerate(made.loads) if made.crosses(x)]
    return _Turned(work, space, lane, cross, unit=RUN).kernel(turned) if turned else None


class _Turned:
    def __init__(self, work: Work, space: Space, lane: Dim, cross: Dim, unit: int) -> None:
        self.work, self.lane, self.cross = work, lane, cross
        self.e: Emitter = work.emitter()
        e = self.e
        e.unit, e.group = unit, work.facts.lockstep
        self.i, self.j = (e.variable(n, e.number(d.extent)) for n, d in (("i", cross), ("j", lane)))
        self.rest = [d for d in space.dims if d not in (lane, cross)]
        self.g, self.tile = ir.var("g"), ir.var("tile")
        index = space.index({**digits(e, self.tile, self.rest), lane: self.j, cross: self.i})
        self.stores: list[ir.Store] = []
        for m in work.stored:
            point = place(m.shape, index)
            found = e.store(m, point, e.value(m, point))
            self.stores += [s for s in found if isinstance(s, ir.Store)]
        self.loads = loads_of(s.value for s in self.stores)

    def crosses(self, load: Expr) -> bool:
        """Whether a load has its neighbours along the loop that crosses the lanes."""
        found = Strides(self.e).of(load.args[0]) if len(load.args) == 1 else None
        return found is not None and found.get(self.i, 0) == 1 and abs(found.get(self.j, 0)) > 1

    def kernel(self, turned: list[int]) -> Step:
        e, g = self.e, self.g
        down, across = (blocks_of(d.extent, SIDE * RUN) for d in (self.cross, self.lane))
        rows, columns = e.parameter(down), e.parameter(across)
        lane, a, b = ir.var("lane"), ir.var("a"), ir.var("b")
        body: list[Stmt] = []
        starts = [ir.mul(x, const(RUN)) for x in (a, b)]
        known: list[dict[Expr, Expr]] = [
            {self.i: ir.add(starts[0], lane), self.j: ir.add(starts[1], const(k))}
            for k in range(RUN)
        ]
        for n in turned:
            load = self.loads[n]
            spots = [
                {self.i: ir.add(starts[0], const(k)), self.j: ir.add(starts[1], lane)}
                for k in range(RUN)
            ]
            run = named(body, f"x{n}", [replaced(load, spot) for spot in spots])
            for new, x in zip(known, named(body, f"y{n}", exchanged(run, lane)), strict=True):
                new[load] = x
        for s in self.stores:
            for new in known:
                mask = None if s.mask is None else replaced(s.mask, new)
                to, value = replaced(s.index, new), replaced(s.value, new)
                body.append(ir.Store(s.buffer, to, value, mask))
        corner = ir.irem(ir.idiv(g, columns), rows), ir.irem(g, columns)
        for v, at, d in ((b, corner[1], self.lane), (a, corner[0], self.cross)):
            first = ir.mul(at, const(SIDE))
            last = ir.minimum(ir.add(first, const(SIDE)), e.parameter(d.extent // RUN))
            body = [ir.For(v, first, last, "serial", body)]
        work: list[Stmt] = [
            ir.Let(self.tile, ir.idiv(g, ir.mul(rows, columns))),
            ir.For(lane, ZERO, const(e.group), "lanes", body),
        ]
        return e.blocks("turned_map", g, work, down * across * count(self.rest), self.work.notes)


def exchanged(run: list[Expr], lane: Expr) -> list[Expr]:
    """The square whose lines the lanes have as runs, turned: element k of lane n becomes element n
    of lane k."""
    run = list(run)
    bit = 1
    while bit < len(run):
        upper = (lane & const(bit)).ne(0)
        for k in range(len(run)):
            if not k & bit:
                x, y = run[k], run[k | bit]
                other = ir.lanes_xor(ir.select(upper, x, y), bit)
                run[k], run[k | bit] = ir.select(upper, other, x), ir.select(upper, y, other)
        bit *= 2
    return run
