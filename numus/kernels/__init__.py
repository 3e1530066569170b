"""Kernels worth writing by hand, and whose kernels run.

The modules here are schedules in kernel IR: contraction, attention, scan, sort. What users may ask
for stands in this file: vendors' kernels beside numus's own (`prefer`, `register`).
"""

from numus.kernels.choice import Vendor, available, prefer, preference, register

__all__ = ["Vendor", "available", "prefer", "preference", "register"]
