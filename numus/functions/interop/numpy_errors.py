"""NumPy's own errors for operands that are tensors: NumPy is asked, with memory of their shapes.

Where numus refuses shapes, axes, dtypes, options or indices under NumPy's interface, programs catch
the classes and read the words that NumPy has. They come from NumPy itself, called with arrays that
have a tensor's shape and dtype and one element of memory.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from numus.functions import api as nm
from numus.tensor import Tensor


def has_tensors(x: Any) -> bool:
    """Whether nested sequences hold a tensor."""
    if isinstance(x, Tensor):
        return True
    return isinstance(x, (list, tuple)) and any(map(has_tensors, x))


def hosted(x: Any) -> Any:
    """NumPy's arrays of tensors, nested in lists or not; the rest as it is."""
    if isinstance(x, Tensor):
        return x.__array__()
    return nm.asarray(x).__array__() if isinstance(x, list) and has_tensors(x) else x


def stand_in(x: Any, extent: int | None = None) -> Any:
    """Host memory for tensors, nested or not, in their shapes or with one extent."""
    if isinstance(x, Tensor):
        shape = x.shape if extent is None else (extent,) * x.ndim
        one = np.ones if x._node.dtype.is_inexact else np.zeros  # weights, and indices
        return np.broadcast_to(one((), x._node.dtype.np), shape)
    return type(x)(stand_in(i, extent) for i in x) if type(x) in (list, tuple) else x


def raise_as_reference(
    reference: Any, args: Any, kwargs: dict[str, Any], extent: int | None = None
) -> None:
    """Raise what NumPy's function does for arrays of these shapes and dtypes, if it does."""
    options = {k: stand_in(v, extent) for k, v in kwargs.items() if k != "out"}
    for name in options.keys() & {"weights", "fweights", "aweights"}:
        if isinstance(options[name], np.ndarray):  # zeros weigh nothing, and are refused
            options[name] = np.ones_like(options[name])
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference(*(stand_in(a, extent) for a in args), **options)


def raise_as_index(shape: tuple[int, ...], index: Any, value: Any = None) -> None:
    """Raise what NumPy does for an index of an array of this shape, if it does."""
    dummy = np.lib.stride_tricks.as_strided(np.zeros(1, "b"), shape, (0,) * len(shape))
    items = tuple(map(hosted, index)) if isinstance(index, tuple) else hosted(index)
    if value is None:
        dummy[items]
    else:
        dummy[items] = np.broadcast_to(np.zeros((), "b"), np.shape(hosted(value)))


def raise_if_numpy_does(error: Exception, reference: Any, args: Any, kwargs: Any) -> None:
    """Raise NumPy's own error where numus refused shapes, axes or dtypes."""
    is_own = str(error).startswith("numus.numpy: ")  # a dtype that is not there
    if not (is_own or isinstance(error, np.linalg.LinAlgError)):
        raise_as_reference(reference, args, kwargs)


def imitating(call: Callable[..., Any], reference: Any) -> Callable[..., Any]:
    """A function that raises NumPy's own errors."""

    @functools.wraps(call)
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            return call(*args, **kwargs)
        except (TypeError, ValueError, IndexError) as error:
            raise_if_numpy_does(error, reference, args, kwargs)
            raise

    return checked
