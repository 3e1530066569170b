"""Disk cache of compiled code, shared by processes, with least-recently-used eviction.

Code from here is executed: a file holds a digest of its key and content, and files and folders that
another user owns or may write are not used.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import stat
import tempfile
import time
import warnings
from pathlib import Path

from numus import config

MAX_BYTES = 1 << 30
_MAX_FILE_BYTES = 1 << 28
_TOUCH_SECONDS = 86400.0  # resolution of the time of last use

_MAGIC = b"numus-object-3\n"
_HEAD_BYTES = len(_MAGIC) + 32

_HAS_OWNERS = hasattr(os, "geteuid") and os.open in os.supports_dir_fd
# not blocking: opening a FIFO would wait for a writer
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


@functools.cache
def version(driver: Path, *packages: str) -> str:
    """A digest of the code generator: LLVM's version, the modules of these packages of `codegen/`
    and of `codegen/` itself, and the module that drives LLVM."""
    import llvmlite

    digest = hashlib.sha256(llvmlite.__version__.encode())
    codegen = Path(__file__).parent.parent / "codegen"
    folders = [codegen, *(codegen / name for name in packages)]
    for path in [*(p for folder in folders for p in sorted(folder.glob("*.py"))), driver]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _folder() -> Path:
    return config.cache_dir() / "kernels"


def _path(key: str) -> Path:
    return _folder() / key[:2] / key


def _digest(key: str, code: bytes) -> bytes:
    """Binds code to its key: under another's name it is damaged."""
    return hashlib.blake2b(code, digest_size=32, key=key.encode()).digest()


def get(key: str) -> bytes | None:
    """The code under a key; None when there is none, it is damaged, or it is not the user's own."""
    try:
        data = _read(_path(key))
    except (OSError, RuntimeError):  # the second: there is no home directory
        return None
    body = data[_HEAD_BYTES:]
    if data[:_HEAD_BYTES] != _MAGIC + _digest(key, body):
        return None
    return body


def put(key: str, code: bytes) -> None:
    """Store code under a key (a hash, in hexadecimal digits)."""
    with contextlib.suppress(RuntimeError, OSError):  # the first: there is no home directory
        path = _path(key)
        _make_folders(path.parent)
        for folder in (path.parent.parent, path.parent):
            os.close(_open_own(folder))
        write(path, _MAGIC + _digest(key, code) + code)
        if key.endswith("00"):  # one in 256 keys
            prune(MAX_BYTES)


def _read(path: Path) -> bytes:
    """A file of the cache, and a note of its use."""
    opened: list[int] = []
    try:
        folder = path.parent
        opened.append(_open_own(folder.parent))
        opened.append(_open_own(folder))
        # relative to the folder that was checked
        opened.append(found := _open_own(path, opened[1]))
        status = os.fstat(found)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_FILE_BYTES:
            raise OSError(errno.EINVAL, "not a file of the cache", str(path))
        if time.time() - status.st_mtime > _TOUCH_SECONDS:
            with contextlib.suppress(OSError):  # a read-only cache
                os.utime(path)
        data = os.read(found, status.st_size)
        if len(data) == status.st_size:
            return data
        with open(found, "rb", closefd=False) as file:  # a system that gives it in parts
            return data + file.read()
    finally:
        for handle in opened:
            os.close(handle)


def _open_own(path: Path, folder: int | None = None) -> int:
    """Open a folder, or a file in one; PermissionError unless it is the user's, and nobody else may
    write to it."""
    if not _HAS_OWNERS:  # Windows: folders of a user's profile are the user's
        return os.open(os.devnull if folder is None else path, _READ | getattr(os, "O_BINARY", 0))
    if folder is None:
        found = os.open(path, _READ | os.O_DIRECTORY)
    else:
        found = os.open(path.name, _READ | os.O_NOFOLLOW, dir_fd=folder)
    status = os.fstat(found)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        os.close(found)
        _warn_of_others(path)
        raise PermissionError(errno.EPERM, "not the user's own", str(path))
    return found


@functools.cache
def _warn_of_others(path: Path) -> None:
    warnings.warn(
        f"the kernel cache does not use {path}: another user owns it or may write to it; remove "
        "it, take their rights away (chmod go-w), or set NUMUS_CACHE_DIR to a folder of your own",
        RuntimeWarning,
        stacklevel=2,
    )


def _make_folders(path: Path) -> None:
    """Create a folder and those above it, for this user alone."""
    if not path.is_dir():
        _make_folders(path.parent)
        with contextlib.suppress(FileExistsError):
            path.mkdir(stat.S_IRWXU)
            path.chmod(stat.S_IRWXU)  # whatever the umask


def prune(limit: int) -> None:
    """Above `limit` bytes, evict the least recently used down to three quarters."""
    found: list[tuple[float, int, Path]] = []
    for path in _folder().glob("*/*"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.lstat()
            found.append((status.st_mtime, status.st_size, path))
    left = sum(size for _, size, _ in found)
    if left <= limit:
        return
    for _, size, path in sorted(found):
        if left <= limit * 3 // 4:
            break
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically; a disk that refuses is no error."""
    temporary = ""
    try:
        _make_folders(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            temporary = file.name
            file.write(content)
        os.chmod(temporary, stat.S_IRUSR | stat.S_IWUSR)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if not isinstance(error, OSError):
            raise
