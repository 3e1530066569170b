"""Factorisations of large matrices on a CPU: sequences of kernels on one workspace, in place.

Each step is a panel, by a task per matrix, and an update by as many tasks as there are blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.factor.workspace import TUNING, Task, Workspace, fill
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked import cholesky, lu, qr, qr_panel, substitution
from numus.kernels.factor.blocked.tiles import TileProgram, transposed
from numus.kernels.factor.program import ZERO, Matrix, Number, Program, real, zero

FEW_VECTORS = 4  # right-hand sides that are substituted one by one

# -- Cholesky -------------------------------------------------------------------------------------


def lower_cholesky(p: Problem) -> Kernels:
    space = Workspace(p)
    fill(space, lower=True)
    chunks = space.chunks()
    task = Task(space)
    _cholesky_diagonal(space, task, 0)
    task.done("cholesky")
    for first in space.starts():
        count = space.count(first)
        last = first + count
        if last == space.order:
            break
        task = Task(space, space.blocks(last))
        work, own = task.planes(space.work), task.chunks(chunks).at(task.part)
        span = task.span(task.part, last)
        diagonal = task.size(first), task.size(count)
        cholesky.substitute(task.program, work, own, diagonal, span)
        task.done("cholesky")
        _cholesky_update(space, chunks, last, count)
    _cholesky_result(space)
    return space.steps


def _cholesky_diagonal(space: Workspace, task: Task, first: int) -> None:
    near = task.near(space.block, space.block)
    work = task.planes(space.work)
    cholesky.factorise(task.program, work, near, task.size(first), task.size(space.count(first)))


def _cholesky_update(space: Workspace, panel: Value, last: int, count: int) -> None:
    """Of what follows a panel; the first task also factorises the next block of the diagonal, while
    others update the rest (look-ahead)."""
    blocks = space.blocks(last)
    task = Task(space, blocks * blocks)
    p = task.program
    down, across = divmod(task.part, task.size(blocks))
    work, chunks = task.planes(space.work), task.chunks(panel, "read")
    spans = task.span(p.let(down), last), task.span(p.let(across), last)
    with p.when(p.let(across <= down)):
        both = chunks.at(down), chunks.at(across)
        cholesky.update(p, work, both, spans, task.size(count))
    with p.when(p.let(task.part.eq(0))):
        _cholesky_diagonal(space, task, last)
    task.done("cholesky")


def _cholesky_result(space: Workspace) -> None:
    task = Task(space, space.blocks())
    p, n = task.program, task.size(space.n)
    work, out = task.planes(space.work, "read"), task.rows_of(space.val, space.n)
    start, stop = task.span(task.part)
    with p.loop(start, p.let(ir.minimum(stop, n))) as i:
        after = p.let(ir.add(i, const(1)))
        with p.lanes(ZERO, after) as j:
            out[i, j] = work[i, j]
        with p.lanes(after, n) as j:
            out[i, j] = zero(p)
    task.done("cholesky")


# -- LU -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _LuMemory:
    """What LU needs beside the workspace: swaps and order of rows, a panel whose columns are
    contiguous, and L of the panels of two steps."""

    found: Value
    panel: Value
    chunks: tuple[Value, Value]


def _eliminate(space: Workspace) -> Value:
    """L and U in place; the swaps of rows."""
    found = space.flat(2 * space.components * space.order)
    both = space.chunks(), space.chunks()
    memory = _LuMemory(found, space.panel(), both)
    task = Task(space)
    _lu_panel(space, task, memory, 0)
    task.done("lu")
    for first in space.starts():
        if space.all_blocks > 1:
            _lu_update(space, memory, first)
    return found


def lower_lu(p: Problem) -> Kernels:
    space = Workspace(p)
    fill(space)
    found = _eliminate(space)
    task = Task(space)
    lu.order(task.program, task.rows_of(found, space.order), task.size(space.n))
    task.done("lu")
    _lu_result(space, found)
    return space.steps


def _lu_panel(space: Workspace, task: Task, memory: _LuMemory, first: int) -> None:
    p, start, columns = task.program, task.size(first), task.size(space.count(first))
    end = task.size(space.order)
    work, panel = task.planes(space.work), task.planes(memory.panel, pitch=space.rows_pitch)
    chunks = task.chunks(memory.chunks[first // space.block % 2])
    swaps = task.rows_of(memory.found, space.order)
    own = work.moved(ZERO, start)
    transposed(p, own, panel, (start, end), (ZERO, columns))
    lu.factorise(p, panel, swaps, (start, columns), end)
    transposed(p, panel, own, (ZERO, columns), (start, end))
    lu.pack(p, panel, chunks, (start, end), columns)


def _lu_update(space: Workspace, memory: _LuMemory, first: int) -> None:
    """Of all columns but the panel's; those of the next panel come first, and are factorised, too,
    while other tasks update what follows (look-ahead)."""
    last = first + space.count(first)
    task = Task(space, space.all_blocks - 1)
    p, at = task.program, (task.size(first), task.size(space.count(first)))
    own, part = task.size(first // space.block), task.part
    number = select(part < own, part, ir.add(part, const(1)))
    if last < space.order:
        before = ir.sub(part, const(1))
        number = select(part <= own, before, ir.add(part, const(1)))
        number = select(part.eq(0), ir.add(own, const(1)), number)
    number = p.let(number)
    right = ir.sub(number, task.size(space.blocks()))
    is_right = p.let(right >= const(0))
    spans = task.span(number), task.span(right, space.order, space.columns)
    start, stop = (p.let(select(is_right, y, x)) for x, y in zip(*spans, strict=True))
    columns = start, stop
    near = task.near(space.block, space.near_pitch)
    work = task.planes(space.work)
    chunks = task.chunks(memory.chunks[first // space.block % 2], "read")
    swaps = task.rows_of(memory.found, space.order)
    lu.swap(p, work, swaps, at, columns)
    with p.when(p.let(number > own)):
        end = task.size(space.order)
        lu.update(p, work, chunks, near, (at, columns, (ZERO, end)))
    if last < space.order:
        with p.when(p.let(part.eq(0))):
            _lu_panel(space, task, memory, last)
    task.done("lu")


def _lu_result(space: Workspace, found: Value) -> None:
    task = Task(space, space.blocks())
    p, n = task.program, task.size(space.n)
    work, out = task.planes(space.work, "read"), task.rows_of(space.val, space.n + 2)
    numbers = task.rows_of(found, space.order, "read")
    start, stop = task.span(task.part)
    with p.loop(start, p.let(ir.minimum(stop, n))) as i:
        with p.lanes(ZERO, n) as j:
            out[i, j] = work[i, j]
        for row in range(2):
            out[i, ir.add(n, const(row))] = numbers[const(1 - row), i]
    task.done("lu")


def lower_solve(p: Problem) -> Kernels:
    """Right-hand sides go through the elimination beside the matrix."""
    columns = p.val.shape[2]
    space = Workspace(p, columns)
    fill(space)
    task = Task(space, space.blocks())
    program, n, width = task.program, task.size(space.n), task.size(columns)
    end = task.size(space.columns - space.order)
    right = task.planes(space.work).moved(ZERO, task.size(space.order))
    start, stop = task.span(task.part)
    inside = program.let(ir.minimum(stop, n))
    with program.loop(start, inside) as i:
        with program.lanes(ZERO, width) as j:
            right[i, j] = task.right_hand_side(i, j)
        with program.lanes(width, end) as j:
            right[i, j] = zero(program)
    below = program.let(ir.maximum(start, n))
    with program.loop(below, stop) as i, program.lanes(ZERO, end) as j:
        right[i, j] = zero(program)
    task.done("pad")
    _eliminate(space)
    if columns <= FEW_VECTORS:
        _substitute_vectors(space, columns)
        return space.steps
    blocks = -(-(space.columns - space.order) // space.block)
    task = Task(space, blocks)
    program, order, work = task.program, task.size(space.order), task.planes(space.work)
    near = task.near(space.block, space.near_pitch)
    start, stop = task.span(task.part, space.order, space.columns)
    sides = work.moved(ZERO, start), program.let(ir.sub(stop, start))
    spoiled = substitution.spoil_of_singular(program, work, order)
    upper = substitution.Triangle(lower=False, unit=False)
    substitution.substitute(program, work, near, order, sides, upper, spoiled)
    task.done("lu")
    task = Task(space, space.blocks())
    program, n, width = task.program, task.size(space.n), task.size(columns)
    right = task.planes(space.work, "read").moved(ZERO, task.size(space.order))
    out = task.rows_of(space.val, columns)
    start, stop = task.span(task.part)
    inside = program.let(ir.minimum(stop, n))
    with program.loop(start, inside) as i, program.lanes(ZERO, width) as j:
        out[i, j] = right[i, j]
    task.done("lu")
    return space.steps


def _substitute_vectors(space: Workspace, columns: int) -> None:
    """A task for each of few right-hand sides, which reads the triangle by rows."""
    task = Task(space, columns)
    p, n, order = task.program, task.size(space.n), task.size(space.order)
    work = task.planes(space.work, "read")
    vector = task.worker_rows(-(-space.order // space.near_pitch), "vector")
    spoiled = substitution.spoil_of_singular(p, work, order)
    with p.loop(ZERO, n) as i:
        vector[ZERO, i] = work[i, ir.add(order, task.part)]
    upper = substitution.Triangle(lower=False, unit=False)
    substitution.substitute_vector(
        p, lambda i, j: work[i, j], (vector, ZERO), n, upper, by_columns=False
    )
    out = task.rows_of(space.val, columns)
    with p.loop(ZERO, n) as i:
        out[i, task.part] = tuple(part + spoiled for part in vector[ZERO, i])
    task.done("lu")


# -- triangular systems ---------------------------------------------------------------------------


def lower_triangular(p: Problem) -> Kernels:
    """A task takes its columns of right-hand sides from operand to result, in memory of its own."""
    triangle, columns = substitution.Triangle(*p.val.params), p.val.shape[2]
    space = Workspace(p)
    fill(space, lower=True, reversed_=not triangle.lower)
    lanes = space.program().tile
    share = -(-columns // (lanes * p.target.num_cores)) * lanes
    block = min(space.block, share)
    task = Task(space, -(-columns // block))
    program, n, order = task.program, task.size(space.n), task.size(space.order)
    start = program.let(ir.mul(task.part, task.size(block)))
    count = program.let(ir.minimum(task.size(block), ir.sub(task.size(columns), start)))
    width = ir.mul(ir.idiv(ir.add(count, const(lanes - 1)), const(lanes)), const(lanes))

    def row_of(i: Expr) -> Expr:
        """Rows of upper triangles come in reverse: prefetches of the next tile then help."""
        return i if triangle.lower else program.let(ir.sub(ir.sub(n, const(1)), i))

    width, right = program.let(width), task.worker_rows(space.order, "right")
    with program.loop(ZERO, n) as i:
        with program.lanes(ZERO, count) as j:
            right[row_of(i), j] = task.right_hand_side(i, ir.add(start, j))
        with program.lanes(count, width) as j:
            right[row_of(i), j] = zero(program)
    with program.loop(n, order) as i, program.lanes(ZERO, width) as j:
        right[i, j] = zero(program)
    near = task.near(space.block, space.near_pitch)
    work = task.planes(space.work, "read")
    lower = triangle._replace(lower=True)
    substitution.substitute(program, work, near, order, (right, width), lower)
    out = task.rows_of(space.val, columns)
    with program.loop(ZERO, n) as i, program.lanes(ZERO, count) as j:
        out[i, ir.add(start, j)] = right[row_of(i), j]
    task.done("substitute")
    return space.steps


def lower_vectors(p: Problem) -> Kernels:
    """A task per vector, whose result is its memory."""
    val, triangle = p.val, substitution.Triangle(*p.val.params)
    a, b = val.inputs
    _, count, n = val.shape
    e, g = Emitter(p.layouts), ir.var("g")
    matrix, row = divmod(g, e.scalar_arg(count))
    width = p.target.vector_bytes // dt.real_of(val.dtype).itemsize
    components = 2 if val.dtype.is_complex else 1
    program = TileProgram(dt.real_of(val.dtype), components, width, p.target.vector_registers)

    def element(x: Value, i: Expr, j: Expr) -> Number:
        found = e.value(x, (matrix, i, j))
        return found if x.dtype.is_complex else (found,)

    start = program.let(ir.mul(matrix, e.dim(count * n)))
    x, order = Matrix(program, e.buffer(val, "write"), start, e.dim(n)), e.dim(n)
    with program.lanes(ZERO, order) as i:
        x[row, i] = element(b, row, i)
    view = strided_view(a, p.layouts)
    by_columns = view is not None and view.strides[1] == 1 != view.strides[2]
    substitution.substitute_vector(
        program, lambda i, j: element(a, i, j), (x, row), order, triangle, by_columns
    )
    grid = val.shape[0] * count
    return [e.grid_kernel("substitute", g, program.body, grid, ("substitute",))]


def lower_row_order(p: Problem) -> Kernels:
    """A task per matrix. Numbers of rows that do not exist are taken for those nearest to them."""
    val = p.val
    e, matrix = Emitter(p.layouts), ir.var("g")
    program = Program(val.dtype, 1, simt=False)
    n, count = e.dim(val.shape[1]), e.dim(val.inputs[0].shape[1])
    out = Matrix(program, e.buffer(val, "write"), program.let(ir.mul(matrix, n)), n)
    with program.lanes(ZERO, n) as i:
        out[ZERO, i] = (i.cast(val.dtype),)
    last = program.let(ir.sub(n, const(1)))
    with program.loop(ZERO, program.let(ir.minimum(count, n))) as k:
        other = e.value(val.inputs[0], (matrix, k)).cast(ir.INDEX)
        other = program.let(ir.maximum(ir.minimum(other, last), ZERO))
        upper, lower = program.number(out[ZERO, k]), program.number(out[ZERO, other])
        out[ZERO, k] = lower
        out[ZERO, other] = upper
    return [e.grid_kernel("row_order", matrix, program.body, val.shape[0], ("row_order",))]


# -- QR -------------------------------------------------------------------------------------------


def lower_qr(p: Problem) -> Kernels:
    """Q above R, or R alone: reflectors go over the matrix, and in reverse over an identity."""
    space = Workspace(p)
    fill(space, unit=0.0)
    panel = space.panel()
    found = [(space.chunks(first), space.square()) for first in space.starts()]
    task = Task(space)
    _qr_panel(space, task, panel, found[0], 0)
    task.done("qr")
    for number, first in enumerate(space.starts()):
        last = first + space.count(first)
        if last == space.order:
            break
        task = Task(space, space.blocks(last))
        columns = task.span(task.part, last)
        _apply(space, task, (space.work, *found[number]), first, columns, adjoint=True)
        with task.program.when(task.program.let(task.part.eq(0))):  # look-ahead
            _qr_panel(space, task, panel, found[number + 1], last)
        task.done("qr")
    if p.val.params:
        whole = space.memory(space.rows)
        _identity(space, whole)
        for first, reflectors in zip(reversed(space.starts()), reversed(found), strict=True):
            task = Task(space, space.blocks(first))
            columns = task.span(task.part, first)
            _apply(space, task, (whole, *reflectors), first, columns, adjoint=False)
            task.done("qr")
        _q_result(space, whole)
    _r_result(space, space.m if p.val.params else 0)
    return space.steps


def _qr_panel(
    space: Workspace, task: Task, columns: Value, found: tuple[Value, Value], first: int
) -> None:
    p, end = task.program, task.size(space.rows)
    start, count = task.size(first), task.size(space.count(first))
    work, v = task.planes(space.work), task.planes(columns, pitch=space.rows_pitch)
    chunks, t = task.chunks(found[0]), task.planes(found[1], pitch=space.near_pitch)
    transposed(p, work.moved(ZERO, start), v, (start, end), (ZERO, count))
    weights = task.near(space.block, qr_panel.INNER, "weights")
    qr_panel.factorise(p, work, qr_panel.Panel(v, t, weights, start, count, end))
    lu.pack(p, v, chunks, (start, end), count)


def _apply(
    space: Workspace,
    task: Task,
    values: tuple[Value, Value, Value],
    first: int,
    columns: tuple[Expr, Expr],
    adjoint: bool,
) -> None:
    work, chunks, t = values
    near = task.near(space.block, space.near_pitch)
    panel = task.chunks(chunks, "read"), task.planes(t, "read", space.near_pitch)
    spans = (task.size(first), task.size(space.count(first))), columns, task.size(space.rows)
    qr.apply(task.program, task.planes(work), panel, near, spans, adjoint)


def _identity(space: Workspace, whole: Value) -> None:
    task = Task(space, -(-space.rows // space.block))
    p, end, out = task.program, task.size(space.order), task.planes(whole)
    with p.loop(*task.span(task.part, end=space.rows)) as i, p.lanes(ZERO, end) as j:
        out[i, j] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
    task.done("eye")


def _q_result(space: Workspace, whole: Value) -> None:
    task = Task(space, -(-space.rows // space.block))
    p, m, n = task.program, task.size(space.m), task.size(space.n)
    q, out = task.planes(whole, "read"), task.rows_of(space.val, space.n)
    start, stop = task.span(task.part, end=space.rows)
    with p.loop(start, p.let(ir.minimum(stop, m))) as i, p.lanes(ZERO, n) as j:
        out[i, j] = q[i, j]
    task.done("qr")


def _r_result(space: Workspace, above: int) -> None:
    task = Task(space, space.blocks())
    p, n, top = task.program, task.size(space.n), task.size(above)
    work, out = task.planes(space.work, "read"), task.rows_of(space.val, space.n)
    start, stop = task.span(task.part)
    with p.loop(start, p.let(ir.minimum(stop, n))) as i:
        row = p.let(ir.add(top, i))
        with p.lanes(ZERO, i) as j:
            out[row, j] = zero(p)
        with p.lanes(i, n) as j:
            out[row, j] = work[i, j]
    task.done("qr")


# -- the schedule ---------------------------------------------------------------------------------

_LOWERINGS: dict[str, Callable[[Problem], Kernels]] = {
    "lower_cholesky": lower_cholesky,
    "lu": lower_lu,
    "direct_solve": lower_solve,
    "direct_inverse": lower_solve,
    "direct_qr": lower_qr,
    "solve_triangular": lower_triangular,
    "solve_vectors": lower_vectors,
    "row_order": lower_row_order,
}
_ALWAYS = ("solve_triangular", "solve_vectors", "row_order")  # which only CPUs are asked for


def runs_in_blocks(p: Problem) -> bool:
    """A large matrix of a CPU, square but for QR."""
    if p.target.simt or p.val.op not in _LOWERINGS:
        return False
    if p.val.op in _ALWAYS:
        return True
    m, n = p.val.inputs[0].shape[1:]
    if p.val.op == "direct_qr":
        return m >= TUNING.min_order or p.val.shape[0] < TUNING.min_batch
    return m == n >= TUNING.min_order


def lower_blocked(p: Problem) -> Kernels:
    return _LOWERINGS[p.val.op](p)
