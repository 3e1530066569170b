"""Vectors of tridiagonal and bidiagonal matrices on a CPU by divide and conquer: kernels of all
merges of a level.

Vectors are rows of two matrices, from one of which a level goes to the other. A task deflates a
merge; tasks for ranges of roots then find these, the weights of the vectors, and the vectors.
"""

from __future__ import annotations

from typing import NamedTuple

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.factor.workspace import RealTask, Task, Workspace
from numus.ir import Expr, const, select
from numus.kernels.factor import bidiagonal, placing, tridiagonal
from numus.kernels.factor.blocked import deflation
from numus.kernels.factor.blocked import secular as equations
from numus.kernels.factor.blocked.deflation import Merge, rotate
from numus.kernels.factor.blocked.secular import CHUNK, DEPTH, Secular
from numus.kernels.factor.blocked.tiles import Planes, transposed
from numus.kernels.factor.program import ONE, ZERO
from numus.kernels.factor.rotations import plane_turn

LEAF = 32  # rows of a matrix whose values QL or QR steps find; a multiple of tiles

Rows = tuple[Value, Value]  # vectors that a level has, and memory for those that it finds


class _Memory(NamedTuple):
    """Of one problem: what the reduction has found, numbers of merges, and rows of vectors: of
    singular values, those of the right and of the left."""

    found: Value
    numbers: Value
    sides: list[Rows]

    @property
    def singular(self) -> bool:
        return len(self.sides) == 2


class _Step(RealTask):
    """A task on the memory of a problem."""

    def numbers(self, memory: _Memory, access: str = "write") -> Planes:
        return self.matrix_of(memory.numbers, _numbers_pitch(self.space), access)

    def condensed(self, memory: _Memory) -> Planes:
        """The diagonal, and what is beside it."""
        return self.parts_of(memory.found, self.pitch, "read")[0]

    def rows(self, value: Value, access: str = "write") -> Planes:
        return self.matrix_of(value, self.space.pitch, access)

    def merge(self, memory: _Memory, number: Expr, half: int) -> Merge:
        p, size = self.program, self.size(2 * half)
        first = p.let(ir.mul(number, size))
        end = p.let(ir.add(first, size))
        height = p.let(ir.minimum(size, ir.sub(self.n, first)))
        values = height
        if memory.singular:
            values = p.let(select(end < self.n, ir.sub(height, ONE), height))
        padded = p.let(ir.minimum(size, ir.sub(self.size(self.space.order), first)))
        return Merge(first, self.size(half), height, padded, values)


def _numbers_pitch(space: Workspace) -> int:
    return space.order + 2 * CHUNK


def eigenvectors(space: Workspace, found: Value, whole: Value) -> None:
    """Ascending eigenvalues of a tridiagonal matrix in the first row of the result; eigenvectors in
    columns of `whole`."""
    memory = _solved(space, found, 1)
    _order(space, memory, 0)
    _fill(space, memory, memory.sides[0][0], whole, 0, space.order)


def singular_vectors(space: Workspace, found: Value, whole: Value) -> None:
    """Descending singular values of a bidiagonal matrix in the last row of the result; vectors of
    the left in columns of `whole`, those of the right below them."""
    memory = _solved(space, found, 2)
    _order(space, memory, space.m + space.n)
    right, left = memory.sides
    _fill(space, memory, left[0], whole, 0, space.rows)
    _fill(space, memory, right[0], whole, space.rows, space.order)


def _solved(space: Workspace, found: Value, sides: int) -> _Memory:
    def vectors() -> Value:
        return space.flat(space.order * space.pitch)

    numbers = space.flat(deflation.NUMBERS * _numbers_pitch(space))
    memory = _Memory(found, numbers, [(vectors(), vectors()) for _ in range(sides)])
    _leaves(space, memory)
    half = LEAF
    while half < space.n:
        _merge_level(space, memory, half)
        memory = memory._replace(sides=[rows[::-1] for rows in memory.sides])
        half *= 2
    return memory


# -- leaves ---------------------------------------------------------------------------------------


