"""Convolutions with vectors along space: see `kernels/convolution.py`."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import (
    ONE,
    ZERO,
    Task,
    Triple,
    digits,
    product,
    quotient,
    register_tile,
    rest,
)
from numus.kernels.conv.cpu.taps import Taps, for_each_tap


@dataclass(slots=True, kw_only=True)
class Sliding(Taps):
    """And how blocks, which may be cut along all axes, are counted."""

    blocks: Triple  # how many there are


def sliding(s: Sliding, task: Task) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of a task: `finish(n, group, output, z, y, x, value)` stores an element."""
    return _Schedule(s, task).written()


class _Schedule:
    def __init__(self, s: Sliding, task: Task) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, task.planes
        self.data, self.weights, self.finish = task.data, task.weights, task.finish
        rows = self.rows = const(tile.rows)
        self.group = ir.idiv(g, ir.mul(s.output_tasks, s.unit_tasks))
        output_task = ir.irem(ir.idiv(g, s.unit_tasks), s.output_tasks)
        self.first_output = ir.mul(output_task, ir.mul(s.task_panels, rows))
        left = ir.idiv(ir.add(ir.sub(s.outputs, self.first_output), ir.sub(rows, ONE)), rows)
        self.panels = ir.minimum(s.task_panels, left)
        self.first_unit = ir.mul(ir.irem(g, s.unit_tasks), s.task_units)
        self.phases = product(s.gap)
        self.phase = ir.var("phase")
        self.turn = digits(self.phase, s.gap)
        self.panel_size = ir.mul(s.entries, rows)
        packed_size = ir.mul(ir.mul(self.phases, s.task_panels), self.panel_size)
        self.packed = ir.Buffer("packed", dtype, "scratch", packed_size)
        table_size = ir.mul(self.phases, s.entries)
        self.offsets = ir.Buffer("offsets", ir.INDEX, "scratch", table_size)
        self.counts = ir.Buffer("counts", ir.INDEX, "scratch", self.phases)
        self.result = ir.Buffer("tile", dtype, "scratch", const(tile.rows * tile.columns))

    def written(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        """The statements of a task, and the memory it needs."""
        s = self.s
        u = ir.var("unit")
        stop = ir.minimum(ir.add(self.first_unit, s.task_units), s.units)
        body = [*self._tables(), ir.For(u, self.first_unit, stop, "serial", self._block(u))]
        buffers = [self.planes.buffer, self.packed, self.offsets, self.counts, self.result]
        return body, buffers

    # -- once per task ----------------------------------------------------------------------------

    def _tables(self) -> list[Stmt]:
        """The offset of every tap of every channel, and the weights in the same order."""
        s = self.s
        entry = ir.Register("entry", ir.INDEX)
        i, panel = ir.var("pack_i"), ir.var("pack_panel")
        o = ir.add(self.first_output, ir.add(ir.mul(panel, self.rows), i))
        # rows beyond the last output are the last one again: their results are never stored
        output = ir.minimum(o, ir.sub(s.outputs, ONE))

        def body(c: Expr, taps: Triple, displacement: list[Expr], here: Expr) -> list[Stmt]:
            offset = ir.add(ir.mul(c, self.planes.size), self.planes.offset(displacement))
            weight = self.weights(self.group, output, c, *taps)
            to = ir.add(ir.add(self._panel(panel), ir.mul(here, self.rows)), i)
            store = ir.Store(self.packed, to, weight.cast(self.dtype))
            line = ir.For(i, ZERO, self.rows, "lanes", [store])
            return [
                ir.Store(self.offsets, ir.add(ir.mul(self.phase, s.entries), here), offset),
                ir.For(panel, ZERO, self.panels, "serial", [line]),
            ]

        taps = for_each_tap(s, self.phase, entry, body)
        count = ir.Store(self.counts, self.phase, ir.read(entry))
        return [ir.For(self.phase, ZERO, self.phases, "serial", [*taps, count])]

    def _panel(self, panel: Expr) -> Expr:
        """Where the weights of a panel of outputs begin."""
        number = ir.add(ir.mul(self.phase, self.s.task_panels), panel)
        return ir.mul(number, self.panel_size)

    # -- one block --------------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        n = ir.var("image")
        first: Triple = (ir.var("block_z"), ir.var("block_y"), ir.var("block_x"))
        origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
        per_image = product(s.blocks)
        blocks = digits(rest(u, per_image), s.blocks)
        lets: list[Stmt] = [ir.Let(n, quotient(u, per_image))]
        for axis in range(3):
            lets.append(ir.Let(first[axis], ir.mul(blocks[axis], s.block[axis])))
            start = ir.add(ir.mul(first[axis], s.stride[axis]), s.nearest[axis])
            lets.append(ir.Let(origin[axis], start))
        fill = self.planes.fill(
            s.channels, origin, s.space, lambda c, *at: self.data(n, self.group, c, *at)
        )
        turns = ir.For(self.phase, ZERO, self.phases, "serial", self._phase(n, first))
        return [*lets, *fill, turns]

    def _phase(self, n: Expr, first: Triple) -> list[Stmt]:
        """All results of one phase of a block: its planes as one line, tile by tile."""
        s = self.s
        size: Triple = (ir.var("depth"), ir.var("height"), ir.var("width"))
        lets: list[Stmt] = []
        for axis in range(3):
            gap = s.gap[axis]
            left = ir.add(ir.sub(s.extents[axis], self.turn[axis]), ir.sub(gap, ONE))
            total = ir.sub(quotient(left, gap), first[axis])
            lets.append(ir.Let(size[axis], ir.minimum(s.block[axis], total)))
        line = self.planes.extents[2]
        area = ir.mul(self.planes.extents[1], line)
        face = ir.var("face")  # from the first to the last result of an image
        lets.append(ir.Let(face, ir.add(ir.mul(ir.sub(size[1], ONE), line), size[2])))
        flat = ir.add(ir.mul(ir.sub(size[0], ONE), area), face)
        p, panel = ir.var("pixel"), ir.var("panel")
        stores = self._stores(n, first, size, face, p, panel)
        multiply = self._multiply(p, panel)
        panels = ir.For(panel, ZERO, self.panels, "serial", [*multiply, *stores])
        step = const(self.tile.columns)
        return [*lets, ir.For(p, ZERO, flat, "serial", [panels], step=step)]

    def _multiply(self, p: Expr, panel: Expr) -> list[Stmt]:
        tile, r = self.tile, ir.var("entry")
        first = self._panel(panel)
        table = ir.mul(self.phase, self.s.entries)

        def step(j: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            at = ir.add(ir.load(self.offsets, ir.add(table, r)), p)
            lets: list[Stmt] = []
            pixels = []
            for v in range(tile.vectors):
                name = ir.var(f"pixels{v}", self.dtype)
                where = ir.add(ir.add(at, j), const(v * tile.width))
                lets.append(ir.Let(name, ir.load(self.planes.buffer, where)))
                pixels.append(name)
            base = ir.add(first, ir.mul(r, self.rows))
            factors = [ir.load(self.packed, ir.add(base, const(i))) for i in range(tile.rows)]
            return lets, factors, pixels

        loops = [(r, ZERO, ir.load(self.counts, self.phase))]
        return register_tile(tile, self.dtype, self.result, loops, step)

    def _stores(
        self, n: Expr, first: Triple, size: Triple, face: Expr, p: Expr, panel: Expr
    ) -> list[Stmt]:
        """The part of a register tile that is results, image by image, through the epilogue."""
        s, columns, line = self.s, const(self.tile.columns), self.planes.extents[2]
        area = ir.mul(self.planes.extents[1], line)
        z, i = ir.var("out_z"), ir.var("out_i")
        o = ir.add(self.first_output, ir.add(ir.mul(panel, self.rows), i))
        outputs = ir.sub(s.outputs, ir.add(self.first_output, ir.mul(panel, self.rows)))
        begin, end = ir.var("out_begin"), ir.var("out_end")  # of the tile, within the image
        passed = ir.sub(p, ir.mul(z, area))
        lets: list[Stmt] = [
            ir.Let(begin, ir.maximum(passed, 0)),
            ir.Let(end, ir.minimum(ir.add(passed, columns), face)),
        ]
        base = ir.sub(ir.mul(i, columns), passed)

        def stored(y: Expr, x: Expr, spot: Expr) -> list[Stmt]:
            at = [
                ir.add(ir.mul(q, gap), r)
                for q, gap, r in zip((ir.add(first[0], z), y, x), s.gap, self.turn, strict=True)
            ]
            value = ir.load(self.result, ir.add(base, spot))
            return self.finish(n, self.group, o, *at, value)

        y, x = ir.var("out_y"), ir.var("out_x")
        y0, y1 = ir.var("out_y0"), ir.var("out_y1")
        lets.append(ir.Let(y0, ir.idiv(begin, line)))
        lets.append(ir.Let(y1, ir.idiv(ir.add(end, ir.sub(line, ONE)), line)))
        before = ir.mul(y, line)
        store = stored(ir.add(first[1], y), ir.add(first[2], x), ir.add(before, x))
        low = ir.maximum(ir.sub(begin, before), 0)
        high = ir.minimum(ir.sub(end, before), size[2])
        body: list[Stmt] = [ir.For(y, y0, y1, "serial", [ir.For(x, low, high, "lanes", store)])]
        body = [*lets, ir.For(i, ZERO, ir.minimum(self.rows, outputs), "serial", body)]
        if s.block[0] is ONE:
            return [ir.Let(z, ZERO), *body]
        last = ir.minimum(ir.add(ir.idiv(ir.add(p, ir.sub(columns, ONE)), area), ONE), size[0])
        return [ir.For(z, ir.idiv(p, area), last, "serial", body)]
