"""`torch.nn.modules`: the layers under their other name."""

from __future__ import annotations

import sys
from typing import Any

from numus.torch._modules import Module

__all__ = ["Module"]


def __getattr__(name: str) -> Any:
    return getattr(sys.modules["numus.torch.nn"], name)
