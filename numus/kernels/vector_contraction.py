"""The contraction of threads that are lanes of one vector: C = A B where software imitates a GPU.

A group is one vector and keeps a tile of C in registers: each lane has some columns of all rows.
Memory is slow here, whoever reads it, and lanes exchange values for next to nothing. So lanes read
runs of neighbours, of A and of B, along k or across it as they lie; elements of A are then picked
from their lane and multiplied with columns of B in all lanes. There is no memory that threads
share, and no barrier, but for tiles on their way out. Each element of C is one running sum over k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.kernels.group_work import GroupWork

ZERO = const(0)

RUN = 8  # neighbours that a lane reads at once: steps of k that are written out


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    lanes: int

    @property
    def rows(self) -> int:
        return 2 * self.lanes if self.lanes >= RUN else RUN

    @property
    def columns(self) -> int:
        return RUN * self.lanes


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    m: Expr
    n: Expr
    k: Expr
    blocks: Expr  # whole runs along k
    row_tiles: Expr
    column_tiles: Expr


@dataclass(slots=True)
class Operand:
    """`read(batch, line, k)` is an element; `run(batch, line, k)` are neighbours: along k from
    `RUN * k` on, or across it from line `RUN * line` on. Lines beyond the last are read as some
    other. `start(batch, line)`, where there is one, is worked out once for each line, and what
    `run` is given for it."""

    along: bool
    read: Callable[[Expr, Expr, Expr], Expr]
    run: Callable[[Expr, Expr, Expr], list[Expr]]
    start: Callable[[Expr, Expr], Expr] | None = None


Block = Callable[[Expr], list[Stmt]]  # what is done for a run along k, by its number
Walk = Callable[[Block], list[Stmt]]  # the loops over all of them


Sums = list[list[ir.Register]]  # of a tile: rows, and the columns of a lane


def sums_of(name: str, dtype: DType, rows: int, columns: int) -> Sums:
    """Registers for a tile of sums."""
    return [
        [ir.Register(f"{name}{i}_{j}", dtype, lanes=True) for j in range(columns)]
        for i in range(rows)
    ]


def cleared(sums: Sums) -> list[Stmt]:
    return [ir.Set(c, const(0, c.dtype)) for row in sums for c in row]


def named(body: list[Stmt], tag: str, values: list[Expr]) -> list[Expr]:
    """Names for values, written into a body."""
    names = [ir.var(f"{tag}_{i}", v.dtype) for i, v in enumerate(values)]
    body += [ir.Let(name, v) for name, v in zip(names, values, strict=True)]
    return names


def multiply(body: list[Stmt], sums: Sums, xs: list[Expr], ys: list[Expr]) -> None:
    """Add the products of a column by a row."""
    for row, x in zip(sums, xs, strict=True):
        for c, y in zip(row, ys, strict=True):
            old = ir.read(c)
            new = ir.fma(x, y, old, loose=True) if c.dtype.kind == "float" else old + x * y
            body.append(ir.Set(c, new))


def picked(lines: list[Expr], lanes: int) -> list[Expr]:
    """What all lanes have, each by itself: of the first line, of the second, and so on."""
    return [ir.lanes_pick(line, lane) for line in lines for lane in range(lanes)]


Work = GroupWork[Tiles, Sizes, Operand]


def contraction(
    work: Work, g: Expr, rest: bool, walk: Walk | None = None
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does. `rest`: whether k may end within a run."""
    s, t, dtype = work.sizes, work.tiles, work.dtype
    left, right = work.left, work.right
    lanes, rows, own = t.lanes, t.rows, RUN
    # groups that follow each other share columns of B
    batch = ir.idiv(g, ir.mul(s.row_tiles, s.column_tiles))
    row_tile = ir.irem(g, s.row_tiles)
    column_tile = ir.irem(ir.idiv(g, s.row_tiles), s.column_tiles)
    m0, n0 = ir.mul(row_tile, const(rows)), ir.mul(column_tile, const(t.columns))
    sums = sums_of("c", dtype, rows, own)

    def column(lane: Expr, j: int) -> Expr:
        """The column that a lane's j-th sums are of, in the tile."""
        if right.along:
            return ir.add(lane, const(j * lanes))
        return ir.add(ir.mul(lane, const(own)), const(j))

    lane = ir.var("lane")
    steps = cleared(sums)

    def started(operand: Operand, tag: str, lines: list[Expr]) -> list[Expr]:
        if operand.start is None:
            return lines
        return named(steps, tag, [operand.start(batch, line) for line in lines])

    own_rows = [ir.add(m0, ir.add(lane, const(i * lanes))) for i in range(rows // lanes)]
    own_columns = [ir.add(n0, column(lane, j)) for j in range(own)]
    left_lines = started(left, "row", own_rows) if left.along else []
    right_lines = started(right, "column", own_columns) if right.along else []

    def block(kb: Expr) -> list[Stmt]:
        """A run along k of all rows and columns."""
        body: list[Stmt] = []
        # A: values[k][row] of the block
        if left.along:
            lines = [named(body, f"a{i}", left.run(batch, x, kb)) for i, x in enumerate(left_lines)]
            a = [picked([line[k] for line in lines], lanes) for k in range(RUN)]
        else:
            first = ir.mul(row_tile, const(rows // RUN))
            a = []
            for step in range(0, RUN, min(lanes, RUN)):
                p = ir.add(ir.mul(kb, const(RUN)), ir.add(const(step), ir.irem(lane, const(RUN))))
                found = [left.run(batch, ir.add(first, const(i)), p) for i in range(rows // RUN)]
                columns = [
                    x for i, run in enumerate(found) for x in named(body, f"a{step}_{i}", run)
                ]
                a += [[ir.lanes_pick(x, k) for x in columns] for k in range(min(lanes, RUN))]
        if right.along:
            lines = [
                named(body, f"b{j}", right.run(batch, x, kb)) for j, x in enumerate(right_lines)
            ]
        for k in range(RUN):
            if right.along:
                b = [line[k] for line in lines]
            else:
                first = ir.add(ir.mul(column_tile, const(lanes)), lane)
                p = ir.add(ir.mul(kb, const(RUN)), const(k))
                b = named(body, f"b{k}", right.run(batch, first, p))
            multiply(body, sums, named(body, f"x{k}", a[k]), b)
        return body

    if walk is None:
        kb = ir.var("kb")
        steps.append(ir.For(kb, ZERO, s.blocks, "serial", block(kb)))
    else:
        steps += walk(block)
    if rest:
        p = ir.var("p")
        tail: list[Stmt] = []
        a_line = named(tail, "ta", [left.read(batch, row, p) for row in own_rows])
        b = named(tail, "tb", [right.read(batch, x, p) for x in own_columns])
        multiply(tail, sums, named(tail, "tx", picked(a_line, lanes)), b)
        steps.append(ir.For(p, ir.mul(s.blocks, const(RUN)), s.k, "serial", tail))
    # through the group's memory, so that the epilogue is written once, and goes along rows
    stage = ir.Buffer("stage", dtype, "scratch", const(rows * t.columns))
    for i, row in enumerate(sums):
        for j, c in enumerate(row):
            at = ir.add(const(i * t.columns), column(lane, j))
            steps.append(ir.Store(stage, at, ir.read(c)))
    out: list[Stmt] = [ir.For(lane, ZERO, const(lanes), "lanes", steps)]
    down, across = ir.var("down"), ir.var("across")
    value = ir.load(stage, ir.add(ir.mul(down, const(t.columns)), across))
    done = work.finish(batch, ir.add(m0, down), ir.add(n0, across), value)
    width = ir.minimum(ir.sub(s.n, n0), const(t.columns))
    height = ir.minimum(ir.sub(s.m, m0), const(rows))
    line = ir.For(across, ZERO, width, "lanes", done)
    out.append(ir.For(down, ZERO, height, "serial", [line]))
    return out, [stage]
