"""GPU schedules of attention, in order of preference: wgmma, SIMT, the CPU's loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts
from numus.compiler.lower.attention import gpu_operands
from numus.compiler.lower.attention.cpu import CpuBackward, CpuForward
from numus.compiler.lower.attention.fused_backward import FusedBackward
from numus.compiler.lower.attention.problem import AttentionKernel, AttentionProblem, Reader
from numus.compiler.lower.attention.split import SplitKeys
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.schedule import InOrder, Schedule, select
from numus.dtypes import DType
from numus.kernels.attention.gpu import (
    simt_backward,
    simt_forward,
    wgmma_backward,
    wgmma_forward,
    wgmma_pipelined,
)
from numus.kernels.attention.gpu.block import BwdOperands, FwdOperands, Sizes, Tiling
from numus.kernels.common.smem_tiles import (
    round_up,
)
from numus.target import Target

ZERO = ir.const(0)


@dataclass(frozen=True)
class GpuSchedule(InOrder):
    """A kernel with compile-time tiles, supported where `tiling` finds some that fit."""

    name: str
    tiling: Callable[[AttentionProblem], Tiling | None]
    kernel: Callable[..., AttentionKernel]
    wgmma: bool

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        return self.tiling(problem) is not None

    def lower(self, problem: AttentionProblem) -> Kernels:
        p, tiling = problem, self.tiling(problem)
        assert tiling is not None
        layouts = p.group.input_layouts(p.layouts)
        e = Emitter(layouts, block_size=tiling.threads)
        reader = Reader(p, e, _compute_dtype(p))
        matrix, vector = (
            partial(gpu_operands.matrix, reader, layouts),
            partial(gpu_operands.vector, reader, layouts),
        )
        tasks = -(-_resident_rows(p)[0] // tiling.rows)
        queries, keys, head_dim, value_dim = p.dims
        grid, counts = p.batch * tasks, {}
        if tiling.persistent:
            grid = min(grid, p.target.num_cores)
            rounds = -(-p.batch * tasks // grid)
            counts = {"all_tasks": p.batch * tasks, "blocks": grid, "rounds": rounds}
        sizes = Sizes(
            queries=e.dim(queries),
            keys=e.dim(keys),
            head_dim=ZERO if p.is_forward else e.dim(head_dim),
            value_dim=e.dim(value_dim),
            tasks=e.scalar_arg(tasks),
            **{name: e.scalar_arg(n) for name, n in counts.items()},
        )
        operands: FwdOperands | BwdOperands
        if p.is_forward:
            operands = reader.forward_operands(matrix)
        else:
            operands = reader.backward_operands(matrix, vector)
        dtype = p.wgmma_dtype if self.wgmma else _compute_dtype(p)
        kernel = self.kernel(tiling, sizes, dtype, ir.var("g"), operands)
        return [reader.kernel(self.name, kernel, grid)]


def _compute_dtype(p: AttentionProblem) -> DType:
    return dt.compute_dtype(p.inputs["q"].dtype)


def _resident_rows(p: AttentionProblem) -> tuple[int, int]:
    """Rows of which a thread block keeps a tile, and streamed rows."""
    queries, keys, *_ = p.dims
    return (queries, keys) if p.is_forward or "q" in p.outputs else (keys, queries)


def _has_elements(p: AttentionProblem) -> bool:
    *_, head_dim, value_dim = p.dims
    return head_dim > 0 and (value_dim > 0 or list(p.outputs) == ["lse"])


def _wgmma_forward(p: AttentionProblem) -> Tiling | None:
    if p.wgmma_dtype is None or not _has_elements(p):
        return None
    return wgmma_forward.choose(p.target, *p.dims, p.score_operands)


def _wgmma_pipelined(p: AttentionProblem) -> Tiling | None:
    if p.wgmma_dtype is None or "out" not in p.outputs:
        return None
    return wgmma_pipelined.choose(p.target, *p.dims, p.score_operands, p.causal)


def _simt_forward(p: AttentionProblem) -> Tiling | None:
    if not p.target.subgroup_size or not _has_elements(p):
        return None
    return simt_forward.choose(p.target, _compute_dtype(p), *p.dims)


def _prefers_wgmma(p: AttentionProblem) -> bool:
    return p.wgmma_dtype is not None and max(p.dims[2:]) <= wgmma_forward.MAX_HEAD_DIM


def _wgmma_backward(p: AttentionProblem) -> Tiling | None:
    if not _prefers_wgmma(p) or not _has_elements(p):
        return None
    *_, head_dim, value_dim = p.dims
    columns = sum(round_up(value_dim if name == "v" else head_dim, 16) for name in p.outputs)
    needs = (columns, list(p.outputs) != ["v"], p.score_operands)
    return wgmma_backward.choose(p.target, head_dim, value_dim, *needs)


def _simt_backward(p: AttentionProblem) -> Tiling | None:
    # gradients that wgmma cannot accumulate together, it computes one by one
    if _prefers_wgmma(p) or not p.target.subgroup_size or not _has_elements(p):
        return None
    dims = (*_resident_rows(p), *p.dims[2:])
    return simt_backward.choose(p.target, _compute_dtype(p), *dims, list(p.outputs))


FORWARD: Sequence[Schedule[AttentionProblem]] = (
    SplitKeys(),
    GpuSchedule("attention_wgmma", _wgmma_pipelined, wgmma_pipelined.PipelinedKernel, True),
    GpuSchedule("attention_wgmma", _wgmma_forward, wgmma_forward.ForwardKernel, True),
    GpuSchedule("attention_simt", _simt_forward, simt_forward.ForwardKernel, False),
    CpuForward(),
)
BACKWARD: Sequence[Schedule[AttentionProblem]] = (
    GpuSchedule("attention_wgmma_grad", _wgmma_backward, wgmma_backward.BackwardKernel, True),
    GpuSchedule("attention_simt_grad", _simt_backward, simt_backward.BackwardKernel, False),
)


def lower_attention(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    problem = AttentionProblem.of(group, layouts, target)
    if problem.is_forward:
        return select(FORWARD, problem).lower(problem)
    return _lower_backward(problem)


def _lower_backward(problem: AttentionProblem) -> Kernels:
    """All gradients by one pass; or a kernel for dq and one for dk and dv, or one for each where a
    thread cannot hold both."""
    if FusedBackward().supports(problem, problem.target):
        return FusedBackward().lower(problem)
    parts = [problem.only("q"), problem.only("k", "v")]
    kernels: Kernels = []
    while parts:
        part = parts.pop(0)
        if not part.outputs:
            continue
        if any(s.supports(part, part.target) for s in BACKWARD):
            kernels += select(BACKWARD, part).lower(part)
        elif len(part.outputs) > 1:
            parts = [*(part.only(name) for name in part.outputs), *parts]
        else:
            return CpuBackward().lower(problem)
    return kernels
