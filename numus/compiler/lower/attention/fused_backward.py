"""The schedule of all gradients of attention by one pass, in which blocks wait for each other."""

from __future__ import annotations

from functools import partial

from numus import dtypes as dt
from numus import ir
from numus.compiler.lower.attention import gpu_operands
from numus.compiler.lower.attention.problem import AttentionProblem, Reader
from numus.compiler.lower.axis import temporary
from numus.compiler.lower.emitter import Emitter, Kernels
from numus.compiler.lower.grid_sync import clear_flags
from numus.compiler.lower.schedule import InOrder
from numus.kernels.attention.gpu import wgmma_backward_fused as kernel
from numus.kernels.attention.gpu.block import BwdOperands, Sizes, Tiling
from numus.target import Target

ZERO = ir.const(0)


class FusedBackward(InOrder):
    """dq, dk and dv."""

    name = "attention_wgmma_grad"

    def supports(self, problem: AttentionProblem, target: Target) -> bool:
        return _tiling(problem) is not None

    def lower(self, problem: AttentionProblem) -> Kernels:
        p, tiling = problem, _tiling(problem)
        assert tiling is not None
        assert p.wgmma_dtype is not None
        queries, keys, *_ = p.dims
        query_tiles, tasks = -(-queries // tiling.block), -(-keys // tiling.rows)
        count = p.batch * query_tiles
        sums = temporary((count * kernel.dq_elements(tiling),), dt.float32)
        flags = temporary((count * tasks,), dt.uint32)
        e, reader, sizes, operands = _operands(p.only("k", "v"), tiling.threads, tasks)
        memory = (e.buffer(sums, "write"), e.buffer(flags, "write"))
        first = kernel.FusedKernel(tiling, sizes, p.wgmma_dtype, ir.var("g"), operands, *memory)
        steps = [clear_flags(flags, p.target), reader.kernel(self.name, first, p.batch * tasks)]
        e, reader, sizes, operands = _operands(p.only("q"), kernel.CONSUMERS, query_tiles)
        second = kernel.RoundKernel(tiling, sizes, ir.var("g"), operands, e.buffer(sums))
        return [*steps, reader.kernel("attention_round_dq", second, count)]


def _tiling(p: AttentionProblem) -> Tiling | None:
    if p.wgmma_dtype is None or set(p.outputs) != {"q", "k", "v"} or p.score_operands:
        return None
    return kernel.choose(p.target, p.batch, p.causal, *p.dims)


def _operands(
    p: AttentionProblem, threads: int, tasks: int
) -> tuple[Emitter, Reader, Sizes, BwdOperands]:
    layouts = p.group.input_layouts(p.layouts)
    e = Emitter(layouts, block_size=threads)
    reader = Reader(p, e, dt.compute_dtype(p.inputs["q"].dtype))
    queries, keys, head_dim, value_dim = map(e.dim, p.dims)
    sizes = Sizes(
        queries=queries,
        keys=keys,
        head_dim=head_dim,
        value_dim=value_dim,
        tasks=e.scalar_arg(tasks),
    )
    matrix = partial(gpu_operands.matrix, reader, layouts)
    vector = partial(gpu_operands.vector, reader, layouts)
    return e, reader, sizes, reader.backward_operands(matrix, vector)
