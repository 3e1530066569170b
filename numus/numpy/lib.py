"""`numpy.lib`: views of windows, and utilities of NumPy's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as _host

import numus as nm
from numus.numpy._bind import bind
from numus.numpy._convert import function

_tricks = _host.lib.stride_tricks


def broadcast_to(array: Any, shape: Any, subok: bool = False) -> Any:
    """An array in a larger shape."""
    return function("broadcast_to")(array, shape)


def broadcast_arrays(*args: Any, subok: bool = False) -> Any:
    """Arrays in a common shape."""
    return function("broadcast_arrays")(*args)


sliding_window_view = bind(
    "sliding_window_view", "view", nm.sliding_window_view, _tricks.sliding_window_view, False
)
stride_tricks = SimpleNamespace(
    sliding_window_view=sliding_window_view,
    broadcast_to=broadcast_to,
    broadcast_arrays=broadcast_arrays,
)
array_utils = _host.lib.array_utils
NumpyVersion = _host.lib.NumpyVersion

__all__ = ["NumpyVersion", "array_utils", "stride_tricks"]
