"""Contraction groups where lanes are threads: which schedule a product gets, and its epilogue."""

from __future__ import annotations

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.affine import accesses, unit_weight
from numus.compiler.emit import Emitter, Step
from numus.compiler.fuse import Group, place, squeeze
from numus.compiler.ir import Expr, Stmt
from numus.compiler.local import Val
from numus.compiler.loops import lower_product_loops
from numus.compiler.products import SMALL, in_pieces
from numus.compiler.vendor_products import lower_vendor_product
from numus.kernels import tile_contraction as tile
from numus.kernels.group_contraction import Operand, Sizes, choose, contraction, pieces_of
from numus.runtime.contract import Facts
from numus.shapes import Shape

ZERO = ir.const(0)


def lower_group_contraction(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Tiles where they pay; plain sums of products for complex, thin and tiny ones."""
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    by_vendor = lower_vendor_product(group, layouts, facts)
    if by_vendor is not None:
        return by_vendor
    tiny = min(m, n) == 1 or m * n * k < SMALL
    if tiny or product.dtype.is_complex or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, facts)
    columns = _tile_columns(product, facts)
    if columns:
        return [_by_tiles(group, layouts, columns)]
    light = len(group.members) == 1
    tiles = choose(facts, dt.compute_dtype(product.dtype), batch, m, n, light)
    pieces = pieces_of(facts, tiles, batch, m, n, k)
    if pieces > 1:
        return in_pieces(group, layouts, facts, pieces, _tiled)
    return _tiled(group, layouts, facts)


def _tile_columns(product: Val, facts: Facts) -> int:
    """Columns of a tile where units multiply tiles of this dtype; 0 where it has none, or where
    there is too little to do."""
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    halves = all(x.dtype in (dt.bfloat16, dt.float16) for x in product.inputs)
    one = product.inputs[0].dtype is product.inputs[1].dtype
    if "tiles" not in facts.features or not halves or not one or min(m, n) < 32 or k < 32:
        return 0
    rows = batch * -(-m // tile.ROWS)
    for columns in (256, 128):
        if rows * -(-n // columns) >= facts.parallel_units:
            return columns
    return 64


def _by_tiles(group: Group, layouts: dict[Val, Shape], columns: int) -> Step:
    product = group.members[0]
    batch, m, n = product.shape
    k = product.inputs[0].shape[2]
    inside = set(group.members)
    layouts = {v: s for v, s in layouts.items() if v not in inside}
    e = Emitter(layouts, group=tile.THREADS)
    row_tiles, column_tiles = -(-m // tile.ROWS), -(-n // columns)
    sizes = tile.Sizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (row_tiles, column_tiles)),
    )

    def operand(x: Val, line: int) -> tile.Operand:
        along = _along(x, layouts, 3 - line)

        def read(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Expr:
            index = (i, p) if line == 1 else (p, i)
            value: Expr = e.value(x, (t if batch > 1 else ZERO, *index), mask)
            return value

        def where(t: Expr, i: Expr, p: Expr) -> tuple[ir.Buffer, Expr]:
            found = read(t, i, p, None)
            return found.attr, found.args[0]

        extent = e.number(x.shape[line])
        strides = _is_memory(x, layouts, 3 - line if along else line)
        if strides is None or any(s % tile.RUN for s in strides):
            return tile.Operand(read, extent, along, None, ir.const(False, dt.bool_))
        buffer, first = where(ZERO, ZERO, ZERO)
        start = ir.add(ir.address(buffer), ir.mul(first, ir.const(x.dtype.itemsize)))
        aligned = (start & ir.const(15)).eq(0)
        return tile.Operand(read, extent, along, where, aligned)

    g = ir.var("g")
    left, right = (operand(x, i + 1) for i, x in enumerate(product.inputs))
    dtype = product.inputs[0].dtype
    body, scratch = tile.contraction(
        columns, sizes, dtype, g, left, right, lambda *at: _finish(e, group, *at)
    )
    e.scratch += scratch
    notes = tuple(v.op for v in group.members)
    return e.blocks("tile_contraction", g, body, batch * row_tiles * column_tiles, notes)


def _finish(e: Emitter, group: Group, t: Expr, i: Expr, j: Expr, value: Expr) -> list[Stmt]:
    """Store what the group makes of an element of the product."""
    product = group.members[0]
    point = [x for x, extent in zip((t, i, j), product.shape, strict=True) if extent != 1]
    e.hold(product, value.cast(product.dtype))
    e.forget()
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            assert v is product or squeeze(v.shape) == squeeze(product.shape)
            index = place(v.shape, point)
            out += e.store(v, index, e.value(v, index))
    return out


def _is_memory(x: Val, layouts: dict[Val, Shape], axis: int) -> list[int] | None:
    """By which strides an operand lies in memory but along this axis, where neighbours are; None
    where it is more than loads, or has no neighbours there."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.number(n)) for i, n in enumerate(x.shape)]
    value = e.value(x, tuple(names))
    pieces = accesses(e)
    if value.op != "load" or len(value.args) > 1 or len(pieces) != 1:
        return None
    strides = [pieces[0].get(name, 0) for name in names]
    return strides if strides.pop(axis) == 1 else None


def _along(x: Val, layouts: dict[Val, Shape], axis: int) -> bool:
    """Whether most of what an operand reads has its neighbours in memory along this axis."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.number(n)) for i, n in enumerate(x.shape)]
    e.value(x, tuple(names))
    pieces = accesses(e)
    return unit_weight(pieces, names[axis]) >= unit_weight(pieces, names[3 - axis])


def _tiled(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    dtype = dt.compute_dtype(product.dtype)
    inside = set(group.members)
    layouts = {v: s for v, s in layouts.items() if v not in inside}
    light = len(group.members) == 1
    tiles = choose(facts, dtype, batch, m, n, light)
    e = Emitter(layouts, group=tiles.threads)
    row_tiles, column_tiles = -(-m // tiles.rows), -(-n // tiles.columns)
    sizes = Sizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (row_tiles, column_tiles)),
    )

    def left(t: Expr, i: Expr, p: Expr, mask: Expr) -> Expr:
        value: Expr = e.value(a, (t if batch > 1 else ZERO, i, p), mask)
        return value.cast(dtype)

    def right(t: Expr, j: Expr, p: Expr, mask: Expr) -> Expr:
        value: Expr = e.value(b, (t if batch > 1 else ZERO, p, j), mask)
        return value.cast(dtype)

    g = ir.var("g")
    body, scratch = contraction(
        tiles,
        sizes,
        dtype,
        g,
        Operand(left, sizes.m, _along(a, layouts, 2)),
        Operand(right, sizes.n, _along(b, layouts, 1)),
        lambda *at: _finish(e, group, *at),
        light=light,
    )
    e.scratch += scratch
    grid = batch * row_tiles * column_tiles
    notes = tuple(v.op for v in group.members)
    return [e.blocks("contraction", g, body, grid, notes)]
