"""GPU schedules of convolutions, in order of preference."""

from __future__ import annotations

from collections.abc import Sequence

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.conv.cpu import Loops
from numus.compiler.lower.conv.depthwise import Depthwise, DepthwiseWgrad
from numus.compiler.lower.conv.implicit_gemm import ImplicitGemm
from numus.compiler.lower.conv.padded_gemm import PaddedGemm
from numus.compiler.lower.conv.problem import ConvProblem, Lowering
from numus.compiler.lower.conv.winograd import Winograd
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.schedule import Schedule, select
from numus.shapes import Shape
from numus.target import Target

SCHEDULES: Sequence[Schedule[ConvProblem]] = (
    Winograd(),
    PaddedGemm(),
    DepthwiseWgrad(),
    Depthwise(),
    ImplicitGemm("implicit_gemm_wgmma", wgmma=True),
    ImplicitGemm("implicit_gemm_simt", wgmma=False),
    Loops(),
)


def lower_convolution(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target, lower_matmul: Lowering
) -> list[LoweredKernel]:
    problem = ConvProblem(group, layouts, target, lower_matmul)
    return select(SCHEDULES, problem).lower(problem)
