"""Contraction groups: which schedule a product gets, how it reads its operands, its epilogue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of, squeeze
from numus.compiler.graph.value import PACKED, Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.elementwise import cast_value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_product_loops, lower_sum
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu import gemv as thin
from numus.kernels.matmul.cpu.blocking import FEW_ROWS, Tiles, choose
from numus.kernels.matmul.cpu.gemm import Sizes, Work, contraction
from numus.kernels.matmul.cpu.panels import Matrix, Packed, Panels
from numus.shapes import Shape
from numus.target import Target

ZERO, ONE = const(0), const(1)

SMALL = 1 << 12  # products of fewer multiplications are plain loops
Tiled = Callable[[FusionGroup, dict[Value, Shape], Target], list[LoweredKernel]]

ENOUGH_ROWS = 64  # for dot products of whole rows, side by side
PACKED_PANELS, PACKED_LINES = 32, 32  # that a block packs
TURN = 5  # times as long takes an element that is stored alone as one that is packed alone
LONG = 8192  # a longer inner axis is summed in pieces, each small enough for the caches


def lower_contraction(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Tiles where they pay, rows of dot products for thin ones; plain sums for tiny ones."""
    product = group.members[0]
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    if m * n * k < SMALL or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, target)
    work = Product(group, layouts)
    steps = _thin(work, target)
    if steps is not None:
        return steps
    if min(m, n) == 1:
        return lower_product_loops(group, layouts, target)
    if k > LONG:
        return in_pieces(group, layouts, target, -(-k // (LONG // 2)), _tiles)
    strips = _strips(work, target)
    if strips is not None:
        return _tiled(strips, target, strips=True)
    return _tiled(_turned(work, target) or work, target)


@dataclass(frozen=True, slots=True)
class Operand:
    """A value and the axis along which its lines are counted: rows of A, columns of B."""

    val: Value
    line: int


class Product:
    """A contraction with its epilogue, as schedules see it: lines of `left` times lines of
    `right`, m and n of them. `turned`: left is B and right is A, the result is turned around.
    """

    def __init__(
        self, group: FusionGroup, layouts: dict[Value, Shape], turned: bool = False
    ) -> None:
        self.group = group
        self.turned = turned
        self.value = group.members[0]
        a, b = self.value.inputs
        self.left, self.right = Operand(a, 1), Operand(b, 2)
        if turned:
            self.left, self.right = self.right, self.left
        self.batch, self.m, self.n = self.value.shape
        if turned:
            self.m, self.n = self.n, self.m
        self.k = a.shape[2]
        self.wide = dt.compute_dtype(self.value.dtype)
        self.dtype = dt.real_of(self.wide)  # of what is added up
        self.parts = 2 if self.value.dtype.is_complex else 1
        self.layouts = group.input_layouts(layouts)
        self.notes = group.notes

    def emitter(self) -> Emitter:
        return Emitter(dict(self.layouts))

    def matrix(self, e: Emitter, x: Operand) -> Matrix:
        """An operand as an expression."""

        def read(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Any:
            index = (i, p) if x.line == 1 else (p, i)
            value = e.value(x.val, (t if self.batch > 1 else ZERO, *index), mask)
            return cast_value(value, x.val.dtype, self.wide)

        return Matrix(read, e.dim(x.val.shape[x.line]))

    def finish(
        self, e: Emitter, t: Expr, i: Expr, j: Expr, value: Any, mask: Expr | None = None
    ) -> list[Stmt]:
        """Store what the group makes of an element of the product, where the mask is true."""
        product = self.value
        if self.turned:
            i, j = j, i
        point = [x for x, extent in zip((t, i, j), product.shape, strict=True) if extent != 1]
        e.bind(product, cast_value(value, self.wide, product.dtype))
        e.invalidate()
        out: list[Stmt] = []
        for v in self.group.members:
            if v in self.group.stored:
                assert v is product or squeeze(v.shape) == squeeze(product.shape)
                index = index_of(v.shape, point)
                out += e.store(v, index, e.value(v, index, mask), mask)
        return out

    def placement(self, operand: Operand) -> Placement:
        """How an operand lies in memory."""
        x, line = operand.val, operand.line
        depth = 3 - line
        e = self.emitter()
        names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
        value = e.value(x, tuple(names))
        pieces = accesses(e)
        across = unit_stride_count(pieces, names[line]) > unit_stride_count(pieces, names[depth])
        plain = len(pieces) == 1 and x.dtype is self.dtype and value.op == "load"
        if not plain or len(value.args) > 1:
            return Placement(across, False)
        strides = [abs(pieces[0].get(name, 0)) * x.dtype.itemsize for name in names]
        return Placement(across, True, strides[line], strides[depth])


@dataclass(frozen=True, slots=True)
class Placement:
    """How lines of an operand lie in memory."""

    across: bool  # neighbours are elements of different lines
    plain: bool  # it is nothing but loads, of the dtype that is computed in
    line: int = 0  # bytes from line to line
    depth: int = 0  # bytes along a line


def _tiles(group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> list[LoweredKernel]:
    return _tiled(Product(group, layouts), target)


def in_pieces(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target, pieces: int, tiled: Tiled
) -> list[LoweredKernel]:
    """A long inner axis: the products of its pieces, then their sum with the epilogue."""
    product = group.members[0]
    a, b = product.inputs
    batch = product.shape[0]
    k = a.shape[2]
    size = -(-k // pieces)
    pad = pieces * size - k

    def cut(x: Value, axis: int) -> Value:
        """The inner axis as (piece, place), pieces joined with the batch."""
        low = (0, 0, 0)
        high = tuple(pad if i == axis else 0 for i in range(3))
        shape = tuple(n + h for n, h in zip(x.shape, high, strict=True))
        if pad:
            x = Value.fresh("pad", "view", (x,), (low, high, (0, 0, 0)), shape, x.dtype)
        split = (*shape[:axis], pieces, size, *shape[axis + 1 :])
        x = Value.fresh("reshape", "view", (x,), split, split, x.dtype)
        order = (0, axis, *(i for i in range(1, 4) if i != axis))
        shape = tuple(split[i] for i in order)
        x = Value.fresh("permute", "view", (x,), order, shape, x.dtype)
        flat = (batch * pieces, *shape[2:])
        return Value.fresh("reshape", "view", (x,), flat, flat, x.dtype)

    parts = pieces_val(product, (cut(a, 2), cut(b, 1)), pieces)
    first = FusionGroup.of_stored(parts, group.position)
    return tiled(first, layouts, target) + sum_pieces(group, layouts, target, parts)


def pieces_val(product: Value, inputs: tuple[Value, ...], pieces: int) -> Value:
    """What the pieces of a product come to, before they are added up."""
    batch, m, n = product.shape
    wide = dt.compute_dtype(product.dtype)
    return Value.fresh("contract", "contract", inputs, product.params, (batch * pieces, m, n), wide)


def whole_or_pieces(
    group: FusionGroup,
    layouts: dict[Value, Shape],
    target: Target,
    pieces: int,
    product: Callable[[FusionGroup], LoweredKernel],
) -> list[LoweredKernel]:
    """The steps of a product whose kernel cuts k by itself, into so many pieces."""
    if pieces == 1:
        return [product(group)]
    value = group.members[0]
    parts = pieces_val(value, value.inputs, pieces)
    alone = FusionGroup.of_stored(parts, group.position)
    return [product(alone), *sum_pieces(group, layouts, target, parts)]


def sum_pieces(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target, parts: Value
) -> list[LoweredKernel]:
    """The sum of a product's pieces, with the epilogue."""
    product = group.members[0]
    batch, m, n = product.shape
    wide = parts.dtype
    layouts = {**layouts, parts: (m * n, n, 1)}
    split = (batch, parts.shape[0] // batch, m, n)
    viewed = Value.fresh("reshape", "view", (parts,), split, split, wide)
    total = Value.fresh("reduce_sum", "reduce", (viewed,), (1,), product.shape, product.dtype)
    return lower_sum(group, total, layouts, target)


def _thin(work: Product, target: Target) -> list[LoweredKernel] | None:
    """Few rows or columns, where the other operand lies along k: dot products that read it once.

    None where that is not so, or where there are too few of them to keep all threads busy.
    """
    m, n = work.m, work.n
    matrix, vectors = (work.left, work.right) if m >= n else (work.right, work.left)
    if target.block_size or min(m, n) > thin.FEW or work.parts > 1 or max(m, n) < ENOUGH_ROWS:
        return None
    if work.placement(matrix).across or work.k < target.vector_bytes:
        return None
    schedule = thin.choose(target, work.dtype, work.batch, max(m, n), min(m, n), work.k)
    tasks = -(-max(m, n) // schedule.task_rows)
    near = work.placement(vectors)
    e = work.emitter()

    def finish(t: Expr, row: Expr, vector: Expr, value: Any) -> list[Stmt]:
        i, j = (row, vector) if m >= n else (vector, row)
        return work.finish(e, t, i, j, value)

    g = ir.var("g")
    numbers = (e.dim(max(m, n)), e.dim(work.k))
    sizes = (*numbers, e.scalar_arg(schedule.task_rows), e.scalar_arg(tasks))
    sides = (work.matrix(e, matrix), work.matrix(e, vectors))
    packed = near.across or not near.plain
    body, e.scratch = thin.dots(schedule, work.dtype, sizes, g, *sides, packed, finish)
    return [e.grid_kernel("dots", g, body, work.batch * tasks, work.notes)]


def _strips(work: Product, target: Target) -> Product | None:
    """The product, turned where need be, if it has few rows and the other operand's columns are
    neighbours in memory; None otherwise, or where there are too few columns for all threads.
    """
    if target.block_size or work.parts > 1:
        return None
    if work.m > work.n:
        work = Product(work.group, work.layouts, turned=True)
    strips = work.n * work.dtype.itemsize // target.vector_bytes
    if work.batch * strips < 8 * target.num_cores or work.m > FEW_ROWS:
        return None
    return work if work.placement(work.right).across else None


def _turned(work: Product, target: Target) -> Product | None:
    """The product, turned, if B lies along k and can then be read in place, as rows: it would have
    to be packed element by element, which costs more than packing A and storing the result so.
    """
    m, n, k = work.m, work.n, work.k
    right = work.placement(work.right)
    if target.block_size or right.across or not right.plain or m * (k + n) * TURN >= n * k:
        return None
    return Product(work.group, work.layouts, turned=True)


def _tiled(work: Product, target: Target, strips: bool = False) -> list[LoweredKernel]:
    batch, m, n, k = work.batch, work.m, work.n, work.k
    left, right = work.placement(work.left), work.placement(work.right)
    near = target.l2_bytes // 4  # bytes within which lines that lie apart are found again
    # loads across two lines cost little where both are in the first cache
    close = k * right.depth <= target.l1_bytes // 2
    aligned = right.plain and right.across and (close or right.depth % target.vector_bytes == 0)
    direct = (
        left.plain and (not left.across or k * left.depth <= near),
        strips or (aligned and k * right.depth <= near),
    )
    size = (batch, m, n, k)
    computed = (not left.plain, not right.plain)
    tiles = choose(
        *(target, work.dtype, work.parts, size, left.across, direct, left.line, strips, computed),
        work.group.low_memory,
    )
    e = work.emitter()
    row_tasks, column_tasks = -(-m // tiles.task_rows), -(-n // tiles.task_columns)
    sizes = Sizes(
        *(e.dim(x) for x in (m, n, k)),
        *(e.scalar_arg(x) for x in (tiles.task_rows, tiles.task_columns)),
        *(e.scalar_arg(x) for x in (row_tasks, column_tasks, tiles.depth)),
    )
    steps: list[LoweredKernel] = []

    def side(x: Operand, how: str) -> Matrix | Packed:
        """An operand as tasks find it: packed by a kernel before, or as it is."""
        if how != "shared":
            return work.matrix(e, x)
        step, packed, panels = _packed(work, tiles, x)
        steps.append(step)
        e.layouts[packed] = (1,)
        return Packed(e.buffer(packed), ZERO, replace(panels, k=sizes.k))

    def finish(t: Expr, i: Expr, j: Expr, value: Any, mask: Expr | None) -> list[Stmt]:
        return work.finish(e, t, i, j, value, mask)

    g = ir.var("g")
    sides = side(work.left, tiles.left), side(work.right, tiles.right)
    light = len(work.group.members) == 1
    task = Work(tiles, sizes, work.dtype, *sides, finish, light)
    body, e.scratch = contraction(task, g)
    grid = batch * row_tasks * column_tasks
    e.stores_once = True
    return [*steps, e.grid_kernel("contraction", g, body, grid, work.notes)]


def _packed(work: Product, tiles: Tiles, x: Operand) -> tuple[LoweredKernel, Value, Panels]:
    """A kernel that packs an operand, what it fills, and with what. A block packs a panel of whole
    lines, or, where neighbours are elements of different lines, some lines of k of many panels.
    """
    e = work.emitter()
    panels = (Panels.of_rows if x is work.left else Panels.of_columns)(tiles, e.dim(work.k))
    matrix = work.matrix(e, x)
    count = -(-x.val.shape[x.line] // panels.lines)
    depth = -(-work.k // tiles.width) * tiles.width
    size = work.batch * count * panels.lines * depth * work.parts
    packed = Value.fresh(PACKED, "barrier", (), None, (size,), work.dtype)
    buffer = e.buffer(packed, "write")
    wide = 1 if panels.along else min(count, PACKED_PANELS)
    deep = work.k if panels.along else min(work.k, PACKED_LINES)
    pieces, blocks = -(-count // wide), -(-work.k // deep)
    across, down = e.scalar_arg(pieces), e.scalar_arg(blocks)
    lines, steps = e.scalar_arg(wide * panels.lines), e.scalar_arg(deep)
    g = ir.var("g")
    batch = ir.idiv(g, ir.mul(across, down))
    first = ir.mul(ir.irem(g, across), lines)
    stop = ir.minimum(ir.add(first, lines), matrix.extent)
    start = panels.size(ir.add(ir.mul(batch, panels.padded(matrix.extent)), first))
    stretch = None
    if not panels.along:
        k0 = ir.mul(ir.irem(ir.idiv(g, across), down), steps)
        stretch = (k0, ir.minimum(ir.add(k0, steps), panels.k))
    body = panels.pack(buffer, start, matrix, batch, first, stop, matrix.extent, stretch)
    return e.grid_kernel("pack", g, body, work.batch * pieces * blocks, ("pack",)), packed, panels
