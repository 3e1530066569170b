"""GEMV with packed codes on tensor cores, by bytes (mma.sync): one vector of 16-bit floats.

Activations become integers of 16 bits, relative to the largest that share a warp's step, in two
planes of signed bytes: two columns of an MMA. A word of codes is masked into bytes, three
instructions for eight codes where floats take eight. A block does so with the vector once, into
shared memory, while its first words are on their way; its warps share k. Blocks that would go along
several tiles of rows are slower: new ones start while others load.
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
from numus.kernels.matmul.gpu.packed.gemv import QUAD, PackedMatrix, now
from numus.kernels.matmul.gpu.problem import Emitted, Epilogue, VectorOperand
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, Packing

ZERO = const(0)
WARP = 32
THREADS_ALONG_K = 4  # of a warp
MMA_ROWS = 16
PLANES = 2  # of bytes
UNIT = 8  # elements that a thread rounds at a time
LOADS = 4  # of as many, in flight
LARGEST = 127 * 256.0  # of an integer, whose low byte is signed
SMALLEST = 1e-30  # of the largest element of a step: its reciprocal is finite
_MAGIC = 1.5 * 2.0**23  # to which a small integer is added exactly, in the low bits
_MAGIC_BITS = 0x4B400000
_NIBBLES = 0x0F0F0F0F


@dataclass(frozen=True)
class ByteMmaTuning:
    """Measured on one H200."""

    warps: int = 8
    warps_of_many: int = 4  # where SMs have several rounds of blocks of short rows
    max_steps_in_flight: int = 4  # of a warp: 16 bytes of codes of each of a thread's two rows
    few_steps: int = 4  # that leave registers for
    many_threads: int = 768  # of an SM, so that the next kernel's blocks load beside this one;
    few_threads: int = 512  # of others
    max_kept_bytes: int = 32 << 10  # of planes


TUNING = ByteMmaTuning()


@dataclass(frozen=True, slots=True)
class ByteTile:
    """Of a block."""

    warps: int
    unroll: int  # steps of a warp in an iteration
    iterations: int

    @property
    def threads(self) -> int:
        return self.warps * WARP

    @property
    def span(self) -> int:
        """Chunks of a step of all warps."""
        return MMA_STEP_CHUNKS * self.warps

    @property
    def steps(self) -> int:
        """Of all warps."""
        return self.unroll * self.iterations

    @property
    def resident_blocks(self) -> int:
        """Of an SM, which registers are to suffice for."""
        few = self.steps <= TUNING.few_steps
        return (TUNING.many_threads if few else TUNING.few_threads) // self.threads


def choose_tile(num_cores: int, rows: int, chunks: int) -> ByteTile:
    """Without steps in vain, if that is possible."""
    t = TUNING
    few, every = t.warps_of_many, -(-rows // MMA_ROWS)
    short = chunks <= MMA_STEP_CHUNKS * few * 2 * t.max_steps_in_flight
    many = every * few * WARP > num_cores * t.many_threads
    warps = few if many and short else t.warps
    steps = -(-chunks // (MMA_STEP_CHUNKS * warps))
    most = min(t.max_steps_in_flight, steps)
    unroll = min(range(1, most + 1), key=lambda u: (-(-steps // u) * u, -u))
    return ByteTile(warps, unroll, -(-steps // unroll))


def supports_planes(p: Packing, vectors: int, chunks: int) -> bool:
    """Steps lie within groups, and there is room for the vector."""
    fits = vectors == 1 and PLANES * p.values * chunks <= TUNING.max_kept_bytes
    return fits and p.bits in (4, 8) and p.group % MMA_STEP_CHUNKS == 0


def supports(p: Packing, vectors: int, chunks: int) -> bool:
    """Words behind a header would not be loaded as vectors."""
    return supports_planes(p, vectors, chunks) and not p.header


def planes_of_block(p: Packing, warps: int, chunks: int) -> BytePlanes:
    """For another kernel's block, which reads them by chunks."""
    steps = -(-chunks // (MMA_STEP_CHUNKS * warps))
    return BytePlanes(p, ByteTile(warps, steps, 1))


def zeros_past_end(x: Expr, at: Expr, end: Expr) -> Expr:
    return ir.select(at < end, x, const(0.0, float32).cast(x.dtype))


class BytePlanes:
    """The vector in shared memory, as a thread's MMAs take it: its words of a step side by side."""

    def __init__(self, packing: Packing, tile: ByteTile) -> None:
        self.packing, self.tile = packing, tile
        self.word_chunks = 1 if packing.bits == 8 else 2  # words of bytes that a word becomes
        self.step_words = MMA_STEP_CHUNKS * self.word_chunks
        steps = tile.steps * tile.warps
        # threads of two planes in one phase of an access have other banks
        self.pitch = steps * self.step_words + (16 if packing.bits == 8 else 4)

        def scratch(name: str, dtype: dt.DType, size: int) -> ir.Buffer:
            return ir.Buffer(name, dtype, "scratch", const(size), stored_once=True)

        self.planes = scratch("planes", uint32, PLANES * self.pitch)
        self.units = scratch("units", float32, steps)
        self.sums = scratch("sums", float32, steps)

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.planes, self.units, self.sums]

    def fill(self, load: Callable[[list[Stmt], Expr, str], list[Expr]], name: str) -> Stmt:
        """`load` gives elements from a place on, zeros past the end."""
        t = self.tile
        lane, body = ir.var(name), list[Stmt]()
        total = t.steps * t.span * self.packing.values // UNIT
        rounds = range(-(-total // t.threads))
        # past the end the first ones again, with all of their step
        for first in range(0, len(rounds), LOADS):
            units = {i: (lane + i * t.threads) % total for i in rounds[first : first + LOADS]}
            found = {i: load(body, u * UNIT, f"x{name}{i}") for i, u in units.items()}
            for i, xs in found.items():
                body += self._round(units[i], [x.cast(float32) for x in xs], f"{name}{i}")
        return ir.For(lane, ZERO, const(t.threads), "lanes", body)

    def _round(self, unit: Expr, xs: list[Expr], tag: str) -> list[Stmt]:
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
            for i, word in enumerate(self._words(own)):
                place = self._place(unit, i) + plane * self.pitch
                out.append(ir.Store(self.planes, place, word))
        whole = [b.bitcast(int32) - _MAGIC_BITS for b in bits]
        total = _over_threads(out, _tree(lambda a, b: a + b, whole), threads, f"s{tag}")
        step, first = divmod(unit, threads)
        stores: list[Stmt] = [
            # an infinity makes all of its integers zero or no numbers: NaN, as on CPUs
            ir.Store(self.units, step, top * (1 / LARGEST) + (top - top)),
            ir.Store(self.sums, step, total.cast(float32)),
        ]
        return [*out, ir.If(first.eq(0), stores)]

    def _words(self, own: list[Expr]) -> list[Expr]:
        """Bytes in the order of codes: every second of a word of eight, or as they are."""
        parts = (own[:4], own[4:]) if self.packing.bits == 8 else (own[::2], own[1::2])
        return [a | (b << 8) | (c << 16) | (d << 24) for a, b, c, d in parts]

    def _place(self, unit: Expr, i: int) -> Expr:
        """Of a word of a unit, in a plane."""
        per_unit = UNIT // self.packing.values
        return (unit * per_unit + i // self.word_chunks) * self.word_chunks + i % self.word_chunks

    def load(self, out: list[Stmt], lane: Expr, step: Expr, tag: str) -> list[Expr]:
        """A thread's words of a step, of the plane that is its column."""
        plane = lane % WARP // THREADS_ALONG_K % PLANES
        first = step * MMA_STEP_CHUNKS + lane % THREADS_ALONG_K * QUAD
        return self.words(out, plane, first, tag)

    def words(self, out: list[Stmt], plane: Expr, chunk: Expr, tag: str) -> list[Expr]:
        """Those of four chunks from one on."""
        base = plane * self.pitch + chunk * self.word_chunks
        names = [ir.var(f"x{tag}_{i}", uint32) for i in range(QUAD * self.word_chunks)]
        for i, name in enumerate(names):
            value = ir.load(self.planes, base + i)
            out.append(ir.Let(name, value, vector=0 if i % QUAD else QUAD))
        return list(names)

    def numbers(self, step: Expr) -> list[Expr]:
        """The unit of a step, and the sum of its integers."""
        return [ir.load(self.units, step), ir.load(self.sums, step)]


class PackedByteMma:
    """16 rows of codes by a block."""

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
        self.whole = known == tile.span * tile.steps
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
        self.totals = [ir.Register(f"total{r}", float32, lanes=True) for r in range(2)]
        size = tile.warps * MMA_ROWS
        self.stage = ir.Buffer("stage", float32, "scratch", const(size), stored_once=True)

    def first_loads(self) -> list[Stmt]:
        """They need nothing but the matrix."""
        lane = ir.var("first_lane")
        loads = [s for u in range(self.tile.unroll) for s in self._next(lane, ZERO, u)]
        loop = ir.For(lane, ZERO, const(self.tile.threads), "lanes", loads)
        return problem.when(self.matrix.codes.aligned, lambda: [loop])

    def emit(self, epilogue: Epilogue) -> Emitted:
        """After the first loads. The epilogue takes (batch, vector, row, value)."""
        t, x = self.tile, self.vectors
        out: list[Stmt] = [ir.Set(c, const(0.0, float32)) for c in self.totals]
        out += problem.when(x.aligned, lambda: [self.planes.fill(self._elements(True), "fill")])
        out += problem.when(
            ~x.aligned, lambda: [self.planes.fill(self._elements(False), "slow_fill")]
        )
        if t.iterations > 1:
            at = ir.var("iteration")
            body = self._iteration(at)
            out.append(ir.For(at, ZERO, const(t.iterations), "serial", body))
        else:
            out += self._iteration(ZERO)
        return [*out, *self._reduce(epilogue)], [*self.planes.scratch, self.stage]

    def _iteration(self, at: Expr) -> list[Stmt]:
        aligned = self.matrix.codes.aligned
        out = problem.when(aligned, lambda: self._products(at, True))
        return out + problem.when(~aligned, lambda: self._products(at, False))

    def _elements(self, vectorised: bool) -> Callable[[list[Stmt], Expr, str], list[Expr]]:
        end = self.chunks * self.packing.values

        def load(out: list[Stmt], at: Expr, tag: str) -> list[Expr]:
            own = at if self.whole else ir.minimum(at, end - UNIT)
            xs = self.vectors.load_along_k(out, ZERO, ZERO, own, UNIT, tag, vectorised)
            if self.whole:
                return xs
            return [zeros_past_end(x, at, end) for x in xs]

        return load

    def _products(self, at: Expr, vectorised: bool) -> list[Stmt]:
        """Steps of all warps. What is past the end of k multiplies zeros."""
        t, tag = self.tile, "" if vectorised else "slow_"
        lane, body = ir.var(f"{tag}lane"), list[Stmt]()
        first, following = at * t.unroll, at + 1
        for u in range(t.unroll):
            if vectorised:
                words, numbers = (now(body, x[u]) for x in (self.words, self.numbers))
            else:
                words, numbers = self._load(body, lane, at, u, False, f"{tag}{u}")
            decoded = self._decoded(body, numbers, f"{tag}{u}")
            sums = [ir.Register(f"{tag}sum{u}_{c}", int32, lanes=True) for c in range(4)]
            body += [ir.Set(c, const(0, int32)) for c in sums]
            step = (first + u) * t.warps + lane // WARP
            xs = self.planes.load(body, lane, step, f"{tag}{u}")
            body += self._multiply(words, xs, sums)
            if vectorised and t.iterations > 1:
                following_loads = self._next(lane, following, u)
                body.append(ir.If(following < t.iterations, following_loads))
            names = [ir.var(f"{tag}{n}{u}", float32) for n in ("unit", "ones")]
            body += ir.lets(names, self.planes.numbers(step))
            body += self._scaled(sums, decoded, names)
        return [ir.For(lane, ZERO, const(t.threads), "lanes", body)]

    def _next(self, lane: Expr, iteration: Expr, u: int) -> list[Stmt]:
        """What a step of an iteration reads of the matrix, to its registers."""
        out, sets = list[Stmt](), list[Stmt]()
        found = self._load(out, lane, iteration, u, True, f"next{u}")
        for registers, values in zip((self.words[u], self.numbers[u]), found, strict=True):
            for own, new in zip(registers, values, strict=True):
                sets += ir.sets(own, new)
        return out + sets

    def _load(
        self, out: list[Stmt], lane: Expr, iteration: Expr, u: int, vectorised: bool, tag: str
    ) -> tuple[list[list[Expr]], list[list[Expr]]]:
        """Four words of each of a thread's rows, and the numbers of their group; past the end, the
        last ones."""
        p, t = self.packing, self.tile
        chunk = (iteration * t.unroll + u) * t.span + lane // WARP * MMA_STEP_CHUNKS
        begin = chunk + lane % THREADS_ALONG_K * QUAD
        if not self.whole:
            begin = ir.minimum(begin, self.chunks - QUAD)
            chunk = ir.minimum(chunk, self.chunks - 1)
        group = chunk // p.group if p.group else ZERO
        words, numbers = list[list[Expr]](), list[list[Expr]]()
        for r in range(2):
            row = self.first_row + lane % WARP // THREADS_ALONG_K + r * (MMA_ROWS // 2)
            row = ir.minimum(row, self.sizes.rows - 1)
            how = (QUAD, f"{tag}_{r}", vectorised)
            words.append(self.matrix.codes.load_along_k(out, ZERO, row, begin, *how))
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
            signed = [[w ^ (128 * BYTES) for w in own] for own in words]
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
    ) -> list[Stmt]:
        """Both planes of a step, scaled, to the totals."""
        out, (unit, ones) = list[Stmt](), numbers
        for r, (scale, middle) in enumerate(decoded):
            high, low = ir.reads(sums[2 * r : 2 * r + 2])
            value = (high * 256 + low).cast(float32)
            value = value if middle is None else ir.fma(-middle, ones, value)
            total = self.totals[r]
            out.append(ir.Set(total, ir.fma(value, scale * unit, ir.read(total))))
        return out

    def _reduce(self, epilogue: Epilogue) -> list[Stmt]:
        """Sums over the warps, through shared memory, and the epilogue."""
        t, lane = self.tile, ir.var("stage_lane")
        base = lane // WARP * MMA_ROWS + lane % WARP // THREADS_ALONG_K
        stores: list[Stmt] = [
            ir.Store(self.stage, base + r * (MMA_ROWS // 2), ir.read(c))
            for r, c in enumerate(self.totals)
        ]
        own = ir.If((lane % THREADS_ALONG_K).eq(0), stores)
        lanes = ir.For(lane, ZERO, const(t.threads), "lanes", [own])
        lane, total = ir.var("reduce_lane"), ir.var("sum", float32)
        n = self.first_row + lane
        parts = [ir.load(self.stage, lane + w * MMA_ROWS) for w in range(t.warps)]
        value = _tree(lambda a, b: a + b, parts)
        stores = [ir.Let(total, value), *epilogue(ZERO, ZERO, n, total)]
        own_row = ir.If(n < self.sizes.rows, stores)
        return [lanes, ir.For(lane, ZERO, const(MMA_ROWS), "lanes", [own_row])]


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
