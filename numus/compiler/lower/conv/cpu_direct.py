"""Direct convolutions by CPU vectors: blocks, tasks and launch arguments that schedules share."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Protocol

from numus import ir
from numus.compiler.lower.conv.geometry import Geometry, divide, scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.conv.cpu.planes import InputPlanes, Task, Tile, Triple
from numus.kernels.conv.cpu.taps import TapSizes
from numus.shapes import Shape, size_of
from numus.target import Target


@dataclass(frozen=True, slots=True)
class DirectTiling:
    """Blocks of outputs, and tasks of blocks × panels of output channels, at most."""

    g: Geometry
    dtype: DType
    tile: Tile
    phases: Shape  # of the input, by strides
    input_size: Shape  # of such a phase of a block
    block: Shape
    blocks: Shape
    panels: int
    block_tasks: int
    panel_tasks: int
    k_block: int = 0  # of weights that are packed by a kernel of their own
    k_group: int = 0  # blocks whose sums are added up first; 0: all of them

    @property
    def num_blocks(self) -> int:
        return self.g.batch * size_of(self.blocks)

    @property
    def grid(self) -> int:
        tasks = divide(self.panels, self.panel_tasks)[1]
        return self.g.groups * tasks * divide(self.num_blocks, self.block_tasks)[1]

    def sizes(self, e: Emitter, in_channels: Expr, stride: Triple | None = None) -> TapSizes:
        g, args, arg = self.g, partial(scalar_args, e), e.scalar_arg
        panels_per_task, panel_tasks = divide(self.panels, self.panel_tasks)
        blocks_per_task, block_tasks = divide(self.num_blocks, self.block_tasks)
        return TapSizes(
            in_channels=in_channels,
            out_channels=arg(g.out_channels),
            in_size=args(g.in_size),
            out_size=args(g.out_size),
            taps=args(g.taps),
            stride=stride or args(g.stride, 2),
            dilation=args(g.dilation),
            lhs_dilation=args(g.lhs_dilation, 2),
            padding_low=args(g.padding_low, 0),
            tap_origin=args(g.tap_origin, 0),
            block=args(self.block),
            blocks=args(self.blocks),
            k_size=arg(g.phase_k_size),
            k_block=arg(self.k_block) if self.k_block else const(0),
            k_group=arg(self.k_group) if self.k_group else const(0),
            panels=arg(self.panels) if self.k_block else const(0),
            panels_per_task=arg(panels_per_task),
            panel_tasks=arg(panel_tasks),
            num_blocks=arg(self.num_blocks),
            blocks_per_task=arg(blocks_per_task),
            block_tasks=arg(block_tasks),
        )


def plane_size(target: Target, dtype: DType, *shapes: Shape) -> int:
    """Elements of the input planes of a channel: an odd number of vectors."""
    lanes = target.vector_bytes // dtype.itemsize
    return (-(-size_of(tuple(map(size_of, shapes))) // lanes) | 1) * lanes


def prefetch_lines(tile: Tile, rows: int) -> int:
    """Lines of weights that each step of a register tile prefetches, where these tiles of some rows
    share a block of weights."""
    return -(-tile.vectors // -(-rows // tile.rows))


class Tiling(Protocol):
    """What tasks of all tilings ask for."""

    @property
    def g(self) -> Geometry: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def tile(self) -> Tile: ...
    @property
    def grid(self) -> int: ...


class Channels(Protocol):
    """Launch arguments: channels of a group."""

    in_channels: Expr
    out_channels: Expr


class TaskKernel(Protocol):
    task: Task
    scratch: list[ir.Buffer]

    def body(self) -> list[Stmt]: ...


def direct_task(
    problem: ConvProblem, e: Emitter, t: Tiling, s: Channels, planes: InputPlanes
) -> Task:
    """A task that reads images along z, where that axis is free, and stores at (z, y, x)."""
    data, weights = problem.readers(e, s.in_channels, s.out_channels)
    along_z = problem.images_are_depth

    def read(n: Expr, group: Expr, c: Expr, *at: Expr) -> Expr:
        return data(at[0] if along_z else n, group, c, *at)

    def store(n: Expr, group: Expr, o: Expr, z: Expr, y: Expr, x: Expr, value: Expr) -> list[Stmt]:
        output = group * s.out_channels + o if t.g.groups > 1 else o
        return problem.store(e, z if along_z else n, output, (z, y, x), value)

    return Task(ir.var("g"), t.tile, t.dtype, planes, read, weights, store)


def finish(problem: ConvProblem, e: Emitter, t: Tiling, kernel: TaskKernel) -> LoweredKernel:
    body = kernel.body()
    e.scratch += kernel.scratch
    e.stores_once = True
    return e.grid_kernel("convolution", kernel.task.g, body, t.grid, problem.group.notes)
