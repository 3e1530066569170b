"""Split-K: partial products over parts of k, then their sum with the epilogue."""

from __future__ import annotations

from collections.abc import Callable

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_sum
from numus.compiler.lower.matmul.problem import MatmulProblem


def split_by_views(
    problem: MatmulProblem, split_k: int, lower: Callable[[MatmulProblem], list[LoweredKernel]]
) -> list[LoweredKernel]:
    """Split-K for kernels that know nothing of it: splits are further matrices of the batch."""
    if split_k == 1:
        return lower(problem)
    p = problem
    size = -(-p.k // split_k)
    pad = split_k * size - p.k

    def split(x: Value, axis: int) -> Value:
        """The axis of k as (split, k of a split), splits joined with the batch."""
        low = (0, 0, 0)
        high = tuple(pad if i == axis else 0 for i in range(3))
        shape = tuple(n + h for n, h in zip(x.shape, high, strict=True))
        if pad:
            x = Value.fresh("pad", "view", (x,), (low, high, (0, 0, 0)), shape, x.dtype)
        parts = (*shape[:axis], split_k, size, *shape[axis + 1 :])
        x = Value.fresh("reshape", "view", (x,), parts, parts, x.dtype)
        order = (0, axis, *(i for i in range(1, 4) if i != axis))
        shape = tuple(parts[i] for i in order)
        x = Value.fresh("permute", "view", (x,), order, shape, x.dtype)
        flat = (p.batch * split_k, *shape[2:])
        return Value.fresh("reshape", "view", (x,), flat, flat, x.dtype)

    partial = _partial_products(p.matmul, (split(p.a, 2), split(p.b, 1)), split_k)
    first = FusionGroup.of_stored(partial, p.group.position)
    return lower(p.of(first)) + _sum_partials(p, partial)


def split_in_kernel(
    problem: MatmulProblem, split_k: int, lower: Callable[[FusionGroup], LoweredKernel]
) -> list[LoweredKernel]:
    """Split-K for kernels whose blocks find their part of k themselves."""
    if split_k == 1:
        return [lower(problem.group)]
    partial = _partial_products(problem.matmul, problem.matmul.inputs, split_k)
    first = FusionGroup.of_stored(partial, problem.group.position)
    return [lower(first), *_sum_partials(problem, partial)]


def _partial_products(matmul: Value, inputs: tuple[Value, ...], split_k: int) -> Value:
    batch, m, n = matmul.shape
    shape, dtype = (batch * split_k, m, n), dt.compute_dtype(matmul.dtype)
    return Value.fresh("contract", "contract", inputs, matmul.params, shape, dtype)


def _sum_partials(problem: MatmulProblem, partial: Value) -> list[LoweredKernel]:
    p = problem
    layouts = {**p.layouts, partial: (p.m * p.n, p.n, 1)}
    shape = (p.batch, partial.shape[0] // p.batch, p.m, p.n)
    viewed = Value.fresh("reshape", "view", (partial,), shape, shape, partial.dtype)
    out = p.matmul
    total = Value.fresh("reduce_sum", "reduce", (viewed,), (1,), out.shape, out.dtype)
    return lower_sum(p.group, total, layouts, p.target)
