"""Scatter of rows on GPUs: a segmented reduction of sorted updates, a warp per piece of a row.

Every warp combines the updates of one destination, in their order, for a vector of columns. Where
a destination has many, its updates are first combined in chunks of the sorted order, by a warp
each, and then the chunks in order: the result depends on the indices alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ONE, ZERO, delinearize, temporary
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.loops.tuning import WARP
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem
from numus.compiler.lower.scatter.gpu_sorted import (
    SortedUpdates,
    find_starts,
    lead_index,
    sort_updates,
)
from numus.compiler.lower.scatter.problem import COMBINE
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const, select
from numus.kernels.scan.cpu import identity


@dataclass(frozen=True)
class RowTuning:
    """Measured on one H200."""

    min_columns: int = 16  # for half a warp
    in_flight: int = 4  # updates whose loads a warp issues together
    chunk: tuple[int, int] = (64, 256)  # updates that one warp combines, at least and at most


TUNING = RowTuning()


def _supports(problem: GpuScatterProblem) -> bool:
    has_warps = problem.target.subgroup_size > 0 and problem.columns >= TUNING.min_columns
    return problem.count > 0 and not problem.compares and has_warps


def _lower(problem: GpuScatterProblem) -> Kernels:
    updates = sort_updates(problem)
    find_starts(updates, problem)
    rows = _Rows(problem, updates)
    partials = [rows.combine_chunks()] if rows.splits else []
    return [*updates.kernels, *partials, rows.combine_destinations()]


SORTED_ROWS = Candidate("sorted updates, warp per destination", _lower, _supports)


class _Rows:
    def __init__(self, problem: GpuScatterProblem, updates: SortedUpdates) -> None:
        self.problem, self.updates = problem, updates
        self.val, self.columns, self.count = problem.val, problem.columns, problem.count
        self.is_complex = self.val.dtype.is_complex
        self.dtype = dt.compute_dtype(dt.real_of(self.val.dtype))  # of accumulators
        parts = 2 if self.is_complex else 1
        self.acc = [ir.Register(f"acc{p}", self.dtype, lanes=True) for p in range(parts)]
        low, high = TUNING.chunk
        self.chunk = low
        while self.chunk < high and self.chunk * self.chunk < self.count:
            self.chunk *= 2
        # a single write wins; complex numbers are combined one after the other
        self.splits = problem.mode != "set" and not self.is_complex and self.count > self.chunk
        chunks = -(-self.count // self.chunk)
        # of each chunk: what belongs to the destination of its first update, and of its last
        self.partials = temporary((2 * chunks, self.columns), self.dtype)
        self.layouts = {**updates.layouts, self.partials: (self.columns, 1)}

    # -- kernels ----------------------------------------------------------------------------------

    def combine_chunks(self) -> LoweredKernel:
        """The updates of destinations that have more than a chunk's."""
        e, g, row, loop = self._begin()
        size, last = e.scalar_arg(self.chunk), ir.sub(e.dim(self.count), ONE)
        first = ir.mul(row, size)
        end = ir.minimum(ir.add(first, size), ir.add(last, ONE))
        body: list[Stmt] = []
        for slot, at in enumerate((first, ir.sub(end, ONE))):
            low, high = ir.var(f"low{slot}"), ir.var(f"high{slot}")
            lets, is_heavy = self._segment(e, self._key(e, at), low, high, size)
            mine = is_heavy & (low > first) if slot else is_heavy
            begin, stop = (low, end) if slot else (first, ir.minimum(high, end))
            to = ir.add(ir.mul(row, const(2)), const(slot))
            combined = [
                loop(lambda _: [ir.Set(self.acc[0], self._identity())]),
                *self._for_updates(e, loop, begin, stop, str(slot)),
                loop(lambda c, to=to: e.store(self.partials, (to, c), ir.read(self.acc[0]))),
            ]
            body += [*lets, ir.If(mine, combined)]
        chunks = self.partials.shape[0] // 2
        return self._finish(e, g, body, "scatter_chunks", chunks)

    def combine_destinations(self) -> LoweredKernel:
        e, g, destination, loop = self._begin()
        size = e.scalar_arg(self.chunk)
        low, high = ir.var("low"), ir.var("high")
        lets, is_heavy = self._segment(e, destination, low, high, size)
        body = [*lets, loop(lambda c: self._load_base(e, destination, c))]
        if self.problem.mode == "set":  # the last write wins
            body += self._for_updates(e, loop, ir.maximum(low, ir.sub(high, ONE)), high, "")
        elif not self.splits:
            body += self._for_updates(e, loop, low, high, "")
        else:
            stop = select(is_heavy, low, high)
            body += self._for_updates(e, loop, low, stop, "")
            body.append(ir.If(is_heavy, self._for_partials(e, loop, low, high, size)))
        body.append(loop(lambda c: self._store(e, destination, c)))
        name = f"scatter_{self.problem.mode}"
        return self._finish(e, g, body, name, self.problem.destination_count)

    def _begin(self) -> tuple[Emitter, Expr, Expr, Callable[..., ir.For]]:
        """An emitter, the block, its row, and the loop over its columns: its body is a function of
        the column."""
        e = Emitter(self.layouts, block_size=WARP)
        e.packed_blocks = LOOPS.packed_rows
        itemsize = self.val.dtype.itemsize
        width = 1 if self.is_complex else max(1, LOOPS.max_vector_bytes // itemsize)
        while width > 1 and (self.columns % width or WARP * width > self.columns):
            width //= 2
        size = WARP * width
        self.vectors = -(-self.columns // size)
        g, t = ir.var("g"), ir.var("t")
        row, vector = (g, ZERO) if self.vectors == 1 else divmod(g, e.scalar_arg(self.vectors))
        first = ir.mul(vector, const(size))
        column, extent = ir.add(first, t), e.dim(self.columns)
        e.extents[column] = extent
        end = ir.minimum(const(size), ir.sub(extent, first)) if self.columns % size else const(size)

        def loop(body: Callable[[Expr], list[Stmt]]) -> ir.For:
            return ir.For(t, ZERO, end, "lanes", body(column), width=width, resident=True)

        return e, g, row, loop

    def _finish(self, e: Emitter, g: Expr, body: list[Stmt], name: str, rows: int) -> LoweredKernel:
        return e.grid_kernel(name, g, body, rows * self.vectors, (self.val.op,))

    # -- segments ---------------------------------------------------------------------------------

    def _key(self, e: Emitter, at: Expr) -> Expr:
        key: Expr = e.value(self.updates.keys, (at,)).cast(dt.int64)
        return key

    def _segment(
        self, e: Emitter, destination: Expr, low: Expr, high: Expr, size: Expr
    ) -> tuple[list[Stmt], Expr]:
        """Bindings of where a destination's updates begin and end (none past the last one), and
        whether they are more than a chunk."""
        starts, bound = self.updates.starts, e.dim(self.problem.destination_count)
        assert starts is not None
        lets: list[Stmt] = []
        for name, at in ((low, destination), (high, ir.minimum(ir.add(destination, ONE), bound))):
            lets.append(ir.Let(name, e.value(starts, (at,)).cast(dt.int64)))
        return lets, ir.sub(high, low) > size

    def _for_updates(
        self, e: Emitter, loop: Callable[..., ir.For], low: Expr, high: Expr, tag: str
    ) -> list[Stmt]:
        """Combine updates low … high of the sorted order."""
        val, lead = self.val, self.problem.index_shape
        source = val.inputs[1]
        rest = [val.shape[a] for a in self.problem.other_axes]

        def number(at: Expr) -> Expr:
            found: Expr = e.value(self.updates.order, (at,)).cast(dt.int64)
            return found

        def element(update: Expr, column: Expr) -> Any:
            at_lead = lead_index(e, update, lead, source, self.layouts)
            return e.value(source, (*at_lead, *delinearize(e, column, rest)))

        return self._ordered(loop, low, high, number, element, f"u{tag}")

    def _for_partials(
        self, e: Emitter, loop: Callable[..., ir.For], low: Expr, high: Expr, size: Expr
    ) -> list[Stmt]:
        """Combine what was combined of each chunk that has updates low … high."""
        first, end = ir.idiv(low, size), ir.add(ir.idiv(ir.sub(high, ONE), size), ONE)

        def number(at: Expr) -> Expr:
            """Only a chunk's last destination may begin in it."""
            begins = ir.mul(at, size) < low
            return ir.add(ir.mul(at, const(2)), select(begins, ONE, ZERO))

        def element(partial: Expr, column: Expr) -> Any:
            return e.value(self.partials, (partial, column))

        return self._ordered(loop, first, end, number, element, "c")

    def _ordered(
        self,
        loop: Callable[..., ir.For],
        low: Expr,
        high: Expr,
        number: Callable[[Expr], Expr],
        element: Callable[[Expr, Expr], Any],
        tag: str,
    ) -> list[Stmt]:
        """Combine rows low … high in order, several of them loaded at a time."""
        u = ir.var(tag)
        top = ir.var(f"{tag}_top")
        places = [ir.add(u, const(k)) for k in range(TUNING.in_flight)]
        names = [ir.var(f"{tag}_number{k}") for k in range(TUNING.in_flight)]
        lets = ir.lets(names, [number(ir.minimum(at, top)) for at in places])

        def combine(column: Expr) -> list[Stmt]:
            found = [
                [ir.var(f"{tag}_value{k}_{p}", self.dtype) for p in range(len(self.acc))]
                for k in range(TUNING.in_flight)
            ]
            out: list[Stmt] = []
            for name, values in zip(names, found, strict=True):
                parts = self._parts(element(name, column))
                out += ir.lets(values, [x.cast(self.dtype) for x in parts])
            for k, (at, values) in enumerate(zip(places, found, strict=True)):
                old = ir.reads(self.acc)
                new = self._combined(old, values)
                kept = [select(at < high, x, y) for x, y in zip(new, old, strict=True)]
                out += ir.assign(self.acc, kept, f"{tag}_new{k}")[0]
            return out

        body: list[Stmt] = [*lets, loop(combine)]
        step = const(TUNING.in_flight)
        return [
            ir.Let(top, ir.sub(high, ONE)),
            ir.For(u, low, high, "serial", body, step=step),
        ]

    # -- elements ---------------------------------------------------------------------------------

    def _parts(self, value: Any) -> list[Expr]:
        return list(value) if self.is_complex else [value]

    def _combined(self, old: list[Expr], new: list[Expr]) -> list[Expr]:
        mode = self.problem.mode
        if mode == "set":
            return new
        if self.is_complex:
            dtype = self.val.dtype
            return list(lower(COMBINE[mode], [tuple(old), tuple(new)], [dtype] * 2, dtype, None))
        operands = [self.dtype] * 2
        return [lower(COMBINE[mode], [old[0], new[0]], operands, self.dtype, None)]

    def _identity(self) -> Expr:
        op = {"add": "sum", "mul": "prod"}.get(self.problem.mode, self.problem.mode)
        return identity(op, self.dtype, 1)[0]

    def _load_base(self, e: Emitter, destination: Expr, column: Expr) -> list[Stmt]:
        value = e.value(self.val.inputs[0], self.problem.index(e, destination, column))
        return ir.sets(self.acc, [x.cast(self.dtype) for x in self._parts(value)])

    def _store(self, e: Emitter, destination: Expr, column: Expr) -> list[Stmt]:
        real = dt.real_of(self.val.dtype)
        parts = [x.cast(real) for x in ir.reads(self.acc)]
        at = self.problem.index(e, destination, column)
        return e.store(self.val, at, tuple(parts) if self.is_complex else parts[0])
