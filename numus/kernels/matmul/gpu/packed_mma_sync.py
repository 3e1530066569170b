"""Skinny GEMM with packed codes on tensor cores (mma.sync): some vectors of 16-bit floats.

As in `gemv_mma_sync.py` threads load the matrix once, straight into registers, and the warps of a
block share k. Codes become floats without a conversion, in pairs (Frantar et al. 2024): four bits
are the leading ones of a mantissa, 16 + code, of two values that lie half a word apart, and
activations are paired alike. MMAs with ones add up the activations, by which the 16s and zero
points are taken away again, once per step of a warp, which lies within a group. Codes of 8 bits are
two planes of four.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.dtypes import DType, float32
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu import problem
from numus.kernels.matmul.gpu.gemv import GemvSizes
from numus.kernels.matmul.gpu.gemv_mma_sync import (
    MMA_M,
    MMA_N,
    WARP,
    Fragments,
    GemvShape,
    block_reduce,
    pair,
)
from numus.kernels.matmul.gpu.mainloop import zero
from numus.kernels.matmul.gpu.packed_gemv import QUAD, PackedMatrix
from numus.kernels.matmul.gpu.problem import Emitted, Epilogue, GemmCall, VectorOperand
from numus.kernels.matmul.packed import BYTES, MMA_STEP_CHUNKS, MMA_TUNING, Packing

ZERO = const(0)
THREADS_ALONG_K = 4  # of a warp
CODE_BITS = 4  # of a plane
OFFSET = 16.0  # of a float made of such a code
_MANTISSA = {dt.bfloat16: 7, dt.float16: 10}
OFFSET_BITS = {dt.bfloat16: 0x4180, dt.float16: 0x4C00}
_ONE_BITS = {dt.bfloat16: 0x3F80, dt.float16: 0x3C00}
_HALVES = 0x00010001  # a word of two equal halves, times one


def choose_tile(num_cores: int, rows: int, vectors: int) -> GemvShape:
    """As many rows of a block as leave one for most SMs."""
    mmas_n = MMA_TUNING.rows_mmas
    while mmas_n > 1 and -(-rows // (mmas_n * MMA_N)) < MMA_TUNING.min_blocks_per_sm * num_cores:
        mmas_n //= 2
    return GemvShape(True, -(-vectors // MMA_M), mmas_n, MMA_TUNING.warps, half_m=False)


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


@dataclass(slots=True)
class PackedMma:
    """A block's rows of codes, all vectors."""

    packing: Packing
    tile: GemvShape
    matrix: PackedMatrix
    vectors: VectorOperand
    sizes: GemvSizes
    chunks: Expr
    block: Expr

    @property
    def dtype(self) -> DType:
        return self.vectors.dtype

    def emit(self, epilogue: Epilogue) -> Emitted:
        """The epilogue takes (batch, vector, row, value)."""
        t = self.tile
        totals = self._fragments(t.mmas_n, "total")
        out = _cleared(totals)
        aligned = self.matrix.codes.aligned & self.vectors.aligned
        out += problem.when(aligned, lambda: self._loop(totals, True))
        out += problem.when(~aligned, lambda: self._loop(totals, False))
        operands = self.matrix.codes, self.vectors
        call = GemmCall(t, self.sizes, self.dtype, *operands, epilogue, store_only=False)
        steps, stage = block_reduce(call, ZERO, self.block * t.block_rows, totals)
        return [*out, *steps], [stage]

    def _fragments(self, across: int, name: str) -> Fragments:
        down = range(self.tile.mmas_m)
        return [problem.register_tile(across, 4, float32, f"{name}{i}_") for i in down]

    def _loop(self, totals: Fragments, vectorised: bool) -> list[Stmt]:
        """Steps of all warps, pipelined: the next words are on their way while these are
        multiplied. What is past the end multiplies zeros."""
        t, p, tag = self.tile, self.packing, "" if vectorised else "slow_"
        lane, step = ir.var(f"{tag}lane"), ir.var(f"{tag}step")
        span = MMA_STEP_CHUNKS * t.warps
        count = (self.chunks + (span - 1)) // span
        first = step * span + lane // WARP * MMA_STEP_CHUNKS
        own = first + lane % THREADS_ALONG_K * QUAD
        sums = [self._fragments(t.mmas_n, f"{tag}plane{i}_") for i in range(planes(p))]
        ones = self._fragments(1, f"{tag}ones")
        registers = [
            [ir.Register(f"{tag}word{j}_{q}", dt.uint32, lanes=True) for q in range(QUAD)]
            for j in range(t.mmas_n)
        ]
        words = [[ir.var(f"{r.name}_now", r.dtype) for r in row] for row in registers]
        body = list[Stmt]()
        for names, row in zip(words, registers, strict=True):
            body += ir.lets(names, ir.reads(row))
        body += self._load(registers, lane, own + span, vectorised)
        body += [s for part in (*sums, ones) for s in _cleared(part)]
        body += self._multiply(words, lane, own, sums, ones, vectorised)
        group = ir.minimum(first, self.chunks - 1) // p.group if p.group else ZERO
        body += self._scaled(lane, group, sums, ones, totals)
        begin = lane // WARP * MMA_STEP_CHUNKS + lane % THREADS_ALONG_K * QUAD
        inner = self._load(registers, lane, begin, vectorised)
        inner.append(ir.For(step, ZERO, count, "serial", body))
        return [ir.For(lane, ZERO, const(t.threads), "lanes", inner)]

    def _rows(self, lane: Expr, within: Expr) -> list[Expr]:
        """A row of each MMA across; past the end, the last one."""
        first = self.block * self.tile.block_rows + within
        return [ir.minimum(first + j * MMA_N, self.sizes.rows - 1) for j in range(self.tile.mmas_n)]

    def _load(
        self, registers: list[list[ir.Register]], lane: Expr, chunk: Expr, vectorised: bool
    ) -> list[Stmt]:
        """Four words of a row of each MMA across; past the end, the last ones."""
        p, out, sets = self.packing, list[Stmt](), list[Stmt]()
        chunk = ir.minimum(chunk, self.chunks - QUAD)
        begin = chunk + chunk // p.group + 1 if p.header else chunk
        rows = self._rows(lane, lane % WARP // THREADS_ALONG_K)
        for row, own in zip(rows, registers, strict=True):
            aligned = vectorised and not p.header  # words behind a header are not
            how = (QUAD, f"next_{own[0].name}", aligned)
            names = self.matrix.codes.load_along_k(out, ZERO, row, begin, *how)
            sets += ir.sets(own, names)
        return out + sets

    def _multiply(
        self,
        words: list[list[Expr]],
        lane: Expr,
        own: Expr,
        sums: list[Fragments],
        ones: Fragments,
        vectorised: bool,
    ) -> list[Stmt]:
        """MMAs of a warp's step, of which a thread has four words of each row."""
        p, out, dtype = self.packing, list[Stmt](), self.dtype
        k = ir.minimum(own, self.chunks - QUAD) * p.values
        xs = self._activations(out, lane, k, own < self.chunks, vectorised)
        one = const(_ONE_BITS[dtype] * _HALVES, dt.uint32)
        for q in range(QUAD):
            pairs = [[half[q] for half in vector] for vector in xs]
            for j, row in enumerate(words):
                word = row[q] ^ (128 * BYTES) if p.signed else row[q]
                for plane, fragments in enumerate(sums):
                    codes = words_of_floats(p, word, plane, dtype)
                    for i, (low, high) in enumerate(pairs):
                        out += _mmas(fragments[i][j], low, high, codes, dtype)
            for i, (low, high) in enumerate(pairs):
                out += _mmas(ones[i][0], low, high, [one] * len(low), dtype)
        return out

    def _activations(
        self, out: list[Stmt], lane: Expr, k: Expr, exists: Expr, vectorised: bool
    ) -> list[tuple[list[list[Expr]], list[list[Expr]]]]:
        """Of two vectors for each MMA down, 8 apart, the pairs of each word's values."""
        p, last = self.packing, self.sizes.vectors - 1

        def pairs(i: int, half: int) -> list[list[Expr]]:
            mn = ir.minimum(lane % WARP // THREADS_ALONG_K + i * MMA_M + half * 8, last)
            values: list[Expr] = []
            for part in range(0, QUAD * p.values, 8):
                tag = f"x{i}{half}_{part}"
                values += self.vectors.load_along_k(
                    *(out, ZERO, mn, k + part, min(8, QUAD * p.values), tag, vectorised)
                )
            values = [ir.select(exists, x, zero(self.dtype)) for x in values]
            apart = p.values // 2
            return [
                [pair(values[q + j], values[q + j + apart]) for j in range(apart)]
                for q in range(0, QUAD * p.values, p.values)
            ]

        return [(pairs(i, 0), pairs(i, 1)) for i in range(self.tile.mmas_m)]

    def _scaled(
        self, lane: Expr, group: Expr, sums: list[Fragments], ones: Fragments, totals: Fragments
    ) -> list[Stmt]:
        """Sums of a step without what was added to the codes, scaled, to the totals."""
        p, out = self.packing, list[Stmt]()
        offset = sum(OFFSET * (1 << CODE_BITS * i) for i in range(planes(p)))
        for u in range(2):  # columns of a thread
            rows = self._rows(lane, lane % THREADS_ALONG_K * 2 + u)
            for j, row in enumerate(rows):
                scale, middle = ir.var(f"scale{j}_{u}", float32), ir.var(f"zero{j}_{u}", float32)
                out.append(ir.Let(scale, self.matrix.scale(row, group)))
                known = const(float(p.zero), float32)
                point = known if self.matrix.zero is None else self.matrix.zero(row, group)
                out.append(ir.Let(middle, point + offset))
                for i, total in enumerate(totals):
                    for c in (u, u + 2):
                        value = ir.read(sums[0][i][j][c])
                        for plane, fragments in enumerate(sums[1:], 1):
                            high = ir.read(fragments[i][j][c])
                            value = ir.fma(high, float(1 << CODE_BITS * plane), value)
                        value = ir.fma(-middle, ir.read(ones[i][0][c]), value)
                        old = ir.read(total[j][c])
                        out.append(ir.Set(total[j][c], ir.fma(value, scale, old)))
        return out


def _cleared(fragments: Fragments) -> list[Stmt]:
    nothing = const(0.0, float32)
    return [ir.Set(c, nothing) for row in fragments for mma in row for c in mma]


def _mmas(
    sums: list[ir.Register], low: list[Expr], high: list[Expr], codes: list[Expr], dtype: DType
) -> list[Stmt]:
    """Two pairs of each vector and of the codes in one MMA."""
    return [
        ir.MmaSync(sums, [low[j], high[j], low[j + 1], high[j + 1]], codes[j : j + 2], dtype)
        for j in range(0, len(codes), 2)
    ]
