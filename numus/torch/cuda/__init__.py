"""`torch.cuda`: NVIDIA GPUs."""

from __future__ import annotations

from typing import Any

import numus as nm
from numus.torch._creation import manual_seed
from numus.torch.cuda import amp

__all__ = ["amp", "device_count", "is_available", "manual_seed", "manual_seed_all", "synchronize"]

manual_seed_all = manual_seed


def _gpus() -> list[Any]:
    return [d for d in nm.devices() if d.kind == "cuda"]


def is_available() -> bool:
    """True if there is an NVIDIA GPU that numus can use."""
    return bool(_gpus())


def device_count() -> int:
    """The number of NVIDIA GPUs."""
    return len(_gpus())


def current_device() -> int:
    """The number of the GPU that is used where none is named."""
    return nm.default_device().index


def synchronize(device: Any = None) -> None:
    """Wait until all work is done."""
    nm.synchronize()


def empty_cache() -> None:
    """Nothing to do: memory kept for reuse goes back to the device when it runs short."""


def is_bf16_supported() -> bool:
    """True: bfloat16 works on every device."""
    return True
