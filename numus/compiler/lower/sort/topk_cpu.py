"""Top-k on CPUs: insertion into a sorted list for small k, otherwise a sort of whole rows."""

from __future__ import annotations

from dataclasses import dataclass

from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, TopkProblem, temporary
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.schedule import Candidate, Lowering, Schedule, family
from numus.compiler.lower.sort.cpu import lower_sort
from numus.ir import Expr
from numus.kernels.sort import cpu_topk, keys
from numus.shapes import row_major


@dataclass(frozen=True)
class TopkTuning:
    """Measured on 2-core machines: Neoverse N1 and x86-64 (Cascade Lake, Sapphire Rapids)."""

    max_insertion_k: int = 128
    part_elements: int = 1 << 14  # of a row that is worth several threads


TUNING = TopkTuning()


def _insertion_topk(p: TopkProblem) -> Kernels:
    """One pass over each row, or over parts of few long rows and then over their results."""
    records = keys.record_layout(
        p.source.dtype, p.length, p.descending, argsort=True, compare_floats=False
    )
    is_underfilled = p.rows < 4 * p.target.num_cores
    parts = p.length // TUNING.part_elements if is_underfilled else 1
    if parts <= 1:
        return [_insertion_pass("topk", p, records, 1, None, None)]
    memory = [temporary((p.rows, parts, p.count), f) for f in records.fields]
    return [
        _insertion_pass("topk_parts", p, records, parts, None, memory),
        _insertion_pass("topk", p, records, parts, memory, None),
    ]


def sort_topk(lower_sort: Lowering) -> Schedule[TopkProblem]:
    """An argsort of whole rows, of which the first k are copied."""

    def lower(problem: TopkProblem) -> Kernels:
        val, source, position = problem.val, problem.source, problem.group.position
        params = (problem.axis, problem.descending)
        order = Value.fresh("argsort", "sort", (source,), params, source.shape, val.dtype)
        layouts = {**problem.layouts, order: row_major(source.shape)}
        starts, steps = (0,) * len(val.shape), (1,) * len(val.shape)
        cut = Value.fresh("slice", "view", (order,), (starts, steps), val.shape, val.dtype)
        copy = Value.fresh("copy", "barrier", (cut,), None, val.shape, val.dtype)
        first = FusionGroup.of_stored(copy, position)
        copied = lower_loops(first, layouts, problem.target, redirect={copy: (val, 0, 0)})
        rows = FusionGroup.of_stored(order, position)
        return lower_sort(rows, layouts, problem.target) + copied

    return Candidate("sort", lower)


lower_topk = family(
    TopkProblem,
    Candidate("insertion", _insertion_topk, lambda p: 0 < p.count <= TUNING.max_insertion_k),
    sort_topk(lower_sort),
)


def _insertion_pass(
    name: str,
    p: TopkProblem,
    records: keys.RecordLayout,
    parts: int,
    given: list[Value] | None,
    found: list[Value] | None,
) -> LoweredKernel:
    """From the operand, or the `given` records of parts, to the result, or the `found` records."""
    e = Emitter(p.layouts, p.source.size <= p.target.small_elements)
    g = ir.var("g")
    per_row = parts if found is not None else 1
    blocks = e.scalar_arg(per_row)
    row, part = divmod(g, blocks) if per_row > 1 else (g, ZERO)
    index = p.index(e, row)
    top = cpu_topk.TopList(records, e.dim(p.count))
    start, stop = ZERO, e.dim(p.length)
    if found is not None:
        size = e.scalar_arg(-(-p.length // parts))
        start, stop = ir.block_range(part, size, stop)
    first = ZERO
    if given is not None:
        stop = e.dim(parts * p.count)
        first = ir.mul(row, stop)

    def read(at: Expr) -> list[Expr]:
        if given is not None:
            return [ir.load(e.buffer(m), ir.add(first, at)) for m in given]
        return records.record(e.value(p.source, index(at)), at)

    def write(rank: Expr, record: list[Expr]) -> list[ir.Stmt]:
        if found is None:
            return e.store(p.val, index(rank), records.result(record))
        at = ir.add(ir.mul(g, e.dim(p.count)), rank)
        return ir.stores([e.buffer(m, "write") for m in found], at, record)

    body, scratch = cpu_topk.topk_row(top, start, stop, read, write)
    e.scratch += scratch
    return e.grid_kernel(name, g, body, p.rows * per_row, (p.val.op,))
