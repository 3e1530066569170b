"""Matrices of pairs: distances and kernel functions of all pairs of rows, stored.

Each element is a reduction of few terms, as an expression (`index_rules.py`). Threads are along the
columns and keep their operands in registers; a loop goes over rows, whose operands all threads of a
warp read together.
"""

from __future__ import annotations

from numus import ir
from numus.compiler.fusion.tuning import TUNING as FUSION
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.index_rules import REDUCTIONS_OF_TERMS
from numus.compiler.lower.loops.nest import ZERO, Loop, ceil_div, delinearize, iterations
from numus.compiler.lower.loops.problem import LoopProblem
from numus.compiler.lower.loops.tuning import TUNING, WARP
from numus.ir import Stmt, const


def lower_pair_matrix(p: LoopProblem) -> Kernels | None:
    """One kernel; None where an operand varies along both rows and columns."""
    rows = _row_loop(p)
    if rows is None:
        return None
    columns = p.nest.rows[-1]
    # no more than columns, of many small matrices: others would compute the last one once more
    threads = min(TUNING.pair_threads, max(WARP, 1 << (columns.extent - 1).bit_length()))
    fits_two = 2 * p.nest.row_size <= TUNING.pair_max_registers
    own = 2 if fits_two and columns.extent > threads else 1
    others = [d for d in p.nest.rows if d not in (rows, columns)]
    across = ceil_div(columns.extent, threads * own)
    down = ceil_div(rows.extent, TUNING.pair_matrix_rows)
    e, g, t = p.work.emitter(), ir.var("g"), ir.var("t")
    e.block_size = threads
    rest, block = divmod(g, e.scalar_arg(across))
    line, part = divmod(rest, e.scalar_arg(down))
    at = delinearize(e, line, others)
    row = e.variable("row", e.dim(rows.extent))
    extent = e.dim(columns.extent)
    body: list[Stmt] = []
    for k in range(own):
        first = ir.mul(block, const(threads * own))
        number = ir.add(ir.add(first, t), const(k * threads))
        # threads past the end compute the last column once more
        column = ir.minimum(number, ir.sub(extent, const(1)))
        e.extents[column] = extent
        index = p.nest.row_index({**at, rows: row, columns: column})
        body += p.stores(e, p.work.stored, index)
    span = ir.block_range(part, const(TUNING.pair_matrix_rows), e.dim(rows.extent))
    loop = ir.For(t, ZERO, const(threads), "lanes", [ir.For(row, *span, "serial", body)])
    grid = across * down * iterations(others)
    return [e.grid_kernel("pair_matrix", g, [loop], grid, p.work.notes)]


def supports_pair_matrix(p: LoopProblem) -> bool:
    """Many elements, each the result of a single pass over few terms."""
    work, nest = p.work, p.nest
    if not p.target.vector_access_bytes or len(nest.rows) < 2 or work.counts or work.aliases:
        return False
    if not work.splittable or any(map(work.is_full, work.stored)):
        return False
    if any(r.op not in REDUCTIONS_OF_TERMS or r.dtype.is_complex for r in work.reductions):
        return False
    if not 2 <= nest.row_size <= FUSION.nested_max_terms or nest.rows[-1].extent < 32:
        return False
    return nest.row_count >= TUNING.pair_min_elements


def _row_loop(p: LoopProblem) -> Loop | None:
    """The longest loop over rows along which no operand varies that does along columns."""
    nest, e = p.nest, p.work.emitter()
    names = {d: e.variable(f"p{i}", e.dim(d.extent)) for i, d in enumerate(nest.loops)}
    column = names[nest.rows[-1]]
    index = nest.row_index({d: names[d] for d in nest.rows})
    stores = p.stores(e, p.work.stored, index)
    roots = [s.value for s in stores if isinstance(s, ir.Store)]
    loads = [x for root in roots for x in ir.walk(root, lambda x: True) if x.op == "load"]
    varying = [{x for x in ir.walk(y, lambda x: True) if x.op == "var"} for y in loads]
    if not any(column in found for found in varying) or any(len(y.args) > 1 for y in loads):
        return None
    candidates = [
        d
        for d in nest.rows[:-1]
        if d.extent >= TUNING.pair_matrix_rows
        and any(names[d] in found for found in varying)
        and not any(names[d] in found and column in found for found in varying)
    ]
    return max(candidates, key=lambda d: d.extent, default=None)
