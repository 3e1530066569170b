"""GPU schedules of attention, in order of preference: wgmma, SIMT, the CPU's loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.affine import accesses
from numus.compiler.lower.attention.cpu import CpuBackward, CpuForward
from numus.compiler.lower.attention.problem import AttentionProblem, Reader
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.schedule import Schedule, select
from numus.dtypes import DType
from numus.ir import Expr, Stmt
from numus.kernels.attention.gpu import simt_backward, simt_forward, wgmma_backward, wgmma_forward
from numus.kernels.attention.operands import BackwardOperands, Operands
from numus.kernels.common.smem_tiles import VECTOR, Matrix, StridedMatrix, Vector, round_up
from numus.shapes import Shape
from numus.target import Target

ZERO = ir.const(0)

Tiling = wgmma_forward.Tiling | wgmma_backward.Tiling | simt_forward.Tiling


@dataclass(frozen=True)
class GpuSchedule:
    """A kernel with compile-time tiles, supported where `tiling` finds some that fit."""

    name: str
    tiling: Callable[[AttentionProblem], Tiling | None]
    kernel: Callable[..., tuple[list[Stmt], list[ir.Buffer]]]

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        return self.tiling(problem) is not None

    def cost(self, problem: AttentionProblem, target: Target) -> float:
        return 0.0

    def lower(self, problem: AttentionProblem) -> list[LoweredKernel]:
        p, tiling = problem, self.tiling(problem)
        assert tiling is not None
        layouts = p.group.input_layouts(p.layouts)
        e = Emitter(layouts, block_size=tiling.threads)
        reader, g = Reader(p, e, _compute_dtype(p)), ir.var("g")
        matrix, vector = partial(_matrix, reader, layouts), partial(_vector, reader, layouts)
        tasks = -(-_resident_rows(p)[0] // tiling.rows)
        sizes: wgmma_forward.Sizes | wgmma_backward.Sizes
        operands: Operands[Matrix] | BackwardOperands[Matrix, Vector]
        if p.is_forward:
            dims = (e.dim(p.queries), e.dim(p.keys), e.dim(p.value_dim))
            sizes = wgmma_forward.Sizes(*dims, e.scalar_arg(tasks))
            operands = reader.forward_operands(matrix)
        else:
            dims4 = (e.dim(p.queries), e.dim(p.keys), e.dim(p.head_dim), e.dim(p.value_dim))
            sizes = wgmma_backward.Sizes(*dims4, e.scalar_arg(tasks))
            operands = reader.backward_operands(matrix, vector)
        wgmma = self.kernel in (wgmma_forward.attention, wgmma_backward.attention_backward)
        dtype = p.wgmma_dtype if wgmma else _compute_dtype(p)
        body, scratch = self.kernel(tiling, sizes, dtype, g, operands, p.causal)
        e.scratch += scratch
        return [e.grid_kernel(self.name, g, body, p.batch * tasks, p.notes)]


def _compute_dtype(p: AttentionProblem) -> DType:
    return dt.compute_dtype(p.inputs["q"].dtype)


def _resident_rows(p: AttentionProblem) -> tuple[int, int]:
    """Rows of which a thread block keeps a tile, and streamed rows."""
    return (p.queries, p.keys) if p.is_forward or "q" in p.outputs else (p.keys, p.queries)


def _has_elements(p: AttentionProblem) -> bool:
    return p.head_dim > 0 and (p.value_dim > 0 or ("lse" in p.outputs and len(p.outputs) == 1))


def _wgmma_forward(p: AttentionProblem) -> wgmma_forward.Tiling | None:
    if p.wgmma_dtype is None or not _has_elements(p):
        return None
    dims = (p.queries, p.keys, p.head_dim, p.value_dim)
    return wgmma_forward.choose(p.target, *dims, p.score_operands)


def _simt_forward(p: AttentionProblem) -> simt_forward.Tiling | None:
    if not p.target.subgroup_size or not _has_elements(p):
        return None
    dims = (p.queries, p.keys, p.head_dim, p.value_dim)
    return simt_forward.choose(p.target, _compute_dtype(p), *dims)


def _prefers_wgmma(p: AttentionProblem) -> bool:
    return p.wgmma_dtype is not None and max(p.head_dim, p.value_dim) <= wgmma_forward.MAX_HEAD_DIM


def _wgmma_backward(p: AttentionProblem) -> wgmma_backward.Tiling | None:
    if not _prefers_wgmma(p) or not _has_elements(p):
        return None
    dims = {"q": p.head_dim, "k": p.head_dim, "v": p.value_dim}
    columns = sum(round_up(dims[name], 16) for name in p.outputs)
    needs_ds = list(p.outputs) != ["v"]
    return wgmma_backward.choose(
        p.target, p.head_dim, p.value_dim, columns, needs_ds, p.score_operands
    )


def _simt_backward(p: AttentionProblem) -> simt_forward.Tiling | None:
    # gradients that wgmma cannot accumulate together, it computes one by one
    if _prefers_wgmma(p) or not p.target.subgroup_size or not _has_elements(p):
        return None
    dims = (*_resident_rows(p), p.head_dim, p.value_dim)
    return simt_backward.choose(p.target, _compute_dtype(p), *dims, list(p.outputs))


FORWARD: Sequence[Schedule[AttentionProblem]] = (
    GpuSchedule("attention_wgmma", _wgmma_forward, wgmma_forward.attention),
    GpuSchedule("attention_simt", _simt_forward, simt_forward.attention),
    CpuForward(),
)
BACKWARD: Sequence[Schedule[AttentionProblem]] = (
    GpuSchedule("attention_wgmma_grad", _wgmma_backward, wgmma_backward.attention_backward),
    GpuSchedule("attention_simt_grad", _simt_backward, simt_backward.attention_backward),
)


def lower_attention(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    problem = AttentionProblem.forward(group, layouts, target)
    return select(FORWARD, problem).lower(problem)


def lower_attention_backward(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """A kernel for dq and one for dk and dv, or one for each where a thread cannot hold both."""
    problem = AttentionProblem.backward(group, layouts, target)
    parts = [problem.only("q"), problem.only("k", "v")]
    kernels: list[LoweredKernel] = []
    while parts:
        part = parts.pop(0)
        if not part.outputs:
            continue
        if any(s.supports(part, target) for s in BACKWARD):
            kernels += select(BACKWARD, part).lower(part)
        elif len(part.outputs) > 1:
            parts = [*(part.only(name) for name in part.outputs), *parts]
        else:
            return CpuBackward().lower(problem)
    return kernels


# -- operands -------------------------------------------------------------------------------------


def _matrix(reader: Reader, layouts: dict[Value, Shape], name: str) -> Matrix:
    x, e = reader.inputs[name], reader.e
    columns, stride = e.dim(x.shape[2]), _row_stride(x, layouts)

    def read(n: Expr, row: Expr, column: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, column, mask=mask)

    if stride is None or stride % VECTOR:
        return Matrix(read, columns, None)
    return Matrix(read, columns, _strided(reader, name, e.dim(stride)))


def _vector(reader: Reader, layouts: dict[Value, Shape], name: str) -> Vector:
    def read(n: Expr, row: Expr, mask: Expr) -> Expr:
        return reader.element(name, n, row, mask=mask)

    strided = _row_stride(reader.inputs[name], layouts) is not None
    return Vector(read, _strided(reader, name, ZERO) if strided else None)


def _strided(reader: Reader, name: str, stride: Expr) -> StridedMatrix:
    x = reader.inputs[name]

    def first_load(n: Expr) -> Expr:
        return reader.element(name, n, *[ZERO] * (len(x.shape) - 1))

    def first(n: Expr) -> Expr:
        return first_load(n).args[0]

    def aligned(n: Expr) -> Expr:
        start = ir.address(buffer) + first(n) * x.dtype.itemsize
        return (start & ir.const(15)).eq(0)

    buffer: ir.Buffer = first_load(ZERO).attr
    return StridedMatrix(buffer, first, stride, aligned)


def _row_stride(x: Value, layouts: dict[Value, Shape]) -> int | None:
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
