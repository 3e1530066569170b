"""CPU schedules of attention (FlashAttention-2, `kernels/attention/cpu/`)."""

from __future__ import annotations

from numus import dtypes as dt
from numus import ir
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts
from numus.compiler.lower.attention.problem import AttentionProblem, Reader
from numus.compiler.lower.emitter import Emitter, Kernels, LoweredKernel
from numus.compiler.lower.schedule import Fallback
from numus.kernels.attention.cpu import backward, forward
from numus.target import Target


def _reader(p: AttentionProblem) -> Reader:
    e = Emitter(p.group.input_layouts(p.layouts), block_size=p.target.block_size)
    return Reader(p, e, dt.compute_dtype(p.value.dtype))


class CpuForward(Fallback):
    """One kernel for the output, the log-sum-exp, or both."""

    name = "attention"

    def lower(self, problem: AttentionProblem) -> Kernels:
        p, reader, g = problem, _reader(problem), ir.var("g")
        e, dtype = reader.e, reader.dtype
        tiling = forward.choose(p.target, dtype, p.batch, *p.dims)
        tasks = -(-p.dims[0] // tiling.rows)
        args = (e.scalar_arg(n) for n in (tiling.keys, tiling.rows, tasks))
        sizes = forward.Sizes(*(e.dim(n) for n in p.dims), *args)
        operands = reader.forward_operands(reader.matrix)
        task = forward.ForwardTask(tiling, sizes, dtype, g, operands)
        return [reader.kernel(self.name, task, p.batch * tasks)]


class CpuBackward:
    """One kernel for all gradients; or one for dq and one for dk and dv, with too few matrices to
    keep every core busy.
    """

    name = "attention_grad"

    def lower(self, problem: AttentionProblem) -> Kernels:
        parts = [problem.only("q"), problem.only("k", "v")]
        parts = [part for part in parts if part.outputs]
        if len(parts) == 2 and not backward.use_two_kernels(problem.target, problem.batch):
            parts = [problem]
        return [self._kernel(part) for part in parts]

    def _kernel(self, p: AttentionProblem) -> LoweredKernel:
        reader, g, (queries, keys, *_) = _reader(p), ir.var("g"), p.dims
        e, dtype = reader.e, reader.dtype
        tiling = backward.choose(p.target, dtype, p.batch, *p.dims)
        query_rows, key_rows = tiling.query_rows, tiling.key_rows
        if list(p.outputs) == ["q"]:
            query_rows = backward.rows_per_task(p.target, p.batch, queries, tiling.scores.columns)
        elif "q" not in p.outputs:
            key_rows = backward.rows_per_task(p.target, p.batch, keys, tiling.keys)
        tasks = (max(1, -(-queries // query_rows)), max(1, -(-keys // key_rows)))
        blocks = (tiling.queries, tiling.keys, query_rows, key_rows, *tasks)
        sizes = backward.Sizes(*(e.dim(n) for n in p.dims), *(e.scalar_arg(n) for n in blocks))
        operands = reader.backward_operands(reader.matrix, reader.per_query)
        task = backward.BackwardTask(tiling, sizes, dtype, g, operands)
        return reader.kernel(self.name, task, p.batch * tasks[0] * tasks[1])


def lower_attention(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    problem = AttentionProblem.of(group, layouts, target)
    return (CpuForward() if problem.is_forward else CpuBackward()).lower(problem)
