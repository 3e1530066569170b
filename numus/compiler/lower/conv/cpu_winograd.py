"""Winograd F(4×4, 3×3) on CPUs (`kernels/conv/cpu/winograd.py`): blocking and cost."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.hoisting import LIMITS, is_captured
from numus.compiler.lower.conv.cpu_direct import direct_task, finish, plane_size, prefetch_lines
from numus.compiler.lower.conv.geometry import Geometry, divide, scalar_args
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.tuning import CPU
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.dtypes import DType
from numus.ir import const
from numus.kernels.conv.cpu.planes import InputPlanes, Tile, channel_tile
from numus.kernels.conv.cpu.winograd import (
    PACK_CHANNELS,
    WinogradKernel,
    WinogradSizes,
    transform_filters,
)
from numus.kernels.conv.winograd import INPUT_TILE, MATRICES, OUTPUT_TILE
from numus.shapes import Shape, row_major, size_of
from numus.target import Target

HALO = INPUT_TILE - OUTPUT_TILE


@dataclass(frozen=True, slots=True)
class WinogradTiling:
    """Blocks of tiles, and tasks of blocks × panels of output channels."""

    g: Geometry
    dtype: DType
    tile: Tile
    tiles: Shape  # images, and tiles of an image
    block: Shape
    panels: int
    panels_per_task: int
    panel_tasks: int

    @property
    def blocks(self) -> tuple[int, int]:
        return -(-self.tiles[0] // self.block[0]), -(-self.tiles[1] // self.block[1])

    @property
    def grid(self) -> int:
        return self.g.groups * self.panel_tasks * size_of(self.blocks)

    @property
    def input_size(self) -> Shape:
        """Of a block's input, with its halo."""
        images, down, across = self.block
        return (images, down * OUTPUT_TILE + HALO, across * OUTPUT_TILE + HALO)

    @property
    def tile_rows(self) -> int:
        return -(-size_of(self.block) // self.tile.rows) * self.tile.rows

    @property
    def channel_pitch(self) -> int:
        return _odd_vectors(self.g.in_channels, self.tile.width)

    def sizes(self, e: Emitter, target: Target) -> WinogradSizes:
        g, args, arg = self.g, functools.partial(scalar_args, e), e.scalar_arg
        panel_bytes = self.tile.columns * self.dtype.itemsize
        channels = arg(g.in_channels)
        down, across = self.blocks
        return WinogradSizes(
            in_channels=channels,
            out_channels=arg(g.out_channels),
            in_size=args(g.in_size),
            out_size=(*args(g.out_size)[:2], e.dim(g.out_size[2])),
            padding_low=args(g.padding_low, 0),
            block=args(self.block),
            tiles=args(self.tiles),
            tile_rows=arg(self.tile_rows),
            channel_pitch=arg(self.channel_pitch),
            input_matrix=arg(_odd_vectors(self.tile_rows * self.channel_pitch, self.tile.width)),
            output_matrix=arg(_odd_vectors(self.tile_rows * self.tile.columns, self.tile.width)),
            k_block=arg(max(16, target.l1_bytes // 2 // panel_bytes)),
            panels=arg(self.panels),
            panels_per_task=arg(self.panels_per_task),
            panel_tasks=arg(self.panel_tasks),
            blocks=(arg(down), arg(across)),
        )


def _odd_vectors(elements: int, width: int) -> int:
    """Whole vectors, an odd number of them: rows and matrices do not share cache sets."""
    return (-(-elements // width) | 1) * width


def _fits(problem: ConvProblem) -> bool:
    """Windows of 3 × 3 over planes with stride 1, summed in float32."""
    if not problem.is_direct or not problem.images_are_depth:
        return False
    g = problem.direct_geometry
    plain = all(n == (1, 1, 1) for n in (g.stride, g.dilation, g.lhs_dilation))
    return plain and g.taps == (1, 3, 3) and problem.conv.dtype is dt.float32


def _filters_are_cached(problem: ConvProblem) -> bool:
    """The transform of the filters is hoisted: they are the same in all calls, and grow little."""
    weights = problem.conv.inputs[1]
    tile = _tile(problem.direct_geometry, problem.target)
    size = problem.geometry.groups * _filters(problem.direct_geometry, tile) * tile.width
    grows_little = size <= LIMITS.max_growth * weights.size
    return grows_little and is_captured(problem.group, weights, problem.layouts)


def _filters(g: Geometry, tile: Tile) -> int:
    """Vectors of transformed filters."""
    return MATRICES * g.in_channels * -(-g.out_channels // tile.columns) * tile.vectors


def _load(filters: int, target: Target) -> int:
    """FMAs that take as long as reading a vector of filters."""
    near = CPU.winograd_cached_l2s * target.l2_bytes
    near = max(near, target.l3_bytes // CPU.winograd_l3_share)
    cached = filters * target.vector_bytes <= near
    return CPU.winograd_cached_load if cached else CPU.winograd_filter_load


def _max_tiles(g: Geometry, tile: Tile, target: Target) -> int:
    """Tiles of a block, whose matrices share half of L2 unless that are too few."""
    bytes_per_tile = MATRICES * (g.in_channels + tile.columns) * dt.float32.itemsize
    return max(target.l2_bytes // 2 // bytes_per_tile, CPU.winograd_block_tiles)


def _tiles(g: Geometry) -> Shape:
    """Images, and the tiles of an image."""
    images, height, width = g.out_size
    return (images, -(-height // OUTPUT_TILE), -(-width // OUTPUT_TILE))


def _tile(g: Geometry, target: Target) -> Tile:
    """A register tile that does not depend on blocks, and so not on the number of cores."""
    count = min(size_of(_tiles(g)), CPU.winograd_block_tiles)
    return channel_tile(target, dt.float32, count, g.out_channels, CPU.max_pixel_registers)


def _blocks(tiles: Shape, max_tiles: int) -> Shape:
    """Blocks of whole rows of tiles, or of whole images, as even as possible."""
    images, down, across = tiles
    rows = min(max(max_tiles // across, 1), down)
    rows = -(-down // -(-down // rows))
    count = min(max(max_tiles // (down * across), 1), images) if rows == down else 1
    return (-(-images // -(-images // count)), rows, across)


def _tiling(problem: ConvProblem, target: Target) -> WinogradTiling:
    """Blocks and tasks of least time: few blocks read the filters, many keep all cores at work."""
    g, tiles = problem.direct_geometry, _tiles(problem.direct_geometry)
    tile = _tile(g, target)
    panels, filters = -(-g.out_channels // tile.columns), _filters(g, tile)
    load, max_tiles, vectors = (
        _load(filters, target),
        _max_tiles(g, tile, target),
        panels * tile.vectors,
    )
    best, least = None, 0.0
    for shift in range(4):
        block = _blocks(tiles, max_tiles >> shift)
        number = g.groups * -(-tiles[0] // block[0]) * -(-tiles[1] // block[1])
        panel_tasks = min(panels, -(-target.num_cores // number))
        panels_per_task, panel_tasks = divide(panels, panel_tasks)
        share, count = panels_per_task / panels, size_of(block)
        time = filters * max(count * tile.cost_per_fma, load) * share
        time += count * CPU.winograd_output_cost * vectors * share
        time += count * CPU.winograd_input_cost * -(-g.in_channels // tile.width)
        time *= -(-number * panel_tasks // target.num_cores)
        if best is None or time < least:
            best, least = (block, panels_per_task, panel_tasks), time
    assert best is not None
    return WinogradTiling(g, dt.float32, tile, tiles, best[0], panels, *best[1:])


class CpuWinograd:
    name = "winograd"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        if not _fits(problem):
            return False
        g, cached = problem.direct_geometry, _filters_are_cached(problem)
        if g.macs < (CPU.min_winograd_macs if cached else CPU.min_winograd_macs_each_call):
            return False
        return _tiles(g)[2] <= 4 * _max_tiles(g, _tile(g, target), target)

    def cost(self, problem: ConvProblem, target: Target) -> float:
        """FMAs per vector of outputs: products, transforms, and the reading of filters."""
        g, tile = problem.direct_geometry, _tile(problem.direct_geometry, target)
        tiles, filters = size_of(_tiles(g)), _filters(g, tile)
        blocks = -(-tiles // _max_tiles(g, tile, target))
        # the products of a block take as long as its FMAs, or as reading the filters
        total = filters * max(tiles * tile.cost_per_fma, blocks * _load(filters, target))
        if not _filters_are_cached(problem):
            total += filters * CPU.winograd_filter_cost
        inputs = CPU.winograd_input_cost * -(-g.in_channels // tile.width)
        outputs = CPU.winograd_output_cost * -(-g.out_channels // tile.width)
        total += tiles * (inputs + outputs)
        return total * tile.width / (size_of(g.out_size) * g.out_channels) + CPU.transpose_cost

    def lower(self, problem: ConvProblem) -> Kernels:
        """Transformed filters, then the convolution."""
        target = problem.target
        t = _tiling(problem, target)
        g, dtype, tile = t.g, t.dtype, t.tile
        shape = (g.groups, t.panels, MATRICES, g.in_channels, tile.columns)
        weights = problem.conv.inputs[1]
        packed = Value.fresh(PACKED, "convolve", (weights,), None, shape, dtype)
        layouts, block = problem.input_layouts, ir.var("g")

        e = Emitter(layouts)
        s = t.sizes(e, target)
        _, read = problem.readers(e, s.in_channels, s.out_channels)
        body = transform_filters(s, tile, dtype, e.buffer(packed, "write"), block, read)
        grid = g.groups * t.panels * -(-g.in_channels // PACK_CHANNELS)
        first = e.grid_kernel("winograd_filters", block, body, grid, ("pack",))

        e = Emitter({**layouts, packed: row_major(shape)})
        s = t.sizes(e, target)
        size = e.scalar_arg(plane_size(target, dtype, t.input_size))
        ones = (const(1), const(1), const(1))
        buffer = ir.Buffer("planes", dtype, "scratch", size * tile.width)
        planes = InputPlanes(buffer, ones, ones, scalar_args(e, t.input_size), size)
        task = direct_task(problem, e, t, s, planes)
        lines = prefetch_lines(tile, size_of(t.block))
        return [first, finish(problem, e, t, WinogradKernel(s, task, e.buffer(packed), lines))]
