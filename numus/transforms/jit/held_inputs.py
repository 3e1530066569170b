"""Captured inputs that hoisted kernels have read (`compiler/hoisting.py`): are they still the same?

Values never change in place while somebody else references their memory (copy-on-write): what
writes to a tensor counts references first. So a program that holds the memory of its captured
inputs need only compare identities to know that they hold the values that it has seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numus.graph import View, lent_memory

_MAX_BACKOFF = 1 << 10  # calls


class HeldInputs:
    """The memory of some inputs of a program, as its hoisted kernels have read them.

    Where inputs change between calls, as weights do in training, holding them would cost a copy of
    each: after every loss, twice as many calls go by before they are held again.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._held: list[tuple[Any, int]] = []
        self._losses = 0
        self._wait = 0
        self.version = 0  # of what is held

    def __bool__(self) -> bool:
        return bool(self._held)

    def place(self, number: int) -> tuple[Any, int] | None:
        """The memory and offset of an input that is held."""
        if not self._held or number not in self._numbers:
            return None
        return self._held[self._numbers.index(number)]

    def match(self, views: Sequence[View]) -> bool:
        """All inputs are those that are held; if not, none is held any more."""
        if not self._held:
            return False
        for number, (memory, offset) in zip(self._numbers, self._held, strict=True):
            view = views[number]
            if view.storage.memory is not memory or view.offset != offset:
                self._held = []
                self.version += 1
                self._losses += 1
                self._wait = min(1 << self._losses, _MAX_BACKOFF) - 2
                return False
        return True

    def hold(self, views: Sequence[View]) -> None:
        """Hold the inputs that the hoisted kernels have just read."""
        if self._wait > 0:
            self._wait -= 1
            return
        places = [(views[n].storage.memory, views[n].offset) for n in self._numbers]
        if all(_is_ours(memory) for memory, _ in places):
            self._held = places
            self.version += 1


def _is_ours(memory: Any) -> bool:
    """Nobody else can write to this memory."""
    if id(memory) in lent_memory:
        return False
    owner = getattr(memory, "owner", None)
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None or isinstance(owner, bytes) or getattr(owner, "readonly", False)
