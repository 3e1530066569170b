"""Contraction groups: which schedule a product gets, and its epilogue."""

from __future__ import annotations

from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.affine import accesses, unit_weight
from numus.compiler.emit import Emitter, Step
from numus.compiler.fuse import Group, place, squeeze
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops, lower_product_loops
from numus.compiler.scalar_ops import cast_value
from numus.kernels.contraction import Sizes, Work, contraction
from numus.kernels.packing import Matrix, Packed, Panels
from numus.kernels.tiles import choose
from numus.runtime.contract import Facts
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

SMALL = 1 << 12  # products of fewer multiplications are plain loops
LONG = 8192  # a longer inner axis is summed in pieces, each small enough for the caches


def lower_contraction(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Tiles where they pay; plain sums of products for thin and tiny ones."""
    product = group.members[0]
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    thin = min(m, n) == 1
    if thin or m * n * k < SMALL or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, facts)
    if k > LONG:
        return _in_pieces(group, layouts, facts)
    return _tiled(group, layouts, facts)


def _in_pieces(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """A long inner axis: the products of its pieces, then their sum with the epilogue."""
    product, *tail = group.members
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    pieces = -(-k // (LONG // 2))
    size = -(-k // pieces)
    pad = pieces * size - k

    def cut(x: Val, axis: int) -> Val:
        """The inner axis as (piece, place), pieces joined with the batch."""
        low = (0, 0, 0)
        high = tuple(pad if i == axis else 0 for i in range(3))
        shape = tuple(n + h for n, h in zip(x.shape, high, strict=True))
        if pad:
            x = Val(-20, "pad", "view", (x,), (low, high, (0, 0, 0)), shape, x.dtype)
        split = (*shape[:axis], pieces, size, *shape[axis + 1 :])
        x = Val(-21, "reshape", "view", (x,), split, split, x.dtype)
        order = (0, axis, *(i for i in range(1, 4) if i != axis))
        shape = tuple(split[i] for i in order)
        x = Val(-22, "permute", "view", (x,), order, shape, x.dtype)
        flat = (batch * pieces, *shape[2:])
        return Val(-23, "reshape", "view", (x,), flat, flat, x.dtype)

    wide = dt.compute_dtype(product.dtype)
    inputs = (cut(a, 2), cut(b, 1))
    parts = Val(-24, "contract", "contract", inputs, None, (batch * pieces, m, n), wide)
    first = Group(parts, group.position)
    first.stored = {parts}
    steps = _tiled(first, layouts, facts)
    layouts = {**layouts, parts: (m * n, n, 1)}
    split = (batch, pieces, m, n)
    viewed = Val(-25, "reshape", "view", (parts,), split, split, wide)
    total = Val(-26, "reduce_sum", "reduce", (viewed,), (1,), product.shape, product.dtype)
    rest = Group(total, group.position)
    rest.members = [total, *tail]
    rest.stored = {total if v is product else v for v in group.stored}
    redirect = {total: (product, 0, 0)}
    return steps + lower_loops(rest, layouts, facts, redirect, {product: total})


def _placement(x: Val, layouts: dict[Val, Shape], facts: Facts) -> tuple[bool, bool]:
    """Of the left operand: whether rows, not elements of a row, are neighbours in memory; and
    whether it can be read in place.
    """
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.number(n)) for i, n in enumerate(x.shape)]
    value = e.value(x, tuple(names))
    pieces = accesses(e)
    _, m, k = (unit_weight(pieces, name) for name in names)
    across = m > k
    if len(pieces) != 1 or x.dtype.is_complex or value.op != "load" or len(value.args) > 1:
        return across, False
    _, row, column = (pieces[0].get(name, 0) * x.dtype.itemsize for name in names)
    if across:  # every k lies in another line
        return across, x.shape[2] * column <= facts.cache_l2 // 4
    # rows a multiple of this apart would push each other out of the first cache
    return across, row % 4096 != 0 or x.shape[1] == 1


def _tiled(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    dtype = dt.compute_dtype(dt.real_of(product.dtype))
    parts = 2 if product.dtype.is_complex else 1
    inside = set(group.members)
    layouts = {v: s for v, s in layouts.items() if v not in inside}
    across, direct = _placement(a, layouts, facts)
    direct = direct and a.dtype is dtype
    tiles = choose(facts, dtype, parts, (batch, m, n, k), across, (direct, False))
    e = Emitter(layouts)
    row_tasks, column_tasks = -(-m // tiles.task_rows), -(-n // tiles.task_columns)
    sizes = Sizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (tiles.task_rows, tiles.task_columns)),
        *(e.parameter(x) for x in (row_tasks, column_tasks, tiles.depth)),
    )
    steps: list[Step] = []

    def operand(e: Emitter, x: Val, line: int) -> Matrix:
        """An operand as an expression, by row (line = 1) or by column (line = 2)."""

        def read(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Any:
            index = (i, p) if line == 1 else (p, i)
            value = e.value(x, (t if batch > 1 else ZERO, *index), mask)
            return cast_value(value, x.dtype, dt.compute_dtype(product.dtype))

        return Matrix(read, e.number(x.shape[line]))

    def side(x: Val, line: int, how: str) -> Matrix | Packed:
        """An operand as tasks find it: packed by a kernel before, or as it is."""
        if how != "shared":
            return operand(e, x, line)
        f = Emitter(layouts)
        depth = f.number(k)
        panels = Panels.of_rows(tiles, depth) if line == 1 else Panels.of_columns(tiles, depth)
        count = -(-x.shape[line] // panels.lines)
        size = batch * count * panels.lines * parts * (-(-k // tiles.width) * tiles.width)
        packed = Val(-30, "packed", "barrier", (), None, (size,), dtype)
        matrix = operand(f, x, line)
        g = ir.var("g")
        per_batch = f.parameter(count)
        t, p = ir.idiv(g, per_batch), ir.irem(g, per_batch)
        first = ir.mul(p, const(panels.lines))
        stop = ir.minimum(ir.add(first, const(panels.lines)), matrix.extent)
        start = panels.size(ir.mul(g, const(panels.lines)))
        buffer = f.buffer(packed, "write")
        body = panels.pack(buffer, start, matrix, t, first, stop, matrix.extent)
        steps.append(f.blocks("pack", g, body, batch * count, ("pack",)))
        e.layouts[packed] = (1,)
        depth = sizes.k
        panels = Panels.of_rows(tiles, depth) if line == 1 else Panels.of_columns(tiles, depth)
        return Packed(e.buffer(packed), ZERO, panels)

    def finish(t: Expr, i: Expr, j: Expr, value: Any) -> list[Stmt]:
        point = [x for x, extent in zip((t, i, j), product.shape, strict=True) if extent != 1]
        result = cast_value(value, dt.compute_dtype(product.dtype), product.dtype)
        e.hold(product, result)
        e.forget()
        out: list[Stmt] = []
        for v in group.members:
            if v in group.stored:
                assert v is product or squeeze(v.shape) == squeeze(product.shape)
                index = place(v.shape, point)
                out += e.store(v, index, e.value(v, index))
        return out

    light = len(group.members) == 1
    left, right = side(a, 1, tiles.left), side(b, 2, tiles.right)
    g = ir.var("g")
    body, scratch = contraction(Work(tiles, sizes, dtype, left, right, finish, light), g)
    e.scratch += scratch
    grid = batch * row_tasks * column_tasks
    notes = tuple(v.op for v in group.members)
    return [*steps, e.blocks("contraction", g, body, grid, notes)]
