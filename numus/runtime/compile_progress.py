"""A spinner with a count, for compilations that take longer than a moment."""

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
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._status: Any = None

    def __enter__(self) -> CompileProgress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, done: int) -> None:
        if not self._is_terminal or time.monotonic() - self._began < SHOW_AFTER_SECONDS:
            return
        text = f"compiling kernels: {done} of {self._total}"
        if self._status is None:
            from rich.console import Console  # imported late: few compilations show it

            self._status = Console(stderr=True).status(text)
            self._status.start()
        self._status.update(text)
