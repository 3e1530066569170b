"""Maps that cross memory, by groups of threads: tiles are turned in the group's own memory.

A group reads what lies across its loops as it lies, so that neighbouring threads read neighbouring
elements, and puts it into scratch memory; from there every thread takes what it needs. Where the
tiles form a square, a tile and its mirror image follow each other: of `x + x.T`, each element is
brought from memory once.
"""

from __future__ import annotations

from collections.abc import Iterable

from numus import ir
from numus.compiler.fusion.group import index_of
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops.nest import ZERO, At, Dim, Space, blocks_of, count, digits
from numus.compiler.lower.loops.stages import Work
from numus.ir import Expr, Stmt, const

SIDE = 64  # of a tile
_PAD = 1  # elements between lines of scratch: those that lie across are in different banks
_GROUPS = 4  # that a unit has scratch memory for, at least
_AT_A_TIME = 16  # elements that a thread has under way
_LONG = 32  # operations from which on there are fewer


def lower_turned(work: Work, space: Space, lane: Dim, cross: Dim) -> LoweredKernel | None:
    """The kernel; None where nothing is to be turned, or a group has no memory for it."""
    if not work.threads or work.threads % SIDE:
        return None
    made = _Turned(work, space, lane, cross)
    room = work.target.shared_bytes // _GROUPS
    return made.kernel() if made.turned and made.scratch_bytes <= room else None


