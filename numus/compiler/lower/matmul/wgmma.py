"""Products by units that multiply tiles: which get them, and how their operands reach the engine.

An operand that is nothing but aligned memory is copied as it lies. Any other is packed by a kernel
before: read through its expression once, however many tiles need it.
"""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.matmul.cpu import whole_or_pieces
from numus.compiler.lower.matmul.gpu_operands import Lying, along, lying, sizes_of, work_of
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import repack as packing
from numus.kernels.matmul.gpu import wgmma as tile
from numus.kernels.matmul.gpu import wgmma_epilogue as strips
from numus.shapes import Shape
from numus.target import Target

ZERO = const(0)

LEAST = 16  # rows and columns below which tiles are nearly empty
LEAST_DEPTH = 16
# Rows and columns from which on it pays to pack an operand, by the size of an element: narrower
# ones are multiplied much quicker then, and there is less of them.
REUSED = {1: 512, 2: 128, 4: 640}
REUSED_OF_MANY = 512  # of matrices in a batch: several of them may lie in one place

_HALVES = (dt.float16, dt.bfloat16)
_EIGHTS = (dt.float8_e4m3fn, dt.float8_e5m2)


def tile_dtype(product: Value) -> DType | None:
    """What tile units multiply for a product, None where they would round or overflow."""
    a, b = (x.dtype for x in product.inputs)
    if a is not b:
        return None
    if a in _HALVES or a in _EIGHTS:
        return a
    if a in (dt.int8, dt.uint8) and product.dtype.is_integer and product.dtype.itemsize <= 4:
        return a
    return a if a is dt.float32 and product.params == "tf32" else None


def fits_tiles(product: Value, layouts: dict[Value, Shape], target: Target) -> bool:
    """Whether a product is for the tile units: there are some for its dtype, there is enough to do,
    and operands lie as the engine needs them or are used often enough to be packed."""
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    dtype = tile_dtype(product)
    if not target.wgmma or dtype is None or min(m, n) < LEAST or k < LEAST_DEPTH:
        return False
    reused = REUSED_OF_MANY if batch > 1 else REUSED[dtype.itemsize]
    if min(m, n) >= reused or dtype in _EIGHTS:
        return True
    ways = [(x, lying(x, layouts, line)) for line, x in enumerate(product.inputs, 1)]
    return all(how is not None and _engine_reads(x, how) for x, how in ways)


