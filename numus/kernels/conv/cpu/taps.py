"""Reduction over channels and taps of direct convolutions, as a table of offsets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.dtypes import bool_
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu import planes
from numus.kernels.conv.cpu.planes import ONE, ZERO, Task, Triple, delinearize, floordiv, volume

SUM_BLOCK = 128  # channels × taps in one running sum


@dataclass(slots=True, kw_only=True)
class TapSizes:
    """Launch arguments. Triples are (z, y, x); phases are those of lhs_dilation."""

    in_channels: Expr  # of a group
    out_channels: Expr
    in_size: Triple
    out_size: Triple
    taps: Triple
    stride: Triple
    dilation: Triple
    lhs_dilation: Triple
    padding_low: Triple
    tap_origin: Triple  # the first input element of a block, from its origin
    block: Triple  # outputs of one phase
    blocks: Triple  # of an image
    k_size: Expr  # in_channels × taps of a phase, at most
    k_block: Expr  # of packed weights
    k_group: Expr  # of several blocks, whose sums are added up first
    panels: Expr  # of packed weights
    panels_per_task: Expr  # panels of output channels
    panel_tasks: Expr
    num_blocks: Expr  # of all images
    blocks_per_task: Expr
    block_tasks: Expr


def _displacement(s: TapSizes, at: Triple, taps: Triple) -> tuple[list[Expr], Expr]:
    """Displacement of a tap from the block's origin; true where it hits an input element."""
    hits, displacement = const(True, bool_), []
    for r, t, k, d, low, lhs_dilation, origin in zip(
        *(at, s.stride, taps, s.dilation, s.padding_low, s.lhs_dilation, s.tap_origin), strict=True
    ):
        i = r * t + k * d - low
        if lhs_dilation is not ONE:
            hits = hits & (i % lhs_dilation).eq(ZERO)
        displacement.append(floordiv(i, lhs_dilation) - origin)
    return displacement, hits


def for_each_tap(
    s: TapSizes, phase: Expr, entry: ir.Register, body: Callable[..., list[Stmt]]
) -> list[Stmt]:
    """`body(channel, taps, displacement, index)` for each tap of a phase, in order."""
    c, taps, index = ir.var("tap_c"), planes.triple_vars("tap_"), ir.var("entry_at")
    displacement, hits = _displacement(s, delinearize(phase, s.lhs_dilation), taps)
    inner: list[Stmt] = [
        ir.Let(index, ir.read(entry)),
        *body(c, taps, displacement, index),
        ir.Set(entry, ir.read(entry) + 1),
    ]
    if hits.op != "const":
        inner = [ir.If(hits, inner)]
    loops = ((c, s.in_channels), *zip(taps, s.taps, strict=True))
    return [ir.Set(entry, ZERO), *planes.loop_nest(inner, *loops)]


class TapKernel:
    """A task of direct convolution: the input of a block in planes, all taps from a table."""

    scratch: list[ir.Buffer]

    def __init__(self, s: TapSizes, task: Task) -> None:
        self.s, self.task, self.planes = s, task, task.planes
        self.tile, self.dtype = task.tile, task.dtype
        self.group = task.g // (s.panel_tasks * s.block_tasks)
        self.panel_task = task.g // s.block_tasks % s.panel_tasks
        self.phases, self.phase = volume(s.lhs_dilation), ir.var("phase")
        self.phase_at = delinearize(self.phase, s.lhs_dilation)
        self.table = self.phase * s.k_size
        self.offsets = ir.Buffer("offsets", ir.INDEX, "scratch", self.phases * s.k_size)
        self.k_counts = ir.Buffer("k_counts", ir.INDEX, "scratch", self.phases)

    def body(self) -> list[Stmt]:
        s, u = self.s, ir.var("block")
        first = self.task.g % s.block_tasks * s.blocks_per_task
        stop = ir.minimum(first + s.blocks_per_task, s.num_blocks)
        return [*self._tables(), ir.For(u, first, stop, "serial", self._block(u))]

    def _tables(self) -> list[Stmt]:
        """Offsets of all taps of all channels from a pixel, and weights in their order."""
        k_index = ir.Register("k_index", ir.INDEX)

        def body(c: Expr, taps: Triple, displacement: list[Expr], index: Expr) -> list[Stmt]:
            offset = c * self.planes.channel_size + self.planes.offset(displacement)
            return [ir.Store(self.offsets, self.table + index, offset), *self._pack(c, taps, index)]

        taps = for_each_tap(self.s, self.phase, k_index, body)
        count = ir.Store(self.k_counts, self.phase, ir.read(k_index))
        return self._each_phase([*taps, count])

    def _pack(self, c: Expr, taps: Triple, index: Expr) -> list[Stmt]:
        """The weights of a tap, where they are not packed by a kernel of their own."""
        return []

    def _block(self, u: Expr) -> list[Stmt]:
        raise NotImplementedError

    def _each_phase(self, body: list[Stmt]) -> list[Stmt]:
        return planes.loop_nest(body, (self.phase, self.phases))

    def _load_block(self, u: Expr, per_image: Expr, at: tuple[Expr, ...]) -> list[Stmt]:
        """Input planes of block `at` of its image, whose variables are `image` and `first`."""
        s, origin = self.s, planes.triple_vars("origin_")
        self.image = ir.var("image")
        z, y, x = planes.triple_vars("block_")
        self.first = (z, y, x if len(at) == 3 else ZERO)
        out: list[Stmt] = [ir.Let(self.image, floordiv(u, per_image))]
        for axis, first in enumerate(self.first):
            if axis < len(at):
                out.append(ir.Let(first, at[axis] * s.block[axis]))
            out.append(ir.Let(origin[axis], first * s.stride[axis] + s.tap_origin[axis]))

        def read(c: Expr, *at: Expr) -> Expr:
            return self.task.data(self.image, self.group, c, *at)

        return [*out, *self.planes.fill(s.in_channels, origin, s.in_size, read)]

    def _phase_outputs(self, axis: int) -> Expr:
        """Outputs of a phase of the block along an axis."""
        s, dilation = self.s, self.s.lhs_dilation[axis]
        total = floordiv(s.out_size[axis] - self.phase_at[axis] + (dilation - 1), dilation)
        return ir.minimum(s.block[axis], total - self.first[axis])
