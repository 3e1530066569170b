"""What NumPy takes as an array, a dtype or an index, for the engine; and results, as it returns
them."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as host

import numus as nm
from numus import dtypes as dt
from numus.evaluation.evaluate import elements, is_known
from numus.functions.interop.numpy_errors import has_tensors
from numus.functions.interop.ufunc_dtypes import as_engine_dtype
from numus.tensor import Tensor, registered

NoValue: Any = host._NoValue
engine_dtype = as_engine_dtype
normalize_axis: Callable[[int, int], int] = host.lib.array_utils.normalize_axis_index


def function(name: str) -> Any:
    """A function or ufunc of `numus.numpy`, by name."""
    return getattr(sys.modules["numus.numpy"], name)


def renamed(call: Any, name: str) -> Any:
    """A function made for one of NumPy's names."""
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"As NumPy's `{name}`."
    return call


def is_concrete(x: Tensor) -> bool:
    """Whether the elements can be read without losing a trace or a derivative."""
    return not x._node.tracked and is_known(x._node)


def holds_any(x: Tensor) -> bool:
    """Whether some element of a mask is true, where that can be told."""
    return is_concrete(x) and bool(nm.any(x).item())


def plain(x: Any) -> Any:
    """The tensor of an ndarray, for the engine: without NumPy's rules, and not the user's own."""
    return Tensor(x._node) if isinstance(x, Tensor) else x


def shared(x: Any) -> Tensor:
    """The same, of which views are views of x."""
    return registered(x, x._node, ()) if isinstance(x, Tensor) else to_tensor(x)


def to_tensor(x: Any, dtype: Any = None) -> Tensor:
    """What NumPy takes as an array, as a tensor for the engine: Python's floats are float64."""
    wanted = engine_dtype(dtype)
    if isinstance(x, Tensor):
        found = Tensor(x._node)
    elif isinstance(x, (list, tuple)) and has_tensors(x):
        parts = [to_tensor(item) for item in x]
        found = nm.stack(in_common_dtype(parts, wanted))
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


def common_dtype(*kinds: Any) -> Any:
    """The engine's dtype that NumPy promotes tensors, dtypes and weak scalars to."""
    return engine_dtype(
        host.result_type(*(k._node.dtype.np if isinstance(k, Tensor) else k for k in kinds))
    )


def in_common_dtype(tensors: list[Tensor], dtype: Any = None) -> list[Tensor]:
    """Tensors in the dtype that NumPy promotes them to, or in one that is given."""
    wanted = dtype or common_dtype(*tensors)
    return [cast(t, wanted) for t in tensors]


def cast(x: Tensor, dtype: Any) -> Tensor:
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


def require_cast(given: Any, wanted: Any, casting: str) -> None:
    """Raise NumPy's error where a casting rule forbids a cast."""
    if not host.can_cast(given, wanted, casting):  # type: ignore[arg-type]
        kinds = f"from {host.dtype(given)!r} to {host.dtype(wanted)!r}"
        raise TypeError(f"Cannot cast array data {kinds} according to the rule {casting!r}")


def normal_axes(axis: Any, ndim: int) -> tuple[int, ...]:
    """NumPy's axes: None is all, and numbers may name an axis that they do not have."""
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    if ndim == 0 and all(a in (0, -1) for a in given):
        return ()
    found = tuple(normalize_axis(a, ndim) for a in given)
    if len(set(found)) != len(found):
        raise ValueError("duplicate value in 'axis'")
    return found


def engine_index(index: Any) -> Any:
    """An index for the engine: arrays as tensors, computed where they can be, so that positions
    out of range are errors."""
    if isinstance(index, tuple):
        return tuple(_index_item(i) for i in index)
    return _index_item(index)


def _index_item(item: Any) -> Any:
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


# -- results: arrays, scalars, and what is written to `out` ----------------------------------------

kind_of_arrays: list[type[Tensor]] = []  # ndarray, which is made of these functions


def adopt(x: Any) -> Any:
    """A new tensor of the engine as an ndarray, the same object."""
    (ndarray,) = kind_of_arrays
    if x.__class__ is not ndarray:
        x.__class__ = ndarray
    return x


def result(x: Any) -> Any:
    """Arrays, and scalars where there are no axes."""
    return _mapped(x, lambda t: adopt(t) if t._node.shape else scalar(t))


def array_result(x: Any) -> Any:
    """Arrays, with or without axes."""
    return _mapped(x, adopt)


def _mapped(x: Any, convert: Any) -> Any:
    if isinstance(x, Tensor):
        return convert(x)
    if isinstance(x, (tuple, list)):
        parts = [_mapped(i, convert) for i in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    return x


def scalar(x: Tensor) -> Any:
    """A tensor without axes as a NumPy scalar where its number may be read."""
    return elements(x._node)[()] if is_concrete(x) else adopt(x)


def write_out(x: Any, out: Any, op: str, casting: Any = "same_kind") -> Any:
    """Give `out` the elements of a result and return it; without one, the result."""
    if isinstance(out, tuple) and len(out) == 1:
        (out,) = out
    if out is None:
        return result(x)
    value = plain(x) if isinstance(x, Tensor) else to_tensor(x)
    if isinstance(out, host.ndarray):
        host.copyto(out, value.numpy(), casting=casting)
        return out
    if not isinstance(out, Tensor):
        raise TypeError(f"{op}: return arrays must be of ArrayType, not {type(out).__name__}")
    into = out._node.dtype
    if not host.can_cast(value.dtype.np, into.np, casting):
        ufunc = getattr(host, op, None)
        if isinstance(ufunc, host.ufunc):
            error: Any = host._core._exceptions._UFuncOutputCastingError  # type: ignore[attr-defined]
            raise error(ufunc, casting, value.dtype.np, into.np, 0)
        text = f"Cannot cast {op} output from {value.dtype.np!r} to {into.np!r} with casting rule"
        raise TypeError(f"{text} {casting!r}")
    if host.broadcast_shapes(value.shape, out.shape) != out.shape:
        both = f"shape {out.shape} does not match the broadcast shape {value.shape}"
        raise ValueError(f"{op}: non-broadcastable output operand with {both}")
    out.rebind(nm.copy(nm.broadcast_to(cast(value, into), out.shape))._node, op)
    return out


class OfFace:
    """Objects of the engine whose operands and results are NumPy's."""

    def _tensor(self, x: Any, dtype: Any = None) -> Tensor:
        return to_tensor(x, dtype)

    def _result(self, x: Any) -> Any:
        return result(x)


class OfArrays(OfFace):
    """The same; results without axes stay arrays."""

    def _result(self, x: Any) -> Any:
        return adopt(x)
