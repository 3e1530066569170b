"""Dispatch of fusion groups to the families of schedules, by kind and target."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.attention import cpu as cpu_attention
from numus.compiler.lower.attention import gpu as gpu_attention
from numus.compiler.lower.conv import cpu as cpu_conv
from numus.compiler.lower.conv import gpu as gpu_conv
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_concat, lower_loops
from numus.compiler.lower.matmul.cpu import lower_cpu_matmul
from numus.compiler.lower.matmul.gpu import lower_gpu_matmul
from numus.compiler.lower.scan.cpu import lower_scan
from numus.compiler.lower.scan.gpu import lower_scan_gpu
from numus.compiler.lower.scatter.cpu import lower_scatter
from numus.compiler.lower.scatter.gpu import lower_scatter_gpu
from numus.compiler.lower.schedule import Problem, Schedule, select
from numus.compiler.lower.sort.cpu import lower_sort
from numus.compiler.lower.sort.gpu import lower_sort_gpu
from numus.compiler.lower.sort.nonzero import lower_nonzero, lower_nonzero_gpu
from numus.compiler.lower.sort.topk_cpu import lower_topk
from numus.compiler.lower.sort.topk_gpu import lower_topk_gpu
from numus.shapes import Shape
from numus.target import Target

Lowering = Callable[[FusionGroup, dict[Value, Shape], Target], list[LoweredKernel]]


@dataclass(frozen=True)
class Family:
    """All schedules of a kind of group on one class of targets, as one schedule."""

    name: str
    lowering: Lowering  # selects
    simt: bool  # for lanes that are threads of a block, or SIMD

    def supports(self, problem: Problem, target: Target) -> bool:
        return self.simt == target.simt

    def cost(self, problem: Problem, target: Target) -> float:
        return 0.0

    def lower(self, problem: Problem) -> list[LoweredKernel]:
        return self.lowering(problem.group, problem.layouts, problem.target)


def _gpu_convolution(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    return gpu_conv.lower_convolution(group, layouts, target, lower_gpu_matmul)


def _families(name: str, cpu: Lowering, gpu: Lowering) -> tuple[Schedule[Problem], ...]:
    return Family(f"{name} (SIMD)", cpu, False), Family(f"{name} (SIMT)", gpu, True)


# By the kind of a group.
FAMILIES = {
    "loop": _families("loops", lower_loops, lower_loops),
    "concat": _families("concat", lower_concat, lower_concat),
    "contract": _families("GEMM", lower_cpu_matmul, lower_gpu_matmul),
    "convolve": _families("convolution", cpu_conv.lower_convolution, _gpu_convolution),
    "scan": _families("scan", lower_scan, lower_scan_gpu),
    "sort": _families("sort", lower_sort, lower_sort_gpu),
    "topk": _families("top-k", lower_topk, lower_topk_gpu),
    "nonzero": _families("stream compaction", lower_nonzero, lower_nonzero_gpu),
    "scatter": _families("scatter", lower_scatter, lower_scatter_gpu),
    "attention": _families(
        "attention", cpu_attention.lower_attention, gpu_attention.lower_attention
    ),
    "attention_grad": _families(
        "attention backward", cpu_attention.lower_attention, gpu_attention.lower_attention
    ),
}


def lower_group(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The kernels of a group, in the order in which they run."""
    problem = Problem(group, layouts, target)
    return select(FAMILIES[group.kind], problem).lower(problem)
