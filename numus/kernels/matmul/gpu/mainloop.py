"""Multistage GEMM mainloop (cp.async): K-tiles of A and B staged in shared memory, several ahead.

Operands in global memory are copied asynchronously where the target can; expressions are evaluated
and stored. Shared memory is counted in words: elements below 4 bytes are packed along k.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.problem import Coordinate, GemmCall, GemmSizes, Operand, when

ZERO = const(0)

K_MAJOR_PADDING = 4  # words between K-major rows, against bank conflicts


def zero(dtype: DType) -> Expr:
    return const(0.0, float32).cast(dtype) if dtype.is_narrow_float else const(0, dtype)


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
        # a vector must not reach past the last row or column
        vector = const(16 // self.shape.dtype.itemsize)
        last = self.origin + self.extent
        whole = in_bounds & ((last <= o.extent) | (o.extent % vector).eq(0))
        return {
            "vectors": o.aligned & whole,
            "vectors predicated": o.aligned & ~whole,
            "elements": ~o.aligned & in_bounds,
            "elements predicated": ~o.aligned & ~in_bounds,
        }

    def load(
        self, lane: Expr, batch: Expr, k_tile: Expr, k_size: Expr, path: str, shift: Shift | None
    ) -> list[Stmt]:
        """A thread's share of a K-tile, by one of the load paths."""
        o, s = self.operand, self.shape
        k_size = k_size if o.k_end is None else o.k_end(k_tile)
        out: list[Stmt] = []
        vector = 1 if path.startswith("elements") else 16 // s.dtype.itemsize
        k_major = self.global_k_major
        total = self.extent * s.tile_k // vector
        stage = k_tile % s.stages
        row_vectors = (s.tile_k if k_major else self.extent) // vector
        row = lane // row_vectors
        column = lane % row_vectors * vector
        begin = k_tile * s.tile_k

        def coordinates(row: Expr, right: int = 0) -> tuple[Expr, Expr]:
            """(mn, k) of a row in global memory."""
            fast = column + right
            return (row, fast) if k_major else (fast, row)

        def source(below: int, right: int) -> tuple[ir.Buffer, Expr]:
            """The thread's first address plus an offset that is uniform across threads."""
            assert o.address is not None
            if s.clamped:
                return clamped_source(o.address, below, right)
            mn, k = coordinates(row)
            buffer, first = o.address(batch, self.origin + mn, begin + k)
            return buffer, first + right + o.ld * below

        def clamped_source(address: Address, below: int, right: int) -> tuple[ir.Buffer, Expr]:
            """The row clamped to the last one; 32-bit offsets take one multiplication."""
            mn, k = coordinates(row, right)
            mn, far = self.origin + mn, const(below, dt.int32)
            if not path.endswith("predicated"):
                mn = ir.minimum(mn, o.extent - (1 if k_major else vector))
                if k_major:
                    far = ir.minimum(far, (o.extent - 1 - mn).cast(dt.int32))
            buffer, first = address(batch, mn, begin + k)
            ld = o.ld.cast(dt.int32).cast(ir.INDEX)
            return buffer, first + ld * far.cast(ir.INDEX)

        for share in range(-(-total // s.threads)):
            # threads move down rows of global memory, unless a row has more vectors than threads
            below, right = divmod(share * s.threads, row_vectors)
            right = right * vector if s.threads < row_vectors else 0
            tile_mn, tile_k = coordinates(row + below, right)
            word = tile_k // s.word_elements if s.word_elements > 1 else tile_k
            to = self.index(stage, tile_mn, word)
            k, mn = begin + tile_k, self.origin + tile_mn
            one: list[Stmt] = []
            if path != "evaluate":
                buffer, index = source(below, right)
                left, exists = (
                    (k_size - k, mn < o.extent) if k_major else (o.extent - mn, k < k_size)
                )
                if shift is not None:
                    rows, elements = shift
                    index, at = index + elements, (mn if k_major else k) + rows
                    exists = exists & (at >= 0) & (at < o.shift_extent)
                limit = const(vector)
                if path.endswith("predicated"):
                    limit = ir.select(exists, left, ZERO)
                nbytes = vector * s.dtype.itemsize
                one.append(ir.AsyncCopy(self.words, to, buffer, index, limit, nbytes))
            else:
                for u in range(vector):
                    i = mn + (0 if k_major else u)
                    p = k + (u if k_major else 0)
                    exists = (i < o.extent) & (p < k_size)
                    value = ir.select(exists, o.read(batch, i, p, exists), zero(s.dtype))
                    target = to * s.word_elements + u
                    one.append(ir.Store(self.elements, target, value))
            all_threads = (share + 1) * s.threads <= total
            has_share = lane + share * s.threads < total
            out += one if all_threads else [ir.If(has_share, one)]
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


STORE_VECTOR = 8  # contiguous elements of C that a thread stores


Call = GemmCall[Any, SplitKSizes, Any]


def store_tile(
    call: Call,
    stage: ir.Buffer,
    shape: tuple[int, int],
    ld: int,
    origin: Coordinate,
    tag: str = "",
    vector: int = STORE_VECTOR,
) -> Stmt:
    """A tile from shared memory through the epilogue, vector by vector."""
    which, m0, n0 = origin
    lane = ir.var(f"out{tag}")
    across = const(shape[1] // vector)
    row, column = lane // across, lane % across * vector
    base = row * ld + column
    at = (which, m0 + row, n0 + column)
    body = store_vector(call, stage, base, at, tag, vector)
    return ir.For(lane, ZERO, const(shape[0] * shape[1] // vector), "lanes", body)


def store_vector(
    call: Call, stage: ir.Buffer, base: Expr, at: Coordinate, tag: str, vector: int = STORE_VECTOR
) -> list[Stmt]:
    """Contiguous elements of a row from shared memory through the epilogue, those that exist."""
    epilogue, extents = call.epilogue, (call.sizes.m, call.sizes.n)
    which, m, n = at
    values = [ir.var(f"v{tag}_{u}", stage.dtype) for u in range(vector)]
    loads: list[Stmt] = [ir.Let(v, ir.load(stage, base + u)) for u, v in enumerate(values)]
    each = [epilogue(which, m, n + u, v) for u, v in enumerate(values)]
    whole = [stores[i] for i in range(len(each[0])) for stores in each]
    u = ir.var(f"u{tag}")
    one = epilogue(which, m, n + u, ir.load(stage, base + u))
    row, last = m < extents[0], n + vector
    return [
        ir.If(row & (last <= extents[1]), [*loads, *whole]),
        ir.If(row & (last > extents[1]), [ir.For(u, ZERO, extents[1] - n, "serial", one)]),
    ]
