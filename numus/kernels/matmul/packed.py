"""Products with packed codes of few bits, by dot products of bytes
(VNNI, pmaddubsw, usdot, dp4a: `codegen/llvm/byte_dots.py`).

Activations come as integers in planes of signed bytes, weights as codes in 32-bit words. A word is
masked into words of four bytes each, whose dot products with the bytes of the activations are
integers; scales and zero points are applied once per word. No weight is ever widened.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType
from numus.ir import Expr, Stmt, const
from numus.target import Target

ZERO, ONE = const(0), const(1)
SCALED_BLOCK = 128  # float8 values of a row of A, rows and columns of B, that share a scale
BYTES = 0x01010101


@dataclass(frozen=True)
class Stream:
    """Codes of `width` bits in one word of a chunk, which stand for their value << `shift`."""

    word: int
    width: int
    shift: int
    first: int  # value of the chunk

    @property
    def fields(self) -> int:
        """Words of four bytes that it is masked into."""
        return 8 // self.width


@dataclass(frozen=True)
class Packing:
    """How a row of codes lies in memory.

    A chunk is as many values as fill whole words: 4, 8, 16 of 8, 4, 2 bits in one word; 32 of 3
    bits in two words of 2 bits and one of 1 bit. `group` chunks share a scale (0: all of a row);
    with a `header`, each group begins with a word that has the float16 scale in its low half. Bytes
    that are `signed` are read as codes that are greater by 128.
    """

    bits: int
    group: int
    zero: int = 0  # subtracted from codes that have no zero points of their own
    header: bool = False
    signed: bool = False

    @property
    def streams(self) -> tuple[Stream, ...]:
        if self.bits == 3:
            return Stream(0, 2, 0, 0), Stream(1, 2, 0, 16), Stream(2, 1, 2, 0)
        return (Stream(0, self.bits, 0, 0),)

    @property
    def words(self) -> int:
        """Of a chunk."""
        return len(self.streams)

    @property
    def values(self) -> int:
        """Of a chunk."""
        return 32 if self.bits == 3 else 32 // self.bits

    @property
    def fields(self) -> int:
        """Words of activations for each chunk and plane."""
        return sum(s.fields for s in self.streams)

    def first_word(self, chunk: Expr, group: Expr) -> Expr:
        """Of a chunk in its row."""
        at = chunk * self.words
        return at + group + 1 if self.header else at


@dataclass(frozen=True)
class MmaTuning:
    """Products on tensor cores (`gpu/packed_mma_sync.py`). Measured on one H200."""

    max_vectors: int = 64
    block_vectors: int = 8
    few_block_vectors: int = 16  # of up to as many vectors, where blocks of 32 rows are
    many_blocks: float = 1.5  # per SM, at least
    warps: int = 8
    row_mmas: int = 2  # of 16 rows, that a warp multiplies with the same activations
    loads_in_flight: int = 2  # of 16 bytes of codes, of a thread
    min_blocks: float = 1.5  # of an SM
    min_blocks_of_many: float = 0.75  # of vectors of several blocks, which each block reads


MMA_TUNING = MmaTuning()
MMA_STEP_CHUNKS = 16  # of a warp's step


def has_mma(p: Packing, vectors: int, dtype: DType, target: Target) -> bool:
    """Tensor cores multiply some vectors of 16-bit floats by codes of such a packing."""
    some = vectors <= MMA_TUNING.max_vectors
    known = dtype in (dt.float16, dt.bfloat16) and dtype.name in target.mma
    whole = p.group % MMA_STEP_CHUNKS == 0 or p.group in (4, 8)  # of a step, or it of them
    return some and known and p.bits in (4, 8) and whole


@dataclass(frozen=True)
class Operands:
    """Elements of the operands."""

    x: Callable[[int, int, int, Expr], Expr]  # vector, plane, field, chunk
    x_sum: Callable[[int, Expr], Expr]  # vector, chunk, or group on CPUs
    word: Callable[[Expr, Expr], Expr]  # row, word of it
    scale: Callable[[Expr, Expr], Expr]  # row, group: float32
    zero: Callable[[Expr, Expr], Expr] | None  # row, group: float32
    store: Callable[[int, Expr, Expr], list[Stmt]]  # vector, row, value

    def group_scale(self, p: Packing, row: Expr, group: Expr) -> Expr:
        """The scale of a group, which may be in its header: float32."""
        if not p.header:
            return self.scale(row, group)
        word = self.word(row, group * (p.group * p.words + 1))
        half = (word & 0xFFFF).cast(dt.uint16).bitcast(dt.float16)
        return half.cast(dt.float32)


@dataclass(frozen=True)
class PackedShape:
    """What a task or block computes."""

    packing: Packing
    planes: int
    vectors: int
    rows: int  # read together


def chunk_codes(
    p: Packing, o: Operands, at: tuple[Expr, Expr, Expr], tag: str
) -> tuple[list[Stmt], list[Expr]]:
    """Words of codes of a chunk, field by field; `at`: row, chunk and group."""
    row, chunk, group = at
    out, codes = list[Stmt](), list[Expr]()
    for stream in p.streams:
        name = ir.var(f"w{tag}_{stream.word}", dt.uint32)
        word = o.word(row, p.first_word(chunk, group) + stream.word)
        out.append(ir.Let(name, word ^ (128 * BYTES) if p.signed else word))
        for f in range(stream.fields):
            code = name >> (stream.width * f) if f else name
            code = code & ((1 << stream.width) - 1) * BYTES if stream.width < 8 else code
            codes.append(code << stream.shift if stream.shift else code)
    return out, codes


def _chunk(
    s: PackedShape,
    o: Operands,
    sums: list[list[ir.Register]],
    at: tuple[Expr, Expr, Expr, Expr],
) -> list[Stmt]:
    """One chunk of several rows: unpacked once, for all vectors."""
    p, (row0, last, chunk, group) = s.packing, at
    out: list[Stmt] = []
    for i, row_sums in enumerate(sums):
        row = ir.minimum(row0 + i, last)
        words, codes = chunk_codes(p, o, (row, chunk, group), str(i))
        out += words
        scale = o.group_scale(p, row, group) if p.group else None
        for v, register in enumerate(row_sums):
            xs = [[o.x(v, plane, f, chunk) for f in range(len(codes))] for plane in range(s.planes)]
            total = dot_of_planes(codes, xs, (1 << p.bits) - 1)
            if o.zero is not None:
                total = ir.fma(-o.zero(row, group), o.x_sum(v, chunk), total)
            elif p.zero:
                total = ir.fma(o.x_sum(v, chunk), float(-p.zero), total)
            old = ir.read(register)
            new = ir.fma(total, scale, old) if scale is not None else old + total
            out.append(ir.Set(register, new))
    return out


def dot_of_planes(codes: list[Expr], xs: list[list[Expr]], largest: int) -> Expr:
    """Words of codes, up to `largest`, times words of bytes in each plane, the most significant
    first: float32. As many planes are joined as integers as fit 32 bits, and widened once."""
    most = 4 * len(codes) * largest * 128  # of a plane
    total: Expr | None = None
    dot: Expr = const(0, dt.int32)
    bound, joined = 0, 0  # of what is joined, and how many planes
    for words in xs:
        if joined and bound * 256 + most >= 1 << 31:
            total = _widened(total, dot, joined)
            dot, bound, joined = const(0, dt.int32), 0, 0
        dot = dot << 8 if joined else dot
        for code, word in zip(codes, words, strict=True):
            dot = ir.dot4(dot, code, word, largest)
        bound, joined = bound * 256 + most, joined + 1
    return _widened(total, dot, joined)


def _widened(total: Expr | None, dot: Expr, planes: int) -> Expr:
    """A sum of planes, with those that have been joined after them."""
    part = dot.cast(dt.float32)
    return part if total is None else ir.fma(total, 256.0**planes, part)


def sum_registers(s: PackedShape) -> list[list[ir.Register]]:
    return [
        [ir.Register(f"sum{i}_{v}", dt.float32, lanes=True) for v in range(s.vectors)]
        for i in range(s.rows)
    ]


def finish(
    s: PackedShape, o: Operands, sums: list[list[ir.Register]], row0: Expr, stop: Expr
) -> list[Stmt]:
    out: list[Stmt] = []
    for i, row_sums in enumerate(sums):
        row = row0 + i
        stores: list[Stmt] = []
        for v, register in enumerate(row_sums):
            total = ir.var(f"total{i}_{v}", dt.float32)
            out.append(ir.Let(total, ir.lanes_reduce("add", register)))
            value = total if s.packing.group else total * o.scale(row, ZERO)
            stores += o.store(v, row, value)
        out += [ir.If(row < stop, stores)] if i else stores
    return out


def rows_of_block(s: PackedShape, o: Operands, row0: Expr, stop: Expr, chunks: Expr) -> list[Stmt]:
    """Some rows by the threads of a block, which share their chunks."""
    p, c = s.packing, ir.var("chunk")
    sums = sum_registers(s)
    out: list[Stmt] = [ir.Set(x, const(0.0, dt.float32)) for xs in sums for x in xs]
    group = c // p.group if p.group else ZERO
    out.append(ir.For(c, ZERO, chunks, "lanes", _chunk(s, o, sums, (row0, stop - 1, c, group))))
    return out + finish(s, o, sums, row0, stop)
