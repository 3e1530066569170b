"""Matmuls by vendors' libraries: operands in memory, a bias fused, the rest after them."""

from __future__ import annotations

from typing import NamedTuple

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.strided_view import strided_view
from numus.compiler.graph.value import Value, walk
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_loops
from numus.compiler.lower.matmul.problem import MatmulProblem, lower_epilogue
from numus.kernels.vendor.matmul import MATMUL_BIAS, GemmProblem, StridedMatrix
from numus.kernels.vendor.registry import choose_vendor
from numus.shapes import Shape, row_major
from numus.target import Target


def lower_vendor_matmul(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel] | None:
    """Kernels of a group whose matmul a library computes; None where numus does."""
    p = MatmulProblem(group, layouts, target)
    matmul, a, b = p.matmul, p.a, p.b
    if matmul.size == 0 or p.k == 0 or a.dtype is not b.dtype:
        return None
    tf32 = matmul.params == "tf32" and a.dtype is dt.float32
    if matmul.params is not None and not tf32:  # a precision that only numus knows
        return None
    layouts = p.input_layouts
    found = [_strided_matrix(x, layouts) for x in (a, b)]
    left, right = (
        StridedMatrix(0, x.shape[1] * x.shape[2], x.shape[2], False) if f is None else f[1]
        for x, f in zip((a, b), found, strict=True)
    )
    copied = sum(2 * _nbytes(x) for x, f in zip((a, b), found, strict=True) if f is None)

    def problem(bias: bool, has_epilogue: bool) -> GemmProblem:
        extra_bytes = copied + (2 * _nbytes(matmul) if has_epilogue else 0)
        sizes, dtypes = (p.batch, p.m, p.n, p.k), (a.dtype.name, matmul.dtype.name)
        flags = (has_epilogue, tf32, bias, copied > 0)
        return GemmProblem(*sizes, *dtypes, left, right, extra_bytes, *flags)

    bias = _bias(group, layouts)
    vendor, result = None, matmul
    if bias is not None:
        gemm = problem(True, has_epilogue=any(v is not bias.total for v in group.members[1:]))
        vendor, result = choose_vendor(MATMUL_BIAS, gemm, target), bias.total
    if vendor is None:
        bias, result = None, matmul
        gemm = problem(False, has_epilogue=len(group.members) > 1)
        vendor = choose_vendor("contract", gemm, target)
    if vendor is None:
        return None
    steps: list[LoweredKernel] = []

    def copy(x: Value) -> Value:
        made = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
        steps.extend(lower_loops(FusionGroup.of_stored(made, group.position), layouts, target))
        return made

    sources = [copy(x) if f is None else f[0] for x, f in zip((a, b), found, strict=True)]
    if bias is not None:
        sources.append(bias.vector if bias.vector in layouts else copy(bias.vector))
    access = ["read"] * len(sources) + ["write"]
    buffers = tuple(
        ir.Buffer(f"b{i}", dt.real_of(v.dtype), how)
        for i, (v, how) in enumerate(zip((*sources, result), access, strict=True))
    )
    notes = (matmul.op,) if bias is None else (matmul.op, "add")
    kernel = ir.Kernel(vendor.name, buffers, (), [], notes, vendor=vendor, problem=gemm)
    steps.append(LoweredKernel(kernel, [*sources, result], [], 1, []))
    return steps + lower_epilogue(p, result)


class _Bias(NamedTuple):
    """A vector added to every row of C, before anything else."""

    total: Value  # the sum
    vector: Value


def _bias(group: FusionGroup, layouts: dict[Value, Shape]) -> _Bias | None:
    matmul, *tail = group.members
    if matmul in group.stored or matmul.dtype not in (dt.float32, dt.float16, dt.bfloat16):
        return None
    ahead = walk(tail, lambda v: v not in layouts and v is not matmul)
    users = [v for v in ahead if matmul in v.inputs]
    if len(users) != 1 or users[0].op != "add" or users[0].dtype is not matmul.dtype:
        return None
    (other,) = [x for x in users[0].inputs if x is not matmul] or [matmul]
    vector = other
    while vector not in layouts and vector.kind == "view":
        vector = vector.inputs[0]
    view = strided_view(other, {vector: layouts.get(vector, row_major(vector.shape))})
    if view is None or view.offset or vector.size != matmul.shape[2]:
        return None
    *outer, last = zip(other.shape, view.strides, strict=True)
    contiguous = last in ((vector.size, 1), (1, 0))
    broadcast = all(extent == 1 or stride == 0 for extent, stride in outer)
    return _Bias(users[0], vector) if contiguous and broadcast else None


def _nbytes(x: Value) -> int:
    return x.size * x.dtype.itemsize


def _strided_matrix(x: Value, layouts: dict[Value, Shape]) -> tuple[Value, StridedMatrix] | None:
    """The value in whose memory an operand is, and its layout there; None of an expression, or
    where neither rows nor columns are contiguous."""
    view = strided_view(x, layouts)
    if view is None:
        return None
    batch, row, column = view.strides
    _, rows, columns = x.shape
    if batch < 0 or view.offset < 0:
        return None
    if (column == 1 or columns == 1) and (row >= columns or rows == 1):
        return view.base, StridedMatrix(view.offset, batch, max(row, columns), False)
    if (row == 1 or rows == 1) and (column >= rows or columns == 1):
        return view.base, StridedMatrix(view.offset, batch, max(column, rows), True)
    return None
