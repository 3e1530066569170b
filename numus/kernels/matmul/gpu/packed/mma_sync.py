"""Skinny GEMM with packed codes on tensor cores (mma.sync): a few vectors of 16-bit floats.

As in `gemv_mma_sync.py` threads load the matrix once, straight into registers, and the warps of a
block share k. Codes become floats without a conversion, in pairs (Frantar et al. 2024): four bits
are the leading ones of a mantissa, 16 + code, of two values that lie half a word apart, and
activations are paired alike. MMAs with ones add up the activations, by which the 16s and zero
points are taken away again, once per step of a warp: it lies within a group, or else has several,
whose words threads take in turn. Codes of 8 bits are two planes of four. An MMA has 16 rows of the
matrix and 8 vectors.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.gemv import GemvSizes
from numus.kernels.matmul.gpu.gemv_mma_sync import pair
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.packed.gemv import QUAD, PackedMatrix, now
from numus.kernels.matmul.gpu.problem import Emitted, Epilogue, VectorOperand
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, MMA_TUNING, Packing

ZERO = const(0)
WARP = 32
MMA_ROWS, MMA_VECTORS = 16, 8
HALF_ROWS = MMA_ROWS // 2  # between the two rows of a thread
THREADS_ALONG_K = 4  # of a warp
CODE_BITS = 4  # of a plane
OFFSET = 16.0  # of a float made of such a code
_MANTISSA = {dt.bfloat16: 7, dt.float16: 10}
OFFSET_BITS = {dt.bfloat16: 0x4180, dt.float16: 0x4C00}
ONE_BITS = {dt.bfloat16: 0x3F80, dt.float16: 0x3C00}
_HALVES = 0x00010001  # a word of two equal halves, times one
_PADDING = 8  # rows between staged vectors, against bank conflicts

Words = list[list[Expr]]  # of each row of a thread
Fragments = list[list[list[ir.Register]]]  # [8 vectors][16 rows]: two rows of two vectors


@dataclass(frozen=True, slots=True)
class PackedTile:
    """Of a block, whose warps share k."""

    vectors: int  # MMAs of 8 vectors
    vector_blocks: int  # that share rows
    rows: int  # MMAs of 16 rows
    warps: int
    unroll: int  # steps whose words are in flight

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def block_rows(self) -> int:
        return self.rows * MMA_ROWS


def step_groups(p: Packing) -> int:
    """Groups of a warp's step."""
    return MMA_STEP_CHUNKS // p.group if 0 < p.group < MMA_STEP_CHUNKS else 1


