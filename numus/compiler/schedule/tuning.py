"""Tuning numbers of the scheduler."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ScheduleTuning:
    """Measured on 2-core Neoverse N1 and x86-64 (Cascade Lake class) machines."""

    in_place_min_bytes: int = 1 << 16  # smaller temporaries are not worth an analysis of aliasing

    wave_lookback: int = 4  # waves that a kernel may move forward by
    wave_min_budget_bytes: int = 1 << 18  # of temporaries, that are never worth a wave of their own

    offset_tries: int = 8  # refinements of each heuristic order of offset assignment,
    offset_max_placements: int = 2048  # fewer where there are many values
    offset_fragmentation: int = 64  # 1/n of the peak that gaps may add to the arena

    remat_flops_fraction: int = 64  # 1/n of the flops that may be computed twice
    remat_expensive_flops: int = 64  # that an expensive elementwise function counts for
    remat_traffic_fraction: int = 64  # on GPUs, 1/n of the bytes moved,
    remat_memory_fraction: int = 20  # from temporaries of 1/n of the device's memory on
    remat_min_gain_fraction: int = 1024  # of the peak, 1/n that a value takes at least


TUNING = ScheduleTuning()
