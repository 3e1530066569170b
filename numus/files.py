"""Atomic file replacement: write beside, fsync, rename.

The old file stays whole until the new one is, whatever happens: a full disk, a killed process, an
exception. Readers that have the old file open or mapped keep it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

try:
    import fcntl
except ImportError:  # Windows, where a file that is open cannot be removed
    fcntl = None  # type: ignore[assignment]

PathLike = str | os.PathLike[str]

_SUFFIX = ".part"
_EXISTING = os.O_RDWR | getattr(os, "O_NONBLOCK", 0)  # opening a pipe does not wait


def atomically(path: PathLike, contents: Callable[[BinaryIO], Any]) -> None:
    """Replace a file by what a function writes.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from numus.files import atomically
    >>> path = Path(tempfile.mkdtemp()) / "note.txt"
    >>> atomically(path, lambda file: file.write(b"whole"))
    >>> path.read_text()
    'whole'
    """
    with refusals(path, kept=True):
        if _is_device(path):
            with open(path, "wb") as file:
                contents(file)
            return
        new = Replacement(path)
        try:
            contents(new.file)
            new.commit()
        except BaseException:
            new.discard()
            raise


class Replacement:
    """The next version of a file, written to a temporary file in the same folder.

    The temporary file is locked while it is open: one that can be locked is abandoned, and removed
    by the next writer.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = Path(os.path.realpath(path))  # of a link, the file it leads to
        if self.path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if _is_device(self.path):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
        for part in abandoned(self.path):
            _remove(part)
        handle, name = _new_part(self.path)
        self.part = Path(name)
        self.file: BinaryIO = os.fdopen(handle, "w+b")

    def commit(self) -> None:
        """Put the new version, which is on the disk then, in the old one's place."""
        self.file.flush()
        os.fsync(self.file.fileno())
        with suppress(OSError):  # a new file has the mode of the umask
            os.chmod(self.part, stat.S_IMODE(os.stat(self.path).st_mode))
        if fcntl is None:
            self.file.close()
        os.replace(self.part, self.path)  # while it is locked
        self.file.close()
        sync_folder(self.path.parent)

    def discard(self) -> None:
        """Remove the new version."""
        with suppress(OSError):  # of data that a full disk did not take
            self.file.close()
        with suppress(FileNotFoundError):
            os.unlink(self.part)


@contextlib.contextmanager
def refusals(path: PathLike, *, kept: bool = False) -> Iterator[None]:
    """Errors of the system with the name of the file, and that the old one is kept if it is."""
    try:
        yield
    except OSError as error:
        there = "; the file that was there is unchanged" if kept and os.path.isfile(path) else ""
        what = f"{path} was not written: {error.strerror or error}{there}"
        raise (OSError(what) if error.errno is None else OSError(error.errno, what)) from error


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable, in their order, where the system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """One writer of a set of files at a time, in processes that ask."""
    handle = None
    with suppress(OSError):  # Windows; a folder that is not there, as its writer will tell
        handle = os.open(folder, os.O_RDONLY)
        locked(handle, wait=True)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def open_regular(path: PathLike) -> BinaryIO:
    """A file opened for reading; a pipe or a device, which may block, is an error."""
    if not stat.S_ISREG(os.stat(path).st_mode):
        kind = "folder" if os.path.isdir(path) else "regular file"
        raise OSError(f"{path} is {'a' if kind == 'folder' else 'not a'} {kind}")
    return open(path, "rb")


def abandoned(path: Path) -> list[Path]:
    """Temporary files of a file whose writers are no more, the latest first."""
    prefix = _prefix(path)
    with os.scandir(path.parent) as entries:
        names = [e.path for e in entries if e.name.startswith(prefix) and e.name.endswith(_SUFFIX)]
    found = []
    for name in names:
        with suppress(OSError):  # gone meanwhile, or not ours
            handle = os.open(name, _EXISTING)
            try:
                if locked(handle, wait=False):
                    found.append((os.fstat(handle).st_mtime_ns, name))
            finally:
                os.close(handle)
    return [Path(name) for _, name in sorted(found, reverse=True)]


def locked(handle: int, wait: bool) -> bool:
    """Lock an open file; False if another has it."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks: nobody's files are taken for abandoned
        return wait
    return True


def _is_device(path: PathLike) -> bool:
    """True for what is there but is no file to replace: a device, a pipe."""
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _prefix(path: Path) -> str:
    return f".{path.name}."


def _new_part(path: Path) -> tuple[int, str]:
    flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | getattr(os, "O_BINARY", 0)
    while True:
        name = os.path.join(path.parent, f"{_prefix(path)}{os.urandom(6).hex()}{_SUFFIX}")
        try:
            handle = os.open(name, flags, 0o666)
        except FileExistsError:
            continue
        if locked(handle, wait=True) and _is_at(handle, name):
            return handle, name
        os.close(handle)  # another writer took it for abandoned before it was locked


def _is_at(handle: int, name: str) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), os.stat(name))
    except FileNotFoundError:
        return False


def _remove(part: Path) -> None:
    """Remove a temporary file, unless somebody has taken it up."""
    with suppress(OSError):
        handle = os.open(part, _EXISTING)
        try:
            if fcntl is not None and locked(handle, wait=False):
                os.unlink(part)
        finally:
            os.close(handle)
        if fcntl is None:
            os.unlink(part)
