"""The contraction by units that multiply whole tiles: 16-bit floats on targets that have them.

A group of 256 threads computes 128 rows of C. Slices of A and B are copied into the group's memory
several ahead of where they are multiplied. An operand that is nothing but memory is copied without
passing through registers; any other is read through its expression. Sums are float32, and leave
through the epilogue by way of the group's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, bool_, float32

ZERO, ONE = const(0), const(1)

THREADS = 256
ROWS = 128
DEPTH = 64  # of a slice
STAGES = 4  # slices in the group's memory
AHEAD = STAGES - 2  # one is being multiplied, one may still be
RUN = 8  # elements that are copied at a time
STRIP = 32  # columns of the tile that leave at a time


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    m: Expr
    n: Expr
    k: Expr
    row_tiles: Expr
    column_tiles: Expr


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k, mask)` is an element; lines are rows of A or columns of B."""

    read: Callable[[Expr, Expr, Expr, Expr], Expr]
    extent: Expr  # how many lines there are
    along: bool  # whether neighbours in memory lie along k
    plain: Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]] | None  # where it is only memory
    aligned: Expr  # whether runs of 8 lie at whole places there


Epilogue = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]


@dataclass(slots=True)
class _Side:
    operand: Operand
    first: Expr
    lines: int
    buffer: ir.Buffer

    @property
    def size(self) -> int:
        """Elements of a slice."""
        return self.lines * DEPTH

    def inside(self, slice_: Expr, k_size: Expr) -> Expr:
        """Whether nothing of a slice is cut off."""
        last = ir.add(self.first, const(self.lines))
        end = ir.mul(ir.add(slice_, ONE), const(DEPTH))
        return (last <= self.operand.extent) & (end <= k_size)

    def bring(self, lane: Expr, batch: Expr, slice_: Expr, k_size: Expr, how: str) -> list[Stmt]:
        """A thread's share of a slice: runs of neighbours."""
        out: list[Stmt] = []
        o = self.operand
        start = ir.mul(ir.irem(slice_, const(STAGES)), const(self.size))
        for number in range(self.size // RUN // THREADS):
            at = ir.add(lane, const(number * THREADS))
            runs = const((DEPTH if o.along else self.lines) // RUN)
            slow, quick = ir.idiv(at, runs), ir.mul(ir.irem(at, runs), const(RUN))
            line, depth = (slow, quick) if o.along else (quick, slow)
            to = ir.add(start, ir.tile_place(o.along, line, depth, DEPTH))
            line = ir.add(self.first, line)
            k = ir.add(ir.mul(slice_, const(DEPTH)), depth)
            if how != "read" and o.plain is not None:
                buffer, index = o.plain(batch, line, k)
                left, other = (
                    (k_size - k, line < o.extent) if o.along else (o.extent - line, k < k_size)
                )
                limit = const(RUN) if how == "whole" else ir.select(other, left, ZERO)
                out.append(ir.AsyncCopy(self.buffer, to, buffer, index, limit))
                continue
            for u in range(RUN):
                here = ir.add(line, const(0 if o.along else u))
                deep = ir.add(k, const(u if o.along else 0))
                inside = (here < o.extent) & (deep < k_size)
                value = o.read(batch, here, deep, inside)
                zero = const(0.0, float32).cast(self.buffer.dtype)
                value = ir.select(inside, value, zero)
                out.append(ir.Store(self.buffer, ir.add(to, const(u)), value))
        return out


def contraction(
    columns: int,
    sizes: Sizes,
    dtype: DType,
    g: Expr,
    left: Operand,
    right: Operand,
    finish: Epilogue,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g; `finish(batch, m, n, value)` stores an element of the result."""
    s = sizes
    batch = ir.idiv(g, ir.mul(s.row_tiles, s.column_tiles))
    inner = ir.irem(g, ir.mul(s.row_tiles, s.column_tiles))
    # rows run fastest: groups that run together share the columns they read
    m0 = ir.mul(ir.irem(inner, s.row_tiles), const(ROWS))
    n0 = ir.mul(ir.idiv(inner, s.row_tiles), const(columns))
    sides = []
    for name, operand, first, lines in (("a", left, m0, ROWS), ("b", right, n0, columns)):
        buffer = ir.Buffer(f"slices_{name}", dtype, "scratch", const(STAGES * lines * DEPTH))
        sides.append(_Side(operand, first, lines, buffer))
    a, b = sides
    sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]
    slices = ir.idiv(ir.add(s.k, const(DEPTH - 1)), const(DEPTH))

    def bring(name: str, slice_: Expr) -> list[Stmt]:
        out: list[Stmt] = []
        for side, tag in zip(sides, "ab", strict=True):
            aligned, inside = side.operand.aligned, side.inside(slice_, s.k)
            ways = {"whole": aligned & inside, "cut": aligned & ~inside, "read": ~aligned}
            if side.operand.plain is None:
                ways = {"read": const(True, bool_)}
            for how, condition in ways.items():
                lane = ir.var(f"{name}{tag}_{how}")
                body = side.bring(lane, batch, slice_, s.k, how)
                loop: list[Stmt] = [ir.For(lane, ZERO, const(THREADS), "lanes", body)]
                if how == "read":
                    loop.append(ir.AsyncFence())
                out.append(ir.If(condition, loop))
        return out

    out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in sums]
    for ahead in range(AHEAD):
        out += [*bring(f"ahead{ahead}", const(ahead)), ir.AsyncCommit()]
    q = ir.var("slice")

    def tile(side: _Side, number: Expr) -> ir.TileOperand:
        start = ir.mul(ir.irem(number, const(STAGES)), const(side.size))
        return ir.TileOperand(side.buffer, start, side.operand.along)

    next_ = ir.add(q, const(AHEAD))
    body: list[Stmt] = [
        ir.AsyncWait(AHEAD - 1),
        ir.TileProduct(sums, tile(a, q), tile(b, q), columns, DEPTH),
        ir.If(next_ < slices, bring("next", next_)),
        ir.AsyncCommit(),
        ir.TileWait(sums, 1),
    ]
    out += [ir.For(q, ZERO, slices, "serial", body), ir.TileWait(sums, 0)]

    # Of 64 rows and 8 columns a thread has two neighbours in each of two rows.
    stage = ir.Buffer("stage", float32, "scratch", const(ROWS * STRIP))
    for strip in range(columns // STRIP):
        lane, at = ir.var(f"lay{strip}"), ir.var(f"out{strip}")
        row = ir.add(
            ir.mul(ir.idiv(lane, const(32)), const(16)), ir.idiv(ir.irem(lane, const(32)), const(4))
        )
        column = ir.mul(ir.irem(lane, const(4)), const(2))
        lay: list[Stmt] = []
        for i in range(STRIP // 2):
            down, across = i // 2 % 2 * 8, i // 4 * 8 + i % 2
            to = ir.add(ir.mul(ir.add(row, const(down)), const(STRIP)), column)
            value = ir.read(sums[strip * STRIP // 2 + i])
            lay.append(ir.Store(stage, ir.add(to, const(across)), value))
        out.append(ir.For(lane, ZERO, const(THREADS), "lanes", lay))
        m = ir.add(m0, ir.idiv(at, const(STRIP)))
        n = ir.add(n0, ir.add(ir.irem(at, const(STRIP)), const(strip * STRIP)))
        done = ir.If((m < s.m) & (n < s.n), finish(batch, m, n, ir.load(stage, at)))
        out.append(ir.For(at, ZERO, const(ROWS * STRIP), "lanes", [done]))
    return out, [a.buffer, b.buffer, stage]
