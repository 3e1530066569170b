"""Multistage GEMM mainloop (cp.async): K-tiles of A and B staged in shared memory, several ahead.

Operands in global memory are copied asynchronously where the target can; expressions are evaluated
and stored. Shared memory is counted in words: elements below 4 bytes are packed along k.

The interleaved (software-pipelined) mainloop spreads copies of later K-tiles among the MMAs,
unconditionally, so that neither a burst of copies nor a branch stalls them; fragments are
double-buffered in registers across K-tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import Coordinate, GemmSizes, Operand, when

ZERO, ONE = const(0), const(1)

K_MAJOR_PADDING = 4  # words between K-major rows, against bank conflicts


def zero(dtype: DType) -> Expr:
    return const(0.0, float32).cast(dtype) if dtype.is_low_precision else const(0, dtype)


def word_dtype(dtype: DType) -> DType:
    """The type of a shared-memory load."""
    return dtype if dtype.itemsize >= 4 else dt.uint32


Address = Callable[[Expr, Expr, Expr], tuple[ir.Buffer, Expr]]  # of (batch, mn, k)
Shift = tuple[Expr, Expr]  # in rows of global memory, and in elements


@dataclass(slots=True)
class StagedOperand(Operand):
    """An operand staged in shared memory, where `k_major` is its layout."""

    address: Address | None  # in global memory; None: an expression
    aligned: Expr  # 16-byte copies are aligned
    ld: Expr = ZERO  # leading dimension in global memory
    transposed: bool = False  # the other order in global memory: copied element by element
    tile_shift: Callable[[Expr, Expr], Shift] | None = None  # of (batch, K-tile)
    shift_extent: Expr = ZERO  # rows in memory of a shifted operand; zeros outside
    k_end: Callable[[Expr], Expr] | None = None  # K-tile -> first k that is zero
    # complex B as pairs (re, im) along n, of which the loop over real k takes each row twice: as
    # it is, and as (-im, re)
    is_pairs: bool = False


@dataclass(frozen=True, slots=True)
class StageShape:
    """A pipeline stage in shared memory."""

    dtype: DType
    k_words: int
    stages: int
    threads: int
    padding: int  # words between MN-major rows
    clamped: bool = False  # rows past the end repeat the last one, instead of zeros

    @property
    def word_elements(self) -> int:
        return word_dtype(self.dtype).itemsize // self.dtype.itemsize

    @property
    def tile_k(self) -> int:
        return self.k_words * self.word_elements


@dataclass(slots=True)
class OperandTile:
    """Loader of one operand's tile: `extent` rows of A, or columns of B, from `origin` on."""

    operand: StagedOperand
    origin: Expr
    extent: int
    shape: StageShape
    words: ir.Buffer
    elements: ir.Buffer  # aliases `words`
    offset: int  # in words

    @property
    def ld(self) -> int:
        """Leading dimension in shared memory, in words."""
        if self.operand.k_major:
            return self.shape.k_words + K_MAJOR_PADDING
        return self.extent + self.shape.padding

    @property
    def stage_words(self) -> int:
        return self.ld * (self.extent if self.operand.k_major else self.shape.k_words)

    def index(self, stage: Expr, mn: Expr, word: Expr) -> Expr:
        base = stage * self.stage_words + self.offset
        slow, fast = (mn, word) if self.operand.k_major else (word, mn)
        return base + slow * self.ld + fast

    @property
    def global_k_major(self) -> bool:
        return self.operand.k_major != self.operand.transposed

    def in_bounds(self, k_tile: Expr, k_size: Expr, shift: Expr | None) -> Expr:
        """All elements of a K-tile exist."""
        o = self.operand
        k_size = k_size if o.k_end is None else o.k_end(k_tile)
        last = self.origin + self.extent
        begin = k_tile * self.shape.tile_k
        end = begin + self.shape.tile_k
        if self.shape.clamped:
            return end <= k_size
        whole = (last <= o.extent) & (end <= k_size)
        if shift is None:
            return whole
        begin, end = (self.origin, last) if self.global_k_major else (begin, end)
        return whole & (begin + shift >= 0) & (end + shift <= o.shift_extent)

    def load_paths(self, k_tile: Expr, k_size: Expr, shift: Expr | None) -> dict[str, Expr]:
        """Ways to load a K-tile, with their conditions: asynchronous copies of 16-byte vectors or
        of elements, predicated at the ends, or evaluation of the expression."""
        o = self.operand
        in_bounds = self.in_bounds(k_tile, k_size, shift)
        if o.address is None:
            return {"evaluate": const(True, dt.bool_)}
        if o.transposed:
            return {"elements": in_bounds, "elements predicated": ~in_bounds}
        if not self.shape.clamped:
            other = "elements predicated" if self.shape.dtype.itemsize >= 4 else "evaluate"
            paths = {"vectors": o.aligned & in_bounds, "vectors predicated": o.aligned & ~in_bounds}
            return {**paths, other: ~o.aligned}
        whole = in_bounds & self.has_whole_vectors
        return {
            "vectors": o.aligned & whole,
            "vectors predicated": o.aligned & ~whole,
            "elements": ~o.aligned & in_bounds,
            "elements predicated": ~o.aligned & ~in_bounds,
        }

    @property
    def has_whole_vectors(self) -> Expr:
        """No vector reaches past the last row or column."""
        vector, last = 16 // self.shape.dtype.itemsize, self.origin + self.extent
        return (last <= self.operand.extent) | (self.operand.extent % vector).eq(0)

    @property
    def copies_vectors(self) -> Expr:
        """Copies of 16 bytes are aligned, and none is partly past the end."""
        if self.operand.transposed:
            return const(False, dt.bool_)
        aligned = self.operand.aligned
        return aligned if self.global_k_major else aligned & self.has_whole_vectors

    def shares(
        self, lane: Expr, vector: int
    ) -> Iterator[tuple[tuple[Expr, Expr], int, Expr | None]]:
        """A thread's vectors: (mn, k) in global memory, how many rows below that, and a condition
        where not all threads have one. Threads move down rows of global memory, unless a row has
        more vectors than threads."""
        s, k_major = self.shape, self.global_k_major
        total = self.extent * s.tile_k // vector
        row_vectors = (s.tile_k if k_major else self.extent) // vector
        row, column = lane // row_vectors, lane % row_vectors * vector
        for begin in range(0, total, s.threads):
            below, right = divmod(begin, row_vectors)
            fast = column + (right * vector if s.threads < row_vectors else 0)
            own = None if begin + s.threads <= total else lane + begin < total
            yield (row, fast) if k_major else (fast, row), below, own

    def clamped_address(
        self, batch: Expr, at: tuple[Expr, Expr], below: int, vector: int, clamped: bool = True
    ) -> tuple[ir.Buffer, Expr]:
        """Rows past the end repeat the last one; 32-bit offsets take one multiplication."""
        o, (mn, k), far = self.operand, at, const(below, dt.int32)
        assert o.address is not None
        if clamped:
            mn = ir.minimum(mn, o.extent - (1 if self.global_k_major else vector))
            if self.global_k_major and (below or self.shape.clamped):
                far = ir.minimum(far, (o.extent - 1 - mn).cast(dt.int32))
        buffer, first = o.address(batch, mn, k)
        return buffer, first + o.ld.cast(dt.int32).cast(ir.INDEX) * far.cast(ir.INDEX)

    def load(
        self, lane: Expr, batch: Expr, k_tile: Expr, k_size: Expr, path: str, shift: Shift | None
    ) -> list[Stmt]:
        """A thread's share of a K-tile, by one of the load paths."""
        o, s, k_major = self.operand, self.shape, self.global_k_major
        k_size = k_size if o.k_end is None else o.k_end(k_tile)
        vector = 1 if path.startswith("elements") else 16 // s.dtype.itemsize
        predicated = path.endswith("predicated")
        out: list[Stmt] = []
        for (mn, k), below, own in self.shares(lane, vector):
            first = (self.origin + mn, k_tile * s.tile_k + k)
            mn, k = (mn + below, k) if k_major else (mn, k + below)
            word = k // s.word_elements if s.word_elements > 1 else k
            to = self.index(k_tile % s.stages, mn, word)
            mn, k = self.origin + mn, k_tile * s.tile_k + k
            one: list[Stmt] = []
            if path == "evaluate":
                for u in range(vector):
                    i, p = (mn, k + u) if k_major else (mn + u, k)
                    exists = (i < o.extent) & (p < k_size)
                    value = ir.select(exists, o.read(batch, i, p, exists), zero(s.dtype))
                    one.append(ir.Store(self.elements, to * s.word_elements + u, value))
            else:
                assert o.address is not None
                if s.clamped:
                    buffer, index = self.clamped_address(
                        batch, first, below, vector, not predicated
                    )
                else:  # the thread's first address plus an offset that is uniform across threads
                    buffer, index = o.address(batch, *first)
                    index = index + o.ld * below
                left, exists = k_size - k, mn < o.extent
                if not k_major:
                    left, exists = o.extent - mn, k < k_size
                if shift is not None:
                    rows, elements = shift
                    index, row = index + elements, (mn if k_major else k) + rows
                    exists = exists & (row >= 0) & (row < o.shift_extent)
                limit = ir.select(exists, left, ZERO) if predicated else const(vector)
                nbytes = vector * s.dtype.itemsize
                one.append(ir.AsyncCopy(self.words, to, buffer, index, limit, nbytes))
            out += one if own is None else [ir.If(own, one)]
        return out

    def copies(
        self, lane: Expr, batch: Expr, k_tile: Expr, k_size: Expr, vector: int
    ) -> list[Stmt]:
        """A thread's share without branches: rows past the end repeat the last one, and nobody
        stores their results; past the end of k are zeros."""
        s, k_major = self.shape, self.global_k_major
        out: list[Stmt] = []
        for (mn, k), below, own in self.shares(lane, vector):
            first = (self.origin + mn, k_tile * s.tile_k + k)
            buffer, index = self.clamped_address(batch, first, below, vector)
            mn, k = (mn + below, k) if k_major else (mn, k + below)
            left = k_size - (k_tile * s.tile_k + k)
            limit = left if k_major else ir.select(left > 0, const(vector), ZERO)
            to, nbytes = self.index(k_tile % s.stages, mn, k), vector * s.dtype.itemsize
            copy = ir.AsyncCopy(self.words, to, buffer, index, limit, nbytes)
            out.append(copy if own is None else ir.If(own, [copy]))
        return out


