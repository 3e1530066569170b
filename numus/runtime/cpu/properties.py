"""What schedules may know about this CPU."""

from __future__ import annotations

from numus import config, dtypes
from numus.codegen.cpu.target import Target, cache_sizes, cache_ways, host
from numus.runtime.contract import Facts


def facts() -> Facts:
    target = host()
    l1, l2 = cache_sizes()
    return Facts(
        name="cpu",
        description=f"{target.cpu} ({target.lanes_bytes * 8}-bit vectors)",
        dtypes=frozenset(d.name for d in dtypes.ALL),
        lanes_bytes=target.lanes_bytes,
        vector_registers=target.vector_registers,
        cache_l1=l1,
        cache_l2=l2,
        cache_l1_ways=cache_ways(),
        masks_from=target.masks_from,
        parallel_units=config.default_threads(),
        renderer="llvm",
        features=_features(target),
    )


def _features(target: Target) -> frozenset[str]:
    return target.enabled | {target.arch}
