"""Backends: `contract` defines their interface, `get` gives the runtime of a device."""

from __future__ import annotations

from typing import Any


def get(name: str = "cpu") -> Any:
    """The runtime of a device, started on first use; for uses beyond the contract."""
    from numus.runtime.devices import device

    return device(name).runtime
