"""The backend contract: read this first when you add a backend.

Nothing above `runtime/` knows which backend it runs on. It reads the device's `Target` to choose
schedules, and calls a `Runtime`: memory, programs, and launch lists (command buffers: kernels
prepared once and run many times). The base classes `Backend` and `LaunchList` have defaults of the
optional methods. `null.py` and `reference.py` are the smallest examples; `devices.BACKENDS` lists
all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from numus.dtypes import bool_

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.runtime.programs import KernelProgram
    from numus.target import Target


class Memory(Protocol):
    """A block of device memory. It returns to the pool when the last reference to it goes."""

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int: ...


Array = np.ndarray[Any, Any]
Block = TypeVar("Block", bound=Memory)


class Recorder(Protocol):
    """Takes what would be launched within a `with` block, and launches it at its end."""

    def __enter__(self) -> Any: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None: ...

    def stop(self) -> None:
        """Launch what there is, and record no more before the end of the block."""


class Runtime(Protocol[Block]):
    """One device, with its own type of memory blocks."""

    @property
    def target(self) -> Target: ...

    @property
    def allocate(self) -> Callable[[int], Block]:
        """Uninitialised memory of `nbytes` bytes, 64-byte aligned; empties the pool and tries again
        when full."""
        ...

    def upload(self, memory: Block, array: Array) -> None:
        """Copy a contiguous host array in."""
        ...

    def download(self, memory: Block, dtype: DType, count: int, start: int = 0) -> Array:
        """A flat host array of `count` elements (shared, not copied, where possible). Waits for the
        work that made them, and for none that was launched later."""
        ...

    def compile(self, kernel: Any) -> KernelProgram:
        """The program of a kernel in IR, from the cache where it is there."""
        ...

    def compile_all(self, kernels: Sequence[Any]) -> Sequence[KernelProgram]:
        """The programs of several kernels; `Backend` compiles one after the other."""
        ...

    def has_code(self, kernel: Any) -> bool:
        """Whether a kernel is compiled, in memory or on disk; `Backend` does not know."""
        ...

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> LaunchList:
        """A launch list over memory in numbered slots."""
        ...

    def prepare_unsized(self, steps: Sequence[LaunchStep], slots: int) -> LaunchList | None:
        """`prepare` of steps that run in several sizes, with a slot for each buffer and for each
        scratch pitch; None, as for `Backend`, where a launch depends on sizes."""
        ...

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order, by default as a launch list. May return before they are done."""
        ...

    def recorder(self) -> Recorder | None:
        """Records runs of several launch lists, to launch them as one; None, as for `Backend`,
        where that gains nothing."""
        ...

    def synchronize(self) -> None:
        """Wait until everything launched is done; errors of the work are raised here."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, bytes kept in the pool, the peak, and counts of allocations."""
        ...

    def missing_feature(self, dtype: str) -> str:
        """The device feature that an unsupported dtype needs; `Backend` names none."""
        ...


class Backend:
    """Defaults of the optional methods of a `Runtime`."""

    def compile_all(self: Any, kernels: Sequence[Any]) -> Any:
        return [self.compile(kernel) for kernel in kernels]

    def has_code(self, kernel: Any) -> bool:
        return False

    def prepare_unsized(self, steps: Sequence[LaunchStep], slots: int) -> LaunchList | None:
        return None

    def recorder(self) -> Recorder | None:
        return None

    def missing_feature(self, dtype: str) -> str:
        return ""

    def call_vm(self) -> Any:
        """The fast-call VM of graphs on this device; None: they are built by Python."""
        return None

    def run(self: Any, launches: Sequence[Launch]) -> None:
        if launches:
            self.prepare(*launch_steps(launches)).run(*launch_arguments(launches))


# -- launches -------------------------------------------------------------------------------------

Values = Sequence[int | float]  # grids and scalars
Pairs = Sequence[tuple[int, int]]
BoundLaunch = Callable[[Sequence[int], Values], None]


@dataclass(slots=True)
class Launch:
    """One kernel call: `grid` blocks over these buffers and scalar values (in slot order)."""

    program: Any
    memories: Sequence[Any]
    scalars: Values
    grid: int


