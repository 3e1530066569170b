"""Garbage collection while many objects are made that stay."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collection_paused() -> Iterator[None]:
    """Without the cyclic garbage collector, which would walk all objects again and again: compiling
    a model's step makes a million, and few die in cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
