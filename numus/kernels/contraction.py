"""The tiled contraction: C = A B in register tiles, operands packed, any code fused at both ends.

A task is a tile of C and runs on one thread. It packs one operand whole (A where its share fits
into the second cache, else B), then the other in pieces that stay in that cache while the first
passes by. Packing reads the operands through whatever expression stands for them (views, casts,
masks), once per element; what leaves a register tile goes through the epilogue. Each element of C
is one running sum over k, so no choice of tiles shows in the result.

    packed B    [panel of columns][k][columns of a panel]     rows of vectors
    packed A    [panel of rows][k / W][row][W]                 W neighbours along k, to be broadcast
            or  [panel of rows][k][row]                        where A has its neighbours along m
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus.compiler import ir
from numus.compiler.ir import Expr, Stmt, const
from numus.dtypes import DType
from numus.runtime.contract import Facts

ZERO, ONE = const(0), const(1)

LINES = 8  # of B that are packed together
WORTH_A_THREAD = 1 << 20  # multiplications that take longer than waking a thread
STRETCH = 16  # vectors of a row of A that are packed together


@dataclass(frozen=True, slots=True)
class Tiles:
    """A schedule as data. The first three shape the code, the others are given at launch."""

    rows: int  # of a register tile
    vectors: int  # columns of a register tile, in vectors
    width: int  # lanes of a vector
    piece: int  # rows of A, or columns of B, packed at a time
    task_rows: int
    task_columns: int
    whole_a: bool  # pack A whole and B in pieces; else the other way round
    across: bool = False  # A has its neighbours along m: pack it row by row of k

    @property
    def columns(self) -> int:
        return self.vectors * self.width


def choose(facts: Facts, dtype: DType, batch: int, m: int, n: int, k: int) -> Tiles:
    """Tile sizes from the target's registers and caches and the problem's size."""
    width = facts.lanes_bytes // dtype.itemsize
    if facts.vector_registers >= 32:
        rows, vectors = (8, 3) if facts.lanes_bytes == 16 else (14, 2)
    else:
        rows, vectors = 6, 2
    columns = vectors * width
    line = max(k, 1) * dtype.itemsize  # bytes of a row of A, of a column of B
    units = min(facts.parallel_units, max(1, batch * m * n * k // WORTH_A_THREAD))
    task_rows, task_columns = _tasks(units, batch, m, n, rows, columns)
    whole_a = task_rows * line <= facts.cache_l2
    if whole_a:
        piece = max(1, facts.cache_l2 // 2 // line // columns) * columns
        piece = min(piece, task_columns)
    else:
        piece = max(1, facts.cache_l2 // 4 // line // rows) * rows
        task_columns = min(task_columns, 2048 // columns * columns)
    return Tiles(rows, vectors, width, piece, task_rows, task_columns, whole_a)


def _tasks(units: int, batch: int, m: int, n: int, rows: int, columns: int) -> tuple[int, int]:
    """The size of a task: enough of them to keep every unit busy, none too thin.

    Every task packs the rows of A and the columns of B that it needs, so cutting along the columns
    packs A again, along the rows B. Packing A is the cheaper of the two: columns are cut first.
    """
    row_panels, column_panels = -(-m // rows), -(-n // columns)
    wanted = -(-units // batch)
    if m * n > 1 << 21:  # large enough to be cut finer, which evens out what threads get
        wanted = -(-2 * units // batch)
    across = along = 1
    while across * along < wanted:
        can_columns = column_panels >= 2 * along
        can_rows = row_panels >= 2 * across
        if can_columns and (n >= 768 * along or n * across >= m * along or not can_rows):
            along *= 2
        elif can_rows:
            across *= 2
        else:
            break
    return -(-row_panels // across) * rows, -(-column_panels // along) * columns


@dataclass(slots=True)
class Sizes:
    """The numbers of a launch, as expressions."""

    m: Expr
    n: Expr
    k: Expr
    piece: Expr
    task_rows: Expr
    task_columns: Expr
    row_tasks: Expr
    column_tasks: Expr


Read = Callable[[Expr, Expr, Expr, Expr | None], Any]
Epilogue = Callable[[Expr, Expr, Expr, Expr], list[Stmt]]


def contraction(
    tiles: Tiles, sizes: Sizes, dtype: DType, g: Expr, left: Read, right: Read, finish: Epilogue
) -> tuple[list[Stmt], list[ir.Buffer]]:
    """The work of task g. `left(batch, m, k, mask)` and `right(batch, k, n, mask)` are elements of
    the operands; `finish(batch, m, n, value)` stores an element of the result.
    """
    s = sizes
    batch = ir.idiv(g, ir.mul(s.row_tasks, s.column_tasks))
    m0 = ir.mul(ir.irem(ir.idiv(g, s.column_tasks), s.row_tasks), s.task_rows)
    n0 = ir.mul(ir.irem(g, s.column_tasks), s.task_columns)
    m1 = ir.minimum(ir.add(m0, s.task_rows), s.m)
    n1 = ir.minimum(ir.add(n0, s.task_columns), s.n)
    width, columns = const(tiles.width), const(tiles.columns)
    k_blocks = _up(s.k, width)
    padded_k = ir.mul(k_blocks, width)
    a_rows, b_columns = (s.task_rows, s.piece) if tiles.whole_a else (s.piece, s.task_columns)
    packed_a = ir.Buffer("packed_a", dtype, "scratch", ir.mul(padded_k, a_rows))
    packed_b = ir.Buffer("packed_b", dtype, "scratch", ir.mul(padded_k, b_columns))
    tile = ir.Buffer("tile", dtype, "scratch", const(tiles.rows * tiles.columns))

    def pack_a(start: Expr, stop: Expr) -> list[Stmt]:
        pack = _pack_a_across if tiles.across else _pack_a
        return pack(packed_a, left, dtype, tiles, batch, s.k, k_blocks, start, stop, s.m)

    def pack_b(start: Expr, stop: Expr) -> list[Stmt]:
        return _pack_b(packed_b, right, dtype, batch, s.k, padded_k, start, stop, columns)

    def multiply(m_start: Expr, m_stop: Expr, n_start: Expr, n_stop: Expr) -> Stmt:
        jp, ip = ir.var("jp"), ir.var("ip")
        a0, b0 = ir.mul(ip, padded_k), ir.mul(jp, padded_k)
        body = _register_tile(tiles, dtype, packed_a, packed_b, tile, a0, b0, k_blocks)
        row, column = ir.add(m_start, ip), ir.add(n_start, jp)
        body += _store_tile(tiles, tile, batch, row, column, m_stop, n_stop, finish)
        loops = [
            (ip, ir.sub(m_stop, m_start), const(tiles.rows)),
            (jp, ir.sub(n_stop, n_start), columns),
        ]
        if not tiles.whole_a:  # the piece that stays in the cache is what the inner loop runs over
            loops.reverse()
        for v, stop, step in reversed(loops):
            body = [ir.For(v, ZERO, stop, "serial", body, step=step)]
        return body[0]

    if tiles.whole_a:
        nb = ir.var("nb")
        end = ir.minimum(ir.add(nb, s.piece), n1)
        pieces = [*pack_b(nb, end), multiply(m0, m1, nb, end)]
        out = [*pack_a(m0, m1), ir.For(nb, n0, n1, "serial", pieces, step=s.piece)]
    else:
        mb = ir.var("mb")
        end = ir.minimum(ir.add(mb, s.piece), m1)
        pieces = [*pack_a(mb, end), multiply(mb, end, n0, n1)]
        out = [*pack_b(n0, n1), ir.For(mb, m0, m1, "serial", pieces, step=s.piece)]
    return out, [packed_b, packed_a, tile]


def _up(a: Expr, b: Expr) -> Expr:
    return ir.idiv(ir.add(a, ir.sub(b, ONE)), b)


def _pack_b(
    packed: ir.Buffer,
    right: Read,
    dtype: DType,
    batch: Expr,
    k_size: Expr,
    padded_k: Expr,
    n0: Expr,
    n1: Expr,
    columns: Expr,
) -> list[Stmt]:
    """Columns n0 … n1 of B, panel by panel; zeros beyond the last column and the last k."""
    k, p, j = ir.var("pack_k"), ir.var("pack_p"), ir.var("pack_j")
    n = ir.add(n0, ir.add(p, j))
    at = ir.add(ir.add(ir.mul(p, padded_k), ir.mul(k, columns)), j)
    inside = n < n1
    value = ir.select(inside, right(batch, k, n, inside), const(0, dtype))
    zk, zp, zj = ir.var("zero_k"), ir.var("zero_p"), ir.var("zero_j")
    blank = ir.add(ir.add(ir.mul(zp, padded_k), ir.mul(zk, columns)), zj)
    span = ir.sub(n1, n0)
    kb = ir.var("pack_kb")
    line = ir.For(j, ZERO, columns, "lanes", [ir.Store(packed, at, value)])
    # several lines at a time, so that a panel is written in longer pieces
    lines = ir.For(k, kb, ir.minimum(ir.add(kb, const(LINES)), k_size), "serial", [line])
    panels = ir.For(p, ZERO, span, "serial", [lines], step=columns)
    return [
        ir.For(kb, ZERO, k_size, "serial", [panels], step=const(LINES)),
        ir.For(
            zk,
            k_size,
            padded_k,
            "serial",
            [
                ir.For(
                    zp,
                    ZERO,
                    span,
                    "serial",
                    [
                        ir.For(
                            zj, ZERO, columns, "lanes", [ir.Store(packed, blank, const(0, dtype))]
                        )
                    ],
                    step=columns,
                )
            ],
        ),
    ]


def _pack_a(
    packed: ir.Buffer,
    left: Read,
    dtype: DType,
    tiles: Tiles,
    batch: Expr,
    k_size: Expr,
    k_blocks: Expr,
    m0: Expr,
    m1: Expr,
    m_size: Expr,
) -> list[Stmt]:
    """Rows m0 … m1 of A, a vector of neighbours along k at a time; zeros beyond the last k.

    A panel's rows beyond the last are that last row again: their results are never stored.
    """
    rows, width = const(tiles.rows), const(tiles.width)
    p, i, kb, kk = (ir.var(f"pack_{x}") for x in ("r", "i", "kb", "kk"))
    k = ir.add(ir.mul(kb, width), kk)
    m = ir.minimum(ir.add(m0, ir.add(p, i)), ir.sub(m_size, ONE))
    panel = ir.mul(p, ir.mul(k_blocks, width))
    at = ir.add(ir.add(ir.add(panel, ir.mul(kb, ir.mul(rows, width))), ir.mul(i, width)), kk)
    inside = k < k_size
    value = ir.select(inside, left(batch, m, k, inside), const(0, dtype))
    vector = ir.For(kk, ZERO, width, "lanes", [ir.Store(packed, at, value)])
    # a stretch of every row at a time, so that what is written stays close together
    kq = ir.var("pack_kq")
    stop = ir.minimum(ir.add(kq, const(STRETCH)), k_blocks)
    row = ir.For(i, ZERO, rows, "serial", [ir.For(kb, kq, stop, "serial", [vector])])
    stretch = ir.For(kq, ZERO, k_blocks, "serial", [row], step=const(STRETCH))
    return [ir.For(p, ZERO, ir.sub(m1, m0), "serial", [stretch], step=rows)]


def _pack_a_across(
    packed: ir.Buffer,
    left: Read,
    dtype: DType,
    tiles: Tiles,
    batch: Expr,
    k_size: Expr,
    k_blocks: Expr,
    m0: Expr,
    m1: Expr,
    m_size: Expr,
) -> list[Stmt]:
    """The same for an A whose rows are neighbours: line by line of k; zeros beyond both ends."""
    rows = const(tiles.rows)
    padded_k = ir.mul(k_blocks, const(tiles.width))
    k, p, i = (ir.var(f"pack_{x}") for x in ("ka", "ra", "ia"))
    m = ir.add(m0, ir.add(p, i))
    at = ir.add(ir.add(ir.mul(p, padded_k), ir.mul(k, rows)), i)
    inside = (m < m_size) & (k < k_size)
    value = ir.select(inside, left(batch, m, k, inside), const(0, dtype))
    line = ir.For(i, ZERO, rows, "lanes", [ir.Store(packed, at, value)])
    panels = ir.For(p, ZERO, ir.sub(m1, m0), "serial", [line], step=rows)
    return [ir.For(k, ZERO, padded_k, "serial", [panels])]


def _register_tile(
    tiles: Tiles,
    dtype: DType,
    packed_a: ir.Buffer,
    packed_b: ir.Buffer,
    tile: ir.Buffer,
    a0: Expr,
    b0: Expr,
    k_blocks: Expr,
) -> list[Stmt]:
    """One panel of A times one panel of B, kept in registers, then laid into `tile`."""
    j, kb, kk = ir.var("lane"), ir.var("kb"), ir.var("kk")
    rows, vectors, width = tiles.rows, tiles.vectors, tiles.width
    sums = [
        [ir.Register(f"c{i}_{v}", dtype, lanes=True) for v in range(vectors)] for i in range(rows)
    ]
    unroll = min(4, width)
    a_block = ir.add(a0, ir.mul(kb, const(rows * width)))
    b_block = ir.add(b0, ir.mul(kb, const(width * tiles.columns)))
    step: list[Stmt] = []
    for u in range(unroll):
        b_row = ir.add(b_block, ir.mul(ir.add(kk, const(u)), const(tiles.columns)))
        bs = []
        for v in range(vectors):
            name = ir.var(f"b{u}_{v}", dtype)
            step.append(ir.Let(name, ir.load(packed_b, ir.add(ir.add(b_row, j), const(v * width)))))
            bs.append(name)
        for i in range(rows):
            if tiles.across:
                at = ir.add(a_block, ir.add(ir.mul(kk, const(rows)), const(u * rows + i)))
            else:
                at = ir.add(ir.add(a_block, kk), const(i * width + u))
            a = ir.load(packed_a, at)
            for v in range(vectors):
                old = ir.read(sums[i][v])
                new = ir.fma(a, bs[v], old) if dtype.kind == "float" else old + a * bs[v]
                step.append(ir.Set(sums[i][v], new))
    body: list[Stmt] = [
        ir.Set(sums[i][v], const(0, dtype)) for i in range(rows) for v in range(vectors)
    ]
    body.append(
        ir.For(
            kb,
            ZERO,
            k_blocks,
            "serial",
            [ir.For(kk, ZERO, const(width), "serial", step, step=const(unroll))],
        )
    )
    for i in range(rows):
        for v in range(vectors):
            at = ir.add(j, const(i * tiles.columns + v * width))
            body.append(ir.Store(tile, at, ir.read(sums[i][v])))
    return [ir.For(j, ZERO, const(width), "lanes", body)]


def _store_tile(
    tiles: Tiles,
    tile: ir.Buffer,
    batch: Expr,
    m: Expr,
    n: Expr,
    m1: Expr,
    n1: Expr,
    finish: Epilogue,
) -> list[Stmt]:
    """The part of a register tile that lies within the result, through the epilogue."""
    i, j = ir.var("out_i"), ir.var("out_j")
    value = ir.load(tile, ir.add(ir.mul(i, const(tiles.columns)), j))
    rows = ir.minimum(ir.sub(m1, m), const(tiles.rows))
    columns = ir.minimum(ir.sub(n1, n), const(tiles.columns))
    store = finish(batch, ir.add(m, i), ir.add(n, j), value)
    return [
        ir.For(i, ZERO, rows, "serial", [ir.For(j, ZERO, columns, "lanes", store)]),
    ]
