"""Disk cache of compiled code, shared by processes, with least-recently-used eviction."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import tempfile
import time
from pathlib import Path

from numus import config

MAX_BYTES = 1 << 30
_TOUCH_SECONDS = 86400.0  # resolution of the time of last use

_MAGIC = b"numus-object-1\n"


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


def get(key: str) -> bytes | None:
    """The code under a key; None when there is none or it is damaged."""
    try:
        path = _path(key)
        data = path.read_bytes()
    except (OSError, RuntimeError):  # the second: there is no home directory
        return None
    with contextlib.suppress(OSError):  # a read-only cache
        if time.time() - path.stat().st_mtime > _TOUCH_SECONDS:
            os.utime(path)
    head = len(_MAGIC) + 32
    body = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : head]:
        return None
    return body


def put(key: str, code: bytes) -> None:
    """Store code under a key (a hash, in hexadecimal digits)."""
    with contextlib.suppress(RuntimeError):  # there is no home directory
        write(_path(key), _MAGIC + hashlib.sha256(code).digest() + code)
        if key.endswith("00"):  # one in 256 keys
            prune(MAX_BYTES)


def prune(limit: int) -> None:
    """Above `limit` bytes, evict the least recently used down to three quarters."""
    found: list[tuple[float, int, Path]] = []
    for path in _folder().glob("*/*"):
        with contextlib.suppress(OSError):  # another process removed it
            status = path.stat()
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
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".new-", delete=False) as file:
            temporary = file.name
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
