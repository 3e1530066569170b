"""The workspace of factorisations in place, and tasks on it: what their sequences of kernels share.

It is the operand, padded to a multiple of the register tile, in rows of an odd number of cache
lines.
"""

from __future__ import annotations

from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const, select
from numus.kernels.factor.blocked.tiles import Chunks, Planes, TileProgram
from numus.kernels.factor.program import ZERO, Matrix, Number, Span, real, zero
from numus.shapes import Shape

LINE_BYTES = 64


@dataclass(frozen=True)
class BlockedTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    min_order: int = 65  # of matrices that are factorised in blocks
    min_batch: int = 16  # of smaller ones that are not
    block: int = 64  # columns of a panel, and rows and columns of a task


TUNING = BlockedTuning()


class Workspace:
    """What the kernels of one factorisation share."""

    def __init__(self, p: Problem, right: int = 0, block: int = TUNING.block) -> None:
        """`right`: columns of right-hand sides beside the matrix."""
        self.p, self.val = p, p.val
        self.batch, self.m, self.n = p.val.inputs[0].shape
        self.real = dt.real_of(p.val.dtype)
        self.components = 2 if p.val.dtype.is_complex else 1
        program = self.program()
        self.order = -(-self.n // program.tile) * program.tile
        self.rows = -(-self.m // program.tile) * program.tile
        line = LINE_BYTES // self.real.itemsize
        self.columns = self.order + -(-right // program.width) * program.width
        self.pitch = (-(-self.columns // line) | 1) * line
        self.rows_pitch = (-(-self.rows // line) | 1) * line
        self.block = block
        self.work = self.memory(self.rows)
        self.near_pitch = self.block + line
        self.steps: Kernels = []

    def program(self, components: int = 0) -> TileProgram:
        target = self.p.target
        width = target.vector_bytes // self.real.itemsize
        components = components or self.components
        return TileProgram(self.real, components, width, target.vector_registers)

    def memory(self, rows: int) -> Value:
        return self.flat(self.components * rows * self.pitch)

    def panel(self) -> Value:
        """The columns of a panel, contiguous."""
        return self.flat(self.components * self.block * self.rows_pitch)

    def square(self) -> Value:
        """A matrix of the order of a panel."""
        return self.flat(self.components * self.block * self.near_pitch)

    def flat(self, elements: int) -> Value:
        shape: Shape = (self.batch, elements)
        return Value.fresh("workspace", "barrier", (), None, shape, self.real)

    def chunks(self, first: int = 0) -> Value:
        """Memory for the columns of a panel in chunks of rows, from one on."""
        plane = self.block * self.near_pitch
        return self.flat(-(-(self.rows - first) // self.block) * self.components * plane)

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

    def __init__(self, space: Workspace, parts: int = 1, components: int = 0) -> None:
        """`components`: 1 where parts of complex numbers are handled alike."""
        self.space, self._parts = space, parts
        self.emitter, self.program = Emitter(space.p.layouts), space.program(components)
        self._grid_index = ir.var("g")
        self.matrix, self.part = divmod(self._grid_index, self.size(parts))
        self.pitch = self.size(space.pitch)

    def size(self, n: int) -> Expr:
        return self.emitter.scalar_arg(n)

    def planes(self, value: Value, access: str = "write", pitch: int = 0) -> Planes:
        """A matrix, in rows of the workspace unless a pitch is given."""
        p, elements = self.program, value.shape[1]
        start = p.let(ir.mul(self.matrix, self.size(elements)))
        plane = self.size(elements // self.space.components)
        return Planes(
            p,
            self.emitter.buffer(value, access),
            start,
            self.size(pitch) if pitch else self.pitch,
            plane,
        )

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

    def near(self, rows: int, columns: int, name: str = "near") -> Planes:
        """Memory of a worker."""
        p = self.program
        size = const(rows * columns * p.components)
        self.emitter.scratch.append(ir.Buffer(name, p.real, "scratch", size))
        plane = const(rows * columns)
        found = Planes(p, self.emitter.scratch[-1], ZERO, const(columns), plane)
        found.rows = rows
        return found

    def worker_rows(self, rows: int, name: str) -> Planes:
        """As `near`, of any number of rows of a block's columns."""
        p, space = self.program, self.space
        plane = self.emitter.dim(rows * space.near_pitch)
        size = self.emitter.dim(rows * space.near_pitch * p.components)
        self.emitter.scratch.append(ir.Buffer(name, p.real, "scratch", size))
        return Planes(p, self.emitter.scratch[-1], ZERO, const(space.near_pitch), plane)

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


class RealTask(Task):
    """A task on real numbers, among them those of complex matrices."""

    def __init__(self, space: Workspace, parts: int = 1) -> None:
        super().__init__(space, parts, components=1)
        self.n = self.size(space.n)

    def matrix_of(self, value: Value, pitch: int, access: str = "write") -> Planes:
        """A matrix of real numbers."""
        start = self.program.let(ir.mul(self.matrix, self.size(value.shape[1])))
        buffer = self.emitter.buffer(value, access)
        return Planes(self.program, buffer, start, self.size(pitch), ZERO)

    def parts_of(
        self, value: Value, pitch: Expr, access: str = "write", first: Expr = ZERO
    ) -> list[Planes]:
        """The parts of a matrix that begins at an element of each."""
        p, components = self.program, self.space.components
        start = p.let(ir.mul(self.matrix, self.size(value.shape[1])))
        buffer = self.emitter.buffer(value, access)
        plane = value.shape[1] // components
        return [
            Planes(p, buffer, p.let(start + self.size(part * plane) + first), pitch, ZERO)
            for part in range(components)
        ]

    def result(self) -> Matrix:
        """The result, whose columns are parts of numbers."""
        p, val = self.program, self.space.val
        columns = val.shape[2] * self.space.components
        start = p.let(ir.mul(self.matrix, self.size(val.shape[1] * columns)))
        return Matrix(p, self.emitter.buffer(val, "write"), start, self.size(columns))


def fill(
    space: Workspace, lower: bool = False, unit: float = 1.0, *, reversed_: bool = False
) -> None:
    """The operand, or its lower triangle, of rows and columns in reverse on demand; beyond it
    zeros, and `unit` on the diagonal."""
    task = Task(space, -(-space.rows // space.block))
    p, val = task.program, space.val.inputs[0]
    m, n = task.size(space.m), task.size(space.n)
    work = task.planes(space.work)
    start, stop = task.span(task.part, end=space.rows)

    def element(i: Expr, j: Expr) -> Number:
        found = task.emitter.value(val, (task.matrix, i, j))
        return found if val.dtype.is_complex else (found,)

    def at(i: Expr, size: Expr) -> Expr:
        return ir.sub(ir.sub(size, const(1)), i) if reversed_ else i

    end = stop if lower else task.size(space.order)
    inside = p.let(ir.minimum(stop, m))
    with p.loop(start, inside) as i:
        last = p.let(ir.add(i, const(1))) if lower else n
        with p.lanes(ZERO, last) as j:
            work[i, j] = element(at(i, m), at(j, n))
        with p.lanes(last, end) as j:
            work[i, j] = zero(p)
    with p.loop(p.let(ir.maximum(start, m)), stop) as i, p.lanes(ZERO, end) as j:
        work[i, j] = real(p, select(i.eq(j), p.constant(unit), p.constant(0.0)))
    task.done("pad")
