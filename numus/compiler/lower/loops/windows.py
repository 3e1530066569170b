"""Windows: poolings, their gradients and other stencils, an element per thread.

An element is an expression of all the taps of its window. Few instructions may stand between the
loads, or arithmetic takes longer than memory: sizes are constants of the code. Addresses of taps
are then immediate offsets from one address, divisions are multiplications of 32 bits, and
comparisons with the ends of an axis remain for those taps that can be beyond them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.loops.nest import ZERO, ceil_div, delinearize, iterations
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.tuning import TUNING
from numus.ir import Expr, Stmt, const

_SHIFTS = ("pad", "permute", "shear", "slice")  # by which taps differ


def lower_windows(p: LoopProblem) -> Kernels | None:
    """One kernel; None where elements have too few taps, or their taps are far apart."""
    e, g, t = p.work.emitter(), ir.var("g"), ir.var("t")
    e.static = True
    e.block_size = threads = TUNING.window_threads
    rows, total = _rows_of_thread(p), iterations(p.nest.rows)
    total //= rows
    number = ir.add(ir.mul(g, const(threads)), t)
    e.extents[number] = const(total)
    stores = _stores(p, e, number, rows)
    if not _has_windows(p, stores):
        return None
    body = stores
    if total % threads:
        body = [ir.If(number < const(total), stores)]
    loop = ir.For(t, ZERO, const(threads), "lanes", body)
    return [e.grid_kernel("windows", g, [loop], ceil_div(total, threads), p.work.notes)]


def supports_windows(p: LoopProblem) -> bool:
    """Many elements, each the result of a single pass over few others."""
    work, nest = p.work, p.nest
    if not p.target.vector_access_bytes or not nest.rows or work.sqdevs or work.counts:
        return False
    if nest.row_size > TUNING.window_max_taps or work.aliases:
        return False
    if work.reductions and (not work.splittable or any(map(work.is_full, work.stored))):
        return False
    if any(m.dtype.is_complex for m in work.members):
        return False
    if not TUNING.window_min_elements <= nest.row_count < 1 << 31:
        return False
    return nest.divides or any(x.op in _SHIFTS for x in work.inlined(work.members))


def _rows_of_thread(p: LoopProblem) -> int:
    """Elements of a thread, one above the other."""
    loops, rows = p.nest.rows, TUNING.window_rows
    return rows if len(loops) > 1 and loops[-2].extent % rows == 0 else 1


def _stores(p: LoopProblem, e: Emitter, number: Expr, rows: int) -> list[Stmt]:
    loops = p.nest.rows
    at = delinearize(e, number, loops)
    positions = [at]
    if rows > 1:
        column, line = loops[-1], loops[-2]
        some = replace(line, extent=line.extent // rows)
        at = delinearize(e, number, [*loops[:-2], some, column])
        positions = []
        for k in range(rows):
            row = ir.add(ir.mul(at[some], const(rows)), const(k))
            e.extents[row] = const(line.extent)
            others = {d: x for d, x in at.items() if d is not some}
            positions.append({**others, line: row})
    found: list[Stmt] = []
    for at in positions:
        index = p.nest.row_index(at) if p.work.reductions else p.nest.index(at)
        found += p.stores(e, p.work.stored, index)
    return _loads_first(found)


def _loads_first(stores: list[Stmt]) -> list[Stmt]:
    """All results before the first store, which loads would have to wait for."""
    lets: list[Stmt] = []
    out: list[Stmt] = []
    for k, s in enumerate(stores):
        assert isinstance(s, ir.Store)
        name = ir.var(f"w{k}", s.value.dtype)
        lets.append(ir.Let(name, s.value))
        out.append(replace(s, value=name))
    return [*lets, *out]


def _has_windows(p: LoopProblem, stores: list[Stmt]) -> bool:
    """Some operand is read several times, near to where the next thread reads it, but not in such
    order that vectors of it could be loaded."""
    roots = [root for s in stores for root in ir.expressions_of(s)]
    every = dict.fromkeys(x for root in roots for x in ir.walk(root, lambda x: True))
    found = [x for x in every if x.op == "load"]
    if len(found) > TUNING.window_max_loads:
        return False
    if max(Counter(x.attr for x in found).values(), default=0) < TUNING.window_min_loads:
        return False
    variable = p.nest.variables[p.nest.rows[-1].axis]
    step = max((abs(a.get(variable, 0)) for a in p.nest.accesses), default=0)
    masked = any(len(x.args) > 1 for x in found)
    return step <= TUNING.window_max_step and (masked or step > 1 or p.nest.divides)
