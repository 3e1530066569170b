"""GEMV and skinny GEMM on CUDA cores: a matrix times up to 16 vectors, bound by reading the matrix.

Threads load the matrix as vectors into registers; the vectors come from the caches. A block has
some rows of the matrix (K-major), or a strip of adjacent ones (MN-major), and all of k, which its
threads share; their partial sums meet in shared memory, in a fixed order.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import Coordinate, Emitted, GemmCall, VectorOperand
from numus.target import Target

ZERO, ONE = const(0), const(1)


@dataclass(frozen=True, slots=True)
class GemvTuning:
    """Measured on one H200."""

    max_vectors: int = 16
    k_major_sums: int = 32  # accumulators of a thread
    mn_major_sums: int = 64
    k_major_rows: int = 8  # of the matrix, per block
    unroll_k: int = 4  # MN-major
    unroll_k_few_sums: int = 8
    few_sums: int = 16
    reduce_bytes: int = 32 << 10  # shared memory of the block reduction
    enough_blocks_per_sm: float = 0.9
    min_extent: int = 64  # of m, n and k, below which latency does not matter
    min_k_bytes: int = 512  # that a warp loads at a time: with less, most threads would idle


TUNING = GemvTuning()


@dataclass(frozen=True, slots=True)
class GemvShape:
    """Tile of a block and of a thread; rows are those of the matrix."""

    k_major: bool
    vectors: int  # a power of two
    rows: int  # of a block (K-major), or adjacent ones of a thread
    threads: int
    row_threads: int = 1  # adjacent threads along the rows (MN-major)
    unroll_k: int = 1

    @property
    def k_threads(self) -> int:
        return self.threads // self.row_threads

    @property
    def block_rows(self) -> int:
        return self.rows * self.row_threads

    @property
    def sums(self) -> int:
        """Accumulators of a thread."""
        return self.rows * self.vectors

    @property
    def max_vector(self) -> int:
        """Elements of the matrix that a thread loads at once."""
        return 16 if self.k_major else self.rows

    def loads_vectors(self, vector: int, k: int) -> bool:
        """Of the matrix, if so many elements are aligned: of MN-major ones, whole vectors."""
        return self.k_major or vector >= self.rows

    def split_k(self, target: Target, batch: int, rows: int, k: int) -> int:
        """Splits of k where there are fewer blocks than SMs."""
        blocks = batch * -(-rows // self.block_rows)
        min_k = 4 * self.k_threads * (self.rows if self.k_major else self.unroll_k)
        return max(1, min(target.num_cores // blocks, k // max(min_k, 512)))


def choose_shape(
    target: Target, itemsize: int, k_major: bool, batch: int, rows: int, vectors: int, k: int
) -> GemvShape:
    """As many rows per block as leave blocks for all SMs: vectors are then loaded less often, and
    strips are whole cache lines."""
    count = problem.next_power_of_two(vectors)
    vector = max(1, problem.MAX_ACCESS_BYTES // itemsize)
    if k_major:
        own = min(TUNING.k_major_rows, TUNING.k_major_sums // count)
        while own > 1 and batch * -(-rows // own) < target.num_cores:
            own //= 2
        threads = min(256, max(32, problem.next_power_of_two(-(-k // vector))))
        return GemvShape(True, count, own, threads)
    threads = min(512, max(target.max_block_size, target.block_size))
    own = min(vector, max(1, TUNING.mn_major_sums // count))
    row_threads = 32
    wanted = TUNING.enough_blocks_per_sm * target.num_cores
    while row_threads > 4 and batch * -(-rows // (row_threads * own)) < wanted:
        row_threads //= 2
    is_unrolled = count * own <= TUNING.few_sums
    unroll_k = TUNING.unroll_k_few_sums if is_unrolled else TUNING.unroll_k
    while threads > 64 and threads // row_threads > max(16, k // unroll_k):
        threads //= 2
    return GemvShape(False, count, own, threads, row_threads, unroll_k)


@dataclass(slots=True)
class GemvSizes:
    """Sizes that a launch passes."""

    vectors: Expr
    rows: Expr
    k: Expr
    blocks: Expr  # of a matrix


Sums = list[list[ir.Register]]  # [vector][row]
Call = GemmCall[GemvShape, GemvSizes, VectorOperand]  # A is the matrix, B the vectors


def gemv(call: Call, block: Expr) -> Emitted:
    """The epilogue takes (batch, vector, row, value)."""
    s, sizes, dtype = call.tile, call.sizes, call.dtype
    batch, row0 = block // sizes.blocks, block % sizes.blocks * s.block_rows
    sums = problem.register_tile(s.vectors, s.rows, dtype)
    out: list[Stmt] = [ir.Set(c, const(0, dtype)) for row in sums for c in row]
    lane, k_loop = ir.var("lane"), _k_major if s.k_major else _mn_major

    def loop(vectorised: bool) -> list[Stmt]:
        body = k_loop(call, (lane, batch, row0), sums, vectorised)
        return [ir.For(lane, ZERO, const(s.threads), "lanes", body)]

    aligned = call.a.aligned & call.b.aligned
    if call.a.address is None:
        out += loop(False)
    else:
        out += problem.when(aligned, lambda: loop(True))
        out += problem.when(~aligned, lambda: loop(False))
    steps, stage = _block_reduce(call, batch, row0, sums)
    return [*out, *steps], [stage]


def _vector_indices(s: GemvShape, sizes: GemvSizes) -> list[Expr]:
    """Vectors past the end repeat the last one."""
    last = sizes.vectors - 1
    return [ir.minimum(const(r), last) if r else ZERO for r in range(s.vectors)]


def _k_major(call: Call, at: Coordinate, sums: Sums, vectorised: bool) -> list[Stmt]:
    s, sizes, (lane, batch, row0) = call.tile, call.sizes, at
    vector, k = call.a.vector if vectorised else 1, ir.var("k")
    body: list[Stmt] = []

    def load(x: VectorOperand, mn: Expr, tag: str) -> list[Expr]:
        return x.load_along_k(body, batch, mn, k, vector, tag, vectorised)

    rows = [ir.minimum(row0 + j, sizes.rows - 1) for j in range(s.rows)]
    ws = [load(call.a, row, f"w{j}") for j, row in enumerate(rows)]
    for r, index in enumerate(_vector_indices(s, sizes)):
        xs = load(call.b, index, f"x{r}")
        for u in range(vector):
            for c, w in zip(sums[r], ws, strict=True):
                body.append(ir.Set(c, problem.multiply_add(w[u], xs[u], ir.read(c))))
    step = const(vector * s.threads)
    return [ir.For(k, lane * vector, sizes.k, "serial", body, step=step)]


def _mn_major(call: Call, at: Coordinate, sums: Sums, vectorised: bool) -> list[Stmt]:
    s, sizes, (lane, batch, row0) = call.tile, call.sizes, at
    k_thread, row_thread = divmod(lane, s.row_threads)
    row = row0 + row_thread * s.rows

    def steps(k: Expr, count: int) -> list[Stmt]:
        body: list[Stmt] = []
        ws = [
            call.a.load_along_mn(body, batch, row, k + u, s.rows, f"w{u}", vectorised)
            for u in range(count)
        ]
        for r, index in enumerate(_vector_indices(s, sizes)):
            xs = call.b.load_along_k(body, batch, index, k, count, f"x{r}", vectorised)
            for u in range(count):
                for c, w in zip(sums[r], ws[u], strict=True):
                    body.append(ir.Set(c, problem.multiply_add(w, xs[u], ir.read(c))))
        return body

    k, rest = ir.var("k"), ir.var("rest")
    if not vectorised:
        return [ir.For(rest, k_thread, sizes.k, "serial", steps(rest, 1), step=const(s.k_threads))]
    unrolled = sizes.k // s.unroll_k * s.unroll_k
    start, end = k_thread * s.unroll_k, unrolled + k_thread
    by = const(s.unroll_k * s.k_threads)
    return [
        ir.For(k, start, unrolled, "serial", steps(k, s.unroll_k), step=by),
        ir.For(rest, end, sizes.k, "serial", steps(rest, 1), step=const(s.k_threads)),
    ]


def _block_reduce(call: Call, batch: Expr, row0: Expr, sums: Sums) -> tuple[list[Stmt], ir.Buffer]:
    """Sums over the threads that share k, as many at a time as fit into shared memory: some lanes
    of a warp load the partial sums of one, and shuffles add them up."""
    s, sizes, dtype = call.tile, call.sizes, call.dtype
    flat = [c for row in sums for c in row]
    room = TUNING.reduce_bytes // (s.threads * dtype.itemsize)
    at_a_time = min(s.sums, s.k_threads, problem.next_power_of_two(room + 1) // 2)
    lanes = s.k_threads // at_a_time  # that add up one sum
    while lanes > 32:
        lanes //= 2
    k_chunks = s.k_threads // lanes
    results = at_a_time * s.row_threads
    ld = const(s.k_threads + min(lanes, 32))  # against bank conflicts
    stage = ir.Buffer("stage", dtype, "scratch", const(results) * ld)
    out: list[Stmt] = []
    for begin in range(0, s.sums, at_a_time):
        lane = ir.var(f"stage_lane{begin}")
        k_thread, column = divmod(lane, s.row_threads)
        to_shared: list[Stmt] = []
        for q, c in enumerate(flat[begin : begin + at_a_time]):
            at = (column + q * s.row_threads) * ld + k_thread
            to_shared.append(ir.Store(stage, at, ir.read(c)))
        out.append(ir.For(lane, ZERO, const(s.threads), "lanes", to_shared))
        # shuffles need all threads: those without a sum add up the last one again
        lane = ir.var(f"reduce_lane{begin}")
        number, part = divmod(lane, lanes)
        base = ir.minimum(number, const(results - 1)) * ld + part
        total = ir.load(stage, base)
        for i in range(1, k_chunks):
            total = total + ir.load(stage, base + i * lanes)
        mask = 1
        while mask < lanes:
            total = total + ir.lanes_xor(total, mask)
            mask *= 2
        name = ir.var(f"sum{begin}", dtype)
        which, column = divmod(number, s.row_threads)
        vector, own = divmod(which + begin, s.rows)
        row = row0 + column * s.rows + own
        exists = (number < results) & part.eq(0) & (vector < sizes.vectors) & (row < sizes.rows)
        store = ir.If(exists, call.epilogue(batch, vector, row, name))
        body: list[Stmt] = [ir.Let(name, total), store]
        out.append(ir.For(lane, ZERO, const(s.threads), "lanes", body))
    return out, stage
