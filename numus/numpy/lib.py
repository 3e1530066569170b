"""`numpy.lib`: views of windows, and utilities of NumPy's own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as _host

import numus as nm
from numus.numpy._bind import bind
from numus.numpy._convert import function

_tricks = _host.lib.stride_tricks


sliding_window_view = bind(
    "sliding_window_view", "view", nm.sliding_window_view, _tricks.sliding_window_view, False
)
stride_tricks = SimpleNamespace(
    sliding_window_view=sliding_window_view,
    broadcast_to=function("broadcast_to"),
    broadcast_arrays=function("broadcast_arrays"),
)
array_utils = _host.lib.array_utils
NumpyVersion = _host.lib.NumpyVersion

__all__ = ["NumpyVersion", "array_utils", "stride_tricks"]
