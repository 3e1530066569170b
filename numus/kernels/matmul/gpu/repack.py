"""Repacking of a GEMM operand into the layout that TMA and asynchronous copies need.

The expression is evaluated once per element in memory order, and written contiguous along k (or
along m or n, if that is its order and will do); transposes go through shared memory.
"""

from __future__ import annotations

from collections.abc import Callable

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.problem import Emitted

ZERO = const(0)

TILE = 64  # rows and columns of the square of a block
THREADS = 256
STORE_VECTOR = 8  # contiguous elements that a thread stores

Pair = tuple[Expr, Expr]
_Read = Callable[[Expr, Expr, Expr | None], Expr]
_Write = Callable[[Expr, Expr, Expr], list[Stmt]]
Read = Callable[[Expr, Expr, Expr, Expr | None], Expr]  # (batch, row, column, mask)
Store = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]  # (batch, row, column, value)


def _square(block: Expr, dtype: DType, tiles: Pair) -> tuple[Expr, Expr, Expr, int, ir.Buffer]:
    """Batch, first row and first column of a block; leading dimension and buffer of its square."""
    batch, inner = divmod(block, tiles[0] * tiles[1])
    row, column = divmod(inner, tiles[1])
    ld = TILE + max(1, 4 // dtype.itemsize)  # against bank conflicts
    square = ir.Buffer("square", dtype, "scratch", const(TILE * ld))
    return batch, row * TILE, column * TILE, ld, square


def repack(
    block: Expr, dtype: DType, size: Pair, tiles: Pair, transposed: bool, read: Read, store: Store
) -> Emitted:
    """Rows and columns are those of the result. `transposed`: the source is contiguous along them
    the other way."""
    batch, row0, column0, ld, square = _square(block, dtype, tiles)
    whole = (row0 + TILE <= size[0]) & (column0 + TILE <= size[1])

    def copy(name: str, by_columns: bool, predicated: bool, read: _Read, write: _Write) -> Stmt:
        """A thread's elements, all of them loaded before the first store."""
        lane = ir.var(name)
        reads: list[Stmt] = []
        writes: list[Stmt] = []
        for i in range(TILE * TILE // THREADS):
            slow, fast = lane // TILE + i * THREADS // TILE, lane % TILE
            row, column = (fast, slow) if by_columns else (slow, fast)
            exists = (row0 + row < size[0]) & (column0 + column < size[1])
            value = ir.var(f"{name}{i}", dtype)
            reads.append(ir.Let(value, read(row, column, exists if predicated else None)))
            done = write(row, column, value)
            writes += [ir.If(exists, done)] if predicated else done
        return ir.For(lane, ZERO, const(THREADS), "lanes", reads + writes)

    def source(row: Expr, column: Expr, mask: Expr | None) -> Expr:
        return read(batch, row0 + row, column0 + column, mask)

    def target(row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        return store(batch, row0 + row, column0 + column, value)

    def to_shared(row: Expr, column: Expr, value: Expr) -> list[Stmt]:
        return [ir.Store(square, row * ld + column, value)]

    def from_shared(row: Expr, column: Expr, mask: Expr | None) -> Expr:
        return ir.load(square, row * ld + column)

    def version(predicated: bool) -> list[Stmt]:
        tag = "predicated" if predicated else "whole"
        if not transposed:
            return [copy(f"copy_{tag}", False, predicated, source, target)]
        load = copy(f"load_{tag}", True, predicated, source, to_shared)
        return [load, copy(f"store_{tag}", False, predicated, from_shared, target)]

    body: list[Stmt] = [ir.If(whole, version(False)), ir.If(~whole, version(True))]
    return body, [square] if transposed else []


def repack_padded(
    block: Expr,
    dtype: DType,
    extents: Pair,
    tiles: Pair,
    same_order: bool,
    in_bounds: Callable[[Expr, Expr], Expr],
    read: Read,
    limit: Expr | None,
    store: Store,
) -> Emitted:
    """`repack` for rows whose source is costly to find, and columns that come in whole vectors.

    `same_order`: the source is contiguous along columns; else along rows, and a thread has one row
    for all its loads. Zeros are stored to rows that are not `inside(batch, row)` and to columns
    from `limit` on (None: there are none).
    """
    batch, row0, column0, ld, square = _square(block, dtype, tiles)
    load_lane, store_lane = ir.var("load"), ir.var("store")
    fast, slow = load_lane % TILE, load_lane // TILE
    parts: dict[Expr, tuple[list[Stmt], list[Stmt], list[Stmt]]] = {}
    for j in range(TILE * TILE // THREADS):
        far = slow + j * THREADS // TILE
        tile_row, tile_column = (far, fast) if same_order else (fast, far)
        row, column = row0 + tile_row, column0 + tile_column
        exists = (row < extents[0]) & in_bounds(batch, row)
        loads, stores, clears = parts.setdefault(exists, ([], [], []))
        value = ir.var(f"v{j}", dtype)
        known = None if limit is None else column < limit
        found = read(batch, row, column, known)
        found = found if known is None else ir.select(known, found, zero(dtype))
        loads.append(ir.Let(value, found))
        to = tile_row * ld + tile_column
        stores.append(ir.Store(square, to, value))
        clears.append(ir.Store(square, to, zero(dtype)))
    body: list[Stmt] = []
    for exists, (loads, stores, clears) in parts.items():
        body += [ir.If(exists, [*loads, *stores]), ir.If(~exists, clears)]
    out: list[Stmt] = [ir.For(load_lane, ZERO, const(THREADS), "lanes", body)]
    vectors = TILE // STORE_VECTOR
    results: list[Stmt] = []
    for i in range(TILE * vectors // THREADS):
        tile_row = store_lane // vectors + i * THREADS // vectors
        tile_column = store_lane % vectors * STORE_VECTOR
        row, column = row0 + tile_row, column0 + tile_column
        base = tile_row * ld + tile_column
        values = [ir.var(f"w{i}_{u}", dtype) for u in range(STORE_VECTOR)]
        body = [ir.Let(v, ir.load(square, base + u)) for u, v in enumerate(values)]
        for u, v in enumerate(values):
            body += store(batch, row, column + u, v)
        results.append(ir.If((row < extents[0]) & (column < extents[1]), body))
    return [*out, ir.For(store_lane, ZERO, const(THREADS), "lanes", results)], [square]
