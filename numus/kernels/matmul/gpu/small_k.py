"""Small-K GEMM: bound by stores of C, so B stays in registers, without shared memory.

A thread has a few adjacent columns, keeps their part of B in registers and walks down the rows,
a few at a time so that their loads overlap. Every element of C is one running sum over k.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import Emitted, GemmCall, GemmSizes, VectorOperand
from numus.target import Target

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class SmallKTuning:
    """Measured on one H200."""

    max_k: int = 16
    max_k_with_mma: int = 8  # where mma.sync is the alternative
    min_extent: int = 32  # rows and columns, to fill a row of threads with vectors
    b_register_words: int = 64  # per thread
    thread_rows: tuple[int, ...] = (32, 16, 8)
    tiny_k: int = 4  # below, there is little of B to reuse,
    tiny_k_blocks_per_sm: int = 6
    blocks_per_sm: int = 3


TUNING = SmallKTuning()


@dataclass(frozen=True, slots=True)
class TileShape:
    """Tile of a thread and of a block."""

    k: int  # a power of two
    thread_n: int
    threads_n: int
    threads: int
    thread_m: int
    unroll_m: int  # rows whose loads overlap
    exact: bool  # there are as many steps of k

    @property
    def m(self) -> int:
        return self.threads // self.threads_n * self.thread_m

    @property
    def n(self) -> int:
        return self.threads_n * self.thread_n


def choose_tile(
    target: Target, itemsizes: tuple[int, int], store_only: bool, size: tuple[int, int, int, int]
) -> TileShape:
    """Columns of a thread that are one access, if B fits; rows that leave blocks for all SMs.
    `itemsizes`: of the computation and of the result; `size`: batch, m, n, k."""
    (compute_bytes, stored_bytes), (batch, m, n, k) = itemsizes, size
    tile_k = problem.next_power_of_two(k)
    room = TUNING.b_register_words * 4 // (tile_k * compute_bytes)
    thread_n = max(1, min(problem.MAX_ACCESS_BYTES // stored_bytes, room))
    threads = target.block_size
    threads_n = min(threads, problem.next_power_of_two(-(-n // thread_n)))
    unroll_m = max(1, min(4, 32 * 4 // (tile_k * compute_bytes))) if store_only else 1
    tiny = tile_k < TUNING.tiny_k
    per_sm = TUNING.tiny_k_blocks_per_sm if tiny else TUNING.blocks_per_sm
    for thread_m in TUNING.thread_rows:
        tile = TileShape(tile_k, thread_n, threads_n, threads, thread_m, unroll_m, k == tile_k)
        if batch * -(-m // tile.m) * -(-n // tile.n) >= per_sm * target.num_cores:
            break
    return tile


Call = GemmCall[TileShape, GemmSizes, VectorOperand]
Registers = list[list[ir.Register]]  # [k][column]
Position = tuple[Expr, Expr, Expr, Expr]  # batch, first row, row of the thread, first column


def small_k_gemm(call: Call, block: Expr) -> Emitted:
    t, s = call.tile, call.sizes
    batch, m0, n0 = problem.tile_origin(s, block, t.m, t.n)
    lane = ir.var("lane")
    thread_m, thread_n = divmod(lane, t.threads_n)
    n = n0 + thread_n * t.thread_n
    aligned = call.a.aligned & call.b.aligned
    in_bounds = n + t.thread_n <= s.n
    partial = (n < s.n) & ~in_bounds
    b_registers = problem.register_tile(t.k, t.thread_n, call.dtype, "b")
    vectorised, elements, last = (
        _rows(call, b_registers, (batch, m0, thread_m, n), *how)
        for how in ((True, True), (False, True), (False, False))
    )
    body: list[Stmt] = []
    if aligned.op == "const":
        body.append(ir.If(in_bounds, vectorised))
    else:
        body += [ir.If(in_bounds & aligned, vectorised), ir.If(in_bounds & ~aligned, elements)]
    return [ir.For(lane, ZERO, const(t.threads), "lanes", [*body, ir.If(partial, last)])], []


def _rows(
    call: Call, b_registers: Registers, at: Position, vectorised: bool, in_bounds: bool
) -> list[Stmt]:
    """All rows of a thread. `in_bounds`: all of its columns exist; else one after the other."""
    batch, m0, thread_m, n = at
    t, s, dtype, a, b = call.tile, call.sizes, call.dtype, call.a, call.b
    tag = f"{'v' if vectorised else 's'}{'i' if in_bounds else 'p'}"
    columns = t.thread_n if in_bounds else 1
    column = n if in_bounds else ir.var(f"j{tag}")
    ks = [const(p) for p in range(t.k)]
    if not t.exact:  # past the end, the last element again, which counts as zero
        ks = [ir.minimum(p, s.k - 1) for p in ks]
    zero = const(0, dtype)

    def exists(p: int, value: Expr) -> Expr:
        return value if t.exact else ir.select(const(p) < s.k, value, zero)

    body: list[Stmt] = []
    by_columns = vectorised and b.k_major and t.exact and t.k > 1
    for u in range(columns if by_columns else 0):
        values = b.load_contiguous(body, batch, column + u, ZERO, t.k, f"b{tag}{u}")
        body += [ir.Set(row[u], v) for row, v in zip(b_registers, values, strict=True)]
    for p, k in enumerate([] if by_columns else ks):
        if vectorised and not b.k_major and b.vector >= columns:
            values = b.load_contiguous(body, batch, column, k, columns, f"b{tag}{p}")
        else:
            at_k = [(column + u, k) for u in range(columns)]
            values = b.load_elements(body, batch, at_k, f"b{tag}{p}")
        body += [ir.Set(c, exists(p, v)) for c, v in zip(b_registers[p], values, strict=False)]
    row = ir.var(f"row{tag}")
    step = t.threads // t.threads_n
    ms = [row + i * step for i in range(t.unroll_m)]
    clamped = [ir.minimum(m, s.m - 1) for m in ms] if t.unroll_m > 1 else ms
    loads: list[Stmt] = []
    if vectorised and not a.k_major and step == 1 and a.vector >= t.unroll_m > 1:
        steps = [  # a vector is the rows of one step
            a.load_contiguous(loads, batch, row, k, t.unroll_m, f"a{tag}{p}")
            for p, k in enumerate(ks)
        ]
        rows = [list(values) for values in zip(*steps, strict=True)]
    elif vectorised and a.k_major and t.exact:
        rows = [
            a.load_contiguous(loads, batch, m, ZERO, t.k, f"a{tag}{i}")
            for i, m in enumerate(clamped)
        ]
    else:
        rows = [
            a.load_elements(loads, batch, [(m, k) for k in ks], f"a{tag}{i}")
            for i, m in enumerate(clamped)
        ]
    stores: list[Stmt] = []
    for i, (m, loaded) in enumerate(zip(ms, rows, strict=True)):
        values = [exists(p, v) for p, v in enumerate(loaded)]
        terms = []
        sums: list[Stmt] = []
        for u in range(columns):
            total = zero
            for p in range(t.k):
                total = problem.multiply_add(values[p], ir.read(b_registers[p][u]), total)
            name = ir.var(f"c{tag}{i}_{u}", dtype)
            sums.append(ir.Let(name, total))
            terms.append(call.epilogue(batch, m, column + u, name))
        one = [*sums, *(element[j] for j in range(len(terms[0])) for element in terms)]
        stores += [ir.If(m < s.m, one)] if t.unroll_m > 1 else one
    end, by = ir.minimum(m0 + t.m, s.m), const(step * t.unroll_m)
    body.append(ir.For(row, m0 + thread_m, end, "serial", [*loads, *stores], step=by))
    return body if in_bounds else [ir.For(column, n, s.n, "serial", body)]
