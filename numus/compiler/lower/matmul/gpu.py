"""GPU schedules of matmul, in order of preference: the first that supports a problem lowers it."""

from __future__ import annotations

from collections.abc import Sequence

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.matmul.complex_as_real import ComplexAsReal
from numus.compiler.lower.matmul.gemv import Gemv, GemvMmaSync
from numus.compiler.lower.matmul.gpu_gemm import MmaSync, Simt, SimtAsync, SmallK
from numus.compiler.lower.matmul.problem import Loops, MatmulProblem
from numus.compiler.lower.matmul.row_gemv import RowGemv
from numus.compiler.lower.matmul.vendor import VendorMatmul
from numus.compiler.lower.matmul.wgmma import Wgmma
from numus.compiler.lower.schedule import Schedule, select
from numus.shapes import Shape
from numus.target import Target

Schedules = Sequence[Schedule[MatmulProblem]]
REAL_SCHEDULES: Schedules = (
    GemvMmaSync(),
    Gemv(),
    Loops(),
    SmallK(),
    Wgmma(),
    MmaSync(),
    SimtAsync(),
    Simt(),
)
SCHEDULES: Schedules = (RowGemv(), VendorMatmul(), ComplexAsReal(REAL_SCHEDULES), *REAL_SCHEDULES)


def lower_gpu_matmul(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    problem = MatmulProblem(group, layouts, target)
    return select(SCHEDULES, problem).lower(problem)
