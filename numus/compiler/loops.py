"""Loop groups as kernels: maps, and row programs (stages of reductions and maps over rows).

A group is emitted twice: first with one variable per axis, to see by which strides it touches
memory; then, with neighbouring axes merged and the lanes chosen, for real.

    map          blocks of rows; lanes along the axis that most accesses have next to each other
    rows         one row after another, lanes along the row; every stage is a loop over the row
    columns      lanes across rows, where neighbours in memory belong to different rows
    stream       the same for plain reductions: blocks of whole lines pass by in memory order, and
                 the running results of many rows lie in a scratch line
    split        few long rows: blocks of a row reduce into partial results, a second kernel merges
                 them in a fixed order, so the thread count never shows in the result
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.affine import Coefficients, Strides, collapsible, unit_weight
from numus.compiler.emit import Emitter, Index, Step
from numus.compiler.fuse import HEAVY, Group, level, place, squeeze
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.reducers import Reducer, reducer
from numus.runtime.contract import Facts
from numus.shapes import Shape, size_of

SMALL = 1 << 13  # elements up to which a kernel's code is kept short
BLOCK = 1 << 14  # elements that one block of a cheap kernel handles, at least
SPLIT = 1 << 15  # elements of a row that one block of a split reduction handles
FEW_ROWS = 16
STREAM_WIDTH = 2048  # rows whose running results lie in a scratch line
MERGE_ROWS = 1024  # rows whose partial results one block merges

ZERO, ONE = const(0), const(1)


@dataclass(slots=True, eq=False)
class Dim:
    """A loop: neighbouring axes of the space that memory sees as one."""

    extent: int
    reduced: bool
    axes: list[int]


Redirect = dict[Val, tuple[Val, int, int]]


def lower_loops(
    group: Group,
    layouts: dict[Val, Shape],
    facts: Facts,
    redirect: Redirect | None = None,
    aliases: dict[Val, Val] | None = None,
) -> list[Step]:
    """The kernels of a loop group: one, or two where long rows are split.

    `redirect` stores a member as part of another value; `aliases` says which member computes a
    value that others of the group refer to.
    """
    return _Lowering(group, layouts, facts, aliases, redirect).run()


def lower_concat(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Each part is computed where it belongs in the whole; parts of one shape share a kernel."""
    whole = group.members[0]
    axis = whole.params
    parts: dict[Shape, list[Val]] = {}
    redirect: Redirect = {}
    start = 0
    for i, x in enumerate(whole.inputs):
        part = Val(-i - 1, "copy", "barrier", (x,), None, x.shape, x.dtype)
        redirect[part] = (whole, axis, start)
        start += x.shape[axis]
        if part.size:
            parts.setdefault(x.shape, []).append(part)
    steps: list[Step] = []
    for same in parts.values():
        piece = Group(same[0], group.position)
        piece.members = same
        piece.stored = set(same)
        steps += _Lowering(piece, layouts, facts, redirect=redirect).run()
    return steps


