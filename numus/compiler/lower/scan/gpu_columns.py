"""Scans where neighbours in memory belong to different rows: a thread for each row.

Threads of a group take neighbouring rows, so that each step of theirs is a line of memory. Several
elements are read before the first of them is stored, since no load may go before a store that could
be to the same memory. Where rows are too few to keep the device busy they are cut into parts: what
each part comes to is found first, these are scanned likewise, and every part then begins with what
came before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis_gpu import Layouts, elements_along, rows_along
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops.stages import BLOCKS_PER_UNIT
from numus.ir import Expr, Stmt, const
from numus.kernels.scan.cpu import combine
from numus.kernels.scan.gpu_block import RunningReduction
from numus.target import Target

ZERO, ONE = const(0), const(1)

LEAST_WIDE = 32  # neighbours along the last axis: fewer would not fill lines of memory
AT_A_TIME = 32  # words that a thread has under way
FEW_AT_A_TIME = 8  # of what has to be computed first, or is much code to merge
LEAST_PART = 32  # elements of a row: shorter parts would be more totals than elements

Number = list[Expr]
Read = Callable[[Expr], Number]
Write = Callable[[Expr, Number], list[Stmt]]


def in_columns(val: Value, target: Target) -> bool:
    """Whether rows of a scan lie side by side in memory."""
    _, axis, _ = val.params
    last = len(val.shape) - 1
    return axis != last and val.shape[last] >= min(LEAST_WIDE, target.block_size)


def scan_columns(val: Value, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """The kernels of a scan whose rows lie side by side."""
    op, axis, _ = val.params
    scan = RunningReduction(target.block_size, op, val.dtype)
    source = val.inputs[0]

    def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
        index = rows_along(e, row, val.shape, axis)
        _, spot = elements_along(e, val)

        def write(i: Expr, found: Number) -> list[Stmt]:
            result = scan.join(found)
            return e.store(val, index(spot(i)), result if scan.complex else result.cast(val.dtype))

        return lambda i: scan.split(e.value(source, index(spot(i)))), write

    words = scan.parts * max(1, scan.real.itemsize // 4)
    at_a_time = AT_A_TIME // words
    if scan.heavy or source not in layouts:
        at_a_time = min(at_a_time, FEW_AT_A_TIME)
    length = val.shape[axis]
    return _Columns(
        scan, target, layouts, val, length, val.size // length, access, at_a_time
    ).steps()


@dataclass(frozen=True)
class _Columns:
    """Rows of one length, side by side."""

    scan: RunningReduction
    target: Target
    layouts: Layouts
    val: Value
    length: int
    rows: int
    access: Callable[[Emitter, Expr], tuple[Read, Write]]
    at_a_time: int
    level: int = 0  # 1: what parts of these rows come to, and so on

    @property
    def blocks(self) -> int:
        """Groups that stand side by side."""
        return -(-self.rows // self.target.block_size)

    @property
    def part(self) -> int:
        """Elements of a part of a row: all of them where there are rows enough, or they are
        short."""
        units = self.target.num_cores
        if self.blocks >= units or self.length < 4 * LEAST_PART:
            return self.length
        wanted = -(-units * BLOCKS_PER_UNIT // self.blocks)
        size = max(LEAST_PART, -(-self.length // wanted))
        return min(self.length, -(-size // self.at_a_time) * self.at_a_time)

    def steps(self) -> list[LoweredKernel]:
        parts = -(-self.length // self.part)
        if parts == 1:
            return [self._walk(1, None)]
        sums, before = (
            [
                Value.fresh("partial", "partial", (), None, shape, real)
                for p in range(self.scan.parts)
            ]
            for k, shape, real in ((k, (parts, self.rows), self.scan.real) for k in (0, 1))
        )
        layouts: Layouts = dict.fromkeys([*sums, *before], (self.rows, 1))

        def access(e: Emitter, row: Expr) -> tuple[Read, Write]:
            def write(i: Expr, found: Number) -> list[Stmt]:
                pairs = zip(before, found, strict=True)
                return [s for v, x in pairs for s in e.store(v, (i, row), x)]

            return lambda i: [e.value(v, (i, row)) for v in sums], write

        totals = _Columns(
            *(self.scan, self.target, layouts, self.val, parts, self.rows, access),
            *(self.at_a_time, self.level + 1),
        )
        return [
            self._totals(parts, sums),
            *totals.steps(),
            self._walk(parts, before, layouts),
        ]

    def _threads(
        self,
        name: str,
        e: Emitter,
        parts: int,
        body: Callable[[Expr, Expr, tuple[Expr, Expr]], list[Stmt]],
    ) -> LoweredKernel:
        """A kernel: `body` is given a thread's row, the part, and where this begins and ends."""
        group = const(self.target.block_size)
        g, j = ir.var("g"), ir.var("j")
        rows, length = e.dim(self.rows), e.dim(self.length)
        block, part, span = g, ZERO, (ZERO, length)
        if parts > 1:  # neighbouring groups read neighbouring rows
            across, size = e.scalar_arg(self.blocks), e.scalar_arg(self.part)
            block, part = ir.irem(g, across), ir.idiv(g, across)
            first = ir.mul(part, size)
            span = first, ir.minimum(ir.add(first, size), length)
        start = ir.mul(block, group)
        stop = ir.minimum(ir.add(start, group), rows)
        e.extents[j] = rows
        loop = ir.For(j, start, stop, "lanes", body(j, part, span))
        return e.grid_kernel(name, g, [loop], self.blocks * parts, (self.val.op,))

    def _next(self, run: list[ir.Register], value: Number, tag: str) -> tuple[list[Stmt], Number]:
        """Name what a thread has come to with one more element."""
        names: Number = [ir.var(f"{tag}_{p}", r.dtype) for p, r in enumerate(run)]
        new = combine(self.scan.op, [ir.read(r) for r in run], value)
        out: list[Stmt] = [ir.Let(n, x) for n, x in zip(names, new, strict=True)]
        return [*out, *(ir.Set(r, n) for r, n in zip(run, names, strict=True))], names

    def _running(self) -> list[ir.Register]:
        return [ir.Register(f"run{p}", self.scan.real, lanes=True) for p in range(self.scan.parts)]

    def _totals(self, parts: int, sums: list[Value]) -> LoweredKernel:
        """What each part of a row comes to."""
        e = Emitter(self.layouts, block_size=self.target.block_size)
        run, i = self._running(), ir.var("i")

        def body(row: Expr, part: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
            read, _ = self.access(e, row)
            out: list[Stmt] = [ir.Set(r, x) for r, x in zip(run, self.scan.start, strict=True)]
            out.append(ir.For(i, *span, "serial", self._next(run, read(i), "next")[0]))
            for v, r in zip(sums, run, strict=True):
                out += e.store(v, (part, row), ir.read(r))
            return out

        return self._threads(f"scan_{self.scan.op}_totals", e, parts, body)

    def _walk(
        self, parts: int, before: list[Value] | None, layouts: Layouts | None = None
    ) -> LoweredKernel:
        """The scan itself, of whole rows or of parts that begin with what came before them."""
        e = Emitter({**self.layouts, **(layouts or {})}, block_size=self.target.block_size)
        run, at_once = self._running(), const(self.at_a_time)
        i, rest = ir.var("i"), ir.var("rest")

        def body(row: Expr, part: Expr, span: tuple[Expr, Expr]) -> list[Stmt]:
            read, write = self.access(e, row)
            begin = self.scan.start
            if before is not None:
                behind = ir.maximum(ir.sub(part, ONE), ZERO)
                found = [e.value(v, (behind, row)) for v in before]
                pairs = zip(found, self.scan.start, strict=True)
                begin = [ir.select(part > ZERO, x, y) for x, y in pairs]
            out: list[Stmt] = [ir.Set(r, x) for r, x in zip(run, begin, strict=True)]
            start, stop = span
            whole = ir.mul(ir.idiv(ir.sub(stop, start), at_once), at_once)
            end = ir.add(start, whole)
            loads: list[Stmt] = []
            turns: list[Stmt] = []
            for k in range(self.at_a_time):
                at = ir.add(i, const(k))
                value = read(at)
                names: Number = [ir.var(f"x{k}_{p}", v.dtype) for p, v in enumerate(value)]
                loads += [ir.Let(n, v) for n, v in zip(names, value, strict=True)]
                step, found = self._next(run, names, f"next{k}")
                turns += step + write(at, found)
            out.append(ir.For(i, start, end, "serial", [*loads, *turns], step=at_once))
            step, found = self._next(run, read(rest), "next")
            out.append(ir.For(rest, end, stop, "serial", [*step, *write(rest, found)]))
            return out

        return self._threads(f"scan_{self.scan.op}", e, parts, body)
