"""CPU schedules of matmul, in order of preference: the first that supports a problem lowers it."""

from __future__ import annotations

from collections.abc import Sequence

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.cpu_gemm import Gemm, SkinnyGemm, SplitKGemm
from numus.compiler.lower.matmul.cpu_gemv import CpuGemv
from numus.compiler.lower.matmul.problem import Loops, MatmulProblem
from numus.compiler.lower.schedule import Schedule, select
from numus.shapes import Shape
from numus.target import Target

SCHEDULES: Sequence[Schedule[MatmulProblem]] = (
    CpuGemv(),
    Loops(),
    SplitKGemm(),
    SkinnyGemm(),
    Gemm(),
)


def lower_cpu_matmul(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    problem = MatmulProblem(group, layouts, target)
    return select(SCHEDULES, problem).lower(problem)
