"""Hermitian eigenproblems and singular values on a CPU: sequences of kernels on one workspace.

A panel of the reduction is a task per matrix, its update a task per block. Eigenvectors are those
of the tridiagonal matrix by divide and conquer, reflected. For singular vectors, a task for each
range of columns rotates the products of reflectors: all find the rotations for themselves, which
take n².
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.factor import divide_and_conquer
from numus.compiler.lower.factor.workspace import TUNING as BLOCKED
from numus.compiler.lower.factor.workspace import RealTask, Task, Workspace, fill
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const, select
from numus.kernels.factor import bidiagonal, placing, rotations, tridiagonal
from numus.kernels.factor.blocked import bidiagonal as bidiagonal_panels
from numus.kernels.factor.blocked import lu, panels, qr
from numus.kernels.factor.blocked import tridiagonal as tridiagonal_panels
from numus.kernels.factor.blocked.tiles import Planes, TileProgram, transposed
from numus.kernels.factor.program import (
    ONE,
    ZERO,
    Matrix,
    Number,
    Program,
    Span,
    conjugate,
    real,
    scaled,
    zero,
)
from numus.kernels.factor.rotations import Strips, Sweeps


@dataclass(frozen=True)
class SpectraTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    block: int = 32  # columns of a panel: corrections take as long as products with the matrix
    min_columns: int = 64  # of vectors that a task rotates


TUNING = SpectraTuning()

_KEYS, _PLACES = 2, 3  # rows of a work, after the diagonal and what is beside it
_ROWS = 4

Reflectors = tuple[int, Value, Value]  # the first row of a panel, V in chunks, the inverse of T


def lower_eigh(p: Problem) -> Kernels:
    """Eigenvalues above eigenvectors in columns."""
    space = Workspace(p, block=TUNING.block)
    found = space.flat(space.components * tridiagonal_panels.FOUND * space.pitch)
    reflectors = _tridiagonalised(space, found)
    if not p.val.params:
        _values(space, found, tridiagonal.iterate, descending=False)
        return space.steps
    whole = space.memory(space.order)
    divide_and_conquer.solve(space, found, whole)
    _reflected(space, whole, reflectors, 0, space.order, triangular=False)
    divide_and_conquer.store(space, whole)
    return space.steps


def lower_svd(p: Problem) -> Kernels:
    """U, then V below it, then a row of singular values, of matrices with m >= n."""
    space = Workspace(p, block=TUNING.block)
    found = space.flat(space.components * bidiagonal_panels.FOUND * space.pitch)
    left, right = _bidiagonalised(space, found)
    if not p.val.params:
        _values(space, found, bidiagonal.iterate, descending=True)
        return space.steps
    whole = space.memory(space.rows + space.order)
    _accumulated(space, whole, left, 0, space.rows)
    _accumulated(space, whole, right, space.rows, space.order)
    sides = (
        _Side(0, space.m, space.rows, 0),
        _Side(space.rows, space.n, space.order, space.m),
    )
    _rotated(space, found, whole, sides)
    return space.steps


# -- reductions -----------------------------------------------------------------------------------


def _tridiagonalised(space: Workspace, found: Value) -> list[Reflectors]:
    _fill_hermitian(space)
    rows = space.panel(), space.panel()
    chunks_w = space.chunks()
    made: list[Reflectors] = []
    for first in space.starts():
        count = space.count(first)
        last = first + count
        made.append((first, space.chunks(first), space.square()))
        task = Task(space)
        p, end, at = task.program, task.size(space.order), (task.size(first), task.size(count))
        v, w = (task.planes(value, pitch=space.rows_pitch) for value in rows)
        results = task.planes(found)
        inner = task.near(2, space.block)
        tridiagonal_panels.reduce(
            *(p, task.planes(space.work), (v, w), results, inner, at, end, space.block)
        )
        lu.pack(p, w, task.chunks(chunks_w), (at[0], end), at[1])
        _keep(task, made[-1], v, (results, tridiagonal_panels.TAU), at, end)
        task.done("tridiagonal")
        if last == space.order:
            break
        blocks = space.blocks(last)
        task = Task(space, blocks * blocks)
        p = task.program
        down, across = divmod(task.part, task.size(blocks))
        spans = task.span(p.let(down), last), task.span(p.let(across), last)
        work = task.planes(space.work)
        values = task.chunks(made[-1][1], "read"), task.chunks(chunks_w, "read")
        with p.when(p.let(across >= down)):
            own, other = (p.let(ir.add(number, ONE)) for number in (down, across))
            taken, rotated = values
            pairs = (taken.at(own), rotated.at(own)), (taken.at(other), rotated.at(other))
            tridiagonal_panels.update(p, work, pairs, spans, task.size(count))
        task.done("tridiagonal")
    return made


def _bidiagonalised(space: Workspace, found: Value) -> tuple[list[Reflectors], list[Reflectors]]:
    fill(space, unit=0.0)
    tall = space.panel(), space.panel()
    wide = [space.flat(space.components * space.block * space.pitch) for _ in range(2)]
    chunks_x, chunks_y = space.chunks(), space.chunks()
    left: list[Reflectors] = []
    right: list[Reflectors] = []
    for first in space.starts():
        count = space.count(first)
        last = first + count
        left.append((first, space.chunks(first), space.square()))
        right.append((first, space.chunks(first), space.square()))
        task = Task(space)
        p, at = task.program, (task.size(first), task.size(count))
        bottom, end = task.size(space.rows), task.size(space.order)
        u, x = (task.planes(value, pitch=space.rows_pitch) for value in tall)
        y, v = (task.planes(value) for value in wide)
        results = task.planes(found)
        inner = task.near(2, space.block)
        panel = bidiagonal_panels.Panel(u, x, y, v)
        work = task.planes(space.work)
        bidiagonal_panels.reduce(p, work, panel, results, inner, at, (bottom, end))
        lu.pack(p, x, task.chunks(chunks_x), (at[0], bottom), at[1])
        lu.pack(p, y, task.chunks(chunks_y), (at[0], end), at[1])
        _keep(task, left[-1], u, (results, bidiagonal_panels.LEFT), at, bottom)
        _keep(task, right[-1], v, (results, bidiagonal_panels.RIGHT), at, end)
        task.done("bidiagonal")
        if last == space.order:
            break
        blocks = space.blocks(last)
        down_blocks = -(-(space.rows - last) // space.block)
        task = Task(space, down_blocks * blocks)
        p = task.program
        down, across = (p.let(number) for number in divmod(task.part, task.size(blocks)))
        spans = task.span(down, last, space.rows), task.span(across, last)
        own, other = (p.let(ir.add(number, ONE)) for number in (down, across))

        def near(chunks: Value, number: Expr, task: Task = task) -> Planes:
            return task.chunks(chunks, "read").at(number)

        pairs = (
            (near(left[-1][1], own), near(chunks_x, own)),
            (near(chunks_y, other), near(right[-1][1], other)),
        )
        work = task.planes(space.work)
        bidiagonal_panels.update(p, work, pairs, spans, task.size(count))
        task.done("bidiagonal")
    return left, right


def _keep(
    task: Task,
    reflectors: Reflectors,
    v: Planes,
    taus: tuple[Planes, Expr],
    at: Span,
    end: Expr,
) -> None:
    """V of a panel in chunks, and the inverse of T where vectors are wanted."""
    (first, count), (results, row), p = at, taus, task.program
    lu.pack(p, v, task.chunks(reflectors[1]), (first, end), count)
    if task.space.val.params:
        t = task.planes(reflectors[2], pitch=task.space.near_pitch)
        panels.triangle(p, v, t, lambda c: results[row, ir.add(first, c)], (first, end), count)


def _fill_hermitian(space: Workspace) -> None:
    """X with X + Xᴴ = A, whose lower triangle is read: block upper triangular, by a task for each
    block of columns."""
    task = Task(space, space.blocks())
    p, n, given = task.program, task.size(space.n), space.val.inputs[0]
    work = task.planes(space.work)
    near = task.near(space.block, space.near_pitch)
    start, stop = task.span(task.part)  # of rows of A, which become columns of X
    inside = p.let(ir.minimum(stop, n))

    def element(i: Expr, j: Expr) -> Number:
        found = task.emitter.value(given, (task.matrix, i, j))
        return conjugate(found) if given.dtype.is_complex else (found,)

    with p.loop(ZERO, p.let(ir.add(task.part, ONE))) as number:
        left, right = task.span(number)
        with p.loop(start, inside) as i:
            row = p.let(ir.sub(i, start))
            end = p.let(ir.minimum(right, i))
            with p.lanes(left, end) as j:
                near[row, ir.sub(j, left)] = element(i, j)
            with p.lanes(end, right) as j:
                near[row, ir.sub(j, left)] = zero(p)
            with p.when(p.let(number.eq(task.part))):
                half = scaled(element(i, i), p.constant(0.5))
                near[row, row] = real(p, half[0])
        with p.loop(p.let(ir.maximum(start, n)), stop) as i, p.lanes(left, right) as j:
            near[ir.sub(i, start), ir.sub(j, left)] = zero(p)
        height = p.let(ir.sub(stop, start))
        transposed(
            p, near, work.moved(left, start), (ZERO, height), (ZERO, p.let(ir.sub(right, left)))
        )
    task.done("pad")


# -- vectors --------------------------------------------------------------------------------------


def _accumulated(
    space: Workspace, whole: Value, reflectors: list[Reflectors], top: int, end: int
) -> None:
    """The product of reflectors in rows from `top` on: they are applied in reverse to an
    identity."""
    task = Task(space, -(-end // space.block))
    p = task.program
    own = task.planes(whole).moved(task.size(top), ZERO)
    rows = task.span(task.part, end=end)
    with p.loop(*rows) as i, p.lanes(ZERO, task.size(space.order)) as j:
        own[i, j] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
    task.done("eye")
    _reflected(space, whole, reflectors, top, end, triangular=True)


def _reflected(
    space: Workspace,
    whole: Value,
    reflectors: list[Reflectors],
    top: int,
    end: int,
    *,
    triangular: bool,
) -> None:
    """Reflectors applied in reverse to rows from `top` on. Columns before the first of a panel are
    those of an identity where it is `triangular`."""
    for first, chunks, t in reversed(reflectors):
        left = first if triangular else 0
        task = Task(space, space.blocks(left))
        p = task.program
        own = task.planes(whole).moved(task.size(top), ZERO)
        near = task.near(space.block, space.near_pitch)
        panel = task.chunks(chunks, "read"), task.planes(t, "read", space.near_pitch)
        at = task.size(first), task.size(space.count(first))
        spans = at, task.span(task.part, left), task.size(end)
        qr.apply(p, own, panel, near, spans, adjoint=False)
        task.done("reflect")


@dataclass(frozen=True)
class _Side:
    """Vectors of one side: the first of their rows among those of all sides, how many elements
    they have, padded how many, and the first row of the result."""

    row: int
    extent: int
    padded: int
    top: int


class _Work(RealTask):
    """A task that finds eigenvalues or singular values."""

    def __init__(self, space: Workspace, parts: int, rotates: bool) -> None:
        super().__init__(space, parts)
        p, e = self.program, self.emitter
        self.depth = rotations.depth(space.p.target.vector_registers)
        angles = rotations.angles_of(space.n, self.depth) if rotates else 0
        size = self.size(_ROWS * space.n + angles)
        e.scratch.append(ir.Buffer("near", p.real, "scratch", size))
        self.condensed = Planes(p, e.scratch[-1], ZERO, self.n, ZERO)
        self.angles = self.condensed.moved(const(_ROWS), ZERO)

    def load(self, found: Value) -> None:
        """Two rows of what a reduction has found."""
        p = self.program
        given = self.parts_of(found, self.pitch)[0]
        with p.lanes(ZERO, self.n) as i:
            for row in (ZERO, ONE):
                self.condensed[row, i] = given[row, i]

    def sort(self, descending: bool) -> None:
        p, t = self.program, self.condensed
        with p.lanes(ZERO, self.n) as i:
            value = t[ZERO, i][0]
            t[const(_KEYS), i] = (-ir.unary("abs", value) if descending else value,)
        placing.places(p, t, _KEYS, self.n)

    def place(self, i: Expr) -> Expr:
        return self.condensed[const(_PLACES), i][0].cast(ir.INDEX)

    def write(self, row: Expr, descending: bool) -> None:
        """The values in a row of the result."""
        p, t, space = self.program, self.condensed, self.space
        parts = space.components
        out = self.result()
        with p.loop(ZERO, self.n) as i:
            value = p.let(t[const(_KEYS), i][0])
            at = p.let(ir.mul(self.place(i), const(parts)))
            out[row, at] = (-value if descending else value,)
            if parts == 2:
                out[row, ir.add(at, ONE)] = (p.constant(0.0),)


def _values(
    space: Workspace,
    found: Value,
    iterate: Callable[[Program, Matrix, Expr], None],
    *,
    descending: bool,
) -> None:
    """Values alone."""
    task = _Work(space, 1, rotates=False)
    task.load(found)
    iterate(task.program, task.condensed, task.n)
    task.sort(descending)
    task.write(ZERO, descending)
    task.done("values")


def _rotated(space: Workspace, found: Value, whole: Value, sides: tuple[_Side, _Side]) -> None:
    """The vectors of both sides, by the rotations that diagonalise what was found, as columns."""
    tile = space.program().tile
    cores, longest = space.p.target.num_cores, max(side.padded for side in sides)
    parts = -(-cores // (2 * max(space.batch, 1)))
    parts = max(1, min(parts, longest // TUNING.min_columns))
    task = _Work(space, 2 * parts, rotates=True)
    p, n, depth = task.program, task.n, task.depth
    number, part = divmod(task.part, task.size(parts))
    is_second = p.let(number.eq(1))

    def of(left: int, right: int) -> Expr:
        """What a side has."""
        return p.let(select(is_second, task.size(right), task.size(left)))

    left, right = sides
    height = space.order + 2 * depth
    plane = height * (left.padded + right.padded)
    vectors = space.flat(space.components * plane)
    per_part = of(*(-(-side.padded // (parts * tile)) for side in sides))
    end = of(*(side.padded // tile for side in sides))
    first_strip = p.let(ir.minimum(ir.mul(part, per_part), end))
    strips = first_strip, p.let(ir.minimum(ir.add(first_strip, per_part), end))
    start = ir.mul(task.matrix, task.size(space.components * plane))
    start = p.let(start + of(0, height * left.padded))
    buffer = task.emitter.buffer(vectors, "write")
    rotated = [
        Strips(p, buffer, p.let(start + task.size(plane * component)), task.size(height), depth)
        for component in range(space.components)
    ]
    row = of(left.row, right.row)
    given = task.parts_of(whole, task.pitch, first=p.let(ir.mul(row, task.pitch)))
    order = task.size(space.order)
    for source, to in zip(given, rotated, strict=True):
        with p.loop(*strips) as number:
            taken = source.moved(ir.mul(number, const(tile)), ZERO)
            _load_strip(p, taken, to.at(number), order, depth)
    task.load(found)
    sweeps = Sweeps(p, task.angles, n, depth)
    bidiagonal.iterate(
        *(p, task.condensed, n, (sweeps, is_second)), lambda: sweeps.apply(rotated, strips)
    )
    task.sort(descending=True)
    out, top, components = task.result(), of(left.top, right.top), space.components
    extent = of(left.extent, right.extent)
    for component, matrix in enumerate(rotated):
        with p.loop(*strips) as number:
            rows, first = matrix.at(number), p.let(ir.mul(number, const(tile)))

            def store(
                j: Expr, at: Expr, x: Expr, first: Expr = first, offset: int = component
            ) -> None:
                column = ir.add(ir.mul(at, const(components)), const(offset))
                out[ir.add(ir.add(top, first), j), column] = (x,)

            _take_signs(p, task.condensed, rows, is_second, n, (ZERO, const(tile)))
            width = p.let(ir.minimum(const(tile), ir.sub(extent, first)))
            placing.scatter(p, rows, task.place, store, n, (ZERO, width))
    with p.when(p.let(task.part.eq(0))):
        task.write(task.size(space.m + space.n), descending=True)
    task.done("svd")


def _load_strip(p: TileProgram, source: Planes, to: Planes, order: Expr, depth: int) -> None:
    """Rows of a matrix as columns, between rows of zeros."""
    columns = ZERO, const(p.tile)
    transposed(p, source, to, columns, (ZERO, order))
    for low, high in ((const(-depth), ZERO), (order, ir.add(order, const(depth)))):
        with p.loop(low, high) as i, p.lanes(*columns) as j:
            to[i, j] = (p.constant(0.0),)


def _take_signs(
    p: TileProgram, condensed: Matrix, rows: Matrix, is_second: Expr, n: Expr, columns: Span
) -> None:
    """Vectors of the right take the signs of their values."""
    with p.when(is_second), p.loop(ZERO, n) as i:
        negative = p.let(condensed[ZERO, i][0] < p.constant(0.0))
        with p.when(negative), p.lanes(*columns) as j:
            rows[i, j] = (-rows[i, j][0],)


# -- the schedule ---------------------------------------------------------------------------------

_LOWERINGS: dict[str, Callable[[Problem], Kernels]] = {"eigh": lower_eigh, "svd": lower_svd}


def runs_as_spectrum(p: Problem) -> bool:
    """A matrix of a CPU, unless it is one of many small ones for the lanes of vectors."""
    if p.target.simt or p.val.op not in _LOWERINGS:
        return False
    batch, m, n = p.val.inputs[0].shape
    small = m == n < BLOCKED.min_order and batch >= BLOCKED.min_batch
    return p.val.dtype.is_complex or not small


def lower_spectra(p: Problem) -> Kernels:
    return _LOWERINGS[p.val.op](p)
