"""Device registry: devices by name, each with its runtime."""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from numus import config
from numus.errors import DeviceError, DTypeError
from numus.runtime.contract import Runtime
from numus.runtime.headroom import require_headroom
from numus.runtime.locks import creation


def _import(module: str, name: str) -> Any:
    """A class or module of a backend, imported on first use."""
    return getattr(importlib.import_module(f"numus.runtime.{module}"), name)


# Starts the runtime of a kind of device, by index.
BACKENDS: dict[str, Callable[[int], Runtime[Any]]] = {
    "cpu": lambda index: _import("cpu", "CpuRuntime")(),
    "null": lambda index: _import("null", "NullRuntime")(),
    "reference": lambda index: _import("reference", "ReferenceRuntime")(),
    # the CPU compiles CUDA's launch loop
    "cuda": lambda index: _import("cuda", "CudaRuntime")(device("cpu").runtime, index),
    "webgpu": lambda index: _import("webgpu", "WebGpuRuntime")(index),
}

# DLPack's numbers of devices whose memory other libraries can use in place.
DLPACK = {"cuda": 2}
_MANAGED = {13: 2}  # unified memory, and the device that it belongs to

_LLVM_BYTES = 256 << 20  # of address space

GPUS = ("cuda", "webgpu")  # fastest first


def _gpu_module(kind: str) -> Any:
    """The module that counts the GPUs of a kind, and gives a hint where there are none."""
    return _import(kind, "driver" if kind == "cuda" else "adapters")


class Device:
    """A device, interned by name; equal to its name, and "cuda" to "cuda:0"."""

    __slots__ = ("_runtime", "index", "kind", "name")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.name = f"{kind}:{index}" if index else kind
        self._runtime: Runtime[Any] | None = None

    @property
    def runtime(self) -> Runtime[Any]:
        """The backend of this device, started on first use."""
        if self._runtime is None:
            with creation:
                if self._runtime is None:
                    if "llvmlite" not in sys.modules:
                        require_headroom(_LLVM_BYTES, "load LLVM")
                    self._runtime = BACKENDS[self.kind](self.index)
        return self._runtime

    @property
    def type(self) -> str:
        """Its kind, under the name that PyTorch gives it: "cpu", "cuda", "webgpu"."""
        return self.kind

    @property
    def platform(self) -> str:
        """Its kind, under the name that JAX gives it: "cpu", or "gpu"."""
        return "cpu" if self.on_host else "gpu"

    @property
    def id(self) -> int:
        """Its number among those of its kind, under the name that JAX gives it."""
        return self.index

    @property
    def device_kind(self) -> str:
        """What it is, under the name that JAX gives it."""
        return self.runtime.target.description

    @property
    def on_host(self) -> bool:
        """Whether its memory is the host's: reading a value takes no copy."""
        return self.kind in ("cpu", "reference")

    @property
    def pending_bytes(self) -> int:
        """Bytes that a pending graph may retain."""
        return max(config.MAX_PENDING_BYTES, int(self.runtime.target.memory_bytes) // 8)

    @property
    def dlpack(self) -> tuple[int, int]:
        """(type, id) in DLPack; memory without a DLPack type is exported through the host."""
        return (DLPACK[self.kind], self.index) if self.kind in DLPACK else (1, 0)

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return other is self or (
            isinstance(other, str) and other in (self.name, f"{self.kind}:{self.index}")
        )

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return (device, (self.name,))

    def require(self, dtype: Any, operation: str) -> None:
        """Raise where the device lacks a dtype."""
        target = self.runtime.target
        if dtype.name not in target.dtypes:
            missing = self.runtime.missing_feature(dtype.name)
            why = f": it lacks {missing}" if missing else ""
            raise DTypeError(
                f"{operation}: {self.name} ({target.description}) has no {dtype.name}{why}; use a "
                "narrower dtype, or device 'cpu'"
            )


_devices: dict[str, Device] = {}


def device(given: Any = None) -> Device:
    """A device from its name ("cpu", "cuda:1" …), itself, or None for the default."""
    if isinstance(given, Device):
        return given
    if given is None:
        return default.device
    found = _devices.get(given) if isinstance(given, str) else None
    if found is not None:
        return found
    if not isinstance(given, str):
        raise DeviceError(f"a device is named by a string such as 'cpu', not {given!r}")
    kind, _, number = given.partition(":")
    index = int(number) if number.isdecimal() else 0 if not number else -1
    if kind not in BACKENDS or index < 0 or index >= count(kind):
        here = ", ".join(d.name for d in present())
        hint = (
            _gpu_module(kind).unavailable_hint()
            if kind in GPUS and not count(kind)
            else f"devices: {here}"
        )
        raise DeviceError(f"there is no device {given!r} here; {hint}")
    with creation:
        found = Device(kind, index)
        return _devices.setdefault(found.name, found)


def started(name: str) -> Any:
    """The runtime of a device; None if it has not been needed yet."""
    found = _devices.get(name)
    return None if found is None else found._runtime


def of_dlpack(kind: int, index: int) -> Device | None:
    """The device of DLPack's numbers; None for the host and unknown ones."""
    for name, number in DLPACK.items():
        if number == _MANAGED.get(kind, kind):
            return device(f"{name}:{index}")
    return None


def count(kind: str) -> int:
    """The number of devices of a kind."""
    return int(_gpu_module(kind).count()) if kind in GPUS else 1


def present() -> list[Device]:
    """The devices of this machine: the CPU, then GPUs, fastest first."""
    names = ["cpu", *(f"{kind}:{i}" for kind in GPUS for i in range(count(kind)))]
    return [device(name) for name in names]


def best_gpu() -> Device | None:
    """The fastest GPU of this machine."""
    for kind in GPUS:
        if count(kind) > _gpu_module(kind).software_count():
            return device(kind)
    return None


class _ThreadState(threading.local):
    """Settings of each thread; `graph.mode` is the same object."""

    device: Device  # the default device (initially `NUMUS_DEVICE`)
    grad = True  # whether operations are recorded for gradients
    autocast: Any = None  # the dtype that matmuls are computed in (nm.autocast)
    trace: Any = None  # the nm.jit trace under construction
    effects: Any = None  # side effects of the vmapped function or loop body being traced
    node_hook: Any = None  # called with each new node (nm.debug_nans)

    def __init__(self) -> None:
        self.device = device(os.environ.get("NUMUS_DEVICE", "cpu"))


default = _ThreadState()
