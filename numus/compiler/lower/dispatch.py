"""Dispatch of fusion groups to the families of schedules, by kind and target."""

from __future__ import annotations

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts
from numus.compiler.lower.attention import cpu as cpu_attention
from numus.compiler.lower.attention import gpu as gpu_attention
from numus.compiler.lower.conv.schedules import lower_convolution
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.loops import lower_concat, lower_loops
from numus.compiler.lower.matmul.cpu import lower_cpu_matmul
from numus.compiler.lower.matmul.gpu import lower_gpu_matmul
from numus.compiler.lower.scan.cpu import lower_scan
from numus.compiler.lower.scan.gpu import lower_scan_gpu
from numus.compiler.lower.scatter.cpu import lower_scatter
from numus.compiler.lower.scatter.gpu import lower_scatter_gpu
from numus.compiler.lower.schedule import Lowering
from numus.compiler.lower.sort.cpu import lower_sort
from numus.compiler.lower.sort.gpu import lower_sort_gpu
from numus.compiler.lower.sort.nonzero import lower_nonzero, lower_nonzero_gpu
from numus.compiler.lower.sort.topk_cpu import lower_topk
from numus.compiler.lower.sort.topk_gpu import lower_topk_gpu
from numus.target import Target

# By the kind of a group: for lanes that are SIMD, and for lanes that are threads of a block.
FAMILIES: dict[str, tuple[Lowering, Lowering]] = {
    "loop": (lower_loops, lower_loops),
    "concat": (lower_concat, lower_concat),
    "contract": (lower_cpu_matmul, lower_gpu_matmul),
    "convolve": (lower_convolution, lower_convolution),
    "scan": (lower_scan, lower_scan_gpu),
    "sort": (lower_sort, lower_sort_gpu),
    "topk": (lower_topk, lower_topk_gpu),
    "nonzero": (lower_nonzero, lower_nonzero_gpu),
    "scatter": (lower_scatter, lower_scatter_gpu),
    "attention": (cpu_attention.lower_attention, gpu_attention.lower_attention),
    "attention_grad": (cpu_attention.lower_attention, gpu_attention.lower_attention),
}


def lower_group(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """The kernels of a group, in the order in which they run."""
    return FAMILIES[group.kind][target.simt](group, layouts, target)
