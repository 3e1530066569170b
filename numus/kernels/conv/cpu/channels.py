"""Convolutions with vectors along outputs: see `kernels/convolution.py`.

A register tile is pixels x outputs: a pixel of the data is broadcast to the weights of neighbouring
outputs. So no vector is lost in margins or at the end of small images, strides cost nothing, and
the phases of spread data come together before anything is stored. The price is that results have
to be turned, outputs x pixels, on their way to memory.

Sums go over blocks of channels and taps, so short that the weights of a block stay in the first
cache while all pixels pass by.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.conv.cpu.planes import (
    ONE,
    ZERO,
    Planes,
    Read,
    Tile,
    Triple,
    digits,
    product,
    quotient,
    register_tile,
    rest,
)
from numus.kernels.conv.cpu.taps import Taps, for_each_tap

PIECE = 256  # pixels that are turned at a time


@dataclass(slots=True, kw_only=True)
class Spreading(Taps):
    """And how blocks, which are of whole lines, and panels are counted."""

    blocks: tuple[Expr, Expr]  # how many there are along the outer two axes
    depth: Expr  # entries that are summed up at a time
    panels: Expr  # of outputs


def pack_weights(
    s: Spreading, tile: Tile, dtype: DType, packed: ir.Buffer, g: Expr, weights: Read
) -> list[Stmt]:
    """Panel g of the weights of all groups and phases: a line of outputs for each entry."""
    columns = const(tile.columns)
    phases = product(s.gap)
    panel, phase = ir.irem(g, s.panels), rest(ir.idiv(g, s.panels), phases)
    group = ir.idiv(g, ir.mul(s.panels, phases))
    j = ir.var("pack_j")
    # columns beyond the last output are the last one again: their results are never stored
    o = ir.minimum(ir.add(ir.mul(panel, columns), j), ir.sub(s.outputs, ONE))

    def line(c: Expr, taps: Triple, _: list[Expr], here: Expr) -> list[Stmt]:
        to = ir.add(ir.mul(ir.add(ir.mul(g, s.entries), here), columns), j)
        store = ir.Store(packed, to, weights(group, o, c, *taps).cast(dtype))
        return [ir.For(j, ZERO, columns, "lanes", [store])]

    return for_each_tap(s, phase, ir.Register("entry", ir.INDEX), line)


def spreading(
    s: Spreading,
    tile: Tile,
    dtype: DType,
    planes: Planes,
    g: Expr,
    data: Read,
    packed: ir.Buffer,
    finish: Callable[..., list[Stmt]],
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g: `data(n, group, channel, z, y, x)`, the packed weights, and `finish(n,
    group, output, z, line, value)`, which stores an element; `line` counts along y and x.
    """
    return _Schedule(s, tile, dtype, planes, g, data, packed, finish).written()


