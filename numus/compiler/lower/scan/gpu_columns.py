"""Column scans: adjacent elements belong to different rows, and every thread scans one row.

Accesses of a warp are coalesced. Several loads are issued before the first store, which the
compiler may not reorder. Where columns are too few to fill the device, rows are cut and scanned by
reduce-then-scan, recursively.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from numus import ir
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, ScanProblem
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import Element, Read, Write, combine
from numus.kernels.scan.gpu_block import TileScan

Body = Callable[[Expr, Expr, tuple[Expr, Expr]], list[Stmt]]  # of a row, part, (start, stop)


@dataclass(frozen=True)
class ColumnScanTuning:
    """Measured on one H200."""

    min_columns: int = 32  # along the last axis: fewer would not fill cache lines
    words_in_flight: int = 32  # loaded by a thread before it stores
    max_computed_in_flight: int = 8  # elements with a large body: computed operands, logsumexp
    min_part: int = 32  # elements: shorter parts would be more totals than elements


TUNING = ColumnScanTuning()


def _supports(p: ScanProblem) -> bool:
    last = len(p.val.shape) - 1
    return p.axis != last and p.val.shape[last] >= min(TUNING.min_columns, p.target.block_size)


def _lower(p: ScanProblem) -> Kernels:
    """A thread per row, adjacent threads on adjacent rows."""
    scan = TileScan(p.target.block_size, p.op, p.val.dtype)

    def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
        read, write = p.access(e, row)
        return lambda i: scan.split(read(i)), lambda i, found: write(i, scan.join(found))

    words = scan.components * max(1, scan.dtype.itemsize // 4)
    in_flight = TUNING.words_in_flight // words
    if scan.large_body or p.source not in p.layouts:
        in_flight = min(in_flight, TUNING.max_computed_in_flight)
    return _Columns(p, scan, p.layouts, p.length, access, in_flight).kernels()


COLUMN_SCAN = Candidate("thread per column", _lower, _supports)


@dataclass(frozen=True)
class _Columns:
    """Adjacent rows of one length."""

    p: ScanProblem
    scan: TileScan
    layouts: Layouts
    length: int
    access: Callable[[Emitter, Expr], tuple[Read, Write]]
    in_flight: int  # elements

    @property
    def blocks(self) -> int:
        return -(-self.p.rows // self.p.target.block_size)

    @property
    def part(self) -> int:
        """Elements of a part: the whole row where rows fill the device or are short."""
        cores = self.p.target.num_cores
        if self.blocks >= cores or self.length < 4 * TUNING.min_part:
            return self.length
        wanted = -(-cores * LOOPS.blocks_per_sm // self.blocks)
        size = max(TUNING.min_part, -(-self.length // wanted))
        return min(self.length, -(-size // self.in_flight) * self.in_flight)

    def kernels(self) -> Kernels:
        parts = -(-self.length // self.part)
        if parts == 1:
            return [self._downsweep(1, None, {})]
        sums, prefixes = (self.p.temporaries(parts, self.p.rows) for _ in range(2))
        layouts: Layouts = dict.fromkeys([*sums, *prefixes], (self.p.rows, 1))

        def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
            def write(i: Expr, found: Element) -> list[Stmt]:
                pairs = zip(prefixes, found, strict=True)
                return [s for v, x in pairs for s in e.store(v, (i, row), x)]

            return lambda i: [e.value(v, (i, row)) for v in sums], write

        totals = replace(self, layouts=layouts, length=parts, access=access)
        return [
            self._upsweep(parts, sums),
            *totals.kernels(),
            self._downsweep(parts, prefixes, layouts),
        ]

    def _emitter(self, layouts: Layouts) -> Emitter:
        return Emitter({**self.layouts, **layouts}, block_size=self.p.target.block_size)

    def _kernel(self, name: str, e: Emitter, parts: int, body: Body) -> LoweredKernel:
        """A thread per row and part."""
        threads = const(self.p.target.block_size)
        g, j = ir.var("g"), ir.var("j")
        rows, length = e.dim(self.p.rows), e.dim(self.length)
        block, part, span = g, ZERO, (ZERO, length)
        if parts > 1:  # consecutive blocks read adjacent rows
            blocks, size = e.scalar_arg(self.blocks), e.scalar_arg(self.part)
            part, block = divmod(g, blocks)
            span = ir.block_range(part, size, length)
        e.extents[j] = rows
        loop = ir.For(j, *ir.block_range(block, threads, rows), "lanes", body(j, part, span))
        name = f"scan_{self.p.op}{name}"
        return e.grid_kernel(name, g, [loop], self.blocks * parts, (self.p.val.op,))

    def _step(self, acc: list[ir.Register], value: Element, tag: str) -> tuple[list[Stmt], Element]:
        """Accumulate one element; the new prefix."""
        return ir.assign(acc, combine(self.scan.op, ir.reads(acc), value), tag)

    def _accumulators(self) -> list[ir.Register]:
        scan = self.scan
        return [ir.Register(f"acc{p}", scan.dtype, lanes=True) for p in range(scan.components)]

    def _upsweep(self, parts: int, sums: list[Value]) -> LoweredKernel:
        """Part totals."""
        e = self._emitter({})
        acc, i = self._accumulators(), ir.var("i")

        def body(row: Expr, part: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
            read, _ = self.access(e, row)
            out = ir.sets(acc, self.scan.identity)
            out.append(ir.For(i, *span, "serial", self._step(acc, read(i), "next")[0]))
            for v, r in zip(sums, acc, strict=True):
                out += e.store(v, (part, row), ir.read(r))
            return out

        return self._kernel("_totals", e, parts, body)

    def _downsweep(
        self, parts: int, prefixes: list[Value] | None, layouts: Layouts
    ) -> LoweredKernel:
        """Whole rows, or parts that begin with the prefix of the part before them."""
        e = self._emitter(layouts)
        acc, in_flight = self._accumulators(), const(self.in_flight)
        i, rest = ir.var("i"), ir.var("rest")

        def body(row: Expr, part: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
            read, write = self.access(e, row)
            initial = self.scan.identity
            if prefixes is not None:
                previous = ir.maximum(ir.sub(part, ONE), ZERO)
                found = [e.value(v, (previous, row)) for v in prefixes]
                pairs = zip(found, self.scan.identity, strict=True)
                initial = [ir.select(part > ZERO, x, y) for x, y in pairs]
            start, stop = span
            whole = ir.mul(ir.idiv(ir.sub(stop, start), in_flight), in_flight)
            end = ir.add(start, whole)
            loads: list[Stmt] = []
            steps: list[Stmt] = []
            for k in range(self.in_flight):
                at = ir.add(i, const(k))
                lets, names = ir.bind(read(at), f"x{k}")
                loads += lets
                step, found = self._step(acc, names, f"next{k}")
                steps += step + write(at, found)
            step, found = self._step(acc, read(rest), "next")
            return [
                *ir.sets(acc, initial),
                ir.For(i, start, end, "serial", [*loads, *steps], step=in_flight),
                ir.For(rest, end, stop, "serial", [*step, *write(rest, found)]),
            ]

        return self._kernel("", e, parts, body)
