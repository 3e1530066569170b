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


class RetainedInputs:
    """The memory of some inputs of a program, as its hoisted kernels have read them.

    Where inputs change between calls, as weights do in training, retaining them would cost a copy
    of each: after every loss, twice as many calls go by before they are retained again.
    """

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers
        self._retained: list[tuple[Any, int]] = []
        self._losses = 0
        self._wait = 0
        self.version = 0  # of what is retained

    def __bool__(self) -> bool:
        return bool(self._retained)

    def memory_of(self, number: int) -> tuple[Any, int] | None:
        """The memory and offset of an input that is retained."""
        if not self._retained or number not in self._numbers:
            return None
        return self._retained[self._numbers.index(number)]

    def match(self, views: Sequence[View]) -> bool:
        """All inputs are those that are retained; if not, none is retained any more."""
        if not self._retained:
            return False
        for number, (memory, offset) in zip(self._numbers, self._retained, strict=True):
            view = views[number]
            if view.storage.memory is not memory or view.offset != offset:
                self._retained = []
                self.version += 1
                self._losses += 1
                self._wait = min(1 << self._losses, _MAX_BACKOFF) - 2
                return False
        return True

    def retain(self, views: Sequence[View]) -> None:
        """Retain the inputs that the hoisted kernels have just read."""
        if self._wait > 0:
            self._wait -= 1
            return
        found = [(views[n].storage.memory, views[n].offset) for n in self._numbers]
        if all(_is_ours(memory) for memory, _ in found):
            self._retained = found
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
