"""Winograd F(4×4, 3×3) convolution (Lavin & Gray 2016): transforms around a batched GEMM."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv.geometry import Geometry
from numus.compiler.lower.conv.padded_gemm_plan import (
    INT32_LIMIT,
    Engine,
    PaddedGemmPlan,
    depthwise_cost,
)
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.matmul.gpu import lower_gpu_matmul
from numus.compiler.lower.relayout import permuted, reshaped
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr, Stmt
from numus.kernels.conv import winograd as transforms
from numus.kernels.conv.gpu import winograd as kernel
from numus.kernels.conv.gpu.winograd import THREADS
from numus.kernels.conv.winograd import MATRICES, OUTPUT_TILE, Transform
from numus.shapes import Shape, row_major
from numus.target import Target


def fits(g: Geometry) -> bool:
    """3 × 3 windows over planes with stride 1, or their weight gradients."""
    plain = g.groups == 1 and all(n == (1, 1, 1) for n in (g.stride, g.dilation, g.lhs_dilation))
    flat = (g.in_size[0], g.taps[0], g.out_size[0], g.padding_low[0]) == (1, 1, 1, 0)
    if not plain or not flat or (1, 3, 3) not in (g.taps, g.out_size):
        return False
    m, k, n = _gemm_shape(g)
    return max(MATRICES * a * b for a, b in ((m, k), (k, n), (m, n))) < INT32_LIMIT


def _is_wgrad(g: Geometry) -> bool:
    return g.out_size == (1, 3, 3) and g.taps != (1, 3, 3)


def _tiles(g: Geometry) -> tuple[int, int]:
    """Tiles of an image, down and across."""
    _, height, width = g.taps if _is_wgrad(g) else g.out_size
    return -(-height // OUTPUT_TILE), -(-width // OUTPUT_TILE)


def _gemm_shape(g: Geometry) -> tuple[int, int, int]:
    """(M, K, N) of the 36 GEMMs."""
    down, across = _tiles(g)
    if _is_wgrad(g):
        return g.batch, g.in_channels * down * across, g.out_channels
    return g.out_channels, g.in_channels, g.batch * down * across


def cost(g: Geometry, engine: Engine) -> float:
    """Multiply-accumulates, and the traffic of the transforms in their unit."""
    m, k, n = _gemm_shape(g)
    traffic = engine.macs_per_byte * 2 * engine.itemsize * (m * k + k * n + m * n)
    return MATRICES * (m * k * n + traffic)


class Winograd(InOrder):
    name = "winograd"

    def supports(self, problem: ConvProblem, target: Target) -> bool:
        engine, direct = problem.engine, problem.direct
        if engine is None or engine.kind != "simt" or not fits(problem.geometry):
            return False
        g = problem.geometry
        other = direct.cost if isinstance(direct, PaddedGemmPlan) else depthwise_cost(g, engine)
        return cost(g, engine) < other

    def lower(self, problem: ConvProblem) -> Kernels:
        """Both operands to the Winograd domain, a batched GEMM, and the output transform."""
        g, (x, w) = problem.geometry, problem.conv.inputs
        layouts = problem.input_layouts
        data = reshaped(x, g.batch, g.in_channels, *g.in_size[1:])
        weights = reshaped(w, g.out_channels, g.in_channels, *g.taps[1:])
        matrix, tiles, low = transforms.input_transform(), _tiles(g), g.padding_low[1:]
        if _is_wgrad(g):
            left, first = _transform(data, matrix, tiles, low, layouts)
            matrix = transforms.filter_transform(OUTPUT_TILE)
            right, second = _transform(weights, matrix, tiles, (0, 0), layouts)
            b = permuted(right, 0, 2, 1)
        else:
            filters = transforms.filter_transform(3)
            left, first = _transform(weights, filters, (1, 1), (0, 0), layouts)
            right, second = _transform(permuted(data, 1, 0, 2, 3), matrix, tiles, low, layouts)
            b = right
        m, k, n = _gemm_shape(g)
        assert (*left.shape, *b.shape) == (MATRICES, m, k, MATRICES, k, n)
        total = Value.fresh("contract", "contract", (left, b), None, (MATRICES, m, n), dt.float32)
        layouts |= {v: row_major(v.shape) for v in (left, right, total)}
        gemm = FusionGroup.of_stored(total, problem.group.position)
        gemms = lower_gpu_matmul(gemm, layouts, problem.target)
        return [first, second, *gemms, _output_transform(problem, total, layouts)]


def _domain(e: Emitter, v: Value, tiles: tuple[int, int], access: str = "read") -> kernel.Domain:
    rows, columns = (e.dim(n) for n in v.shape[1:])
    counts = (e.dim(tiles[0]), e.dim(tiles[1]))
    return kernel.Domain(e.buffer(v, access), rows, columns, counts)


def _transform(
    v: Value, matrix: Transform, tiles: tuple[int, int], padding_low: Shape, layouts: Layouts
) -> tuple[Value, LoweredKernel]:
    """Tiles of planes (rows, images, height, width) as 36 matrices of rows × (image, tile)."""
    rows, images, *size = v.shape
    columns = images * tiles[0] * tiles[1]
    found = Value.fresh("winograd", "barrier", (), None, (MATRICES, rows, columns), v.dtype)
    e = Emitter(layouts, block_size=THREADS)

    def read(row: Expr, image: Expr, y: Expr, x: Expr) -> Expr:
        at, in_bounds = [], ir.const(True, dt.bool_)
        for i, low, n in zip((y, x), padding_low, size, strict=True):
            position = i.cast(ir.INDEX) - e.dim(low)
            in_bounds = in_bounds & (position >= 0) & (position < e.dim(n))
            at.append(position)
        value: Expr = e.value(v, (row.cast(ir.INDEX), image.cast(ir.INDEX), *at), in_bounds)
        return ir.select(in_bounds, value, ir.const(0, v.dtype))

    body = _domain(e, found, tiles, "write").enter(ir.var("g"), matrix, read)
    grid = -(-rows * columns // THREADS)
    return found, e.grid_kernel("winograd_transform", ir.var("g"), body, grid, ("cast",))


def _output_transform(problem: ConvProblem, total: Value, layouts: Layouts) -> LoweredKernel:
    g, e = problem.geometry, Emitter(layouts, block_size=THREADS)
    wgrad = _is_wgrad(g)

    def store(t: kernel.Tile, i: int, j: int, value: Expr) -> list[Stmt]:
        row, image, y, x = (v.cast(ir.INDEX) for v in (t.row, t.image, t.y, t.x))
        y, x = y + i, x + j
        in_bounds = (y < e.dim(g.out_size[1])) & (x < e.dim(g.out_size[2]))
        e.invalidate()
        index = (row, image) if wgrad else (image, row)
        return [ir.If(in_bounds, problem.store(e, *index, (ir.const(0), y, x), value))]

    matrix = transforms.output_transform(3 if wgrad else OUTPUT_TILE)
    domain = _domain(e, total, (1, 1) if wgrad else _tiles(g))
    body = domain.output_transform(ir.var("g"), matrix, store)
    grid, notes = -(-total.shape[1] * total.shape[2] // THREADS), problem.group.notes
    return e.grid_kernel("winograd_output_transform", ir.var("g"), body, grid, notes)
