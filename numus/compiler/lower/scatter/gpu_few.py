"""Few updates on GPUs: a copy of the base, then a thread for each element of an update.

A thread looks at the destinations of all updates: of those with its own, the last one is written
("set"), or the first one's thread combines them in order. So no two threads write an element, and
results depend on nothing but the order of updates. Where the base gives its memory to the result,
its copy is not launched (`Kernel.copies`), and the work is that of the updates, as for a key–value
cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.axis import ZERO, delinearize
from numus.compiler.lower.elementwise import lower
from numus.compiler.lower.emitter import Emitter, Index, Kernels
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.scatter.gpu_problem import GpuScatterProblem, linear_destination
from numus.compiler.lower.scatter.problem import COMBINE, load_element
from numus.compiler.lower.schedule import Candidate
from numus.ir import Expr, Stmt, const, select
from numus.shapes import row_major


@dataclass(frozen=True)
class FewUpdatesTuning:
    """Measured on one H200."""

    max_updates: int = 32  # every thread looks at all of them
    min_elements: int = 1 << 13  # of a result that is worth a second kernel
    threads: int = 128  # of a block, as of a product's with one vector, beside which it may run


TUNING = FewUpdatesTuning()


def supports(problem: GpuScatterProblem) -> bool:
    has_words = not problem.target.packed_storage or problem.val.dtype.itemsize >= 4
    large = problem.val.size >= TUNING.min_elements
    return has_words and large and 0 < problem.count <= TUNING.max_updates


def _few_updates(problem: GpuScatterProblem) -> Kernels:
    return [*copied_base(problem), *_update(problem)]


def copied_base(problem: GpuScatterProblem) -> Kernels:
    """The result, as long as it is the base; no work where they share memory."""
    base = problem.val.inputs[0]
    copy = Value.fresh("copy", "barrier", (base,), None, base.shape, base.dtype)
    group = FusionGroup.of_stored(copy, problem.group.position)
    where = {copy: (problem.val, 0, 0)}
    kernels = lower_loops(group, problem.layouts, problem.target, redirect=where)
    if problem.layouts.get(base) == row_major(base.shape):
        for step in kernels:
            step.kernel.copies = step.buffers == [base, problem.val]
    return kernels


def _update(problem: GpuScatterProblem) -> Kernels:
    val, columns = problem.val, problem.columns
    threads = min(problem.target.block_size, TUNING.threads)
    total = problem.count * columns
    if not total:
        return []
    e = Emitter(problem.layouts, block_size=threads)
    g, i, other, own = (ir.var(name) for name in ("g", "i", "other", "own"))
    start, stop = ir.block_range(g, const(threads), e.dim(total))
    update = i if columns == 1 else ir.idiv(i, e.dim(columns))
    column = ZERO if columns == 1 else ir.irem(i, e.dim(columns))
    count = e.scalar_arg(problem.count)
    chosen = ir.Register("chosen", dt.int64, lanes=True)

    def destination(number: Expr) -> Expr:
        at = tuple(delinearize(e, number, list(problem.index_shape)))
        return linear_destination(e, problem, at)

    def value(number: Expr) -> object:
        lead = delinearize(e, number, list(problem.index_shape))
        rest = delinearize(e, column, [val.shape[a] for a in problem.other_axes])
        return e.value(val.inputs[1], (*lead, *rest))

    same = destination(other).eq(own)
    found = ir.read(chosen)
    if problem.mode == "set":
        better = same
    else:
        better = same & (other < found)
    look = ir.Set(chosen, select(better, other, found))
    at = problem.index(e, own, column)
    if problem.mode == "set":
        write = e.store(val, at, value(update))
    else:
        write = _combine(e, problem, at, (other, update, count), same, value(other))
    exists = own < e.dim(problem.destination_count)
    body: list[Stmt] = [
        ir.Let(own, destination(update)),
        ir.Set(chosen, update),
        ir.For(other, ZERO, count, "serial", [look]),
        ir.If(exists & ir.read(chosen).eq(update), write),
    ]
    loop = ir.For(i, start, stop, "lanes", body)
    name = f"scatter_{problem.mode}"
    return [e.grid_kernel(name, g, [loop], -(-total // threads), (val.op,))]


def _combine(
    e: Emitter,
    problem: GpuScatterProblem,
    at: Index,
    updates: tuple[Expr, Expr, Expr],
    same: Expr,
    value: object,
) -> list[Stmt]:
    """The element of the result with all updates of its destination, in order."""
    val, (other, first, count) = problem.val, updates
    real = dt.real_of(val.dtype)
    parts = 2 if val.dtype.is_complex else 1
    total = [ir.Register(f"total{p}", real, lanes=True) for p in range(parts)]

    def now() -> object:
        values = ir.reads(total)
        return tuple(values) if parts == 2 else values[0]

    operands, dtypes = [now(), value], [val.dtype] * 2
    new = lower(COMBINE[problem.mode], operands, dtypes, val.dtype, None)
    old = load_element(e, val, at)
    add, _ = ir.assign(total, list(new) if parts == 2 else [new], "new")
    return [
        *ir.sets(total, list(old) if parts == 2 else [old]),
        ir.For(other, first, count, "serial", [ir.If(same, add)]),
        *e.store(val, at, now()),
    ]


FEW_UPDATES = Candidate("few updates, in place", _few_updates, supports)
