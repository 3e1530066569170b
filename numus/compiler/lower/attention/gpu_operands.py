"""Operands of GPU attention: matrices and vectors as memory that is copied, or as expressions."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.graph.updated_rows import without_updates
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.affine import accesses
from numus.compiler.lower.attention.problem import Reader
from numus.compiler.lower.emitter import Emitter
from numus.ir import Expr
from numus.ir.substitution import substitute
from numus.kernels.common.smem_tiles import VECTOR, Matrix, RowUpdate, StridedMatrix, Vector

ZERO = ir.const(0)


def matrix(reader: Reader, layouts: Layouts, name: str, updates: bool = False) -> Matrix:
    """`updates`: of a matrix with a replaced row, the schedule reads memory and that row apart."""
    x, e = reader.inputs[name], reader.e
    around = without_updates(x, layouts) if updates else x
    columns, stride = e.dim(x.shape[2]), row_stride(around, layouts)

    def read(n: Expr, row: Expr, column: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, column, mask=mask)

    update = None if around is x else _row_update(reader, name)
    if stride is None or stride % VECTOR or (update is None and around is not x):
        return Matrix(read, columns, None)
    return Matrix(read, columns, _strided(reader, around, e.dim(stride)), update)


def _row_update(reader: Reader, name: str) -> RowUpdate | None:
    """The replaced row of a matrix; None where it is not a whole row, at one place."""
    x, e = reader.inputs[name], reader.e
    n, row, column = (e.variable(f"{name}_at{i}", e.dim(m)) for i, m in enumerate(x.shape))
    found = reader.element(name, n, row, column)
    if found.op != "select" or found.args[0].op != "eq":
        return None
    is_there, new, _ = found.args
    at = is_there.args
    varies = [{n, row, column} & {*ir.walk(y, lambda y: True)} for y in (*at, new)]
    if varies[0]:
        at, varies[:2] = at[::-1], varies[1::-1]
    if varies[0] or row in varies[2]:
        return None
    return RowUpdate(
        at[0].cast(dt.int64),
        lambda k, i: substitute(at[1], {n: k, row: i}),
        lambda k, j: substitute(new, {n: k, column: j}),
    )


def vector(reader: Reader, layouts: Layouts, name: str) -> Vector:
    def read(n: Expr, row: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, mask=mask)

    x = reader.inputs[name]
    strided = row_stride(x, layouts) is not None
    return Vector(read, _strided(reader, x, ZERO) if strided else None)


def _strided(reader: Reader, x: Value, stride: Expr) -> StridedMatrix:
    def first_load(n: Expr) -> Expr:
        index = [n, *[ZERO] * (len(x.shape) - 1)]
        at = tuple(ZERO if m == 1 else i for m, i in zip(x.shape, index, strict=True))
        found: Expr = reader.e.value(x, at)
        return found

    def first(n: Expr) -> Expr:
        return first_load(n).args[0]

    def aligned(n: Expr) -> Expr:
        start = ir.address(buffer) + first(n) * x.dtype.itemsize
        return (start & ir.const(15)).eq(0)

    buffer: ir.Buffer = first_load(ZERO).attr
    return StridedMatrix(buffer, first, stride, aligned)


def row_stride(x: Value, layouts: Layouts) -> int | None:
    """Stride of rows in memory; None for expressions, and for rows that are not contiguous."""
    e = Emitter(layouts)
    names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
    inner, column = set(names[1:]), names[-1]
    value = e.value(x, tuple(names))
    if not isinstance(value, Expr) or value.op != "load" or len(value.args) > 1:
        return None
    strides = [p for p in accesses(e) if inner & p.keys()]
    if len(strides) != 1 or strides[0].get(column, 0) != 1:
        return None
    return strides[0].get(names[1], 0)
