"""Hermitian eigenproblems and singular values on a CPU: sequences of kernels on one workspace.

A panel of the reduction is a task per matrix, its update a task per block. Vectors are those of the
condensed matrix by divide and conquer, reflected.
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
from numus.ir import Expr, const
from numus.kernels.factor import bidiagonal, placing, tridiagonal
from numus.kernels.factor.blocked import bidiagonal as bidiagonal_panels
from numus.kernels.factor.blocked import lu, panels, qr
from numus.kernels.factor.blocked import tridiagonal as tridiagonal_panels
from numus.kernels.factor.blocked.tiles import Planes, transposed
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


@dataclass(frozen=True)
class SpectraTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    block: int = 32  # columns of a panel: corrections take as long as products with the matrix


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
    divide_and_conquer.eigenvectors(space, found, whole)
    reflect(space, whole, reflectors, 0, space.order)
    divide_and_conquer.store(space, whole, 0, space.n, 1)
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
    divide_and_conquer.singular_vectors(space, found, whole)
    reflect(space, whole, left, 0, space.rows)
    reflect(space, whole, right, space.rows, space.order)
    divide_and_conquer.store(space, whole, 0, space.m, 0)
    divide_and_conquer.store(space, whole, space.rows, space.n, space.m)
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


def reflect(
    space: Workspace,
    whole: Value,
    reflectors: list[Reflectors],
    top: int,
    end: int,
    *,
    identity: bool = False,
) -> None:
    """Reflectors applied in reverse to rows from `top` on; of an `identity`, those of a panel leave
    the columns before it alone."""
    for first, chunks, t in reversed(reflectors):
        left = first if identity else 0
        task = Task(space, space.blocks(left))
        p = task.program
        own = task.planes(whole).moved(task.size(top), ZERO)
        near = task.near(space.block, space.near_pitch)
        panel = task.chunks(chunks, "read"), task.planes(t, "read", space.near_pitch)
        at = task.size(first), task.size(space.count(first))
        spans = at, task.span(task.part, left), task.size(end)
        qr.apply(p, own, panel, near, spans, adjoint=False)
        task.done("reflect")


def _values(
    space: Workspace,
    found: Value,
    iterate: Callable[[Program, Matrix, Expr], None],
    *,
    descending: bool,
) -> None:
    """Values alone."""
    task = RealTask(space)
    p, n, parts = task.program, task.n, space.components
    size = task.size(_ROWS * space.n)
    task.emitter.scratch.append(ir.Buffer("near", p.real, "scratch", size))
    t = Planes(p, task.emitter.scratch[-1], ZERO, n, ZERO)
    given = task.parts_of(found, task.pitch)[0]
    with p.lanes(ZERO, n) as i:
        for row in (ZERO, ONE):
            t[row, i] = given[row, i]
    iterate(p, t, n)
    with p.lanes(ZERO, n) as i:
        value = t[ZERO, i][0]
        t[const(_KEYS), i] = (-ir.unary("abs", value) if descending else value,)
    placing.places(p, t, _KEYS, n)
    out = task.result()
    with p.loop(ZERO, n) as i:
        value = p.let(t[const(_KEYS), i][0])
        at = p.let(ir.mul(t[const(_PLACES), i][0].cast(ir.INDEX), const(parts)))
        out[ZERO, at] = (-value if descending else value,)
        if parts == 2:
            out[ZERO, ir.add(at, ONE)] = (p.constant(0.0),)
    task.done("values")


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
