"""Scan groups: a running reduction and the elementwise values that follow from it, in one pass."""

from __future__ import annotations

import math
from typing import Any

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup, index_of
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import At, Rows, temporary
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import SMALL
from numus.ir import Expr, Stmt, const
from numus.kernels.scan import cpu as cpu_scan
from numus.shapes import Shape
from numus.target import Target

ZERO, ONE = const(0), const(1)

PART = 1 << 15  # elements after which a long row is cut
FEW_BLOCKS = 16  # rows or columns that leave cores idle
UNROLL = 4  # vectors of neighbouring rows that are walked together


def lower_scan(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """Rows in parallel, and parts of them where rows are few and long."""
    return _Scan(group, layouts, target).steps()


class _Scan:
    def __init__(self, group: FusionGroup, layouts: dict[Value, Shape], target: Target) -> None:
        self.group = group
        self.val = group.members[0]
        self.source = self.val.inputs[0]
        self.op, self.axis, self.reverse = self.val.params
        self.layouts = group.input_layouts(layouts)
        self.shape = self.val.shape
        self.length = self.shape[self.axis]
        self.real = dt.compute_dtype(dt.real_of(self.val.dtype))
        self.numbers = 2 if self.val.dtype.is_complex else 1
        self.lanes = max(1, target.vector_bytes // self.real.itemsize)
        rows = math.prod(n for i, n in enumerate(self.shape) if i != self.axis)
        last = self.shape[-1] if self.axis != len(self.shape) - 1 else 1
        # lanes each have a row where neighbours in memory are in different rows, or rows are short
        self.side_by_side = last > 1 or (self.length < 2 * self.lanes <= rows)
        self.width = UNROLL * self.lanes if last >= UNROLL * self.lanes else self.lanes
        blocks = math.prod(self.shape[:-1]) // max(self.length, 1) * -(-last // self.width)
        size = max(1, PART // self.width) if self.side_by_side else PART
        few = (blocks if last > 1 else rows) < FEW_BLOCKS
        self.part = size if few and self.length >= 4 * size else self.length
        self.parts = -(-self.length // self.part)

    def steps(self) -> list[LoweredKernel]:
        if self.parts == 1:
            return [self._walk(f"scan_{self.op}", None, None)]
        rows = math.prod(n for i, n in enumerate(self.shape) if i != self.axis)
        totals, before = (
            [temporary((rows, self.parts), self.real) for _ in range(self.numbers)]
            for _ in range(2)
        )
        return [
            self._walk(f"scan_{self.op}_totals", totals, None),
            self._before(totals, before),
            self._walk(f"scan_{self.op}_parts", None, before),
        ]

    def _emitter(self) -> Emitter:
        return Emitter(self.layouts, self.val.size <= SMALL)

    # -- one pass over the rows -------------------------------------------------------------------

    def _walk(
        self, name: str, totals: list[Value] | None, before: list[Value] | None
    ) -> LoweredKernel:
        """Walk every part: for its total, or to store results with what comes before it."""
        e = self._emitter()
        rows = Rows(e, self.shape, self.axis)
        g = ir.var("g")
        block, part = g, ZERO
        if self.parts > 1:
            count = e.scalar_arg(self.parts)
            block, part = ir.idiv(g, count), ir.irem(g, count)
        size, length = e.scalar_arg(self.part), e.dim(self.length)
        start = ir.mul(part, size)
        stop = ir.minimum(ir.add(start, size), length)
        run = cpu_scan.Running(self.op, self.real, self.numbers, start, stop)
        lane = ir.var("row_lane")
        if self.side_by_side:
            index, row, lanes, grid = rows.side_by_side(block, lane, self.width)
        else:
            index, row, grid = rows.one(block), block, rows.count
        slot = ir.add(ir.mul(row, e.scalar_arg(self.parts)), part)
        offset = self._load(e, before, slot)

        def read(at: Expr) -> cpu_scan.Number:
            return self._number(e.value(self.source, self._at(index, length, at)))

        def write(at: Expr, number: cpu_scan.Number) -> list[Stmt]:
            if totals is not None:
                return []
            if offset is not None:
                number = run.combine(offset, number)
            return self._finish(e, self._at(index, length, at), number)

        if self.side_by_side:
            body, last = cpu_scan.across(run, read, write)
        else:
            body, last = cpu_scan.along(run, self.lanes, read, write)
        if totals is not None:
            body += [
                ir.Store(e.buffer(t, "write"), slot, x) for t, x in zip(totals, last, strict=True)
            ]
        if self.side_by_side:
            unroll = self.width // self.lanes
            body = [ir.For(lane, ZERO, lanes, "lanes", body, unroll=unroll)]
        return e.grid_kernel(name, g, body, grid * self.parts, self.group.notes)

    def _at(self, index: At, length: Expr, at: Expr) -> tuple[Expr, ...]:
        return index(ir.sub(ir.sub(length, ONE), at) if self.reverse else at)

    def _number(self, value: Any) -> cpu_scan.Number:
        return list(value) if self.val.dtype.is_complex else [value.cast(self.real)]

    def _load(self, e: Emitter, memory: list[Value] | None, slot: Expr) -> cpu_scan.Number | None:
        return None if memory is None else [ir.load(e.buffer(m), slot) for m in memory]

    def _finish(self, e: Emitter, index: tuple[Expr, ...], number: cpu_scan.Number) -> list[Stmt]:
        """Store what the group is asked for at one place."""
        result: Any = tuple(number) if self.val.dtype.is_complex else number[0].cast(self.val.dtype)
        e.rebind(self.val, result)
        point = [i for i, n in zip(index, self.shape, strict=True) if n != 1]
        out: list[Stmt] = []
        for v in self.group.members:
            if v in self.group.stored:
                at = index_of(v.shape, point)
                out += e.store(v, at, result if v is self.val else e.value(v, at))
        return out

    # -- between the passes -----------------------------------------------------------------------

    def _before(self, totals: list[Value], before: list[Value]) -> LoweredKernel:
        """What comes before each part: a scan of the totals, rows side by side."""
        e = self._emitter()
        g, lane = ir.var("g"), ir.var("row_lane")
        count = e.scalar_arg(self.parts)
        rows = e.dim(totals[0].shape[0])

        def at(part: Expr) -> Expr:
            return ir.add(ir.mul(lane, count), part)

        body = cpu_scan.before_parts(
            self.op,
            self.real,
            self.numbers,
            count,
            lambda i: [ir.load(e.buffer(t), at(i)) for t in totals],
            lambda i, x: [
                ir.Store(e.buffer(b, "write"), at(i), v) for b, v in zip(before, x, strict=True)
            ],
        )
        loop = ir.For(lane, ZERO, rows, "lanes", body)
        return e.grid_kernel(f"scan_{self.op}_before", g, [loop], 1, (self.val.op,))