@dataclass(frozen=True, slots=True)
class LaunchStep:
    """One kernel of a launch list.

    Args:
        buffers: for each buffer of the kernel a slot and an offset in bytes from the slot's
            address; None for scratch that the runtime provides.
        nbytes: the size of each buffer, scratch left out, where known.
        scratch: bytes of each scratch buffer per worker (per block, on SIMT targets), where known.
        concurrent: independent of the step before, and of those that one is concurrent with: they
            form a wave, and may run at the same time.
        scratch_pitch: bytes between two workers, where scratch buffers are in slots: for as many
            workers as the device has cores, or the wave has blocks if fewer.
        pitch_slot: the slot that has the `scratch_pitch` in place of an address, where that
            differs from run to run.
    """

    program: Any
    buffers: Sequence[tuple[int, int] | None]
    nbytes: Sequence[int] | None = None
    scratch: Sequence[int] | None = None
    concurrent: bool = False
    scratch_pitch: int = 0
    pitch_slot: int | None = None


def launch_steps(
    launches: Sequence[Launch], scratch: Callable[[Launch], Sequence[int] | None] | None = None
) -> tuple[list[LaunchStep], int]:
    """Launches as steps, with one slot per memory, and the number of slots."""
    slots = 0
    steps: list[LaunchStep] = []
    for launch in launches:
        buffers: list[tuple[int, int] | None] = []
        for memory in launch.memories:
            buffers.append(None if memory is None else (slots, 0))
            slots += memory is not None
        sizes = scratch(launch) if scratch else None
        steps.append(LaunchStep(launch.program, buffers, scratch=sizes))
    return steps, slots


def launch_arguments(launches: Sequence[Launch]) -> tuple[list[int], list[int | float]]:
    """The addresses and values to run such steps with."""
    addresses: list[int] = []
    values: list[int | float] = []
    for launch in launches:
        addresses += [memory.address for memory in launch.memories if memory is not None]
        values += (launch.grid, *launch.scalars)
    return addresses, values


class LaunchList(ABC):
    """Kernels prepared once and run many times, by several threads at once."""

    @abstractmethod
    def run(self, addresses: Sequence[int], values: Values) -> None:
        """Run with one address per slot and, for each step, its grid followed by its scalars."""

    def bind_values(self, values: Values, changing: Sequence[int]) -> BoundLaunch:
        """`run` as a function of the addresses and of the values at the indices `changing`."""

        def launch(addresses: Sequence[int], changed: Values) -> None:
            current = list(values)
            for i, value in zip(changing, changed, strict=True):
                current[i] = value
            self.run(addresses, current)

        return launch

    def repeat(
        self,
        values: Values,
        addresses: list[int],
        count: int,
        steps: Pairs,
        swaps: Pairs,
        flag: Any,
        runtime: Runtime[Any],
        ahead: bool = False,
    ) -> int:
        """Run up to `count` times; gives the number of runs.

        After each run the addresses of some slots move by some bytes (`steps`), and some pairs of
        slots are exchanged (`swaps`). The first run that leaves False in the memory `flag` is the
        last, if there is one; where nothing reads what a further run writes, it may be launched
        `ahead` of the flag.
        """
        launch = self.bind_values(values, ())
        for i in range(count):
            launch(addresses, ())
            for slot, nbytes in steps:
                addresses[slot] += nbytes
            for a, b in swaps:
                addresses[a], addresses[b] = addresses[b], addresses[a]
            if flag is not None:
                runtime.synchronize()
                if not runtime.download(flag, bool_, 1)[0]:
                    return i + 1
        return count

    def call_builder(self, values: Values, fixed: Pairs, arena: int | None) -> Any:
        """A fast call around the launches (`runtime/pycall`); None where unsupported.

        Args:
            fixed: slots and their constant addresses.
            arena: bytes of the last slot, where that is for temporaries.
        """
        return None


# -- native calls ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class NativeLaunch:
    """A vendor kernel as a function of 16 words that native code calls; 0 means success.

    `addresses` lists the words that are addresses: `(word, buffer, offset)`, where the buffer after
    the last one is the workspace. It is used where all addresses are multiples of 16. An address
    that is no argument is the 17th word: `setter` = (function, a, b, size) is called before as
    function(a, b, pointer to that word, size).
    """

    function: int
    arguments: tuple[int, ...]
    addresses: tuple[tuple[int, int, int], ...]
    setter: tuple[int, int, int, int] | None = None


class RecycledOutput(NamedTuple):
    """An object over device memory, reused as soon as only its owner references it."""

    value: Any
    owners: Sequence[Any]  # itself and the objects it is made of, each referenced by the one before
    # (object, type, slot, value): slots of the owners, and their values while it is unused
    idle_slots: Sequence[tuple[Any, type, str, Any]]
