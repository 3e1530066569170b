"""`torch.nn`: modules, layers, losses as modules."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from numus import nn as _engine
from numus.torch._modules import Module, Parameter, reflected
from numus.torch._owned import own

if TYPE_CHECKING:
    from numus.torch.nn import functional, init, parameter, utils  # noqa: F401

__all__ = ["Buffer", "Module", "Parameter", "functional", "init", "utils"]

_ROOMS = "functional init modules parameter utils".split()
# losses and functions that numus.nn has as functions, and PyTorch in functional alone
_LAYERS = {n for n in dir(_engine) if n[0].isupper()}
_find = reflected(__name__, _engine, {"Module": Module, "Parameter": Parameter})


def Buffer(data: Any, *, persistent: bool = True) -> Any:
    """A tensor for `register_buffer`."""
    return own(data)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _LAYERS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _find(name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_LAYERS})
