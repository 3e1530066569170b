"""Eigenvectors of tridiagonal matrices on a CPU by divide and conquer: kernels of all merges of a
level.

Vectors are rows of two matrices, from one of which a level goes to the other. A task deflates a
merge; tasks for ranges of roots then find these, the weights of the vectors, and the vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.factor.workspace import RealTask, Task, Workspace
from numus.ir import Expr, const, select
from numus.kernels.factor import placing, tridiagonal
from numus.kernels.factor.blocked import divide_and_conquer as merges
from numus.kernels.factor.blocked import tridiagonal as tridiagonal_panels
from numus.kernels.factor.blocked.divide_and_conquer import CHUNK, DEPTH, Merge
from numus.kernels.factor.blocked.tiles import Planes, transposed
from numus.kernels.factor.program import ONE, ZERO

LEAF = 32  # rows of a matrix whose eigenvalues QL steps find; a multiple of tiles


class _Memory(NamedTuple):
    """Of one problem: what the reduction has found, numbers of merges, and rows of vectors."""

    found: Value
    numbers: Value
    vectors: tuple[Value, Value]


class _Step(RealTask):
    """A task on the memory of a problem."""

    def numbers(self, memory: _Memory) -> Planes:
        return self.matrix_of(memory.numbers, _numbers_pitch(self.space))

    def beside(self, memory: _Memory, i: Expr) -> Expr:
        """An element beside the diagonal."""
        found = self.parts_of(memory.found, self.pitch, "read")[0]
        return self.program.let(found[tridiagonal_panels.OFFDIAGONAL, i][0])

    def merge(self, number: Expr, half: int) -> Merge:
        p, size = self.program, self.size(2 * half)
        first = p.let(ir.mul(number, size))
        return Merge(
            first,
            self.size(half),
            p.let(ir.minimum(size, ir.sub(self.n, first))),
            p.let(ir.minimum(size, ir.sub(self.size(self.space.order), first))),
        )


def _numbers_pitch(space: Workspace) -> int:
    return space.order + 2 * CHUNK


def solve(space: Workspace, found: Value, whole: Value) -> None:
    """Ascending eigenvalues in the first row of the result; eigenvectors in columns of `whole`."""
    vectors = space.flat(space.order * space.pitch), space.flat(space.order * space.pitch)
    numbers = space.flat(merges.NUMBERS * _numbers_pitch(space))
    memory = _Memory(found, numbers, vectors)
    _leaves(space, memory)
    half = LEAF
    while half < space.n:
        _merge_level(space, memory, half)
        memory = memory._replace(vectors=memory.vectors[::-1])
        half *= 2
    _order(space, memory)
    _fill(space, memory, whole)


def _leaves(space: Workspace, memory: _Memory) -> None:
    """Spectra of blocks along the diagonal, less the terms that couple them."""
    task = _Step(space, -(-space.n // LEAF))
    p, n = task.program, task.n
    first = p.let(ir.mul(task.part, const(LEAF)))
    end = p.let(ir.minimum(ir.add(first, const(LEAF)), n))
    size, last = p.let(ir.sub(end, first)), p.let(ir.sub(end, ONE))
    padded = p.let(ir.minimum(const(LEAF), ir.sub(task.size(space.order), first)))
    given = task.parts_of(memory.found, task.pitch, "read")[0]
    t = task.near(2, LEAF)
    with p.lanes(ZERO, size) as i:
        for row in (ZERO, ONE):
            t[row, i] = given[row, ir.add(first, i)]
    for at, beside, inside in (
        (ZERO, p.let(ir.sub(first, ONE)), first > ZERO),
        (p.let(ir.sub(size, ONE)), last, end < n),
    ):
        with p.when(p.let(inside)):
            coupling = ir.unary("abs", given[ONE, beside][0])
            t[ZERO, at] = (t[ZERO, at][0] - coupling,)
    rows = task.matrix_of(memory.vectors[0], space.pitch).moved(first, first)
    with p.loop(ZERO, padded) as i, p.lanes(ZERO, padded) as j:
        rows[i, j] = (select(i.eq(j), p.constant(1.0), p.constant(0.0)),)
    tridiagonal.iterate(
        *(p, t, size),
        lambda i, c, s: merges.rotate(p, rows, (ir.add(i, ONE), i), (c, s), padded),
    )
    numbers = task.numbers(memory)
    with p.lanes(ZERO, size) as i:
        numbers[merges.VALUES, ir.add(first, i)] = t[ZERO, i]
    task.done("leaves")


def _merge_level(space: Workspace, memory: _Memory, half: int) -> None:
    """All merges of blocks with `half` rows."""
    count = -(-space.n // (2 * half))
    task = _Step(space, count)
    p, at = task.program, task.merge(task.part, half)
    numbers = task.numbers(memory)
    merged = p.let(at.size > at.half)
    with p.when(merged):
        coupling = task.beside(memory, ir.sub(ir.add(at.first, at.half), ONE))
        source = task.matrix_of(memory.vectors[0], space.pitch)
        merges.deflate(p, numbers, source, coupling, at)
    with p.when(p.let(~merged)):
        merges.keep_as_is(p, numbers, at)
    task.done("deflate")
    for name in ("roots", "weights", "vectors"):
        chunks = 2 * half // CHUNK
        task = _Step(space, count * chunks)
        p = task.program
        number, chunk = divmod(task.part, task.size(chunks))
        at, numbers = task.merge(p.let(number), half), task.numbers(memory)
        top = p.let(ir.mul(chunk, const(CHUNK)))
        roots = merges.count_of(p, numbers, at)
        if name == "vectors":
            source, target = (task.matrix_of(value, space.pitch) for value in memory.vectors)
            near = task.near(DEPTH, CHUNK), task.near(2, DEPTH, "norms")
            with p.when(p.let(top < at.size)):
                merges.merge_vectors(p, numbers, (source, target), near, at, top)
        elif name == "weights":
            with p.when(p.let(top < roots)):
                merges.find_weights(p, numbers, at, top)
        else:
            near_roots = task.near(merges.ROOT_ROWS, CHUNK)
            with p.when(p.let(top < roots)):
                coupling = task.beside(memory, ir.sub(ir.add(at.first, at.half), ONE))
                merges.find_roots(p, numbers, near_roots, coupling, at, top)
        task.done(name)


def _order(space: Workspace, memory: _Memory) -> None:
    """The values in ascending order, and the row of each vector."""
    task = _Step(space)
    p, x, out = task.program, task.numbers(memory), task.result()
    with p.lanes(ZERO, task.n) as i:
        x[merges.KEYS, i] = x[merges.VALUES, i]
    placing.places(p, x, merges.KEYS_ROW, task.n)
    components = space.components
    with p.loop(ZERO, task.n) as i:
        place = p.let(x[merges.PLACES, i][0].cast(ir.INDEX))
        x[merges.ROWS, place] = (i.cast(p.real),)
        out[ZERO, ir.mul(place, const(components))] = x[merges.VALUES, i]
        if components == 2:
            out[ZERO, ir.add(ir.mul(place, const(2)), ONE)] = (p.constant(0.0),)
    task.done("order")


def _fill(space: Workspace, memory: _Memory, whole: Value) -> None:
    """Rows as columns, in the order of their values; zeros beyond the last."""
    task = _Step(space, space.blocks())
    p, n, order = task.program, task.n, task.size(space.order)
    start, stop = task.span(task.part)
    width = p.let(ir.sub(stop, start))
    rows = task.matrix_of(memory.vectors[0], space.pitch, "read")
    numbers = task.matrix_of(memory.numbers, _numbers_pitch(space), "read")
    own, *others = task.parts_of(whole, task.pitch)
    near, zero = task.near(space.block, space.near_pitch), p.constant(0.0)
    with p.loop(ZERO, p.let(task.size(space.blocks()))) as block:
        top, bottom = task.span(block)
        height = p.let(ir.sub(bottom, top))
        with p.loop(ZERO, width) as r:
            column = p.let(ir.add(start, r))
            inside = p.let(column < n)
            with p.when(inside):
                row = p.let(numbers[merges.ROWS, column][0].cast(ir.INDEX))
                with p.lanes(ZERO, height) as c:
                    i = p.let(ir.add(top, c))
                    near[r, c] = (select(i < n, rows[row, i][0], zero),)
            with p.when(p.let(~inside)), p.lanes(ZERO, height) as c:
                near[r, c] = (zero,)
        transposed(p, near, own.moved(top, start), (ZERO, width), (ZERO, height))
    for other in others:
        with p.loop(ZERO, order) as i, p.lanes(start, stop) as j:
            other[i, j] = (zero,)
    task.done("vectors")


def store(space: Workspace, whole: Value) -> None:
    """Columns of `whole` below the first row of the result."""
    task = Task(space, space.blocks())
    p, n = task.program, task.size(space.n)
    start, stop = task.span(task.part)
    own, out = task.planes(whole, "read"), task.rows_of(space.val, space.n)
    with p.loop(start, p.let(ir.minimum(stop, n))) as i, p.lanes(ZERO, n) as j:
        out[ir.add(i, ONE), j] = own[i, j]
    task.done("eigh")
