"""Casts that leave what has the dtype as it is, where `nm.astype` makes a copy."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.tensor import Tensor


def cast(x: Tensor, dtype: Any) -> Tensor:
    """x in a dtype; x itself if that is its own."""
    return nm.astype(x, dtype, copy=False)
