"""`jax.ops`: sums and the like of segments."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.jax._adapt import to_tensor
from numus.tensor import Tensor


def _segments(name: str) -> Any:
    def reduce(
        data: Any, segment_ids: Any, num_segments: int | None = None, **hints: Any
    ) -> Tensor:
        ids = to_tensor(segment_ids)
        count = int(ids.max().item()) + 1 if num_segments is None else num_segments
        return getattr(nm, name)(to_tensor(data), ids, count)

    reduce.__doc__ = f"`nm.{name}`."
    return reduce


segment_sum, segment_prod, segment_max, segment_min = (
    _segments(f"segment_{name}") for name in "sum prod max min".split()
)
