"""Scans on CPUs, with their elementwise consumers fused: whole rows, or reduce-then-scan.

Rows run in parallel; few long rows are cut into parts that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO, Layouts, row_index, rows_in_lanes, temporary
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scan.problem import ScanProblem
from numus.compiler.lower.schedule import Fallback, InOrder, Schedule, select
from numus.ir import Expr, Stmt
from numus.kernels.scan import cpu as cpu_scan
from numus.target import Target


@dataclass(frozen=True)
class ScanTuning:
    """Measured on 2-core machines: Neoverse N1 and x86-64 (Cascade Lake, Sapphire Rapids)."""

    part_elements: int = 1 << 15  # of a long row that is cut
    min_parallel_blocks: int = 16  # fewer rows or columns leave cores idle: rows are cut
    unroll_vectors: int = 4  # of adjacent rows that one block scans


TUNING = ScanTuning()


def lower_scan(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    problem = CpuScanProblem(group, group.input_layouts(layouts), target)
    return select(SCHEDULES, problem).lower(problem)


class CpuScanProblem(ScanProblem):
    """A scan with its blocking for vector units."""

    @property
    def lanes(self) -> int:
        return max(1, self.target.vector_bytes // self.real.itemsize)

    @property
    def last_extent(self) -> int:
        """Rows that are adjacent in memory."""
        shape = self.val.shape
        return shape[-1] if self.axis != len(shape) - 1 else 1

    @cached_property
    def row_per_lane(self) -> bool:
        """Adjacent elements belong to different rows, or rows are shorter than two vectors."""
        return self.last_extent > 1 or (self.length < 2 * self.lanes <= self.rows)

    @property
    def width(self) -> int:
        """Rows of a block."""
        unrolled = TUNING.unroll_vectors * self.lanes
        return unrolled if self.last_extent >= unrolled else self.lanes

    @cached_property
    def part(self) -> int:
        """Elements of a part: the whole row where there are rows enough."""
        outer = math.prod(self.val.shape[:-1]) // max(self.length, 1)
        blocks = outer * -(-self.last_extent // self.width)
        size = TUNING.part_elements
        if self.row_per_lane:
            size = max(1, size // self.width)
        few = (blocks if self.last_extent > 1 else self.rows) < TUNING.min_parallel_blocks
        return size if few and self.length >= 4 * size else self.length

    @property
    def parts(self) -> int:
        return -(-self.length // self.part)


class RowScan(InOrder):
    """One pass over whole rows."""

    name = "row scan"

    def supports(self, problem: CpuScanProblem, target: Target) -> bool:
        return problem.parts == 1

    def lower(self, problem: CpuScanProblem) -> list[LoweredKernel]:
        return [_scan_pass(problem, f"scan_{problem.op}", None, None)]


class ReduceThenScan(Fallback):
    """Part totals, their exclusive scan, then every part with its carry-in."""

    name = "reduce-then-scan"

    def lower(self, problem: CpuScanProblem) -> list[LoweredKernel]:
        totals, carries = (
            [
                temporary((problem.rows, problem.parts), problem.real)
                for _ in range(problem.components)
            ]
            for _ in range(2)
        )
        return [
            _scan_pass(problem, f"scan_{problem.op}_totals", totals, None),
            _carries(problem, totals, carries),
            _scan_pass(problem, f"scan_{problem.op}_parts", None, carries),
        ]


SCHEDULES: tuple[Schedule[CpuScanProblem], ...] = (RowScan(), ReduceThenScan())


def _emitter(p: ScanProblem) -> Emitter:
    return Emitter(p.layouts, p.val.size <= LOOPS.small_elements)


def _scan_pass(
    p: CpuScanProblem, name: str, totals: list[Value] | None, carries: list[Value] | None
) -> LoweredKernel:
    """All parts: only their `totals`, or the results, with `carries` added to them."""
    e = _emitter(p)
    g = ir.var("g")
    block, part = g, ZERO
    if p.parts > 1:
        count = e.scalar_arg(p.parts)
        block, part = ir.idiv(g, count), ir.irem(g, count)
    size, length = e.scalar_arg(p.part), e.dim(p.length)
    start = ir.mul(part, size)
    stop = ir.minimum(ir.add(start, size), length)
    span = cpu_scan.ScanSpan(p.op, p.real, p.components, start, stop)
    lane = ir.var("row_lane")
    if p.row_per_lane:
        index, row, lanes, grid = rows_in_lanes(e, p.val.shape, p.axis, block, lane, p.width)
    else:
        index, row, grid = row_index(e, block, p.val.shape, p.axis), block, p.rows
    slot = ir.add(ir.mul(row, e.scalar_arg(p.parts)), part)
    carry = None if carries is None else [ir.load(e.buffer(m), slot) for m in carries]
    _, _, reverse = p.val.params

    def at(i: Expr) -> tuple[Expr, ...]:
        return index(ir.sub(ir.sub(length, ONE), i) if reverse else i)

    def read(i: Expr) -> cpu_scan.Element:
        value = e.value(p.val.inputs[0], at(i))
        return list(value) if p.components == 2 else [value.cast(p.real)]

    def write(i: Expr, element: cpu_scan.Element) -> list[Stmt]:
        if totals is not None:
            return []
        if carry is not None:
            element = span.combine(carry, element)
        return _store_members(p, e, at(i), element)

    if p.row_per_lane:
        body, last = cpu_scan.scan_lanes(span, read, write)
    else:
        body, last = cpu_scan.scan_vectors(span, p.lanes, read, write)
    if totals is not None:
        body += [ir.Store(e.buffer(t, "write"), slot, x) for t, x in zip(totals, last, strict=True)]
    if p.row_per_lane:
        body = [ir.For(lane, ZERO, lanes, "lanes", body, unroll=p.width // p.lanes)]
    return e.grid_kernel(name, g, body, grid * p.parts, p.group.notes)


def _store_members(
    p: ScanProblem, e: Emitter, index: tuple[Expr, ...], element: cpu_scan.Element
) -> list[Stmt]:
    """Store the group's outputs at one index."""
    result: Any = tuple(element) if p.components == 2 else element[0].cast(p.val.dtype)
    e.rebind(p.val, result)
    point = [i for i, n in zip(index, p.val.shape, strict=True) if n != 1]
    out: list[Stmt] = []
    for v in p.group.members:
        if v in p.group.stored:
            at = index_of(v.shape, point)
            out += e.store(v, at, result if v is p.val else e.value(v, at))
    return out


def _carries(p: CpuScanProblem, totals: list[Value], carries: list[Value]) -> LoweredKernel:
    """The carry-in of every part, one row per lane."""
    e = _emitter(p)
    g, lane = ir.var("g"), ir.var("row_lane")
    count = e.scalar_arg(p.parts)
    rows = e.dim(totals[0].shape[0])

    def at(part: Expr) -> Expr:
        return ir.add(ir.mul(lane, count), part)

    body = cpu_scan.exclusive_scan(
        *(p.op, p.real, p.components, count),
        lambda i: [ir.load(e.buffer(t), at(i)) for t in totals],
        lambda i, x: [
            ir.Store(e.buffer(c, "write"), at(i), v) for c, v in zip(carries, x, strict=True)
        ],
    )
    loop = ir.For(lane, ZERO, rows, "lanes", body)
    return e.grid_kernel(f"scan_{p.op}_carries", g, [loop], 1, (p.val.op,))
