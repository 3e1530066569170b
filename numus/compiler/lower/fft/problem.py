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
from functools import cached_property, partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.axis import ZERO, delinearize, store_members, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, mul, swap
from numus.kernels.fft.shared_memory import ThreadBlock, shared_stockham
from numus.kernels.fft.stockham import (
    NONE,
    Block,
    Pass,
    Transform,
    quotient,
    remainder,
    stockham,
)
from numus.kernels.fft.tables import CACHE_LINE_BYTES, TUNING, Layout, layout
from numus.kernels.fft.thread_steps import low_roots, resident_blocks
from numus.shapes import row_major

MIN_ADJACENT = 8  # rows that threads transform as columns: accesses of 64 bytes

Inner = tuple[Expr, Expr]  # an inner row: the first of its vector, which of them
Read = Callable[[Expr, Inner, Expr], Complex]  # outer row, inner row, position
Write = Callable[[Expr, Inner, Expr, Complex], list[Stmt]]
Access = Callable[[Emitter], tuple[Read, Write]]


def _prefetches(statements: list[Stmt]) -> list[Stmt]:
    """Of the numbers that are stored, into L2."""
    found = {(s.buffer, s.index): None for s in statements if isinstance(s, ir.Store)}
    return [
        ir.Prefetch(b, i, level=2)
        for b, i in found
        if not (i.op == "add" and i.args[1] is const(1) and (b, i.args[0]) in found)
    ]


@dataclass(frozen=True)
class Step:
    """Transforms of `length` points, outer * inner of them."""

    length: int
    outer: int
    inner: int  # rows that are adjacent in memory
    access: Access
    adjacent: tuple[bool, bool]  # whether operands, results of inner rows are adjacent
    is_paired: bool = False  # whether operands are complex numbers in memory
    columns: int = 1  # of each of the transforms that these are columns of
    are_outer: bool = False  # columns are outer rows, else inner ones


@dataclass(frozen=True)
class Blocking:
    """How a step is divided into blocks."""

    width: int  # inner rows of a block
    threads: int  # of a block; 0: lanes are SIMD
    vector: int
    radices: tuple[int, ...]
    largest_odd: int  # radix of a butterfly in registers


