"""GEMV with packed codes on CUDA cores: a warp per few rows of codes, which it reads once.
Several matrices may be multiplied by the same vector, as in `row_gemv.py`.

A code becomes a float without a conversion: its bits are the leading ones of a mantissa,
1 + code / 2**bits (as in Lin et al. 2024 and llama.cpp, in float32). The ones are taken away again
once per group, by the sum of the activations. For 16-bit activations codes of 4 bits come out of a
word in pairs, the first of which stands 4 bits lower: four shifts for eight codes. One
vector of 16-bit floats is multiplied by codes of 8 bits in long groups as integers instead, whose
planes of bytes the block has in shared memory (`packed_byte_mma.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.problem import VectorOperand
from numus.kernels.matmul.gpu.row_gemv import Epilogue, LoadVector, WarpRows, block_threads
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, Packing

ZERO = const(0)
WARP = 32
QUAD = 4  # words of a row that a thread takes at a time: 16 bytes
MANTISSA = 23
ONE_BITS = 0x3F800000


@dataclass(frozen=True)
class PackedGemvShape:
    packing: Packing
    vectors: int
    rows: int  # of each matrix, of a warp
    unroll: int  # quads of a row that a thread has in flight
    whole: bool  # rows are multiples of what is in flight
    paired: bool  # codes by shift: exact to 16 bits, as activations are


@dataclass(frozen=True)
class GroupNumber:
    """A number of each group of a row: `stored`, which may be loaded long before it is used, and
    as float32."""

    stored: Callable[[Expr, Expr], Expr]  # row, group
    decoded: Callable[[Expr], Expr]

    def __call__(self, row: Expr, group: Expr) -> Expr:
        return self.decoded(self.stored(row, group))


@dataclass(frozen=True)
class PackedMatrix:
    codes: VectorOperand
    scale: GroupNumber
    zero: GroupNumber | None

    @property
    def numbers(self) -> list[GroupNumber]:
        """Of each group: its scale, and its zero point where it has one."""
        return [self.scale] if self.zero is None else [self.scale, self.zero]


@dataclass(frozen=True)
class IntegerVector:
    """A vector as integers, in planes of bytes (`packed_byte_mma.py`)."""

    words: Callable[[list[Stmt], Expr, Expr, str], list[Expr]]  # plane, chunk: those of a quad
    numbers: Callable[[Expr], list[Expr]]  # of a step: its unit, and the sum of its integers


@dataclass(frozen=True)
class PackedGemvOperands:
    vector: Callable[[int], LoadVector]  # elements of a vector, by its number: float32
    aligned: Expr  # vectors, so that they are loaded as such
    integers: IntegerVector | None = None  # instead of the only vector's floats


def _codes_as_floats(p: Packing, word: Expr, paired: bool) -> list[tuple[Expr, int]]:
    """(1 + code / 2**bits, bits) of each value of a word."""
    per_shift = 2 if paired and p.bits == 4 else 1
    found: list[tuple[Expr, int]] = []
    for first in range(0, 32 // p.bits, per_shift):
        # the last code of those that share a shift comes to lie at the top of the mantissa
        top = (first + per_shift) * p.bits
        moved = word >> (top - MANTISSA) if top >= MANTISSA else word << (MANTISSA - top)
        for i in range(per_shift):
            low = MANTISSA - (per_shift - i) * p.bits
            bits = (moved & (((1 << p.bits) - 1) << low)) | ONE_BITS
            found.append((bits.bitcast(dt.float32), MANTISSA - low))
    return found


Row = tuple[PackedMatrix, Expr]  # a matrix, and which of its rows
Place = tuple[Expr, list[Row], Expr]  # chunk, rows, group
Words = list[list[Expr]]  # of each row, four words
Numbers = list[list[Expr]]  # of each row, what its group has in memory


def _load(s: PackedGemvShape, out: list[Stmt], at: Place, vectorised: bool, tag: str) -> Words:
    """Four words of each row from a chunk on."""
    p, (chunk, rows, group) = s.packing, at
    first = chunk + group + 1 if p.header else chunk
    aligned = vectorised and not p.header  # words behind a header are not
    return [
        matrix.codes.load_along_k(out, ZERO, row, first, QUAD, f"w{tag}_{i}", aligned)
        for i, (matrix, row) in enumerate(rows)
    ]


def _numbers(at: Place) -> Numbers:
    """What the group of a chunk has in memory, of each row."""
    _, rows, group = at
    return [[number.stored(row, group) for number in matrix.numbers] for matrix, row in rows]


def _multiply(
    s: PackedGemvShape,
    o: PackedGemvOperands,
    sums: list[list[ir.Register]],
    at: Place,
    words: Words,
    numbers: Numbers,
    vectorised: bool,
    tag: str,
) -> list[Stmt]:
    """Add the products of four words of each row with their activations."""
    p, (chunk, rows, _) = s.packing, at
    out: list[Stmt] = []
    decoded = [
        [number.decoded(x) for number, x in zip(matrix.numbers, own, strict=True)]
        for (matrix, _), own in zip(rows, numbers, strict=True)
    ]
    if o.integers is not None:
        return _multiply_bytes(p, o.integers, sums, chunk, words, decoded, tag)
    floats: list[list[tuple[Expr, int]]] = []
    for own in words:
        flipped = [w ^ (128 * BYTES) if p.signed else w for w in own]
        floats.append([f for w in flipped for f in _codes_as_floats(p, w, s.paired)])
    for v in range(s.vectors):
        xs: list[Expr] = []
        for i in range(QUAD):
            begin = (chunk + i) * p.values
            xs += o.vector(v)(out, begin, p.values, f"x{tag}_{v}_{i}", vectorised)
        depths = sorted({depth for _, depth in floats[0]})
        total = {
            d: _sum([x for x, (_, depth) in zip(xs, floats[0], strict=True) if depth == d])
            for d in depths
        }
        everything = _sum(list(total.values()))
        for i, codes in enumerate(floats):
            value: Expr | None = None
            for d in depths:
                part = const(0.0, dt.float32)
                for x, (code, depth) in zip(xs, codes, strict=True):
                    part = ir.fma(code, x, part) if depth == d else part
                whole = (part - total[d]) * float(1 << d)
                value = whole if value is None else value + whole
            assert value is not None
            scale, *zero = decoded[i]
            if zero:
                value = ir.fma(-zero[0], everything, value)
            elif p.zero:
                value = ir.fma(everything, float(-p.zero), value)
            out.append(ir.Set(sums[i][v], ir.fma(value, scale, ir.read(sums[i][v]))))
    return out


def _multiply_bytes(
    p: Packing,
    x: IntegerVector,
    sums: list[list[ir.Register]],
    chunk: Expr,
    words: Words,
    decoded: Numbers,
    tag: str,
) -> list[Stmt]:
    """Codes of 8 bits, by dot products of bytes (dp4a) of each plane. The threads of a step, all of
    which exist, take away equal parts of its zero points."""
    out: list[Stmt] = []
    planes = [x.words(out, const(plane), chunk, f"{tag}_{plane}") for plane in range(2)]
    unit, ones = (ir.var(f"{name}{tag}", dt.float32) for name in ("unit", "ones"))
    out += ir.lets([unit, ones], x.numbers(chunk // MMA_STEP_CHUNKS))
    part = QUAD / MMA_STEP_CHUNKS
    for own, (scale, *zero), (total,) in zip(words, decoded, sums, strict=True):
        codes = [word ^ (128 * BYTES) if p.signed else word for word in own]
        dots = []
        for plane in planes:
            dot: Expr = const(0, dt.int32)
            for code, by in zip(codes, plane, strict=True):
                dot = ir.dot4(dot, code, by)
            dots.append(dot)
        value = (dots[0] * 256 + dots[1]).cast(dt.float32)
        if zero:
            value = ir.fma(-zero[0], ones * part, value)
        elif p.zero:
            value = ir.fma(ones, -p.zero * part, value)
        out.append(ir.Set(total, ir.fma(value, scale * unit, ir.read(total))))
    return out


def _sum(xs: list[Expr]) -> Expr:
    while len(xs) > 1:
        xs = [a + b for a, b in zip(xs[::2], xs[1::2], strict=False)] + xs[len(xs) & ~1 :]
    return xs[0]


class PackedGemv:
    """The rows of a block's warps; loads are pipelined as in `row_gemv.py`."""

    def __init__(
        self, shape: PackedGemvShape, matrices: Sequence[PackedMatrix], rows: Expr, block: Expr
    ) -> None:
        s = self.shape = shape
        self.rows = WarpRows(block, s.rows, rows)
        self.products = len(matrices)
        self.matrices = [matrix for matrix in matrices for _ in range(s.rows)]
        self.aligned = problem.TRUE
        for matrix in matrices:
            self.aligned = self.aligned & matrix.codes.aligned
        pipelined = s.packing.header or all(m.codes.is_vector(QUAD) for m in matrices)
        count = s.unroll if pipelined else 0
        self.words = [
            [
                [ir.Register(f"word{u}_{i}_{e}", dt.uint32, lanes=True) for e in range(QUAD)]
                for i in range(len(self.matrices))
            ]
            for u in range(count)
        ]
        # with the words, for they come from memory as well
        self.numbers = [
            [
                [
                    ir.Register(f"number{u}_{i}_{e}", number.stored(ZERO, ZERO).dtype, lanes=True)
                    for e, number in enumerate(matrix.numbers)
                ]
                for i, matrix in enumerate(self.matrices)
            ]
            for u in range(count)
        ]
        self.sums = [
            [ir.Register(f"sum{i}_{v}", dt.float32, lanes=True) for v in range(s.vectors)]
            for i in range(len(self.matrices))
        ]

    def first_loads(self, chunks: Expr) -> list[Stmt]:
        """The first words of each row; they need nothing but the matrices."""
        if not self.words:
            return []
        lane = ir.var("first_lane")
        first = lane % WARP * QUAD
        loads: list[Stmt] = []
        for u in range(self.shape.unroll):
            at = first + u * WARP * QUAD
            loads.append(ir.If(at < chunks, self._next(lane, u, at)))
        return problem.when(self.aligned, lambda: _of_block(lane, loads))

    def body(self, o: PackedGemvOperands, chunks: Expr) -> list[Stmt]:
        """The sums of each lane."""
        out: list[Stmt] = [ir.Set(c, const(0.0, dt.float32)) for row in self.sums for c in row]
        aligned = self.aligned & o.aligned
        out += problem.when(aligned, lambda: self._loop(o, chunks, True))
        return out + problem.when(~aligned, lambda: self._loop(o, chunks, False))

    def finish(self, lane: Expr, epilogue: Callable[[int], Epilogue]) -> list[Stmt]:
        """`epilogue` of each vector."""
        s, out = self.shape, list[Stmt]()
        for v in range(s.vectors):
            sums = [
                [self.sums[p * s.rows + i][v] for p in range(self.products)] for i in range(s.rows)
            ]
            out += self.rows.finish(lane, sums, epilogue(v), f"_of{v}")
        return out

    def _operands(self, lane: Expr) -> list[Row]:
        own = self.rows.clamped(lane) * self.products
        return list(zip(self.matrices, own, strict=True))

    def _next(self, lane: Expr, u: int, chunk: Expr) -> list[Stmt]:
        """Words from a chunk on and the numbers of their group, to their registers."""
        out, sets = list[Stmt](), list[Stmt]()
        at = chunk, self._operands(lane), self._group(chunk)
        words = _load(self.shape, out, at, True, f"next{u}")
        for registers, names in zip(self.words[u], words, strict=True):
            sets += ir.sets(registers, names)
        for registers, found in zip(self.numbers[u], _numbers(at), strict=True):
            sets += ir.sets(registers, found)
        return out + sets

    def _group(self, chunk: Expr) -> Expr:
        group = self.shape.packing.group
        return chunk // group if group else ZERO

    def _loop(self, o: PackedGemvOperands, chunks: Expr, vectorised: bool) -> list[Stmt]:
        s = self.shape
        lane, chunk, step = ir.var("lane"), ir.var("chunk"), WARP * QUAD * s.unroll
        operands, body = self._operands(lane), list[Stmt]()
        for u in range(s.unroll):
            at = chunk + u * WARP * QUAD
            place = at, operands, self._group(at)
            own: list[Stmt] = []
            if self.words and vectorised:
                words, numbers = (now(own, x[u]) for x in (self.words, self.numbers))
            else:
                words, numbers = _load(s, own, place, vectorised, str(u)), _numbers(place)
            own += _multiply(s, o, self.sums, place, words, numbers, vectorised, str(u))
            if self.words and vectorised:
                own.append(ir.If(at + step < chunks, self._next(lane, u, at + step)))
            body += own if u == 0 or s.whole else [ir.If(at < chunks, own)]
        first = lane % WARP * QUAD
        return _of_block(lane, [ir.For(chunk, first, chunks, "serial", body, step=const(step))])


def now(out: list[Stmt], registers: list[list[ir.Register]]) -> list[list[Expr]]:
    """What registers hold, by name: they are about to be loaded again."""
    found = []
    for own in registers:
        names = [ir.var(f"{r.name}_now", r.dtype) for r in own]
        out += ir.lets(names, ir.reads(own))
        found.append(list(names))
    return found


def _of_block(lane: Expr, body: list[Stmt]) -> list[Stmt]:
    return [ir.For(lane, ZERO, const(block_threads()), "lanes", body)]
