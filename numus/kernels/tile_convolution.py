"""Convolution by units that multiply tiles: 16-bit floats on targets that have them.

It is a product of matrices whose left one is never stored: a row for each place of the result, and
along k, for each tap of the window, the channels at the place of the data that it falls on. Data
and weights lie with their channels as neighbours, 8 at a time, so that a run of them is copied into
the group's memory as it is; zeros take its place where a tap falls beside the data, or between its
elements where they are spread apart. Sums are float32, and leave through the epilogue by way of the
group's memory, places being neighbours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType, float32
from numus.kernels.tile_matrices import BLOCK, ONE, RUN, ZERO
from numus.runtime.contract import Facts

THREADS = 256
ROWS = 128
STAGES = 4  # slices in the group's memory
AHEAD = STAGES - 1  # one is being multiplied
STRIP = 32  # columns of the tile that leave at a time
PITCH = ROWS + 4  # of a column of a strip: shifts its banks
LEAST = 8  # slices of a piece

Triple = tuple[Expr, Expr, Expr]


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions; `whole`: channels come in whole slices."""

    batch: Expr
    groups: Expr
    channels: Expr  # of a group, a multiple of RUN
    outputs: Expr  # of a group
    space: Triple
    taps: Triple
    extents: Triple
    stride: Triple
    dilation: Triple
    gap: Triple
    low: Triple
    row_tiles: Expr
    column_tiles: Expr
    pieces: Expr  # of k, each a sum of its own
    slices: Expr  # of a piece
    whole: bool


