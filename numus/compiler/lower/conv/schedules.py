"""Schedules of convolutions. CPU: direct convolution by vectors, or loops over windows, by cost.
GPU: in order of preference."""

from __future__ import annotations

from collections.abc import Sequence

from numus import dtypes as dt
from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts, Value
from numus.compiler.lower.conv.cpu_channels import ChannelConv
from numus.compiler.lower.conv.cpu_depthwise import DepthwiseConv
from numus.compiler.lower.conv.cpu_spatial import SpatialConv
from numus.compiler.lower.conv.cpu_wgrad import WgradConv
from numus.compiler.lower.conv.cpu_winograd import CpuWinograd
from numus.compiler.lower.conv.depthwise import Depthwise, DepthwiseWgrad
from numus.compiler.lower.conv.im2col_gemm import Im2colGemm
from numus.compiler.lower.conv.implicit_gemm import ImplicitGemm
from numus.compiler.lower.conv.padded_gemm import PaddedGemm
from numus.compiler.lower.conv.problem import ConvProblem
from numus.compiler.lower.conv.winograd import Winograd
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops import lower_sum
from numus.compiler.lower.relayout import permuted, reshaped, view
from numus.compiler.lower.schedule import Fallback, Problem, Schedule, select
from numus.target import Target


class Loops(Fallback):
    """A sum of products over a view of the windows: complex, tiny and unusual convolutions."""

    name = "loops"

    def cost(self, problem: Problem, target: Target) -> float:
        return float("inf")

    def lower(self, problem: ConvProblem) -> Kernels:
        conv = problem.conv
        x, w = conv.inputs
        groups, windows, _ = conv.params
        n, q, *out_size = conv.shape
        c, *taps = w.shape[1:]
        in_size = x.shape[2:]
        rank = len(in_size)
        dtype = conv.dtype
        if dtype.is_floating:  # products of low-precision floats are not rounded one by one
            dtype = dt.promote(dt.compute_dtype(dtype), x.dtype)

        def cast(v: Value) -> Value:
            if v.dtype is dtype:
                return v
            return Value.fresh("cast", "elementwise", (v,), None, v.shape, dtype)

        # every output sees the channels of its group: (n, outputs, *in_size, channels, *taps)
        shape = (n, groups, q // groups, c, *in_size)
        data = view("broadcast", reshaped(x, n, groups, 1, c, *in_size), shape, shape)
        data = permuted(reshaped(data, n, q, c, *in_size), 0, 1, *range(3, 3 + rank), 2)
        data = reshaped(data, *data.shape, *(1,) * rank)
        shape = (n, q, *in_size, c, *taps)
        data = view("broadcast", data, shape, shape)
        for i, v in enumerate(windows):
            window = (v.stride, v.dilation, -v.padding_low, v.lhs_dilation)
            params = (2 + i, 3 + rank + i, out_size[i], *window)
            shape = (*data.shape[: 2 + i], out_size[i], *data.shape[3 + i :])
            data = view("shear", data, params, shape)
        weights = reshaped(w, 1, q, *(1,) * rank, c, *taps)
        factors = (cast(data), cast(weights))
        terms = Value.fresh("mul", "elementwise", factors, None, data.shape, dtype)
        axes = tuple(range(2 + rank, 3 + 2 * rank))
        if problem.is_channels_last:
            terms = permuted(terms, 0, *range(2, 2 + rank), 1, *axes)
        shape = problem.result.shape
        total = Value.fresh("reduce_sum", "reduce", (terms,), axes, shape, conv.dtype)
        return lower_sum(problem.group, total, problem.layouts, problem.target)


CPU: Sequence[Schedule[ConvProblem]] = (
    SpatialConv(),
    DepthwiseConv(),
    ChannelConv(),
    CpuWinograd(),
    WgradConv(),
    Loops(),
)
GPU: Sequence[Schedule[ConvProblem]] = (
    Winograd(),
    Im2colGemm(),
    PaddedGemm(),
    DepthwiseWgrad(),
    Depthwise(),
    ImplicitGemm("implicit_gemm_wgmma", wgmma=True),
    ImplicitGemm("implicit_gemm_simt", wgmma=False),
    Loops(),
)


def lower_convolution(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    problem = ConvProblem(group, layouts, target)
    return select(GPU if target.simt else CPU, problem).lower(problem)
