"""`numpy.lib`: views of windows, and utilities of NumPy's own."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as _host

import numus as nm
from numus.numpy import _convert
from numus.numpy._array import adopt
from numus.numpy._convert import to_tensor
from numus.numpy._ufuncs import _axes


def sliding_window_view(x, window_shape, axis=None, *, subok=False, writeable=False):
    """The windows of a shape that lie in an array, as new axes at the end."""
    given = to_tensor(x)
    window = (window_shape,) if hasattr(window_shape, "__index__") else tuple(window_shape)
    if any(w < 0 for w in window):
        raise ValueError("`window_shape` cannot contain negative values")
    axes = tuple(range(given.ndim)) if axis is None else None
    if axes is None:
        many = axis if isinstance(axis, (tuple, list)) else (axis,)
        axes = tuple(_axes(a, given.ndim)[0] for a in many)
    if len(window) != len(axes):
        raise ValueError(
            f"Must provide matching length window_shape and axis; got {len(window)} and {len(axes)}"
        )
    for at, size in zip(axes, window, strict=True):
        count = given.shape[at] - size + 1
        if count < 1:
            raise ValueError("window shape cannot be larger than input array shape")
        places = nm.reshape(nm.arange(count), (-1, 1)) + nm.arange(size)
        given = nm.moveaxis(given[(slice(None),) * at + (places,)], at + 1, -1)
    return adopt(given)


def broadcast_to(array, shape, subok=False):
    """An array in a larger shape."""
    return _convert.function("broadcast_to")(array, shape)


def broadcast_arrays(*args, subok=False):
    """Arrays in a common shape."""
    return _convert.function("broadcast_arrays")(*args)


stride_tricks = SimpleNamespace(
    sliding_window_view=sliding_window_view,
    broadcast_to=broadcast_to,
    broadcast_arrays=broadcast_arrays,
)
array_utils = _host.lib.array_utils
NumpyVersion = _host.lib.NumpyVersion

__all__ = ["NumpyVersion", "array_utils", "stride_tricks"]
