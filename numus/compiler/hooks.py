"""Hooks of the compiler: callbacks before a program runs, and when plans are dropped.

A module of its own: callers register here without importing the compiler.
"""

from __future__ import annotations

from collections.abc import Callable

# Called with (device, plan, leaves, constants) before a program runs.
watchers: list[Callable[..., None]] = []

# Called when the plan cache is cleared: caches that hold plans drop them.
on_clear_plans: list[Callable[[], None]] = []
