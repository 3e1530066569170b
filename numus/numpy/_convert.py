"""What NumPy takes as an array, a dtype or an index, for the engine."""

from __future__ import annotations

import sys
import warnings

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.errors import DTypeError
from numus.evaluation.evaluate import elements, is_known
from numus.tensor import Tensor, registered


def function(name):
    """A function or ufunc of `numus.numpy`, by name."""
    return getattr(sys.modules["numus.numpy"], name)


def renamed(call, name):
    """A function made for one of NumPy's names."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"As NumPy's `{name}`."
    return call


def is_concrete(x):
    """Whether the elements can be read without losing a trace or a derivative."""
    return not x._node.tracked and is_known(x._node)


def engine_dtype(given):
    """The engine's dtype of what NumPy takes as one; None stays None."""
    if given is None or isinstance(given, dt.DType):
        return given
    found = host.dtype(given)
    try:
        return dt.as_dtype(found.newbyteorder("=") if found.byteorder == ">" else found)
    except DTypeError as error:
        raise TypeError(f"numus.numpy: {error}") from None


def plain(x):
    """The tensor of an ndarray, for the engine: without NumPy's rules, and not the user's own."""
    return Tensor(x._node) if isinstance(x, Tensor) else x


def shared(x):
    """The same, of which views are views of x."""
    return registered(x, x._node, ()) if isinstance(x, Tensor) else to_tensor(x)


def to_tensor(x, dtype=None):
    """What NumPy takes as an array, as a tensor for the engine: Python's floats are float64."""
    wanted = engine_dtype(dtype)
    if isinstance(x, Tensor):
        found = Tensor(x._node)
    elif isinstance(x, (list, tuple)) and has_tensors(x):
        parts = [to_tensor(item) for item in x]
        kinds = [p.dtype.np for p in parts]
        common = wanted or engine_dtype(host.result_type(*kinds))
        found = nm.stack([cast(p, common) for p in parts])
    else:
        array = host.asarray(x)
        if array.dtype.byteorder == ">":
            array = array.astype(array.dtype.newbyteorder("="))
        if array.dtype.kind in "OSUVmMT" or array.dtype.char in "gG":
            raise TypeError(
                f"numus.numpy: elements of {array.dtype} are not there; it has "
                f"{', '.join(d.name for d in dt.ALL)}"
            )
        if array.dtype.kind in "iu" and wanted is not None and wanted.is_integer:
            array = host.asarray(x, wanted.np)  # out of range is an error
        found = nm.asarray(array)
    return found if wanted is None else cast(found, wanted)


def has_tensors(x):
    """Whether nested sequences hold a tensor."""
    if isinstance(x, Tensor):
        return True
    return isinstance(x, (list, tuple)) and any(map(has_tensors, x))


def cast(x, dtype):
    """x in a dtype, as NumPy casts: an imaginary part is dropped with a warning."""
    if dtype is None or x.dtype is dtype:
        return x
    if x.dtype.is_complex and not dtype.is_complex:
        if dtype is dt.bool_:
            return nm.not_equal(x, 0)
        text = "Casting complex values to real discards the imaginary part"
        warnings.warn(text, host.exceptions.ComplexWarning, stacklevel=4)
        x = nm.real(x)
    return nm.astype(x, dtype)


def engine_index(index):
    """An index for the engine: arrays as tensors, computed where they can be, so that positions
    out of range are errors."""
    if isinstance(index, tuple):
        return tuple(_index_item(i) for i in index)
    return _index_item(index)


def _index_item(item):
    if isinstance(item, Tensor):
        if item._node.dtype.is_integer and is_concrete(item):
            elements(item._node)
        return Tensor(item._node)
    if isinstance(item, (list, tuple)) or hasattr(item, "__array__"):
        if has_tensors(item):
            return to_tensor(item)
        found = host.asarray(item)
        if isinstance(item, (list, tuple)) and not found.size and found.ndim == 1:
            return found.astype(host.intp)
        return found
    return item


def raise_as_numpy(shape, index, value=None):
    """Raise what NumPy does for an index of an array of this shape, if it does."""
    dummy = host.lib.stride_tricks.as_strided(host.zeros(1, "b"), shape, (0,) * len(shape))
    items = tuple(map(_hosted, index)) if isinstance(index, tuple) else _hosted(index)
    if value is None:
        dummy[items]
    else:
        dummy[items] = host.broadcast_to(host.zeros((), "b"), host.shape(_hosted(value)))


def _hosted(x):
    if isinstance(x, Tensor):
        return x.__array__()
    return to_tensor(x).__array__() if isinstance(x, list) and has_tensors(x) else x


def raise_as_reference(reference, args, kwargs):
    """Raise what NumPy's function does for arrays of these shapes and dtypes, if it does."""

    def stand_in(x):
        if isinstance(x, Tensor):
            return host.broadcast_to(host.zeros((), x._node.dtype.np), x.shape)
        return type(x)(map(stand_in, x)) if type(x) in (list, tuple) else x

    with host.errstate(all="ignore"):
        reference(*map(stand_in, args), **{k: stand_in(v) for k, v in kwargs.items()})
