"""Who wants to see programs before they run: how `explain` listens.

By itself, because those who run programs import it, and the compiler only when they need it.
"""

from __future__ import annotations

from collections.abc import Callable

# Called with (device, plan, leaves, constants) before a program runs.
watchers: list[Callable[..., None]] = []