def choose_tile(num_cores: int, rows: int, vectors: int, chunks: int, p: Packing) -> PackedTile:
    """As many rows of a block as leave some for most SMs, and as many loads in flight."""
    t = MMA_TUNING
    tile_rows = t.row_mmas
    many = -(-rows // (tile_rows * MMA_ROWS)) >= t.many_blocks * num_cores
    together = many and vectors <= t.few_block_vectors
    block_vectors = t.few_block_vectors if together else t.block_vectors
    wanted = (t.min_blocks if vectors <= block_vectors else t.min_blocks_of_many) * num_cores
    while tile_rows > 1 and -(-rows // (tile_rows * MMA_ROWS)) < wanted:
        tile_rows //= 2
    steps = -(-chunks // (MMA_STEP_CHUNKS * t.warps))
    unroll = max(1, min(t.loads_in_flight // (2 * tile_rows * step_groups(p)), steps))
    blocks = -(-vectors // block_vectors)
    mmas = -(-vectors // (blocks * MMA_VECTORS))
    return PackedTile(mmas, blocks, tile_rows, t.warps, unroll)


def fills_cores(num_cores: int, rows: int) -> bool:
    """Most SMs have a block."""
    return -(-rows // MMA_ROWS) >= MMA_TUNING.min_blocks * num_cores


def planes(p: Packing) -> int:
    """Planes of 4 bits."""
    return p.bits // CODE_BITS


def words_of_floats(p: Packing, word: Expr, plane: int, dtype: DType) -> list[Expr]:
    """Of each pair of a word's values, half a word apart, 16 + their bits of a plane."""
    low = _MANTISSA[dtype] - CODE_BITS
    mask, offset = (0xF << low) * _HALVES, OFFSET_BITS[dtype] * _HALVES
    found = []
    for j in range(p.values // 2):
        shift = j * p.bits + plane * CODE_BITS - low
        moved = word >> shift if shift > 0 else word << -shift if shift else word
        found.append((moved & mask) | offset)
    return found


class PackedMma:
    """A block's rows of codes, all vectors. Loads are pipelined as in `row_gemv.py`: words and the
    numbers of their groups are on their way while earlier ones are multiplied."""

    def __init__(
        self,
        packing: Packing,
        tile: PackedTile,
        matrix: PackedMatrix,
        vectors: VectorOperand,
        sizes: GemvSizes,
        chunks: tuple[Expr, int],  # of a row: at run time, and known
        block: Expr,
    ) -> None:
        self.packing, self.tile, self.matrix, self.vectors = packing, tile, matrix, vectors
        self.sizes, self.dtype = sizes, vectors.dtype
        many = tile.vector_blocks > 1
        self.first_row = (block // tile.vector_blocks if many else block) * tile.block_rows
        which = block % tile.vector_blocks if many else ZERO
        self.first_vector = which * (tile.vectors * MMA_VECTORS)
        self.chunks, known = chunks
        self.span = MMA_STEP_CHUNKS * tile.warps  # of a step of all warps
        self.whole = known % (self.span * tile.unroll) == 0
        self.groups = step_groups(packing)
        kinds = [number.stored(ZERO, ZERO).dtype for number in matrix.numbers] * self.groups
        steps, rows = range(tile.unroll), range(2 * tile.rows)

        def registers(name: str, kinds: list[DType]) -> list[list[ir.Register]]:
            return [
                [ir.Register(f"{name}_{r}_{i}", kind, lanes=True) for i, kind in enumerate(kinds)]
                for r in rows
            ]

        self.words = [registers(f"word{u}", [dt.uint32] * QUAD) for u in steps]
        self.numbers = [registers(f"number{u}", kinds) for u in steps]

    def first_loads(self) -> list[Stmt]:
        """They need nothing but the matrix."""
        lane = ir.var("first_lane")
        begin = self._chunk(lane, ZERO)
        loads = [
            s for u in range(self.tile.unroll) for s in self._next(lane, u, begin + u * self.span)
        ]
        loop = ir.For(lane, ZERO, const(self.tile.threads), "lanes", loads)
        return problem.when(self.matrix.codes.aligned, lambda: [loop])

    def emit(self, epilogue: Epilogue) -> Emitted:
        """After the first loads. The epilogue takes (batch, vector, row, value)."""
        totals = self._fragments(self.tile.rows, "total")
        out = _cleared(totals)
        aligned = self.matrix.codes.aligned & self.vectors.aligned
        out += problem.when(aligned, lambda: self._loop(totals, True))
        out += problem.when(~aligned, lambda: self._loop(totals, False))
        steps, stage = self._reduce(totals, epilogue)
        return [*out, *steps], [stage]

    def _fragments(self, across: int, name: str) -> Fragments:
        down = range(self.tile.vectors)
        return [problem.register_tile(across, 4, float32, f"{name}{i}_") for i in down]

    def _chunk(self, lane: Expr, step: Expr) -> Expr:
        """The first chunk of a thread in a step."""
        own = lane % THREADS_ALONG_K * (QUAD if self.groups == 1 else 1)
        return step * self.span + (lane // WARP * MMA_STEP_CHUNKS + own)

    def _chunk_of(self, chunk: Expr, q: int) -> Expr:
        """The chunk of a thread's word, where words go to threads in turn."""
        return chunk + q * THREADS_ALONG_K if q else chunk

    def _group(self, chunk: Expr) -> Expr:
        """That of a chunk; past the end, the last one."""
        chunk = ir.minimum(chunk, self.chunks - 1)
        return chunk // self.packing.group if self.packing.group else ZERO

    def _loop(self, totals: Fragments, vectorised: bool) -> list[Stmt]:
        """Steps of all warps. What is past the end multiplies zeros."""
        t, tag = self.tile, "" if vectorised else "slow_"
        unroll = t.unroll if vectorised else 1
        lane, step = ir.var(f"{tag}lane"), ir.var(f"{tag}step")
        count = (self.chunks + (self.span - 1)) // self.span
        sums = [self._fragments(t.rows, f"{tag}plane{i}_") for i in range(planes(self.packing))]
        ones = self._fragments(1, f"{tag}ones")
        body = list[Stmt]()
        for u in range(unroll):
            own = self._chunk(lane, step + u)
            if vectorised:
                words, numbers = (now(body, x[u]) for x in (self.words, self.numbers))
                body += self._next(lane, u, own + unroll * self.span)
            else:
                words, numbers = self._load(body, lane, own, False, "slow")
            xs = self._activations(body, lane, own, vectorised, f"{u}")
            quads, kinds = QUAD // self.groups, len(self.matrix.numbers)
            for g in range(self.groups):
                body += [s for part in (*sums, ones) for s in _cleared(part)]
                body += self._multiply(words, xs, range(g * quads, (g + 1) * quads), sums, ones)
                stored = [own[g * kinds : (g + 1) * kinds] for own in numbers]
                body += self._scaled(stored, sums, ones, totals, f"{u}_{g}")
        loop = ir.For(step, ZERO, count, "serial", body, step=const(unroll))
        return [ir.For(lane, ZERO, const(t.threads), "lanes", [loop])]

    def _next(self, lane: Expr, u: int, chunk: Expr) -> list[Stmt]:
        """What a step reads of the matrix, to its registers."""
        out, sets = list[Stmt](), list[Stmt]()
        words, numbers = self._load(out, lane, chunk, True, f"next{u}")
        for registers, found in ((self.words[u], words), (self.numbers[u], numbers)):
            for own, values in zip(registers, found, strict=True):
                sets += ir.sets(own, values)
        return out + sets

    def _load(
        self, out: list[Stmt], lane: Expr, chunk: Expr, vectorised: bool, tag: str
    ) -> tuple[Words, Words]:
        """Four words of each of a thread's rows, and the numbers of their group; past the end, the
        last ones."""
        p, last, codes = self.packing, self.sizes.rows - 1, self.matrix.codes
        step = QUAD // self.groups
        groups = [self._group(self._chunk_of(chunk, g * step)) for g in range(self.groups)]
        aligned = vectorised and not p.header  # words behind a header are not

        def place(chunk: Expr) -> Expr:
            return chunk + chunk // p.group + 1 if p.header else chunk

        first = self.first_row + lane % WARP // THREADS_ALONG_K
        words, numbers = list[list[Expr]](), list[list[Expr]]()
        for r in range(2 * self.tile.rows):
            row = ir.minimum(first + r * HALF_ROWS, last)
            if self.groups == 1:
                begin = place(ir.minimum(chunk, self.chunks - QUAD))
                words.append(codes.load_along_k(out, ZERO, row, begin, QUAD, f"{tag}_{r}", aligned))
            else:
                own = (self._chunk_of(chunk, q) for q in range(QUAD))
                at = [(row, place(ir.minimum(c, self.chunks - 1))) for c in own]
                words.append(codes.load_elements(out, ZERO, at, f"{tag}_{r}"))
            kinds = self.matrix.numbers
            numbers.append([number.stored(row, group) for group in groups for number in kinds])
        return words, numbers

    def _multiply(
        self,
        words: Words,
        xs: list[Words],
        quads: range,
        sums: list[Fragments],
        ones: Fragments,
    ) -> list[Stmt]:
        """MMAs of some of a thread's four words of each of its rows."""
        p, out, dtype = self.packing, list[Stmt](), self.dtype
        one = [const(ONE_BITS[dtype] * _HALVES, dt.uint32)] * 4
        for q in quads:
            for i, vectors in enumerate(xs):
                for j in range(0, len(vectors[q]), 2):
                    out.append(ir.MmaSync(ones[i][0], one, vectors[q][j : j + 2], dtype))
            for r in range(self.tile.rows):
                pair_of_rows = words[2 * r], words[2 * r + 1]
                both = [x[q] ^ (128 * BYTES) if p.signed else x[q] for x in pair_of_rows]
                for plane, fragments in enumerate(sums):
                    low, high = (words_of_floats(p, x, plane, dtype) for x in both)
                    for j in range(0, len(low), 2):
                        codes = [low[j], high[j], low[j + 1], high[j + 1]]
                        for i, vectors in enumerate(xs):
                            own_x = vectors[q][j : j + 2]
                            out.append(ir.MmaSync(fragments[i][r], codes, own_x, dtype))
        return out

    def _activations(
        self, out: list[Stmt], lane: Expr, chunk: Expr, vectorised: bool, tag: str
    ) -> list[Words]:
        """Of a vector for each MMA, the pairs of each word's values."""
        p, last = self.packing, self.sizes.vectors - 1
        apart, together = p.values // 2, QUAD if self.groups == 1 else 1  # words side by side
        found = []
        for i in range(self.tile.vectors):
            own = self.first_vector + (lane % WARP // THREADS_ALONG_K + i * MMA_VECTORS)
            mn = ir.minimum(own, last)
            values: list[Expr] = []
            for q in range(0, QUAD, together):
                at = self._chunk_of(chunk, q)
                begin = at if self.whole else ir.minimum(at, self.chunks - together)
                count = together * p.values
                for part in range(0, count, 8):
                    how = (min(8, count), f"x{tag}_{i}_{q}_{part}", vectorised)
                    own_values = self.vectors.load_along_k(
                        out, ZERO, mn, begin * p.values + part, *how
                    )
                    if not self.whole:
                        none, exists = zero(self.dtype), at < self.chunks
                        own_values = [ir.select(exists, x, none) for x in own_values]
                    values += own_values
            found.append(
                [
                    [pair(values[q + j], values[q + j + apart]) for j in range(apart)]
                    for q in range(0, QUAD * p.values, p.values)
                ]
            )
        return found

    def _scaled(
        self,
        numbers: Words,
        sums: list[Fragments],
        ones: Fragments,
        totals: Fragments,
        tag: str,
    ) -> list[Stmt]:
        """Sums of a step without what was added to the codes, scaled, to the totals."""
        p, out = self.packing, list[Stmt]()
        offset = sum(OFFSET * (1 << CODE_BITS * i) for i in range(planes(p)))
        for number, stored in enumerate(numbers):
            r, half = divmod(number, 2)
            scale, middle = (ir.var(f"{name}{tag}_{number}", float32) for name in ("scale", "zero"))
            pairs = zip(self.matrix.numbers, stored, strict=True)
            found, *zeros = (kind.decoded(x) for kind, x in pairs)
            point = zeros[0] if zeros else const(float(p.zero), float32)
            out += [ir.Let(scale, found), ir.Let(middle, point + offset)]
            for i, total in enumerate(totals):
                for v in range(2):
                    c = 2 * half + v
                    value = ir.read(sums[0][i][r][c])
                    for plane, fragments in enumerate(sums[1:], 1):
                        high = ir.read(fragments[i][r][c])
                        value = ir.fma(high, float(1 << CODE_BITS * plane), value)
                    value = ir.fma(-middle, ir.read(ones[i][0][v]), value)
                    old = ir.read(total[r][c])
                    out.append(ir.Set(total[r][c], ir.fma(value, scale, old)))
        return out

    def _reduce(self, totals: Fragments, epilogue: Epilogue) -> tuple[list[Stmt], ir.Buffer]:
        """Sums over the warps, through shared memory, and the epilogue."""
        t, sizes = self.tile, self.sizes
        ld = t.block_rows + _PADDING
        size = t.vectors * MMA_VECTORS * ld
        stage = ir.Buffer("stage", float32, "scratch", const(t.warps * size))
        lane = ir.var("stage_lane")
        warp, thread = divmod(lane, WARP)
        row, vector = thread // THREADS_ALONG_K, thread % THREADS_ALONG_K * 2
        to_shared: list[Stmt] = []
        for i, mmas in enumerate(totals):
            for r, mma in enumerate(mmas):
                for c, register in enumerate(mma):
                    at = (vector + (i * MMA_VECTORS + c % 2)) * ld
                    at = warp * size + at + row + (r * MMA_ROWS + c // 2 * HALF_ROWS)
                    to_shared.append(ir.Store(stage, at, ir.read(register)))
        lanes = ir.For(lane, ZERO, const(t.threads), "lanes", to_shared)
        lane, total = ir.var("reduce_lane"), ir.var("sum", float32)
        vector, column = divmod(lane, t.block_rows)
        at = vector * ld + column
        value = ir.load(stage, at)
        for w in range(1, t.warps):
            value = value + ir.load(stage, at + w * size)
        n, v = self.first_row + column, self.first_vector + vector
        stores = [ir.Let(total, value), *epilogue(ZERO, v, n, total)]
        exists = (n < sizes.rows) & (v < sizes.vectors)
        count = const(t.vectors * MMA_VECTORS * t.block_rows)
        own = ir.For(lane, ZERO, count, "lanes", [ir.If(exists, stores)])
        return [lanes, own], stage


def _cleared(fragments: Fragments) -> list[Stmt]:
    nothing = const(0.0, float32)
    return [ir.Set(c, nothing) for row in fragments for mma in row for c in mma]
