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


MAX_THREADS = 1024  # systems refuse to start many more


def checked_threads(count: int, setting: str) -> int:
    """A number of threads that a machine may have."""
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(f"{setting} must be from 1 to {MAX_THREADS}, not {count}")
    return count


def default_threads() -> int:
    """The number of CPU threads to start with (`NUMUS_NUM_THREADS` overrides it)."""
    given = os.environ.get("NUMUS_NUM_THREADS")
    if given:
        if not given.strip().lstrip("+-").isdecimal():
            raise ValueError(f"NUMUS_NUM_THREADS must be an integer, not {given!r}")
        return checked_threads(int(given), "NUMUS_NUM_THREADS")
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return os.cpu_count() or 1


OPT_LEVELS = (0, 2)


def opt_level() -> int:
    """How far LLVM's code generator for CPUs optimises (`NUMUS_OPT_LEVEL` overrides it): 2, or 0,
    which compiles in a fifth of the time what may run several times slower."""
    given = os.environ.get("NUMUS_OPT_LEVEL") or "2"
    if given not in map(str, OPT_LEVELS):
        raise ValueError(f"NUMUS_OPT_LEVEL must be 0 or 2, not {given!r}")
    return int(given)


# A pending graph is evaluated by itself past these bounds, so that a loop which never asks for a
# value still runs in constant memory.
MAX_PENDING_DEPTH = 512
MAX_PENDING_BYTES = 1 << 30