@dataclass(frozen=True)
class FftProblem(Problem):
    """A transform along the last axis, the first member of its group, and its epilogue."""

    @property
    def source(self) -> Value:
        return self.val.inputs[0]

    @property
    def inverse(self) -> bool:
        return self.is_inverse_real or (not self.is_real and bool(self.val.params))

    @property
    def length(self) -> int:
        if self.is_inverse_real:
            return self.source.shape[-1] - 1
        return self.source.shape[-1] // (2 if self.is_real else 1)

    @property
    def is_real(self) -> bool:
        """Points of the operand are pairs of elements of a real signal."""
        return self.val.op == "rfft"

    @property
    def is_inverse_real(self) -> bool:
        """Points of the result are such pairs."""
        return self.val.op == "irfft"

    @property
    def is_plane(self) -> bool:
        """Both of the last axes are transformed."""
        return self.val.op == "fft2"

    @property
    def planes(self) -> int:
        return math.prod(self.val.shape[:-2])

    @property
    def is_small(self) -> bool:
        """Little data: short code, and few kernels, beat fast code."""
        return self.val.size <= TUNING.small_elements

    @property
    def rows(self) -> int:
        return math.prod(self.val.shape[:-1])

    @property
    def complex_dtype(self) -> dt.DType:
        return dt.complex_of(self.val.dtype)

    @cached_property
    def part(self) -> dt.DType:
        return dt.real_of(self.val.dtype)

    @cached_property
    def layout(self) -> Layout:
        """Of the table of roots."""
        return layout(self.length, self.complex_dtype, self.target)

    def _root(self, e: Emitter, at: Expr) -> Complex:
        found: Complex = e.value(self.val.inputs[1], (at,))
        return found

    def _real_root(self, e: Emitter, k: Expr) -> Complex:
        """exp(-2 pi i k / n) of a real signal of n elements."""
        found: Complex = e.value(self.val.inputs[2], (k,))
        return found

    def twiddle(self, e: Emitter, k: Expr, length: int) -> Complex:
        """exp(-2 pi i k / length)."""
        start = self.layout.starts.get(("roots", length))
        if start is None:
            return self._root(e, ir.mul(k, e.dim(self.length // length)))
        return self._root(e, ir.add(e.dim(start), k))

    def _first_root(self, e: Emitter, group: Expr, k: int) -> Complex:
        """exp(-2 pi i group k / n), adjacent in memory by groups."""
        groups = self.length // self.layout.first_radix
        first = self.layout.starts["first", self.length]
        start = ir.add(e.dim(first), ir.mul(e.dim(groups), const(k)))
        return self._root(e, ir.add(start, group))

    def column_twiddle(
        self, e: Emitter, column: Inner, k: Expr, length: int, whole: int
    ) -> Complex:
        """exp(-2 pi i (first + lane) k / whole) between steps, k < length, for adjacent lanes."""
        starts = self.layout.starts
        if ("near", whole) not in starts:
            return self.twiddle(e, ir.mul(ir.add(*column), k), whole)
        at = ir.add(ir.mul(k, const(self.layout.vector)), column[1])
        near = self._root(e, ir.add(e.dim(starts["near", whole]), at))
        vector = ir.idiv(column[0], const(self.layout.vector))
        far = ir.add(ir.mul(vector, e.dim(length)), k)
        return mul(near, self._root(e, ir.add(e.dim(starts["far", whole]), far)))

    def thread_twiddle(self, e: Emitter, k: Expr, length: int) -> list[Complex]:
        """exp(-2 pi i k / length) of a pass. Threads take it from tables that stay in cache: with
        k = a B + b, it is the product of those for a B and b."""
        starts = self.layout.starts
        if ("all", length) in starts:
            return [self._root(e, ir.add(k, const(starts["all", length])))]
        part = low_roots(length)
        low = ir.add(remainder(k, part), const(starts["low", length]))
        high = ir.add(quotient(k, part), const(starts["high", length]))
        return [self._root(e, low), self._root(e, high)]

    def _access(self, e: Emitter) -> tuple[Read, Write]:
        """The operand and the results of the whole transform; inner rows are those along the axis
        of lanes."""
        batch, axis = list(self.val.shape[:-1]), self._inner_axis

        def index(row: Expr, inner: Inner, i: Expr) -> tuple[Expr, ...]:
            if inner is NONE:
                return (*delinearize(e, row, batch), i)
            others = delinearize(e, row, [*batch[:axis], *batch[axis + 1 :]])
            return (*others[:axis], ir.add(*inner), *others[axis:], i)

        def packed(row: Expr, inner: Inner, k: Expr) -> Complex:
            """Point k of the transform of pairs, from half the transform of a real signal."""
            length = e.dim(self.length)
            a, b = e.value(self.source, index(row, inner, k))
            c, d = e.value(self.source, index(row, inner, ir.sub(length, k)))
            first = ir.binary("eq", k, ZERO)  # the imaginary parts at both ends are those of zero
            b, d = (ir.select(first, const(0.0, self.part), part) for part in (b, d))
            cosine, sine = self._real_root(e, k)
            odd = mul((a - c, b + d), (cosine, -sine))
            return a + c - odd[1], b - d + odd[0]

        def read(row: Expr, inner: Inner, i: Expr) -> Complex:
            if self.is_inverse_real:
                return swap(packed(row, inner, i))
            if self.is_real:
                *at, first = index(row, inner, ir.mul(i, const(2)))
                return tuple(e.value(self.source, (*at, ir.add(first, const(k)))) for k in (0, 1))
            z: Complex = e.value(self.source, index(row, inner, i))
            return swap(z) if self.inverse else z

        def write(row: Expr, inner: Inner, k: Expr, z: Complex) -> list[Stmt]:
            result = swap(z) if self.inverse else z
            if self.is_inverse_real:
                *at, first = index(row, inner, ir.mul(k, const(2)))
                return [
                    s
                    for part, number in enumerate(result)
                    for s in store_members(e, self.group, (*at, ir.add(first, const(part))), number)
                ]
            return store_members(e, self.group, index(row, inner, k), result)

        return read, write

    @cached_property
    def lane_axis(self) -> int | None:
        """The axis along which rows are adjacent in the operand, where points are not."""
        ndim = len(self.val.shape)
        e = Emitter(self.layouts, False)
        index = tuple(ir.var(f"i{k}") for k in range(ndim))
        e.value(self.source, index)
        terms = list(accesses(e))

        def adjacent(axis: int) -> int:
            both = [p for p in terms if p.get(index[-1]) and p.get(index[axis])]
            count = unit_stride_count(both, index[axis])
            return count if count > unit_stride_count(both, index[-1]) else 0

        found = [k for k in range(ndim - 1) if self.val.shape[k] > 1 and adjacent(k)]
        return max(found, key=adjacent) if found else None

    @property
    def rows_are_adjacent(self) -> bool:
        return self.lane_axis is not None

    @property
    def _operand_is_paired(self) -> bool:
        """All numbers that the operand is computed from are complex ones in memory."""
        pending, found = [self.source], set[Value]()
        while pending:
            val = pending.pop()
            if val in self.layouts:
                found.add(val)
            else:
                pending += val.inputs
        return all(v.dtype.is_complex for v in found)

    @property
    def _result_is_paired(self) -> bool:
        return all(v.dtype.is_complex for v in self.group.stored)

    @property
    def _inner_axis(self) -> int:
        """The axis of the rows of a block, unless they run over all axes."""
        return len(self.val.shape) - 2 if self.lane_axis is None else self.lane_axis

    def steps(self, lengths: tuple[int, ...]) -> list[Step]:
        """The steps of the whole transform, of these lengths."""
        if self.are_columns and len(lengths) > 1:
            lanes = self.val.shape[self._inner_axis]
            return self._split_columns(lengths, self.rows // lanes, lanes, self._access)
        return self._split(lengths, self.rows, self._access)

    @property
    def are_columns(self) -> bool:
        """Threads find enough rows side by side."""
        axis = self.lane_axis
        is_wide = axis is not None and self.val.shape[axis] >= MIN_ADJACENT
        return is_wide and self.target.simt

    def _split_columns(
        self, lengths: tuple[int, ...], rows: int, lanes: int, access: Access
    ) -> list[Step]:
        """Steps of transforms that lie side by side, `lanes` of them, and stay so."""
        n1, n2 = lengths[0], math.prod(lengths[1:])
        if n2 == 1:
            return [Step(n1, rows, lanes, access, (True, True), True)]
        intermediate = temporary((rows, n1, n2, lanes), self.complex_dtype)

        def first(e: Emitter) -> tuple[Read, Write]:
            read, _ = access(e)

            def get(outer: Expr, lane: Inner, i: Expr) -> Complex:
                row, column = divmod(outer, e.dim(n2))
                return read(row, lane, ir.add(e.times(i, e.dim(n2)), column))

            def put(outer: Expr, lane: Inner, k: Expr, z: Complex) -> list[Stmt]:
                row, column = divmod(outer, e.dim(n2))
                return e.store(intermediate, (row, k, column, ir.add(*lane)), z)

            return get, put

        def second(e: Emitter) -> tuple[Read, Write]:
            _, write = access(e)
            e.layouts = {**e.layouts, intermediate: row_major(intermediate.shape)}

            def get(outer: Expr, lane: Inner, i: Expr) -> Complex:
                found: Complex = e.value(
                    intermediate, (*divmod(outer, e.dim(n1)), i, ir.add(*lane))
                )
                return found

            def put(outer: Expr, lane: Inner, k2: Expr, z: Complex) -> list[Stmt]:
                row, k1 = divmod(outer, e.dim(n1))
                return write(row, lane, ir.add(e.times(k2, e.dim(n1)), k1), z)

            return get, put

        paired = self._operand_is_paired
        columns = Step(n1, rows * n2, lanes, first, (True, True), paired, n2, are_outer=True)
        return [columns, *self._split_columns(lengths[1:], rows * n1, lanes, second)]

    def _split(
        self, lengths: tuple[int, ...], rows: int, access: Access, adjacent: int = 1
    ) -> list[Step]:
        """Steps of `rows` transforms, whose accessors take the row as the outer one; the results of
        `adjacent` rows in turn lie side by side."""
        n1, n2 = lengths[0], math.prod(lengths[1:])
        if n2 == 1:
            return [Step(n1, rows, 1, access, (False, False))]
        whole = n1 * n2
        intermediate = temporary((rows, n1, n2), self.complex_dtype)

        def first(e: Emitter) -> tuple[Read, Write]:
            read, _ = access(e)

            def put(row: Expr, column: Inner, k: Expr, z: Complex) -> list[Stmt]:
                if not e.block_size:  # else the passes of threads have multiplied by all factors
                    z = mul(z, self.column_twiddle(e, column, k, n1, whole))
                return e.store(intermediate, (row, k, ir.add(*column)), z)

            def get(row: Expr, column: Inner, i: Expr) -> Complex:
                return read(row, NONE, ir.add(e.times(i, e.dim(n2)), ir.add(*column)))

            return get, put

        def second(e: Emitter) -> tuple[Read, Write]:
            _, write = access(e)
            e.layouts = {**e.layouts, intermediate: (n1 * n2, n2, 1)}

            def get(row: Expr, k1: Inner, i: Expr) -> Complex:
                found: Complex = e.value(intermediate, (row, ir.add(*k1), i))
                return found

            def put(row: Expr, k1: Inner, k2: Expr, z: Complex) -> list[Stmt]:
                return write(row, NONE, ir.add(e.times(k2, e.dim(n1)), ir.add(*k1)), z)

            return get, put

        columns = Step(n1, rows, n2, first, (True, True), columns=n2)
        if len(lengths) == 2 and adjacent == 1:
            return [columns, Step(n2, rows, n1, second, (False, True), True)]
        if len(lengths) == 2:
            return [columns, self._last_step(n2, rows, n1, second, adjacent)]

        def flat(e: Emitter) -> tuple[Read, Write]:
            get, put = second(e)

            def outer(row: Expr) -> tuple[Expr, Inner]:
                first, second = divmod(row, e.dim(n1))
                return first, (ZERO, second)

            return (
                lambda row, _, i: get(*outer(row), i),
                lambda row, _, k, z: put(*outer(row), k, z),
            )

        return [columns, *self._split(lengths[1:], rows * n1, flat, adjacent * n1)]

    def _last_step(self, n: int, rows: int, inner: int, access: Access, adjacent: int) -> Step:
        """The step whose inner rows are those with results side by side."""

        def exchanged(e: Emitter) -> tuple[Read, Write]:
            get, put = access(e)

            def rows_of(outer: Expr, w: Inner) -> tuple[Expr, Inner]:
                first, second = divmod(outer, e.dim(inner))
                return ir.add(ir.mul(first, e.dim(adjacent)), ir.add(*w)), (ZERO, second)

            return (
                lambda row, w, i: get(*rows_of(row, w), i),
                lambda row, w, k, z: put(*rows_of(row, w), k, z),
            )

        return Step(n, rows // adjacent * inner, adjacent, exchanged, (False, True), True)

    def kernel(self, step: Step, blocking: Blocking, name: str) -> LoweredKernel:
        """One step; a step of lone rows may take several as adjacent ones."""
        small = self.is_small
        e = Emitter(self.layouts, small, block_size=blocking.threads)
        e.static = bool(blocking.threads)  # they divide by sizes, and add strides to addresses
        outer, inner = step.outer, step.inner
        width, batch = blocking.width, self.val.shape[:-1]
        lone = inner == 1 and width > 1
        along_axis = lone and step.length == self.length and len(batch) > 1
        along_axis = along_axis and batch[self._inner_axis] >= width
        adjacent = lone and self.lane_axis is not None
        adjacent = adjacent and (along_axis or self.lane_axis == len(batch) - 1)
        if lone:
            inner = batch[self._inner_axis] if along_axis else outer
            outer //= inner
        g = ir.var("g")
        blocks = -(-inner // width)
        row, number = (g, ZERO) if blocks == 1 else divmod(g, e.scalar_arg(blocks))
        if outer == 1:
            row, number = ZERO, (g if blocks > 1 else ZERO)
        start = ir.mul(number, const(width))
        read, write = step.access(e)

        def at(w: Transform, blocks: int = 0) -> tuple[Expr, Inner]:
            first = ir.add(ir.add(start, const(blocks * width)), w[0])
            if step.inner == 1 and not along_axis:
                return (ir.add(first, w[1]) if lone else row), NONE
            return row, (first, w[1])

        def fetch(w: Transform, k: Expr) -> list[Stmt]:
            zero = const(0.0, self.part)
            return _prefetches(write(*at(w, 1), k, (zero, zero)))

        first_roots = None
        if blocking.radices[0] == self.layout.first_radix and step.length == self.length:
            first_roots = partial(self._first_root, e)

        def get(w: Transform, i: Expr) -> Complex:
            return read(*at(w), i)

        def put(w: Transform, k: Expr, z: Complex) -> list[Stmt]:
            return write(*at(w), k, z)

        def root(k: Expr) -> Complex:
            return self.twiddle(e, k, step.length)

        def rotation(p: Pass, group: Expr, w: Transform, k: Expr) -> list[Complex]:
            column = ir.mul(group, const(step.columns))
            if step.are_outer:
                column = ir.add(column, ir.irem(row, const(step.columns)))
            elif step.columns > 1:
                column = ir.add(column, ir.add(*at(w)[1]))
            length = step.length // p.stride * step.columns
            return self.thread_twiddle(e, ir.mul(column, k), length)

        shape = (step.length, blocking.radices, blocking.largest_odd, self.part, width)
        count, is_full = ir.minimum(ir.sub(e.dim(inner), start), const(width)), inner % width == 0
        operand_is_paired = step.is_paired or self._operand_is_paired
        if blocking.threads:
            block = ThreadBlock(
                *shape,
                *(count, is_full, blocking.threads),
                in_place=max(blocking.radices) <= blocking.largest_odd,
                transforms_first=(adjacent, False) if lone else step.adjacent,
                interleaved=not lone or adjacent,
                columns=step.columns > 1,
                paired=(operand_is_paired, self._result_is_paired),
            )
            body, scratch = shared_stockham(block, root, rotation, get, put)
            e.resident_blocks = resident_blocks(block, self.complex_dtype)
        else:
            simd_block = Block(
                *shape,
                *(count, is_full, blocking.vector),
                (self.lane_axis is None, True) if lone else (not step.adjacent[0], False),
                e.scalar_arg,
                self._result_is_paired,
                first_roots,
                partial(self._real_root, e) if self.is_real else None,
                fetch if lone and not small else None,
                CACHE_LINE_BYTES // self.complex_dtype.itemsize,
            )
            body, scratch = stockham(simd_block, root, get, put)
        e.scratch += scratch
        e.static = False  # any number of blocks
        return e.grid_kernel(name, g, body, outer * blocks, self.group.notes)


def lower_steps(
    problem: FftProblem,
    lengths: tuple[int, ...],
    blocking: Callable[[FftProblem, Step], Blocking],
) -> Kernels:
    """A kernel for each step."""
    steps = problem.steps(lengths)
    names = ["fft"] if len(steps) == 1 else [f"fft_step{i}" for i in range(len(steps))]
    return [
        problem.kernel(s, blocking(problem, s), name) for s, name in zip(steps, names, strict=True)
    ]
