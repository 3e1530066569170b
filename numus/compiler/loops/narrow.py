"""Short rows on targets whose lanes are threads: a few neighbouring threads for each of them.

The threads of a row take its elements in turns and merge what they found by exchanges in pairs, so
each of them knows the outcome; nobody waits for threads of other rows.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.emit import Emitter, Step
from numus.compiler.groups import place
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops.space import ZERO, At, Dim, Space, blocks_of, digits, extent_of
from numus.compiler.loops.work import Work
from numus.compiler.reducers import reducer

LONGEST = 256  # elements of a row
EACH = 8  # elements that are worth a thread
WIDEST = 32  # threads that can exchange


def fits_narrow(work: Work, space: Space, lane: Dim | None) -> bool:
    """Whether rows are short and many, their neighbours next to each other in memory, and threads
    can exchange what they have."""
    return (
        "shuffles" in work.facts.features
        and not work.facts.lockstep
        and lane is not None
        and [lane] == space.inner
        and EACH < space.row_size <= LONGEST
        and space.row_count >= work.enough_blocks()
    )


def lower_narrow(work: Work, space: Space) -> Step:
    """One kernel for all stages of all rows."""
    return _Narrow(work, space).step()


class _Narrow:
    def __init__(self, work: Work, space: Space) -> None:
        self.work, self.space = work, space
        self.e: Emitter = work.emitter()
        (self.along,) = space.inner
        wanted = blocks_of(space.row_size, EACH)
        self.width = min(WIDEST, 1 << (wanted - 1).bit_length())

    def step(self) -> Step:
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
            e.hold(v, e.number(space.row_size).cast(v.dtype))
        for stage in range(self.work.rounds):
            if self.work.reduces_of(stage) or self.work.maps_of(stage):
                body += self._stage(stage, at)
        body.append(ir.If(self.exists & self.turn.eq(0), self._per_row(at)))
        loop = ir.For(lane, ZERO, const(self.work.threads), "lanes", body)
        grid = blocks_of(space.row_count, per_block)
        return e.blocks("narrow_rows", g, [loop], grid, self.work.notes)

    def _stage(self, stage: int, at: At) -> list[Stmt]:
        """Reductions of this stage, and maps that are ready."""
        e, work = self.e, self.work
        extent = e.number(self.along.extent)
        x = e.variable(f"x{stage}", extent)
        index = self.space.index({**at, self.along: x})
        out: list[Stmt] = []
        body: list[Stmt] = []
        state: dict[Val, list[ir.Register]] = {}
        for r in work.reduces_of(stage):
            how = reducer(r)
            state[r] = [
                ir.Register(f"a{r.id}_{i}", t, lanes=True) for i, t in enumerate(how.dtypes)
            ]
            out += [ir.Set(a, start) for a, start in zip(state[r], how.initial(), strict=True)]
            source = r.inputs[0]
            value = e.value(source, place(source.shape, index))
            new = how.step([ir.read(a) for a in state[r]], value, x)
            names = [ir.var(f"t{r.id}_{i}", a.dtype) for i, a in enumerate(state[r])]
            body += [ir.Let(n, v) for n, v in zip(names, new, strict=True)]
            body += [ir.Set(a, n) for a, n in zip(state[r], names, strict=True)]
        stores: list[Stmt] = []
        for m in work.maps_of(stage):
            point = place(m.shape, index)
            stores += e.store(m, point, e.value(m, point))
        if stores:
            body.append(ir.If(self.exists, stores))
        out.append(ir.For(x, self.turn, extent, "serial", body, step=const(self.width)))
        for r, registers in state.items():
            out += self._merged(r, registers)
        for m, r in work.aliases.items():
            if r in state:
                e.known[m] = e.known[r]
        return out

    def _merged(self, r: Val, registers: list[ir.Register]) -> list[Stmt]:
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
        self.e.hold(r, how.finish(found))
        return out

    def _per_row(self, at: At) -> list[Stmt]:
        e, rows = self.e, self.space.row_index(at)
        out: list[Stmt] = []
        for m in self.work.stored:
            if not self.work.is_full(m):
                index = place(m.shape, rows)
                value = e.known[m](index) if m.kind == "reduce" else e.value(m, index)
                out += e.store(m, index, value)
        return out
