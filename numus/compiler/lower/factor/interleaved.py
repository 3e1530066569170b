"""Factorisations of many small matrices on a CPU, one in each SIMD lane, from operand to result.

The matrices of a vector lie interleaved in scratch memory of L1 or L2, padded by an identity to a
multiple of the tile, so that loops have no remainders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import Problem
from numus.ir import Expr, const, select
from numus.kernels.factor.interleaved import cholesky, eigh, lu, qr, scaling, svd
from numus.kernels.factor.interleaved.transfer import OfLanes, gathered, in_vectors, scattered
from numus.kernels.factor.lanes import LaneMatrix, LaneProgram
from numus.kernels.factor.program import Matrix, Number, Read, real

ZERO = const(0)


@dataclass(frozen=True)
class InterleavedTuning:
    """Measured on a 2-core x86-64 (Cascade Lake)."""

    unrolled_extent: int = 6  # of matrices so small that two vectors of them hide latencies
    wide_extent: int = 16  # from which on panels are wider than a tile


TUNING = InterleavedTuning()


class Stack:
    """The matrices of one block of the grid, as they come in and go out."""

    def __init__(self, p: Problem, order: int) -> None:
        val = p.val
        self.val, self.order, self.emitter = val, order, Emitter(p.layouts)
        real_dtype = dt.real_of(val.dtype)
        width = p.target.vector_bytes // real_dtype.itemsize
        components = 2 if val.dtype.is_complex else 1
        self.is_small = order <= TUNING.unrolled_extent
        small = self.is_small and val.shape[0] >= 4 * width
        self.program = LaneProgram(real_dtype, components, width, 2 if small else 1)
        self.count = width * self.program.unroll
        tile = 4 if p.target.vector_bytes >= 64 and components == 1 else 2
        self.tile = tile
        self.block = 2 * tile if order >= TUNING.wide_extent else tile
        self.padded = -(-order // self.block) * self.block
        self.grid_index = ir.var("g")
        last = ir.sub(self.emitter.dim(val.shape[0]), const(1))
        self.numbers: list[Expr] = []
        for lane in range(self.count):  # the last lanes repeat the last matrix
            at = ir.add(ir.mul(self.grid_index, const(self.count)), const(lane))
            self.numbers.append(self.program.let(ir.minimum(at, last)))

    def near(self, rows: int, columns: int) -> LaneMatrix:
        """Scratch memory for a matrix of each lane."""
        e, p = self.emitter, self.program
        pitch = _pitch(columns)
        size = ir.mul(self.size(rows * pitch), const(self.count * p.components))
        e.scratch.append(ir.Buffer(f"lanes{len(e.scratch)}", p.real, "scratch", size))
        return LaneMatrix(p, e.scratch[-1], self.size(pitch))

    def size(self, n: int) -> Expr:
        """A number that code is specialised on for the smallest matrices alone."""
        return const(n) if self.is_small else self.emitter.dim(n)

    def read(self, x: Value) -> list[Read]:
        """Elements of a matrix of each lane."""
        e = self.emitter

        def of(number: Expr) -> Read:
            def element(i: Expr, j: Expr) -> Number:
                found = e.value(x, (number, i, j))
                return found if x.dtype.is_complex else (found,)

            return element

        return [of(number) for number in self.numbers]

    def fill(self, x: Value, to: LaneMatrix, left: int = 0) -> None:
        """A whole operand, into columns from `left` on."""
        _, rows, columns = x.shape
        extents = self.size(rows), self.size(columns)
        by_vectors = in_vectors(self.program, columns)
        gathered(self.program, self.read(x), to, extents, self.size(left), by_vectors)

    def pad(self, to: LaneMatrix, order: int) -> None:
        """An identity beyond rows and columns of a square matrix."""
        p, n, end = self.program, self.size(order), self.size(self.padded)
        if order == self.padded:
            return
        with p.matrices():
            with p.loop(n, end) as i, p.loop(ZERO, end) as j:
                to[i, j] = real(p, select(i.eq(j), p.constant(1.0), p.constant(0.0)))
            with p.loop(ZERO, n) as i, p.loop(n, end) as j:
                to[i, j] = real(p, p.constant(0.0))

    def outs(self) -> list[Matrix]:
        e, p = self.emitter, self.program
        _, rows, columns = self.val.shape
        buffer, size = e.buffer(self.val, "write"), e.dim(rows * columns)
        starts = [p.let(ir.mul(n, size)) for n in self.numbers]
        return [Matrix(p, buffer, start, e.dim(columns)) for start in starts]

    def empty(self, source: OfLanes, rows: int, columns: int, top: int = 0, left: int = 0) -> None:
        """A matrix of each lane, from column `left` on, into the result from row `top` on."""
        extents, places = (self.size(rows), self.size(columns)), (self.size(top), self.size(left))
        by_vectors = in_vectors(self.program, columns)
        scattered(self.program, source, self.outs(), extents, *places, by_vectors)

    def kernels(self) -> Kernels:
        batch = self.val.shape[0]
        name = self.val.op
        grid = -(-batch // self.count)
        return [self.emitter.grid_kernel(name, self.grid_index, self.program.body, grid, (name,))]


def _pitch(columns: int) -> int:
    """Vectors to a row: an odd number, or those of a column would meet in few sets of a cache; of
    long rows one by which neighbours of a tile are no multiple of 4 KiB apart (a load would wait
    for a store to the other)."""
    return columns | 1 if columns < 48 else columns + (27 - columns) % 64


def lower_interleaved(p: Problem) -> Kernels:
    return _LOWERINGS[p.val.op](p)


def is_interleaved(p: Problem) -> bool:
    return p.val.op in _LOWERINGS


def _cholesky(p: Problem) -> Kernels:
    n = p.val.shape[-1]
    s = Stack(p, n)
    x = s.near(s.padded, s.padded)
    s.fill(p.val.inputs[0], x)
    s.pad(x, n)
    program = s.program
    with program.matrices():
        cholesky.cholesky(program, x, s.size(s.padded), s.block, s.tile)
        with program.loop(ZERO, s.size(n)) as i, program.loop(ir.add(i, const(1)), s.size(n)) as j:
            x[i, j] = real(program, program.constant(0.0))
    s.empty(x, n, n)
    return s.kernels()


def _solve(p: Problem) -> Kernels:
    a, b = p.val.inputs
    n, columns = b.shape[1:]
    s = Stack(p, n)
    right = s.tile if columns % s.tile == 0 else 1
    how = lu.Blocking(s.block, s.tile, right, s.is_small)
    total = s.padded + columns
    x = s.near(s.padded, total)
    s.fill(a, x)
    s.fill(b, x, s.padded)
    s.pad(x, n)
    program, order, end = s.program, s.size(s.padded), s.size(total)
    with program.matrices():
        with program.loop(s.size(n), order) as i, program.loop(order, end) as j:
            x[i, j] = real(program, program.constant(0.0))
        outcome = lu.eliminate(program, x, order, end, how, None)
        lu.substitute_back(program, x, order, (order, end), how)
        lu.spoil(program, outcome, x, s.size(n), (order, end))
    s.empty(x, n, columns, left=s.padded)
    return s.kernels()


def _determinant(p: Problem) -> Kernels:
    n = p.val.inputs[0].shape[-1]
    s = Stack(p, n)
    x, found = s.near(s.padded, s.padded), s.near(1, 1)
    s.fill(p.val.inputs[0], x)
    s.pad(x, n)
    program, order = s.program, s.size(s.padded)
    with program.matrices():
        how = lu.Blocking(s.block, s.tile, few_rows=s.is_small)
        outcome = lu.eliminate(program, x, order, order, how, None)
        found[ZERO, ZERO] = tuple(ir.reads(outcome.product))
    s.empty(found, 1, 1)
    return s.kernels()


def _inverse(p: Problem) -> Kernels:
    """U⁻¹ L⁻¹, whose columns go to their places; of the smallest, the solution for an identity."""
    n = p.val.shape[-1]
    s = Stack(p, n)
    how = lu.Blocking(s.block, s.tile, s.tile, s.is_small)
    if s.is_small:
        return _solve_identity(p.val.inputs[0], s, how)
    x, places = s.near(s.padded, 2 * s.padded), s.near(3, s.padded)
    s.fill(p.val.inputs[0], x)
    s.pad(x, n)
    program, order, end = s.program, s.size(s.padded), s.size(2 * s.padded)
    with program.matrices():
        with program.loop(ZERO, order) as i:
            places[ZERO, i] = real(program, i.cast(program.real))
        outcome = lu.eliminate(program, x, order, order, how, places)
        lu.invert_lower(program, x, order, order, how)
        lu.substitute_back(program, x, order, (order, end), how)
        by = lu.nan_where_singular(program, outcome)
        with program.loop(ZERO, s.size(n)) as j:
            column = program.let(places[ZERO, j][0].cast(ir.INDEX))
            places[SOURCES, column] = real(program, ir.add(order, j).cast(program.real))
            places[FACTORS, j] = real(program, by)
    s.empty(_Permuted(x, places), n, n)
    return s.kernels()


def _solve_identity(a: Value, s: Stack, how: lu.Blocking) -> Kernels:
    n, program = a.shape[-1], s.program
    x = s.near(s.padded, 2 * s.padded)
    s.fill(a, x)
    s.pad(x, n)
    order, end = s.size(s.padded), s.size(2 * s.padded)
    with program.matrices():
        lu.fill_identity(program, x, order, order)
        outcome = lu.eliminate(program, x, order, end, how, None)
        lu.substitute_back(program, x, order, (order, end), how)
        lu.spoil(program, outcome, x, s.size(n), (order, end))
    s.empty(x, n, n, left=s.padded)
    return s.kernels()


SOURCES, FACTORS = const(1), const(2)  # rows beside the numbers of rows


@dataclass(frozen=True)
class _Permuted:
    """Columns of a matrix by their numbers in each lane, times a factor of the lane."""

    matrix: LaneMatrix
    places: LaneMatrix

    def of_lane(self, i: Expr, j: Expr, lane: Expr) -> Number:
        column = self.places.of_lane(SOURCES, j, lane)[0].cast(ir.INDEX)
        by = self.places.of_lane(FACTORS, ZERO, lane)[0]
        return tuple(part * by for part in self.matrix.of_lane(i, column, lane))


def _qr(p: Problem) -> Kernels:
    """Q above R."""
    m, n = p.val.inputs[0].shape[1:]
    s = Stack(p, n)
    padded = -(-n // s.tile) * s.tile
    x, r, taus, triangles = s.near(m, padded), s.near(n, n), s.near(1, n), s.near(s.tile, n)
    s.fill(p.val.inputs[0], x)
    program, rows, columns = s.program, s.size(m), s.size(n)
    with program.matrices():
        with program.loop(ZERO, rows) as i, program.loop(columns, s.size(padded)) as j:
            x[i, j] = real(program, program.constant(0.0))
        by = scaling.power_of_two(program, x, rows, columns)
        scaling.multiply(program, x, rows, columns, program.let(program.constant(1.0) / by))
        panels = s.size(n // s.tile) if n >= TUNING.wide_extent else ZERO
        qr.qr(program, qr.Work(x, r, taus, triangles, (rows, columns), s.tile, panels))
        scaling.multiply(program, r, columns, columns, by)
    s.empty(x, m, n)
    s.empty(r, n, n, m)
    return s.kernels()


def _eigh(p: Problem) -> Kernels:
    """Eigenvalues, above eigenvectors in columns where they are wanted."""
    n = p.val.shape[-1]
    s = Stack(p, n)
    end = n + s.tile
    a = s.near(end, end)
    q = s.near(end, end) if p.val.params else None
    vectors = s.near(eigh.VECTORS, end)
    s.fill(p.val.inputs[0], a)
    program = s.program
    zero = (program.constant(0.0),)
    work = eigh.Work(a, q, vectors, s.size(n), s.tile)
    with program.matrices():
        with program.loop(s.size(n), s.size(end)) as i, program.loop(ZERO, s.size(end)) as j:
            a[i, j] = zero
        with (
            program.loop(ZERO, s.size(n)) as i,
            program.loop(ir.add(i, const(1)), s.size(end)) as j,
        ):
            a[i, j] = zero
        with program.loop(ZERO, const(eigh.VECTORS)) as i, program.loop(ZERO, s.size(end)) as j:
            vectors[i, j] = zero
        by = scaling.power_of_two(program, a, s.size(n), s.size(n))
        vectors[const(eigh.SCALE), s.size(n)] = (by,)
        scaling.multiply(program, a, s.size(n), s.size(n), program.let(program.constant(1.0) / by))
    eigh.eigh(program, work)
    with program.matrices():
        by = program.let(vectors[const(eigh.SCALE), s.size(n)][0])
        scaling.multiply(program, vectors, const(1), s.size(n), by)
    s.empty(vectors, 1, n)
    if q is not None:
        s.empty(a, n, n, 1)
    return s.kernels()


def _svd(p: Problem) -> Kernels:
    """U, then V, where they are wanted, then a row of singular values."""
    n = p.val.shape[-1]
    s = Stack(p, n)
    end = n + s.tile
    a = s.near(end, end)
    sides = (s.near(end, end), s.near(end, end)) if p.val.params else None
    vectors = s.near(svd.VECTORS, end)
    s.fill(p.val.inputs[0], a)
    program, zero = s.program, (s.program.constant(0.0),)
    work = svd.Work(a, sides, vectors, s.size(n), s.tile)
    with program.matrices():
        _clear_border(program, a, s.size(n), s.size(end))
        with program.loop(ZERO, const(svd.VECTORS)) as i, program.loop(ZERO, s.size(end)) as j:
            vectors[i, j] = zero
        by = scaling.power_of_two(program, a, s.size(n), s.size(n))
        vectors[const(svd.SCALE), s.size(n)] = (by,)
        scaling.multiply(program, a, s.size(n), s.size(n), program.let(program.constant(1.0) / by))
    svd.svd(program, work)
    with program.matrices():
        by = program.let(vectors[const(svd.SCALE), s.size(n)][0])
        scaling.multiply(program, vectors, const(1), s.size(n), by)
    for number, rows in enumerate(sides or ()):
        svd.placed(program, work, rows)
        s.empty(a, n, n, number * n)
    s.empty(vectors, 1, n, 2 * n if sides else 0)
    return s.kernels()


def _clear_border(program: LaneProgram, a: LaneMatrix, n: Expr, end: Expr) -> None:
    """Zeros beyond rows and columns."""
    zero = (program.constant(0.0),)
    with program.loop(n, end) as i, program.loop(ZERO, end) as j:
        a[i, j] = zero
    with program.loop(ZERO, n) as i, program.loop(n, end) as j:
        a[i, j] = zero


_LOWERINGS: dict[str, Callable[[Problem], Kernels]] = {
    "lower_cholesky": _cholesky,
    "direct_solve": _solve,
    "small_determinant": _determinant,
    "direct_inverse": _inverse,
    "direct_qr": _qr,
    "eigh": _eigh,
    "svd": _svd,
}
