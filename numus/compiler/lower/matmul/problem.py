"""The matmul of a fusion group as its schedules see it: C = A B, batched, with an epilogue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup, index_of, squeeze
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_gemm_as_reduction, lower_loops, lower_sum
from numus.compiler.lower.schedule import InOrder, Problem
from numus.ir import Expr, Stmt
from numus.shapes import Shape, row_major
from numus.target import Target

TINY_MATMUL = 1 << 12  # multiplications; below, plain loops are as fast


@dataclass(frozen=True)
class MatmulProblem(Problem):
    """A is (batch, m, k), B is (batch, k, n). Operands may be any expression."""

    matmul: Value = field(init=False)
    a: Value = field(init=False)
    b: Value = field(init=False)
    batch: int = field(init=False)
    m: int = field(init=False)
    n: int = field(init=False)
    k: int = field(init=False)

    def __post_init__(self) -> None:
        matmul = self.group.members[0]
        found = (matmul, *matmul.inputs, *matmul.shape, matmul.inputs[0].shape[2])
        for name, value in zip(("matmul", "a", "b", "batch", "m", "n", "k"), found, strict=True):
            object.__setattr__(self, name, value)

    @property
    def is_tiny(self) -> bool:
        return self.m * self.n * self.k < TINY_MATMUL

    @property
    def store_only(self) -> bool:
        """The epilogue is a store."""
        return len(self.group.members) == 1

    @property
    def input_layouts(self) -> dict[Value, Shape]:
        """Layouts of what is in memory before the group runs."""
        return self.group.input_layouts(self.layouts)

    def of(self, group: FusionGroup) -> MatmulProblem:
        """Another group, such as a part of this one."""
        return MatmulProblem(group, self.layouts, self.target)


def store_epilogue(
    e: Emitter, group: FusionGroup, at: Sequence[Expr], value: object, mask: Expr | None = None
) -> list[Stmt]:
    """Stores of the group's results at (batch, m, n), given the element of C, in C's dtype."""
    matmul = group.members[0]
    point = [x for x, extent in zip(at, matmul.shape, strict=True) if extent != 1]
    e.bind(matmul, value)
    e.invalidate()
    out: list[Stmt] = []
    for v in group.members:
        if v in group.stored:
            assert v is matmul or squeeze(v.shape) == squeeze(matmul.shape)
            index = index_of(v.shape, point)
            out += e.store(v, index, e.value(v, index, mask), mask)
    return out


def lower_epilogue(problem: MatmulProblem, result: Value) -> list[LoweredKernel]:
    """The rest of the group as loops of their own, after kernels that stored `result`."""
    group = problem.group
    tail = [v for v in group.members[1:] if v is not result]
    if not tail:
        return []
    rest = FusionGroup.of(tail, group.stored - {problem.matmul, result}, group.position)
    layouts = {**problem.input_layouts, result: row_major(result.shape)}
    return lower_loops(rest, layouts, problem.target)


class Loops(InOrder):
    """A reduction of products: tiny matmuls, a single vector, complex numbers and booleans."""

    name = "loops"

    def supports(self, problem: MatmulProblem, target: Target) -> bool:
        p, dtype = problem, problem.matmul.dtype
        if p.is_tiny or min(p.m, p.n) == 1 or dtype.kind == "bool":
            return True
        return target.simt and dtype.is_complex

    def lower(self, problem: MatmulProblem) -> list[LoweredKernel]:
        return lower_gemm_as_reduction(problem.group, problem.layouts, problem.target)


# -- split-K: partial products over parts of k, then their sum with the epilogue -----------------


def split_by_views(
    problem: MatmulProblem, split_k: int, lower: Callable[[MatmulProblem], list[LoweredKernel]]
) -> list[LoweredKernel]:
    """Split-K for kernels that know nothing of it: splits are further matrices of the batch."""
    if split_k == 1:
        return lower(problem)
    p, size = problem, -(-problem.k // split_k)
    pad = split_k * size - p.k

    def split(x: Value, axis: int) -> Value:
        """The axis of k as (split, k of a split), splits joined with the batch."""
        high = tuple(pad if i == axis else 0 for i in range(3))
        shape = tuple(n + h for n, h in zip(x.shape, high, strict=True))
        if pad:
            x = Value.fresh("pad", "view", (x,), ((0, 0, 0), high, (0, 0, 0)), shape, x.dtype)
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
