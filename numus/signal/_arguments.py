"""Arguments that signal functions share: signals along an axis, host tables as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

import numus as nm
from numus.errors import DTypeError, ShapeError
from numus.shapes import as_int, normal_axis
from numus.tensor import Tensor

Array = np.ndarray[Any, Any]


def tensor(host: Array, dtype: Any, device: Any = None) -> Tensor:
    """A host table, rounded once, on a device."""
    return nm.asarray(np.ascontiguousarray(host), dtype=dtype, device=device)


def signal(op: str, x: Any, name: str = "x") -> Tensor:
    """An operand as a tensor of floats or complex numbers; 16-bit floats are computed in float32
    by the functions that transform."""
    found = x if isinstance(x, Tensor) else nm.asarray(x)
    if found.dtype.kind in ("bool", "int", "uint"):
        found = found.astype(nm.float32)
    if found.dtype.kind not in ("float", "complex"):
        raise DTypeError(f"signal.{op}: {name} has dtype {found.dtype.name}; it must be numbers")
    return found


def real_signal(op: str, x: Any, name: str = "x") -> Tensor:
    found = signal(op, x, name)
    if found.dtype.kind == "complex":
        raise DTypeError(f"signal.{op}: takes real numbers, and {name} has {found.dtype.name}")
    return found


def wide(x: Tensor) -> Tensor:
    """x in the dtype that transforms are computed in: 16-bit floats in float32."""
    return x.astype(nm.float32) if x.dtype.itemsize < 4 else x


def real_dtype(x: Tensor) -> Any:
    return nm.real(x).dtype if x.dtype.kind == "complex" else x.dtype


def axis_of(op: str, x: Tensor, axis: Any) -> int:
    return normal_axis(as_int(axis, "axis", f"signal.{op}"), x.ndim, f"signal.{op}")


def last(op: str, x: Tensor, axis: Any) -> Tensor:
    """x with an axis at the end."""
    return nm.moveaxis(x, axis_of(op, x, axis), -1)


def slice_along(x: Tensor, axis: int, *bounds: int | None) -> Tensor:
    """x[bounds] along an axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(*bounds),)]


def host(op: str, values: Any, name: str) -> Array:
    """An argument that shapes the computation, as a NumPy array."""
    if isinstance(values, Tensor):
        values = values.numpy()
    found = np.asarray(values)
    if found.dtype.kind not in "biufc":
        raise DTypeError(f"signal.{op}: {name} must be numbers, not {found.dtype}")
    return found


def positive(op: str, n: Any, name: str, least: int = 1) -> int:
    count = as_int(n, name, f"signal.{op}")
    if count < least:
        raise ShapeError(f"signal.{op}: {name} is {count}; it must be at least {least}")
    return count


def choice(op: str, value: Any, name: str, *allowed: Any) -> Any:
    if value not in allowed:
        raise ValueError(
            f"signal.{op}: {name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}"
        )
    return value
