"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".part"


def atomically(path: str | os.PathLike[str], contents: Callable[[BinaryIO], Any]) -> None:
    """Atomic write: to a temporary file in the same folder, fsync, rename.

    Temporary files of killed writers are removed.
    """
    path = Path(path)
    _remove_abandoned(path)
    handle, temporary = _new_part(path)
    try:
        with os.fdopen(handle, "wb") as file:
            contents(file)
            file.flush()
            os.fsync(file.fileno())
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(temporary, 0o666 & ~umask)  # mkstemp's are for the owner alone
            if fcntl is not None:
                os.replace(temporary, path)  # while it is locked
        if fcntl is None:
            os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _new_part(path: Path) -> tuple[int, str]:
    """A new temporary file, locked while open: one that can be locked is abandoned."""
    while True:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=_prefix(path), suffix=_SUFFIX)
        if _locked(handle, wait=True) and _is_at(handle, name):
            return handle, name
        os.close(handle)  # another writer took it for abandoned before it was locked


def _locked(handle: int, wait: bool) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody's files are taken for abandoned
        return wait
    return True


def _is_at(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(name))
    except FileNotFoundError:
        return False


def _remove_abandoned(path: Path) -> None:
    """Remove the parts of this file whose writers are no more."""
    with os.scandir(path.parent) as entries:
        found = [e.path for e in entries if e.name.startswith(_prefix(path))]
    for name in found:
        if not name.endswith(_SUFFIX):
            continue
        with suppress(OSError):  # gone meanwhile, or not ours to remove
            handle = os.open(name, os.O_RDWR)
            try:
                if _locked(handle, wait=False) and fcntl is not None:
                    os.unlink(name)
            finally:
                os.close(handle)
            if fcntl is None:
                os.unlink(name)
