"""Dispatch of fusion groups to the families of schedules, by kind and target.

Families are imported when a group first needs them: most programs use a few, and the first
operation of a process should not wait for the others.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

from numus.compiler.fusion.group import FusionGroup
from numus.compiler.graph.value import Layouts
from numus.compiler.lower.emitter import Kernels
from numus.compiler.lower.schedule import Lowering
from numus.target import Target

# By the kind of a group, the module and function of `compiler/lower/`: for lanes that are SIMD, and
# for lanes that are threads of a block.
FAMILIES: dict[str, tuple[str, str]] = {
    "loop": ("loops.lower_loops", "loops.lower_loops"),
    "concat": ("loops.lower_concat", "loops.lower_concat"),
    "contract": ("matmul.cpu.lower_cpu_matmul", "matmul.gpu.lower_gpu_matmul"),
    "convolve": ("conv.schedules.lower_convolution", "conv.schedules.lower_convolution"),
    "scan": ("scan.cpu.lower_scan", "scan.gpu.lower_scan_gpu"),
    "sort": ("sort.cpu.lower_sort", "sort.gpu.lower_sort_gpu"),
    "topk": ("sort.topk_cpu.lower_topk", "sort.topk_gpu.lower_topk_gpu"),
    "nonzero": ("sort.nonzero.lower_nonzero", "sort.nonzero.lower_nonzero_gpu"),
    "factor": ("factor.schedules.lower_factor", "factor.schedules.lower_factor"),
    "spectral": ("factor.spectral.lower_spectral", "factor.spectral.lower_spectral"),
    "scatter": ("scatter.cpu.lower_scatter", "scatter.gpu.lower_scatter_gpu"),
    "packed": ("matmul.packed.lower_packed", "matmul.packed.lower_packed_gpu"),
    "packed_gemv": (
        "matmul.packed_gemv.lower_packed_gemv",
        "matmul.packed_gemv.lower_packed_gemv_gpu",
    ),
    "unpack": ("matmul.unpack.lower_unpack", "matmul.unpack.lower_unpack_gpu"),
    "scaled": ("matmul.block_scaled.lower_scaled", "matmul.block_scaled.lower_scaled"),
    "blocks": ("matmul.blocks.lower_blocks", "matmul.blocks.lower_blocks"),
    "planes": ("matmul.blocks.lower_planes", "matmul.blocks.lower_planes"),
    "bytes": ("matmul.blocks.lower_bytes", "matmul.blocks.lower_bytes"),
    "sparse": ("sparse.schedules.lower_sparse", "sparse.schedules.lower_sparse_gpu"),
    "fft": ("fft.cpu.lower_fft", "fft.gpu.lower_fft_gpu"),
    "attention": ("attention.cpu.lower_attention", "attention.gpu.lower_attention"),
    "attention_grad": ("attention.cpu.lower_attention", "attention.gpu.lower_attention"),
}


@functools.cache
def _family(kind: str, simt: bool) -> Lowering:
    module, _, name = FAMILIES[kind][simt].rpartition(".")
    found: Any = importlib.import_module(f"numus.compiler.lower.{module}")
    return getattr(found, name)  # type: ignore[no-any-return]


def lower_group(group: FusionGroup, layouts: Layouts, target: Target) -> Kernels:
    """The kernels of a group, in the order in which they run."""
    return _family(group.kind, target.simt)(group, layouts, target)
