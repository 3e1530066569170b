"""Which lowering a group gets."""

from __future__ import annotations

from collections.abc import Callable

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Value
from numus.compiler.lower.attention import cpu as cpu_attention
from numus.compiler.lower.attention import gpu as gpu_attention
from numus.compiler.lower.conv.cpu import lower_convolution
from numus.compiler.lower.conv.gpu import lower_group_convolution
from numus.compiler.lower.conv.padded_gemm import lower_cell_convolution
from numus.compiler.lower.emitter import LoweredKernel
from numus.compiler.lower.loops import lower_concat, lower_loops
from numus.compiler.lower.matmul.cpu import lower_contraction
from numus.compiler.lower.matmul.gpu import lower_group_contraction
from numus.compiler.lower.matmul.vendor import lower_vendor_product
from numus.compiler.lower.scan.cpu import lower_scan
from numus.compiler.lower.scan.gpu import (
    lower_group_scan,
    lower_group_sort,
)
from numus.compiler.lower.scatter.cpu import lower_scatter
from numus.compiler.lower.scatter.gpu import lower_group_scatter
from numus.compiler.lower.sort.cpu import lower_sort
from numus.compiler.lower.sort.nonzero import lower_compact, lower_group_compact
from numus.compiler.lower.sort.topk_cpu import lower_topk
from numus.compiler.lower.sort.topk_gpu import lower_group_topk
from numus.shapes import Shape, row_major
from numus.target import Target

Lowering = Callable[[FusionGroup, dict[Value, Shape], Target], list[LoweredKernel]]

LOWERINGS: dict[str, Lowering] = {
    "loop": lower_loops,
    "concat": lower_concat,
    "contract": lower_contraction,
    "convolve": lower_convolution,
    "scan": lower_scan,
    "sort": lower_sort,
    "topk": lower_topk,
    "compact": lower_compact,
    "scatter": lower_scatter,
    "attention": cpu_attention.lower_attention,
    "attention_grad": cpu_attention.lower_attention_backward,
}


def _scan_then_tail(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """A scan by itself, then what follows from it: group kernels have no room for a tail."""
    first, *tail = group.members
    if not tail:
        return lower_group_scan(group, layouts, target)
    alone, rest = FusionGroup.of_stored(first, group.position), FusionGroup(tail[0], group.position)
    rest.members = tail
    rest.stored = group.stored - {first}
    layouts = {**layouts, first: row_major(first.shape)}
    return lower_group_scan(alone, layouts, target) + lower_loops(rest, layouts, target)


def _by_vendor_or_own(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    by_vendor = lower_vendor_product(group, layouts, target)
    return lower_group_contraction(group, layouts, target) if by_vendor is None else by_vendor


def _by_cells_or_windows(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    by_cells = lower_cell_convolution(group, layouts, target, _by_vendor_or_own)
    return lower_group_convolution(group, layouts, target) if by_cells is None else by_cells


# Where lanes are threads of a group, these take the place of the ones above.
GROUP_LOWERINGS: dict[str, Lowering] = {
    **LOWERINGS,
    "contract": _by_vendor_or_own,
    "convolve": _by_cells_or_windows,
    "attention": gpu_attention.lower_attention,
    "attention_grad": gpu_attention.lower_attention_backward,
    "scan": _scan_then_tail,
    "sort": lower_group_sort,
    "compact": lower_group_compact,
    "topk": lower_group_topk,
    "scatter": lower_group_scatter,
}


def lower_group(
    group: FusionGroup, layouts: dict[Value, Shape], target: Target
) -> list[LoweredKernel]:
    """The kernels of a group, in the order in which they run."""
    lowerings = GROUP_LOWERINGS if target.block_size else LOWERINGS
    return lowerings[group.kind](group, layouts, target)
