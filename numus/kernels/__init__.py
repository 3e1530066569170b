"""Hand-written kernels in kernel IR, and the choice between them and vendors' libraries.

Users find here what they may ask for: a preference and registration of vendors' kernels (`prefer`,
`register`), and kernels of their own (`CustomOp`).
"""

from collections.abc import Callable
from typing import Any

from numus.kernels.vendor import lapack as _lapack  # noqa: F401  registers LAPACK
from numus.kernels.vendor import matmul as _matmul  # noqa: F401  registers NVIDIA's
from numus.kernels.vendor.registry import (
    Vendor,
    available,
    deterministic,
    is_deterministic,
    prefer,
    preference,
    register,
)

__all__ = [
    "CustomOp", "Spec", "Vendor", "available", "deterministic", "is_deterministic", "prefer",
    "preference", "register",
]  # fmt: skip

# Loads `CustomOp` and `Spec`, classes of the layer of functions, when they are first asked for;
# `numus/__init__.py` sets it.
load_custom_op: Callable[[str], Any] | None = None


def __getattr__(name: str) -> Any:
    if name in ("CustomOp", "Spec") and load_custom_op is not None:
        return load_custom_op(name)
    raise AttributeError(f"module 'numus.kernels' has no attribute {name!r}")
