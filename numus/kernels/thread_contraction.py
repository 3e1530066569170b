"""The contraction by plain arithmetic of 4-byte numbers that the target copies by itself.

A group computes a tile of C, slices of A and B go through its memory (`slices.py`), and each thread
keeps a tile of sums in registers, as large as they allow: what it reads from the group's memory
serves the more multiplications. Each element of C is one running sum over k, as in
`group_contraction.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.kernels.busy import Way, quickest
from numus.kernels.group_work import GroupWork
from numus.kernels.slices import (
    Operand,
    Shape,
    Side,
    Sizes,
    Summed,
    corner,
    pipeline,
    runs_out,
    sides,
)
from numus.runtime.contract import Facts

ZERO = const(0)

DEPTH = 16  # of a slice
STAGES = 3
RUN = 4  # neighbours that a thread reads at a time
SPARE = 8  # elements between rows of the staged tile


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data."""

    rows: int
    columns: int
    own_rows: int  # of a thread's tile
    own_columns: int

    @property
    def down(self) -> int:
        """Threads along the rows."""
        return self.rows // self.own_rows

    @property
    def across(self) -> int:
        return self.columns // self.own_columns

    @property
    def threads(self) -> int:
        return self.down * self.across


# What a unit takes for a slice of one group, of two at the same time, and so on.
_TIMES = {
    Tiles(128, 128, 8, 16): (5400, 5700),
    Tiles(256, 64, 16, 8): (5600, 6000),
    Tiles(64, 128, 8, 8): (4700, 4900, 6100, 6500),
    Tiles(64, 64, 8, 4): (1700, 2600, 3200, 3600),
}
_BEGIN = 2500


def choose(facts: Facts, batch: int, m: int, n: int, k: int) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut."""
    slices = -(-k // DEPTH)
    ways = [
        Way(t, batch * -(-m // t.rows) * -(-n // t.columns), slices, times, _BEGIN)
        for t, times in _TIMES.items()
    ]
    way, pieces, _ = quickest(facts, ways, 4 * batch * m * n)
    return way.tiles, pieces


class _Side:
    """An operand as threads read it: runs of neighbours, spread over the tile."""

    def __init__(self, side: Side, own: int, lanes: int) -> None:
        self.side, self.own, self.lanes = side, own, lanes

    def line(self, lane: Expr, number: int) -> Expr:
        """Which line of the tile a thread's `number`-th is."""
        offset = number // RUN * (self.lanes * RUN) + number % RUN
        return ir.add(ir.mul(lane, const(RUN)), const(offset))

    def values(self, lane: Expr, stage: Expr, step: int, tag: str) -> list[Stmt]:
        """Give names to what a thread needs of a step along k."""
        return [
            ir.Let(
                self.name(step, i, tag),
                ir.load(self.side.words, self.side.place(stage, self.line(lane, i), const(step))),
                ahead=True,
            )
            for i in range(self.own)
        ]

    def name(self, step: int, number: int, tag: str) -> Expr:
        return ir.var(f"{tag}{step}_{number}", self.side.words.dtype)


Work = GroupWork[Tiles, Sizes, Operand]


def contraction(work: Work, g: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """What group g does."""
    total = summed(work.tiles, work.sizes, work.dtype, g, work.left, work.right)
    steps, stage = _leave(work, total)
    return [*total.body, *steps], [*total.scratch, stage]


def summed(
    tiles: Tiles, sizes: Sizes, dtype: DType, g: Expr, left: Operand, right: Operand
) -> Summed:
    """The sums of group g's tile, row by row of a thread's own."""
    s, t = sizes, tiles
    tile, out = corner(s, g, t.rows, t.columns)
    shape = Shape(dtype, DEPTH, STAGES, t.threads, RUN)
    near_a, near_b, words = sides(shape, (left, right), (tile[1], tile[2]), (t.rows, t.columns))
    a, b = _Side(near_a, t.own_rows, t.down), _Side(near_b, t.own_columns, t.across)
    sums = [
        [ir.Register(f"c{i}_{j}", dtype, lanes=True) for j in range(t.own_columns)]
        for i in range(t.own_rows)
    ]
    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    across = const(t.across)

    def multiply(lane: Expr, stage: Expr) -> list[Stmt]:
        down, right_lane = ir.idiv(lane, across), ir.irem(lane, across)

        def read(step: int) -> list[Stmt]:
            return [
                *a.values(down, stage, step, "a"),
                *b.values(right_lane, stage, step, "b"),
            ]

        body = read(0)
        for k in range(DEPTH):
            if k + 1 < DEPTH:  # what comes next is on its way while this is multiplied
                body += read(k + 1)
            for i, row in enumerate(sums):
                for j, c in enumerate(row):
                    x, y, old = a.name(k, i, "a"), b.name(k, j, "b"), ir.read(c)
                    new = ir.fma(x, y, old) if dtype.kind == "float" else old + x * y
                    body.append(ir.Set(c, new))
        return body

    out += pipeline((near_a, near_b), tile[0], s, multiply)

    def place(lane: Expr, number: int) -> tuple[Expr, Expr]:
        i, j = divmod(number, t.own_columns)
        return a.line(ir.idiv(lane, across), i), b.line(ir.irem(lane, across), j)

    registers = [c for row in sums for c in row]
    scratch = [near_a.words, near_a.elements]
    return Summed(out, tile, (t.rows, t.columns), t.threads, registers, place, scratch, words)


def _leave(work: Work, total: Summed) -> tuple[list[Stmt], ir.Buffer]:
    """Sums to the group's memory, as many rows at a time as lie together there, and out in runs."""
    s, t = work.sizes, work.tiles
    which, m0, n0 = total.tile
    height = RUN * t.down
    pitch = const(t.columns + SPARE)
    dtype = total.registers[0].dtype
    size = const(height * (t.columns + SPARE))
    stage = ir.Buffer("stage", dtype, "scratch", size, over=total.scratch[0])
    out: list[Stmt] = []
    for strip in range(t.own_rows // RUN):
        lane = ir.var(f"lay{strip}")
        lay: list[Stmt] = []
        for j in range(t.own_columns):
            for i in range(strip * RUN, strip * RUN + RUN):
                number = i * t.own_columns + j
                row, column = total.place(lane, number)
                at = ir.add(ir.mul(ir.add(row, const(-strip * height)), pitch), column)
                lay.append(ir.Store(stage, at, ir.read(total.registers[number])))
        out.append(ir.For(lane, ZERO, const(t.threads), "lanes", lay))
        part = (which, ir.add(m0, const(strip * height)), n0)
        shape = (height, t.columns)
        out.append(runs_out(stage, shape, pitch, (s.m, s.n), part, work.finish, f"{strip}"))
    return out, stage
