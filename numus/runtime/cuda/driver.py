"""The CUDA driver API through cuda-bindings, with every call checked."""

from __future__ import annotations

import os
from typing import Any

from numus.errors import DeviceError, OutOfMemoryError
from numus.runtime.locks import once


@once
def _module() -> Any:
    from cuda.bindings import driver

    return driver


_MIN_MAJOR = 7  # compute capability 7.0: Volta


@once
def count() -> int:
    """The number of supported devices; 0 where the bindings or the driver are missing. The driver
    lists the fastest first, so unsupported ones come last."""
    try:
        call("cuInit", 0)
        found = [call("cuDeviceGet", i) for i in range(int(call("cuDeviceGetCount")))]
        majors = [attribute(device, "COMPUTE_CAPABILITY_MAJOR") for device in found]
        return next((i for i, major in enumerate(majors) if major < _MIN_MAJOR), len(majors))
    except (ImportError, OSError, RuntimeError, AttributeError, DriverError):
        return 0


def software_count() -> int:
    return 0


def unavailable_hint() -> str:
    try:
        _module()
    except ImportError:
        return "install numus[cuda] for NVIDIA GPUs, or use another of nm.devices()"
    return (
        f"the NVIDIA driver finds no GPU (of compute capability {_MIN_MAJOR}.0 or later); use "
        "another of nm.devices()"
    )


def error_name(code: int) -> str:
    try:
        return str(_module().CUresult(code).name)
    except ValueError:
        return f"error {code}"


class DriverError(DeviceError):
    """A failed driver call."""

    def __init__(self, doing: str, code: int) -> None:
        self.code = code
        super().__init__(f"cuda: {doing}: {error_name(code)}{_hint(code)}")


class DriverMemoryError(DriverError, OutOfMemoryError):
    """A driver call that found too little device memory."""


def error(doing: str, code: int) -> DriverError:
    return (DriverMemoryError if code == OUT_OF_MEMORY else DriverError)(doing, code)


OUT_OF_MEMORY = 2
_NOT_INITIALIZED = 3
_NOT_READY = 600
# Illegal accesses and the like, after which every call fails.
_STICKY_ERRORS = frozenset({700, *range(714, 720)})
_PROCESS = os.getpid()  # that initialises the driver


def _hint(code: int) -> str:
    if code in _STICKY_ERRORS:
        return "; the process cannot use the device any more"
    if code == OUT_OF_MEMORY:
        return "; free tensors, or use smaller ones"
    if code == _NOT_INITIALIZED and os.getpid() != _PROCESS:
        return (
            "; this process was forked from one that uses the device, which no fork of it can: "
            "start processes with multiprocessing's 'spawn'"
        )
    return ""


def reclaim_memory() -> bool:
    """Free cached memory, as `context` defines it; whether there was any."""
    return False


def call(name: str, *args: Any, doing: str = "") -> Any:
    """Call a driver function; gives its result, or results. Out of memory (code and graphs take
    some, too), cached memory is freed and the call is made again."""
    code, *results = getattr(_module(), name)(*args)
    if int(code) == OUT_OF_MEMORY and reclaim_memory():
        code, *results = getattr(_module(), name)(*args)
    if int(code) != 0:
        raise error(doing or name, int(code))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def is_complete(event: Any) -> bool:
    """Whether the work before an event is done; its errors are raised elsewhere."""
    return int(_module().cuEventQuery(event)[0]) != _NOT_READY


def attribute(device: Any, name: str) -> int:
    """An attribute of a device."""
    key = getattr(_module().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", key, device))


def constant(kind: str, name: str) -> Any:
    """A value of an enumeration of the driver."""
    return getattr(getattr(_module(), kind), name)


def stream_of(handle: int) -> Any:
    """The stream of a handle (1: the default stream)."""
    return _module().CUstream(handle)


def function_address(name: str) -> int:
    """The address of a driver function, for native code."""
    flags = constant("CUdriverProcAddress_flags", "CU_GET_PROC_ADDRESS_DEFAULT")
    address = int(call("cuGetProcAddress", name.encode(), 12000, flags)[0])
    if not address:
        raise DeviceError(f"cuda: the driver has no {name}; drivers for CUDA 12 (from 525 on) do")
    return address
