"""Results of the engine as NumPy returns them: arrays, scalars, and what is written to `out`."""

from __future__ import annotations

from typing import Any

import numpy as host

import numus as nm
from numus.evaluation.evaluate import elements
from numus.numpy._convert import cast, is_concrete, plain, to_tensor
from numus.tensor import Tensor

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
