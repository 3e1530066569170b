"""GEMV with packed codes on CUDA cores: a warp per few rows of codes, which it reads once.
Several matrices may be multiplied by the same vector, as in `row_gemv.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.packed_codes import (
    QUAD,
    WARP,
    PackedMatrix,
    codes_as_floats,
    tree_sum,
)
from numus.kernels.matmul.gpu.packed_ring import PackedRing
from numus.kernels.matmul.gpu.row_gemv import Epilogue, LoadVector, WarpRows, block_threads
from numus.kernels.matmul.packed import BYTES, Packing

ZERO = const(0)


@dataclass(frozen=True)
class PackedGemvShape:
    packing: Packing
    vectors: int
    rows: int  # of each matrix, of a warp
    unroll: int  # quads of a row that a thread has in flight
    whole: bool  # rows are multiples of what is in flight
    paired: bool  # codes by shift: exact to 16 bits, as activations are
    ring: bool = False  # words go through shared memory


@dataclass(frozen=True)
class PackedGemvOperands:
    vector: Callable[[int], LoadVector]  # elements of a vector, by its number: float32
    aligned: Expr  # vectors, so that they are loaded as such


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
    floats: list[list[tuple[Expr, int]]] = []
    for own in words:
        flipped = [w ^ (128 * BYTES) if p.signed else w for w in own]
        floats.append([f for w in flipped for f in codes_as_floats(p, w, s.paired)])
    for v in range(s.vectors):
        xs: list[Expr] = []
        for i in range(QUAD):
            begin = (chunk + i) * p.values
            xs += o.vector(v)(out, begin, p.values, f"x{tag}_{v}_{i}", vectorised)
        depths = sorted({depth for _, depth in floats[0]})
        total = {
            d: tree_sum([x for x, (_, depth) in zip(xs, floats[0], strict=True) if depth == d])
            for d in depths
        }
        everything = tree_sum(list(total.values()))
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
        self.ring = None
        if s.ring:
            how = (s.packing, self.matrices, self._rows_of, s.unroll, s.paired)
            self.ring = PackedRing(*how)
            for number in (n for m in matrices for n in m.numbers):
                self.aligned = self.aligned & number.aligned
        pipelined = s.packing.header or all(m.codes.is_vector(QUAD) for m in matrices)
        pipelined = pipelined and not s.ring
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
        lane = ir.var("first_lane")
        if self.ring is not None:
            fills = self.ring.first_loads(lane, chunks)
            return problem.when(self.aligned, lambda: _of_block(lane, fills))
        if not self.words:
            return []
        first = lane % WARP * QUAD
        loads: list[Stmt] = []
        for u in range(self.shape.unroll):
            at = first + u * WARP * QUAD
            loads.append(ir.If(at < chunks, self._next(lane, u, at)))
        return problem.when(self.aligned, lambda: _of_block(lane, loads))

    def body(self, o: PackedGemvOperands, chunks: Expr, known: int) -> list[Stmt]:
        """The sums of each lane; chunks are `known`."""
        out: list[Stmt] = [ir.Set(c, const(0.0, dt.float32)) for row in self.sums for c in row]
        aligned = self.aligned & o.aligned
        if self.ring is not None:
            lane, sums = ir.var("lane"), [own[0] for own in self.sums]
            loop = self.ring.loop(lane, chunks, known, o.vector(0), sums)
            out += problem.when(aligned, lambda: _of_block(lane, loop))
        else:
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

    def _rows_of(self, lane: Expr) -> list[Expr]:
        return self.rows.clamped(lane) * self.products

    def _operands(self, lane: Expr) -> list[Row]:
        return list(zip(self.matrices, self._rows_of(lane), strict=True))

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
