"""Backends: `contract` says what one must provide, `get` gives the running one of a device."""

from __future__ import annotations

from typing import Any


def get(name: str = "cpu") -> Any:
    """The runtime of a device ("cpu", "null" …), started on first use and then always the same: for
    those who know which it is, and ask it for more than the contract has."""
    from numus.runtime.devices import device

    return device(name).runtime
