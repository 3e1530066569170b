"""Fourier transforms of rows: the steps of a length, with fused code before and after them.

A length that fits the scratch memory of a block (or the cache of a core) is one step. A longer one
is n1 * n2 (the four-step form, Bailey 1990): n2 interleaved transforms of n1 points, whose results
are multiplied by twiddle factors as they are stored, then n1 transforms of n2 points, which store
their results transposed; n2 may be split again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.axis import ZERO, delinearize, store_members, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, mul, swap
from numus.kernels.fft.radices import radices_of, split
from numus.kernels.fft.stockham import Block, stockham

MAX_CACHED_ROOTS = 1 << 14  # a table that stays in the cache of a multiprocessor

Read = Callable[[Expr, Expr, Expr], Complex]  # outer row, inner row, position
Write = Callable[[Expr, Expr, Expr, Complex], list[Stmt]]
Access = Callable[[Emitter], tuple[Read, Write]]


@dataclass(frozen=True)
class Step:
    """Transforms of `length` points, outer * inner of them."""

    length: int
    outer: int
    inner: int  # rows that are adjacent in memory
    access: Access
    adjacent: tuple[bool, bool]  # whether operands, results of inner rows are adjacent


@dataclass(frozen=True)
class Blocking:
    """How a step is divided into blocks."""

    width: int  # inner rows of a block
    threads: int  # of a block; 0: lanes are SIMD
    vector: int
    largest_radix: int
    largest_odd: int  # radix of a butterfly in registers

    def radices(self, length: int) -> tuple[int, ...]:
        return radices_of(length, self.largest_radix, self.largest_odd)


@dataclass(frozen=True)
class FftProblem(Problem):
    """A transform along the last axis, the first member of its group, and its epilogue."""

    @property
    def source(self) -> Value:
        return self.val.inputs[0]

    @property
    def inverse(self) -> bool:
        return bool(self.val.params)

    @property
    def length(self) -> int:
        return self.val.shape[-1]

    @property
    def rows(self) -> int:
        return math.prod(self.val.shape[:-1])

    @cached_property
    def part(self) -> dt.DType:
        return dt.real_of(self.val.dtype)

    def twiddle(self, e: Emitter, k: Expr, length: int) -> Complex:
        """exp(-2 pi i k / length), from the table of the whole length."""
        found: Complex = e.value(self.val.inputs[1], (ir.mul(k, e.dim(self.length // length)),))
        return found

    def large_twiddle(self, e: Emitter, k: Expr, length: int) -> Complex:
        """exp(-2 pi i k / length) between steps. Threads take it from two parts of the table that
        stay in cache: with k = a B + b, it is the product of those for a B and b."""
        if not e.block_size or length <= MAX_CACHED_ROOTS:
            return self.twiddle(e, k, length)
        part = const(1 << (length.bit_length() + 1) // 2)
        high = ir.mul(ir.idiv(k, part), part)
        return mul(self.twiddle(e, high, length), self.twiddle(e, ir.irem(k, part), length))

    def _access(self, e: Emitter) -> tuple[Read, Write]:
        """The operand and the results of the whole transform."""
        batch = list(self.val.shape[:-1])

        def index(row: Expr, i: Expr) -> tuple[Expr, ...]:
            return (*delinearize(e, row, batch), i)

        def read(row: Expr, _: Expr, i: Expr) -> Complex:
            z: Complex = e.value(self.source, index(row, i))
            return swap(z) if self.inverse else z

        def write(row: Expr, _: Expr, k: Expr, z: Complex) -> list[Stmt]:
            result = swap(z) if self.inverse else z
            return store_members(e, self.group, index(row, k), result)

        return read, write

    @cached_property
    def rows_are_adjacent(self) -> bool:
        """The operand is contiguous along the last of the other axes, not along the transforms."""
        if len(self.val.shape) < 2:
            return False
        e = Emitter(self.layouts, False)
        index = tuple(ir.var(f"i{k}") for k in range(len(self.val.shape)))
        e.value(self.source, index)
        terms = [p for p in accesses(e) if p.get(index[-1]) and p.get(index[-2])]
        return unit_stride_count(terms, index[-2]) > unit_stride_count(terms, index[-1])

    def steps(self, limit: int) -> list[Step]:
        """The steps of the whole transform, none of them longer than `limit` where it can be."""
        return self._split(split(self.length, limit), self.rows, self._access)

    def _split(
        self, lengths: tuple[int, ...], rows: int, access: Access, adjacent: int = 1
    ) -> list[Step]:
        """Steps of `rows` transforms, whose accessors take the row as the outer one; the results of
        `adjacent` rows in turn lie side by side."""
        n1, n2 = lengths[0], math.prod(lengths[1:])
        if n2 == 1:
            return [Step(n1, rows, 1, access, (False, False))]
        whole = n1 * n2
        intermediate = temporary((rows, n1, n2), self.val.dtype)

        def first(e: Emitter) -> tuple[Read, Write]:
            read, _ = access(e)

            def put(row: Expr, column: Expr, k: Expr, z: Complex) -> list[Stmt]:
                rotated = mul(z, self.large_twiddle(e, ir.mul(column, k), whole))
                return e.store(intermediate, (row, k, column), rotated)

            def get(row: Expr, column: Expr, i: Expr) -> Complex:
                return read(row, ZERO, ir.add(ir.mul(i, e.dim(n2)), column))

            return get, put

        def second(e: Emitter) -> tuple[Read, Write]:
            _, write = access(e)
            e.layouts = {**e.layouts, intermediate: (n1 * n2, n2, 1)}

            def get(row: Expr, k1: Expr, i: Expr) -> Complex:
                found: Complex = e.value(intermediate, (row, k1, i))
                return found

            def put(row: Expr, k1: Expr, k2: Expr, z: Complex) -> list[Stmt]:
                return write(row, ZERO, ir.add(ir.mul(k2, e.dim(n1)), k1), z)

            return get, put

        columns = Step(n1, rows, n2, first, (True, True))
        if len(lengths) == 2 and adjacent == 1:
            return [columns, Step(n2, rows, n1, second, (False, True))]
        if len(lengths) == 2:
            return [columns, self._last_step(n2, rows, n1, second, adjacent)]

        def flat(e: Emitter) -> tuple[Read, Write]:
            get, put = second(e)

            def outer(row: Expr) -> tuple[Expr, Expr]:
                return divmod(row, e.dim(n1))

            return (
                lambda row, _, i: get(*outer(row), i),
                lambda row, _, k, z: put(*outer(row), k, z),
            )

        return [columns, *self._split(lengths[1:], rows * n1, flat, adjacent * n1)]

    def _last_step(self, n: int, rows: int, inner: int, access: Access, adjacent: int) -> Step:
        """The step whose inner rows are those with results side by side."""

        def exchanged(e: Emitter) -> tuple[Read, Write]:
            get, put = access(e)

            def rows_of(outer: Expr, w: Expr) -> tuple[Expr, Expr]:
                first, second = divmod(outer, e.dim(inner))
                return ir.add(ir.mul(first, e.dim(adjacent)), w), second

            return (
                lambda row, w, i: get(*rows_of(row, w), i),
                lambda row, w, k, z: put(*rows_of(row, w), k, z),
            )

        return Step(n, rows // adjacent * inner, adjacent, exchanged, (False, True))

    def kernel(self, step: Step, blocking: Blocking, name: str) -> LoweredKernel:
        """One step; a step of lone rows may take several as adjacent ones."""
        small = self.val.size <= LOOPS.small_elements
        e = Emitter(self.layouts, small, block_size=blocking.threads)
        outer, inner = step.outer, step.inner
        lone = inner == 1 and blocking.width > 1
        if lone:
            outer, inner = 1, outer
        width = blocking.width
        g = ir.var("g")
        blocks = -(-inner // width)
        row, number = (g, ZERO) if blocks == 1 else divmod(g, e.scalar_arg(blocks))
        if outer == 1:
            row, number = ZERO, (g if blocks > 1 else ZERO)
        start = ir.mul(number, const(width))
        read, write = step.access(e)

        def at(w: Expr) -> tuple[Expr, Expr]:
            at_inner = ir.add(start, w)
            return (at_inner, ZERO) if lone else (row, at_inner)

        body, scratch = stockham(
            Block(
                *(step.length, blocking.radices(step.length), blocking.largest_odd),
                *(self.part, width),
                ir.minimum(ir.sub(e.dim(inner), start), const(width)),
                bool(blocking.threads),
                blocking.vector,
                (self.rows_are_adjacent, False) if lone else step.adjacent,
                not lone or not blocking.threads or self.rows_are_adjacent,
                e.scalar_arg,
            ),
            lambda k: self.twiddle(e, k, step.length),
            lambda w, i: read(*at(w), i),
            lambda w, k, z: write(*at(w), k, z),
        )
        e.scratch += scratch
        return e.grid_kernel(name, g, body, outer * blocks, self.group.notes)


def lower_steps(
    problem: FftProblem, limit: int, blocking: Callable[[FftProblem, Step], Blocking]
) -> Kernels:
    """A kernel for each step."""
    steps = problem.steps(limit)
    names = ["fft"] if len(steps) == 1 else [f"fft_step{i}" for i in range(len(steps))]
    return [
        problem.kernel(s, blocking(problem, s), name) for s, name in zip(steps, names, strict=True)
    ]
