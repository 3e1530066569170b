"""Scans on GPUs: a block per row, or reduce-then-scan over parts of rows; the list of schedules."""

from __future__ import annotations

from typing import Any

from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ONE, ZERO, Layouts, row_index, scan_order, temporary, without
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scan.gpu_columns import ColumnScan
from numus.compiler.lower.scan.gpu_lookback import LookbackScan
from numus.compiler.lower.scan.gpu_subwarp import SubwarpScan
from numus.compiler.lower.scan.problem import ScanProblem
from numus.compiler.lower.schedule import Fallback, InOrder, Schedule, select
from numus.ir import Expr, Stmt
from numus.kernels.scan.gpu_block import ITEMS_PER_THREAD, TileScan
from numus.shapes import row_major
from numus.target import Target

MIN_BLOCK_THREADS = 32


def lower_scan_gpu(group: FusionGroup, layouts: Layouts, target: Target) -> list[LoweredKernel]:
    """A scan, then its elementwise consumers in kernels of their own."""
    scan, *consumers = group.members
    problem = ScanProblem(
        FusionGroup.of_stored(scan, group.position), without(layouts, scan), target
    )
    kernels = select(SCHEDULES, problem).lower(problem)
    if not consumers:
        return kernels
    rest = FusionGroup.of(consumers, group.stored - {scan}, group.position)
    return kernels + lower_loops(rest, {**layouts, scan: row_major(scan.shape)}, target)


def _part_size(problem: ScanProblem) -> int:
    """Elements of a part such that all parts of all rows fill the device."""
    target = problem.target
    tile = target.block_size * ITEMS_PER_THREAD
    wanted = -(-target.num_cores * LOOPS.blocks_per_sm // problem.rows)
    size = max(4 * tile, -(-problem.length // wanted))
    return -(-size // tile) * tile


class BlockScan(InOrder):
    """A block per row."""

    name = "block per row"

    def supports(self, problem: ScanProblem, target: Target) -> bool:
        return problem.length <= _part_size(problem)

    def lower(self, problem: ScanProblem) -> list[LoweredKernel]:
        return [_downsweep(problem, problem.layouts, 1, problem.length, None)]


class ReduceThenScan(Fallback):
    """Part totals, their exclusive scan, then every part with its carry-in."""

    name = "reduce-then-scan"

    def lower(self, problem: ScanProblem) -> list[LoweredKernel]:
        size = _part_size(problem)
        parts = -(-problem.length // size)
        sums, carries = (
            [temporary((problem.rows, parts), problem.real) for _ in range(problem.components)]
            for _ in range(2)
        )
        layouts = {**problem.layouts, **dict.fromkeys([*sums, *carries], (parts, 1))}
        return [
            _upsweep(problem, size, sums),
            _carries(problem, layouts, sums, carries),
            _downsweep(problem, layouts, parts, size, carries),
        ]


SCHEDULES: tuple[Schedule[ScanProblem], ...] = (
    ColumnScan(),
    SubwarpScan(),
    BlockScan(),
    LookbackScan(),
    ReduceThenScan(),
)


def _upsweep(p: ScanProblem, size: int, sums: list[Value]) -> LoweredKernel:
    """Part totals."""
    val, threads = p.val, p.target.block_size
    e = Emitter(p.layouts, block_size=threads)
    scan = TileScan(threads, p.op, val.dtype)
    g = ir.var("g")
    parts, width = e.scalar_arg(sums[0].shape[1]), e.scalar_arg(size)
    row, part = ir.idiv(g, parts), ir.irem(g, parts)
    index = row_index(e, row, val.shape, p.axis)
    length, position = scan_order(e, val)
    start = ir.mul(part, width)
    stop = ir.minimum(ir.add(start, width), length)
    names = [ir.var(f"all{i}", v.dtype) for i, v in enumerate(sums)]
    body = scan.reduce(start, stop, lambda i: e.value(val.inputs[0], index(position(i))), names)
    for v, name in zip(sums, names, strict=True):
        body += e.store(v, (row, part), name)
    return e.grid_kernel(f"scan_{p.op}_totals", g, body, sums[0].size, (val.op,))


def _carries(
    p: ScanProblem, layouts: Layouts, sums: list[Value], carries: list[Value]
) -> LoweredKernel:
    """The carry-in of every part, a block per row."""
    threads = p.target.block_size
    e = Emitter(layouts, block_size=threads)
    scan = TileScan(threads, p.op, p.val.dtype)
    rows, parts = sums[0].shape
    g = ir.var("g")
    row = g if rows > 1 else ZERO

    def read(i: Expr) -> Any:
        return scan.join([e.value(v, (row, i)) for v in sums])

    def write(i: Expr, value: Any) -> list[Stmt]:
        out: list[Stmt] = []
        for v, x in zip(carries, scan.split(value), strict=True):
            out += e.store(v, (row, ir.add(i, ONE)), x)
        return out

    count = e.dim(parts)
    body: list[Stmt] = [*scan.init_carry()]
    for v, x in zip(carries, scan.identity, strict=True):
        body += e.store(v, (row, ZERO), x)
    body.append(scan.scan_tiles(ZERO, ir.sub(count, ONE), read, write))
    e.scratch += scan.staging
    return e.grid_kernel(f"scan_{p.op}_carries", g, body, rows, ("combine",))


def _downsweep(
    p: ScanProblem, layouts: Layouts, parts: int, size: int, carries: list[Value] | None
) -> LoweredKernel:
    """Whole rows, or parts with their carry-in."""
    val = p.val
    threads = p.target.block_size
    while threads > MIN_BLOCK_THREADS and threads * ITEMS_PER_THREAD // 2 >= size:
        threads //= 2
    e = Emitter(layouts, block_size=threads)
    scan = TileScan(threads, p.op, val.dtype)
    g = ir.var("g")
    length, position = scan_order(e, val)
    if carries is None:
        row, start, stop, carry = g, ZERO, length, None
    else:
        count, width = e.scalar_arg(parts), e.scalar_arg(size)
        row, part = ir.idiv(g, count), ir.irem(g, count)
        start = ir.mul(part, width)
        stop = ir.minimum(ir.add(start, width), length)
        carry = [e.value(v, (row if p.rows > 1 else ZERO, part)) for v in carries]
    index = row_index(e, row, val.shape, p.axis)

    def write(i: Expr, value: Any) -> list[Stmt]:
        result = value if val.dtype.is_complex else value.cast(val.dtype)
        return e.store(val, index(position(i)), result)

    def read(i: Expr) -> Any:
        return e.value(val.inputs[0], index(position(i)))

    body = [*scan.init_carry(carry), scan.scan_tiles(start, stop, read, write)]
    e.scratch += scan.staging
    return e.grid_kernel(f"scan_{p.op}", g, body, p.rows * parts, (val.op,))
