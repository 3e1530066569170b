"""Generic SIMT GEMM: any dtype and any operand expression, on any GPU.

A block computes a tile of C. The next K-tiles wait in registers while the current ones are
multiplied from shared memory; each thread has a small tile of accumulators. Every element of C is
one running sum over k: the choice of tile does not show in the result.

Where the target's compiler does little with registers (WGSL), a K-tile is fully unrolled, and
K-tiles in bounds are loaded without predicates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import Coordinate, Emitted, GemmCall, GemmSizes, Operand
from numus.target import Target

ZERO, ONE = const(0), const(1)

UNROLL_K = 4
VECTOR = 4  # contiguous elements that a thread loads from shared memory
WARP_SHAPE = (4, 8)  # threads that load from shared memory together, in unrolled code


@dataclass(frozen=True, slots=True)
class TileShape:
    """Tile of a block and of a thread."""

    threads: int
    m: int
    n: int
    k: int
    thread_m: int
    thread_n: int
    unrolled: bool = False  # the whole K-tile

    @property
    def threads_n(self) -> int:
        return self.n // self.thread_n

    def thread_position(self, lane: Expr) -> tuple[Expr, Expr]:
        """Position of a thread's tile in the block: down, and across."""
        if not self.unrolled:
            return divmod(lane, self.threads_n)
        down, across = WARP_SHAPE
        warp, thread = divmod(lane, down * across)
        warp_m, warp_n = divmod(warp, self.threads_n // across)
        return warp_m * down + thread // across, warp_n * across + thread % across

    def smem_bytes(self, dtype: DType, store_only: bool) -> int:
        """A K-tile of each operand, and the rows that the epilogue stages."""
        elements = (self.m + self.n + 2 * VECTOR) * self.k
        if not store_only:
            elements += self.m // self.thread_m * self.n
        return elements * dtype.itemsize


def choose_tile(
    target: Target, dtype: DType, batch: int, m: int, n: int, store_only: bool, unrolled: bool
) -> TileShape:
    """The largest tile that fits into shared memory and leaves a block for every SM."""
    threads = min(target.block_size, 128 if unrolled else 256)
    best = None
    for side in (8, 4, 2):
        if side == 8 and dtype.itemsize > 4:
            continue  # too many registers
        threads_n = 16 if threads >= 128 else 8
        tile_n, tile_m = threads_n * side, threads // threads_n * side
        k = {8: 8, 4: 16, 2: 32}[side]  # waiting K-tiles take registers too
        min_k = max(UNROLL_K, threads // min(tile_m, tile_n))  # a thread loads an element at least
        best = TileShape(threads, tile_m, tile_n, k, side, side, unrolled)
        while best.smem_bytes(dtype, store_only) > target.shared_bytes and best.k > min_k:
            best = replace(best, k=best.k // 2)
        if best.smem_bytes(dtype, store_only) > target.shared_bytes:
            continue
        if batch * -(-m // tile_m) * -(-n // tile_n) >= target.num_cores:
            break
    assert best is not None
    return best


@dataclass(slots=True)
class _RegisterStagedTile:
    """Loader of one operand's K-tiles, through registers to shared memory."""

    tile: TileShape
    operand: Operand
    origin: Expr
    extent: int
    thread_extent: int
    buffer: ir.Buffer
    ld: int
    staged: list[ir.Register]

    def coordinates(self, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """(mn, k) in the K-tile of a thread's `number`-th element."""
        t, k_major = self.tile, self.operand.k_major
        fast, before = t.k if k_major else self.extent, number * t.threads
        if not t.unrolled:
            row, column = divmod(lane + before, fast)
        elif fast % t.threads == 0:
            row, column = const(before // fast), lane + before % fast
        else:
            assert t.threads % fast == 0
            row, column = lane // fast + before // fast, lane % fast
        return (row, column) if k_major else (column, row)

    def load_global(self, lane: Expr, batch: Expr, k0: Expr, k: Expr | None) -> list[Stmt]:
        """Begin to load the K-tile at k0; zeros past the ends. Without k, the K-tile is in bounds,
        and rows past the end repeat the last one: nobody stores their results."""
        out: list[Stmt] = []
        o = self.operand
        for number, register in enumerate(self.staged):
            mn, p = self.coordinates(lane, number)
            mn, p = self.origin + mn, k0 + p
            if k is None:
                value = o.read(batch, ir.minimum(mn, o.extent - 1), p, None)
            else:
                exists = (mn < o.extent) & (p < k)
                value = o.read(batch, mn, p, exists)
                value = ir.select(exists, value, const(0, register.dtype))
            out.append(ir.Set(register, value))
        return out

    def store_shared(self, lane: Expr) -> list[Stmt]:
        out: list[Stmt] = []
        for number, register in enumerate(self.staged):
            mn, p = self.coordinates(lane, number)
            out.append(ir.Store(self.buffer, p * self.ld + mn, ir.read(register)))
        return out

    def load_fragment(self, thread: Expr, k: Expr, tag: str) -> list[ir.Let]:
        """A thread's elements of one step of k."""
        names = [ir.var(f"{tag}{i}", self.buffer.dtype) for i in range(self.thread_extent)]
        at = [k * self.ld + self.index(thread, i) for i in range(self.thread_extent)]
        return [ir.Let(v, ir.load(self.buffer, i)) for v, i in zip(names, at, strict=True)]

    def index(self, thread: Expr, number: int) -> Expr:
        """Row or column in the tile of a thread's `number`-th element: vectors, spread over it."""
        vector = min(VECTOR, self.thread_extent)
        offset = number // vector * (self.extent * vector // self.thread_extent) + number % vector
        return thread * vector + offset


Call = GemmCall[TileShape, GemmSizes, Operand]


def _threads(t: TileShape, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
    lane = ir.var(name)
    return ir.For(lane, ZERO, const(t.threads), "lanes", make(lane))


def simt_gemm(call: Call, block: Expr) -> Emitted:
    s, t, dtype = call.sizes, call.tile, call.dtype
    batch, m0, n0 = problem.tile_origin(s, block, t.m, t.n)
    out: list[Stmt] = []
    if t.unrolled:  # divided once, not for every K-tile
        names = (ir.var("batch"), ir.var("m0"), ir.var("n0"))
        out += [ir.Let(name, x) for name, x in zip(names, (batch, m0, n0), strict=True)]
        batch, m0, n0 = names
    tiles = []
    for name, operand, origin, extent, thread_extent in (
        ("a", call.a, m0, t.m, t.thread_m),
        ("b", call.b, n0, t.n, t.thread_n),
    ):
        ld = extent + VECTOR  # against bank conflicts
        buffer = ir.Buffer(f"tile_{name}", dtype, "scratch", const(t.k * ld))
        count = extent * t.k // t.threads
        staged = [ir.Register(f"next_{name}{i}", dtype, lanes=True) for i in range(count)]
        at = (origin, extent, thread_extent, buffer, ld, staged)
        tiles.append(_RegisterStagedTile(t, operand, *at))
    a, b = tiles
    sums = problem.register_tile(t.thread_m, t.thread_n, dtype)
    k0 = ir.var("k0")

    def load(lane: Expr, k_start: Expr) -> list[Stmt]:
        predicated = [x for tile in tiles for x in tile.load_global(lane, batch, k_start, s.k)]
        if not t.unrolled:
            return predicated
        in_bounds = k_start + t.k <= s.k
        plain = [x for tile in tiles for x in tile.load_global(lane, batch, k_start, None)]
        return [ir.If(in_bounds, plain), ir.If(~in_bounds, predicated)]

    def multiply(lane: Expr) -> list[Stmt]:
        thread_m, thread_n = t.thread_position(lane)
        kk = ir.var("kk")
        body: list[Stmt] = []
        for u in range(t.k if t.unrolled else UNROLL_K):
            k = const(u) if t.unrolled else kk + u
            xs = a.load_fragment(thread_m, k, f"a{u}_")
            ys = b.load_fragment(thread_n, k, f"b{u}_")
            body += [*xs, *ys]
            for x, row in zip(xs, sums, strict=True):
                for y, c in zip(ys, row, strict=True):
                    body.append(ir.Set(c, problem.multiply_add(x.var, y.var, ir.read(c))))
        if not t.unrolled:
            body = [ir.For(kk, ZERO, const(t.k), "serial", body, step=const(UNROLL_K))]
        return [*load(lane, k0 + t.k), *body]

    def store_shared(lane: Expr) -> list[Stmt]:
        return [x for tile in tiles for x in tile.store_shared(lane)]

    out += [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    out.append(_threads(t, "first", lambda lane: load(lane, ZERO)))
    body = [_threads(t, "store_shared", store_shared), _threads(t, "multiply", multiply)]
    out.append(ir.For(k0, ZERO, s.k, "serial", body, step=const(t.k)))
    stores, stage = _epilogue(call, sums, tiles, (batch, m0, n0))
    return [*out, *stores], [a.buffer, b.buffer, *stage]


def _epilogue(
    call: Call, sums: list[list[ir.Register]], tiles: list[_RegisterStagedTile], origin: Coordinate
) -> Emitted:
    """From registers if it is only a store; else through shared memory, a row of every thread at a
    time, so that the epilogue is emitted once for each."""
    s, t = call.sizes, call.tile
    (batch, m0, n0), (a, b) = origin, tiles

    def store(m: Expr, n: Expr, value: Expr) -> Stmt:
        m, n = m0 + m, n0 + n
        return ir.If((m < s.m) & (n < s.n), call.epilogue(batch, m, n, value))

    if call.store_only:

        def store_registers(lane: Expr) -> list[Stmt]:
            thread_m, thread_n = t.thread_position(lane)
            return [
                store(a.index(thread_m, i), b.index(thread_n, j), ir.read(c))
                for i, row in enumerate(sums)
                for j, c in enumerate(row)
            ]

        return [_threads(t, "store", store_registers)], []
    rows = t.m // t.thread_m
    stage = ir.Buffer("stage", call.dtype, "scratch", const(rows * t.n))
    out: list[Stmt] = []
    for i in range(t.thread_m):

        def to_shared(lane: Expr, i: int = i) -> list[Stmt]:
            thread_m, thread_n = t.thread_position(lane)
            return [
                ir.Store(stage, thread_m * t.n + b.index(thread_n, j), ir.read(c))
                for j, c in enumerate(sums[i])
            ]

        at = ir.var(f"out{i}")
        thread_m, n = divmod(at, t.n)
        one = store(a.index(thread_m, i), n, ir.load(stage, at))
        out.append(_threads(t, f"stage_lane{i}", to_shared))
        out.append(ir.For(at, ZERO, const(rows * t.n), "lanes", [one]))
    return out, [stage]


def choose_split_k(target: Target, tile: TileShape, batch: int, m: int, n: int, k: int) -> int:
    """Enough splits of a long k for two blocks per SM."""
    blocks = batch * -(-m // tile.m) * -(-n // tile.n)
    wanted = -(-2 * target.num_cores // blocks)
    return max(1, min(wanted, k // 512), -(-k // 65536))
