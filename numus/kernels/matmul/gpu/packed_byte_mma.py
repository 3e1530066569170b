"""GEMV with packed codes on tensor cores, by bytes (mma.sync): one vector of 16-bit floats.

Activations become integers of 16 bits, relative to the largest that share a warp's step, in two
planes of signed bytes: two columns of an MMA, which has room for those of four vectors. A word of
codes is masked into bytes, three instructions for eight codes where floats take eight. The block
does so with the vectors once, into shared memory, while its first words are on their way. Its warps
share k; all else is as in `packed_mma_sync.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import float32, int8, int32, uint32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.gemv import GemvSizes
from numus.kernels.matmul.gpu.packed_gemv import QUAD, PackedMatrix, now
from numus.kernels.matmul.gpu.problem import Emitted, Epilogue, VectorOperand
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, Packing

ZERO = const(0)
WARP = 32
THREADS_ALONG_K = 4  # of a warp
MMA_ROWS, MMA_VECTORS = 16, 4
PLANES = 2  # of bytes
UNIT = 8  # elements that a thread rounds at a time
LARGEST = 127 * 256.0  # of an integer, whose low byte is signed
SMALLEST = 1e-30  # of the largest element of a step: its reciprocal is finite
_MAGIC = 1.5 * 2.0**23  # to which a small integer is added exactly, in the low bits
_MAGIC_BITS = 0x4B400000
_NIBBLES = 0x0F0F0F0F
_PADDING = 1  # rows between the sums of vectors


@dataclass(frozen=True)
class ByteMmaTuning:
    """Measured on one H200."""

    max_vectors: int = 1  # for more, `packed_mma_sync.py` is faster
    warps: int = 8
    loads_in_flight: int = 8  # of 16 bytes of codes, of a thread
    resident_threads: int = 768  # of an SM, so that the next kernel's blocks load beside this one
    max_kept_bytes: int = 32 << 10  # of planes


TUNING = ByteMmaTuning()


@dataclass(frozen=True, slots=True)
class ByteTile:
    """Of a block."""

    vectors: int
    warps: int
    unroll: int  # steps of a warp whose words are in flight
    stages: int  # of so many steps

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def mmas(self) -> int:
        return -(-self.vectors // MMA_VECTORS)

    @property
    def span(self) -> int:
        """Chunks of a step of all warps."""
        return MMA_STEP_CHUNKS * self.warps

    @property
    def steps(self) -> int:
        """Of warps, in a stage."""
        return self.unroll * self.warps


def supports(p: Packing, vectors: int) -> bool:
    """Steps of warps lie within groups."""
    whole = p.group % MMA_STEP_CHUNKS == 0 and not p.header
    return vectors <= TUNING.max_vectors and p.bits in (4, 8) and whole


def choose_tile(vectors: int, chunks: int, p: Packing) -> ByteTile:
    """Without steps in vain, if that is possible."""
    t = TUNING
    steps = -(-chunks // (MMA_STEP_CHUNKS * t.warps))
    kept = vectors * PLANES * t.warps * MMA_STEP_CHUNKS * p.values
    most = max(1, min(t.loads_in_flight // 2, steps, t.max_kept_bytes // kept))
    unroll = min(range(1, most + 1), key=lambda u: (-(-steps // u) * u, -u))
    return ByteTile(vectors, t.warps, unroll, -(-steps // unroll))


class BytePlanes:
    """Vectors in shared memory, as a thread's MMAs take them: its words of a step side by side."""

    def __init__(self, packing: Packing, tile: ByteTile) -> None:
        self.packing, self.tile = packing, tile
        self.word_chunks = 1 if packing.bits == 8 else 2  # words of bytes that a word becomes
        self.step_words = MMA_STEP_CHUNKS * self.word_chunks
        # threads of two planes in one phase of an access have other banks
        self.pitch = tile.steps * self.step_words + (16 if packing.bits == 8 else 4)
        once = tile.stages == 1

        def scratch(name: str, dtype: dt.DType, size: int) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", const(size), stored_once=once)

        self.planes = scratch("planes", uint32, PLANES * tile.vectors * self.pitch)
        self.units = scratch("units", float32, tile.vectors * tile.steps)
        self.sums = scratch("sums", float32, tile.vectors * tile.steps)

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.planes, self.units, self.sums]

    def fill(self, load: Callable[[list[Stmt], Expr, Expr, str], list[Expr]], name: str) -> Stmt:
        """`load` gives elements of a vector, from the beginning of the stage on, zeros past the
        end."""
        t = self.tile
        lane, body = ir.var(name), list[Stmt]()
        units = t.steps * MMA_STEP_CHUNKS * self.packing.values // UNIT
        total = t.vectors * units
        for i in range(-(-total // t.threads)):
            at: Expr = lane + i * t.threads
            if (i + 1) * t.threads > total:  # the first ones again, with all of their step
                at = at % total
            vector, unit = divmod(at, units) if t.vectors > 1 else (ZERO, at)
            tag = f"{name}{i}"
            xs = [x.cast(float32) for x in load(body, vector, unit * UNIT, f"x{tag}")]
            body += self._round(vector, unit, xs, tag)
        return ir.For(lane, ZERO, const(t.threads), "lanes", body)

    def _round(self, vector: Expr, unit: Expr, xs: list[Expr], tag: str) -> list[Stmt]:
        """Eight elements, by the largest of a step."""
        out, threads = list[Stmt](), MMA_STEP_CHUNKS * self.packing.values // UNIT
        sizes = [ir.unary("abs", x) for x in xs]
        largest = _over_threads(out, _tree(ir.maximum, sizes), threads, f"m{tag}")
        top, factor = ir.var(f"top{tag}", float32), ir.var(f"factor{tag}", float32)
        out.append(ir.Let(top, ir.maximum(largest, const(SMALLEST, float32))))
        out.append(ir.Let(factor, const(LARGEST, float32) / top))
        bits = [ir.var(f"bits{tag}_{i}", uint32) for i in range(UNIT)]
        out += ir.lets(bits, [ir.fma(x, factor, _MAGIC).bitcast(uint32) for x in xs])
        low = [b & 0xFF for b in bits]
        high = [((b + 128) >> 8) & 0xFF for b in bits]
        for plane, own in enumerate((high, low)):
            row = (vector * PLANES + plane) * self.pitch
            for i, word in enumerate(self._words(own)):
                out.append(ir.Store(self.planes, row + self._place(unit, i), word))
        whole = [b.bitcast(int32) - _MAGIC_BITS for b in bits]
        total = _over_threads(out, _tree(lambda a, b: a + b, whole), threads, f"s{tag}")
        step, first = divmod(unit, threads)
        at = vector * self.tile.steps + step
        stores: list[Stmt] = [
            ir.Store(self.units, at, top * (1 / LARGEST)),
            ir.Store(self.sums, at, total.cast(float32)),
        ]
        return [*out, ir.If(first.eq(0), stores)]

    def _words(self, own: list[Expr]) -> list[Expr]:
        """Bytes in the order of codes: every second of a word of eight, or as they are."""
        parts = (own[:4], own[4:]) if self.packing.bits == 8 else (own[::2], own[1::2])
        return [a | (b << 8) | (c << 16) | (d << 24) for a, b, c, d in parts]

    def _place(self, unit: Expr, i: int) -> Expr:
        """Of a word of a unit, in a plane."""
        per_unit = UNIT // self.packing.values
        chunk = unit * per_unit + i // self.word_chunks
        step, own = divmod(chunk, MMA_STEP_CHUNKS)
        thread, q = divmod(own, QUAD)
        if self.packing.header:
            q, thread = thread, q
        word = (thread * QUAD + q) * self.word_chunks + i % self.word_chunks
        return step * self.step_words + word

    def load(self, out: list[Stmt], lane: Expr, step: Expr, mma: int, tag: str) -> list[Expr]:
        """A thread's words of a step, of the plane that is its column."""
        t, thread = self.tile, lane % WARP
        column = ir.minimum(
            thread // THREADS_ALONG_K + mma * MMA_VECTORS * PLANES, PLANES * t.vectors - 1
        )
        words = QUAD * self.word_chunks
        base = column * self.pitch + step * self.step_words + thread % THREADS_ALONG_K * words
        names = [ir.var(f"x{tag}_{mma}_{i}", uint32) for i in range(words)]
        for i, name in enumerate(names):
            value = ir.load(self.planes, base + i)
            out.append(ir.Let(name, value, vector=0 if i % QUAD else QUAD))
        return list(names)

    def numbers(self, lane: Expr, step: Expr, mma: int) -> tuple[Expr, Expr]:
        """The unit and the sum of the vector of a thread's accumulators."""
        own = lane % THREADS_ALONG_K + mma * MMA_VECTORS
        at = ir.minimum(own, self.tile.vectors - 1) * self.tile.steps + step
        return ir.load(self.units, at), ir.load(self.sums, at)


class PackedByteMma:
    """16 rows of codes by a block, all vectors."""

    def __init__(
        self,
        packing: Packing,
        tile: ByteTile,
        matrix: PackedMatrix,
        vectors: VectorOperand,
        sizes: GemvSizes,
        chunks: tuple[Expr, int],  # of a row: at run time, and known
        block: Expr,
    ) -> None:
        self.packing, self.tile, self.matrix, self.vectors = packing, tile, matrix, vectors
        self.sizes, (self.chunks, known) = sizes, chunks
        self.first_row = block * MMA_ROWS
        self.whole = known == tile.span * tile.unroll * tile.stages
        self.planes = BytePlanes(packing, tile)
        kinds = [number.stored(ZERO, ZERO).dtype for number in matrix.numbers]

        def registers(name: str, kinds: list[dt.DType]) -> list[list[list[ir.Register]]]:
            return [
                [
                    [ir.Register(f"{name}{u}_{r}_{i}", k, lanes=True) for i, k in enumerate(kinds)]
                    for r in range(2)
                ]
                for u in range(tile.unroll)
            ]

        self.words = registers("word", [uint32] * QUAD)
        self.numbers = registers("number", kinds)

    def first_loads(self) -> list[Stmt]:
        """They need nothing but the matrix."""
        lane = ir.var("first_lane")
        loads = [s for u in range(self.tile.unroll) for s in self._next(lane, u, const(u))]
        loop = ir.For(lane, ZERO, const(self.tile.threads), "lanes", loads)
        return problem.when(self.matrix.codes.aligned, lambda: [loop])

    def emit(self, epilogue: Epilogue) -> Emitted:
        """After the first loads. The epilogue takes (batch, vector, row, value)."""
        t = self.tile
        totals = [
            [ir.Register(f"total{i}_{r}", float32, lanes=True) for r in range(2)]
            for i in range(t.mmas)
        ]
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for own in totals for c in own]
        if t.stages == 1:
            out += self._stage(totals, ZERO)
        else:
            step = ir.var("step")
            last = const(t.stages * t.unroll)
            body = self._stage(totals, step)
            out.append(ir.For(step, ZERO, last, "serial", body, step=const(t.unroll)))
        steps, stage = self._reduce(totals, epilogue)
        return [*out, *steps], [*self.planes.scratch, stage]

    def _stage(self, totals: list[list[ir.Register]], step: Expr) -> list[Stmt]:
        """Vectors to shared memory, and their products."""
        x, out = self.vectors, list[Stmt]()
        out += problem.when(
            x.aligned, lambda: [self.planes.fill(self._elements(step, True), "fill")]
        )
        out += problem.when(
            ~x.aligned, lambda: [self.planes.fill(self._elements(step, False), "slow_fill")]
        )
        aligned = self.matrix.codes.aligned
        out += problem.when(aligned, lambda: self._products(totals, step, True))
        return out + problem.when(~aligned, lambda: self._products(totals, step, False))

    def _elements(
        self, step: Expr, vectorised: bool
    ) -> Callable[[list[Stmt], Expr, Expr, str], list[Expr]]:
        begin = step * (self.tile.span * self.packing.values)
        end = self.chunks * self.packing.values

        def load(out: list[Stmt], vector: Expr, element: Expr, tag: str) -> list[Expr]:
            at = begin + element
            own = at if self.whole else ir.minimum(at, end - UNIT)
            xs = self.vectors.load_along_k(out, ZERO, vector, own, UNIT, tag, vectorised)
            if self.whole:
                return xs
            return [ir.select(at < end, x, const(0.0, float32).cast(x.dtype)) for x in xs]

        return load

    def _products(
        self, totals: list[list[ir.Register]], step: Expr, vectorised: bool
    ) -> list[Stmt]:
        """Steps of all warps. What is past the end multiplies zeros."""
        t, tag = self.tile, "" if vectorised else "slow_"
        lane, body = ir.var(f"{tag}lane"), list[Stmt]()
        warp = lane // WARP
        for u in range(t.unroll):
            if vectorised:
                words, numbers = (now(body, x[u]) for x in (self.words, self.numbers))
                if t.stages > 1:
                    following = step + (t.unroll + u)
                    exists = following < t.stages * t.unroll
                    body.append(ir.If(exists, self._next(lane, u, following)))
            else:
                words, numbers = self._load(body, lane, step + u, False, f"slow{u}")
            decoded = self._decoded(body, numbers, f"{tag}{u}")
            for i in range(t.mmas):
                sums = [ir.Register(f"{tag}sum{u}_{i}_{c}", int32, lanes=True) for c in range(4)]
                body += [ir.Set(c, const(0, int32)) for c in sums]
                xs = self.planes.load(body, lane, warp + u * t.warps, i, f"{tag}{u}")
                body += self._multiply(words, xs, sums)
                unit, total = self.planes.numbers(lane, warp + u * t.warps, i)
                names = [ir.var(f"{tag}{n}{u}_{i}", float32) for n in ("unit", "ones")]
                body += ir.lets(names, [unit, total])
                body += self._scaled(sums, decoded, names, totals[i])
        return [ir.For(lane, ZERO, const(t.threads), "lanes", body)]

    def _next(self, lane: Expr, u: int, step: Expr) -> list[Stmt]:
        """What a step reads of the matrix, to its registers."""
        out, sets = list[Stmt](), list[Stmt]()
        found = self._load(out, lane, step, True, f"next{u}")
        for registers, values in zip((self.words[u], self.numbers[u]), found, strict=True):
            for own, new in zip(registers, values, strict=True):
                sets += ir.sets(own, new)
        return out + sets

    def _load(
        self, out: list[Stmt], lane: Expr, step: Expr, vectorised: bool, tag: str
    ) -> tuple[list[list[Expr]], list[list[Expr]]]:
        """Four words of each of a thread's rows, and the numbers of their group; past the end, the
        last ones. Words behind a header, which are not aligned, go to threads in turn."""
        p, codes = self.packing, self.matrix.codes
        first = step * self.tile.span + lane // WARP * MMA_STEP_CHUNKS
        thread = lane % THREADS_ALONG_K
        last = self.chunks - 1

        def clamped(chunk: Expr, count: int) -> Expr:
            return chunk if self.whole else ir.minimum(chunk, self.chunks - count)

        group = (first if self.whole else ir.minimum(first, last)) // p.group if p.group else ZERO
        words, numbers = list[list[Expr]](), list[list[Expr]]()
        for r in range(2):
            row = self.first_row + lane % WARP // THREADS_ALONG_K + r * (MMA_ROWS // 2)
            row = ir.minimum(row, self.sizes.rows - 1)
            if p.header:
                chunks = [clamped(first + (thread + q * THREADS_ALONG_K), 1) for q in range(QUAD)]
                at = [(row, chunk + group + 1) for chunk in chunks]
                words.append(codes.load_elements(out, ZERO, at, f"{tag}_{r}"))
            else:
                begin = clamped(first + thread * QUAD, QUAD)
                how = (QUAD, f"{tag}_{r}", vectorised)
                words.append(codes.load_along_k(out, ZERO, row, begin, *how))
            numbers.append([number.stored(row, group) for number in self.matrix.numbers])
        return words, numbers

    def _multiply(
        self, words: list[list[Expr]], xs: list[Expr], sums: list[ir.Register]
    ) -> list[Stmt]:
        """MMAs of a thread's four words of each of its two rows."""
        p, out = self.packing, list[Stmt]()
        if p.bits == 4:
            pairs = [[[w & _NIBBLES, (w >> 4) & _NIBBLES] for w in own] for own in words]
        else:  # as signed bytes
            signed = [[w if p.signed else w ^ (128 * BYTES) for w in own] for own in words]
            pairs = [[own[:2], own[2:]] for own in signed]
        for q, (above, below) in enumerate(zip(*pairs, strict=True)):
            codes = [above[0], below[0], above[1], below[1]]
            out.append(ir.MmaSync(sums, codes, xs[2 * q : 2 * q + 2], int8))
        return out

    def _decoded(
        self, out: list[Stmt], numbers: list[list[Expr]], tag: str
    ) -> list[tuple[Expr, Expr | None]]:
        """Of each row, the scale, and what is to be taken away from its codes."""
        found: list[tuple[Expr, Expr | None]] = []
        added = 128.0 if self.packing.bits == 8 else 0.0  # to signed bytes
        for r, stored in enumerate(numbers):
            kinds = zip(self.matrix.numbers, stored, strict=True)
            value, *zeros = (kind.decoded(x) for kind, x in kinds)
            scale = ir.var(f"scale{tag}_{r}", float32)
            out.append(ir.Let(scale, value))
            middle: Expr | None = None
            if zeros or self.packing.zero != added:
                middle = ir.var(f"zero{tag}_{r}", float32)
                point = zeros[0] if zeros else const(float(self.packing.zero), float32)
                out.append(ir.Let(middle, point - added))
            found.append((scale, middle))
        return found

    def _scaled(
        self,
        sums: list[ir.Register],
        decoded: list[tuple[Expr, Expr | None]],
        numbers: list[Expr],
        totals: list[ir.Register],
    ) -> list[Stmt]:
        """Both planes of a step, scaled, to the totals."""
        out, (unit, ones) = list[Stmt](), numbers
        for r, (scale, middle) in enumerate(decoded):
            high, low = ir.reads(sums[2 * r : 2 * r + 2])
            value = (high * 256 + low).cast(float32)
            value = value if middle is None else ir.fma(-middle, ones, value)
            out.append(ir.Set(totals[r], ir.fma(value, scale * unit, ir.read(totals[r]))))
        return out

    def _reduce(
        self, totals: list[list[ir.Register]], epilogue: Epilogue
    ) -> tuple[list[Stmt], ir.Buffer]:
        """Sums over the warps, through shared memory, and the epilogue."""
        t, ld = self.tile, MMA_ROWS + _PADDING
        size = t.vectors * ld
        stage = ir.Buffer("stage", float32, "scratch", const(t.warps * size), stored_once=True)
        lane, to_shared = ir.var("stage_lane"), list[Stmt]()
        row = lane % WARP // THREADS_ALONG_K
        for i, own in enumerate(totals):
            vector = lane % THREADS_ALONG_K + i * MMA_VECTORS
            base = lane // WARP * size + vector * ld + row
            stores: list[Stmt] = [
                ir.Store(stage, base + r * (MMA_ROWS // 2), ir.read(c)) for r, c in enumerate(own)
            ]
            to_shared.append(ir.If(vector < t.vectors, stores))
        lanes = ir.For(lane, ZERO, const(t.threads), "lanes", to_shared)
        lane, total = ir.var("reduce_lane"), ir.var("sum", float32)
        vector, column = divmod(lane, MMA_ROWS)
        at = vector * ld + column
        value = _tree(lambda a, b: a + b, [ir.load(stage, at + w * size) for w in range(t.warps)])
        n = self.first_row + column
        stores = [ir.Let(total, value), *epilogue(ZERO, vector, n, total)]
        own_rows = ir.If(n < self.sizes.rows, stores)
        count = const(t.vectors * MMA_ROWS)
        return [lanes, ir.For(lane, ZERO, count, "lanes", [own_rows])], stage


def _tree(combine: Callable[[Expr, Expr], Expr], xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        pairs = zip(xs[::2], xs[1::2], strict=False)
        xs = [combine(a, b) for a, b in pairs] + xs[len(xs) & ~1 :]
    return xs[0]


def _over_threads(out: list[Stmt], value: Expr, threads: int, name: str) -> Expr:
    """The largest of adjacent threads, or of integers their sum."""
    mask = threads // 2
    while mask:
        other, found = ir.lanes_xor(value, mask), ir.var(f"{name}_{mask}", value.dtype)
        whole = value + other if value.dtype is int32 else ir.maximum(value, other)
        out.append(ir.Let(found, whole))
        value, mask = found, mask // 2
    return value
