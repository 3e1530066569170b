"""The contraction by plain arithmetic of 4-byte numbers that the target copies by itself.

A group computes a tile of C, slices of A and B go through its memory (`slices.py`), and each thread
keeps a tile of sums in registers, as large as they allow: what it reads from the group's memory
serves the more multiplications. Each element of C is one running sum over k, as in
`group_contraction.py`.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.cost_model import Way, quickest
from numus.kernels.matmul.gpu.mainloop import (
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
from numus.kernels.matmul.gpu.problem import GroupWork
from numus.target import Target

ZERO = const(0)

WARP = 32
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
    depth: int = DEPTH
    stages: int = STAGES
    square: bool = False  # whether warps have parts that are nearly square, and sums go to and fro

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


# What a unit takes for DEPTH of k: of one group, of two at the same time, and so on.
_TIMES = {
    Tiles(128, 128, 8, 16): (5400, 5700),
    Tiles(256, 64, 16, 8): (5600, 6000),
    Tiles(64, 128, 8, 8): (4700, 4900, 6100, 6500),
    Tiles(64, 64, 8, 4): (1700, 2600, 3200, 3600),
}
_BEGIN = 2500
# Tiles that have a unit to themselves: nobody else is busy there while they begin and end. Where A
# lies along k it is turned over on its way, one element at a time, and the fewer lines the better.
WIDE = Tiles(128, 256, 8, 16, depth=8, stages=4, square=True)
TALL = Tiles(256, 128, 8, 16, depth=8, stages=4, square=True)
_SQUARE_TIMES, _SQUARE_BEGIN = (5500,), 10000


def choose(
    target: Target, batch: int, m: int, n: int, k: int, squares: Tiles | None = None
) -> tuple[Tiles, int]:
    """Tiles, and into how many pieces k is cut. `squares`: WIDE or TALL where they may be taken,
    which is for all of k."""
    slices = -(-k // DEPTH)

    def groups(t: Tiles) -> int:
        return batch * -(-m // t.rows) * -(-n // t.columns)

    ways = [Way(t, groups(t), slices, times, _BEGIN) for t, times in _TIMES.items()]
    if squares is not None:
        times, begin = _SQUARE_TIMES, _SQUARE_BEGIN
        ways.append(Way(squares, groups(squares), slices, times, begin, least=slices))
    way, pieces, _ = quickest(target, ways, 4 * batch * m * n)
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
                early=True,
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
    shape = Shape(dtype, t.depth, t.stages, t.threads, RUN, clamped=t.square)
    near_a, near_b, words = sides(shape, (left, right), (tile[1], tile[2]), (t.rows, t.columns))
    a, b = _Side(near_a, t.own_rows, t.down), _Side(near_b, t.own_columns, t.across)
    sums = [
        [ir.Register(f"c{i}_{j}", dtype, lanes=True) for j in range(t.own_columns)]
        for i in range(t.own_rows)
    ]
    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]

    def multiply(lane: Expr, stage: Expr) -> list[Stmt]:
        down, right_lane = _own(t, lane)

        def read(step: int) -> list[Stmt]:
            return [
                *a.values(down, stage, step, "a"),
                *b.values(right_lane, stage, step, "b"),
            ]

        body = read(0)
        for k in range(t.depth):
            if k + 1 < t.depth:  # what comes next is on its way while this is multiplied
                body += read(k + 1)
            for i, j in _order(t):
                x, y, old = a.name(k, i, "a"), b.name(k, j, "b"), ir.read(sums[i][j])
                new = ir.fma(x, y, old) if dtype.kind == "float" else old + x * y
                body.append(ir.Set(sums[i][j], new))
        return body

    out += pipeline((near_a, near_b), tile[0], s, multiply)

    def place(lane: Expr, number: int) -> tuple[Expr, Expr]:
        i, j = divmod(number, t.own_columns)
        down, right_lane = _own(t, lane)
        return a.line(down, i), b.line(right_lane, j)

    registers = [c for row in sums for c in row]
    scratch = [near_a.words, near_a.elements]
    return Summed(out, tile, (t.rows, t.columns), t.threads, registers, place, scratch, words)


def _own(t: Tiles, lane: Expr) -> tuple[Expr, Expr]:
    """Where a thread's tile is among those of the group. In squares, pairs of threads read the same
    columns, and every other thread the same rows: what half of a warp reads is one access."""
    if not t.square:
        return ir.idiv(lane, const(t.across)), ir.irem(lane, const(t.across))
    width = min(8, t.across)
    warp, thread = ir.idiv(lane, const(WARP)), ir.irem(lane, const(WARP))
    warps = const(t.across // width)
    right = ir.irem(ir.idiv(thread, const(2)), const(width))
    down = ir.add(ir.mul(ir.idiv(thread, const(2 * width)), const(2)), ir.irem(thread, const(2)))
    return (
        ir.add(ir.mul(ir.idiv(warp, warps), const(WARP // width)), down),
        ir.add(ir.mul(ir.irem(warp, warps), const(width)), right),
    )


def _order(t: Tiles) -> list[tuple[int, int]]:
    """In which order a thread's sums grow: to and fro, a product shares a factor with the next."""
    rows, columns = range(t.own_rows), range(t.own_columns)
    if not t.square:
        return [(i, j) for i in rows for j in columns]
    return [(i if j % 2 == 0 else t.own_rows - 1 - i, j) for j in columns for i in rows]


def _leave(work: Work, total: Summed) -> tuple[list[Stmt], ir.Buffer]:
    """Sums to the group's memory, as many rows at a time as lie together there, and out in runs."""
    s, t = work.sizes, work.tiles
    which, m0, n0 = total.tile
    height = RUN * t.down
    pitch = const(t.columns + SPARE)
    dtype = total.registers[0].dtype
    size = height * (t.columns + SPARE)
    slices = total.scratch[0]
    slices.size = const(max(total.words, size))
    stage = ir.Buffer("stage", dtype, "scratch", const(size), aliases=slices)
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
