"""Lowering templates on disk: what another process lowered is not lowered again.

A template is kept next to the machine code of its kernels, under a digest of all that lowering
depends on: the group's structure and sizes, the target, and the modules of the compiler.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import pickle
import sys
import time
from dataclasses import astuple
from typing import Any

from numus.compiler.hooks import on_clear_plans
from numus.dtypes import DType
from numus.garbage import collection_paused
from numus.runtime import cache
from numus.target import Target

enabled = True  # schedules are those of the modules on disk: none of their numbers was changed

_PACKAGES = ("compiler", "kernels", "ir")
_LANGUAGES = ("llvm", "ptx")
_WAIT_SECONDS = 2.0  # after which a further template is stored with all that wait
_SIMPLE = (int, float, str, bool, complex, type(None), DType)


@functools.cache
def _version() -> str:
    """A digest of the compiler's modules, by size and time of change, and of Python's version."""
    digest = hashlib.sha256(sys.version.encode())
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    folders = [root, *(os.path.join(root, name) for name in _PACKAGES)]
    deep = folders[1:]
    while folders:
        folder = folders.pop()
        for entry in sorted(os.scandir(folder), key=lambda x: x.name):
            if entry.name.endswith(".py"):
                status = entry.stat()
                line = f"{entry.path} {status.st_size} {status.st_mtime_ns}\n"
                digest.update(line.encode())
            elif folder in deep and entry.name != "__pycache__" and entry.is_dir():
                folders.append(entry.path)
                deep.append(entry.path)
    return digest.hexdigest()


@functools.lru_cache(maxsize=8)
def _target_text(target: Target) -> str:
    return repr([sorted(x) if isinstance(x, frozenset) else x for x in astuple(target)])


def name(key: Any, sizes: list[int], target: Target) -> str | None:
    """The name of the template of a structure that serves these sizes; None where the structure
    has no name outside of this process."""
    if not enabled or target.language not in _LANGUAGES:
        return None
    return digest("lowering", key, sizes, target)


def digest(what: str, key: Any, sizes: list[int], target: Target) -> str | None:
    """A name for what was found out about a structure with these sizes; None where the structure
    has none outside of this process."""
    if not _is_simple(key):
        return None
    try:
        parts = (what, _version(), _target_text(target), repr(key), repr(sizes))
    except OSError:  # modules are no files
        return None
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _is_simple(key: Any) -> bool:
    if isinstance(key, tuple):
        return all(map(_is_simple, key))
    return isinstance(key, _SIMPLE)


_MAX_WAITING = 256
_waiting: dict[str, Any] = {}  # templates to be stored
_waiting_since = 0.0


def load(name: str | None) -> Any:
    """The template of a name; None where there is none."""
    if name is None:
        return None
    if name in _waiting:
        return _waiting[name]
    data = cache.get(name)
    if data is None:
        return None
    with collection_paused():
        return pickle.loads(data)


def store(name: str | None, template: Any) -> None:
    """Store a template, but not at once: who waits for a first result does not wait for that."""
    global _waiting_since
    if name is None:
        return
    now = time.monotonic()
    if not _waiting:
        _waiting_since = now
    _waiting[name] = template
    if len(_waiting) > _MAX_WAITING or now - _waiting_since > _WAIT_SECONDS:
        flush()


@atexit.register
def flush() -> None:
    """Store all templates that wait for it."""
    while _waiting:
        name, template = _waiting.popitem()
        try:
            data = pickle.dumps(template, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
            continue  # it names what only this process has, or is nested too deeply
        cache.put(name, data)


on_clear_plans.append(flush)
