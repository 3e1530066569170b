"""Convolution by units that multiply tiles: 16-bit floats on targets that have them.

It is a product of matrices whose left one is never stored: a row for each place of the result, and
along k, for each tap of the window, the channels at the place of the data that it falls on. Data
and weights lie with their channels as neighbours, 8 at a time, so that a run of them is copied into
the group's memory as it is; zeros take its place where a tap falls beside the data, or between its
elements where they are spread apart. Sums are float32, and leave through the epilogue by way of the
group's memory, places being neighbours.
"""

from __future__ import annotations

from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.common.smem_tiles import SWIZZLE_COLUMNS, VECTOR, ZERO
from numus.kernels.conv.gpu.implicit_gemm import Finish, Sizes, Windows, small
from numus.target import Target

THREADS = 256
ROWS = 128
STAGES = 4  # slices in the group's memory
AHEAD = STAGES - 1  # one is being multiplied
STRIP = 32  # columns of the tile that leave at a time
PITCH = ROWS + 4  # of a column of a strip: shifts its banks
LEAST = 8  # slices of a piece


def columns_of(target: Target, groups: int, rows: int, outputs: int, depth: int) -> int:
    """The widest tiles that have enough to do, and of which there are enough pieces."""
    most = groups * -(-rows // ROWS) * max(1, -(-depth // SWIZZLE_COLUMNS) // LEAST)
    for columns in (256, 128):
        if outputs > columns // 2 and most * -(-outputs // columns) >= target.num_cores:
            return columns
    return 64 if outputs > 32 else 32


def pieces_of(
    target: Target, groups: int, rows: int, outputs: int, columns: int, depth: int
) -> int:
    """How many pieces k is cut into, so that small results keep all units busy."""
    tiles = groups * -(-rows // ROWS) * -(-outputs // columns)
    return max(1, min(target.num_cores // tiles, -(-depth // SWIZZLE_COLUMNS) // LEAST))


def convolution(
    columns: int,
    sizes: Sizes,
    dtype: DType,
    g: Expr,
    data: ir.Buffer,
    weights: ir.Buffer,
    finish: Finish,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch."""
    group = _Group(columns, sizes, dtype, g, data, weights)
    return group.body(finish), [group.a, group.b, group.stage]


class _Group:
    def __init__(
        self,
        columns: int,
        s: Sizes,
        dtype: DType,
        g: Expr,
        data: ir.Buffer,
        weights: ir.Buffer,
    ) -> None:
        self.columns, self.s, self.data, self.weights = columns, s, data, weights
        tiles = ir.mul(s.row_tiles, s.column_tiles)
        which, inner = ir.idiv(g, tiles), ir.irem(g, tiles)
        self.group, self.piece = ir.idiv(which, s.pieces), ir.irem(which, s.pieces)
        # rows run fastest: groups that run together share the weights they read
        self.m0 = ir.mul(ir.irem(inner, s.row_tiles), const(ROWS))
        self.o0 = ir.mul(ir.idiv(inner, s.row_tiles), const(columns))
        self.windows = Windows(s, self.group)
        self.rows, self.depth = self.windows.rows, self.windows.depth
        self.a = ir.Buffer("slices_a", dtype, "scratch", const(STAGES * ROWS * SWIZZLE_COLUMNS))
        self.b = ir.Buffer("slices_b", dtype, "scratch", const(STAGES * columns * SWIZZLE_COLUMNS))
        self.stage = ir.Buffer("stage", float32, "scratch", const(STRIP * PITCH))
        self.sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]

    def body(self, finish: Finish) -> list[Stmt]:
        s = self.s
        every = ir.idiv(ir.add(self.depth, const(SWIZZLE_COLUMNS - 1)), const(SWIZZLE_COLUMNS))
        first = ir.mul(self.piece, s.slices)
        stop = ir.minimum(ir.add(first, s.slices), every)
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in self.sums]
        for ahead in range(AHEAD):
            at = ir.add(first, const(ahead))
            out += [ir.If(at < stop, self.bring(f"ahead{ahead}", at)), ir.AsyncCommit()]
        q = ir.var("slice")
        stage, following = ir.irem(q, const(STAGES)), ir.add(q, const(AHEAD))
        left = ir.MmaOperand(self.a, ir.mul(stage, const(ROWS * SWIZZLE_COLUMNS)), True)
        right = ir.MmaOperand(self.b, ir.mul(stage, const(self.columns * SWIZZLE_COLUMNS)), True)
        body: list[Stmt] = [
            ir.AsyncWait(AHEAD - 1, fence=True),
            ir.Wgmma(self.sums, left, right, self.columns, SWIZZLE_COLUMNS),
            ir.If(following < stop, self.bring("next", following)),
            ir.AsyncCommit(),
            ir.WgmmaWait(self.sums, 0),
        ]
        return [*out, ir.For(q, first, stop, "serial", body), *self.leave(finish)]

    # -- slices -----------------------------------------------------------------------------------

    def bring(self, tag: str, q: Expr) -> list[Stmt]:
        """Begin to bring the q-th slice: 8 threads have a row of it."""
        s = self.s
        lane = ir.var(tag)
        row, run = (
            ir.idiv(lane, const(SWIZZLE_COLUMNS // VECTOR)),
            ir.irem(lane, const(SWIZZLE_COLUMNS // VECTOR)),
        )
        start = ir.mul(q, const(SWIZZLE_COLUMNS))
        k = ir.add(start, ir.mul(run, const(VECTOR)))
        # all runs of a whole slice are of one tap
        taps, channel = self.windows.tap(start if s.whole else k)
        if s.whole:
            channel = ir.add(channel, small(ir.mul(run, const(VECTOR))))
        place = ir.add(
            ir.mul(ir.irem(q, const(STAGES)), const(ROWS * SWIZZLE_COLUMNS)), _run_place(row, run)
        )
        apart = THREADS * VECTOR // SWIZZLE_COLUMNS  # rows
        body: list[Stmt] = []
        for number_ in range(ROWS // apart):
            down = const(number_ * apart)
            m = ir.add(ir.add(self.m0, row), down)
            index, inside = self.windows.source(m, taps, channel)
            left = ir.select(inside & (k < self.depth), const(VECTOR), ZERO)
            to = ir.add(place, ir.mul(down, const(SWIZZLE_COLUMNS)))
            body.append(ir.AsyncCopy(self.a, to, self.data, index, left))
        place = ir.add(
            ir.mul(ir.irem(q, const(STAGES)), const(self.columns * SWIZZLE_COLUMNS)),
            _run_place(row, run),
        )
        for number_ in range(self.columns // apart):
            down = const(number_ * apart)
            o = ir.add(ir.add(self.o0, row), down)
            index = ir.add(
                ir.mul(ir.add(ir.mul(self.group, s.outputs), self.o0), self.depth),
                ir.add(ir.add(ir.mul(row, self.depth), k), ir.mul(down, self.depth)),
            )
            left = ir.select((o < s.outputs) & (k < self.depth), const(VECTOR), ZERO)
            to = ir.add(place, ir.mul(down, const(SWIZZLE_COLUMNS)))
            body.append(ir.AsyncCopy(self.b, to, self.weights, index, left))
        return [ir.For(lane, ZERO, const(THREADS), "lanes", body)]

    # -- results ----------------------------------------------------------------------------------

    def leave(self, finish: Finish) -> list[Stmt]:
        """A thread has one row of every strip and every other column of it."""
        s = self.s
        out: list[Stmt] = []
        for first in range(0, self.columns, STRIP):
            lane, thread = ir.var(f"lay{first}"), ir.var(f"out{first}")
            lay: list[Stmt] = []
            for i in range(STRIP // 2):
                row, column = ir.accumulator_element(lane, i)
                to = ir.add(ir.mul(column, const(PITCH)), row)
                lay.append(ir.Store(self.stage, to, ir.read(self.sums[first // 2 + i])))
            out.append(ir.For(lane, ZERO, const(THREADS), "lanes", lay))
            row, turn = ir.irem(thread, const(ROWS)), ir.idiv(thread, const(ROWS))
            m = ir.add(self.m0, row)
            image, (d, h, w) = self.windows.place(m)
            at = (d.cast(ir.INDEX), h.cast(ir.INDEX), w.cast(ir.INDEX))
            stores: list[Stmt] = []
            for i in range(STRIP * ROWS // THREADS):
                column = ir.add(turn, const(i * THREADS // ROWS))
                o = ir.add(ir.add(self.o0, column), const(first))
                value = ir.load(self.stage, ir.add(ir.mul(column, const(PITCH)), row))
                done = finish(self.piece, self.group, image.cast(ir.INDEX), at, o, value)
                stores.append(ir.If((m < self.rows) & (o < s.outputs), done))
            out.append(ir.For(thread, ZERO, const(THREADS), "lanes", stores))
        return out


def _run_place(row: Expr, run: Expr) -> Expr:
    """Where a run of a row lies in a slice (`ir.tile_place`)."""
    turned = ir.binary("xor", run, ir.irem(row, const(VECTOR)))
    return ir.add(ir.mul(row, const(SWIZZLE_COLUMNS)), ir.mul(turned, const(VECTOR)))