class _Schedule:
    def __init__(
        self,
        s: Spreading,
        tile: Tile,
        dtype: DType,
        planes: Planes,
        g: Expr,
        data: Read,
        packed: ir.Buffer,
        finish: Callable[..., list[Stmt]],
    ) -> None:
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, planes
        self.data, self.packed, self.finish = data, packed, finish
        self.columns = const(tile.columns)
        self.group = ir.idiv(g, ir.mul(s.output_tasks, s.unit_tasks))
        output_task = ir.irem(ir.idiv(g, s.unit_tasks), s.output_tasks)
        self.first_panel = ir.mul(output_task, s.task_panels)
        self.last_panel = ir.minimum(ir.add(self.first_panel, s.task_panels), s.panels)
        self.first_unit = ir.mul(ir.irem(g, s.unit_tasks), s.task_units)
        self.phases = product(s.gap)
        self.phase = ir.var("phase")
        self.turn = digits(self.phase, s.gap)
        # a block of results, all phases: lines, and planes of lines
        self.line = s.extents[2]
        self.face = ir.mul(ir.mul(s.block[1], s.gap[1]), self.line)
        self.pixels = ir.mul(ir.mul(s.block[0], s.gap[0]), self.face)
        # whole vectors of pixels are turned; rows of a tile that do not exist go behind them
        self.spare = ir.add(self.pixels, const(tile.width))
        self.panel_size = ir.mul(ir.add(self.spare, ONE), self.columns)
        self.sums = ir.Buffer("sums", dtype, "scratch", ir.mul(s.task_panels, self.panel_size))
        turned = const(tile.width * _pitch(tile))
        self.turned = ir.Buffer("turned", dtype, "scratch", turned)
        self.offsets = ir.Buffer("offsets", ir.INDEX, "scratch", ir.mul(self.phases, s.entries))
        self.counts = ir.Buffer("counts", ir.INDEX, "scratch", self.phases)
        rows = ir.add(product(s.block), const(tile.rows))
        self.starts = ir.Buffer("starts", ir.INDEX, "scratch", rows)
        self.homes = ir.Buffer("homes", ir.INDEX, "scratch", rows)

    def written(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        """The statements of a task, and the memory it needs."""
        s = self.s
        u = ir.var("unit")
        stop = ir.minimum(ir.add(self.first_unit, s.task_units), s.units)
        body = [*self._tables(), ir.For(u, self.first_unit, stop, "serial", self._block(u))]
        buffers = [self.planes.buffer, self.sums, self.turned]
        return body, [*buffers, self.offsets, self.counts, self.starts, self.homes]

    def _tables(self) -> list[Stmt]:
        """Where every tap of every channel lies, from the start of a pixel."""
        entry = ir.Register("entry", ir.INDEX)
        table = ir.mul(self.phase, self.s.entries)

        def body(c: Expr, _: Triple, displacement: list[Expr], here: Expr) -> list[Stmt]:
            offset = ir.add(ir.mul(c, self.planes.size), self.planes.offset(displacement))
            return [ir.Store(self.offsets, ir.add(table, here), offset)]

        taps = for_each_tap(self.s, self.phase, entry, body)
        count = ir.Store(self.counts, self.phase, ir.read(entry))
        return [ir.For(self.phase, ZERO, self.phases, "serial", [*taps, count])]

    # -- one block --------------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        n = ir.var("image")
        first: Triple = (ir.var("block_z"), ir.var("block_y"), ZERO)
        per_image = ir.mul(*s.blocks)
        number = rest(u, per_image)
        at = (quotient(number, s.blocks[1]), rest(number, s.blocks[1]))
        lets: list[Stmt] = [ir.Let(n, quotient(u, per_image))]
        origin: list[Expr] = []
        for axis in range(3):
            if axis < 2:
                lets.append(ir.Let(first[axis], ir.mul(at[axis], s.block[axis])))
            origin.append(ir.var(f"origin_{'zyx'[axis]}"))
            start = ir.add(ir.mul(first[axis], s.stride[axis]), s.nearest[axis])
            lets.append(ir.Let(origin[axis], start))
        fill = self.planes.fill(
            s.channels,
            (origin[0], origin[1], origin[2]),
            s.space,
            lambda c, *at: self.data(n, self.group, c, *at),
        )
        k = ir.var("blank")
        blank = ir.For(
            k,
            ZERO,
            ir.mul(ir.sub(self.last_panel, self.first_panel), self.panel_size),
            "lanes",
            [ir.Store(self.sums, k, const(0, self.dtype))],
        )
        turns = ir.For(self.phase, ZERO, self.phases, "serial", self._phase(first))
        return [*lets, *fill, blank, turns, *self._stores(n, first)]

    def _phase(self, first: Triple) -> list[Stmt]:
        """All sums of one phase of a block."""
        s, rows = self.s, const(self.tile.rows)
        row = ir.Register("row", ir.INDEX)
        count = ir.var("rows")
        k0, panel, t = ir.var("k_start"), ir.var("panel"), ir.var("tile")
        entries = ir.load(self.counts, self.phase)
        k1 = ir.minimum(ir.add(k0, s.depth), entries)
        tiles = ir.For(t, ZERO, count, "serial", self._multiply(panel, t, k0, k1), step=rows)
        panels = ir.For(panel, self.first_panel, self.last_panel, "serial", [tiles])
        return [
            *self._rows(first, row),
            ir.Let(count, ir.read(row)),
            ir.For(k0, ZERO, entries, "serial", [panels], step=s.depth),
        ]

    def _rows(self, first: Triple, row: ir.Register) -> list[Stmt]:
        """Where the data of each pixel of a phase begins, and where its sums lie."""
        s = self.s
        q: Triple = (ir.var("row_z"), ir.var("row_y"), ir.var("row_x"))
        start = self.planes.offset([ir.mul(i, t) for i, t in zip(q, s.stride, strict=True)])
        z, y, x = (ir.add(ir.mul(i, gap), r) for i, gap, r in zip(q, s.gap, self.turn, strict=True))
        home = ir.add(ir.add(ir.mul(z, self.face), ir.mul(y, self.line)), x)
        here = ir.var("row_at")
        body: list[Stmt] = [
            ir.Let(here, ir.read(row)),
            ir.Store(self.starts, here, start),
            ir.Store(self.homes, here, ir.mul(home, self.columns)),
            ir.Set(row, ir.add(ir.read(row), ONE)),
        ]
        for axis in (2, 1, 0):
            gap = s.gap[axis]
            left = ir.add(ir.sub(s.extents[axis], self.turn[axis]), ir.sub(gap, ONE))
            stop = ir.minimum(s.block[axis], ir.sub(quotient(left, gap), first[axis]))
            body = [ir.For(q[axis], ZERO, stop, "serial", body)]
        more = ir.var("row_more")
        beyond = ir.add(ir.read(row), more)
        spare: list[Stmt] = [
            ir.Store(self.starts, beyond, ZERO),
            ir.Store(self.homes, beyond, ir.mul(self.spare, self.columns)),
        ]
        return [
            ir.Set(row, ZERO),
            *body,
            ir.For(more, ZERO, const(self.tile.rows), "serial", spare),
        ]

    def _multiply(self, panel: Expr, t: Expr, k0: Expr, k1: Expr) -> list[Stmt]:
        s, tile, k = self.s, self.tile, ir.var("entry")
        number = ir.add(ir.mul(self.group, self.phases), self.phase)
        number = ir.add(ir.mul(number, s.panels), panel)
        line0 = ir.mul(number, s.entries)
        table = ir.mul(self.phase, s.entries)
        starts = [ir.var(f"start{i}") for i in range(tile.rows)]
        names: list[Stmt] = [
            ir.Let(v, ir.load(self.starts, ir.add(t, const(i)))) for i, v in enumerate(starts)
        ]

        def step(lane: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            lets: list[Stmt] = []
            vectors = []
            base = ir.add(ir.mul(ir.add(line0, k), self.columns), lane)
            for v in range(tile.vectors):
                name = ir.var(f"weights{v}", self.dtype)
                where = ir.add(base, const(v * tile.width))
                lets.append(ir.Let(name, ir.load(self.packed, where)))
                vectors.append(name)
            at = ir.load(self.offsets, ir.add(table, k))
            return lets, [ir.load(self.planes.buffer, ir.add(v, at)) for v in starts], vectors

        first = ir.mul(ir.sub(panel, self.first_panel), self.panel_size)

        def home(lane: Expr, i: int, v: int) -> Expr:
            own = ir.load(self.homes, ir.add(t, const(i)))
            return ir.add(ir.add(ir.add(first, own), lane), const(v * tile.width))

        return [
            *names,
            *register_tile(tile, self.dtype, self.sums, [(k, k0, k1)], step, home),
        ]

    def _stores(self, n: Expr, first: Triple) -> list[Stmt]:
        """What a block came to, a vector of outputs at a time, turned and through the epilogue."""
        s, tile = self.s, self.tile
        width, piece = const(tile.width), const(PIECE)
        panel, v, z, x0 = (ir.var(f"out_{name}") for name in ("panel", "vector", "z", "x0"))
        p, j, i, x = (ir.var(f"out_{name}") for name in ("pixel", "lane", "i", "x"))
        z0, y0 = (ir.mul(first[axis], s.gap[axis]) for axis in (0, 1))
        depth, height = (
            ir.minimum(ir.mul(s.block[axis], s.gap[axis]), ir.sub(s.extents[axis], start))
            for axis, start in ((0, z0), (1, y0))
        )
        area = ir.mul(height, self.line)
        x1 = ir.minimum(ir.add(x0, piece), area)
        # -- a piece of the image, whole vectors of pixels
        base = ir.mul(ir.sub(panel, self.first_panel), self.panel_size)
        base = ir.add(ir.add(base, ir.mul(v, width)), j)
        at = ir.add(ir.mul(z, self.face), p)
        rows = [
            ir.load(self.sums, ir.add(base, ir.mul(ir.add(at, const(k)), self.columns)))
            for k in range(tile.width)
        ]
        lets, turned = transpose_registers(rows, j, self.dtype)
        pitch = const(_pitch(tile))
        here = ir.add(ir.sub(p, x0), j)
        keep = [
            ir.Store(self.turned, ir.add(ir.mul(const(k), pitch), here), value)
            for k, value in enumerate(turned)
        ]
        vector = ir.For(j, ZERO, width, "lanes", [*lets, *keep], width=tile.width)
        turn = ir.For(p, x0, x1, "serial", [vector], step=width)
        # -- its outputs
        o0 = ir.add(ir.mul(panel, self.columns), ir.mul(v, width))
        value = ir.load(self.turned, ir.add(ir.mul(i, pitch), ir.sub(x, x0)))
        line_at = ir.add(ir.mul(y0, self.line), x)
        store = self.finish(n, self.group, ir.add(o0, i), ir.add(z0, z), line_at, value)
        there = ir.minimum(width, ir.sub(s.outputs, o0))
        out = ir.For(i, ZERO, there, "serial", [ir.For(x, x0, x1, "lanes", store)])
        body: list[Stmt] = [ir.For(x0, ZERO, area, "serial", [turn, out], step=piece)]
        for k, start, stop in (
            (z, ZERO, depth),
            (v, ZERO, const(tile.vectors)),
            (panel, self.first_panel, self.last_panel),
        ):
            body = [ir.For(k, start, stop, "serial", body)]
        return body


def _pitch(tile: Tile) -> int:
    """From one output of a turned piece to the next: not a power of two, or they share sets."""
    return PIECE + tile.width
