"""Operands of products that threads read straight into their registers: how they lie."""

from __future__ import annotations

from numus import ir
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.gpu_operands import along, lying
from numus.dtypes import DType
from numus.ir import Expr, const
from numus.kernels.matmul.gpu.vector_loads import ACCESS, Operand
from numus.shapes import Shape

ZERO = const(0)


def operand(
    e: Emitter,
    x: Value,
    line: int,
    layouts: dict[Value, Shape],
    dtype: DType,
    batched: bool,
    most: int = ACCESS,
) -> Operand:
    """An operand whose lines are counted along axis `line`, in runs of up to `most` elements."""

    def read(t: Expr, i: Expr, p: Expr) -> Expr:
        index = (i, p) if line == 1 else (p, i)
        value: Expr = e.value(x, (t if batched else ZERO, *index))
        return value.cast(dtype)

    extent = e.dim(x.shape[line])
    how = lying(x, layouts, line)
    if how is None or x.dtype.kind == "bool":
        by_k = along(x, layouts, 3 - line) if how is None else how.along
        return Operand(read, extent, by_k)
    run = min(most, ACCESS // x.dtype.itemsize)
    inner = x.shape[3 - line] if how.along else x.shape[line]
    while run > 1 and (how.line % run or how.matrix % run or inner % run):
        run //= 2
    if run == 1:
        return Operand(read, extent, how.along)

    def place(t: Expr, i: Expr, p: Expr) -> tuple[ir.Buffer, Expr]:
        index = (i, p) if line == 1 else (p, i)
        found = e.value(x, (t if batched else ZERO, *index))
        return found.attr, found.args[0]

    buffer, _ = place(ZERO, ZERO, ZERO)
    aligned = (ir.address(buffer) & const(run * x.dtype.itemsize - 1)).eq(0)
    return Operand(read, extent, how.along, place, run, aligned)
