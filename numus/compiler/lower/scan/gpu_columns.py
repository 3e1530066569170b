"""Column scans: adjacent elements belong to different rows, and every thread scans one row.

Accesses of a warp are coalesced. Several loads are issued before the first store, which the
compiler may not reorder. Where columns are too few to fill the device, rows are cut and scanned by
reduce-then-scan, recursively.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO, Layouts, row_index, scan_order, temporary
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scan.problem import ScanProblem
from numus.compiler.lower.schedule import InOrder
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import Element, Read, Write, combine
from numus.kernels.scan.gpu_block import TileScan
from numus.target import Target


@dataclass(frozen=True)
class ColumnScanTuning:
    """Measured on one H200."""

    min_columns: int = 32  # along the last axis: fewer would not fill cache lines
    words_in_flight: int = 32  # loaded by a thread before it stores
    max_computed_in_flight: int = 8  # elements with a large body: computed operands, logsumexp
    min_part: int = 32  # elements: shorter parts would be more totals than elements


TUNING = ColumnScanTuning()


class ColumnScan(InOrder):
    """A thread per row, adjacent threads on adjacent rows."""

    name = "thread per column"

    def supports(self, problem: ScanProblem, target: Target) -> bool:
        val = problem.val
        last = len(val.shape) - 1
        min_columns = min(TUNING.min_columns, target.block_size)
        return problem.axis != last and val.shape[last] >= min_columns

    def lower(self, problem: ScanProblem) -> list[LoweredKernel]:
        val, layouts = problem.val, problem.layouts
        scan = TileScan(problem.target.block_size, problem.op, val.dtype)
        source = val.inputs[0]

        def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
            index = row_index(e, row, val.shape, problem.axis)
            _, position = scan_order(e, val)

            def write(i: Expr, found: Element) -> list[Stmt]:
                result = scan.join(found)
                result = result if scan.complex else result.cast(val.dtype)
                return e.store(val, index(position(i)), result)

            return lambda i: scan.split(e.value(source, index(position(i)))), write

        words = scan.components * max(1, scan.dtype.itemsize // 4)
        in_flight = TUNING.words_in_flight // words
        if scan.large_body or source not in layouts:
            in_flight = min(in_flight, TUNING.max_computed_in_flight)
        return _Columns(
            *(scan, problem.target, layouts, val, problem.length, problem.rows, access, in_flight)
        ).kernels()


@dataclass(frozen=True)
class _Columns:
    """Adjacent rows of one length."""

    scan: TileScan
    target: Target
    layouts: Layouts
    val: Value
    length: int
    rows: int
    access: Callable[[Emitter, Expr], tuple[Read, Write]]
    in_flight: int  # elements

    @property
    def blocks(self) -> int:
        return -(-self.rows // self.target.block_size)

    @property
    def part(self) -> int:
        """Elements of a part: the whole row where rows fill the device or are short."""
        cores = self.target.num_cores
        if self.blocks >= cores or self.length < 4 * TUNING.min_part:
            return self.length
        wanted = -(-cores * LOOPS.blocks_per_sm // self.blocks)
        size = max(TUNING.min_part, -(-self.length // wanted))
        return min(self.length, -(-size // self.in_flight) * self.in_flight)

    def kernels(self) -> list[LoweredKernel]:
        parts = -(-self.length // self.part)
        if parts == 1:
            return [self._downsweep(1, None, {})]
        sums, prefixes = (
            [temporary((parts, self.rows), self.scan.dtype) for _ in range(self.scan.components)]
            for _ in range(2)
        )
        layouts: Layouts = dict.fromkeys([*sums, *prefixes], (self.rows, 1))

        def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
            def write(i: Expr, found: Element) -> list[Stmt]:
                pairs = zip(prefixes, found, strict=True)
                return [s for v, x in pairs for s in e.store(v, (i, row), x)]

            return lambda i: [e.value(v, (i, row)) for v in sums], write

        totals = _Columns(
            *(self.scan, self.target, layouts, self.val, parts, self.rows, access, self.in_flight)
        )
        return [
            self._upsweep(parts, sums),
            *totals.kernels(),
            self._downsweep(parts, prefixes, layouts),
        ]

    def _kernel(
        self,
        name: str,
        e: Emitter,
        parts: int,
        body: Callable[[Expr, Expr, tuple[Expr, Expr]], list[Stmt]],
    ) -> LoweredKernel:
        """A thread per row and part: `body(row, part, (start, stop))`."""
        threads = const(self.target.block_size)
        g, j = ir.var("g"), ir.var("j")
        rows, length = e.dim(self.rows), e.dim(self.length)
        block, part, span = g, ZERO, (ZERO, length)
        if parts > 1:  # consecutive blocks read adjacent rows
            blocks, size = e.scalar_arg(self.blocks), e.scalar_arg(self.part)
            block, part = ir.irem(g, blocks), ir.idiv(g, blocks)
            first = ir.mul(part, size)
            span = first, ir.minimum(ir.add(first, size), length)
        start = ir.mul(block, threads)
        stop = ir.minimum(ir.add(start, threads), rows)
        e.extents[j] = rows
        loop = ir.For(j, start, stop, "lanes", body(j, part, span))
        return e.grid_kernel(name, g, [loop], self.blocks * parts, (self.val.op,))

    def _step(self, acc: list[ir.Register], value: Element, tag: str) -> tuple[list[Stmt], Element]:
        """Accumulate one element; the new prefix."""
        names: Element = [ir.var(f"{tag}_{p}", r.dtype) for p, r in enumerate(acc)]
        new = combine(self.scan.op, [ir.read(r) for r in acc], value)
        out: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
        return [*out, *(ir.Set(r, n) for r, n in zip(acc, names, strict=True))], names

    def _accumulators(self) -> list[ir.Register]:
        scan = self.scan
        return [ir.Register(f"acc{p}", scan.dtype, lanes=True) for p in range(scan.components)]

    def _upsweep(self, parts: int, sums: list[Value]) -> LoweredKernel:
        """Part totals."""
        e = Emitter(self.layouts, block_size=self.target.block_size)
        acc, i = self._accumulators(), ir.var("i")

        def body(row: Expr, part: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
            read, _ = self.access(e, row)
            out: list[Stmt] = [ir.Set(r, x) for r, x in zip(acc, self.scan.identity, strict=True)]
            out.append(ir.For(i, *span, "serial", self._step(acc, read(i), "next")[0]))
            for v, r in zip(sums, acc, strict=True):
                out += e.store(v, (part, row), ir.read(r))
            return out

        return self._kernel(f"scan_{self.scan.op}_totals", e, parts, body)

    def _downsweep(
        self, parts: int, prefixes: list[Value] | None, layouts: Layouts
    ) -> LoweredKernel:
        """Whole rows, or parts that begin with the prefix of the part before them."""
        e = Emitter({**self.layouts, **layouts}, block_size=self.target.block_size)
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
            out: list[Stmt] = [ir.Set(r, x) for r, x in zip(acc, initial, strict=True)]
            start, stop = span
            whole = ir.mul(ir.idiv(ir.sub(stop, start), in_flight), in_flight)
            end = ir.add(start, whole)
            loads: list[Stmt] = []
            steps: list[Stmt] = []
            for k in range(self.in_flight):
                at = ir.add(i, const(k))
                value = read(at)
                names: Element = [ir.var(f"x{k}_{p}", v.dtype) for p, v in enumerate(value)]
                loads += [ir.Let(n, v) for n, v in zip(names, value, strict=True)]
                step, found = self._step(acc, names, f"next{k}")
                steps += step + write(at, found)
            out.append(ir.For(i, start, end, "serial", [*loads, *steps], step=in_flight))
            step, found = self._step(acc, read(rest), "next")
            out.append(ir.For(rest, end, stop, "serial", [*step, *write(rest, found)]))
            return out

        return self._kernel(f"scan_{self.scan.op}", e, parts, body)
