"""CPU schedules of attention (FlashAttention-2, `kernels/attention/cpu/`)."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.attention.problem import AttentionProblem, Reader
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.kernels.attention.cpu import backward, forward
from numus.shapes import Shape
from numus.target import Target


class CpuForward:
    """One kernel for the output, the log-sum-exp, or both."""

    name = "attention"

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        return True

    def cost(self, problem: AttentionProblem, target: Target) -> float:
        return 0.0

    def lower(self, problem: AttentionProblem) -> list[LoweredKernel]:
        p, target = problem, problem.target
        e = Emitter(p.group.input_layouts(p.layouts), block_size=target.block_size)
        dtype = dt.compute_dtype(p.value.dtype)
        reader = Reader(p, e, dtype)
        dims = (p.queries, p.keys, p.head_dim, p.value_dim)
        tiling = forward.choose(target, dtype, p.batch, *dims)
        tasks = -(-p.queries // tiling.rows)
        sizes = forward.Sizes(
            *(e.dim(n) for n in dims), *(e.scalar_arg(n) for n in (tiling.keys, tiling.rows, tasks))
        )
        operands = reader.forward_operands(reader.matrix)
        g = ir.var("g")
        body, scratch = forward.attention(tiling, sizes, dtype, g, operands, p.causal)
        e.scratch += scratch
        return [e.grid_kernel(self.name, g, body, p.batch * tasks, p.notes)]


class CpuBackward:
    """One kernel for all gradients; or one for dq and one for dk and dv, with too few matrices to
    keep every core busy.
    """

    name = "attention_grad"

    def lower(self, problem: AttentionProblem) -> list[LoweredKernel]:
        parts = [problem.only("q"), problem.only("k", "v")]
        parts = [part for part in parts if part.outputs]
        if len(parts) == 2 and not backward.use_two_kernels(problem.target, problem.batch):
            parts = [problem]
        return [self._kernel(part) for part in parts]

    def _kernel(self, p: AttentionProblem) -> LoweredKernel:
        target = p.target
        e = Emitter(p.group.input_layouts(p.layouts), block_size=target.block_size)
        dtype = dt.compute_dtype(p.value.dtype)
        reader = Reader(p, e, dtype)
        dims = (p.queries, p.keys, p.head_dim, p.value_dim)
        tiling = backward.choose(target, dtype, p.batch, *dims)
        query_rows, key_rows = tiling.query_rows, tiling.key_rows
        if list(p.outputs) == ["q"]:
            query_rows = backward.rows_per_task(target, p.batch, p.queries, tiling.scores.columns)
        elif "q" not in p.outputs:
            key_rows = backward.rows_per_task(target, p.batch, p.keys, tiling.keys)
        query_tasks = max(1, -(-p.queries // query_rows))
        key_tasks = max(1, -(-p.keys // key_rows))
        sizes = backward.Sizes(
            *(e.dim(n) for n in dims),
            *(e.scalar_arg(n) for n in (tiling.queries, tiling.keys, query_rows, key_rows)),
            *(e.scalar_arg(n) for n in (query_tasks, key_tasks)),
        )
        operands = reader.backward_operands(reader.matrix, reader.per_query)
        g = ir.var("g")
        body, scratch = backward.attention_backward(tiling, sizes, dtype, g, operands, p.causal)
        e.scratch += scratch
        grid = p.batch * query_tasks * key_tasks
        return e.grid_kernel(self.name, g, body, grid, p.notes)


def lower_attention(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    return CpuForward().lower(AttentionProblem.forward(group, layouts, target))


def lower_attention_backward(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    return CpuBackward().lower(AttentionProblem.backward(group, layouts, target))
