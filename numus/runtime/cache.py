"""Compiled code kept on disk between processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from numus import config

_MAGIC = b"numus-object-1\n"


def _path(key: str) -> Path:
    return config.cache_dir() / "kernels" / key[:2] / key


def get(key: str) -> bytes | None:
    """The code kept under a key; None when there is none or it is damaged."""
    try:
        data = _path(key).read_bytes()
    except (OSError, RuntimeError):  # the second: there is no home directory
        return None
    head = len(_MAGIC) + 32
    body = data[head:]
    if data[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != data[len(_MAGIC) : head]:
        return None
    return body


def put(key: str, code: bytes) -> None:
    """Keep code under a key."""
    with contextlib.suppress(RuntimeError):  # there is no home directory
        write(_path(key), _MAGIC + hashlib.sha256(code).digest() + code)


def write(path: Path, content: bytes) -> None:
    """Readers see all of a file or what was there before; a disk that refuses is no error."""
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
