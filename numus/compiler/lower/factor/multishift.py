"""Schur forms of real matrices by multishift QR, one matrix per task: in memory of a worker, whose
rows are of an odd number of cache lines."""

from __future__ import annotations

from numus import ir
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.ir import const
from numus.kernels.factor.blocked.tiles import Planes, TileProgram
from numus.kernels.factor.multishift import chains, deflation
from numus.kernels.factor.multishift.iteration import TUNING, Memory, iterate
from numus.kernels.factor.program import ZERO, Matrix

LINE_BYTES = 64


def takes_many_shifts(p: Problem) -> bool:
    val = p.val
    return val.op == "schur" and not val.dtype.is_complex and val.shape[2] >= TUNING.min_order


def lower_multishift(p: Problem) -> Kernels:
    val, given = p.val, p.val.inputs[0]
    batch, rows, n = val.shape
    e = Emitter(p.layouts)
    matrix, order = ir.var("g"), e.dim(n)
    width = p.target.vector_bytes // val.dtype.itemsize
    program = TileProgram(val.dtype, 1, width, p.target.vector_registers)
    memory = _Memory(e, program, n)
    m = memory.made()
    out = Matrix(
        program, e.buffer(val, "write"), program.let(ir.mul(matrix, e.dim(rows * n))), order
    )
    halves = (m.h, ZERO), (m.z, order)
    for half, top in halves:
        with program.loop(ZERO, order) as i, program.lanes(ZERO, order) as j:
            half[i, j] = (e.value(given, (matrix, ir.add(top, i), j)),)
    left = iterate(program, m, order)
    for half, top in halves:
        with program.loop(ZERO, order) as i, program.lanes(ZERO, order) as j:
            out[ir.add(top, i), j] = half[i, j]
    last = program.let(ir.add(order, order))
    with program.lanes(ZERO, order) as j:
        out[last, j] = (program.constant(0.0),)
    out[last, ZERO] = (left.cast(program.real),)
    return [e.grid_kernel(val.op, matrix, program.body, batch, (val.op,))]


class _Memory:
    """Scratch memory of a worker."""

    def __init__(self, e: Emitter, p: TileProgram, n: int) -> None:
        self._e, self._p, self._n = e, p, n
        self._line = LINE_BYTES // p.real.itemsize
        # rows of windows begin anywhere and are read in whole vectors
        self._pitch = self._odd(n + p.width)

    def _odd(self, columns: int) -> int:
        return (-(-columns // self._line) | 1) * self._line

    def _scratch(self, name: str, rows: int, pitch: int, fixed: bool) -> Planes:
        size = const(rows * pitch) if fixed else self._e.dim(rows * pitch)
        self._e.scratch.append(ir.Buffer(name, self._p.real, "scratch", size))
        stride = const(pitch) if fixed else self._e.dim(pitch)
        return Planes(self._p, self._e.scratch[-1], ZERO, stride, ZERO)

    def _small(self, name: str, rows: int, columns: int) -> Planes:
        return self._scratch(name, rows, self._odd(columns), fixed=True)

    def _wide(self, name: str, rows: int) -> Planes:
        return self._scratch(name, rows, self._pitch, fixed=False)

    def made(self) -> Memory:
        rows, chain = TUNING.rows, chains.TUNING
        window = deflation.Window(
            form=self._small("form", 2 * rows + 1, rows),
            bordered=self._small("bordered", 2 * rows + 3, rows + 1),
            vectors=self._small("vectors", rows, rows),
            rows=self._wide("rows", rows),
            shifts=self._small("shifts", 3, rows),
        )
        return Memory(
            h=self._wide("h", self._n),
            z=self._wide("z", self._n),
            above=self._wide("above", chain.window + self._p.width),
            reflectors=self._small("reflectors", chain.reflectors, chains.KEPT),
            window=window,
        )
