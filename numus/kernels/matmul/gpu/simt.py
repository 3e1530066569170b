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
from numus.kernels.matmul.gpu.problem import (
    Coordinate,
    Emitted,
    GemmCall,
    GemmSizes,
    Operand,
    multiply_add,
    register_tile,
    tile_origin,
)
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
            return lane // self.threads_n, lane % self.threads_n
        down, across = WARP_SHAPE
        warp, thread = divmod(lane, down * across)
        warps_n = const(self.threads_n // across)
        return (
            warp // warps_n * down + thread // across,
            warp % warps_n * across + thread % across,
        )

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

    operand: Operand
    origin: Expr
    extent: int
    buffer: ir.Buffer
    ld: int
    staged: list[ir.Register]

    def coordinates(self, t: TileShape, lane: Expr, number: int) -> tuple[Expr, Expr]:
        """(mn, k) in the K-tile of a thread's `number`-th element."""
        fast, before = t.k if self.operand.k_major else self.extent, number * t.threads
        if not t.unrolled:
            at = lane + before
            row, column = divmod(at, fast)
        elif fast % t.threads == 0:
            row, column = const(before // fast), lane + before % fast
        else:
            assert t.threads % fast == 0
            row, column = divmod(lane, fast)
            row = row + before // fast
        return (row, column) if self.operand.k_major else (column, row)

    def load_global(
        self, t: TileShape, lane: Expr, batch: Expr, k0: Expr, k: Expr | None
    ) -> list[Stmt]:
        """Begin to load the K-tile at k0; zeros past the ends. Without k, the K-tile is in bounds,
        and rows past the end repeat the last one: nobody stores their results."""
        out: list[Stmt] = []
        o = self.operand
        for number, register in enumerate(self.staged):
            mn, p = self.coordinates(t, lane, number)
            mn, p = self.origin + mn, k0 + p
            if k is None:
                value = o.read(batch, ir.minimum(mn, o.extent - 1), p, None)
            else:
                exists = (mn < o.extent) & (p < k)
                value = o.read(batch, mn, p, exists)
                value = ir.select(exists, value, const(0, register.dtype))
            out.append(ir.Set(register, value))
        return out

    def store_shared(self, t: TileShape, lane: Expr) -> list[Stmt]:
        out: list[Stmt] = []
        for number, register in enumerate(self.staged):
            mn, p = self.coordinates(t, lane, number)
            at = p * self.ld + mn
            out.append(ir.Store(self.buffer, at, ir.read(register)))
        return out

    def load_fragment(
        self, size: int, thread: Expr, k: Expr, tag: str
    ) -> tuple[list[Stmt], list[Expr]]:
        """A thread's elements of one step of k: vectors, spread over the tile."""
        out: list[Stmt] = []
        names = []
        vector = min(VECTOR, size)
        for i in range(size):
            offset = const(i // vector * (self.extent * vector // size))
            mn = thread * vector + offset
            at = k * self.ld + mn + i % vector
            name = ir.var(f"{tag}{i}", self.buffer.dtype)
            out.append(ir.Let(name, ir.load(self.buffer, at)))
            names.append(name)
        return out, names

    def index(self, size: int, thread: Expr, number: int) -> Expr:
        """Row or column in the tile of a thread's `number`-th element."""
        vector = min(VECTOR, size)
        offset = number // vector * (self.extent * vector // size) + number % vector
        return thread * vector + offset


Call = GemmCall[TileShape, GemmSizes, Operand]


def _threads(t: TileShape, name: str, make: Callable[[Expr], list[Stmt]]) -> Stmt:
    lane = ir.var(name)
    return ir.For(lane, ZERO, const(t.threads), "lanes", make(lane))


def simt_gemm(call: Call, block: Expr) -> Emitted:
    s, t, dtype = call.sizes, call.tile, call.dtype
    batch, m0, n0 = tile_origin(s, block, t.m, t.n)
    out: list[Stmt] = []
    if t.unrolled:  # divided once, not for every K-tile
        found = (batch, m0, n0)
        batch, m0, n0 = (ir.var(name) for name in ("batch", "m0", "n0"))
        out += [ir.Let(name, x) for name, x in zip((batch, m0, n0), found, strict=True)]
    tiles = []
    for name, operand, origin, extent in (("a", call.a, m0, t.m), ("b", call.b, n0, t.n)):
        ld = extent + VECTOR  # against bank conflicts
        buffer = ir.Buffer(f"tile_{name}", dtype, "scratch", const(t.k * ld))
        count = extent * t.k // t.threads
        staged = [ir.Register(f"next_{name}{i}", dtype, lanes=True) for i in range(count)]
        tiles.append(_RegisterStagedTile(operand, origin, extent, buffer, ld, staged))
    a, b = tiles
    sums = register_tile(t.thread_m, t.thread_n, dtype)
    k0 = ir.var("k0")

    def load(lane: Expr, k_start: Expr) -> list[Stmt]:
        predicated = [x for tile in tiles for x in tile.load_global(t, lane, batch, k_start, s.k)]
        if not t.unrolled:
            return predicated
        in_bounds = k_start + t.k <= s.k
        plain = [x for tile in tiles for x in tile.load_global(t, lane, batch, k_start, None)]
        return [ir.If(in_bounds, plain), ir.If(~in_bounds, predicated)]

    def multiply(lane: Expr) -> list[Stmt]:
        thread_m, thread_n = t.thread_position(lane)
        kk = ir.var("kk")
        body: list[Stmt] = []
        for u in range(t.k if t.unrolled else UNROLL_K):
            k = const(u) if t.unrolled else kk + u
            lets_a, xs = a.load_fragment(t.thread_m, thread_m, k, f"a{u}_")
            lets_b, ys = b.load_fragment(t.thread_n, thread_n, k, f"b{u}_")
            body += [*lets_a, *lets_b]
            for i, x in enumerate(xs):
                for j, y in enumerate(ys):
                    new = multiply_add(x, y, ir.read(sums[i][j]))
                    body.append(ir.Set(sums[i][j], new))
        if not t.unrolled:
            body = [ir.For(kk, ZERO, const(t.k), "serial", body, step=const(UNROLL_K))]
        return [*load(lane, k0 + t.k), *body]

    def store_shared(lane: Expr) -> list[Stmt]:
        return [x for tile in tiles for x in tile.store_shared(t, lane)]

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

    def column(lane: Expr, j: int) -> Expr:
        return b.index(t.thread_n, t.thread_position(lane)[1], j)

    def store(m: Expr, n: Expr, value: Expr) -> Stmt:
        return ir.If((m < s.m) & (n < s.n), call.epilogue(batch, m, n, value))

    if call.store_only:

        def store_registers(lane: Expr) -> list[Stmt]:
            thread_m, _ = t.thread_position(lane)
            return [
                store(
                    m0 + a.index(t.thread_m, thread_m, i),
                    n0 + column(lane, j),
                    ir.read(sums[i][j]),
                )
                for i in range(t.thread_m)
                for j in range(t.thread_n)
            ]

        return [_threads(t, "store", store_registers)], []
    rows = t.m // t.thread_m
    stage = ir.Buffer("stage", call.dtype, "scratch", const(rows * t.n))
    out: list[Stmt] = []
    for i in range(t.thread_m):

        def to_shared(lane: Expr, i: int = i) -> list[Stmt]:
            row = t.thread_position(lane)[0] * t.n
            return [
                ir.Store(stage, row + column(lane, j), ir.read(sums[i][j]))
                for j in range(t.thread_n)
            ]

        at = ir.var(f"out{i}")
        thread_m, right = divmod(at, t.n)
        m, n = m0 + a.index(t.thread_m, thread_m, i), n0 + right
        one = store(m, n, ir.load(stage, at))
        out.append(_threads(t, f"stage_lane{i}", to_shared))
        out.append(ir.For(at, ZERO, const(rows * t.n), "lanes", [one]))
    return out, [stage]


def choose_split_k(target: Target, tile: TileShape, batch: int, m: int, n: int, k: int) -> int:
    """Enough splits of a long k for two blocks per SM."""
    blocks = batch * -(-m // tile.m) * -(-n // tile.n)
    wanted = -(-2 * target.num_cores // blocks)
    return max(1, min(wanted, k // 512), -(-k // 65536))
