"""`numpy.lib`: views of windows, and utilities of NumPy's own."""

from __future__ import annotations

import sys
from types import ModuleType

import numpy as _host

import numus as nm
from numus.numpy._bind import bind
from numus.numpy._convert import function

_tricks = _host.lib.stride_tricks


sliding_window_view = bind(
    "sliding_window_view", "view", nm.sliding_window_view, _tricks.sliding_window_view, False
)
stride_tricks = ModuleType(f"{__name__}.stride_tricks", "Views of windows, and broadcasts.")
vars(stride_tricks).update(
    sliding_window_view=sliding_window_view,
    broadcast_to=function("broadcast_to"),
    broadcast_arrays=function("broadcast_arrays"),
)
array_utils = _host.lib.array_utils
for _part in (stride_tricks, array_utils):  # what `from numpy.lib.stride_tricks import` finds
    sys.modules[f"{__name__}.{_part.__name__.rpartition('.')[2]}"] = _part
NumpyVersion = _host.lib.NumpyVersion

__all__ = ["NumpyVersion", "array_utils", "stride_tricks"]
