"""Scans on GPUs: a block per row, or reduce-then-scan over parts of rows; the list of schedules."""

from __future__ import annotations

from typing import Any

from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.axis import ONE, ZERO, ScanProblem
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.loops.tuning import TUNING as LOOPS
from numus.compiler.lower.scan.gpu_columns import COLUMN_SCAN
from numus.compiler.lower.scan.gpu_lookback import LOOKBACK_SCAN
from numus.compiler.lower.scan.gpu_subwarp import SUBWARP_SCAN
from numus.compiler.lower.schedule import Candidate, family
from numus.ir import Expr, Stmt
from numus.kernels.scan.gpu_block import ITEMS_PER_THREAD, TileScan
from numus.shapes import row_major
from numus.target import Target

MIN_BLOCK_THREADS = 32


def lower_scan_gpu(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """A scan, then its elementwise consumers in kernels of their own."""
    scan, *consumers = group.members
    kernels = _lower_rows(FusionGroup.of_stored(scan, group.position), layouts, target)
    if not consumers:
        return kernels
    rest = FusionGroup.of(consumers, group.stored - {scan}, group.position)
    return kernels + lower_loops(rest, {**layouts, scan: row_major(scan.shape)}, target)


def _part_size(p: ScanProblem) -> int:
    """Elements of a part such that all parts of all rows fill the device."""
    tile = p.target.block_size * ITEMS_PER_THREAD
    wanted = -(-p.target.num_cores * LOOPS.blocks_per_sm // p.rows)
    size = max(4 * tile, -(-p.length // wanted))
    return -(-size // tile) * tile


def _block_scan(p: ScanProblem) -> Kernels:
    """A block per row."""
    return [_downsweep(p, p.layouts, 1, p.length, None)]


def _reduce_then_scan(p: ScanProblem) -> Kernels:
    """Part totals, their exclusive scan, then every part with its carry-in."""
    size = _part_size(p)
    parts = -(-p.length // size)
    sums, carries = (p.temporaries(p.rows, parts) for _ in range(2))
    layouts = {**p.layouts, **dict.fromkeys([*sums, *carries], (parts, 1))}
    return [
        _upsweep(p, size, sums),
        _carries(p, layouts, sums, carries),
        _downsweep(p, layouts, parts, size, carries),
    ]


_lower_rows = family(
    ScanProblem,
    COLUMN_SCAN,
    SUBWARP_SCAN,
    Candidate("block per row", _block_scan, lambda p: p.length <= _part_size(p)),
    LOOKBACK_SCAN,
    Candidate("reduce-then-scan", _reduce_then_scan),
)


def _upsweep(p: ScanProblem, size: int, sums: list[Value]) -> LoweredKernel:
    """Part totals."""
    threads = p.target.block_size
    e = Emitter(p.layouts, block_size=threads)
    scan = TileScan(threads, p.op, p.val.dtype)
    g = ir.var("g")
    parts, width = e.scalar_arg(sums[0].shape[1]), e.scalar_arg(size)
    row, part = divmod(g, parts)
    read, _ = p.access(e, row)
    start, stop = ir.block_range(part, width, e.dim(p.length))
    names = ir.variables("all", sums)
    body = scan.reduce(start, stop, read, names)
    for v, name in zip(sums, names, strict=True):
        body += e.store(v, (row, part), name)
    return e.grid_kernel(f"scan_{p.op}_totals", g, body, sums[0].size, (p.val.op,))


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

    def store(i: Expr, values: list[Expr]) -> list[Stmt]:
        pairs = zip(carries, values, strict=True)
        return [s for v, x in pairs for s in e.store(v, (row, i), x)]

    count = e.dim(parts)
    body = [*scan.init_carry(), *store(ZERO, scan.identity)]
    write = scan.scan_tiles(
        ZERO, ir.sub(count, ONE), read, lambda i, x: store(ir.add(i, ONE), scan.split(x))
    )
    e.scratch += scan.staging
    return e.grid_kernel(f"scan_{p.op}_carries", g, [*body, write], rows, ("combine",))


def _downsweep(
    p: ScanProblem, layouts: Layouts, parts: int, size: int, carries: list[Value] | None
) -> LoweredKernel:
    """Whole rows, or parts with their carry-in."""
    threads = p.target.block_size
    while threads > MIN_BLOCK_THREADS and threads * ITEMS_PER_THREAD // 2 >= size:
        threads //= 2
    e = Emitter(layouts, block_size=threads)
    scan = TileScan(threads, p.op, p.val.dtype)
    g = ir.var("g")
    length = e.dim(p.length)
    row, span, carry = g, (ZERO, length), None
    if carries is not None:
        count, width = e.scalar_arg(parts), e.scalar_arg(size)
        row, part = divmod(g, count)
        span = ir.block_range(part, width, length)
        carry = [e.value(v, (row if p.rows > 1 else ZERO, part)) for v in carries]
    body = [*scan.init_carry(carry), scan.scan_tiles(*span, *p.access(e, row))]
    e.scratch += scan.staging
    return e.grid_kernel(f"scan_{p.op}", g, body, p.rows * parts, (p.val.op,))
