"""Operands and epilogue of CPU matmuls, which may compute C or its transpose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numus import dtypes as dt
from numus.compiler.graph.value import Value
from numus.compiler.hoisting import is_captured
from numus.compiler.lower.affine import accesses, unit_stride_count
from numus.compiler.lower.elementwise import cast_value
from numus.compiler.lower.emitter import Emitter
from numus.compiler.lower.matmul.problem import MatmulProblem, store_epilogue
from numus.ir import Expr, Stmt, const
from numus.kernels.matmul.cpu.panels import Matrix

ZERO = const(0)


@dataclass(frozen=True, slots=True)
class OperandLayout:
    """Rows of A, or columns of B, in memory; strides in bytes."""

    mn_major: bool  # contiguous along m or n
    in_memory: bool  # plain loads, in the dtype of the computation
    mn_stride: int = 0
    k_stride: int = 0
    k_adjacent: bool = False  # all that is read lies along k


@dataclass(frozen=True, slots=True)
class CpuOperand:
    """A value, and its axis of m or n: 1 of A, 2 of B."""

    value: Value
    axis: int


class CpuMatmul:
    """A problem as CPU kernels see it. `transposed`: C' = B' A', so that `a` is B."""

    def __init__(self, problem: MatmulProblem, transposed: bool = False) -> None:
        p = self.problem = problem
        self.transposed = transposed
        self.a, self.b = CpuOperand(p.a, 1), CpuOperand(p.b, 2)
        self.batch, self.m, self.n, self.k = p.batch, p.m, p.n, p.k
        if transposed:
            self.a, self.b, self.m, self.n = self.b, self.a, self.n, self.m
        self.compute_dtype = dt.compute_dtype(p.matmul.dtype)
        self.dtype = dt.real_of(self.compute_dtype)  # of the accumulators
        self.parts = 2 if p.matmul.dtype.is_complex else 1
        self.layouts = p.input_layouts

    def is_captured(self, x: CpuOperand) -> bool:
        """An operand that is packed once for all runs."""
        return is_captured(self.problem.group, x.value, self.layouts)

    def emitter(self) -> Emitter:
        return Emitter(dict(self.layouts))

    def matrix(self, e: Emitter, x: CpuOperand) -> Matrix:
        def read(batch: Expr, mn: Expr, k: Expr, mask: Expr | None) -> Any:
            index = (mn, k) if x.axis == 1 else (k, mn)
            value = e.value(x.value, (batch if self.batch > 1 else ZERO, *index), mask)
            return cast_value(value, x.value.dtype, self.compute_dtype)

        return Matrix(read, e.dim(x.value.shape[x.axis]), self.layout(x).k_adjacent)

    def store(
        self, e: Emitter, batch: Expr, m: Expr, n: Expr, value: Any, mask: Expr | None = None
    ) -> list[Stmt]:
        """The epilogue of one element, or of those where the mask holds."""
        at = (batch, n, m) if self.transposed else (batch, m, n)
        value = cast_value(value, self.compute_dtype, self.problem.matmul.dtype)
        return store_epilogue(e, self.problem.group, at, value, mask)

    def layout(self, operand: CpuOperand) -> OperandLayout:
        x, axis = operand.value, operand.axis
        e = self.emitter()
        names = [e.variable(f"q{i}", e.dim(n)) for i, n in enumerate(x.shape)]
        value = e.value(x, tuple(names))
        loads = accesses(e)
        mn_major = unit_stride_count(loads, names[axis]) > unit_stride_count(loads, names[3 - axis])
        along_k = 0 < len(loads) == unit_stride_count(loads, names[3 - axis]) and not mn_major
        plain = len(loads) == 1 and x.dtype is self.dtype and value.op == "load"
        if not plain or len(value.args) > 1:
            return OperandLayout(mn_major, False, k_adjacent=along_k)
        strides = [abs(loads[0].get(name, 0)) * x.dtype.itemsize for name in names]
        return OperandLayout(mn_major, True, strides[axis], strides[3 - axis], along_k)
