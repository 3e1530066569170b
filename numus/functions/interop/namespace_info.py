"""Devices, moves between them, and the array API's inspection of the namespace."""

from __future__ import annotations

import warnings
from typing import Any

from numus import dtypes as dt
from numus.dtypes import DType
from numus.errors import DTypeError
from numus.functions._base import method, moved, wrap
from numus.functions.creation.dtype_functions import astype, isdtype
from numus.runtime.devices import BACKENDS, Device, best_gpu, default, present
from numus.runtime.devices import device as as_device
from numus.tensor import Tensor

__all__ = ["__array_namespace_info__", "default_device", "devices", "set_default_device", "to_gpu"]


def devices() -> list[Device]:
    """The devices on which tensors can live, the fastest last."""
    cpu, *gpus = present()
    return [as_device("reference"), cpu, *reversed(gpus)]


def default_device() -> Device:
    """Where tensors are made when no device is named."""
    return default.device


def set_default_device(device: Device | str) -> None:
    """Make tensors on another device from now on (in this thread)."""
    default.device = as_device(device)


_told: set[str] = set()


@method("is_gpu")
def _is_gpu(x: Tensor, /) -> bool:
    """Whether the tensor's elements are in the memory of a GPU."""
    return x.device.kind in ("cuda", "webgpu")


@method()
def to_gpu(x: Tensor, /) -> Tensor:
    """The tensor on the best GPU there is; where there is none, as it is (and it says so once)."""
    gpu = best_gpu()
    if gpu is not None:
        return to_device(x, gpu)
    if "gpu" not in _told:
        _told.add("gpu")
        warnings.warn("no GPU was found: tensors stay on the CPU", RuntimeWarning, stacklevel=2)
    return x


@method()
def to_device(self: Tensor, device: Device | str, /, *, stream: Any = None) -> Tensor:
    """The tensor on a device."""
    if stream is not None:
        raise ValueError("to_device: streams are numus's own; leave stream at None")
    dev = as_device(device)
    return self if self.device is dev else wrap(moved(self._node, dev))


@method()
def cpu(self: Tensor) -> Tensor:
    """The tensor on the CPU."""
    return to_device(self, "cpu")


@method()
def to(self: Tensor, *args: Any, dtype: Any = None, device: Any = None) -> Tensor:
    """The tensor in another dtype, on another device, or both: x.to("cpu", nm.float16)."""
    dtype, device = destination(args, dtype, device)
    out = self if dtype is None else astype(self, dtype, copy=False)
    return out if device is None else to_device(out, device)


def destination(args: tuple[Any, ...], dtype: Any, device: Any) -> tuple[Any, Any]:
    """The dtype and the device that the arguments of a `to` name, None where they name none."""
    for given in args:
        is_name = isinstance(given, str) and given.partition(":")[0] in BACKENDS
        if isinstance(given, Tensor):
            dtype, device = given.dtype, given.device
        elif is_name or isinstance(given, Device):
            device = given
        else:
            dtype = given
    try:
        return None if dtype is None else dt.as_dtype(dtype), device
    except DTypeError as error:
        here = ", ".join(d.name for d in present())
        raise DTypeError(f"to: {dtype!r} names no device (here: {here}); {error}") from None


class __array_namespace_info__:  # noqa: N801
    """Answers the array API's questions about this namespace."""

    def capabilities(self) -> dict[str, Any]:
        """Which optional parts of the standard work."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> Device:
        """Where tensors are made when no device is named."""
        return default.device

    def devices(self) -> list[Device]:
        """The devices on which tensors can live."""
        return devices()

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        """The dtypes that numbers get when none is named."""
        floats = {"real floating": dt.default_float, "complex floating": dt.default_complex}
        return {**floats, "integral": dt.default_int, "indexing": dt.default_int}

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        """The standard's dtypes that a device has, all or those of a kind (see isdtype)."""
        there = as_device(device).runtime.target.dtypes - {*_BEYOND_THE_STANDARD}
        standard = (d for d in dt.ALL if d.name in there)
        return {d.name: d for d in standard if kind is None or isdtype(d, kind)}


_BEYOND_THE_STANDARD = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
