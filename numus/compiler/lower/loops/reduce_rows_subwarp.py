"""Short rows on targets whose lanes are threads: a few neighbouring threads for each of them.

The threads of a row take its elements in turns and merge what they found by exchanges in pairs, so
each of them knows the outcome; nobody waits for threads of other rows. Where there are several
stages, turns are written out: all of a row is under way from memory at a time, and what the stages
have in common is read, or computed, once.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, At, Dim, Space, blocks_of, digits, extent_of
from numus.compiler.lower.loops.reduce_rows import Row, in_turn
from numus.compiler.lower.loops.reduce_rows_registers import ways_to_hold
from numus.compiler.lower.loops.stages import Work
from numus.compiler.lower.reducers import reducer
from numus.ir import Expr, Stmt, const

LONGEST = 256  # elements of a row
HELD_FROM = 128  # elements of a row that is worth a whole warp, if that can hold it
EACH = 8  # elements that are worth a thread
WIDEST = 32  # threads that can exchange


def fits_narrow(work: Work, space: Space, lane: Dim | None) -> bool:
    """Whether rows are short and many, their neighbours next to each other in memory, and threads
    can exchange what they have."""
    return (
        work.target.subgroup_size > 0
        and lane is not None
        and [lane] == space.inner
        and EACH < space.row_size <= LONGEST
        and space.row_count >= work.enough_blocks()
        and not (
            work.rounds > 1 and space.row_size >= HELD_FROM and ways_to_hold(work, space, lane)
        )
    )


def lower_narrow(work: Work, space: Space) -> LoweredKernel:
    """One kernel for all stages of all rows."""
    return _Narrow(work, space).step()


class _Narrow:
    def __init__(self, work: Work, space: Space) -> None:
        self.work, self.space = work, space
        self.e: Emitter = work.emitter()
        (self.along,) = space.inner
        wanted = blocks_of(space.row_size, EACH)
        self.width = min(WIDEST, 1 << (wanted - 1).bit_length())
        # of what several stages need: since when, and a name for each turn
        self.kept: dict[Value, tuple[int, list[Expr]]] = {}
        if work.rounds > 1:
            turns = range(blocks_of(space.row_size, self.width))
            row = Row(work, space, self.e, {}, [], self.along)
            for v, stages in in_turn(row.needed_again()[0]):
                names: list[Expr] = [ir.var(f"k{v.id}_{i}", v.dtype) for i in turns]
                self.kept[v] = min(stages), names

    def step(self) -> LoweredKernel:
        e, space, width = self.e, self.space, const(self.width)
        per_block = self.work.threads // self.width
        g, lane = ir.var("g"), ir.var("lane")
        number = ir.add(ir.mul(g, const(per_block)), ir.idiv(lane, width))
        rows = extent_of(e, space.rows)
        self.exists, self.turn = ir.var("exists", dt.bool_), ir.var("turn")
        row = ir.var("row")  # past the end, threads go along with the last one, and store nothing
        e.extents[row] = rows
        body: list[Stmt] = [
            ir.Let(self.exists, number < rows),
            ir.Let(self.turn, ir.irem(lane, width)),
            ir.Let(row, ir.minimum(number, rows - 1)),
        ]
        at = digits(e, row, space.rows)
        for v in self.work.counts:
            e.bind(v, e.dim(space.row_size).cast(v.dtype))
        for stage in range(self.work.rounds):
            if self.work.reduces_of(stage) or self.work.maps_of(stage):
                body += self._stage(stage, at)
        body.append(ir.If(self.exists & self.turn.eq(0), self._per_row(at)))
        loop = ir.For(lane, ZERO, const(self.work.threads), "lanes", body)
        grid = blocks_of(space.row_count, per_block)
        return e.grid_kernel("narrow_rows", g, [loop], grid, self.work.notes)

    def _stage(self, stage: int, at: At) -> list[Stmt]:
        """Reductions of this stage, and maps that are ready."""
        e, work = self.e, self.work
        extent = e.dim(self.along.extent)
        out: list[Stmt] = []
        state: dict[Value, list[ir.Register]] = {}
        for r in work.reduces_of(stage):
            how = reducer(r)
            state[r] = [
                ir.Register(f"a{r.id}_{i}", t, lanes=True) for i, t in enumerate(how.dtypes)
            ]
            out += [ir.Set(a, start) for a, start in zip(state[r], how.initial(), strict=True)]
        if work.rounds > 1:
            out += self._turns(stage, at, extent, state)
        else:
            x = e.variable(f"x{stage}", extent)
            body = self._element(stage, self.space.index({**at, self.along: x}), x, state, None)
            out.append(ir.For(x, self.turn, extent, "serial", body, step=const(self.width)))
        for r, registers in state.items():
            out += self._merged(r, registers)
        for m, r in work.aliases.items():
            if r in state:
                e.bindings[m] = e.bindings[r]
        return out

    def _turns(
        self, stage: int, at: At, extent: Expr, state: dict[Value, list[ir.Register]]
    ) -> list[Stmt]:
        """The turns of a thread, one after the other; past the end of a row, the last element is
        looked at once more, and counts for nothing."""
        e, size = self.e, self.space.row_size
        places: list[tuple[Expr, list[Expr], Expr | None]] = []
        out: list[Stmt] = []
        for i in range(blocks_of(size, self.width)):
            x, own = e.variable(f"x{stage}_{i}", extent), ir.add(self.turn, const(i * self.width))
            there = None if (i + 1) * self.width <= size else own < extent
            out.append(ir.Let(x, own if there is None else ir.minimum(own, extent - 1)))
            places.append((x, self.space.index({**at, self.along: x}), there))
        for v, (first, names) in self.kept.items():
            if stage == first and v in self.work.layouts:  # all loads begin before anything waits
                pairs = zip(names, places, strict=True)
                out += [
                    ir.Let(n, e.value(v, index_of(v.shape, index))) for n, (_, index, _) in pairs
                ]
        for i, (x, index, there) in enumerate(places):
            for v, (first, names) in self.kept.items():
                point = index_of(v.shape, index)
                if stage == first and v not in self.work.layouts:
                    out.append(ir.Let(names[i], e.value(v, point)))
                if stage >= first:
                    e.bind(v, names[i], point)
            out += self._element(stage, index, x, state, there)
        return out

    def _element(
        self,
        stage: int,
        index: list[Expr],
        x: Expr,
        state: dict[Value, list[ir.Register]],
        there: Expr | None,
    ) -> list[Stmt]:
        """One element of a row, if it is there."""
        e, work = self.e, self.work
        body: list[Stmt] = []
        for r, registers in state.items():
            source = r.inputs[0]
            value = e.value(source, index_of(source.shape, index))
            olds = [ir.read(a) for a in registers]
            new = reducer(r).step(olds, value, x)
            if there is not None:
                new = [ir.select(there, n, old) for n, old in zip(new, olds, strict=True)]
            names = [ir.var(f"t{r.id}_{i}_{x.attr}", a.dtype) for i, a in enumerate(registers)]
            body += [ir.Let(n, v) for n, v in zip(names, new, strict=True)]
            body += [ir.Set(a, n) for a, n in zip(registers, names, strict=True)]
        stores: list[Stmt] = []
        for m in work.maps_of(stage):
            point = index_of(m.shape, index)
            stores += e.store(m, point, e.value(m, point))
        if stores:
            inside = self.exists if there is None else self.exists & there
            body.append(ir.If(inside, stores))
        return body

    def _merged(self, r: Value, registers: list[ir.Register]) -> list[Stmt]:
        """Exchange what the threads of a row have until each knows all of it."""
        how = reducer(r)
        found: list[Expr] = [ir.read(a) for a in registers]
        out: list[Stmt] = []
        mask = 1
        while mask < self.width:
            names = [ir.var(f"f{r.id}_{i}_{mask}", a.dtype) for i, a in enumerate(registers)]
            other = [ir.lanes_xor(x, mask) for x in found]
            merged = how.combine(found, other)
            out += [ir.Let(n, v) for n, v in zip(names, merged, strict=True)]
            found = list(names)
            mask *= 2
        self.e.bind(r, how.finish(found))
        return out

    def _per_row(self, at: At) -> list[Stmt]:
        e, rows = self.e, self.space.row_index(at)
        out: list[Stmt] = []
        for m in self.work.stored:
            if not self.work.is_full(m):
                index = index_of(m.shape, rows)
                value = e.bindings[m](index) if m.kind == "reduce" else e.value(m, index)
                out += e.store(m, index, value)
        return out
