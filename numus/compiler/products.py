"""Contraction groups: which schedule a product gets, and its epilogue."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from numus import dtypes as dt
from numus.compiler import ir
from numus.compiler.affine import accesses, unit_weight
from numus.compiler.emit import Emitter, Step
from numus.compiler.fuse import Group, place, squeeze
from numus.compiler.ir import Expr, Stmt, const
from numus.compiler.local import Val
from numus.compiler.loops import lower_loops, lower_product_loops
from numus.kernels.contraction import Sizes, choose, contraction
from numus.runtime.contract import Facts
from numus.shapes import Shape

ZERO, ONE = const(0), const(1)

SMALL = 1 << 12  # products of fewer multiplications are plain loops
LONG = 8192  # a longer inner axis is summed in pieces, each small enough for the caches


def lower_contraction(group: Group, layouts: dict[Val, Shape], facts: Facts) -> list[Step]:
    """Tiles where they pay; plain sums of products for complex, thin and tiny ones."""
    product = group.members[0]
    _, m, n = product.shape
    k = product.inputs[0].shape[2]
    thin = min(m, n) == 1
    if product.dtype.is_complex or thin or m * n * k < SMALL or product.dtype is dt.bool_:
        return lower_product_loops(group, layouts, facts)
    if k > LONG:
        return _in_pieces(group, layouts, facts)
    return [_tiled(group, layouts, facts)]


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
    steps = [_tiled(first, layouts, facts)]
    layouts = {**layouts, parts: (m * n, n, 1)}
    split = (batch, pieces, m, n)
    viewed = Val(-25, "reshape", "view", (parts,), split, split, wide)
    total = Val(-26, "reduce_sum", "reduce", (viewed,), (1,), product.shape, product.dtype)
    rest = Group(total, group.position)
    rest.members = [total, *tail]
    rest.stored = {total if v is product else v for v in group.stored}
    redirect = {total: (product, 0, 0)}
    return steps + lower_loops(rest, layouts, facts, redirect, {product: total})


def _neighbours(x: Val, layouts: dict[Val, Shape]) -> int:
    """Along which axis most of what an operand reads lies next to each other in memory."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.number(n)) for i, n in enumerate(x.shape)]
    e.value(x, tuple(names))
    pieces = accesses(e)
    return max((2, 1), key=lambda axis: unit_weight(pieces, names[axis]))


def _tiled(group: Group, layouts: dict[Val, Shape], facts: Facts) -> Step:
    product = group.members[0]
    a, b = product.inputs
    batch, m, n = product.shape
    k = a.shape[2]
    dtype = dt.compute_dtype(product.dtype)
    inside = set(group.members)
    layouts = {v: s for v, s in layouts.items() if v not in inside}
    tiles = choose(facts, dtype, batch, m, n, k)
    if _neighbours(a, layouts) == 1:
        tiles = replace(tiles, across=True)
    e = Emitter(layouts)
    row_tasks, column_tasks = -(-m // tiles.task_rows), -(-n // tiles.task_columns)
    sizes = Sizes(
        *(e.number(x) for x in (m, n, k)),
        *(e.parameter(x) for x in (tiles.piece, tiles.task_rows, tiles.task_columns)),
        *(e.parameter(x) for x in (row_tasks, column_tasks)),
    )

    def left(t: Expr, i: Expr, p: Expr, mask: Expr | None) -> Expr:
        value: Expr = e.value(a, (t if batch > 1 else ZERO, i, p), mask)
        return value.cast(dtype)

    def right(t: Expr, p: Expr, j: Expr, mask: Expr | None) -> Expr:
        value: Expr = e.value(b, (t if batch > 1 else ZERO, p, j), mask)
        return value.cast(dtype)

    def finish(t: Expr, i: Expr, j: Expr, value: Any) -> list[Stmt]:
        point = [x for x, extent in zip((t, i, j), product.shape, strict=True) if extent != 1]
        result = value.cast(product.dtype)
        e.known[product] = lambda index: result
        out: list[Stmt] = []
        for v in group.members:
            if v in group.stored:
                assert v is product or squeeze(v.shape) == squeeze(product.shape)
                index = place(v.shape, point)
                out += e.store(v, index, e.value(v, index))
        return out

    g = ir.var("g")
    body, scratch = contraction(tiles, sizes, dtype, g, left, right, finish)
    e.scratch += scratch
    grid = batch * row_tasks * column_tasks
    notes = tuple(v.op for v in group.members)
    loop = ir.For(g, ZERO, e.parameter(grid), "grid", body)
    return e.finish("contraction", [loop], grid, notes)
