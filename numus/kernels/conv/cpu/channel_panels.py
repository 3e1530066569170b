"""Accumulators of vectors along output channels, and their transposed epilogue."""

from __future__ import annotations

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.common.register_transpose import transpose_registers
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.planes import ONE, ZERO, Task

TRANSPOSE_PIXELS = 256  # of a transposed chunk


class ChannelPanels:
    """Panels [pixel][out_channel] of a block of outputs: `row` pixels in a row, `plane` in the
    rows of an image, `pixels` in all. There is space for a vector of pixels, and one more, behind
    them.
    """

    def __init__(self, task: Task, row: Expr, plane: Expr, pixels: Expr) -> None:
        self.task, self.row, self.plane = task, row, plane
        tile = task.tile
        self.columns, self.width = const(tile.columns), const(tile.width)
        # whole vectors of pixels are transposed; rows of a tile past the end go behind them
        self.padding_row = pixels + self.width
        self.size = (self.padding_row + 1) * self.columns
        # rows of a transposed chunk: not a power of two, or they share cache sets
        self.pitch = const(TRANSPOSE_PIXELS + tile.width)
        self.transposed = ir.Buffer("transposed", task.dtype, "scratch", tile.width * self.pitch)

    def epilogue(
        self,
        acc: ir.Buffer,
        start: Expr,
        panel: Expr,
        place: tuple[Expr, Expr],
        origin: tuple[Expr, Expr],
        size: tuple[Expr, Expr],
        out_shape: tuple[Expr, Expr],
    ) -> list[Stmt]:
        """Stores of a panel, which begins at `start`: transposed, a vector of output channels at a
        time.

        `place` is (image, group), `origin` and `size` are those of the block along z and y,
        `out_shape` is (output channels, rows of an image).
        """
        tile, chunk = self.task.tile, const(TRANSPOSE_PIXELS)
        v, z, x0 = (ir.var(f"out_{name}") for name in ("vector", "z", "x0"))
        p, j, i, x = (ir.var(f"out_{name}") for name in ("pixel", "lane", "i", "x"))
        (image, group), (z0, y0), (depth, height) = place, origin, size
        out_channels, out_height = out_shape
        area = height * self.row
        x1 = ir.minimum(x0 + chunk, area)
        base = start + v * self.width + j
        at = z * self.plane + p
        rows = [ir.load(acc, base + (at + k) * self.columns) for k in range(tile.width)]
        lets, columns_out = transpose_registers(rows, j, self.task.dtype)
        stores = [
            ir.Store(self.transposed, k * self.pitch + (p - x0 + j), value)
            for k, value in enumerate(columns_out)
        ]
        vector = ir.For(j, ZERO, self.width, "lanes", [*lets, *stores], width=tile.width)
        transpose = ir.For(p, x0, x1, "serial", [vector], step=self.width)
        o0 = panel * self.columns + v * self.width
        value = ir.load(self.transposed, i * self.pitch + (x - x0))
        yx = y0 * self.row + x
        # addresses of row-major outputs simplify to `yx` again
        y, x_at = (ZERO, yx) if out_height is ONE else (yx // self.row, yx % self.row)
        store = self.task.store(image, group, o0 + i, z0 + z, y, x_at, value)
        channels_left = ir.minimum(self.width, out_channels - o0)
        out = ir.For(i, ZERO, channels_left, "serial", [ir.For(x, x0, x1, "lanes", store)])
        body: list[Stmt] = [ir.For(x0, ZERO, area, "serial", [transpose, out], step=chunk)]
        return planes.loop_nest(body, (v, const(tile.vectors)), (z, depth))
