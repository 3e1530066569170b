"""The CUDA driver, through cuda-bindings: every call is checked, and errors say what was done."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

from numus.errors import DeviceError, OutOfMemoryError


@functools.cache
def _module() -> Any:
    from cuda.bindings import driver

    return driver


_OLDEST = 7  # Volta


@functools.cache
def count() -> int:
    """How many devices there are that numus knows to use; none where the bindings or the driver are
    missing. The driver tells of the quickest first: older ones come last."""
    try:
        call("cuInit", 0)
        found = [call("cuDeviceGet", i) for i in range(int(call("cuDeviceGetCount")))]
        majors = [attribute(device, "COMPUTE_CAPABILITY_MAJOR") for device in found]
        return next((i for i, major in enumerate(majors) if major < _OLDEST), len(majors))
    except (ImportError, OSError, RuntimeError, AttributeError, DriverError):
        return 0


def why_none() -> str:
    """What to do where there is no device."""
    try:
        _module()
    except ImportError:
        return "install numus[cuda] for NVIDIA GPUs, or use another of nm.devices()"
    return (
        f"the NVIDIA driver finds no GPU (of compute capability {_OLDEST}.0 or later); use another "
        "of nm.devices()"
    )


def name_of(code: int) -> str:
    """What the driver calls an error."""
    found = _module()
    try:
        return str(found.CUresult(code).name)
    except ValueError:
        return f"error {code}"


class DriverError(DeviceError):
    """A call of the driver that failed."""

    def __init__(self, what: str, code: int) -> None:
        self.code = code
        super().__init__(f"cuda: {what}: {name_of(code)}{_way_out(code)}")


class DriverMemoryError(DriverError, OutOfMemoryError):
    """A call for which the device has too little memory."""


def failure(what: str, code: int) -> DriverError:
    """The error for a call that failed."""
    return (DriverMemoryError if code == OUT_OF_MEMORY else DriverError)(what, code)


OUT_OF_MEMORY = 2
_NOT_STARTED = 3
_NOT_READY = 600
# What a kernel did that no kernel may: from then on every call fails so.
_LOST = frozenset({700, *range(714, 720)})
_PROCESS = os.getpid()  # where the driver is started


def _way_out(code: int) -> str:
    if code in _LOST:
        return "; the process cannot use the device any more"
    if code == OUT_OF_MEMORY:
        return "; free tensors, or work in smaller pieces"
    if code == _NOT_STARTED and os.getpid() != _PROCESS:
        return (
            "; this process was forked from one that uses the device, which no fork of it can: "
            "start processes with multiprocessing's 'spawn'"
        )
    return ""


class _Spare:
    """Who gives memory back to the driver when it has none left; False where there is none."""

    give: Callable[[], bool] = staticmethod(lambda: False)


def when_full(give: Callable[[], bool]) -> None:
    """Let this give memory back when a call finds none: code and graphs take some, too."""
    _Spare.give = staticmethod(give)


def call(name: str, *args: Any, doing: str = "") -> Any:
    """Call a function of the driver; give its result, or results. Where it finds no memory, what is
    kept for later is given back and the call made again."""
    error, *results = getattr(_module(), name)(*args)
    if int(error) == OUT_OF_MEMORY and _Spare.give():
        error, *results = getattr(_module(), name)(*args)
    if int(error) != 0:
        raise failure(doing or name, int(error))
    if not results:
        return None
    return results[0] if len(results) == 1 else tuple(results)


def has_come(event: Any) -> bool:
    """Whether all that was before an event is done; what failed there is told elsewhere."""
    return int(_module().cuEventQuery(event)[0]) != _NOT_READY


def attribute(device: Any, name: str) -> int:
    """A property of a device."""
    key = getattr(_module().CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    return int(call("cuDeviceGetAttribute", key, device))


def constant(kind: str, name: str) -> Any:
    """A value of one of the driver's enumerations."""
    return getattr(getattr(_module(), kind), name)


def constant_stream(number: int) -> Any:
    """A stream by its handle, as other libraries name it (1: the default stream)."""
    return _module().CUstream(number)


def function_address(name: str) -> int:
    """Where a function of the driver is, for native code that calls it."""
    flags = constant("CUdriverProcAddress_flags", "CU_GET_PROC_ADDRESS_DEFAULT")
    address = int(call("cuGetProcAddress", name.encode(), 12000, flags)[0])
    if not address:
        raise DeviceError(f"cuda: the driver has no {name}; drivers for CUDA 12 (from 525 on) do")
    return address
