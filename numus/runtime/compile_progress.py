"""A count of compiled kernels, for compilations that take longer than a moment."""

from __future__ import annotations

import sys
import time
from typing import Any

SHOW_AFTER_SECONDS = 1.0


class CompileProgress:
    """Shows how many of `total` kernels are compiled, on a terminal and after a second."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._began = time.monotonic()
        self._line: Any = None

    def __enter__(self) -> CompileProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None:
            self._line.clear()

    def update(self, done: int) -> None:
        if sys.stderr is None or time.monotonic() - self._began < SHOW_AFTER_SECONDS:
            return
        if self._line is None:
            from numus.terminal import Line  # imported late: few compilations show it

            self._line = Line(sys.stderr)
        self._line.show(f"compiling kernels: {done} of {self._total}", now=True)
