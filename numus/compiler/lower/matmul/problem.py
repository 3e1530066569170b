"""The matmul of a fusion group as its schedules see it: C = A B, batched, with an epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from numus.compiler.fusion.group import FusionGroup, index_of, squeeze
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import Emitter, LoweredKernel
from numus.compiler.lower.loops import lower_gemm_as_reduction, lower_loops
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
