"""Pointwise kernels with transposed operands, through shared memory tiles.

A block loads operands that are strided along its lanes in memory order (coalesced) into shared
memory, from which each thread reads its element. Square grids run a tile and its mirror image in
sequence: of `x + x.T`, each element is loaded from device memory once.
"""

from __future__ import annotations

from collections.abc import Iterable

from numus import ir
from numus.compiler.lower.affine import AffineAnalysis
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops.nest import ZERO, Loop, Position, ceil_div, delinearize, iterations
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, Stmt, const
from numus.ir.substitution import substitute

SIDE = TUNING.transpose_tile
PITCH = SIDE + 1  # padded, so that the elements of a column are in different banks


def lower_transpose(p: LoopProblem, strided: Loop) -> Kernels | None:
    """The kernel; None where no operand is transposed, or shared memory has no room."""
    if not p.work.threads or p.work.threads % SIDE:
        return None
    made = _Transpose(p, strided)
    room = p.target.shared_bytes // TUNING.transpose_blocks_per_sm
    return made.kernels() if made.transposed and made.shared_bytes <= room else None


class _Transpose:
    def __init__(self, p: LoopProblem, strided: Loop) -> None:
        lane, nest, work = p.lanes, p.nest, p.work
        self.work, self.lane, self.strided = work, lane, strided
        e = self.e = work.emitter()
        self.extents = e.dim(strided.extent), e.dim(lane.extent)
        self.i, self.j = e.variable("i", self.extents[0]), e.variable("j", self.extents[1])
        self.g = ir.var("g")
        self.rest = [d for d in nest.loops if d not in (lane, strided)]
        batch, self.grid = self._tiles()
        index = nest.index({**self._batch_position(batch), lane: self.j, strided: self.i})
        found = p.stores(e, work.stored, index)
        self.stores = [s for s in found if isinstance(s, ir.Store)]
        self.loads = loads_of(s.value for s in self.stores)
        self.transposed = [x for x in self.loads if self._is_transposed(x)]
        ops = len({x for s in self.stores for x in ir.walk(s.value, lambda x: True)})
        in_flight = TUNING.transpose_in_flight
        if ops > TUNING.transpose_heavy_ops:
            in_flight //= 4
        self.lines = work.threads // SIDE  # of a tile that a block takes at a time
        self.unroll = min(in_flight, SIDE // self.lines)
        self.passes = SIDE // (self.lines * self.unroll)
        # other operands, loaded ahead of the barrier where registers have room for them
        self.prefetched: dict[tuple[int, Expr], ir.Register] = {}
        if self.passes == 1:
            self.prefetched = {
                (u, x): ir.Register(f"s{u}_{k}", x.dtype, lanes=True)
                for u in range(self.unroll)
                for k, x in enumerate(x for x in self.loads if self._is_prefetchable(x))
            }
        for k, x in enumerate(self.transposed):
            e.scratch.append(ir.Buffer(f"w{k}", x.attr.dtype, "scratch", const(SIDE * PITCH)))

    @property
    def shared_bytes(self) -> int:
        return sum(SIDE * PITCH * x.attr.dtype.itemsize for x in self.transposed)

    def _tiles(self) -> tuple[Expr, int]:
        """Sets the origin of this block's tile; the index of the other loops, and the grid."""
        e, g = self.e, self.g
        columns, rows = ceil_div(self.lane.extent, SIDE), ceil_div(self.strided.extent, SIDE)
        column_tiles = e.scalar_arg(columns)
        self.is_distinct: Expr | None = None
        if columns != rows:
            row_tiles = e.scalar_arg(rows)
            tile, column = divmod(g, column_tiles)
            batch, row = divmod(tile, row_tiles)
            total = columns * rows
        else:
            # Pairs of mirrored tiles: the upper triangle, folded to a rectangle.
            even = 1 - columns % 2
            width, odd = e.scalar_arg(columns + even), e.scalar_arg(even)
            pairs = columns * (columns + 1) // 2
            pair = ir.irem(ir.idiv(g, const(2)), e.scalar_arg(pairs))
            line, at = divmod(pair, width)
            unfolded = at < ir.sub(column_tiles, line)
            one = ir.select(unfolded, line, ir.sub(ir.sub(column_tiles, odd), line))
            other = ir.select(unfolded, ir.add(line, at), ir.sub(at, odd))
            first = ir.irem(g, const(2)).eq(0)
            row, column = ir.select(first, one, other), ir.select(first, other, one)
            self.is_distinct = first | one.ne(other)  # a diagonal tile is its own mirror image
            batch, total = ir.idiv(g, e.scalar_arg(2 * pairs)), 2 * pairs
        self.origin = ir.var("i0"), ir.var("j0")
        self.prologue = ir.lets(self.origin, [ir.mul(t, const(SIDE)) for t in (row, column)])
        return batch, total * iterations(self.rest)

    def _batch_position(self, batch: Expr) -> Position:
        """The position of the other loops, as names: only strides along i and j matter."""
        at: Position = {}
        for d, digit in delinearize(self.e, batch, self.rest).items():
            at[d] = self.e.variable(f"at{d.axis}", self.e.dim(d.extent))
            self.prologue.append(ir.Let(at[d], digit))
        return at

    def _is_transposed(self, load: Expr) -> bool:
        """A load is contiguous along i and strided along the lanes."""
        found = AffineAnalysis(self.e).coefficients(load.args[0]) if len(load.args) == 1 else None
        return (
            found is not None and abs(found.get(self.i, 0)) == 1 and abs(found.get(self.j, 0)) > 1
        )

    def _is_prefetchable(self, load: Expr) -> bool:
        """A load is neither transposed nor indirect."""
        nested = ir.walk(load, lambda x: True)
        return load not in self.transposed and sum(x.op == "load" for x in nested) == 1

    # -- the kernel -------------------------------------------------------------------------------

    def kernels(self) -> Kernels:
        (i0, j0), (rows, columns) = self.origin, self.extents
        side = const(SIDE)
        whole = (ir.add(i0, side) <= rows) & (ir.add(j0, side) <= columns)
        is_whole = ir.var("whole", whole.dtype)
        tile: list[Stmt] = [
            ir.Let(is_whole, whole),
            ir.If(is_whole, [self._load_tile(), self._compute_tile()]),
            ir.If(ir.unary("not", is_whole), [self._partial_tile()]),
        ]
        if self.is_distinct is not None:
            tile = [ir.If(self.is_distinct, tile)]
        body = [*self.prologue, *tile]
        name, notes = "pointwise_transpose", self.work.notes
        return [self.e.grid_kernel(name, self.g, body, self.grid, notes)]

    def _load_tile(self) -> Stmt:
        """Lines of the transposed operands, into shared memory."""
        t = ir.var("t")
        down, line = ir.irem(t, const(SIDE)), ir.idiv(t, const(SIDE))
        body: list[Stmt] = []
        for (u, x), register in self.prefetched.items():
            body.append(ir.Set(register, substitute(x, self._element(t, ZERO, u)[0])))
        unroll = min(TUNING.transpose_in_flight, SIDE // self.lines)
        for first in range(0, SIDE, self.lines * TUNING.transpose_in_flight):
            stores: list[Stmt] = []
            for u in range(unroll):
                at = ir.add(line, const(first + u * self.lines))
                point = {self.i: ir.add(self.origin[0], down), self.j: ir.add(self.origin[1], at)}
                for k, x in enumerate(self.transposed):
                    name = ir.var(f"x{first + u * self.lines}_{k}", x.dtype)
                    body.append(ir.Let(name, substitute(x, point)))
                    stores.append(ir.Store(self.e.scratch[k], _shared_offset(at, down), name))
            body += stores
        return ir.For(t, ZERO, const(self.work.threads), "lanes", body)

    def _compute_tile(self) -> Stmt:
        """Every element of the tile, several of a column at a time."""
        t = ir.var("t2")
        step = ir.var("step")
        loads: list[Stmt] = []
        stores: list[Stmt] = []
        for u in range(self.unroll):
            new, offset = self._element(t, step, u)
            for k, x in enumerate(self.loads):
                name = ir.var(f"y{u}_{k}", x.dtype)
                if x in self.transposed:
                    value = ir.load(self.e.scratch[self.transposed.index(x)], offset)
                elif (u, x) in self.prefetched:
                    value = ir.read(self.prefetched[u, x])
                else:
                    value = substitute(x, new)
                loads.append(ir.Let(name, value))
                new[x] = name
            stores += self._stores_at(new)
        body = [*loads, *stores]
        if self.passes == 1:
            body = [ir.Let(step, ZERO), *body]
        else:
            body = [ir.For(step, ZERO, const(self.passes), "serial", body)]
        return ir.For(t, ZERO, const(self.work.threads), "lanes", body)

    def _stores_at(self, new: dict[Expr, Expr]) -> list[Stmt]:
        return [
            ir.Store(
                *(s.buffer, substitute(s.index, new), substitute(s.value, new)),
                None if s.mask is None else substitute(s.mask, new),
            )
            for s in self.stores
        ]

    def _element(self, t: Expr, step: Expr, u: int) -> tuple[dict[Expr, Expr], Expr]:
        """The point of one of a thread's elements, and its offset in shared memory."""
        across, first = ir.irem(t, const(SIDE)), ir.idiv(t, const(SIDE))
        before = ir.add(first, ir.mul(step, const(self.unroll * self.lines)))
        down = ir.add(before, const(u * self.lines))
        new = {self.i: ir.add(self.origin[0], down), self.j: ir.add(self.origin[1], across)}
        return new, _shared_offset(across, down)

    def _partial_tile(self) -> Stmt:
        """A tile at the edge, element by element."""
        t = ir.var("t3")
        i = ir.add(self.origin[0], ir.idiv(t, const(SIDE)))
        j = ir.add(self.origin[1], ir.irem(t, const(SIDE)))
        stores = self._stores_at({self.i: i, self.j: j})
        in_bounds = ir.If((i < self.extents[0]) & (j < self.extents[1]), stores)
        return ir.For(t, ZERO, const(SIDE * SIDE), "lanes", [in_bounds])


def _shared_offset(line: Expr, at: Expr) -> Expr:
    return ir.add(ir.mul(line, const(PITCH)), at)


def loads_of(values: Iterable[Expr]) -> list[Expr]:
    """Loads, each once, without those that only compute the addresses of others."""
    walked = (x for value in values for x in ir.walk(value, lambda x: x.op != "load"))
    return list(dict.fromkeys(x for x in walked if x.op == "load"))
