"""Scatter on CPUs, race-free and deterministic: owner-computes or privatization.

Owner-computes: every block walks all updates and owns some of their columns. Privatization, for
many updates of few elements: every block combines a range of updates into a private table, and
tables are combined in order. The order of an element's updates depends on shapes alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, delinearize, temporary
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Index, Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.scatter.cpu_elements import (
    element_owners,
    element_tables,
    merge_tables,
    supports_elements,
)
from numus.compiler.lower.scatter.problem import COMBINE, ScatterProblem, load_element
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import identity
from numus.shapes import row_major


@dataclass(frozen=True)
class ScatterTuning:
    """Measured on 2-core machines: Neoverse N1 and x86-64 (Cascade Lake, Sapphire Rapids)."""

    min_updates_per_table: int = 1 << 14
    max_tables: int = 32


TUNING = ScatterTuning()


class _Updates:
    """The loops over updates: the element each changes, and its value."""

    def __init__(self, e: Emitter, problem: ScatterProblem) -> None:
        self.e, self.problem = e, problem
        shape = problem.val.shape
        self.rest = problem.other_axes
        self.lane_axis = max(self.rest, key=lambda i: (shape[i] > 1, i), default=None)
        self.extent = shape[self.lane_axis] if self.lane_axis is not None else 1
        self.serial_axes = [i for i in self.rest if i != self.lane_axis]
        self.number, self.column, self.other = ir.var("u"), ir.var("j"), ir.var("o")
        e.extents[self.column] = e.dim(self.extent)
        self.at = tuple(delinearize(e, self.number, list(problem.index_shape)))
        self.indices: list[Expr] = []
        self.in_bounds: Expr = const(True, dt.bool_)
        for indices, axis in zip(problem.val.inputs[2:], problem.axes, strict=True):
            index = e.value(indices, self.at)
            self.indices.append(index)
            self.in_bounds = self.in_bounds & (index >= 0) & (index < e.dim(shape[axis]))

    def destination(self) -> tuple[Index, Any]:
        """The element that an update changes, and the update."""
        shape, axes = self.problem.val.shape, self.problem.axes
        found = delinearize(self.e, self.other, [shape[i] for i in self.serial_axes])
        known = dict(zip((*axes, *self.serial_axes), (*self.indices, *found), strict=True))
        if self.lane_axis is not None:
            known[self.lane_axis] = self.column
        index = tuple(known[i] for i in range(len(shape)))
        updates = self.problem.val.inputs[1]
        return index, self.e.value(updates, (*self.at, *(known[i] for i in self.rest)))

    def loops(
        self, body: list[Stmt], columns: tuple[Expr, Expr], updates: tuple[Expr, Expr]
    ) -> Stmt:
        if self.lane_axis is not None:
            body = [ir.For(self.column, *columns, "lanes", body)]
        if self.serial_axes:
            total = self.e.dim(math.prod(self.problem.val.shape[i] for i in self.serial_axes))
            body = [ir.For(self.other, ZERO, total, "serial", body)]
        return ir.For(self.number, *updates, "serial", [ir.If(self.in_bounds, body)])


def _tables(problem: ScatterProblem) -> int:
    updates = max(TUNING.min_updates_per_table, 4 * problem.val.size)
    return min(TUNING.max_tables, problem.count // updates)


def _supports_tables(problem: ScatterProblem) -> bool:
    combines = problem.mode in COMBINE and not problem.val.dtype.is_complex
    return combines and _tables(problem) > 1


def _privatized(problem: ScatterProblem) -> Kernels:
    """A private table per block, then their reduction."""
    tables = _tables(problem)
    if supports_elements(problem):
        return element_tables(problem, tables)
    memory = temporary((tables, *problem.val.shape), problem.val.dtype)
    return [_fill_tables(problem, memory, tables), merge_tables(problem, memory, tables)]


def _fill_tables(problem: ScatterProblem, memory: Value, tables: int) -> LoweredKernel:
    val, mode, count = problem.val, problem.mode, problem.count
    op = {"add": "sum", "mul": "prod"}.get(mode, mode)
    neutral = identity(op, dt.compute_dtype(val.dtype), 1)[0].cast(val.dtype)
    e = Emitter(problem.layouts)
    u = _Updates(e, problem)
    g, i = ir.var("g"), ir.var("clear_i")
    size, per_table = e.dim(val.size), e.scalar_arg(-(-count // tables))
    table = e.buffer(memory, "write")
    first = ir.mul(g, size)
    index, value = u.destination()
    at = ir.add(first, e.address(val, index, row_major(val.shape)))
    new = lower(COMBINE[mode], [ir.load(table, at), value], [val.dtype] * 2, val.dtype, None)
    updates = ir.block_range(g, per_table, e.dim(count))
    body: list[Stmt] = [
        ir.For(i, ZERO, size, "lanes", [ir.Store(table, ir.add(first, i), neutral)]),
        u.loops([ir.Store(table, at, new)], (ZERO, e.dim(u.extent)), updates),
    ]
    return e.grid_kernel(f"scatter_{mode}_tables", g, body, tables, (val.op,))


def _owner_computes(problem: ScatterProblem) -> Kernels:
    """A copy of the base, then all updates in order, blocks owning columns."""
    val, target = problem.val, problem.target
    base, updates, *_ = val.inputs
    copy = Value.fresh("copy", "barrier", (base,), None, base.shape, base.dtype)
    first = FusionGroup.of_stored(copy, problem.group.position)
    kernels = lower_loops(first, problem.layouts, target, redirect={copy: (val, 0, 0)})
    if problem.layouts.get(base) == row_major(base.shape):  # an updated input keeps its memory
        for step in kernels:
            step.kernel.copies = step.buffers == [base, val]
    if updates.size == 0:
        return kernels
    if supports_elements(problem):
        return [*kernels, element_owners(problem)]
    e = Emitter(problem.layouts, val.size <= problem.target.small_elements)
    u = _Updates(e, problem)
    # whole cache lines per block, and one block per core: every block reads all the indices
    line = max(1, target.vector_bytes // val.dtype.itemsize)
    columns = -(-u.extent // target.num_cores // line) * line if u.extent > line else u.extent
    columns = max(columns, line)
    g, width = ir.var("g"), e.scalar_arg(columns)
    index, value = u.destination()
    body = _store_element(e, val, index, _combined(e, val, index, value, problem.mode))
    columns_of = ir.block_range(g, width, e.dim(u.extent))
    loop = u.loops(body, columns_of, (ZERO, e.dim(problem.count)))
    blocks = -(-u.extent // columns)
    name = f"scatter_{problem.mode}"
    return [*kernels, e.grid_kernel(name, g, [loop], blocks, (val.op,))]


lower_scatter = family(
    ScatterProblem,
    Candidate("privatization", _privatized, _supports_tables),
    Candidate("owner computes", _owner_computes),
)


def _store_element(e: Emitter, val: Value, at: Index, value: Any) -> list[Stmt]:
    """Store a value computed from the element it replaces: complex parts are both bound first."""
    if not val.dtype.is_complex:
        return e.store(val, at, value)
    lets, names = ir.bind(value, "new")
    return lets + e.store(val, at, names)


def _combined(e: Emitter, val: Value, at: Index, value: Any, mode: str) -> Any:
    if mode == "set":
        return value
    old = load_element(e, val, at)
    return lower(COMBINE[mode], [old, value], [val.dtype, val.dtype], val.dtype, None)
