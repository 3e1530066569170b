"""Scans on CPUs, with their elementwise consumers fused: whole rows, or reduce-then-scan.

Rows run in parallel; few long rows are cut into parts that do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, ScanProblem, rows_in_lanes, store_members
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Candidate, family
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.scan import cpu as cpu_scan


@dataclass(frozen=True)
class ScanTuning:
    """Measured on 2-core machines: Neoverse N1 and x86-64 (Cascade Lake, Sapphire Rapids)."""

    part_elements: int = 1 << 15  # of a long row that is cut
    min_parallel_blocks: int = 16  # fewer rows or columns leave cores idle: rows are cut
    unroll_vectors: int = 4  # of adjacent rows that one block scans


TUNING = ScanTuning()


class CpuScanProblem(ScanProblem):
    """A scan with its blocking for vector units. Sums of float32 are accumulated in float64: in a
    running sum, rounding errors grow with the length of a row."""

    @property
    def is_widened(self) -> bool:
        return self.op == "sum" and super().real is dt.float32

    @property
    def real(self) -> DType:
        return dt.float64 if self.is_widened else super().real

    @property
    def lanes(self) -> int:
        """Of a vector of what is stored: widened sums take two registers."""
        return max(1, self.target.vector_bytes // super().real.itemsize)

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
        is_underfilled = (
            blocks if self.last_extent > 1 else self.rows
        ) < TUNING.min_parallel_blocks
        return size if is_underfilled and self.length >= 4 * size else self.length

    @property
    def parts(self) -> int:
        return -(-self.length // self.part)

    def emitter(self) -> Emitter:
        return Emitter(self.layouts, self.val.size <= self.target.small_elements)


def _row_scan(p: CpuScanProblem) -> Kernels:
    """One pass over whole rows."""
    return [_scan_pass(p, f"scan_{p.op}", None, None)]


def _reduce_then_scan(p: CpuScanProblem) -> Kernels:
    """Part totals, their exclusive scan, then every part with its carry-in."""
    totals, carries = (p.temporaries(p.rows, p.parts) for _ in range(2))
    return [
        _scan_pass(p, f"scan_{p.op}_totals", totals, None),
        _carries(p, totals, carries),
        _scan_pass(p, f"scan_{p.op}_parts", None, carries),
    ]


lower_scan = family(
    CpuScanProblem,
    Candidate("row scan", _row_scan, lambda p: p.parts == 1),
    Candidate("reduce-then-scan", _reduce_then_scan),
)


def _scan_pass(
    p: CpuScanProblem, name: str, totals: list[Value] | None, carries: list[Value] | None
) -> LoweredKernel:
    """All parts: only their `totals`, or the results, with `carries` added to them."""
    e = p.emitter()
    g = ir.var("g")
    block, part = divmod(g, e.scalar_arg(p.parts)) if p.parts > 1 else (g, ZERO)
    size, length = e.scalar_arg(p.part), e.dim(p.length)
    span = cpu_scan.ScanSpan(p.op, p.real, p.components, *ir.block_range(part, size, length))
    lane = ir.var("row_lane")
    if p.row_per_lane:
        index, row, lanes, grid = rows_in_lanes(e, p.val.shape, p.axis, block, lane, p.width)
    else:
        index, row, grid = p.index(e, block), block, p.rows
    slot = ir.add(ir.mul(row, e.scalar_arg(p.parts)), part)
    before: list[Stmt] = []
    carry: cpu_scan.Element | None = None
    if carries is not None:
        before, carry = ir.bind([ir.load(e.buffer(m), slot) for m in carries], "carry")

    def read(i: Expr) -> cpu_scan.Element:
        value = e.value(p.source, index(p.position(e, i)))
        return [x.cast(p.real) for x in (value if p.components == 2 else (value,))]

    def write(i: Expr, element: cpu_scan.Element) -> list[Stmt]:
        if totals is not None:
            return []
        if carry is not None:
            element = span.combine(carry, element)
        result: Any = element[0].cast(p.val.dtype)
        if p.components == 2:
            result = tuple(x.cast(dt.real_of(p.val.dtype)) for x in element)
        return store_members(e, p.group, index(p.position(e, i)), result)

    if p.row_per_lane:
        body, last = cpu_scan.scan_lanes(span, read, write)
    elif totals is not None and p.is_widened:
        body, last = cpu_scan.sum_in_lanes(span, read)
    else:
        body, last = cpu_scan.scan_vectors(span, p.lanes, read, write)
    body = [*before, *body]
    if totals is not None:
        body += ir.stores([e.buffer(t, "write") for t in totals], slot, last)
    if p.row_per_lane:
        body = [ir.For(lane, ZERO, lanes, "lanes", body, unroll=p.width // p.lanes)]
    return e.grid_kernel(name, g, body, grid * p.parts, p.group.notes)


def _carries(p: CpuScanProblem, totals: list[Value], carries: list[Value]) -> LoweredKernel:
    """The carry-in of every part, one row per lane."""
    e = p.emitter()
    g, lane = ir.var("g"), ir.var("row_lane")
    count, rows = e.scalar_arg(p.parts), e.dim(p.rows)

    def at(part: Expr) -> Expr:
        return ir.add(ir.mul(lane, count), part)

    body = cpu_scan.exclusive_scan(
        *(p.op, p.real, p.components, count),
        lambda i: [ir.load(e.buffer(t), at(i)) for t in totals],
        lambda i, x: ir.stores([e.buffer(c, "write") for c in carries], at(i), x),
    )
    loop = ir.For(lane, ZERO, rows, "lanes", body)
    return e.grid_kernel(f"scan_{p.op}_carries", g, [loop], 1, (p.val.op,))
