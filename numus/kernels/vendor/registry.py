"""Whose kernel does an operation: numus's own, or one from a vendor's library.

A vendor's kernel is a name, the operation it does, and three functions: whether it can do what is
asked, whether it would be quicker than numus's own, and what launches it. What is asked is a value
that describes one call, of a type that the operation's lowering has defined (for products:
`kernels/vendor_products.py`). Lowerings ask `choose`; they know no library by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

PREFERENCES = ("native", "vendor", "auto")


class Launcher(Protocol):
    """A vendor's kernel, ready to run many times. One that has an attribute `native`, too (see
    `contract.NativeLaunch`), is launched without Python."""

    workspace: int  # bytes of memory that it needs while it runs

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch, with the addresses of the kernel's buffers, in order, and of the workspace."""
        ...


@dataclass(frozen=True)
class Vendor:
    """A kernel from a library.

    `takes(question, target)` tells whether it can do it on such a target: with the library
    missing, it can't. `quicker(question, target)` tells whether it is worth it, by shape alone: the
    same question is always answered alike. `start(runtime, question)` gives what launches it on the
    runtime's stream.
    """

    name: str
    operation: str
    takes: Callable[[Any, Any], bool]
    quicker: Callable[[Any, Any], bool]
    start: Callable[[Any, Any], Launcher]


class _State:
    preferred = "auto"
    registered: tuple[Vendor, ...] = ()
    count = 0  # of registrations so far
    rules = "auto"


def _set(preferred: str) -> None:
    _State.preferred = preferred
    _State.rules = f"{preferred} {_State.count}" if _State.count else preferred


def rules() -> str:
    """A name for everything that a choice depends on besides the question: programs that were made
    under one are used under no other."""
    return _State.rules


def register(vendor: Vendor) -> None:
    """Add a vendor's kernel. One of the same name and operation takes the place of the older."""
    if not isinstance(vendor, Vendor):
        raise TypeError(f"register: takes an nm.kernels.Vendor, not {type(vendor).__name__}")
    own = (vendor.name, vendor.operation)
    kept = [v for v in _State.registered if (v.name, v.operation) != own]
    _State.registered = (*kept, vendor)
    _State.count += 1
    _set(_State.preferred)


def available() -> tuple[str, ...]:
    """The names of the vendors' kernels that are known, whether their libraries are here or not."""
    return tuple(v.name for v in _State.registered)


def preference() -> str:
    """Whose kernels run: "native", "vendor" or "auto"."""
    return _State.preferred


class _Preferred:
    """Puts the setting back at the end of a `with` statement."""

    def __init__(self, before: str) -> None:
        self._before = before

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _set(self._before)


def prefer(which: str) -> _Preferred:
    """Set whose kernels run from here on: `native`, numus's own; `vendor`, those of a vendor's
    library wherever one can do it; `auto` (the default), whichever is quicker by its shape.

    In a `with` statement, it holds inside. It is one setting for all threads. A jitted function
    keeps the kernels it was compiled with.

    >>> with nm.kernels.prefer("native"):
    ...     y = nm.ones((4, 4)) @ nm.ones((4, 4))
    """
    if which not in PREFERENCES:
        raise ValueError(f"prefer: {which!r} is none of 'native', 'vendor', 'auto'")
    before = _State.preferred
    _set(which)
    return _Preferred(before)


def choose(operation: str, question: Any, target: Any) -> Vendor | None:
    """The vendor's kernel that is to do this; None for numus's own."""
    if _State.preferred == "native":
        return None
    for vendor in reversed(_State.registered):
        able = vendor.operation == operation and vendor.takes(question, target)
        if able and (_State.preferred == "vendor" or vendor.quicker(question, target)):
            return vendor
    return None
