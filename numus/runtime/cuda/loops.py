"""Loops: of a known number of runs, and those that end by a flag, where each run is launched before
the flag of the one before it is read, so that the device does not wait for the host."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from numus.runtime import launch_lock
from numus.runtime.contract import BoundLaunch, Pairs
from numus.runtime.cuda import driver

if TYPE_CHECKING:
    from numus.runtime.cuda.context import CudaContext

_PITCH_BYTES = 64  # between the flags of two runs


def placed_by_run(
    words: Any, first: Sequence[int], steps: Pairs, swaps: Pairs
) -> Callable[[int], None]:
    """A function that writes the addresses of a run, by its number: from those of the `first` on,
    some advance by a number of bytes (`steps`), and some pairs are exchanged (`swaps`)."""
    starts = [(slot, first[slot], nbytes) for slot, nbytes in steps]
    pairs = [(a, b, first[a], first[b]) for a, b in swaps]

    def place(run: int) -> None:
        for slot, start, nbytes in starts:
            words[slot] = start + run * nbytes
        for a, b, x, y in pairs:
            words[a], words[b] = (y, x) if run % 2 else (x, y)

    return place


class HostFlags:
    """Two flags in pinned memory, which kernels write in turns, and events after them."""

    def __init__(self) -> None:
        self._memory = int(driver.call("cuMemHostAlloc", 2 * _PITCH_BYTES, 0))
        self._written = [driver.call("cuEventCreate", 2) for _ in range(2)]  # without timing

    def address(self, run: int) -> int:
        return self._memory + run % 2 * _PITCH_BYTES

    def record(self, run: int, stream: Any) -> None:
        """The run is launched."""
        with launch_lock.lock:
            driver.call("cuEventRecord", self._written[run % 2], stream)

    def wait(self, run: int, doing: str) -> bool:
        """The flag that a run has left."""
        driver.call("cuEventSynchronize", self._written[run % 2], doing=doing)
        return bool(ctypes.c_uint8.from_address(self.address(run)).value)


@contextlib.contextmanager
def host_flags(context: CudaContext) -> Iterator[HostFlags]:
    """Flags that no other thread uses meanwhile."""
    try:
        flags = context.free_flags.pop()
    except IndexError:
        flags = HostFlags()
    try:
        yield flags
    finally:
        context.free_flags.append(flags)


def repeat_ahead(
    context: CudaContext, launch: BoundLaunch, addresses: list[int], count: int, pairs: Pairs,
    slot: int,
) -> tuple[int, bool]:  # fmt: skip
    """Run up to `count` times, exchanging pairs of slots after each, until a run leaves False where
    `slot` points; the number of runs, and whether the last one asked for more. One further run may
    have been launched."""
    with host_flags(context) as flags:
        for run in range(count + 1):
            if run < count:
                addresses[slot] = flags.address(run)
                launch(addresses, ())
                flags.record(run, context.stream)
                for a, b in pairs:
                    addresses[a], addresses[b] = addresses[b], addresses[a]
            if run and not flags.wait(run - 1, context.last_kernels()):
                return run, False  # of the stream's next loop, runs write their flags later
    return count, True
