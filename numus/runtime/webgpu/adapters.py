"""Which adapters there are, and which of them `webgpu:0` is."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import warnings
from collections.abc import Iterator
from typing import Any

# The better the earlier. "CPU" is a software renderer: slow, but right.
_KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")
# Of one GPU that several drivers offer, the first; OpenGL has too few features to be of use.
_BACKENDS = ("Metal", "Vulkan", "D3D12")
CHOICE = "NUMUS_WEBGPU_ADAPTER"  # a number, or a part of the adapter's name


@functools.cache
def adapters() -> tuple[Any, ...]:
    """The adapters of this machine, the best first; none where WebGPU is not to be had."""
    if importlib.util.find_spec("wgpu") is None:
        return ()
    try:
        with _quiet_stderr():
            import wgpu
            from wgpu.backends.wgpu_native.extras import set_instance_extras

            with contextlib.suppress(RuntimeError):  # somebody else has started wgpu already
                set_instance_extras(backends=["Vulkan", "Metal", "DX12"])
            found = wgpu.gpu.enumerate_adapters_sync()
    except Exception as error:  # a machine without a driver is no reason to fail
        warnings.warn(f"WebGPU could not be started: {error}", RuntimeWarning, stacklevel=2)
        return ()
    usable = [a for a in found if a.info["backend_type"] in _BACKENDS]
    usable.sort(key=_rank)
    return tuple(_chosen(_without_twins(usable)))


def count() -> int:
    """How many adapters there are."""
    return len(adapters())


def software() -> int:
    """How many of them are software that nobody asked for by name."""
    if os.environ.get(CHOICE, "").strip():
        return 0
    return sum(is_software(a) for a in adapters())


def _rank(adapter: Any) -> tuple[int, int]:
    kind, backend = adapter.info["adapter_type"], adapter.info["backend_type"]
    return (
        _KINDS.index(kind) if kind in _KINDS else len(_KINDS),
        _BACKENDS.index(backend),
    )


def _without_twins(found: list[Any]) -> list[Any]:
    """Each device once, though several backends may offer it."""
    names: dict[tuple[Any, ...], str] = {}
    out = []
    for a in found:
        key = (a.info["device"], a.info["vendor_id"], a.info["device_id"])
        backend = names.setdefault(key, a.info["backend_type"])
        if backend == a.info["backend_type"]:
            out.append(a)
    return out


def _chosen(found: list[Any]) -> list[Any]:
    """The adapter that the environment names comes first."""
    wanted = os.environ.get(CHOICE, "").strip()
    if not wanted:
        return found
    if wanted.isdecimal():
        first = [found[int(wanted)]] if int(wanted) < len(found) else []
    else:
        first = [a for a in found if wanted.lower() in describe(a).lower()][:1]
    if not first:
        here = "; ".join(f"{i}: {describe(a)}" for i, a in enumerate(found)) or "none"
        warnings.warn(
            f"{CHOICE}={wanted!r} names no adapter; there are: {here}", RuntimeWarning, stacklevel=2
        )
    return first + [a for a in found if a not in first]


def describe(adapter: Any) -> str:
    info = adapter.info
    return f"{info['device'] or info['description']} ({info['backend_type']})"


def is_software(adapter: Any) -> bool:
    return bool(adapter.info["adapter_type"] == "CPU")


@contextlib.contextmanager
def _quiet_stderr() -> Iterator[None]:
    """Drivers that are looked at only to be passed over complain to the terminal."""
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
