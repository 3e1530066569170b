"""Settings read once from the environment, changeable at run time through their owners."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def cache_dir() -> Path:
    """Where compiled kernels are kept between processes (`NUMUS_CACHE_DIR` overrides it)."""
    from pathlib import Path  # imported late: programs may start without

    given = os.environ.get("NUMUS_CACHE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return (Path(base) if base else Path.home() / ".cache") / "numus"


def default_threads() -> int:
    """The number of CPU threads to start with (`NUMUS_NUM_THREADS` overrides it)."""
    given = os.environ.get("NUMUS_NUM_THREADS")
    if given:
        count = int(given)
        if count < 1:
            raise ValueError(f"NUMUS_NUM_THREADS must be at least 1, not {given!r}")
        return count
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


# A pending graph is evaluated by itself past these bounds, so that a loop which never asks for a
# value still runs in constant memory.
MAX_PENDING_DEPTH = 512
MAX_PENDING_BYTES = 1 << 30
