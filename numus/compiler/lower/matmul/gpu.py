"""GPU schedules of matmul, in order of preference: the first that supports a problem lowers it."""

from __future__ import annotations

from collections.abc import Sequence

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.complex_as_real import ComplexAsReal
from numus.compiler.lower.matmul.gemv import Gemv, GemvMmaSync
from numus.compiler.lower.matmul.mma_sync import MmaSync
from numus.compiler.lower.matmul.problem import Loops, MatmulProblem
from numus.compiler.lower.matmul.simt import Simt
from numus.compiler.lower.matmul.simt_async import SimtAsync
from numus.compiler.lower.matmul.small_k import SmallK
from numus.compiler.lower.matmul.wgmma import Wgmma
from numus.compiler.lower.schedule import Schedule, select
from numus.shapes import Shape
from numus.target import Target


def lower_gpu_matmul(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    problem = MatmulProblem(group, layouts, target)
    return select(SCHEDULES, problem).lower(problem)


SCHEDULES: Sequence[Schedule[MatmulProblem]] = (
    ComplexAsReal(lower_gpu_matmul),
    GemvMmaSync(),
    Gemv(),
    Loops(),
    SmallK(),
    Wgmma(),
    MmaSync(),
    SimtAsync(),
    Simt(),
)
