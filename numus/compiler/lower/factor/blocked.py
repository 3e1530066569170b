"""Factorisations of large matrices on a CPU: a sequence of kernels on one workspace, in place.

The workspace is the operand, padded by an identity to a multiple of the register tile, in rows of an
odd number of cache lines. Each step of a factorisation is a panel, by a task per matrix, and an
update by as many tasks as there are blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked import cholesky, lu
from numus.kernels.factor.blocked.tiles import Chunks, Planes, TileProgram, transposed
from numus.kernels.factor.program import ZERO, Matrix, Number, Span, real, zero
from numus.shapes import Shape

LINE_BYTES = 64


@dataclass(frozen=True)
class BlockedTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    min_order: int = 65  # of matrices that are factorised in blocks
    block: int = 64  # columns of a panel, and rows and columns of a task


TUNING = BlockedTuning()


class Workspace:
    """What the kernels of one factorisation share."""

    def __init__(self, p: Problem, right: int = 0) -> None:
        """`right`: columns of right-hand sides beside the matrix."""
        self.p, self.val = p, p.val
        self.batch, self.n = p.val.inputs[0].shape[:2]
        self.real = dt.real_of(p.val.dtype)
        self.components = 2 if p.val.dtype.is_complex else 1
        program = self.program()
        self.order = -(-self.n // program.tile) * program.tile
        line = LINE_BYTES // self.real.itemsize
        self.columns = self.order + -(-right // program.width) * program.width
        self.pitch = (-(-self.columns // line) | 1) * line
        self.block = TUNING.block
        self.work = self.memory(self.order)
        self.near_pitch = self.block + line
        plane = self.block * self.near_pitch
        self.chunks = self.flat(self.blocks() * self.components * plane)
        self.steps: Kernels = []

    def program(self) -> TileProgram:
        target = self.p.target
        width = target.vector_bytes // self.real.itemsize
        return TileProgram(self.real, self.components, width, target.vector_registers)

    def memory(self, rows: int) -> Value:
        return self.flat(self.components * rows * self.pitch)

    def flat(self, elements: int) -> Value:
        shape: Shape = (self.batch, elements)
        return Value.fresh("workspace", "barrier", (), None, shape, self.real)

    def count(self, first: int) -> int:
        """Columns of a panel."""
        return min(self.block, self.order - first)

    def starts(self, first: int = 0) -> range:
        return range(first, self.order, self.block)

    def blocks(self, first: int = 0) -> int:
        """Blocks of rows from one on."""
        return len(self.starts(first))

    @property
    def all_blocks(self) -> int:
        """Blocks of columns, those of right-hand sides included."""
        return self.blocks() + -(-(self.columns - self.order) // self.block)


class Task:
    """A kernel on the workspace: a task per matrix and part of it.

    Sizes are scalar arguments of their own, so that all steps of a factorisation are one kernel.
    """

    def __init__(self, space: Workspace, parts: int = 1) -> None:
        self.space, self._parts = space, parts
        self.emitter, self.program = Emitter(space.p.layouts), space.program()
        self._grid_index = ir.var("g")
        self.matrix, self.part = divmod(self._grid_index, self.size(parts))
        self.pitch = self.size(space.pitch)

    def size(self, n: int) -> Expr:
        return self.emitter.scalar_arg(n)

    def planes(self, value: Value, access: str = "write") -> Planes:
        """Of the workspace or the panel."""
        p, elements = self.program, value.shape[1]
        start = p.let(ir.mul(self.matrix, self.size(elements)))
        plane = self.size(elements // self.space.components)
        return Planes(p, self.emitter.buffer(value, access), start, self.pitch, plane)

    def chunks(self, value: Value, access: str = "write") -> Chunks:
        p, space = self.program, self.space
        start = p.let(ir.mul(self.matrix, self.size(value.shape[1])))
        buffer = self.emitter.buffer(value, access)
        return Chunks(p, buffer, start, space.block, space.near_pitch)

    def rows_of(self, value: Value, columns: int, access: str = "write") -> Matrix:
        """A value (batch, rows, columns)."""
        p = self.program
        start = p.let(ir.mul(self.matrix, self.size(value.size // max(self.space.batch, 1))))
        buffer = self.emitter.buffer(value, access)
        return Matrix(p, buffer, start, self.size(columns))

    def right_hand_side(self, i: Expr, j: Expr) -> Number:
        """An element of the second operand, or of an identity."""
        p, inputs = self.program, self.space.val.inputs
        if len(inputs) == 1:
            return real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
        found = self.emitter.value(inputs[1], (self.matrix, i, j))
        return found if inputs[1].dtype.is_complex else (found,)

    def near(self, rows: int, columns: int) -> Planes:
        """Memory of a worker."""
        p = self.program
        size = const(rows * columns * p.components)
        self.emitter.scratch.append(ir.Buffer("near", p.real, "scratch", size))
        plane = const(rows * columns)
        found = Planes(p, self.emitter.scratch[-1], ZERO, const(columns), plane)
        found.rows = rows
        return found

    def span(self, number: Expr, first: int = 0, end: int | None = None) -> Span:
        """The rows or columns of a block, counted from one on."""
        p, size = self.program, self.size(self.space.block)
        start = p.let(ir.add(self.size(first), ir.mul(number, size)))
        stop = self.size(self.space.order if end is None else end)
        return start, p.let(ir.minimum(ir.add(start, size), stop))

    def done(self, name: str) -> None:
        grid = self.space.batch * self._parts
        body = self.program.body
        made: LoweredKernel = self.emitter.grid_kernel(name, self._grid_index, body, grid, (name,))
        self.space.steps.append(made)


def _fill(space: Workspace, lower: bool) -> None:
    """The operand, or its lower triangle, and an identity beyond it."""
    task = Task(space, space.blocks())
    p, val, n = task.program, space.val.inputs[0], task.size(space.n)
    work = task.planes(space.work)
    start, stop = task.span(task.part)
    one, none = p.constant(1.0), p.constant(0.0)

    def element(i: Expr, j: Expr) -> Number:
        found = task.emitter.value(val, (task.matrix, i, j))
        return found if val.dtype.is_complex else (found,)

    end = stop if lower else task.size(space.order)
    inside = p.let(ir.minimum(stop, n))
    with p.loop(start, inside) as i:
        last = p.let(ir.add(i, const(1))) if lower else n
        with p.lanes(ZERO, last) as j:
            work[i, j] = element(i, j)
        with p.lanes(last, end) as j:
            work[i, j] = zero(p)
    with p.loop(p.let(ir.maximum(start, n)), stop) as i, p.lanes(ZERO, end) as j:
        work[i, j] = real(p, select(i.eq(j), one, none))
    task.done("pad")


# -- Cholesky -------------------------------------------------------------------------------------


def lower_cholesky(p: Problem) -> Kernels:
    space = Workspace(p)
    _fill(space, lower=True)
    for first in space.starts():
        count = space.count(first)
        last = first + count
        _cholesky_diagonal(space, first, count)
        if last == space.order:
            break
        task = Task(space, space.blocks(last))
        work, own = task.planes(space.work), task.chunks(space.chunks).at(task.part)
        span = task.span(task.part, last)
        diagonal = task.size(first), task.size(count)
        cholesky.substitute(task.program, work, own, diagonal, span)
        task.done("cholesky")
        _cholesky_update(space, last, count)
    _cholesky_result(space)
    return space.steps


def _cholesky_diagonal(space: Workspace, first: int, count: int) -> None:
    task = Task(space)
    near = task.near(space.block, space.block)
    work = task.planes(space.work)
    cholesky.factorise(task.program, work, near, task.size(first), task.size(count))
    task.done("cholesky")


def _cholesky_update(space: Workspace, last: int, count: int) -> None:
    blocks = space.blocks(last)
    task = Task(space, blocks * blocks)
    p = task.program
    down, across = divmod(task.part, task.size(blocks))
    work, chunks = task.planes(space.work), task.chunks(space.chunks, "read")
    spans = task.span(p.let(down), last), task.span(p.let(across), last)
    with p.when(p.let(across <= down)):
        both = chunks.at(down), chunks.at(across)
        cholesky.update(p, work, both, spans, task.size(count))
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
    more = Value.fresh("workspace", "barrier", (), None, space.chunks.shape, space.real)
    memory = _LuMemory(found, space.memory(space.block), (space.chunks, more))
    task = Task(space)
    _lu_panel(space, task, memory, 0)
    task.done("lu")
    for first in space.starts():
        if space.all_blocks > 1:
            _lu_update(space, memory, first)
    return found


def lower_lu(p: Problem) -> Kernels:
    space = Workspace(p)
    _fill(space, lower=False)
    found = _eliminate(space)
    task = Task(space)
    lu.order(task.program, task.rows_of(found, space.order), task.size(space.n))
    task.done("lu")
    _lu_result(space, found)
    return space.steps


def _lu_panel(space: Workspace, task: Task, memory: _LuMemory, first: int) -> None:
    p, start, columns = task.program, task.size(first), task.size(space.count(first))
    end = task.size(space.order)
    work, panel = task.planes(space.work), task.planes(memory.panel)
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
    beside = ir.sub(number, task.size(space.blocks()))
    is_beside = p.let(beside >= const(0))
    spans = task.span(number), task.span(beside, space.order, space.columns)
    start, stop = (p.let(select(is_beside, y, x)) for x, y in zip(*spans, strict=True))
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
    _fill(space, lower=False)
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
    blocks = -(-(space.columns - space.order) // space.block)
    task = Task(space, blocks)
    near = task.near(space.block, space.near_pitch)
    span = task.span(task.part, space.order, space.columns)
    order = task.size(space.order)
    lu.substitute_back(task.program, task.planes(space.work), near, order, span)
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


# -- the schedule ---------------------------------------------------------------------------------

_LOWERINGS: dict[str, Callable[[Problem], Kernels]] = {
    "lower_cholesky": lower_cholesky,
    "lu": lower_lu,
    "direct_solve": lower_solve,
    "direct_inverse": lower_solve,
}


def runs_in_blocks(p: Problem) -> bool:
    """A large square matrix of a CPU."""
    if p.target.simt or p.val.op not in _LOWERINGS:
        return False
    m, n = p.val.inputs[0].shape[1:]
    return m == n >= TUNING.min_order


def lower_blocked(p: Problem) -> Kernels:
    return _LOWERINGS[p.val.op](p)
