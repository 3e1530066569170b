"""Convolution for groups of threads, of any dtype: a product whose right operand is never stored.

A group has a tile of outputs and places, shared out among its threads. Slices of weights and of
what the taps fall on go through the group's memory; the next ones are on their way while the
current ones are multiplied. Weights lie with outputs as neighbours, data with channels.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.attention.gpu.simt_tiles import AccumulatorTile, SmemTile, ThreadGrid
from numus.kernels.conv.gpu.implicit_gemm import Finish, Sizes, Windows, small
from numus.target import Target

LEAST = 8  # slices of a piece


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule as data."""

    threads: int
    outputs: int  # of the group's tile
    places: int
    depth: int  # of a slice
    pieces: int  # of k


def choose(target: Target, dtype: DType, groups: int, rows: int, outputs: int, depth: int) -> Plan:
    """The largest tiles of which there are enough to keep every unit busy; long sums in pieces."""
    threads = ThreadGrid.of(min(target.block_size, 256))
    best = None
    for own in (8, 4, 2) if dtype.itemsize <= 4 else (4, 2):
        down, across = own * threads.rows, own * threads.columns
        # slices are as deep as registers for what waits, and memory, allow
        slices = (4 if own == 8 else 8) * threads.count // max(down, across)
        while (
            slices > 4
            and 2 * SmemTile.bytes(dtype, slices, max(down, across)) > target.shared_bytes
        ):
            slices //= 2
        tiles = groups * -(-outputs // down) * -(-rows // across)
        most = max(1, -(-depth // slices) // LEAST)
        pieces = max(1, min(2 * target.num_cores // tiles, most))
        best = Plan(threads.count, down, across, slices, pieces)
        fits = outputs > down // 2 and rows > across // 2
        if fits and tiles * pieces >= target.num_cores:
            break
    assert best is not None
    return best


def convolution(
    plan: Plan,
    sizes: Sizes,
    dtype: DType,
    g: Expr,
    data: ir.Buffer,
    weights: ir.Buffer,
    finish: Finish,
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of group g, and its scratch; `dtype` is that of the computation."""
    group = _Group(plan, sizes, dtype, g, data, weights)
    return group.body(finish), [group.left.buffer, group.right.buffer]


class _Group:
    def __init__(
        self,
        plan: Plan,
        s: Sizes,
        dtype: DType,
        g: Expr,
        data: ir.Buffer,
        weights: ir.Buffer,
    ) -> None:
        self.plan, self.s, self.dtype, self.data, self.weights = plan, s, dtype, data, weights
        self.threads = ThreadGrid.of(plan.threads)
        tiles = ir.mul(s.row_tiles, s.column_tiles)
        which, inner = ir.idiv(g, tiles), ir.irem(g, tiles)
        self.group, self.piece = ir.idiv(which, s.pieces), ir.irem(which, s.pieces)
        # places run fastest: groups that run together share the weights they read
        self.m0 = ir.mul(ir.irem(inner, s.row_tiles), const(plan.places))
        self.o0 = ir.mul(ir.idiv(inner, s.row_tiles), const(plan.outputs))
        self.windows = Windows(s, self.group)
        self.left = SmemTile("slice_weights", dtype, plan.depth, plan.outputs)
        self.right = SmemTile("slice_data", dtype, plan.depth, plan.places)
        self.sums = AccumulatorTile("c", self.threads, dtype, plan.outputs, plan.places)

        def waiting(name: str, count: int) -> list[ir.Register]:
            return [ir.Register(f"{name}{i}", dtype, lanes=True) for i in range(count)]

        elements = plan.depth * plan.outputs, plan.depth * plan.places
        self.next_left = waiting("next_w", elements[0] // plan.threads)
        self.next_right = waiting("next_x", elements[1] // plan.threads)

    def body(self, finish: Finish) -> list[Stmt]:
        depth = const(self.plan.depth)
        every = ir.idiv(ir.add(self.windows.depth, const(self.plan.depth - 1)), depth)
        first = ir.mul(self.piece, self.s.slices)
        stop = ir.minimum(ir.add(first, self.s.slices), every)
        q = ir.var("slice")

        def multiply(lane: Expr) -> list[Stmt]:
            product = self.sums.add(lane, self.left, self.right)
            return [*self.fetch(lane, ir.add(q, const(1))), product]

        loop = [self.threads.loop("keep", self.keep), self.threads.loop("multiply", multiply)]
        return [
            *self.sums.clear(),
            self.threads.loop("first", lambda lane: self.fetch(lane, first)),
            ir.For(q, first, stop, "serial", loop),
            self.threads.loop("leave", lambda lane: self.leave(lane, finish)),
        ]

    # -- slices: a thread has one output and several k of weights, one k and several places of data

    def weight(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """The k, within a slice, and the output."""
        wide = const(self.plan.outputs)
        down = number * self.plan.threads // self.plan.outputs
        return ir.add(ir.idiv(lane, wide), const(down)), ir.irem(lane, wide)

    def datum(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """The k, within a slice, and the place."""
        deep = const(self.plan.depth)
        away = number * self.plan.threads // self.plan.depth
        return ir.irem(lane, deep), ir.add(ir.idiv(lane, deep), const(away))

    def fetch(self, lane: Expr, q: Expr) -> list[Stmt]:
        """Begin to load a slice; zeros for what is not there."""
        s = self.s
        zero, start = const(0, self.dtype), ir.mul(q, const(self.plan.depth))
        out: list[Stmt] = []
        for number, register in enumerate(self.next_left):
            k, o = self.weight(lane, number)
            k, o = ir.add(start, k), ir.add(self.o0, o)
            inside = (k < self.windows.depth) & (o < s.outputs)
            row = ir.add(ir.mul(self.group, self.windows.depth), k)
            value = ir.load(self.weights, ir.add(ir.mul(row, s.outputs), o), inside)
            out.append(ir.Set(register, ir.select(inside, value.cast(self.dtype), zero)))
        k, _ = self.datum(lane, 0)
        exists = ir.add(start, k) < self.windows.depth
        taps, channel = self.windows.tap(start if s.whole else ir.add(start, k))
        if s.whole:
            channel = ir.add(channel, small(k))
        for number, register in enumerate(self.next_right):
            m = ir.add(self.m0, self.datum(lane, number)[1])
            index, inside = self.windows.source(m, taps, channel)
            inside = inside & exists
            value = ir.load(self.data, index, inside)
            out.append(ir.Set(register, ir.select(inside, value.cast(self.dtype), zero)))
        return out

    def keep(self, lane: Expr) -> list[Stmt]:
        """Put what was loaded where the group finds it."""
        out: list[Stmt] = []
        for lines, waiting, place in (
            (self.left, self.next_left, self.weight),
            (self.right, self.next_right, self.datum),
        ):
            for number, register in enumerate(waiting):
                k, line = place(lane, number)
                out.append(ir.Store(lines.buffer, lines.at(k, line), ir.read(register)))
        return out

    def leave(self, lane: Expr, finish: Finish) -> list[Stmt]:
        out: list[Stmt] = []
        for j in range(self.sums.thread_columns):
            m = ir.add(self.m0, self.sums.column(lane, j))
            image, (d, h, w) = self.windows.place(m)
            at = (d.cast(ir.INDEX), h.cast(ir.INDEX), w.cast(ir.INDEX))
            for i in range(self.sums.thread_rows):
                o = ir.add(self.o0, self.sums.row(lane, i))
                value = self.sums.read(i, j)
                done = finish(self.piece, self.group, image.cast(ir.INDEX), at, o, value)
                out.append(ir.If((m < self.windows.rows) & (o < self.s.outputs), done))
        return out
