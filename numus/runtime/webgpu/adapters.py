"""Adapters of this machine, ranked: the first is `webgpu:0`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import Any

from numus.runtime.locks import once

# Best first. "CPU" is a software renderer.
_ADAPTER_TYPES = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
# Preferred first, where several offer one GPU; OpenGL lacks needed features.
_BACKENDS = ("Metal", "Vulkan", "D3D12")
ADAPTER_VARIABLE = "NUMUS_WEBGPU_ADAPTER"  # an index, or a part of the adapter's name


@once
def adapters() -> tuple[Any, ...]:
    """The adapters of this machine, best first; none where WebGPU is unavailable."""
    if importlib.util.find_spec("wgpu") is None:
        return ()
    try:
        with _quiet_stderr():
            import wgpu
            from wgpu.backends.wgpu_native.extras import set_instance_extras

            with contextlib.suppress(RuntimeError):  # wgpu is already started
                set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
            found = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:  # a machine without a driver is no reason to fail
        warnings.warn(f"WebGPU could not be started: {error}", RuntimeWarning, stacklevel=2)
        return ()
    usable = [a for a in found if a.info["backend_type"] in _BACKENDS]
    usable.sort(key=_rank)
    return tuple(_with_choice_first(_deduplicated(usable)))


def count() -> int:
    return len(adapters())


def software_count() -> int:
    """The number of software adapters, unless one was asked for by name."""
    if os.environ.get(ADAPTER_VARIABLE, "").strip():
        return 0
    return sum(is_software(a) for a in adapters())


def unavailable_hint() -> str:
    if importlib.util.find_spec("wgpu") is None:
        return "WebGPU takes the package wgpu: pip install numus[webgpu]"
    return (
        "WebGPU takes a driver for Vulkan, Metal or Direct3D 12 (on Linux without a GPU: the "
        "package mesa-vulkan-drivers)"
    )


def _rank(adapter: Any) -> tuple[int, int]:
    kind, backend = adapter.info["adapter_type"], adapter.info["backend_type"]
    return (*_ADAPTER_TYPES, kind).index(kind), _BACKENDS.index(backend)


def _deduplicated(found: list[Any]) -> list[Any]:
    """Each device once, with its preferred backend."""
    names: dict[tuple[Any, ...], str] = {}
    out = []
    for a in found:
        key = (a.info["device"], a.info["vendor_id"], a.info["device_id"])
        backend = names.setdefault(key, a.info["backend_type"])
        if backend == a.info["backend_type"]:
            out.append(a)
    return out


def _with_choice_first(found: list[Any]) -> list[Any]:
    """The adapter that the environment variable names comes first."""
    wanted = os.environ.get(ADAPTER_VARIABLE, "").strip()
    if not wanted:
        return found
    if wanted.isdecimal():
        first = [found[int(wanted)]] if int(wanted) < len(found) else []
    else:
        first = [a for a in found if wanted.lower() in describe(a).lower()][:1]
    if not first:
        here = "; ".join(f"{i}: {describe(a)}" for i, a in enumerate(found)) or "none"
        warnings.warn(
            f"{ADAPTER_VARIABLE}={wanted!r} names no adapter; there are: {here}",
            RuntimeWarning,
            stacklevel=2,
        )
    return first + [a for a in found if a not in first]


def describe(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device'] or info['description']} ({info['backend_type']})"


def is_software(adapter: Any) -> bool:
    return bool(adapter.info["adapter_type"] == "CPU")


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Silence drivers that complain to the terminal while adapters are enumerated."""
    try:
        saved = os.dup(2)
    except OSError:
        yield
        return
    try:
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 2)
            yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
