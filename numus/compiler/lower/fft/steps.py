"""The steps of a transform: of rows in one, of longer ones as columns of each other.

A long transform of n1 * n2 points (the four-step form, Bailey 1990) is n2 interleaved ones of n1
points, whose results are multiplied by twiddle factors, then n1 transforms of n2 points, which
store their results transposed; n2 may be split again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from numus import ir
from numus.compiler.lower.axis import ZERO, temporary
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.fft.problem import Access, FftProblem, Inner, Read, Write
from numus.ir import Expr, Stmt
from numus.kernels.fft.butterflies import Complex, mul
from numus.kernels.fft.stockham import NONE
from numus.shapes import row_major


@dataclass(frozen=True)
class Step:
    """Transforms of `length` points, outer * inner of them."""

    length: int
    outer: int
    inner: int  # rows that are adjacent in memory
    access: Access
    adjacent: tuple[bool, bool]  # whether operands, results of inner rows are adjacent
    is_paired: bool = False  # whether operands are complex numbers in memory
    columns: int = 1  # of each of the transforms that these are columns of
    are_outer: bool = False  # columns are outer rows, else inner ones


def steps_of(p: FftProblem, lengths: tuple[int, ...]) -> list[Step]:
    """The steps of the whole transform, of these lengths."""
    if p.are_columns and len(lengths) > 1:
        return _split_lanes(p, lengths, p.val.shape[p.inner_axis])
    return _split(p, lengths, p.rows, p.access)


def _split_lanes(p: FftProblem, lengths: tuple[int, ...], lanes: int) -> list[Step]:
    """Steps of transforms that are adjacent in the operand, and rows in the result: the first
    one stores rows."""
    n1, n2, rows = lengths[0], math.prod(lengths[1:]), p.rows // lanes
    intermediate = temporary((rows * lanes, n2, n1), p.complex_dtype)

    def first(e: Emitter) -> tuple[Read, Write]:
        read, _ = p.access(e)

        def get(outer: Expr, lane: Inner, i: Expr) -> Complex:
            row, column = divmod(outer, e.dim(n2))
            return read(row, lane, ir.add(e.times(i, e.dim(n2)), column))

        def put(outer: Expr, lane: Inner, k: Expr, z: Complex) -> list[Stmt]:
            row, column = divmod(outer, e.dim(n2))
            whole = ir.add(ir.mul(row, e.dim(lanes)), ir.add(*lane))
            return e.store(intermediate, (whole, column, k), z)

        return get, put

    def second(e: Emitter) -> tuple[Read, Write]:
        _, write = p.access(e)
        e.layouts = {**e.layouts, intermediate: row_major(intermediate.shape)}

        def get(row: Expr, k1: Inner, i: Expr) -> Complex:
            found: Complex = e.value(intermediate, (row, i, ir.add(*k1)))
            return found

        def put(row: Expr, k1: Inner, k2: Expr, z: Complex) -> list[Stmt]:
            outer, lane = divmod(row, e.dim(lanes))
            k = ir.add(e.times(k2, e.dim(n1)), ir.add(*k1))
            return write(outer, (ZERO, lane), k, z)

        return get, put

    paired = p.operand_is_paired
    columns = Step(n1, rows * n2, lanes, first, (True, False), paired, n2, are_outer=True)
    return [columns, *_split_columns(p, lengths[1:], rows * lanes, n1, second)]


def _split_columns(
    p: FftProblem, lengths: tuple[int, ...], rows: int, lanes: int, access: Access
) -> list[Step]:
    """Steps of transforms that are adjacent in operand and result, `lanes` of them."""
    n1, n2 = lengths[0], math.prod(lengths[1:])
    if n2 == 1:
        return [Step(n1, rows, lanes, access, (True, True), True)]
    intermediate = temporary((rows, n1, n2, lanes), p.complex_dtype)

    def first(e: Emitter) -> tuple[Read, Write]:
        read, _ = access(e)

        def get(outer: Expr, lane: Inner, i: Expr) -> Complex:
            row, column = divmod(outer, e.dim(n2))
            return read(row, lane, ir.add(e.times(i, e.dim(n2)), column))

        def put(outer: Expr, lane: Inner, k: Expr, z: Complex) -> list[Stmt]:
            row, column = divmod(outer, e.dim(n2))
            return e.store(intermediate, (row, k, column, ir.add(*lane)), z)

        return get, put

    def second(e: Emitter) -> tuple[Read, Write]:
        _, write = access(e)
        e.layouts = {**e.layouts, intermediate: row_major(intermediate.shape)}

        def get(outer: Expr, lane: Inner, i: Expr) -> Complex:
            found: Complex = e.value(intermediate, (*divmod(outer, e.dim(n1)), i, ir.add(*lane)))
            return found

        def put(outer: Expr, lane: Inner, k2: Expr, z: Complex) -> list[Stmt]:
            row, k1 = divmod(outer, e.dim(n1))
            return write(row, lane, ir.add(e.times(k2, e.dim(n1)), k1), z)

        return get, put

    columns = Step(n1, rows * n2, lanes, first, (True, True), True, n2, are_outer=True)
    return [columns, *_split_columns(p, lengths[1:], rows * n1, lanes, second)]


def _split(
    p: FftProblem, lengths: tuple[int, ...], rows: int, access: Access, adjacent: int = 1
) -> list[Step]:
    """Steps of `rows` transforms, whose accessors take the row as the outer one; the results of
    `adjacent` rows in turn lie side by side."""
    n1, n2 = lengths[0], math.prod(lengths[1:])
    if n2 == 1:
        return [Step(n1, rows, 1, access, (False, False))]
    whole = n1 * n2
    intermediate = temporary((rows, n1, n2), p.complex_dtype)

    def first(e: Emitter) -> tuple[Read, Write]:
        read, _ = access(e)

        def put(row: Expr, column: Inner, k: Expr, z: Complex) -> list[Stmt]:
            if not e.block_size:  # else the passes of threads have multiplied by all factors
                z = mul(z, p.column_twiddle(e, column, k, n1, whole))
            return e.store(intermediate, (row, k, ir.add(*column)), z)

        def get(row: Expr, column: Inner, i: Expr) -> Complex:
            return read(row, NONE, ir.add(e.times(i, e.dim(n2)), ir.add(*column)))

        return get, put

    def second(e: Emitter) -> tuple[Read, Write]:
        _, write = access(e)
        e.layouts = {**e.layouts, intermediate: (n1 * n2, n2, 1)}

        def get(row: Expr, k1: Inner, i: Expr) -> Complex:
            found: Complex = e.value(intermediate, (row, ir.add(*k1), i))
            return found

        def put(row: Expr, k1: Inner, k2: Expr, z: Complex) -> list[Stmt]:
            return write(row, NONE, ir.add(e.times(k2, e.dim(n1)), ir.add(*k1)), z)

        return get, put

    columns = Step(n1, rows, n2, first, (True, True), columns=n2)
    if len(lengths) == 2 and adjacent == 1:
        return [columns, Step(n2, rows, n1, second, (False, True), True)]
    if len(lengths) == 2:
        return [columns, _last_step(p, n2, rows, n1, second, adjacent)]

    def flat(e: Emitter) -> tuple[Read, Write]:
        get, put = second(e)

        def outer(row: Expr) -> tuple[Expr, Inner]:
            first, second = divmod(row, e.dim(n1))
            return first, (ZERO, second)

        return (
            lambda row, _, i: get(*outer(row), i),
            lambda row, _, k, z: put(*outer(row), k, z),
        )

    return [columns, *_split(p, lengths[1:], rows * n1, flat, adjacent * n1)]


def _last_step(p: FftProblem, n: int, rows: int, inner: int, access: Access, adjacent: int) -> Step:
    """The step whose inner rows are those with results side by side."""

    def exchanged(e: Emitter) -> tuple[Read, Write]:
        get, put = access(e)

        def rows_of(outer: Expr, w: Inner) -> tuple[Expr, Inner]:
            first, second = divmod(outer, e.dim(inner))
            return ir.add(ir.mul(first, e.dim(adjacent)), ir.add(*w)), (ZERO, second)

        return (
            lambda row, w, i: get(*rows_of(row, w), i),
            lambda row, w, k, z: put(*rows_of(row, w), k, z),
        )

    return Step(n, rows // adjacent * inner, adjacent, exchanged, (False, True), True)
