"""Schedules of counting sorts: of keys, and of the columns of a pattern, which transposes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.axis import ONE, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.sparse.gustavson import matrix_of
from numus.compiler.lower.sparse.product import ProductProblem, bounds, clamped
from numus.ir import Expr, Stmt
from numus.kernels.sparse.counting import Counts, Walk, keys_alone
from numus.kernels.sparse.gustavson import Matrix


@dataclass(frozen=True)
class CountingTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    min_task_keys: int = 1 << 14
    slices_per_core: int = 8
    min_slice_groups: int = 1 << 10


TUNING = CountingTuning()


def _by_rows(matrix: Matrix) -> Walk:
    """A range of rows, and the entries of each."""

    def walk(span: tuple[Expr, Expr], visit: Callable[[Expr, Expr], list[Stmt]]) -> list[Stmt]:
        # the end of a row is the start of the next
        row, low, high, entry = (ir.var(n) for n in ("row", "low", "high", "entry"))
        at = ir.Register("at", ir.INDEX)
        body = [
            ir.Let(low, ir.read(at)),
            ir.Let(high, matrix.bounds(row)[1]),
            ir.For(entry, low, high, "serial", visit(entry, row)),
            ir.Set(at, high),
        ]
        return [ir.Set(at, matrix.bounds(span[0])[0]), ir.For(row, *span, "serial", body)]

    return walk


def lower_counting(p: ProductProblem) -> Kernels:
    """Count, add up and place, in ranges of the keys or rows."""
    val, groups = p.val, int(p.val.params)
    *pointers, keys = val.inputs
    (count,) = keys.shape
    extent = pointers[0].shape[0] - 1 if pointers else count  # of what is cut into ranges
    cores = max(1, p.target.num_cores)
    tasks = max(1, min(cores, count // TUNING.min_task_keys, extent))
    slices = max(1, min(TUNING.slices_per_core * cores, groups // TUNING.min_slice_groups))
    table, totals = temporary((tasks * groups,), val.dtype), temporary((slices,), dt.int64)

    def kernel(step: str, grid: int) -> LoweredKernel:
        e = Emitter(p.layouts)
        g = ir.var("g")
        walk = _by_rows(matrix_of(e, pointers[0], keys, groups)) if pointers else keys_alone
        c = Counts(
            *(e.buffer(table, "write"), e.dim(groups), e.scalar_arg(tasks)),
            *(lambda i: clamped(e, keys, i, groups), walk),
        )
        of_keys = ir.block_range(g, e.scalar_arg(-(-extent // tasks)), e.dim(extent))
        of_groups = ir.block_range(g, e.scalar_arg(-(-groups // slices)), e.dim(groups))
        if step == "count":
            if pointers:
                ends = [bounds(e, pointers[0], row, count)[0] for row in of_keys[:1]]
                ends.append(bounds(e, pointers[0], ir.sub(of_keys[1], ONE), count)[1])
                of_keys = (ends[0], ends[1])
            body = c.count(g, of_keys)
        elif step == "totals":
            out = e.buffer(totals, "write")
            body = c.total(of_groups, lambda total: ir.Store(out, g, total))
        elif step == "positions":
            before = e.buffer(totals)
            body = c.positions(
                *(of_groups, lambda i: ir.load(before, i), g),
                lambda group, start: e.store(val, (group,), start.cast(val.dtype)),
            )
            body += e.store(val, (e.dim(groups),), e.dim(count).cast(val.dtype))
        else:
            first = ir.add(e.dim(groups), ONE)

            def write(at: Expr, number: Expr, row: Expr) -> list[Stmt]:
                at = ir.add(first, at)
                out = e.store(val, (at,), number.cast(val.dtype))
                if pointers:
                    out += e.store(val, (ir.add(at, e.dim(count)),), row.cast(val.dtype))
                return out

            body = c.place(g, of_keys, write)
        return e.grid_kernel(f"{val.op}_{step}", g, body, grid, (val.op,))

    return [
        kernel("count", tasks),
        kernel("totals", slices),
        kernel("positions", slices),
        kernel("place", tasks),
    ]