def _leaves(space: Workspace, memory: _Memory) -> None:
    """Spectra of blocks along the diagonal, less the terms that couple them."""
    task = _Step(space, -(-space.n // LEAF))
    p, n = task.program, task.n
    first = p.let(ir.mul(task.part, const(LEAF)))
    end = p.let(ir.minimum(ir.add(first, const(LEAF)), n))
    size = p.let(ir.sub(end, first))
    padded = p.let(ir.minimum(const(LEAF), ir.sub(task.size(space.order), first)))
    given = task.condensed(memory)
    t = task.near(2, LEAF)
    with p.lanes(ZERO, size) as i:
        for row in (ZERO, ONE):
            t[row, i] = given[row, ir.add(first, i)]
    sides = [task.rows(rows[0]).moved(first, first) for rows in memory.sides]
    for rows in sides:
        with p.loop(ZERO, padded) as i, p.lanes(ZERO, padded) as j:
            rows[i, j] = (select(i.eq(j), p.constant(1.0), p.constant(0.0)),)
    if memory.singular:
        _singular_leaf(task, t, (sides[0], sides[1]), size, padded, p.let(end < n))
    else:
        _eigen_leaf(task, t, sides[0], (first, end), padded, given)
    numbers = task.numbers(memory)
    with p.lanes(ZERO, size) as i:
        numbers[deflation.VALUES, ir.add(first, i)] = t[ZERO, i]
    task.done("leaves")


def _eigen_leaf(
    task: _Step, t: Planes, rows: Planes, span: tuple[Expr, Expr], padded: Expr, given: Planes
) -> None:
    p, (first, end) = task.program, span
    size, last = p.let(ir.sub(end, first)), p.let(ir.sub(end, ONE))
    for at, neighbour, inside in (
        (ZERO, p.let(ir.sub(first, ONE)), first > ZERO),
        (p.let(ir.sub(size, ONE)), last, end < task.n),
    ):
        with p.when(p.let(inside)):
            coupling = ir.unary("abs", given[ONE, neighbour][0])
            t[ZERO, at] = (t[ZERO, at][0] - coupling,)
    tridiagonal.iterate(
        *(p, t, size), lambda i, c, s: rotate(p, rows, (ir.add(i, ONE), i), (c, s), padded)
    )


def _singular_leaf(
    task: _Step,
    t: Planes,
    sides: tuple[Planes, Planes],
    size: Expr,
    padded: Expr,
    follows: Expr,
) -> None:
    """Of a block that another follows, the last row belongs to neither: its last column is rotated
    away first, and becomes the null space on the right."""
    p, (right, left) = task.program, sides
    last, zero = p.let(ir.sub(size, ONE)), p.constant(0.0)
    count = p.let(select(follows, last, size))
    with p.when(follows):
        t[ZERO, last] = (zero,)
        rest = p.register()
        p.do(ir.Set(rest, t[ONE, p.let(ir.sub(last, ONE))][0]))
        with p.loop(ZERO, last) as done:
            k = p.let(ir.sub(ir.sub(last, ONE), done))
            cosine, sine, r = plane_turn(p, p.let(t[ZERO, k][0]), p.let(ir.read(rest)))
            t[ZERO, k] = (r,)
            rotate(p, right, (k, last), (cosine, sine), padded)
            with p.when(p.let(k > ZERO)):
                above = p.let(ir.sub(k, ONE))
                e = p.let(t[ONE, above][0])
                t[ONE, above] = (cosine * e,)
                p.do(ir.Set(rest, -(sine * e)))

    def turn(k: Expr, of_right: tuple[Expr, Expr], of_left: tuple[Expr, Expr]) -> None:
        for rows, angle in ((right, of_right), (left, of_left)):
            rotate(p, rows, (k, ir.add(k, ONE)), angle, padded)

    bidiagonal.iterate(p, t, count, turn)
    with p.loop(ZERO, count) as i:
        value = p.let(t[ZERO, i][0])
        with p.when(p.let(value < zero)):
            t[ZERO, i] = (-value,)
            with p.lanes(ZERO, padded) as j:
                right[i, j] = (-right[i, j][0],)


# -- merges ---------------------------------------------------------------------------------------


def _merge_level(space: Workspace, memory: _Memory, half: int) -> None:
    """All merges of blocks with `half` rows."""
    count = -(-space.n // (2 * half))
    _deflated(space, memory, half, count)
    chunks = 2 * half // CHUNK
    steps = ["roots", "weights", *(["vectors"] if not memory.singular else ["right", "left"])]
    for name in steps:
        task = _Step(space, count * chunks)
        p = task.program
        number, chunk = divmod(task.part, task.size(chunks))
        at = task.merge(memory, p.let(number), half)
        e = Secular(p, task.numbers(memory), at, squared=memory.singular)
        top = p.let(ir.mul(chunk, const(CHUNK)))
        if name == "roots":
            near = task.near(equations.ROOT_ROWS, CHUNK)
            with p.when(p.let(top < e.count)):
                strength = p.constant(1.0)
                if not memory.singular:
                    strength = deflation.strength_of(p, _coupling(task, memory, at))
                equations.find_roots(p, e, near, strength, top)
        elif name == "weights":
            with p.when(p.let(top < e.count)):
                equations.find_weights(p, e, top)
        else:
            left = name == "left"
            source, target = memory.sides[int(left)]
            rows = task.rows(source), task.rows(target)
            nears = task.near(DEPTH, CHUNK), task.near(2, DEPTH, "norms")
            with p.when(p.let(top < at.size)):
                equations.merge_vectors(p, e, rows, nears, at, top, left=left)
        task.done(name)


def _coupling(task: _Step, memory: _Memory, at: Merge) -> Expr:
    """The element beside the diagonal between the halves."""
    last = ir.sub(ir.add(at.first, at.half), ONE)
    return task.program.let(task.condensed(memory)[ONE, last][0])


def _deflated(space: Workspace, memory: _Memory, half: int, count: int) -> None:
    task = _Step(space, count)
    p, at = task.program, task.merge(memory, task.part, half)
    numbers = task.numbers(memory)
    merged = p.let(at.size > at.half)
    with p.when(merged):
        sides = [task.rows(rows[0]) for rows in memory.sides]
        if memory.singular:
            middle = p.let(ir.sub(ir.add(at.first, at.half), ONE))
            given = task.condensed(memory)
            couplings = p.let(given[ZERO, middle][0]), p.let(given[ONE, middle][0])
            deflation.deflate_singular_values(p, numbers, (sides[0], sides[1]), couplings, at)
        else:
            coupling = _coupling(task, memory, at)
            deflation.deflate_eigenvalues(p, numbers, sides[0], coupling, at)
    with p.when(p.let(~merged)):
        deflation.keep_all(p, numbers, at)
    task.done("deflate")


# -- results --------------------------------------------------------------------------------------


def _order(space: Workspace, memory: _Memory, row: int) -> None:
    """The values in a row of the result, eigenvalues ascending and singular values descending, and
    the numbers of their vectors."""
    task = _Step(space)
    p, x, out, to = task.program, task.numbers(memory), task.result(), task.size(row)
    with p.lanes(ZERO, task.n) as i:
        value = x[deflation.VALUES, i][0]
        x[deflation.KEYS, i] = (-value if memory.singular else value,)
    placing.places(p, x, deflation.KEYS_ROW, task.n)
    components = space.components
    with p.loop(ZERO, task.n) as i:
        place = p.let(x[deflation.PLACES, i][0].cast(ir.INDEX))
        x[deflation.ROWS, place] = (i.cast(p.real),)
        out[to, ir.mul(place, const(components))] = x[deflation.VALUES, i]
        if components == 2:
            out[to, ir.add(ir.mul(place, const(2)), ONE)] = (p.constant(0.0),)
    task.done("order")


def _fill(
    space: Workspace, memory: _Memory, vectors: Value, whole: Value, top: int, height: int
) -> None:
    """Rows as columns, in the order of their values, of `height` rows; zeros beyond the last."""
    task = _Step(space, space.blocks())
    p, n, zero = task.program, task.n, task.program.constant(0.0)
    start, stop = task.span(task.part)
    width = p.let(ir.sub(stop, start))
    rows, numbers = task.rows(vectors, "read"), task.numbers(memory, "read")
    first = p.let(ir.mul(task.size(top), task.pitch))
    own, *others = task.parts_of(whole, task.pitch, first=first)
    near = task.near(space.block, space.near_pitch)
    with p.loop(ZERO, p.let(task.size(space.blocks()))) as block:
        left, right = task.span(block)
        size = p.let(ir.sub(right, left))
        with p.loop(ZERO, width) as r:
            column = p.let(ir.add(start, r))
            inside = p.let(column < n)
            with p.when(inside):
                row = p.let(numbers[deflation.ROWS, column][0].cast(ir.INDEX))
                with p.lanes(ZERO, size) as c:
                    i = p.let(ir.add(left, c))
                    near[r, c] = (select(i < n, rows[row, i][0], zero),)
            with p.when(p.let(~inside)), p.lanes(ZERO, size) as c:
                near[r, c] = (zero,)
        transposed(p, near, own.moved(left, start), (ZERO, width), (ZERO, size))
    end = task.size(height)
    with p.loop(task.size(space.order), end) as i, p.lanes(start, stop) as j:
        own[i, j] = (zero,)
    for other in others:
        with p.loop(ZERO, end) as i, p.lanes(start, stop) as j:
            other[i, j] = (zero,)
    task.done("vectors")


def store(space: Workspace, whole: Value, top: int, height: int, row: int) -> None:
    """Rows of `whole` from one on, in the result."""
    task = Task(space, -(-height // space.block))
    p, end = task.program, task.size(height)
    start, stop = task.span(task.part, end=height)
    own = task.planes(whole, "read").moved(task.size(top), ZERO)
    out, to = task.rows_of(space.val, space.n), task.size(row)
    with p.loop(start, p.let(ir.minimum(stop, end))) as i, p.lanes(ZERO, task.size(space.n)) as j:
        out[ir.add(to, i), j] = own[i, j]
    task.done("store")
