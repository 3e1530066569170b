"""GEMV with packed codes that wait in shared memory (`thread_ring.py`), with the numbers of their
groups: the loop of `packed_gemv.py` for one vector.

Four words of a row come at a time, and are multiplied one by one: an unrolled loop would unpack all
of them first, for which there are no registers. Lanes begin with different ones of the four, so
that neither those words nor the activations lie in the same banks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from numus import dtypes as dt
from numus import ir
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.gpu.packed_codes import (
    QUAD,
    WARP,
    GroupNumber,
    PackedMatrix,
    codes_as_floats,
    tree_sum,
)
from numus.kernels.matmul.gpu.row_gemv import LoadVector, block_threads
from numus.kernels.matmul.gpu.thread_ring import ThreadRing
from numus.kernels.matmul.packed import BYTES, Packing

ZERO = const(0)
NUMBER_BYTES = 4  # of which a copy has at least as many


def fits(packing: Packing, matrices: Sequence[PackedMatrix]) -> bool:
    """Numbers are copied as words, which they share where they have two bytes."""
    numbers = [number for m in matrices for number in m.numbers]
    return not packing.header and all(number.word is not None for number in numbers)


class PackedRing:
    """The rows of a warp's lanes: `rows` gives those of each stream."""

    def __init__(
        self,
        packing: Packing,
        matrices: Sequence[PackedMatrix],
        rows: Callable[[Expr], list[Expr]],
        depth: int,
        paired: bool,
    ) -> None:
        self.packing, self.matrices, self.rows = packing, matrices, rows
        self.depth, self.paired = depth, paired
        threads, streams = block_threads(), len(matrices)
        self.words = ThreadRing(threads, streams, depth, dt.uint32)
        count = sum(len(m.numbers) for m in matrices)
        how = (depth, dt.uint32, NUMBER_BYTES, "number_ring")
        self.numbers = ThreadRing(threads, count, *how)
        depths = sorted({d for _, d in codes_as_floats(packing, const(0, dt.uint32), paired)})

        def registers(name: str) -> dict[int, ir.Register]:
            return {d: ir.Register(f"{name}_{d}", dt.float32, lanes=True) for d in depths}

        self._parts = [registers(f"part{i}") for i in range(streams)]
        self._total = registers("all")

    @property
    def scratch(self) -> list[ir.Buffer]:
        return [self.words.buffer, self.numbers.buffer]

    def first_loads(self, lane: Expr, chunks: Expr) -> list[Stmt]:
        stages = range(self.depth)
        return [x for u in stages for x in self._fill(lane, const(u), const(u), chunks)]

    def loop(
        self, lane: Expr, chunks: Expr, known: int, vector: LoadVector, sums: list[ir.Register]
    ) -> list[Stmt]:
        """Add to the sums of each row."""
        step, stage = ir.var("k_step"), ir.var("stage")
        chunk = self._chunk(lane, step)
        products = self._products(lane, stage, chunk, vector, sums)
        body: list[Stmt] = [
            ir.Let(stage, step % self.depth if self.depth > 1 else ZERO),
            self.words.wait(),
            *(products if known % (WARP * QUAD) == 0 else [ir.If(chunk < chunks, products)]),
            *self._fill(lane, stage, step + self.depth, chunks),
        ]
        steps = (chunks + (WARP * QUAD - 1)) // (WARP * QUAD)
        return [ir.For(step, ZERO, steps, "serial", body)]

    def _chunk(self, lane: Expr, step: Expr) -> Expr:
        return step * (WARP * QUAD) + lane % WARP * QUAD

    def _group(self, chunk: Expr) -> Expr:
        return chunk // self.packing.group if self.packing.group else ZERO

    def _numbered(self, lane: Expr) -> list[tuple[GroupNumber, Expr]]:
        pairs = zip(self.matrices, self.rows(lane), strict=True)
        return [(number, row) for matrix, row in pairs for number in matrix.numbers]

    def _fill(self, lane: Expr, stage: Expr, step: Expr, chunks: Expr) -> list[Stmt]:
        """What comes of a step, if it is not past the end."""
        chunk, codes, numbers = self._chunk(lane, step), [], []
        for matrix, row in zip(self.matrices, self.rows(lane), strict=True):
            assert matrix.codes.address is not None
            codes.append(matrix.codes.address(ZERO, row, chunk))
        for number, row in self._numbered(lane):
            assert number.word is not None
            numbers.append(number.word(row, self._group(chunk)))
        copies = self.words.fill(lane, stage, codes) + self.numbers.fill(lane, stage, numbers)
        return [ir.If(chunk < chunks, copies), self.words.commit()]

    def _products(
        self, lane: Expr, stage: Expr, chunk: Expr, vector: LoadVector, sums: list[ir.Register]
    ) -> list[Stmt]:
        p, q = self.packing, ir.var("word")
        every = [self._total, *self._parts]
        cleared = [ir.Set(r, const(0.0, dt.float32)) for own in every for r in own.values()]
        turned = (q + lane // 2 + lane // 8) % QUAD
        which, inner = ir.var("turned"), list[Stmt]()
        inner.append(ir.Let(which, turned))
        xs = vector(inner, (chunk + which) * p.values, p.values, "x", True)
        for i, own in enumerate(self._parts):
            name = ir.var(f"word_{i}", dt.uint32)
            inner.append(ir.Let(name, self.words.read_word(lane, stage, i, which)))
            word = name ^ (128 * BYTES) if p.signed else name
            found = codes_as_floats(p, word, self.paired)
            for depth, register in own.items():
                value: Expr = ir.read(register)
                for x, (code, own_depth) in zip(xs, found, strict=True):
                    value = ir.fma(code, x, value) if own_depth == depth else value
                inner.append(ir.Set(register, value))
        for depth, register in self._total.items():
            here = [x for x, (_, d) in zip(xs, found, strict=True) if d == depth]
            inner.append(ir.Set(register, ir.read(register) + tree_sum(here)))
        words = ir.For(q, ZERO, const(QUAD), "serial", inner)
        return [*cleared, words, *self._scaled(lane, stage, chunk, sums)]

    def _scaled(self, lane: Expr, stage: Expr, chunk: Expr, sums: list[ir.Register]) -> list[Stmt]:
        """Without what was added to the codes, times their scales."""
        out, group, p = list[Stmt](), self._group(chunk), self.packing
        values = []
        for j, (number, row) in enumerate(self._numbered(lane)):
            assert number.of_word is not None
            word = self.numbers.read_word(lane, stage, j, ZERO)
            values.append(number.of_word(word, row, group))
        everything = tree_sum([ir.read(r) for r in self._total.values()])
        coming = iter(values)
        for matrix, parts, register in zip(self.matrices, self._parts, sums, strict=True):
            scale, *zero = (next(coming) for _ in matrix.numbers)
            without = [
                (ir.read(part) - ir.read(self._total[d])) * float(1 << d)
                for d, part in parts.items()
            ]
            value = tree_sum(without)
            if zero:
                value = ir.fma(-zero[0], everything, value)
            elif p.zero:
                value = ir.fma(everything, float(-p.zero), value)
            out.append(ir.Set(register, ir.fma(value, scale, ir.read(register))))
        return out