def lower_product_loops(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """A contraction as a plain sum of products: for dtypes and sizes that need no tiles."""
    product, *tail = group.members
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    wide = product.dtype
    if wide.is_floating:  # products of narrow floats are not rounded one by one
        wide = dt.promote(dt.compute_dtype(wide), a.dtype)

    def operand(x: Val, shape: Shape) -> Val:
        if x.dtype is not wide:
            x = Val(-10, "cast", "elementwise", (x,), None, x.shape, wide)
        return Val(-11, "reshape", "view", (x,), shape, shape, wide)

    left = operand(a, (batch, m, 1, k))
    swapped = Val(-12, "permute", "view", (b,), (0, 2, 1), (batch, n, k), b.dtype)
    right = operand(swapped, (batch, 1, n, k))
    terms = Val(-13, "mul", "elementwise", (left, right), None, (batch, m, n, k), wide)
    total = Val(-14, "reduce_sum", "reduce", (terms,), (3,), product.shape, product.dtype)
    rows = Group(total, group.position)
    rows.members = [total, *tail]
    rows.stored = {total if v is product else v for v in group.stored}
    redirect = {total: (product, 0, 0)}
    return _Lowering(rows, layouts, facts, {product: total}, redirect).run()


class _Lowering:
    def __init__(
        self,
        group: Group,
        layouts: dict[Val, Shape],
        facts: Facts,
        aliases: dict[Val, Val] | None = None,
        redirect: Redirect | None = None,
    ) -> None:
        self.group = group
        self.facts = facts
        # values that a reduction here computes: squared deviations, products
        self.aliases: dict[Val, Val] = dict(aliases or {})
        self.squares: set[Val] = set()
        self.redirect = redirect or {}
        self.members = self._expanded(group.members)
        inside = {*self.members, *group.members, *self.aliases}
        self.layouts = {v: s for v, s in layouts.items() if v not in inside}
        self.reduces = [m for m in self.members if m.kind == "reduce"]
        self.stage = self._stages()
        self.stored = [m for m in group.members if m in group.stored]  # always in this order
        self.notes = tuple(m.op for m in group.members)
        self._finals: dict[Val, list[Expr]] = {}

    # -- preparation ------------------------------------------------------------------------------

    def _expanded(self, members: Sequence[Val]) -> list[Val]:
        """Members with each sum of squared deviations written as two sums over the row."""
        out: list[Val] = []
        sums = {(m.inputs[0], m.params): m for m in members if m.op == "reduce_sum"}
        for m in members:
            if m in out:  # a sum that had to come before its squared deviations
                continue
            if m.op != "reduce_sqdev":
                out.append(m)
                continue
            x = m.inputs[0]
            wide = dt.compute_dtype(x.dtype)
            own = -100 * (len(self.squares) + 1)  # registers are named by ids: each has its own
            if wide is not x.dtype:
                x = Val(own, "cast", "elementwise", (x,), None, x.shape, wide)
            total = sums.get((x, m.params))
            if total is None:
                total = Val(own - 1, "reduce_sum", "reduce", (x,), m.params, m.shape, wide)
                sums[x, m.params] = total
            if total not in out:
                out.append(total)
            count = Val(own - 2, "count", "source", (), None, (), wide)
            mean = Val(own - 3, "div", "elementwise", (total, count), None, m.shape, wide)
            kept = tuple(1 if i in m.params else n for i, n in enumerate(x.shape))
            flat = Val(own - 4, "reshape", "view", (mean,), kept, kept, wide)
            off = Val(own - 5, "sub", "elementwise", (x, flat), None, x.shape, wide)
            square = Val(own - 6, "mul", "elementwise", (off, off), None, x.shape, wide)
            result = Val(own - 7, "reduce_sum", "reduce", (square,), m.params, m.shape, m.dtype)
            self.aliases[m] = result
            self.squares.add(result)
            out.append(result)
        return out

    def _stages(self) -> dict[Val, int]:
        """For each member, how many rounds of reductions must have run before it is computed."""
        after: dict[Val, int] = {}
        inverse = {b: a for a, b in self.aliases.items()}
        for m in self.members:
            rounds = 0
            seen: set[Val] = set()
            stack = list(m.inputs)
            while stack:
                x = stack.pop()
                if x in seen:
                    continue
                seen.add(x)
                x = self.aliases.get(x, x)
                if x.kind == "reduce" and x in after:
                    rounds = max(rounds, after[x] + 1)
                elif x not in self.layouts:
                    stack.extend(x.inputs)
            after[m] = rounds
            if m in inverse:
                after[inverse[m]] = rounds
        return after

    def _emitter(self) -> Emitter:
        e = Emitter(self.layouts, size_of(self.group.space) <= SMALL)
        e.redirect = self.redirect
        return e

    def _analyse(self) -> tuple[list[Dim], list[Coefficients], list[Coefficients]]:
        """Merged loops and, per loop variable, the strides of all accesses and of the stores."""
        e = self._emitter()
        space = self.group.space
        names = [e.variable(f"p{i}", e.number(n)) for i, n in enumerate(space)]
        rows = [v for i, v in enumerate(names) if i not in self.group.axes]
        self._know_dummies(e)
        for m in self.members:
            source = m.inputs[0] if m.kind == "reduce" else m
            full = m.kind == "reduce" or level(self.group, m) == "full"
            e.value(source, place(source.shape, names if full else rows))
        stored: list[Coefficients] = []
        for m in self.stored:
            full = m.kind != "reduce" and level(self.group, m) == "full"
            e.store(m, place(m.shape, names if full else rows), (None, None))
        strides = Strides(e)
        pieces: list[Coefficients] = []
        for site in e.sites:
            found = strides.parts(site.index)
            pieces += found
            if site.store:
                stored += found
        for r in self.reduces:  # positions of arg reductions count along their axis
            if r.op in ("argmax", "argmin"):
                pieces.append({names[a]: 1 for a in self.group.axes})
        dims: list[Dim] = []
        for i, n in enumerate(space):
            reduced = i in self.group.axes
            if (
                dims
                and dims[-1].reduced == reduced
                and collapsible(names[i - 1], names[i], n, pieces)
            ):
                dims[-1].extent *= n
                dims[-1].axes.append(i)
            else:
                dims.append(Dim(n, reduced, [i]))
        self.names = names
        return dims, pieces, stored

    def _know_dummies(self, e: Emitter) -> None:
        def dummy(m: Val) -> Any:
            part = dt.real_of(m.dtype)
            slot = ir.scalar(f"k{m.id}", part)
            return (slot, slot) if m.dtype.is_complex else slot

        for r in self.reduces:
            e.known[r] = lambda index, r=r: dummy(r)
        for m in self.aliases:
            e.known[m] = lambda index, m=m: dummy(m)
        for v in self._counts():
            e.known[v] = lambda index, v=v: dummy(v)

    def _counts(self) -> set[Val]:
        found: set[Val] = set()
        for m in self.members:
            stack = list(m.inputs)
            seen: set[Val] = set()
            while stack:
                x = stack.pop()
                if x not in seen and x not in self.layouts:
                    seen.add(x)
                    if x.op == "count":
                        found.add(x)
                    stack.extend(x.inputs)
        return found

    # -- choosing ---------------------------------------------------------------------------------

    def run(self) -> list[Step]:
        dims, pieces, stored = self._analyse()
        if not self.reduces:
            return [self._map(dims, pieces, stored)]
        self.dims = dims
        rows = [d for d in dims if not d.reduced]
        inner = [d for d in dims if d.reduced]
        row_count = math.prod(d.extent for d in rows)
        row_size = math.prod(d.extent for d in inner)
        lane = self._row_lane(rows, inner, pieces)
        needs_all = any(
            self.stage[m] > 0
            for m in self.members
            if (m.kind == "reduce" and m not in self.squares)
            or (m.kind != "reduce" and level(self.group, m) == "full")
        )
        parallel = row_count if lane is None or lane.reduced else -(-row_count // 64)
        if not needs_all and row_size * row_count > SMALL:
            large = row_size * row_count >= 4 * SPLIT
            if large and lane is not None and not lane.reduced and row_size >= 64:
                return self._stream(rows, inner, lane, row_count, row_size)
            if parallel < FEW_ROWS and row_size > SMALL // FEW_ROWS:
                return self._split(rows, inner, lane, row_count, row_size)
        return [self._rows(rows, inner, lane, row_count, row_size)]

    def _row_lane(
        self, rows: list[Dim], inner: list[Dim], pieces: list[Coefficients]
    ) -> Dim | None:
        """The loop whose iterations are lanes: along the row, or across rows; None: neither."""
        can_along = all(reducer(r).lanes is not None for r in self.reduces)
        width = self._width()

        def weight(d: Dim) -> float:
            units = unit_weight(pieces, self.names[d.axes[-1]])
            full = min(d.extent, width) / width
            return (units + 0.01) * full

        candidates = [d for d in rows if d.extent >= 2]
        if can_along and inner:
            candidates.append(inner[-1])
        if not candidates:
            return None
        best = max(candidates, key=lambda d: (weight(d), d.reduced))
        return best

    def _width(self) -> int:
        sizes = [dt.real_of(m.dtype).itemsize for m in self.members if m.dtype is not dt.bool_]
        return max(1, self.facts.lanes_bytes // max(4, max(sizes, default=4)))

    # -- maps -------------------------------------------------------------------------------------

    def _map(self, dims: list[Dim], pieces: list[Coefficients], stored: list[Coefficients]) -> Step:
        e = self._emitter()
        if not dims:
            g = ir.var("g")
            body = self._stores(e, [ZERO] * len(self.group.space), None)
            return e.finish("scalar", [ir.For(g, ZERO, ONE, "grid", body)], 1, self.notes)
        lane = self._map_lane(dims, stored)
        outer = [d for d in dims if d is not lane]
        crossing = self._crossing(lane, outer, pieces)
        if crossing is not None:
            return self._tiled_map(e, lane, crossing, outer)
        rows = math.prod(d.extent for d in outer)
        work = self._work()
        columns = min(lane.extent, max(BLOCK // work, 256))
        if lane.extent - columns < columns // 2:
            columns = lane.extent
        column_blocks = -(-lane.extent // columns)
        per_block = max(1, (BLOCK // work) // columns) if outer else 1
        row_blocks = -(-rows // per_block)
        width = e.parameter(columns)
        at: dict[Dim, Expr] = {}
        g = ir.var("g")
        extent = e.number(lane.extent)
        j = e.variable("j", extent)
        at[lane] = j
        if not outer:
            start = ir.mul(g, width)
            stop = ir.minimum(ir.add(start, width), extent)
            body = [ir.For(j, start, stop, "lanes", self._stores(e, self._index(at), None))]
        else:
            split = column_blocks > 1
            block_row: Expr = g
            start, stop = ZERO, extent
            if split:
                count = e.parameter(column_blocks)
                block_row = ir.make("idiv", g.dtype, (g, count))
                start = ir.mul(ir.make("irem", g.dtype, (g, count)), width)
                stop = ir.minimum(ir.add(start, width), extent)
            per = e.parameter(per_block)
            total = self._product(e, outer)
            first = ir.mul(block_row, per)
            r = ir.var("r")
            self._digits(e, r, outer, at)
            inner = ir.For(j, start, stop, "lanes", self._stores(e, self._index(at), None))
            last = ir.minimum(ir.add(first, per), total)
            body = [ir.For(r, first, last, "serial", [inner])]
        grid = column_blocks * row_blocks
        return e.finish(
            "map", [ir.For(g, ZERO, e.parameter(grid), "grid", body)], grid, self.notes
        )

    def _map_lane(self, dims: list[Dim], stored: list[Coefficients]) -> Dim:
        width = self._width()
        best = dims[-1]
        if best.extent * 2 <= width:
            best = max(dims, key=lambda d: (min(d.extent, 4 * width), d.axes))
        return best

    def _crossing(
        self, lane: Dim, outer: list[Dim], pieces: list[Coefficients]
    ) -> Dim | None:
        """A loop along which some input has its neighbours while the lanes run across it."""
        if lane.extent < 32:
            return None
        along = self.names[lane.axes[-1]]
        for d in outer:
            v = self.names[d.axes[-1]]
            if d.extent >= 32 and any(
                abs(p.get(v, 0)) == 1 and abs(p.get(along, 0)) > 1 for p in pieces
            ):
                return d
        return None

    def _tiled_map(self, e: Emitter, lane: Dim, cross: Dim, outer: list[Dim]) -> Step:
        """Square tiles over the two crossing loops, so that each cache line is read once."""
        side = 64
        rest = [d for d in outer if d is not cross]
        at: dict[Dim, Expr] = {}
        g = ir.var("g")
        tiles_lane, tiles_cross = -(-lane.extent // side), -(-cross.extent // side)
        lanes_count, cross_count = e.parameter(tiles_lane), e.parameter(tiles_cross)
        size = e.parameter(side)
        t = ir.make("idiv", g.dtype, (g, lanes_count))
        j0 = ir.mul(ir.make("irem", g.dtype, (g, lanes_count)), size)
        i0 = ir.mul(ir.make("irem", g.dtype, (t, cross_count)), size)
        self._digits(e, ir.make("idiv", g.dtype, (t, cross_count)), rest, at)
        lane_extent, cross_extent = e.number(lane.extent), e.number(cross.extent)
        i, j = e.variable("i", cross_extent), e.variable("j", lane_extent)
        at[lane], at[cross] = j, i
        inner = ir.For(
            j,
            j0,
            ir.minimum(ir.add(j0, size), lane_extent),
            "lanes",
            self._stores(e, self._index(at), None),
        )
        body: list[Stmt] = [
            ir.For(i, i0, ir.minimum(ir.add(i0, size), cross_extent), "serial", [inner])
        ]
        grid = tiles_lane * tiles_cross * math.prod(d.extent for d in rest)
        return e.finish(
            "tiled_map", [ir.For(g, ZERO, e.parameter(grid), "grid", body)], grid, self.notes
        )

    # -- row programs -----------------------------------------------------------------------------

    def _rows(
        self, rows: list[Dim], inner: list[Dim], lane: Dim | None, row_count: int, row_size: int
    ) -> Step:
        e = self._emitter()
        at: dict[Dim, Expr] = {}
        g = ir.var("g")
        if lane is None or lane.reduced:
            per_block = max(1, BLOCK // max(1, row_size * self._work()))
            grid = -(-row_count // per_block)
            if rows:
                per = e.parameter(per_block)
                r = ir.var("r")
                self._digits(e, r, rows, at)
                first = ir.mul(g, per)
                last = ir.minimum(ir.add(first, per), self._product(e, rows))
                body: list[Stmt] = [
                    ir.For(r, first, last, "serial", self._row(e, at, inner, lane, _whole(e, inner)))
                ]
            else:
                body = self._row(e, at, inner, lane, _whole(e, inner))
        else:
            body, grid = self._columns(e, at, rows, inner, lane, g, _whole(e, inner), ONE)
        return e.finish(
            "rows", [ir.For(g, ZERO, e.parameter(grid), "grid", body)], grid, self.notes
        )

    def _columns(
        self,
        e: Emitter,
        at: dict[Dim, Expr],
        rows: list[Dim],
        inner: list[Dim],
        lane: Dim,
        g: Expr,
        ranges: dict[int, tuple[Expr, Expr]],
        blocks: Expr,
        partial: Any = None,
    ) -> tuple[list[Stmt], int]:
        """Lanes across rows: each lane walks its own row."""
        others = [d for d in rows if d is not lane]
        columns = min(lane.extent, self._width() * 4)
        width = e.parameter(columns)
        count = -(-lane.extent // columns)
        counts = e.parameter(count)
        block = g
        start = ir.mul(ir.make("irem", g.dtype, (block, counts)), width)
        self._digits(e, ir.make("idiv", g.dtype, (block, counts)), others, at)
        extent = e.number(lane.extent)
        j = e.variable("j", extent)
        at[lane] = j
        body = self._row(e, at, inner, None, ranges, partial=partial, varying=True)
        loop = ir.For(j, start, ir.minimum(ir.add(start, width), extent), "lanes", body)
        return [loop], count * math.prod(d.extent for d in others)

    def _row(
        self,
        e: Emitter,
        at: dict[Dim, Expr],
        inner: list[Dim],
        lane: Dim | None,
        ranges: dict[int, tuple[Expr, Expr]],
        partial: Any = None,
        varying: bool = False,
    ) -> list[Stmt]:
        """The statements for one row: its stages, then what is stored per row."""
        out: list[Stmt] = []
        count = ONE
        for i in range(len(inner)):
            count = ir.mul(count, ir.sub(ranges[i][1], ranges[i][0]))
        for v in self._counts():
            e.known[v] = lambda index, v=v: count.cast(v.dtype)
        stages = 1 + max((self.stage[m] for m in self.members), default=0)
        cached = self._cache(e, inner, lane) if lane is not None and partial is None else {}
        for stage in range(stages):
            reduces = [r for r in self.reduces if self.stage[r] == stage]
            maps = [
                m
                for m in self.members
                if m.kind != "reduce"
                and m in self.group.stored
                and level(self.group, m) == "full"
                and self.stage[m] == stage
            ]
            if reduces or maps:
                self._stage(
                    e, out, at, inner, lane, ranges, reduces, maps, stage, cached, varying
                )
        if partial is not None:
            out += partial(e, at)
            return out
        out += self._per_row(e, at)
        return out

    def _stage(
        self,
        e: Emitter,
        out: list[Stmt],
        at: dict[Dim, Expr],
        inner: list[Dim],
        lane: Dim | None,
        ranges: dict[int, tuple[Expr, Expr]],
        reduces: list[Val],
        maps: list[Val],
        stage: int,
        cached: dict[Val, tuple[ir.Buffer, int]],
        varying: bool,
    ) -> None:
        """One loop over the row: reductions of this stage, maps that are ready."""
        at = dict(at)
        loops: list[tuple[Expr, Expr, Expr, str]] = []
        for i, d in enumerate(inner):
            v = e.variable(f"x{stage}_{i}", e.number(d.extent))
            at[d] = v
            loops.append((v, *ranges[i], "lanes" if d is lane else "serial"))
        index = self._index(at)
        offset = ZERO
        for i, d in enumerate(inner):
            offset = ir.add(ir.mul(offset, e.number(d.extent)), at[d])
        saves: list[Stmt] = []
        for v, (buffer, first) in cached.items():
            if stage > first:
                value, here = ir.load(buffer, offset), place(v.shape, index)
                e.known[v] = lambda at, value=value, here=here: value if at == here else None
            elif stage == first:
                value = e.value(v, place(v.shape, index))
                saves.append(ir.Store(buffer, offset, value))
        body: list[Stmt] = []
        pending: list[tuple[Val, Reducer, list[ir.Register]]] = []
        position = ZERO
        for d in inner:
            position = ir.add(ir.mul(position, e.number(d.extent)), at[d])
        for r in reduces:
            how = reducer(r)
            registers = [
                ir.Register(f"a{r.id}_{i}", t, lanes=lane is not None or varying)
                for i, t in enumerate(how.dtypes)
            ]
            for register, start in zip(registers, how.initial(), strict=True):
                out.append(ir.Set(register, start))
            source = r.inputs[0]
            value = e.value(source, place(source.shape, index))
            names = [ir.var(f"t{r.id}_{stage}_{i}", t) for i, t in enumerate(how.dtypes)]
            new = how.step([ir.read(x) for x in registers], value, position)
            if len(registers) == 1:
                body.append(ir.Set(registers[0], new[0]))
            else:  # all parts see the old state
                body += [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
                body += [ir.Set(x, n) for x, n in zip(registers, names, strict=True)]
            pending.append((r, how, registers))
        body += saves
        for m in maps:
            body += e.store(m, place(m.shape, index), e.value(m, place(m.shape, index)))
        unroll = 4 if reduces and not maps and not saves else 1
        nest = body
        for v, start, stop, kind in reversed(loops):
            nest = [ir.For(v, start, stop, kind, nest, unroll=unroll if kind == "lanes" else 1)]
        out += nest
        for r, how, registers in pending:
            finals = []
            for i, register in enumerate(registers):
                final = ir.var(f"f{r.id}_{i}", register.dtype)
                total = ir.lanes_reduce(how.lanes or "", register) if lane else ir.read(register)
                out.append(ir.Let(final, total))
                finals.append(final)
            self._finals[r] = finals
            result = how.finish(list(finals))
            e.known[r] = lambda index, result=result: result
        for m, r in self.aliases.items():
            if r in reduces:
                e.known[m] = lambda index, r=r, m=m: e.known[r](index)

    def _per_row(self, e: Emitter, at: dict[Dim, Expr]) -> list[Stmt]:
        """Stores of what exists once per row."""
        out: list[Stmt] = []
        rows = [
            v
            for i, v in enumerate(self._index_places(at))
            if i not in self.group.axes
        ]
        for m in self.stored:
            if m.kind == "reduce" or level(self.group, m) == "outer":
                index = place(m.shape, rows)
                value = e.known[m](index) if m.kind == "reduce" else e.value(m, index)
                out += e.store(m, index, value)
        return out

    def _cache(
        self, e: Emitter, inner: list[Dim], lane: Dim
    ) -> dict[Val, tuple[ir.Buffer, int]]:
        """Costly values that two stages need: kept in a scratch row after the first."""
        users: dict[Val, set[int]] = {}
        first: dict[Val, int] = {}
        for m in self.members:
            if m.kind != "reduce" and (
                m not in self.group.stored or level(self.group, m) != "full"
            ):
                continue
            stack = [m.inputs[0]] if m.kind == "reduce" else [m]
            seen: set[Val] = set()
            while stack:
                x = stack.pop()
                if x in seen or x in self.layouts or x.kind == "reduce":
                    continue
                seen.add(x)
                if (
                    x.op in HEAVY
                    and squeeze(x.shape) == self.group.space
                    and not x.dtype.is_complex
                ):
                    users.setdefault(x, set()).add(self.stage[m])
                    continue  # what stands below is computed once with it
                stack.extend(x.inputs)
        out: dict[Val, tuple[ir.Buffer, int]] = {}
        total = ONE
        for d in inner:
            total = ir.mul(total, e.number(d.extent))
        for v, stages in users.items():
            if len(stages) > 1:
                first[v] = min(stages)
                buffer = ir.Buffer(f"w{len(out)}", v.dtype, "scratch", total)
                e.scratch.append(buffer)
                out[v] = (buffer, first[v])
        return out

    # -- split reductions -------------------------------------------------------------------------

    def _split(
        self,
        rows: list[Dim],
        inner: list[Dim],
        lane: Dim | None,
        row_count: int,
        row_size: int,
    ) -> list[Step]:
        """Partial results of blocks of each row, merged by a second kernel."""
        top = inner[0]
        below = row_size // top.extent
        # two pieces at least, so that every size has the same code
        chunk = max(1, min(SPLIT // max(1, below), -(-top.extent // 2)))
        chunks = -(-top.extent // chunk)
        partials = self._partials(row_count, chunks)
        e = self._emitter()
        at: dict[Dim, Expr] = {}
        g = ir.var("g")
        size, many = e.parameter(chunk), e.parameter(chunks)
        c = ir.make("irem", g.dtype, (g, many))
        start = ir.mul(c, size)
        ranges = _whole(e, inner)
        ranges[0] = (start, ir.minimum(ir.add(start, size), e.number(top.extent)))
        block = ir.make("idiv", g.dtype, (g, many))

        def save(e: Emitter, at: dict[Dim, Expr]) -> list[Stmt]:
            row = self._row_number(e, rows, at)
            out: list[Stmt] = []
            for r, vals in partials.items():
                for v, value in zip(vals, self._finals[r], strict=True):
                    out += e.store(v, (c, row), value)
            return out

        if lane is not None and not lane.reduced:
            body, blocks = self._columns(e, at, rows, inner, lane, block, ranges, many, save)
            grid = blocks * chunks
        else:
            self._digits(e, block, rows, at)
            body = self._row(e, at, inner, lane, ranges, partial=save)
            grid = row_count * chunks
        first = e.finish(
            "split_rows", [ir.For(g, ZERO, e.parameter(grid), "grid", body)], grid, self.notes
        )
        return [first, self._merge(rows, top, below, chunk, chunks, row_count, partials)]

    def _stream(
        self, rows: list[Dim], inner: list[Dim], lane: Dim, row_count: int, row_size: int
    ) -> list[Step]:
        """Lines pass by in memory order; each adds to running results kept in a scratch line."""
        top, below = inner[0], row_size // inner[0].extent
        others = [d for d in rows if d is not lane]
        width = min(lane.extent, STREAM_WIDTH)
        column_blocks = -(-lane.extent // width)
        chunk = max(16, 8 * SPLIT // (width * below))
        chunks = -(-top.extent // chunk)
        partials = self._partials(row_count, chunks)
        e = self._emitter()
        g = ir.var("g")
        size, many = e.parameter(chunk), e.parameter(chunks)
        line, blocks = e.parameter(width), e.parameter(column_blocks)
        c = ir.make("irem", g.dtype, (g, many))
        rest = ir.make("idiv", g.dtype, (g, many))
        at: dict[Dim, Expr] = {}
        self._digits(e, ir.make("idiv", g.dtype, (rest, blocks)), others, at)
        first = ir.mul(c, size)
        last = ir.minimum(ir.add(first, size), e.number(top.extent))
        left = ir.mul(ir.make("irem", g.dtype, (rest, blocks)), line)
        right = ir.minimum(ir.add(left, line), e.number(lane.extent))
        count = ir.mul(ir.sub(last, first), e.number(below))
        for v in self._counts():
            e.known[v] = lambda index, v=v: count.cast(v.dtype)
        body: list[Stmt] = []
        here: list[Expr] = []  # the lane variable of the loop being written

        def over_line(name: str, make: Any) -> Stmt:
            j = e.variable(name, e.number(lane.extent))
            here[:] = [j]
            at[lane] = j
            return ir.For(j, left, right, "lanes", make(ir.sub(j, left)))

        held: dict[Val, list[ir.Buffer]] = {}
        for stage in range(1 + max(self.stage.values())):
            reduces = [r for r in self.reduces if self.stage[r] == stage]
            maps = [
                m
                for m in self.members
                if m in self.group.stored and m.kind != "reduce" and self.stage[m] == stage
                and level(self.group, m) == "full"
            ]
            for r in reduces:
                held[r] = [
                    ir.Buffer(f"h{len(e.scratch) + i}", t, "scratch", line)
                    for i, t in enumerate(reducer(r).dtypes)
                ]
                e.scratch += held[r]
                body.append(
                    over_line(
                        f"z{r.id}",
                        lambda k, r=r: [
                            ir.Store(b, k, x)
                            for b, x in zip(held[r], reducer(r).initial(), strict=True)
                        ],
                    )
                )
            body += self._stream_stage(
                e, at, inner, (first, last), stage, reduces, maps, held, over_line
            )
            for r in reduces:
                how = reducer(r)

                def known(index: Index, r: Val = r, how: Reducer = how) -> Any:
                    return how.finish([ir.load(b, ir.sub(here[0], left)) for b in held[r]])

                e.known[r] = known
            for m, r in self.aliases.items():
                if r in reduces:
                    e.known[m] = lambda index, r=r: e.known[r](index)

        def save(k: Expr) -> list[Stmt]:
            row = self._row_number(e, rows, at)
            return [
                s
                for r, vals in partials.items()
                for v, b in zip(vals, held[r], strict=True)
                for s in e.store(v, (c, row), ir.load(b, k))
            ]

        alone = chunks == 1
        body.append(over_line("save", lambda k: self._per_row(e, at) if alone else save(k)))
        grid = chunks * column_blocks * math.prod(d.extent for d in others)
        step = e.finish(
            "stream_rows", [ir.For(g, ZERO, e.parameter(grid), "grid", body)], grid, self.notes
        )
        if alone:
            return [step]
        return [step, self._merge(rows, top, below, chunk, chunks, row_count, partials)]

    def _stream_stage(
        self,
        e: Emitter,
        at: dict[Dim, Expr],
        inner: list[Dim],
        span: tuple[Expr, Expr],
        stage: int,
        reduces: list[Val],
        maps: list[Val],
        held: dict[Val, list[ir.Buffer]],
        over_line: Any,
    ) -> list[Stmt]:
        """The loops of one stage: several lines at a time, then those that are left."""
        together = 4 if len(inner) == 1 and self._work() == 1 and not maps else 1

        def lines(tag: str, start: Expr, stop: Expr, many: int) -> list[Stmt]:
            steps = [e.variable(f"y{stage}{tag}{i}", e.number(d.extent)) for i, d in enumerate(inner)]

            def body(k: Expr) -> list[Stmt]:
                out: list[Stmt] = []
                states = {r: [ir.load(b, k) for b in held[r]] for r in reduces}
                for u in range(many):
                    for i, d in enumerate(inner):
                        at[d] = ir.add(steps[i], const(u)) if i == 0 else steps[i]
                    index = self._index(at)
                    position = ZERO
                    for d in inner:
                        position = ir.add(ir.mul(position, e.number(d.extent)), at[d])
                    for r in reduces:
                        value = e.value(r.inputs[0], place(r.inputs[0].shape, index))
                        states[r] = reducer(r).step(states[r], value, position)
                    for m in maps:
                        out += e.store(m, place(m.shape, index), e.value(m, place(m.shape, index)))
                for r in reduces:
                    # all parts are computed before any is stored
                    names = [ir.var(f"w{r.id}{tag}{i}", x.dtype) for i, x in enumerate(states[r])]
                    out += [ir.Let(n, x) for n, x in zip(names, states[r], strict=True)]
                    out += [ir.Store(b, k, n) for b, n in zip(held[r], names, strict=True)]
                return out

            nest: list[Stmt] = [over_line(f"l{stage}{tag}", body)]
            for i in reversed(range(1, len(inner))):
                nest = [ir.For(steps[i], ZERO, e.number(inner[i].extent), "serial", nest)]
            return [ir.For(steps[0], start, stop, "serial", nest, step=const(many))]

        first, last = span
        if together == 1:
            return lines("a", first, last, 1)
        whole = ir.mul(
            ir.make("idiv", ir.INDEX, (ir.sub(last, first), const(together))), const(together)
        )
        middle = ir.add(first, whole)
        return lines("a", first, middle, together) + lines("b", middle, last, 1)

    def _row_number(self, e: Emitter, rows: list[Dim], at: dict[Dim, Expr]) -> Expr:
        row = ZERO
        for d in rows:
            row = ir.add(ir.mul(row, e.number(d.extent)), at[d])
        return row

    def _partials(self, row_count: int, chunks: int) -> dict[Val, list[Val]]:
        out: dict[Val, list[Val]] = {}
        for r in self.reduces:
            out[r] = [
                Val(-100 - i, "partial", "partial", (), None, (chunks, row_count), t)
                for i, t in enumerate(reducer(r).dtypes)
            ]
        return out

    def _merge(
        self,
        rows: list[Dim],
        top: Dim,
        below: int,
        chunk: int,
        chunks: int,
        row_count: int,
        partials: dict[Val, list[Val]],
    ) -> Step:
        """For each row, combine the partial results in order; then what is stored per row."""
        layouts = dict(self.layouts)
        for vals in partials.values():
            for v in vals:
                layouts[v] = (row_count, 1)
        e = Emitter(layouts)
        e.redirect = self.redirect
        at: dict[Dim, Expr] = {}
        g = ir.var("g")
        many = e.number(chunks)
        stride = e.number(row_count)
        wide_rows = row_count >= FEW_ROWS
        row = e.variable("row", stride) if wide_rows else g if rows else ZERO
        self._digits(e, row, rows, at)
        out: list[Stmt] = []
        total_count = ir.mul(e.number(top.extent), e.number(below))
        for v in self._counts():
            e.known[v] = lambda index, v=v: total_count.cast(v.dtype)

        def part(v: Val, c: Expr) -> Expr:
            return ir.load(e.buffer(v), ir.add(ir.mul(c, stride), row))

        for number, r in enumerate(self.reduces):
            how = reducer(r)
            c = ir.var(f"c{number}")
            wide = [_wider(t, how, self.facts) for t in how.dtypes]
            registers = [
                ir.Register(f"m{number}_{i}", t, lanes=wide_rows) for i, t in enumerate(wide)
            ]
            for register, start in zip(registers, how.initial(), strict=True):
                out.append(ir.Set(register, start.cast(register.dtype)))
            parts = [part(v, c).cast(t) for v, t in zip(partials[r], wide, strict=True)]
            if r in self.squares:
                here = part(partials[_sum_behind(r)][0], c)
                parts = self._with_drift(e, r, parts, here, c, chunk, below, top)
            new = how.merge([ir.read(x) for x in registers], parts)
            lets = [ir.var(f"u{number}_{i}", t) for i, t in enumerate(wide)]
            body: list[Stmt] = [ir.Let(n, x) for n, x in zip(lets, new, strict=True)]
            body += [ir.Set(x, n) for x, n in zip(registers, lets, strict=True)]
            out.append(ir.For(c, ZERO, many, "serial", body))
            finals: list[Expr] = []
            for i, (register, t) in enumerate(zip(registers, how.dtypes, strict=True)):
                final = ir.var(f"f{number}_{i}", register.dtype)
                out.append(ir.Let(final, ir.read(register)))
                finals.append(final.cast(t))
            self._finals[r] = finals
            result = how.finish(list(finals))
            e.known[r] = lambda index, result=result: result
        for m, r in self.aliases.items():
            e.known[m] = lambda index, r=r: e.known[r](index)
        out += self._per_row(e, at)
        grid = row_count
        if wide_rows:
            grid = -(-row_count // MERGE_ROWS)
            start = ir.mul(g, const(MERGE_ROWS))
            stop = ir.minimum(ir.add(start, const(MERGE_ROWS)), stride)
            out = [ir.For(row, start, stop, "lanes", out)]
        loop = ir.For(g, ZERO, e.parameter(grid), "grid", out)
        return e.finish("merge", [loop], grid, ("combine",))

    def _with_drift(
        self,
        e: Emitter,
        r: Val,
        parts: list[Expr],
        here: Expr,
        c: Expr,
        chunk: int,
        below: int,
        top: Dim,
    ) -> list[Expr]:
        """Squared deviations were taken from each block's own mean: add the means' own spread.

        `here` is the plain sum over the same block.
        """
        wide = parts[0].dtype
        size = e.parameter(chunk)
        start = ir.mul(c, size)
        stop = ir.minimum(ir.add(start, size), e.number(top.extent))
        count = ir.mul(ir.sub(stop, start), e.number(below)).cast(wide)
        whole = ir.mul(e.number(top.extent), e.number(below)).cast(wide)
        mean = self._finals[_sum_behind(r)][0].cast(wide) / whole
        drift = here.cast(wide) / count - mean
        return [parts[0] + count * drift * drift]

    # -- pieces -----------------------------------------------------------------------------------

    def _stores(self, e: Emitter, names: Sequence[Expr], mask: Expr | None) -> list[Stmt]:
        out: list[Stmt] = []
        for m in self.members:
            if m in self.group.stored:
                index = place(m.shape, names)
                out += e.store(m, index, e.value(m, index))
        return out

    def _index_places(self, at: dict[Dim, Expr]) -> list[Expr]:
        """One index per axis of the space; of merged axes only the last counts."""
        out: list[Expr] = [ZERO] * len(self.group.space)
        for d, v in at.items():
            out[d.axes[-1]] = v
        return out

    _index = _index_places

    def _product(self, e: Emitter, dims: Sequence[Dim]) -> Expr:
        total = ONE
        for d in dims:
            total = ir.mul(total, e.number(d.extent))
        return total

    def _digits(self, e: Emitter, linear: Expr, dims: Sequence[Dim], at: dict[Dim, Expr]) -> None:
        """Split one running number over several loops, the last running fastest."""
        for place_, d in enumerate(dims):
            digit = linear
            below = self._product(e, dims[place_ + 1 :])
            if below is not ONE:
                digit = ir.make("idiv", ir.INDEX, (digit, below))
            if place_:
                digit = ir.make("irem", ir.INDEX, (digit, e.number(d.extent)))
            e.extents[digit] = e.number(d.extent)
            at[d] = digit

    def _work(self) -> int:
        """How heavy an element is, as a multiple of a plain memory-bound one."""
        heavy = 0
        seen: set[Val] = set()
        stack = list(self.members)
        while stack:
            x = stack.pop()
            if x in seen or x in self.layouts:
                continue
            seen.add(x)
            heavy += x.op in HEAVY
            stack.extend(x.inputs)
        return min(16, 1 + heavy * 2)


def _whole(e: Emitter, inner: Sequence[Dim]) -> dict[int, tuple[Expr, Expr]]:
    return {i: (ZERO, e.number(d.extent)) for i, d in enumerate(inner)}


def _wider(dtype: dt.DType, how: Reducer, facts: Facts) -> dt.DType:
    """Partial sums of float32 are merged in float64 where the device has it."""
    if dtype is dt.float32 and how.op in ("sum", "prod") and "float64" in facts.dtypes:
        return dt.float64
    return dtype


def _sum_behind(r: Val) -> Val:
    """The plain sum that a sum of squared deviations takes its mean from."""
    off = r.inputs[0].inputs[0]
    return off.inputs[1].inputs[0].inputs[0]