def columns_of(facts: Facts, groups: int, rows: int, outputs: int, depth: int) -> int:
    """The widest tiles that have enough to do, and of which there are enough pieces."""
    most = groups * -(-rows // ROWS) * max(1, -(-depth // BLOCK) // LEAST)
    for columns in (256, 128):
        if outputs > columns // 2 and most * -(-outputs // columns) >= facts.parallel_units:
            return columns
    return 64 if outputs > 32 else 32


def pieces_of(facts: Facts, groups: int, rows: int, outputs: int, columns: int, depth: int) -> int:
    """How many pieces k is cut into, so that small results keep all units busy."""
    tiles = groups * -(-rows // ROWS) * -(-outputs // columns)
    return max(1, min(facts.parallel_units // tiles, -(-depth // BLOCK) // LEAST))


# (which piece, which group, image, place, output, value)
Finish = Callable[[Expr, Expr, Expr, Triple, Expr, Expr], list[Stmt]]


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


def _small(e: Expr) -> Expr:
    """Indices are small enough for 32 bits, in which it is cheaper to divide."""
    return e.cast(dt.uint32)


def _times(values: Triple) -> Expr:
    a, b, c = values
    return ir.mul(ir.mul(a, b), c)


def _apart(number: Expr, extents: Triple) -> Triple:
    """The three parts of a number that counts places (32 bits)."""
    _, height, width = (_small(n) for n in extents)
    rest = ir.idiv(number, width)
    return ir.idiv(rest, height), ir.irem(rest, height), ir.irem(number, width)


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
        self.rows = ir.mul(s.batch, _times(s.extents))
        self.depth = ir.mul(s.channels, _times(s.taps))
        self.a = ir.Buffer("slices_a", dtype, "scratch", const(STAGES * ROWS * BLOCK))
        self.b = ir.Buffer("slices_b", dtype, "scratch", const(STAGES * columns * BLOCK))
        self.stage = ir.Buffer("stage", float32, "scratch", const(STRIP * PITCH))
        self.sums = [ir.Register(f"c{i}", float32, lanes=True) for i in range(columns // 2)]

    def body(self, finish: Finish) -> list[Stmt]:
        s = self.s
        every = ir.idiv(ir.add(self.depth, const(BLOCK - 1)), const(BLOCK))
        first = ir.mul(self.piece, s.slices)
        stop = ir.minimum(ir.add(first, s.slices), every)
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in self.sums]
        for ahead in range(AHEAD):
            at = ir.add(first, const(ahead))
            out += [ir.If(at < stop, self.bring(f"ahead{ahead}", at)), ir.AsyncCommit()]
        q = ir.var("slice")
        stage, following = ir.irem(q, const(STAGES)), ir.add(q, const(AHEAD))
        left = ir.TileOperand(self.a, ir.mul(stage, const(ROWS * BLOCK)), True)
        right = ir.TileOperand(self.b, ir.mul(stage, const(self.columns * BLOCK)), True)
        body: list[Stmt] = [
            ir.AsyncWait(AHEAD - 1, fence=True),
            ir.TileProduct(self.sums, left, right, self.columns, BLOCK),
            ir.If(following < stop, self.bring("next", following)),
            ir.AsyncCommit(),
            ir.TileWait(self.sums, 0),
        ]
        return [*out, ir.For(q, first, stop, "serial", body), *self.leave(finish)]

    # -- slices -----------------------------------------------------------------------------------

    def bring(self, tag: str, q: Expr) -> list[Stmt]:
        """Begin to bring the q-th slice: 8 threads have a row of it."""
        s = self.s
        lane = ir.var(tag)
        row, run = ir.idiv(lane, const(BLOCK // RUN)), ir.irem(lane, const(BLOCK // RUN))
        start = ir.mul(q, const(BLOCK))
        k = ir.add(start, ir.mul(run, const(RUN)))
        # all runs of a whole slice are of one tap
        number, channels = _small(start if s.whole else k), _small(s.channels)
        tap, channel = ir.idiv(number, channels), ir.irem(number, channels)
        if s.whole:
            channel = ir.add(channel, _small(ir.mul(run, const(RUN))))
        taps = _apart(tap, s.taps)
        place = ir.add(ir.mul(ir.irem(q, const(STAGES)), const(ROWS * BLOCK)), _run_place(row, run))
        apart = THREADS * RUN // BLOCK  # rows
        body: list[Stmt] = []
        for number_ in range(ROWS // apart):
            down = const(number_ * apart)
            m = ir.add(ir.add(self.m0, row), down)
            index, inside = self.source(m, taps, channel)
            left = ir.select(inside & (k < self.depth), const(RUN), ZERO)
            to = ir.add(place, ir.mul(down, const(BLOCK)))
            body.append(ir.AsyncCopy(self.a, to, self.data, index, left))
        place = ir.add(
            ir.mul(ir.irem(q, const(STAGES)), const(self.columns * BLOCK)), _run_place(row, run)
        )
        for number_ in range(self.columns // apart):
            down = const(number_ * apart)
            o = ir.add(ir.add(self.o0, row), down)
            index = ir.add(
                ir.mul(ir.add(ir.mul(self.group, s.outputs), self.o0), self.depth),
                ir.add(ir.add(ir.mul(row, self.depth), k), ir.mul(down, self.depth)),
            )
            left = ir.select((o < s.outputs) & (k < self.depth), const(RUN), ZERO)
            to = ir.add(place, ir.mul(down, const(BLOCK)))
            body.append(ir.AsyncCopy(self.b, to, self.weights, index, left))
        return [ir.For(lane, ZERO, const(THREADS), "lanes", body)]

    def source(self, m: Expr, taps: Triple, channel: Expr) -> tuple[Expr, Expr]:
        """Where the data of a tap and a row lies, and whether there is any."""
        s = self.s
        places = _small(_times(s.extents))
        image = ir.idiv(_small(m), places)
        at = _apart(ir.irem(_small(m), places), s.extents)
        inside = m < self.rows
        matrix = ir.add(ir.mul(image, _small(s.groups)), _small(self.group))
        index = matrix
        for i, tap, extent, step, dilation, gap, low in zip(
            at, taps, s.space, s.stride, s.dilation, s.gap, s.low, strict=True
        ):
            # below zero is far above every extent
            where = ir.sub(ir.mul(i, _small(step)), _small(low))
            where = ir.add(where, ir.mul(tap, _small(dilation)))
            if gap is not ONE:
                inside = inside & ir.irem(where, _small(gap)).eq(0)
                where = ir.idiv(where, _small(gap))
            inside = inside & (where < _small(extent))
            index = ir.add(ir.mul(index, _small(extent)), where)
        index = ir.add(ir.mul(index, _small(s.channels)), channel)
        # what is not read must not lie far away either: it would be looked up all the same
        return ir.select(inside, index, const(0, dt.uint32)).cast(ir.INDEX), inside

    # -- results ----------------------------------------------------------------------------------

    def leave(self, finish: Finish) -> list[Stmt]:
        """A thread has one row of every strip and every other column of it."""
        s = self.s
        out: list[Stmt] = []
        for first in range(0, self.columns, STRIP):
            lane, thread = ir.var(f"lay{first}"), ir.var(f"out{first}")
            lay: list[Stmt] = []
            for i in range(STRIP // 2):
                row, column = ir.sum_place(lane, i)
                to = ir.add(ir.mul(column, const(PITCH)), row)
                lay.append(ir.Store(self.stage, to, ir.read(self.sums[first // 2 + i])))
            out.append(ir.For(lane, ZERO, const(THREADS), "lanes", lay))
            row, turn = ir.irem(thread, const(ROWS)), ir.idiv(thread, const(ROWS))
            m = ir.add(self.m0, row)
            places = _small(_times(s.extents))
            image = ir.idiv(_small(m), places).cast(ir.INDEX)
            d, h, w = _apart(ir.irem(_small(m), places), s.extents)
            at = (d.cast(ir.INDEX), h.cast(ir.INDEX), w.cast(ir.INDEX))
            stores: list[Stmt] = []
            for i in range(STRIP * ROWS // THREADS):
                column = ir.add(turn, const(i * THREADS // ROWS))
                o = ir.add(ir.add(self.o0, column), const(first))
                value = ir.load(self.stage, ir.add(ir.mul(column, const(PITCH)), row))
                done = finish(self.piece, self.group, image, at, o, value)
                stores.append(ir.If((m < self.rows) & (o < s.outputs), done))
            out.append(ir.For(thread, ZERO, const(THREADS), "lanes", stores))
        return out


def _run_place(row: Expr, run: Expr) -> Expr:
    """Where a run of a row lies in a slice (`ir.tile_place`)."""
    turned = ir.binary("xor", run, ir.irem(row, const(RUN)))
    return ir.add(ir.mul(row, const(BLOCK)), ir.mul(turned, const(RUN)))