Operands = tuple[StagedOperand, StagedOperand]
Tiles = tuple[OperandTile, OperandTile]
Multiply = Callable[[Expr, Expr], list[Stmt]]  # (lane, stage): a thread's share of a K-tile


def operand_tiles(
    shape: StageShape, operands: Operands, origin: Coordinate, extents: tuple[int, int]
) -> tuple[OperandTile, OperandTile, int]:
    """Loaders of A and B in one shared buffer, and its size in words."""
    _, m0, n0 = origin
    words = ir.Buffer("k_tiles", word_dtype(shape.dtype), "scratch")
    elements = ir.Buffer("elements", shape.dtype, "scratch", aliases=words)
    a = OperandTile(operands[0], m0, extents[0], shape, words, elements, 0)
    after_a = shape.stages * a.stage_words
    if operands[1].is_pairs:
        shape = replace(shape, k_words=shape.k_words // 2)
    b = OperandTile(operands[1], n0, extents[1], shape, words, elements, after_a)
    total = shape.stages * (a.stage_words + b.stage_words)
    words.size, elements.size = const(total), const(total * shape.word_elements)
    return a, b, total


@dataclass(slots=True)
class SplitKSizes(GemmSizes):
    """Sizes of a GEMM with tile swizzle and split-K."""

    swizzle_m: Expr  # tile rows of a swizzle band
    split_k: Expr
    k_tiles: Expr  # of a split

    def k_range(self, which: Expr, tile_k: int) -> tuple[Expr, Expr, Expr]:
        """Batch, first K-tile and number of K-tiles of `which` = batch * split_k + split."""
        first = which % self.split_k * self.k_tiles
        every = (self.k + (tile_k - 1)) // tile_k
        return which // self.split_k, first, ir.minimum(self.k_tiles, every - first)


def _threads(count: int, lane: Expr, body: Callable[[], list[Stmt]]) -> list[Stmt]:
    return [ir.For(lane, ZERO, const(count), "lanes", body())]


def multistage(tiles: Tiles, which: Expr, sizes: SplitKSizes, multiply: Multiply) -> list[Stmt]:
    """The loop over K-tiles."""
    shape = tiles[0].shape
    batch, start, count = sizes.k_range(which, shape.tile_k)
    end = start + count
    ahead = shape.stages - 1

    def load(name: str, k_tile: Expr) -> list[Stmt]:
        steps: list[Stmt] = []
        for tile, tag in zip(tiles, "ab", strict=True):
            shift = None
            if tile.operand.tile_shift is not None:
                shift = (ir.var(f"{name}{tag}_shift_rows"), ir.var(f"{name}{tag}_shift_elements"))
                found = tile.operand.tile_shift(batch, k_tile)
                steps += [ir.Let(v, e) for v, e in zip(shift, found, strict=True)]
            for path, condition in tile.load_paths(k_tile, sizes.k, shift and shift[0]).items():
                lane = ir.var(f"{name}{tag}_{path}")
                load_path = partial(tile.load, lane, batch, k_tile, sizes.k, path, shift)
                steps += when(condition, partial(_threads, shape.threads, lane, load_path))
        return steps

    out: list[Stmt] = []
    for number in range(ahead):
        k_tile = start + number
        out += [ir.If(k_tile < end, load(f"ahead{number}", k_tile)), ir.AsyncCommit()]
    q, lane = ir.var("k_tile"), ir.var("multiply")
    next_ = q + ahead
    products = multiply(lane, q % shape.stages)
    body: list[Stmt] = [
        ir.AsyncWait(ahead - 1),
        ir.If(next_ < end, load("next", next_)),
        ir.AsyncCommit(),
        ir.For(lane, ZERO, const(shape.threads), "lanes", products),
    ]
    return [*out, ir.For(q, start, end, "serial", body), ir.AsyncWait(0)]


@dataclass(slots=True)
class KSteps:
    """MMA steps of a K-tile, two at least."""

    count: int
    load: Callable[[int, Expr, Expr, str], list[ir.Let]]  # (step, lane, stage, tag): fragments
    multiply: Callable[[int, str], list[Stmt]]  # (step, tag): MMAs


def interleaved(tiles: Tiles, which: Expr, sizes: SplitKSizes, steps: KSteps) -> list[Stmt]:
    """The loop over K-tiles of operands in memory that are not shifted, in two versions: with
    copies of 16 bytes, and of elements where those are not aligned."""
    shape = tiles[0].shape
    batch, start, count = sizes.k_range(which, shape.tile_k)
    ahead, last = shape.stages - 1, steps.count - 1
    names = [let.var for let in steps.load(0, ZERO, ZERO, "")]
    carried = [ir.Register(f"carried{i}", v.dtype, lanes=True) for i, v in enumerate(names)]

    def loop(widths: list[int], tag: str = "") -> list[Stmt]:
        """The barrier is before the last step of a K-tile, during which the first fragments of the
        next one are loaded, carried in registers."""
        q = ir.var(f"k_tile{tag}")

        def all_threads(name: str, body: Callable[[Expr], list[Stmt]]) -> Stmt:
            lane = ir.var(f"{name}{tag}")
            return ir.For(lane, ZERO, const(shape.threads), "lanes", body(lane))

        def copies(lane: Expr, k_tile: Expr) -> list[Stmt]:
            pairs = zip(tiles, widths, strict=True)
            return [x for t, n in pairs for x in t.copies(lane, batch, k_tile, sizes.k, n)]

        def carry(lets: list[ir.Let]) -> list[Stmt]:
            return [ir.Set(x, let.var) for x, let in zip(carried, lets, strict=True)]

        def restore(lets: list[ir.Let]) -> list[Stmt]:
            return [ir.Let(let.var, ir.read(x)) for x, let in zip(carried, lets, strict=True)]

        def first_fragments(lane: Expr) -> list[Stmt]:
            lets = steps.load(0, lane, start % shape.stages, "")
            return [*lets, *carry(lets)]

        def all_but_last(lane: Expr) -> list[Stmt]:
            body = restore(steps.load(0, lane, ZERO, ""))
            pending = copies(lane, q + ahead)
            lets: list[ir.Let] = []
            for step in range(last):
                lets = steps.load(step + 1, lane, q % shape.stages, "")
                share = pending[len(pending) * step // last : len(pending) * (step + 1) // last]
                body += [*lets, *_interleave(steps.multiply(step, ""), share)]
            return body + carry(lets)

        def last_step(lane: Expr) -> list[Stmt]:
            old = restore(steps.load(last, lane, ZERO, "last_"))
            lets = steps.load(0, lane, (q + 1) % shape.stages, "after_")
            return [*old, *lets, *steps.multiply(last, "last_"), *carry(lets)]

        out: list[Stmt] = []
        for number in range(ahead):
            copy = partial(copies, k_tile=start + number)
            out += [all_threads(f"ahead{number}", copy), ir.AsyncCommit()]
        body = [
            all_threads("multiply", all_but_last),
            ir.AsyncCommit(),
            ir.AsyncWait(ahead - 1),
            all_threads("multiply_last", last_step),
        ]
        out += [ir.AsyncWait(ahead - 1), all_threads("begin", first_fragments)]
        return [*out, ir.For(q, start, start + count, "serial", body), ir.AsyncWait(0)]

    conditions = [tile.copies_vectors for tile in tiles]
    possible = [x for x in conditions if x.op != "const" or x.attr]
    if not possible:
        return loop([1, 1])
    widths = [16 // shape.dtype.itemsize if x in possible else 1 for x in conditions]
    aligned = possible[0] & possible[-1]
    return [ir.If(aligned, loop(widths, "_vectors")), ir.If(~aligned, loop([1, 1]))]


def _interleave(mmas: list[Stmt], copies: list[Stmt]) -> list[Stmt]:
    """The copies spread evenly among the MMAs."""
    out: list[Stmt] = []
    for i, mma in enumerate(mmas):
        at, then = (len(copies) * j // len(mmas) for j in (i, i + 1))
        out += [*copies[at:then], mma]
    return out


def tile_coordinates(
    s: SplitKSizes, block: Expr, tile_m: int, tile_n: int, *, index32: bool = False
) -> tuple[Coordinate, list[Stmt]]:
    """Tile scheduler with threadblock swizzle: (batch and split as one number, m0, n0) of a block,
    and the statements that define them. Concurrent blocks cover a square of tiles, for L2 reuse."""
    counts = (block, s.tiles_m, s.tiles_n, s.swizzle_m)
    block, down, across, swizzle_m = (e.cast(dt.uint32) for e in counts) if index32 else counts
    tiles = down * across
    inner = block % tiles
    band = swizzle_m * across
    top = inner // band * swizzle_m
    within = inner % band
    height = ir.minimum(swizzle_m, down - top)
    found = (block // tiles, top + within % height, within // height)
    which, row, column = (e.cast(ir.INDEX) for e in found)
    values = (which, row * tile_m, column * tile_n)
    names = (ir.var("which"), ir.var("m0"), ir.var("n0"))
    return names, [ir.Let(name, value) for name, value in zip(names, values, strict=True)]


@dataclass(slots=True)
class Accumulators:
    """A tile of C in the registers of a block, and the statements that compute it."""

    body: list[Stmt]
    origin: Coordinate
    shape: tuple[int, int]
    threads: int
    registers: list[ir.Register]
    coordinates: Callable[[Expr, int], tuple[Expr, Expr]]  # (thread, register) -> (m, n) in it
    scratch: list[ir.Buffer]  # the first one is free once the sums are complete
    smem_words: int  # of that one
