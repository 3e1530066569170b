"""Registry of vendors' kernels, and the preference between them and numus's own.

Lowerings describe one call as a problem, of a type of the operation's own (for matmuls,
`kernels/vendor/matmul.py`), and ask `choose_vendor`; they know no library by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

PREFERENCES = ("native", "vendor", "auto")


class Launcher(Protocol):
    """A vendor's kernel, prepared for many launches. One that also has an attribute `native` (see
    `contract.NativeLaunch`) is launched without Python; one whose attribute `is_capturable` is
    False, as it may wait for the device, is no part of a CUDA graph."""

    workspace: int  # bytes

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch, with the addresses of the kernel's buffers, in order, and of the workspace."""
        ...


@dataclass(frozen=True)
class Vendor:
    """A kernel from a library.

    `is_supported(problem, target)`: the library is present and computes the problem on such a
    target. `is_faster(problem, target)`: it pays, by shape alone, so that equal problems always get
    the same kernel. `start(runtime, problem)`: a launcher on the runtime's stream.
    """

    name: str
    operation: str
    is_supported: Callable[[Any, Any], bool]
    is_faster: Callable[[Any, Any], bool]
    start: Callable[[Any, Any], Launcher]


class _State:
    preferred = "auto"
    deterministic = True
    registered: tuple[Vendor, ...] = ()
    registrations = 0
    key = "auto"


def _set(preferred: str, deterministic: bool) -> None:
    _State.preferred, _State.deterministic = preferred, deterministic
    count = _State.registrations
    key = f"{preferred} {count}" if count else preferred
    _State.key = key if deterministic else f"{key} unordered"


def kernel_choice_key() -> str:
    """Preference, registrations and determinism as a key: programs compiled under one are not used
    under another."""
    return _State.key


def register(vendor: Vendor) -> None:
    """Add a vendor's kernel. It replaces an earlier one of the same name and operation."""
    if not isinstance(vendor, Vendor):
        raise TypeError(f"register: takes an nm.kernels.Vendor, not {type(vendor).__name__}")
    own = (vendor.name, vendor.operation)
    others = [v for v in _State.registered if (v.name, v.operation) != own]
    _State.registered = (*others, vendor)
    _State.registrations += 1
    _set(_State.preferred, _State.deterministic)


def available() -> tuple[str, ...]:
    """Names of the registered vendors' kernels, whether their libraries are installed or not."""
    return tuple(v.name for v in _State.registered)


def preference() -> str:
    """The current preference: "native", "vendor" or "auto"."""
    return _State.preferred


def prefer(which: str) -> AbstractContextManager[object]:
    """Choose between kernels from here on: `native`, numus's own; `vendor`, those of a vendor's
    library wherever one supports the problem; `auto` (the default), the faster one by shape.

    In a `with` statement, the preference holds inside. It is one setting for all threads. A jitted
    function keeps the kernels it was compiled with.

    >>> with nm.kernels.prefer("native"):
    ...     y = nm.ones((4, 4)) @ nm.ones((4, 4))
    """
    if which not in PREFERENCES:
        raise ValueError(f"prefer: {which!r} must be one of 'native', 'vendor', 'auto'")
    restore = ExitStack()
    restore.callback(_set, _State.preferred, _State.deterministic)
    _set(which, _State.deterministic)
    return restore


def deterministic(enabled: bool = True) -> AbstractContextManager[object]:
    """Whether the same inputs have to give the same bits from here on, as they do by default.

    Where they need not, sums of floats at indices (`x.at[i].add`, `index_add`, `segment_sum`,
    gradients of reads at indices) are added up by atomics, in whatever order updates arrive, on
    devices where that is quicker: NVIDIA GPUs, for rows of fewer than 16 elements. All else is
    deterministic anyway. In a `with` statement, the setting holds inside. It is one setting for all
    threads. A jitted function keeps the kernels it was compiled with.

    >>> with nm.kernels.deterministic(False):
    ...     y = nm.zeros(2).at[nm.asarray([0, 1, 0])].add(1.0)
    >>> y.tolist()
    [2.0, 1.0]
    """
    if not isinstance(enabled, bool):
        raise TypeError(f"deterministic: takes True or False, not {enabled!r}")
    restore = ExitStack()
    restore.callback(_set, _State.preferred, _State.deterministic)
    _set(_State.preferred, enabled)
    return restore


def is_deterministic() -> bool:
    """Whether the same inputs have to give the same bits."""
    return _State.deterministic


def choose_vendor(operation: str, problem: Any, target: Any) -> Vendor | None:
    """The vendor's kernel for a problem; None for numus's own."""
    if _State.preferred == "native":
        return None
    for vendor in reversed(_State.registered):
        if vendor.operation != operation or not vendor.is_supported(problem, target):
            continue
        if _State.preferred == "vendor" or vendor.is_faster(problem, target):
            return vendor
    return None


def supporting_vendor(operation: str, problem: Any, target: Any) -> Vendor | None:
    """A vendor's kernel that computes the problem, whatever is preferred."""
    found = (v for v in reversed(_State.registered) if v.operation == operation)
    return next((v for v in found if v.is_supported(problem, target)), None)
