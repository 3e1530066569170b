"""Address space that is still free.

LLVM ends the process when an allocation fails, and libraries that cannot be mapped look as if they
were missing: ask before.
"""

from __future__ import annotations

import mmap

from numus.errors import OutOfMemoryError


def require_headroom(nbytes: int, purpose: str) -> None:
    """Raise unless the process may still map `nbytes` more bytes."""
    try:
        flags = {"flags": mmap.MAP_PRIVATE} if hasattr(mmap, "MAP_PRIVATE") else {}
        mmap.mmap(-1, nbytes, **flags).close()
    except (OSError, OverflowError, ValueError):
        raise OutOfMemoryError(
            f"the cpu cannot provide {nbytes >> 20} MiB to {purpose}; free tensors, or raise the "
            "limit on this process's memory (ulimit -v)"
        ) from None
