"""What evaluates one operation, or a few, by their structure; see `numus.evaluation.eager_cache`.

By itself, because evaluation looks here first, and takes the rest of the compiler only if it must.
"""

from __future__ import annotations

from typing import Any

from numus.compiler.hooks import on_clear_plans


class Family:
    """Structures that are alike as far as their last operation tells."""

    __slots__ = ("calls", "strangers")

    def __init__(self) -> None:
        self.calls: list[Any] = []  # native functions that look for themselves, the last first
        self.strangers = 0  # how many that no function knows have come since one was known

    def known(self, call: Any, most: int) -> None:
        """One of the functions has found its structure: it is asked first from now on."""
        self.strangers = 0
        if not self.calls or self.calls[0] is not call:  # a new list: others may go through it
            self.calls = [call, *[c for c in self.calls if c is not call]][:most]


families: dict[Any, Family] = {}
# A native function by structure; None where a structure has been met once.
structures: dict[Any, Any] = {}


def forget_structures() -> None:
    families.clear()
    structures.clear()


on_clear_plans.append(forget_structures)
