"""Hand-written kernels in kernel IR, and the choice between them and vendors' libraries.

Users find here what they may ask for: a preference and registration of vendors' kernels (`prefer`,
`register`), and kernels of their own (`CustomOp`).
"""

from typing import TYPE_CHECKING, Any

from numus.kernels.vendor import matmul as _matmul  # noqa: F401  registers NVIDIA's
from numus.kernels.vendor.registry import Vendor, available, prefer, preference, register

__all__ = ["CustomOp", "Spec", "Vendor", "available", "prefer", "preference", "register"]

if TYPE_CHECKING:
    CustomOp: Any  # set by `numus/__init__.py`: they are classes of the layer of functions
    Spec: Any
