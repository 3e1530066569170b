"""Devices by name, and the runtime behind each."""

from __future__ import annotations

import os
import threading
from typing import Any

from numus.errors import DeviceError

_KINDS = ("cpu", "null", "reference")


class Device:
    """A place where tensors live. Interned: the same name is the same object; equal to its name."""

    __slots__ = ("_runtime", "index", "kind", "name")

    def __init__(self, kind: str, index: int) -> None:
        self.kind = kind
        self.index = index
        self.name = f"{kind}:{index}" if index else kind
        self._runtime: Any = None

    @property
    def runtime(self) -> Any:
        """The backend of this device, started on first use."""
        if self._runtime is None:
            with _lock:
                if self._runtime is None:
                    self._runtime = _start(self.kind)
        return self._runtime

    @property
    def on_host(self) -> bool:
        """Whether its memory is the host's, so that looking at a value costs no copy."""
        return self.kind in ("cpu", "reference")

    def __repr__(self) -> str:
        return f"Device({self.name!r})"

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        return other is self or (isinstance(other, str) and other == self.name)

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> Any:
        return (device, (self.name,))


_lock = threading.RLock()
_devices: dict[str, Device] = {}


def device(given: Any = None) -> Device:
    """A device from its name ("cpu", "null", "reference"), itself, or None for the default."""
    if isinstance(given, Device):
        return given
    if given is None:
        return default.device
    found = _devices.get(given) if isinstance(given, str) else None
    if found is not None:
        return found
    if not isinstance(given, str):
        raise DeviceError(f"a device is named by a string such as 'cpu', not {given!r}")
    kind, _, index = given.partition(":")
    if kind not in _KINDS or (index and index != "0"):
        raise DeviceError(f"there is no device {given!r} here; devices: {', '.join(_KINDS)}")
    with _lock:
        return _devices.setdefault(kind, Device(kind, 0))


class _Default(threading.local):
    """The device on which tensors are made where none is named (`NUMUS_DEVICE` sets the first)."""

    device: Device

    def __init__(self) -> None:
        self.device = device(os.environ.get("NUMUS_DEVICE", "cpu"))


def _start(kind: str) -> Any:
    if kind == "cpu":
        from numus.runtime.cpu import CpuRuntime

        return CpuRuntime()
    if kind == "null":
        from numus.runtime.null import NullRuntime

        return NullRuntime()
    from numus.runtime.reference import ReferenceRuntime

    return ReferenceRuntime()


default = _Default()
