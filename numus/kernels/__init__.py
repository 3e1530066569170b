"""Kernels worth writing by hand, and whose kernels run.

The modules here are schedules in kernel IR: contraction, attention, scan, sort. What users may ask
for stands in this file: vendors' kernels beside numus's own (`prefer`, `register`), and kernels of
their own (`CustomOp`).
"""

import importlib
from typing import Any

from numus.kernels import vendor_products  # noqa: F401  registers NVIDIA's
from numus.kernels.choice import Vendor, available, prefer, preference, register

__all__ = ["CustomOp", "Spec", "Vendor", "available", "prefer", "preference", "register"]


def __getattr__(name: str) -> Any:
    if name in ("CustomOp", "Spec"):
        # by name: operations on tensors live on a floor above this one
        return getattr(importlib.import_module("numus.functions.custom_op"), name)
    raise AttributeError(f"module 'numus.kernels' has no attribute {name!r}")
