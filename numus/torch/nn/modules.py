"""`torch.nn.modules`: the layers under their other name."""

from __future__ import annotations

from typing import Any

from numus.torch import nn as _nn
from numus.torch._modules import Module

__all__ = ["Module"]


def __getattr__(name: str) -> Any:
    return getattr(_nn, name)
