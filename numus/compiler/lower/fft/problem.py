"""Fourier transforms of rows as a problem: operands, results and roots of unity.

The operand is read through the emitter, with the code fused before it, and results are stored with
the code fused after them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.cost_model import nbytes
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.axis import ZERO, delinearize, store_members
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, Stmt, const
from numus.kernels.fft.butterflies import Complex, mul, swap
from numus.kernels.fft.indices import quotient, remainder
from numus.kernels.fft.prefetch import LINE_NBYTES
from numus.kernels.fft.radices import LARGEST_RADIX
from numus.kernels.fft.stockham import NONE
from numus.kernels.fft.tables import TUNING, Layout, layout
from numus.kernels.fft.thread_steps import low_roots

STREAM_SHARE = 1  # of the L2 caches of all cores, which results that are streamed exceed
MIN_ADJACENT = 8  # rows that threads transform as columns: accesses of 64 bytes

Inner = tuple[Expr, Expr]  # an inner row: the first of its vector, which of them
Read = Callable[[Expr, Inner, Expr], Complex]  # outer row, inner row, position
Write = Callable[[Expr, Inner, Expr, Complex], list[Stmt]]
Access = Callable[[Emitter], tuple[Read, Write]]


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
    def is_streamed(self) -> bool:
        """Operands and results pass through the caches of a core: what comes next is prefetched."""
        return not self.target.simt and nbytes(self.val) > self.target.l2_bytes // 4

    def streamed(self, statements: list[Stmt]) -> list[Stmt]:
        """Stores of results, around the caches where all of them would not stay there: whole lines
        that are not read first. Rows in registers would store all of theirs at once."""
        exceeds = nbytes(self.val) > STREAM_SHARE * self.target.num_cores * self.target.l2_bytes
        whole = self.val.shape[-1] * self.val.dtype.itemsize % LINE_NBYTES == 0
        are_long = self.is_plane or self.length > LARGEST_RADIX
        for s in statements:
            if isinstance(s, ir.Store):
                s.streams = exceeds and whole and are_long and self.target.streams_lines
        return statements

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

    def real_root(self, e: Emitter, k: Expr) -> Complex:
        """exp(-2 pi i k / n) of a real signal of n elements."""
        found: Complex = e.value(self.val.inputs[2], (k,))
        return found

    def twiddle(self, e: Emitter, k: Expr, length: int) -> Complex:
        """exp(-2 pi i k / length)."""
        start = self.layout.starts.get(("roots", length))
        if start is None:
            return self._root(e, ir.mul(k, e.dim(self.length // length)))
        return self._root(e, ir.add(e.dim(start), k))

    def first_root(self, e: Emitter, group: Expr, k: int) -> Complex:
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

    def table_part(self, e: Emitter, what: str, k: Expr) -> Complex:
        return self._root(e, ir.add(k, const(self.layout.starts[what, self.length])))

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

    def access(self, e: Emitter) -> tuple[Read, Write]:
        """The operand and the results of the whole transform; inner rows are those along the axis
        of lanes."""
        batch, axis = list(self.val.shape[:-1]), self.inner_axis

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
            cosine, sine = self.real_root(e, k)
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
            return self.streamed(store_members(e, self.group, index(row, inner, k), result))

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
    def operand_is_paired(self) -> bool:
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
    def result_is_paired(self) -> bool:
        return all(v.dtype.is_complex for v in self.group.stored)

    @property
    def inner_axis(self) -> int:
        """The axis of the rows of a block, unless they run over all axes."""
        return len(self.val.shape) - 2 if self.lane_axis is None else self.lane_axis

    @property
    def are_columns(self) -> bool:
        """Threads find enough rows side by side."""
        axis = self.lane_axis
        is_wide = axis is not None and self.val.shape[axis] >= MIN_ADJACENT
        return is_wide and self.target.simt