def lower_tiles(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The kernels of a product by tiles: packing where need be, pieces where that keeps units
    busy."""
    product = group.members[0]
    k = product.inputs[0].shape[2]
    dtype = tile_dtype(product)
    assert dtype is not None
    tiles, pieces = tile.choose(target, dtype, product.shape, k, stays=True)
    layouts = group.input_layouts(layouts)
    steps: list[LoweredKernel] = []
    operands: list[tuple[Value, Lying]] = []
    for line, x in enumerate(product.inputs, 1):
        how = lying(x, layouts, line)
        if how is None or not _engine_reads(x, how):
            step, x, how = _packed(x, layouts, line)
            steps.append(step)
            layouts[x] = (1,)
        operands.append((x, how))

    def by_tiles(part: FusionGroup) -> LoweredKernel:
        sizes = tuple(v.dtype.itemsize for v in part.members if v in part.stored)
        how = tiles
        if tiles.stays and not strips.in_lines(sizes, product.shape[2]):
            how = tile.fitted(target, (tiles.rows, tiles.columns), tiles.together, stays=False)
        return _tiles(part, product, operands, layouts, target, how, pieces)

    return steps + whole_or_pieces(group, layouts, target, pieces, by_tiles)


def _engine_reads(x: Value, how: Lying) -> bool:
    """Whether the engine can copy tiles of an operand as it lies, and units multiply them so."""
    run = 16 // x.dtype.itemsize
    far = (how.line, how.matrix)
    if any(s % run or s < 0 for s in far) or how.line == 0:
        return False
    return how.along or x.dtype in _HALVES


def _tiles(
    group: FusionGroup,
    product: Value,
    operands: list[tuple[Value, Lying]],
    layouts: dict[Value, Shape],
    target: Target,
    tiles: tile.Tiles,
    pieces: int,
) -> LoweredKernel:
    batch, m, n = product.shape
    dtype = product.inputs[0].dtype
    e = Emitter(layouts, block_size=tiles.threads(dtype))
    shape = (tiles.rows, tiles.columns)
    sizes, grid = sizes_of(e, target, product, shape, tile.depth_of(dtype), pieces)

    def operand(x: Value, how: Lying, line: int) -> tile.Operand:
        extent = e.dim((m, n)[line - 1])
        flat = len(x.shape) == 1
        buffer: ir.Buffer = e.buffer(x) if flat else e.value(x, (ZERO,) * 3).attr

        def place(t: Expr, i: Expr, p: Expr) -> Expr:
            slow, quick = (i, p) if how.along else (p, i)
            away = ir.mul(t, e.dim(how.matrix)) if batch > 1 else ZERO
            return ir.add(ir.add(away, ir.mul(slow, e.dim(how.line))), quick)

        def read(t: Expr, i: Expr, p: Expr, mask: Expr) -> Expr:
            return ir.load(buffer, place(t, i, p), mask)

        def source(first: Expr, lines: int, t: Expr) -> ir.TmaTensor:
            ends = (sizes.k, extent) if how.along else (extent, sizes.k)
            alone = batch == 1 or how.matrix == 0  # one matrix for all
            far = e.dim(how.line) if alone else e.dim(how.matrix)
            count = const(1) if alone else e.dim(batch)
            strides = (e.dim(how.line), far)
            at = ZERO if alone else t
            return ir.TmaTensor(buffer, how.along, (*ends, count), strides, first, lines, at)

        aligned = (ir.address(buffer) & const(15)).eq(0)
        return tile.Operand(read, extent, source, const(True, dt.bool_) if flat else aligned)

    g = ir.var("g")
    sides = (operand(x, how, line) for line, (x, how) in enumerate(operands, 1))
    body, e.scratch = tile.contraction(work_of(e, group, tiles, sizes, dtype, sides), g)
    room = target.num_cores * tiles.together if tiles.stays else 0
    return e.grid_kernel("tile_contraction", g, body, grid, group.notes, room)


def _packed(x: Value, layouts: dict[Value, Shape], line: int) -> tuple[LoweredKernel, Value, Lying]:
    """A kernel that lays an operand out for the engine; what it fills, and how that lies."""
    natural = along(x, layouts, 3 - line)
    by_k = natural or x.dtype not in _HALVES
    batch = x.shape[0]
    k, count = x.shape[3 - line], x.shape[line]
    lines, places = (count, k) if by_k else (k, count)
    run = 16 // x.dtype.itemsize
    pitch = -(-places // run) * run
    packed = Value.fresh(PACKED, "barrier", (), None, (batch * lines * pitch,), x.dtype)
    e = Emitter(layouts, block_size=packing.THREADS)
    tiles = [-(-extent // packing.SIDE) for extent in (lines, places)]

    def read(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Expr:
        if not by_k:
            i, p = p, i
        index = (i, p) if line == 1 else (p, i)
        value: Expr = e.value(x, (t if batch > 1 else ZERO, *index), mask)
        return value

    def store(t: Expr, i: Expr, p: Expr, value: Expr) -> list[Stmt]:
        at = ir.add(ir.mul(ir.add(ir.mul(t, e.dim(lines)), i), e.dim(pitch)), p)
        return [ir.Store(e.buffer(packed, "write"), at, value)]

    g = ir.var("g")
    extents = (e.dim(lines), e.dim(places))
    numbers = (e.scalar_arg(tiles[0]), e.scalar_arg(tiles[1]))
    turned = by_k and not natural
    body, e.scratch = packing.pack(g, x.dtype, extents, numbers, turned, read, store)
    step = e.grid_kernel("pack", g, body, batch * tiles[0] * tiles[1], ("pack",))
    return step, packed, Lying(by_k, pitch, lines * pitch)
