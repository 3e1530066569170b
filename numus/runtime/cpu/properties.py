"""The target description of this CPU."""

from __future__ import annotations

from numus import config, dtypes
from numus.codegen.cpu.target import LlvmTarget, cache_sizes, cache_ways, host
from numus.target import Target


def target() -> Target:
    machine = host()
    l1, l2 = cache_sizes()
    return Target(
        name="cpu",
        description=f"{machine.cpu} ({machine.vector_bytes * 8}-bit vectors)",
        dtypes=frozenset(d.name for d in dtypes.ALL),
        vector_bytes=machine.vector_bytes,
        vector_registers=machine.vector_registers,
        l1_bytes=l1,
        l2_bytes=l2,
        l1_ways=cache_ways(),
        masked_store_min_bytes=machine.masked_store_min_bytes,
        num_cores=config.default_threads(),
        language="llvm",
        fma=machine.arch != "x86" or "fma" in machine.enabled,
        features=_features(machine),
    )


def _features(machine: LlvmTarget) -> frozenset[str]:
    return machine.enabled | {machine.arch}
