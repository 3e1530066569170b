"""`torch.optim`: optimisers, which change this face's parameters as they are."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from numus import optim as _engine

if TYPE_CHECKING:
    from numus.torch.optim import lr_scheduler, swa_utils  # noqa: F401


def __getattr__(name: str) -> Any:
    if name in ("lr_scheduler", "swa_utils"):
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(_engine, name)


def __dir__() -> list[str]:
    return [n for n in dir(_engine) if n[0] != "_"]
