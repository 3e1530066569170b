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
from numus.compiler.lower.schedule import InOrder
from numus.kernels.vendor.matmul import MATMUL_BIAS, GemmProblem, StridedMatrix
from numus.kernels.vendor.registry import Vendor, choose_vendor
from numus.shapes import Shape, row_major
from numus.target import Target


class _Bias(NamedTuple):
    """A vector added to every row of C, before anything else."""

    total: Value  # the sum
    vector: Value


class _Call(NamedTuple):
    """A library's kernel, and what it is given."""

    vendor: Vendor
    gemm: GemmProblem
    bases: list[Value | None]  # in whose memory A and B are; None: an expression
    bias: _Bias | None


class VendorMatmul(InOrder):
    name = "vendor_matmul"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        return _choose(problem) is not None

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        p, layouts, call = problem, problem.input_layouts, _choose(problem)
        assert call is not None
        steps: list[LoweredKernel] = []

        def copy(x: Value) -> Value:
            made = Value.fresh("copy", "barrier", (x,), None, x.shape, x.dtype)
            group = FusionGroup.of_stored(made, p.group.position)
            steps.extend(lower_loops(group, layouts, p.target))
            return made

        sources = [base or copy(x) for x, base in zip((p.a, p.b), call.bases, strict=True)]
        result, ops = p.matmul, [p.matmul.op]
        if call.bias is not None:
            result, vector = call.bias
            sources.append(vector if vector in layouts else copy(vector))
            ops.append("add")
        access = ["read"] * len(sources) + ["write"]
        buffers = tuple(
            ir.Buffer(f"b{i}", dt.real_of(v.dtype), how)
            for i, (v, how) in enumerate(zip((*sources, result), access, strict=True))
        )
        vendor, gemm = call.vendor, call.gemm
        notes = tuple(ops)
        kernel = ir.Kernel(vendor.name, buffers, (), [], notes, vendor=vendor, problem=gemm)
        steps.append(LoweredKernel(kernel, [*sources, result], [], 1, []))
        return steps + lower_epilogue(p, result)


def _choose(p: MatmulProblem) -> _Call | None:
    """The library that computes the matmul, with its bias if it can; None where numus does."""
    matmul, a, b, layouts = p.matmul, p.a, p.b, p.input_layouts
    if matmul.size == 0 or p.k == 0 or a.dtype is not b.dtype:
        return None
    tf32 = matmul.params == "tf32" and a.dtype is dt.float32
    if matmul.params is not None and not tf32:  # a precision that only numus knows
        return None
    (base_a, left), (base_b, right) = (_strided_matrix(x, layouts) for x in (a, b))
    bases = [base_a, base_b]
    copied = sum(2 * _nbytes(x) for x, base in zip((a, b), bases, strict=True) if base is None)
    bias = _bias(p.group, layouts)
    for fused in (bias, None) if bias else (None,):
        result = matmul if fused is None else fused.total
        has_epilogue = any(v is not result for v in p.group.members[1:])
        extra_bytes = copied + (2 * _nbytes(matmul) if has_epilogue else 0)
        sizes, dtypes = (p.batch, p.m, p.n, p.k), (a.dtype.name, matmul.dtype.name)
        flags = (has_epilogue, tf32, fused is not None, copied > 0)
        gemm = GemmProblem(*sizes, *dtypes, left, right, extra_bytes, *flags)
        vendor = choose_vendor(MATMUL_BIAS if fused else "contract", gemm, p.target)
        if vendor is not None:
            return _Call(vendor, gemm, bases, fused)
    return None


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


def _strided_matrix(x: Value, layouts: dict[Value, Shape]) -> tuple[Value | None, StridedMatrix]:
    """The value in whose memory an operand is, and its layout there; that of a copy (and None) of
    an expression, or where neither rows nor columns are contiguous."""
    _, rows, columns = x.shape
    view = strided_view(x, layouts)
    if view is not None and view.strides[0] >= 0 and view.offset >= 0:
        batch, row, column = view.strides
        if (column == 1 or columns == 1) and (row >= columns or rows == 1):
            return view.base, StridedMatrix(view.offset, batch, max(row, columns), False)
        if (row == 1 or rows == 1) and (column >= rows or columns == 1):
            return view.base, StridedMatrix(view.offset, batch, max(column, rows), True)
    return None, StridedMatrix(0, rows * columns, columns, False)
