"""`jax.scipy`: special functions, statistics, linear algebra and signals."""

from __future__ import annotations

import importlib
from typing import Any

_ROOMS = ("special", "linalg", "stats", "signal")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"numus.jax.scipy.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)


def __dir__() -> list[str]:
    return list(_ROOMS)
