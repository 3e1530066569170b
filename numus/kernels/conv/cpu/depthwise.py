"""Depthwise convolution, NCHW: vectors along rows, a column of them in registers.

A vector of input is loaded once for all taps of a column of the window: each of its products goes
to another row of outputs. In `spatial.py`, where there is a single output channel to each input,
every product would load one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.planes import ZERO, Task, Triple, delinearize, mod, volume
from numus.kernels.conv.cpu.taps import TapKernel, TapSizes


@dataclass(frozen=True, slots=True)
class TapRows:
    """Compile-time sizes: the rows of outputs of a register tile, and of the window."""

    rows: int
    taps: int
    stride: int
    dilation: int

    def reads(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """Output rows and taps that each row of input planes serves, by its stride phase and its
        number."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for tap in range(self.taps):
            down, phase = divmod(tap * self.dilation, self.stride)
            for row in range(self.rows):
                found.setdefault((phase, down + row), []).append((row, tap))
        return dict(sorted(found.items()))


class DepthwiseKernel(TapKernel):
    """One input channel to a group; panels are single output channels."""

    def __init__(self, s: TapSizes, task: Task, tile: TapRows) -> None:
        super().__init__(s, task)
        self.tap_rows = tile
        self.first_channel = self.panel_task * s.panels_per_task
        self.panels = ir.minimum(s.panels_per_task, s.out_channels - self.first_channel)
        self.packed = ir.Buffer("packed", self.dtype, "scratch", s.panels_per_task * s.k_size)
        size = const(tile.rows * self.tile.width)
        self.result = ir.Buffer("tile", self.dtype, "scratch", size)
        self.scratch = [self.planes.buffer, self.packed, self.result]

    def _weight(self, panel: Expr, x: Expr, y: Expr | int) -> Expr:
        """Where a weight is packed: those of a column one after the other."""
        return (panel * self.s.taps[2] + x) * self.tap_rows.taps + y

    def _tables(self) -> list[Stmt]:
        panel, y, x = ir.var("pack_panel"), ir.var("pack_y"), ir.var("pack_x")
        o = self.first_channel + panel
        weight = self.task.weights(self.group, o, ZERO, ZERO, y, x).cast(self.dtype)
        store = ir.Store(self.packed, self._weight(panel, x, y), weight)
        rows = const(self.tap_rows.taps)
        return planes.loop_nest([store], (panel, self.panels), (y, rows), (x, self.s.taps[2]))

    def _block(self, u: Expr) -> list[Stmt]:
        s, per_image = self.s, volume(self.s.blocks)
        load = self._load_block(u, per_image, delinearize(mod(u, per_image), s.blocks))
        panel, y, x = ir.var("panel"), ir.var("tile_y"), ir.var("tile_x")
        height, width = ir.var("height"), ir.var("width")
        tile = [*self._multiply(panel, y, x), *self._stores(panel, y, x, (height, width))]
        across = ir.For(x, ZERO, width, "serial", tile, step=const(self.tile.width))
        down = ir.For(y, ZERO, height, "serial", [across], step=const(self.tap_rows.rows))
        return [
            *load,
            ir.Let(height, ir.minimum(s.block[1], s.out_size[1] - self.first[1])),
            ir.Let(width, ir.minimum(s.block[2], s.out_size[2] - self.first[2])),
            *planes.loop_nest([down], (panel, self.panels)),
        ]

    def _multiply(self, panel: Expr, y: Expr, x: Expr) -> list[Stmt]:
        """Sums of a column of vectors, to `result`."""
        tile, lane, tap = self.tap_rows, ir.var("lane"), ir.var("tap_x")
        sums = [ir.Register(f"c{row}", self.dtype, lanes=True) for row in range(tile.rows)]
        weights = [ir.var(f"w{k}", self.dtype) for k in range(tile.taps)]
        inner: list[Stmt] = [
            ir.Let(w, ir.load(self.packed, self._weight(panel, tap, k)))
            for k, w in enumerate(weights)
        ]
        at = y * self.planes.size[2] + x + lane
        along = tap * self.s.dilation[2]
        for n, ((phase, row), uses) in enumerate(tile.reads().items()):
            down = const(row * tile.stride + phase)
            pixels = ir.var(f"pixels{n}", self.dtype)
            offset = self.planes.offset((ZERO, down, along))
            inner.append(ir.Let(pixels, ir.load(self.planes.buffer, offset + at)))
            inner += [self._add(sums[to], weights[k], pixels) for to, k in uses]
        store = [
            ir.Store(self.result, lane + row * self.tile.width, ir.read(c))
            for row, c in enumerate(sums)
        ]
        body = [
            *(ir.Set(c, const(0, self.dtype)) for c in sums),
            ir.For(tap, ZERO, self.s.taps[2], "serial", inner),
            *store,
        ]
        return [ir.For(lane, ZERO, const(self.tile.width), "lanes", body)]

    def _add(self, to: ir.Register, weight: Expr, pixels: Expr) -> Stmt:
        return ir.Set(to, ir.fma(weight, pixels, ir.read(to)))

    def _stores(self, panel: Expr, y: Expr, x: Expr, size: Sequence[Expr]) -> list[Stmt]:
        """The tile through the epilogue."""
        row, column = ir.var("out_y"), ir.var("out_x")
        value = ir.load(self.result, row * self.tile.width + column)
        first: Triple = self.first
        at = (first[0], first[1] + y + row, first[2] + x + column)
        o = self.first_channel + panel
        store = self.task.store(self.image, self.group, o, *at, value)
        across = ir.minimum(size[1] - x, self.tile.width)
        lines: list[Stmt] = [ir.For(column, ZERO, across, "lanes", store)]
        return planes.loop_nest(lines, (row, ir.minimum(size[0] - y, self.tap_rows.rows)))
