"""Direct convolution, NCHW: vectors along space (`planes.py`).

Rows of a block are contiguous: a vector may span two of them, and the outputs of the padding in
between are computed and not stored.
"""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.planes import ONE, ZERO, Task, Triple, delinearize, mod, volume
from numus.kernels.conv.cpu.taps import SUM_BLOCK, TapKernel, TapSizes


class SpatialKernel(TapKernel):
    """`sum_blocked`: the reduction is longer than a SUM_BLOCK, and added up block by block."""

    def __init__(self, s: TapSizes, task: Task, sum_blocked: bool) -> None:
        super().__init__(s, task)
        self.sum_blocked = sum_blocked
        rows = self.rows = const(self.tile.rows)
        self.first_channel = self.panel_task * (s.panels_per_task * rows)
        remaining = (s.out_channels - self.first_channel + (rows - 1)) // rows
        self.panels = ir.minimum(s.panels_per_task, remaining)
        size = self.phases * s.panels_per_task * (s.k_size * rows)
        self.packed = ir.Buffer("packed", self.dtype, "scratch", size)
        size = const(self.tile.rows * self.tile.columns)
        self.result = ir.Buffer("tile", self.dtype, "scratch", size)
        buffers = [self.planes.buffer, self.packed, self.offsets, self.k_counts]
        self.scratch = [*buffers, self.result]

    def _panel_start(self, panel: Expr) -> Expr:
        """Start of a panel of packed weights."""
        return (self.phase * self.s.panels_per_task + panel) * (self.s.k_size * self.rows)

    def _pack(self, c: Expr, taps: Triple, index: Expr) -> list[Stmt]:
        i, panel = ir.var("pack_i"), ir.var("pack_panel")
        o = self.first_channel + (panel * self.rows + i)
        # rows past the last output channel repeat it: their results are not stored
        output = ir.minimum(o, self.s.out_channels - 1)
        weight = self.task.weights(self.group, output, c, *taps).cast(self.dtype)
        to = self._panel_start(panel) + index * self.rows + i
        row = ir.For(i, ZERO, self.rows, "lanes", [ir.Store(self.packed, to, weight)])
        return planes.loop_nest([row], (panel, self.panels))

    def _block(self, u: Expr) -> list[Stmt]:
        per_image = volume(self.s.blocks)
        load = self._load_block(u, per_image, delinearize(mod(u, per_image), self.s.blocks))
        return [*load, *self._each_phase(self._phase())]

    def _phase(self) -> list[Stmt]:
        """One phase of a block: its flattened planes, tile by tile."""
        size: Triple = (ir.var("depth"), ir.var("height"), ir.var("width"))
        lets: list[Stmt] = [ir.Let(n, self._phase_outputs(axis)) for axis, n in enumerate(size)]
        _, rows, row = self.planes.size
        plane = ir.var("plane")  # from the first to the last output of an image
        lets.append(ir.Let(plane, (size[1] - 1) * row + size[2]))
        p, panel = ir.var("pixel"), ir.var("panel")
        tile = [*self._multiply(p, panel), *self._stores(size, plane, p, panel)]
        panels = planes.loop_nest(tile, (panel, self.panels))
        flat, step = (size[0] - 1) * (rows * row) + plane, const(self.tile.columns)
        return [*lets, ir.For(p, ZERO, flat, "serial", panels, step=step)]

    def _multiply(self, p: Expr, panel: Expr) -> list[Stmt]:
        tile, r = self.tile, ir.var("k_index")

        def step(j: Expr) -> planes.Factors:
            at = ir.load(self.offsets, self.table + r) + p
            lets, pixels = planes.load_vectors("pixels", self.planes.buffer, at + j, tile)
            base = self._panel_start(panel) + r * self.rows
            return lets, [ir.load(self.packed, base + i) for i in range(tile.rows)], pixels

        def finish(lane: Expr, acc: planes.Registers) -> list[Stmt]:
            at = {(i, v): lane + (i * tile.columns + v * tile.width) for i, v in acc}
            first: list[Stmt] = [ir.Store(self.result, at[x], ir.read(c)) for x, c in acc.items()]
            if not self.sum_blocked:
                return first
            # totals stay in memory: in registers, LLVM copies and spills them between blocks
            later: list[Stmt] = [
                ir.Store(self.result, at[x], ir.load(self.result, at[x]) + ir.read(c))
                for x, c in acc.items()
            ]
            return [ir.If(k0 > 0, later), ir.If(k0.eq(0), first)]

        k0, entries = ir.var("k_start"), ir.load(self.k_counts, self.phase)
        if not self.sum_blocked:
            return planes.register_tile(tile, self.dtype, [(r, ZERO, entries)], step, finish)
        loops = [(r, k0, ir.minimum(k0 + SUM_BLOCK, entries))]
        block = planes.register_tile(tile, self.dtype, loops, step, finish)
        return [ir.For(k0, ZERO, entries, "serial", block, step=const(SUM_BLOCK))]

    def _stores(self, size: Triple, plane: Expr, p: Expr, panel: Expr) -> list[Stmt]:
        """Epilogue of a register tile, image by image."""
        s, columns, row = self.s, const(self.tile.columns), self.planes.size[2]
        area = self.planes.size[1] * row
        z, y, x = planes.triple_vars("out_")
        i, y0, y1 = ir.var("out_i"), ir.var("out_y0"), ir.var("out_y1")
        first_pixel, last_pixel = ir.var("out_begin"), ir.var("out_end")
        o = self.first_channel + (panel * self.rows + i)
        outputs = s.out_channels - (self.first_channel + panel * self.rows)
        offset, before = p - z * area, y * row
        at = [
            (first + k) * d + r
            for first, k, d, r in zip(
                *(self.first, (z, y, x), s.lhs_dilation, self.phase_at), strict=True
            )
        ]
        value = ir.load(self.result, i * columns - offset + (before + x))
        store = self.task.store(self.image, self.group, o, *at, value)
        x0 = ir.maximum(first_pixel - before, 0)
        x1 = ir.minimum(last_pixel - before, size[2])
        lines = [ir.For(y, y0, y1, "serial", [ir.For(x, x0, x1, "lanes", store)])]
        body: list[Stmt] = [
            ir.Let(first_pixel, ir.maximum(offset, 0)),
            ir.Let(last_pixel, ir.minimum(offset + columns, plane)),
            ir.Let(y0, first_pixel // row),
            ir.Let(y1, (last_pixel + (row - 1)) // row),
            *planes.loop_nest([*lines], (i, ir.minimum(self.rows, outputs))),
        ]
        if s.block[0] is ONE:
            return [ir.Let(z, ZERO), *body]
        last = ir.minimum((p + (columns - 1)) // area + 1, size[0])
        return [ir.For(z, p // area, last, "serial", body)]
