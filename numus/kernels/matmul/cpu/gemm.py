"""CPU GEMM in register tiles (BLIS), with any expression fused at both ends.

A task computes some rows by some columns of C on one thread. Its block of B stays in L2 while rows
of A pass by; operands are read in place where their layout allows, packed by the task itself, or
packed before for several tasks. Every element of C is a sum over fixed blocks of k, added up one by
one: no choice of tiles shows in the result, and its error does not grow with every element of k.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.blocking import CACHE_LINE_BYTES, SUM_BLOCK, Blocking
from numus.kernels.matmul.cpu.panels import Matrix, MatrixRows, Packed, Panels

ZERO, FALSE = const(0), const(False, dt.bool_)

UNROLL_K = 4
PREFETCH_K = 8  # steps in which rows of B come from L2, measured on Cascade Lake

Epilogue = Callable[[Expr, Expr, Expr, Any, Expr | None], list[Stmt]]  # (batch, m, n, value, mask)
Operand = Matrix | Packed
Accumulator = list[ir.Register]  # real and imaginary part, if complex


@dataclass(slots=True)
class GemmSizes:
    """Sizes that a launch passes."""

    m: Expr
    n: Expr
    k: Expr
    task_rows: Expr
    task_columns: Expr
    tasks_m: Expr
    tasks_n: Expr
    block_k: Expr


@dataclass(slots=True)
class GemmCall:
    """Arguments of the kernel; operands are packed, or expressions."""

    blocking: Blocking
    sizes: GemmSizes
    dtype: DType  # of the accumulators
    a: Operand
    b: Operand
    epilogue: Epilogue
    store_only: bool  # the epilogue is a store: cheap enough to unroll

    @property
    def stores_from_registers(self) -> bool:
        """All complete tiles do, partial ones too."""
        return self.store_only and (self.blocking.whole_columns or self.blocking.masked_stores)


def gemm(call: GemmCall, task: Expr) -> tuple[list[Stmt], list[ir.Buffer]]:
    """Statements and scratch of a task."""
    blocking, s = call.blocking, call.sizes
    out: list[Stmt] = []

    def named(name: str, value: Expr) -> Expr:
        """A value that is computed once for all tiles."""
        v = ir.var(name)
        out.append(ir.Let(v, value))
        return v

    batch = named("batch", task // (s.tasks_m * s.tasks_n))
    # consecutive tasks share a block of B, which stays in L2
    m0 = named("m0", task % s.tasks_m * s.task_rows)
    n0 = named("n0", task // s.tasks_m % s.tasks_n * s.task_columns)
    m1 = named("m1", ir.minimum(m0 + s.task_rows, s.m))
    n1 = named("n1", ir.minimum(n0 + s.task_columns, s.n))
    scratch = []
    a, b = call.a, call.b
    if isinstance(a, Matrix) and blocking.a_access != "direct":
        panels = Panels(blocking, s.k, of_a=True)
        buffer = ir.Buffer("packed_a", call.dtype, "scratch", panels.size(s.task_rows))
        out += panels.pack(buffer, ZERO, MatrixRows(a, batch, m0, m1))
        a = Packed(buffer, ZERO, panels)
        scratch.append(buffer)
    elif isinstance(a, Packed):
        a = a.moved(batch, m0, s.m)
    edge = b  # B for the last, partial tile of a row
    if isinstance(b, Matrix) and not (blocking.b_access == "direct" and blocking.whole_columns):
        panels = Panels(blocking, s.k, of_a=False)
        columns, first = s.task_columns, n0
        if blocking.b_access == "direct":  # pack only the partial tile
            columns = const(blocking.columns)
            first = n1 - (n1 - n0) % columns
        buffer = ir.Buffer("packed_b", call.dtype, "scratch", panels.size(columns))
        out += panels.pack(buffer, ZERO, MatrixRows(b, batch, first, n1))
        edge = Packed(buffer, ZERO - panels.size(first - n0), panels)
        if blocking.b_access != "direct":
            b = edge
        scratch.append(buffer)
    elif isinstance(b, Packed):
        b = edge = b.moved(batch, n0, s.n)
    ip, jp = ir.var("ip"), ir.var("jp")
    start, stop, offset = ZERO, s.k, ZERO
    size = const(blocking.rows * blocking.columns * blocking.parts)
    if blocking.k_blocked:  # partial sums of all tiles of a task wait in memory
        start = ir.var("k_start")
        stop = ir.minimum(start + s.block_k, s.k)
        offset = (ip * s.task_columns + jp * blocking.rows) * blocking.parts
        size = s.task_rows * s.task_columns * blocking.parts
    totals = size
    if blocking.skinny and blocking.sum_blocked:
        size = size * 2
    partial = ir.Buffer("partial", call.dtype, "scratch", size)
    scratch.append(partial)
    tile = (m0 + ip, n0 + jp, ip, jp, m1, n1)
    at = _TilePosition(batch, *tile, start, stop, s.k, partial, offset, totals)
    body = _tile(call, a, b, edge, at)
    for v, extent, step in ((jp, n1 - n0, blocking.columns), (ip, m1 - m0, blocking.rows)):
        body = [ir.For(v, ZERO, extent, "serial", body, step=const(step))]
    if blocking.k_blocked:
        body = [ir.For(start, ZERO, s.k, "serial", body, step=s.block_k)]
    return [*out, *body], scratch


@dataclass(slots=True)
class _TilePosition:
    """A register tile: panels ip and jp of a task that ends at m1 and n1, from k0 to k1; partial
    sums at k1 are in memory."""

    batch: Expr
    m: Expr
    n: Expr
    ip: Expr
    jp: Expr
    m1: Expr
    n1: Expr
    k0: Expr
    k1: Expr
    k: Expr
    partial: ir.Buffer
    offset: Expr
    totals: Expr  # in `partial`, from the sums of a block to those of all blocks before

    @property
    def rows(self) -> Expr:
        return self.m1 - self.m

    @property
    def columns(self) -> Expr:
        return self.n1 - self.n

    @property
    def complete(self) -> Expr:
        """All of k is summed."""
        return self.k1.eq(self.k) if self.k1 is not self.k else ~FALSE

    def full(self, blocking: Blocking) -> Expr:
        """Complete, and all of the tile is in bounds."""
        full = self.complete & (self.rows >= blocking.rows)
        return full if blocking.whole_columns else full & (self.columns >= blocking.columns)


def _tile(call: GemmCall, a: Operand, b: Operand, edge: Operand, at: _TilePosition) -> list[Stmt]:
    """One register tile; the last of a row, from the packed edge of B, with about as many vectors
    as it takes."""
    blocking = call.blocking
    out: list[Stmt] = []
    vectors = blocking.vectors
    if blocking.whole_columns or edge is not b:
        out = _register_tile(call, a, b, at, vectors)
    if not blocking.whole_columns:
        max_columns = blocking.columns
        if edge is not b:
            out = [ir.If(at.columns >= max_columns, out)]
            max_columns -= 1
        while vectors:
            fits = at.columns > vectors // 2 * blocking.width
            if vectors < blocking.vectors or edge is not b:
                fits = fits & (at.columns <= max_columns)
            out.append(ir.If(fits, _register_tile(call, a, edge, at, vectors)))
            vectors //= 2
            max_columns = vectors * blocking.width
    return out + _store_partial(call, at)


def _register_tile(
    call: GemmCall, a: Operand, b: Operand, at: _TilePosition, vectors: int
) -> list[Stmt]:
    """A panel of A times a panel of B, then the epilogue."""
    blocking, dtype = call.blocking, call.dtype
    rows, width, parts = blocking.rows, blocking.width, blocking.parts
    lane, k = ir.var("lane"), ir.var("k")
    sums = [
        [
            [ir.Register(f"c{i}_{v}_{p}", dtype, lanes=True) for p in range(parts)]
            for v in range(vectors)
        ]
        for i in range(rows)
    ]

    def step(k: Expr, u: int) -> list[Stmt]:
        """The outer product of k + u."""
        out: list[Stmt] = []
        bs = []
        for v in range(vectors):
            value = b.columns(at.batch, k + u, at.n, at.jp, lane, v * width)
            names = [ir.var(f"b{u}_{v}_{p}", dtype) for p in range(parts)]
            out += [ir.Let(name, x) for name, x in zip(names, value, strict=True)]
            bs.append(names)
        for i in range(rows):
            x = a.row(at.batch, at.m, at.ip, i, k, u)
            for v in range(vectors):
                out += _multiply_add(sums[i][v], x, bs[v], blocking.fma)
        return out

    registers = [
        (c, at.offset + lane + (i * parts + p) * blocking.columns + v * width)
        for i, row in enumerate(sums)
        for v, accumulator in enumerate(row)
        for p, c in enumerate(accumulator)
    ]
    count = min(UNROLL_K, width)  # K-major panels are packed by vectors
    prefetches = _prefetch_a(call, a, at, k, count)
    if vectors == blocking.vectors:
        prefetches += _prefetch_b(call, b, at, k, count)
    unrolled = [s for u in range(count) for s in (*step(k, u), *prefetches[u::count])]
    rest = ir.var("k_rest")

    def block(k0: Expr, k1: Expr) -> list[Stmt]:
        """One running sum over a block of k."""
        whole = k1 - (k1 - k0) % count
        return [
            *(ir.Set(r, const(0, dtype)) for r, _ in registers),
            ir.For(k, k0, whole, "serial", unrolled, step=const(count)),
            ir.For(rest, whole, k1, "serial", step(rest, 0)),
        ]

    def add(offset: Expr) -> list[Stmt]:
        return [ir.Set(r, ir.load(at.partial, i + offset) + ir.read(r)) for r, i in registers]

    def store(offset: Expr) -> list[Stmt]:
        return [ir.Store(at.partial, i + offset, ir.read(r)) for r, i in registers]

    spill = store(ZERO)
    if not blocking.sum_blocked:
        body = block(at.k0, at.k1)
        if blocking.k_blocked:
            body.append(ir.If(at.k0 > 0, add(ZERO)))
    elif blocking.skinny:  # several blocks of k make a SUM_BLOCK
        body = [*block(at.k0, at.k1), ir.If(at.k0 % SUM_BLOCK > 0, add(ZERO))]
        last = (at.k1 % SUM_BLOCK).eq(0)
        body.append(ir.If((last | at.complete) & (at.k1 > SUM_BLOCK), add(at.totals)))
        last = last & ~at.complete
        spill = [ir.If(last, store(at.totals)), ir.If(~last, spill)]
    else:
        # Totals are added up in memory: where registers hold them from block to block, LLVM copies
        # and spills them around the innermost loop.
        start = ir.var("sum_start")
        total: list[Stmt] = [
            ir.Store(at.partial, i, ir.load(at.partial, i) + ir.read(r)) for r, i in registers
        ]
        one = block(start, ir.minimum(start + SUM_BLOCK, at.k1))
        one += [ir.If(start > 0, total), ir.If(start.eq(0), spill)]
        body = [ir.For(start, at.k0, at.k1, "serial", one, step=const(SUM_BLOCK))]
        body += [ir.Set(r, ir.load(at.partial, i)) for r, i in registers]
        spill = []
    body += _epilogue(call, at, sums, lane, spill) if call.store_only else spill
    return [ir.For(lane, ZERO, const(width), "lanes", body)]


def _epilogue(
    call: GemmCall,
    at: _TilePosition,
    sums: Sequence[Sequence[Accumulator]],
    lane: Expr,
    spill: list[Stmt],
) -> list[Stmt]:
    """Stores from registers; partial sums, and tiles that cannot be stored so, to memory."""
    blocking = call.blocking

    def store(i: int, masked: bool) -> list[Stmt]:
        """Row i through the epilogue."""
        out: list[Stmt] = []
        for v, parts in enumerate(sums[i]):
            n = at.n + lane + v * blocking.width
            value = _scalar([ir.read(r) for r in parts])
            mask = n < at.n1 if masked else None
            out += call.epilogue(at.batch, at.m + i, n, value, mask)
        return out

    full = at.full(blocking) if len(sums[0]) == blocking.vectors else FALSE
    out: list[Stmt] = [ir.If(full, [s for i in range(blocking.rows) for s in store(i, False)])]
    if not call.stores_from_registers:
        return [*out, ir.If(~full, spill)]
    partial: list[Stmt] = [
        ir.If(at.rows > i, store(i, not blocking.whole_columns)) for i in range(blocking.rows)
    ]
    out.append(ir.If(at.complete & ~full, partial))
    return [*out, ir.If(~at.complete, spill)] if blocking.k_blocked else out


def _prefetch_a(call: GemmCall, a: Operand, at: _TilePosition, k: Expr, count: int) -> list[Stmt]:
    """Prefetches of the next tile's rows, a share for `count` steps of k. Hardware prefetchers find
    such rows only where each has a page to itself."""
    blocking = call.blocking
    if not blocking.prefetches_a:
        return []
    assert isinstance(a, Matrix)
    first = a.read(at.batch, at.m + blocking.rows, ZERO, None)
    line = CACHE_LINE_BYTES // call.dtype.itemsize
    base = first.args[0] + k * blocking.rows
    return [
        ir.Prefetch(first.attr, base + i, write=False, level=2)
        for i in range(0, count * blocking.rows, line)
    ]


def _prefetch_b(call: GemmCall, b: Operand, at: _TilePosition, k: Expr, count: int) -> list[Stmt]:
    """Prefetches of the rows of a packed panel that `count` steps read PREFETCH_K steps later."""
    blocking = call.blocking
    if not (blocking.prefetches_b and isinstance(b, Packed)):
        return []
    first = b.columns(at.batch, k + PREFETCH_K, at.n, at.jp, ZERO, 0)[0]
    line = CACHE_LINE_BYTES // call.dtype.itemsize
    return [
        ir.Prefetch(first.attr, first.args[0] + i, write=False)
        for i in range(0, count * blocking.columns * blocking.parts, line)
    ]


def _scalar(parts: list[Expr]) -> Any:
    return parts[0] if len(parts) == 1 else tuple(parts)


def _multiply_add(sums: Accumulator, a: list[Expr], b: list[Expr], fma: bool) -> list[Stmt]:
    """sums += a * b; of complex numbers, with one rounding per product and sum."""

    def add(to: ir.Register, x: Expr, y: Expr) -> Stmt:
        old = ir.read(to)
        return ir.Set(to, ir.fma(x, y, old) if fma else old + x * y)

    if len(sums) == 1:
        return [add(sums[0], a[0], b[0])]
    real, imaginary = sums
    return [
        *(add(real, a[0], b[0]), add(imaginary, a[0], b[1])),
        *(add(real, -a[1], b[1]), add(imaginary, a[1], b[0])),
    ]


def _store_partial(call: GemmCall, at: _TilePosition) -> list[Stmt]:
    """The part of a tile that is in bounds, from memory through the epilogue."""
    if call.stores_from_registers:
        return []
    blocking = call.blocking
    i, j = ir.var("out_i"), ir.var("out_j")
    rows = ir.minimum(at.rows, const(blocking.rows))

    def store(mask: Expr | None) -> list[Stmt]:
        value = []
        for p in range(blocking.parts):
            index = at.offset + (i * blocking.parts + p) * blocking.columns + j
            value.append(ir.load(at.partial, index))
        stores = call.epilogue(at.batch, at.m + i, at.n + j, _scalar(value), mask)
        unroll = blocking.vectors if mask is None else 1
        across = ir.For(j, ZERO, const(blocking.columns), "lanes", stores, unroll=unroll)
        return [ir.For(i, ZERO, rows, "serial", [across])]

    ready = at.complete & ~at.full(blocking) if call.store_only else at.complete
    if blocking.whole_columns:
        return [ir.If(ready, store(None))]
    masked = store(at.n + j < at.n1)
    if call.store_only:
        return [ir.If(ready, masked)]
    whole = at.columns >= blocking.columns
    return [ir.If(ready & whole, store(None)), ir.If(ready & ~whole, masked)]
