"""Tuning numbers of convolution schedules."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CpuConvTuning:
    """Measured on Neoverse N1 and x86-64 (Cascade Lake class), 2 cores each. Costs are in FMAs."""

    min_macs: int = 1 << 14  # below, plain loops
    min_task_macs: int = 1 << 20  # longer than waking a thread
    min_wgrad_channels: int = 3  # that fill a vector
    max_wgrad_splits: int = 16
    max_wgrad_block_taps: int = 4096  # accumulated before they are added to other sums
    macs_per_packed_weight: int = 512  # that hide its packing
    stride_phase_cost: int = 8  # of splitting the input, per vector of outputs
    lhs_phase_cost: int = 40  # of strided stores, per vector of outputs
    min_packed_macs: int = 1 << 22  # that are worth a kernel for packing weights
    max_pixel_registers: int = 8  # that hold addresses
    min_block_pixels: int = 128  # that reuse the weights of a block
    tasks_per_block: int = 4  # finer tasks, where weights are packed before
    ungrouped_sum_blocks: int = 32  # SUM_BLOCKs that are added up one by one
    transpose_cost: int = 20  # per vector of outputs
    min_winograd_macs: int = 1 << 22  # of filters that are transformed once for all calls
    min_winograd_macs_each_call: int = 1 << 25  # worth four times the filters' memory
    winograd_block_tiles: int = 64  # that reuse the filters of a panel
    winograd_input_cost: int = 500  # per vector of input channels of a tile
    winograd_output_cost: int = 400  # per vector of output channels of a tile
    winograd_filter_load: int = 72  # per vector of transformed filters in memory
    winograd_cached_load: int = 18  # in a cache
    winograd_cached_l2s: int = 4  # caches of a core that share what is as large, or
    winograd_l3_share: int = 8  # this part of L3 (Emerald Rapids, which has 300 MB)
    winograd_filter_cost: int = 80  # of making one, where that is not done once for all


@dataclass(frozen=True, slots=True)
class GpuConvTuning:
    """Measured on one H200."""

    min_implicit_gemm_macs: int = 1 << 20  # below, plain loops
    min_padded_gemm_macs: int = 1 << 23  # that are worth repacking operands
    implicit_gemm_slowdown: float = 10  # of wgmma with im2col addresses, against TMA
    simt_slowdown: float = 4.5  # of SIMT with im2col addresses, against cp.async
    max_merged_channels: int = 256  # of groups that are merged
    epilogue_blocks_per_sm: int = 3  # that share shared memory
    half_macs_per_byte: int = 80  # of memory traffic; similar on all generations since Ampere
    tf32_macs_per_byte: int = 40
    simt_macs_per_byte: int = 6


CPU = CpuConvTuning()
GPU = GpuConvTuning()
