"""Direct convolution, NCHW: vectors along space (`planes.py`).

Rows of a block are contiguous: a vector may span two of them, and the outputs of the padding in
between are computed and not stored.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import (
    ONE,
    ZERO,
    Task,
    Triple,
    delinearize,
    floordiv,
    load_vectors,
    mod,
    register_tile,
    volume,
)
from numus.kernels.conv.cpu.taps import TapSizes, for_each_tap


@dataclass(slots=True, kw_only=True)
class SpatialSizes(TapSizes):
    """Launch arguments; blocks split all axes of space."""

    blocks: Triple


def conv_spatial(s: SpatialSizes, task: Task) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Body of a task, and its scratch: `store(n, group, out_channel, z, y, x, value)`."""
    return _Kernel(s, task).lower()


class _Kernel:
    def __init__(self, s: SpatialSizes, task: Task) -> None:
        g, tile, dtype = task.g, task.tile, task.dtype
        self.s, self.tile, self.dtype, self.planes = s, tile, dtype, task.planes
        self.data, self.weights, self.store = task.data, task.weights, task.store
        rows = self.rows = const(tile.rows)
        self.group = g // (s.panel_tasks * s.block_tasks)
        panel_task = g // s.block_tasks % s.panel_tasks
        self.first_channel = panel_task * (s.panels_per_task * rows)
        remaining = (s.out_channels - self.first_channel + (rows - 1)) // rows
        self.panels = ir.minimum(s.panels_per_task, remaining)
        self.first_block = g % s.block_tasks * s.blocks_per_task
        self.phases = volume(s.lhs_dilation)
        self.phase = ir.var("phase")
        self.phase_at = delinearize(self.phase, s.lhs_dilation)
        self.panel_size = s.k_size * rows
        packed_size = self.phases * s.panels_per_task * self.panel_size
        self.packed = ir.Buffer("packed", dtype, "scratch", packed_size)
        table_size = self.phases * s.k_size
        self.offsets = ir.Buffer("offsets", ir.INDEX, "scratch", table_size)
        self.k_counts = ir.Buffer("k_counts", ir.INDEX, "scratch", self.phases)
        self.result = ir.Buffer("tile", dtype, "scratch", const(tile.rows * tile.columns))

    def lower(self) -> tuple[list[Stmt], list[ir.Buffer]]:
        s = self.s
        u = ir.var("block")
        stop = ir.minimum(self.first_block + s.blocks_per_task, s.num_blocks)
        body = [*self._tables(), ir.For(u, self.first_block, stop, "serial", self._block(u))]
        buffers = [self.planes.buffer, self.packed, self.offsets, self.k_counts, self.result]
        return body, buffers

    # -- tables of a task -------------------------------------------------------------------------

    def _tables(self) -> list[Stmt]:
        """Offsets of all taps, and weights packed in their order."""
        s = self.s
        k_index = ir.Register("k_index", ir.INDEX)
        i, panel = ir.var("pack_i"), ir.var("pack_panel")
        o = self.first_channel + (panel * self.rows + i)
        # rows past the last output channel repeat it: their results are not stored
        output = ir.minimum(o, s.out_channels - 1)

        def body(c: Expr, taps: Triple, displacement: list[Expr], index: Expr) -> list[Stmt]:
            offset = c * self.planes.channel_size + self.planes.offset(displacement)
            weight = self.weights(self.group, output, c, *taps)
            to = self._panel_start(panel) + index * self.rows + i
            store = ir.Store(self.packed, to, weight.cast(self.dtype))
            row = ir.For(i, ZERO, self.rows, "lanes", [store])
            return [
                ir.Store(self.offsets, self.phase * s.k_size + index, offset),
                ir.For(panel, ZERO, self.panels, "serial", [row]),
            ]

        taps = for_each_tap(s, self.phase, k_index, body)
        count = ir.Store(self.k_counts, self.phase, ir.read(k_index))
        return [ir.For(self.phase, ZERO, self.phases, "serial", [*taps, count])]

    def _panel_start(self, panel: Expr) -> Expr:
        """Start of a panel of packed weights."""
        number = self.phase * self.s.panels_per_task + panel
        return number * self.panel_size

    # -- one block --------------------------------------------------------------------------------

    def _block(self, u: Expr) -> list[Stmt]:
        s = self.s
        n = ir.var("image")
        first: Triple = (ir.var("block_z"), ir.var("block_y"), ir.var("block_x"))
        origin: Triple = (ir.var("origin_z"), ir.var("origin_y"), ir.var("origin_x"))
        per_image = volume(s.blocks)
        blocks = delinearize(mod(u, per_image), s.blocks)
        lets: list[Stmt] = [ir.Let(n, floordiv(u, per_image))]
        for axis in range(3):
            lets.append(ir.Let(first[axis], blocks[axis] * s.block[axis]))
            start = first[axis] * s.stride[axis] + s.tap_origin[axis]
            lets.append(ir.Let(origin[axis], start))
        fill = self.planes.fill(
            s.in_channels, origin, s.in_size, lambda c, *at: self.data(n, self.group, c, *at)
        )
        phases = ir.For(self.phase, ZERO, self.phases, "serial", self._phase(n, first))
        return [*lets, *fill, phases]

    def _phase(self, n: Expr, first: Triple) -> list[Stmt]:
        """One phase of a block: its flattened planes, tile by tile."""
        s = self.s
        size: Triple = (ir.var("depth"), ir.var("height"), ir.var("width"))
        lets: list[Stmt] = []
        for axis in range(3):
            dilation = s.lhs_dilation[axis]
            remaining = s.out_size[axis] - self.phase_at[axis] + (dilation - 1)
            total = floordiv(remaining, dilation) - first[axis]
            lets.append(ir.Let(size[axis], ir.minimum(s.block[axis], total)))
        row = self.planes.size[2]
        area = self.planes.size[1] * row
        plane = ir.var("plane")  # from the first to the last output of an image
        lets.append(ir.Let(plane, (size[1] - 1) * row + size[2]))
        flat = (size[0] - 1) * area + plane
        p, panel = ir.var("pixel"), ir.var("panel")
        stores = self._stores(n, first, size, plane, p, panel)
        multiply = self._multiply(p, panel)
        panels = ir.For(panel, ZERO, self.panels, "serial", [*multiply, *stores])
        step = const(self.tile.columns)
        return [*lets, ir.For(p, ZERO, flat, "serial", [panels], step=step)]

    def _multiply(self, p: Expr, panel: Expr) -> list[Stmt]:
        tile, r = self.tile, ir.var("k_index")
        first = self._panel_start(panel)
        table = self.phase * self.s.k_size

        def step(j: Expr) -> tuple[list[Stmt], list[Expr], list[Expr]]:
            at = ir.load(self.offsets, table + r) + p
            lets, pixels = load_vectors("pixels", self.planes.buffer, at + j, tile)
            base = first + r * self.rows
            factors = [ir.load(self.packed, base + i) for i in range(tile.rows)]
            return lets, factors, pixels

        loops = [(r, ZERO, ir.load(self.k_counts, self.phase))]
        return register_tile(tile, self.dtype, self.result, loops, step)

    def _stores(
        self, n: Expr, first: Triple, size: Triple, plane: Expr, p: Expr, panel: Expr
    ) -> list[Stmt]:
        """Epilogue of a register tile, image by image."""
        s, columns, row = self.s, const(self.tile.columns), self.planes.size[2]
        area = self.planes.size[1] * row
        z, i = ir.var("out_z"), ir.var("out_i")
        o = self.first_channel + (panel * self.rows + i)
        outputs = s.out_channels - (self.first_channel + panel * self.rows)
        first_pixel, last_pixel = ir.var("out_begin"), ir.var("out_end")
        offset = p - z * area
        lets: list[Stmt] = [
            ir.Let(first_pixel, ir.maximum(offset, 0)),
            ir.Let(last_pixel, ir.minimum(offset + columns, plane)),
        ]
        base = i * columns - offset

        z_at = first[0] + z

        def store_at(y: Expr, x: Expr, at_: Expr) -> list[Stmt]:
            at = [
                i * d + r
                for i, d, r in zip((z_at, y, x), s.lhs_dilation, self.phase_at, strict=True)
            ]
            value = ir.load(self.result, base + at_)
            return self.store(n, self.group, o, *at, value)

        y, x = ir.var("out_y"), ir.var("out_x")
        y0, y1 = ir.var("out_y0"), ir.var("out_y1")
        lets.append(ir.Let(y0, first_pixel // row))
        lets.append(ir.Let(y1, (last_pixel + (row - 1)) // row))
        before = y * row
        store = store_at(first[1] + y, first[2] + x, before + x)
        x0 = ir.maximum(first_pixel - before, 0)
        x1 = ir.minimum(last_pixel - before, size[2])
        body: list[Stmt] = [ir.For(y, y0, y1, "serial", [ir.For(x, x0, x1, "lanes", store)])]
        body = [*lets, ir.For(i, ZERO, ir.minimum(self.rows, outputs), "serial", body)]
        if s.block[0] is ONE:
            return [ir.Let(z, ZERO), *body]
        last = ir.minimum((p + (columns - 1)) // area + 1, size[0])
        return [ir.For(z, p // area, last, "serial", body)]
