"""Fields of `Target` that follow from a compute capability."""

from __future__ import annotations

from typing import Any

_ASYNC_COPY = 80  # cp.async
_CLUSTERS = 90  # thread block clusters
_MAX_CLUSTER_SIZE = 8  # blocks that every device with clusters takes
_MMA_SYNC = {
    **{"float16": 75, "bfloat16": 80, "float32": 80, "float64": 80},  # float32 as TF32
    **{"int8": 80, "uint8": 80},
}


def capability_fields(capability: int) -> dict[str, Any]:
    """Fields of `Target` by compute capability, as in 90 for Hopper."""
    hopper = capability // 10 == 9  # wgmma is of this architecture alone
    return {
        "features": frozenset({f"sm_{capability}"}),
        "approx_math": hopper,
        "subgroup_size": 32,
        "vector_access_bytes": 16,
        "async_copy": capability >= _ASYNC_COPY,
        "mma": frozenset(name for name, since in _MMA_SYNC.items() if capability >= since),
        "wgmma": hopper,
        "max_cluster_size": _MAX_CLUSTER_SIZE if capability >= _CLUSTERS else 1,
        "dependent_launch": capability >= _CLUSTERS,
        "forward_progress": True,
    }