class _Turned:
    def __init__(self, work: Work, space: Space, lane: Dim, cross: Dim) -> None:
        self.work, self.space, self.lane, self.cross = work, space, lane, cross
        e = self.e = work.emitter()
        self.extents = e.dim(cross.extent), e.dim(lane.extent)
        self.i, self.j = e.variable("i", self.extents[0]), e.variable("j", self.extents[1])
        self.g = ir.var("g")
        self.rest = [d for d in space.dims if d not in (lane, cross)]
        tile, self.tiles = self._tiles()
        self.stores = self._stores(self._beside(tile))
        self.loads = loads_of(s.value for s in self.stores)
        self.turned = [x for x in self.loads if self._crosses(x)]
        size = len({x for s in self.stores for x in ir.walk(s.value, lambda x: True)})
        self.per = work.threads // SIDE  # lines that a group has at a time
        self.each = min(_AT_A_TIME if size <= _LONG else _AT_A_TIME // 4, SIDE // self.per)
        self.turns = SIDE // (self.per * self.each)
        # what need not be turned: begun before the group meets, where threads have room for it
        self.early: dict[tuple[int, Expr], ir.Register] = {}
        if self.turns == 1:
            self.early = {
                (u, x): ir.Register(f"s{u}_{k}", x.dtype, lanes=True)
                for u in range(self.each)
                for k, x in enumerate(x for x in self.loads if self._is_plain(x))
            }
        for k, x in enumerate(self.turned):
            room = const(SIDE * (SIDE + _PAD))
            e.scratch.append(ir.Buffer(f"w{k}", x.attr.dtype, "scratch", room))

    @property
    def scratch_bytes(self) -> int:
        return sum(SIDE * (SIDE + _PAD) * x.attr.dtype.itemsize for x in self.turned)

    def _tiles(self) -> tuple[Expr, int]:
        """Sets where this group's tile begins; the number of what is beside the two loops, and how
        many groups there are."""
        e, g = self.e, self.g
        across, down = blocks_of(self.lane.extent, SIDE), blocks_of(self.cross.extent, SIDE)
        many = e.scalar_arg(across)
        self.twice: Expr | None = None
        if across != down:
            lines = e.scalar_arg(down)
            tile = ir.idiv(g, many)
            row, column = ir.irem(tile, lines), ir.irem(g, many)
            after, total = ir.idiv(tile, lines), across * down
        else:
            # Pairs of tiles: the lines of the triangle above the diagonal, folded to a rectangle.
            even = 1 - across % 2
            width, odd = e.scalar_arg(across + even), e.scalar_arg(even)
            pairs = across * (across + 1) // 2
            pair = ir.irem(ir.idiv(g, const(2)), e.scalar_arg(pairs))
            line, at = ir.idiv(pair, width), ir.irem(pair, width)
            there = at < ir.sub(many, line)
            one = ir.select(there, line, ir.sub(ir.sub(many, odd), line))
            other = ir.select(there, ir.add(line, at), ir.sub(at, odd))
            first = ir.irem(g, const(2)).eq(0)
            row, column = ir.select(first, one, other), ir.select(first, other, one)
            self.twice = first | one.ne(other)  # a tile on the diagonal is its own mirror image
            after, total = ir.idiv(g, e.scalar_arg(2 * pairs)), 2 * pairs
        self.start = ir.var("i0"), ir.var("j0")
        self.begin: list[Stmt] = [
            ir.Let(v, ir.mul(t, const(SIDE)))
            for v, t in zip(self.start, (row, column), strict=True)
        ]
        return after, total * count(self.rest)

    def _beside(self, tile: Expr) -> At:
        """Where the other loops are: by names, since nothing is asked but how i and j go on."""
        at: At = {}
        for d, digit in digits(self.e, tile, self.rest).items():
            at[d] = self.e.variable(f"at{d.axis}", self.e.dim(d.extent))
            self.begin.append(ir.Let(at[d], digit))
        return at

    def _stores(self, at: At) -> list[ir.Store]:
        """What is written at the variables i and j."""
        index = self.space.index({**at, self.lane: self.j, self.cross: self.i})
        out: list[Stmt] = []
        for m in self.work.stored:
            point = index_of(m.shape, index)
            out += self.e.store(m, point, self.e.value(m, point))
        return [s for s in out if isinstance(s, ir.Store)]

    def _crosses(self, load: Expr) -> bool:
        """Whether a load has its neighbours along the loop that crosses the lanes."""
        found = AffineAnalysis(self.e).coefficients(load.args[0]) if len(load.args) == 1 else None
        return (
            found is not None and abs(found.get(self.i, 0)) == 1 and abs(found.get(self.j, 0)) > 1
        )

    def _is_plain(self, load: Expr) -> bool:
        """Whether a load can be begun by itself: it is not turned, and asks nobody where it is."""
        inner = ir.walk(load, lambda x: True)
        return load not in self.turned and sum(x.op == "load" for x in inner) == 1

    # -- the kernel -------------------------------------------------------------------------------

    def kernel(self) -> LoweredKernel:
        (i0, j0), (rows, columns) = self.start, self.extents
        side = const(SIDE)
        whole = (ir.add(i0, side) <= rows) & (ir.add(j0, side) <= columns)
        name = ir.var("whole", whole.dtype)
        tile: list[Stmt] = [
            ir.Let(name, whole),
            ir.If(name, [self._bring(), self._finish()]),
            ir.If(ir.unary("not", name), [self._slowly()]),
        ]
        body = [*self.begin, *(tile if self.twice is None else [ir.If(self.twice, tile)])]
        return self.e.grid_kernel("tiled_map", self.g, body, self.tiles, self.work.notes)

    def _bring(self) -> Stmt:
        """Lines of what is to be turned, into scratch memory."""
        t = ir.var("t")
        down, line = ir.irem(t, const(SIDE)), ir.idiv(t, const(SIDE))
        body: list[Stmt] = []
        per = self.per
        for (u, x), register in self.early.items():
            body.append(ir.Set(register, replaced(x, self._element(t, ZERO, u)[0])))
        for first in range(0, SIDE, per * _AT_A_TIME):
            puts: list[Stmt] = []
            for u in range(min(_AT_A_TIME, SIDE // per)):
                at = ir.add(line, const(first + u * per))
                spots = {self.i: ir.add(self.start[0], down), self.j: ir.add(self.start[1], at)}
                for k, x in enumerate(self.turned):
                    name = ir.var(f"x{first + u * per}_{k}", x.dtype)
                    body.append(ir.Let(name, replaced(x, spots)))
                    puts.append(ir.Store(self.e.scratch[k], _spot(at, down), name))
            body += puts
        return ir.For(t, ZERO, const(self.work.threads), "lanes", body)

    def _finish(self) -> Stmt:
        """Every element of the tile, several of a column at a time."""
        t = ir.var("t2")
        turn = ir.var("turn")
        body: list[Stmt] = []
        stores: list[Stmt] = []
        for u in range(self.each):
            new, spot = self._element(t, turn, u)
            for k, x in enumerate(self.loads):
                name = ir.var(f"y{u}_{k}", x.dtype)
                if x in self.turned:
                    value = ir.load(self.e.scratch[self.turned.index(x)], spot)
                elif (u, x) in self.early:
                    value = ir.read(self.early[u, x])
                else:
                    value = replaced(x, new)
                body.append(ir.Let(name, value))
                new[x] = name
            for s in self.stores:
                mask = None if s.mask is None else replaced(s.mask, new)
                stores.append(
                    ir.Store(s.buffer, replaced(s.index, new), replaced(s.value, new), mask)
                )
        inside = [*body, *stores]
        if self.turns == 1:
            inside = [ir.Let(turn, ZERO), *inside]
        else:
            inside = [ir.For(turn, ZERO, const(self.turns), "serial", inside)]
        return ir.For(t, ZERO, const(self.work.threads), "lanes", inside)

    def _element(self, t: Expr, turn: Expr, u: int) -> tuple[dict[Expr, Expr], Expr]:
        """Where the loops are at one of a thread's elements, and its place in scratch memory."""
        across, first = ir.irem(t, const(SIDE)), ir.idiv(t, const(SIDE))
        before = ir.add(first, ir.mul(turn, const(self.each * self.per)))
        down = ir.add(before, const(u * self.per))
        new = {self.i: ir.add(self.start[0], down), self.j: ir.add(self.start[1], across)}
        return new, _spot(across, down)

    def _slowly(self) -> Stmt:
        """A tile that is cut off, element by element."""
        t = ir.var("t3")
        i = ir.add(self.start[0], ir.idiv(t, const(SIDE)))
        j = ir.add(self.start[1], ir.irem(t, const(SIDE)))
        new = {self.i: i, self.j: j}
        stores: list[Stmt] = [
            ir.Store(
                *(s.buffer, replaced(s.index, new), replaced(s.value, new)),
                None if s.mask is None else replaced(s.mask, new),
            )
            for s in self.stores
        ]
        inside = ir.If((i < self.extents[0]) & (j < self.extents[1]), stores)
        return ir.For(t, ZERO, const(SIDE * SIDE), "lanes", [inside])


def _spot(line: Expr, at: Expr) -> Expr:
    return ir.add(ir.mul(line, const(SIDE + _PAD)), at)


def loads_of(values: Iterable[Expr]) -> list[Expr]:
    """Loads from memory, each once; not those that only say where others are."""
    found: dict[Expr, None] = {}
    for value in values:
        found.update(
            dict.fromkeys(x for x in ir.walk(value, lambda x: x.op != "load") if x.op == "load")
        )
    return list(found)


_SIMPLIFIED = {"add": ir.add, "sub": ir.sub, "mul": ir.mul}


def replaced(e: Expr, new: dict[Expr, Expr]) -> Expr:
    """An expression with other ones in the place of some."""
    done = dict(new)
    stack = [e]
    while stack:
        x = stack[-1]
        if x in done:
            stack.pop()
            continue
        missing = [a for a in x.args if a not in done]
        if missing:
            stack += missing
            continue
        stack.pop()
        args = tuple(done[a] for a in x.args)
        if args == x.args:
            done[x] = x
        elif x.op in _SIMPLIFIED and x.dtype.is_integer:
            done[x] = _SIMPLIFIED[x.op](*args)
        else:
            done[x] = ir.make(x.op, x.dtype, args, x.attr)
    return done[e]
