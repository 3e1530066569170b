"""What a backend must provide. Read this first when you add one.

Nothing above `runtime/` asks which backend it is on: it speaks to a `Runtime` through the methods
below, and reads the target's description (`Target`) where a schedule has to choose.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np

from numus.dtypes import bool_

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.target import Target


class Memory(Protocol):
    """A block of device memory. It returns to the pool when the last reference to it goes."""

    @property
    def nbytes(self) -> int: ...

    @property
    def address(self) -> int:
        """Where it is, for runtimes whose kernels take addresses."""
        ...


Block = TypeVar("Block", bound=Memory)


class RecycledOutput(NamedTuple):
    """Something made of memory that may be used again as soon as nobody but its owner holds it."""

    thing: Any
    parts: Sequence[Any]  # itself and what it is made of, each held by the one before
    # slots of parts (an object, its type, the slot's name) and what they hold while nobody uses it
    idle: Sequence[tuple[Any, type, str, Any]]


class Program(Protocol):
    """A compiled kernel, ready to launch; it may be shared between threads."""

    @property
    def name(self) -> str: ...

    @property
    def kernel(self) -> Any:
        """The IR it was made from."""
        ...

    @property
    def source(self) -> str:
        """What the renderer produced: LLVM IR, PTX, WGSL."""
        ...


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """One kernel of a prepared program.

    `buffers` gives, for each buffer of the kernel, a slot of the program and an offset in bytes
    from the address that the slot will hold; None for a scratch buffer, which the runtime provides.
    `nbytes` gives the size of what lies there, scratch left out, where it is known.
    `scratch` gives the bytes that one worker (a block, where lanes are threads of a group) needs of
    each scratch buffer, where they are known. `pitch`: the scratch buffers have places as well, so
    many bytes apart, for as many workers as the device has units, or the wave has blocks if fewer.
    A step that `joins` needs nothing of the one before it, nor of those that one joins: they form a
    wave, and may run at the same time.
    """

    program: Any
    buffers: Sequence[tuple[int, int] | None]
    nbytes: Sequence[int] | None = None
    scratch: Sequence[int] | None = None
    joins: bool = False
    pitch: int = 0


class Prepared(Protocol):
    """Kernels laid out to be run many times, by several threads at once."""

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Run with one address per slot and, for each step, its grid followed by its scalars."""
        ...


def compile_all(runtime: Runtime[Any], kernels: Sequence[Any]) -> list[Any]:
    """The programs of several kernels.

    A runtime that gains from knowing all of them has a method of this name.
    """
    own = getattr(runtime, "compile_all", None)
    found: list[Any] = own(kernels) if own is not None else list(map(runtime.compile, kernels))
    return found


LaunchFixed = Callable[[Sequence[int], Sequence[int | float]], None]


def fixed(
    prepared: Prepared, values: Sequence[int | float], changing: Sequence[int]
) -> LaunchFixed:
    """A prepared program with values that stay, but for those at some places: a function of the
    addresses and of these values.

    A runtime that gains from knowing has a method of this name; for others, this calls `run`.
    """
    own = getattr(prepared, "fixed", None)
    if own is not None:
        found: LaunchFixed = own(values, changing)
        return found
    return fixed_by_run(prepared, values, changing)


def fixed_by_run(
    prepared: Prepared, values: Sequence[int | float], changing: Sequence[int]
) -> LaunchFixed:
    """`fixed` for every runtime."""

    def launch(addresses: Sequence[int], changed: Sequence[int | float]) -> None:
        current = list(values)
        for at, value in zip(changing, changed, strict=True):
            current[at] = value
        prepared.run(addresses, current)

    return launch


def repeat(
    runtime: Runtime[Any],
    prepared: Any,
    values: Sequence[int | float],
    addresses: list[int],
    count: int,
    steps: Sequence[tuple[int, int]],
    swaps: Sequence[tuple[int, int]],
    flag: Any = None,
) -> int:
    """Run a prepared program up to `count` times; gives how often it ran.

    After each run the addresses of some slots move by so many bytes (`steps`), and some pairs of
    slots change places (`swaps`). The first run that leaves False in the memory `flag` is the last.
    A runtime that can do this by itself has a method of this name.
    """
    own = getattr(prepared, "repeat", None)
    if own is not None:
        done: int = own(values, addresses, count, steps, swaps, flag)
        return done
    launch = fixed(prepared, values, ())
    for i in range(count):
        launch(addresses, ())
        for slot, step in steps:
            addresses[slot] += step
        for a, b in swaps:
            addresses[a], addresses[b] = addresses[b], addresses[a]
        if flag is not None:
            runtime.synchronize()
            if not runtime.download(flag, bool_, 1)[0]:
                return i + 1
    return count


@dataclass(frozen=True)
class NativeLaunch:
    """A vendor's kernel as a function of 16 words that native code calls; it gives 0 where all is
    well. Some of the words are addresses: `(word, buffer, offset)`, where the buffer after the last
    is the workspace. It is called so where all addresses are whole multiples of 16.

    An address that is no argument is told beforehand, by a function of two numbers, a pointer to
    the address and its size: `prior` is the function and these numbers, the word is the 17th."""

    function: int
    arguments: tuple[int, ...]
    addresses: tuple[tuple[int, int, int], ...]
    prior: tuple[int, int, int, int] | None = None


@dataclass(slots=True)
class Launch:
    """One kernel call: `grid` blocks over these buffers and scalar values (in slot order)."""

    program: Any
    memories: Sequence[Any]
    scalars: Sequence[int | float]
    grid: int


def steps_of(
    launches: Sequence[Launch], scratch: Callable[[Launch], Sequence[int] | None] | None = None
) -> tuple[list[ProgramStep], int]:
    """Launches as steps, and how many slots they have: one for each memory, in order. `scratch`
    tells the bytes of a launch's scratch buffers."""
    slots = 0
    steps: list[ProgramStep] = []
    for launch in launches:
        places: list[tuple[int, int] | None] = []
        for memory in launch.memories:
            places.append(None if memory is None else (slots, 0))
            slots += memory is not None
        steps.append(
            ProgramStep(launch.program, places, scratch=scratch(launch) if scratch else None)
        )
    return steps, slots


def arguments_of(launches: Sequence[Launch]) -> tuple[list[int], list[int | float]]:
    """What such steps are run with: addresses, and for each its grid and scalars."""
    addresses: list[int] = []
    values: list[int | float] = []
    for launch in launches:
        addresses += [memory.address for memory in launch.memories if memory is not None]
        values += (launch.grid, *launch.scalars)
    return addresses, values


class Runtime(Protocol[Block]):
    """One device, whose memory comes in blocks of a type of its own.

    `devices.STARTS` says which there are: that each keeps to this is checked with the types there.
    """

    @property
    def target(self) -> Target: ...

    @property
    def allocate(self) -> Callable[[int], Block]:
        """Uninitialised memory of so many bytes, 64-byte aligned; empties the pool and tries again
        when full."""
        ...

    def upload(self, memory: Block, array: np.ndarray[Any, Any]) -> None:
        """Copy a contiguous host array in."""
        ...

    def download(
        self, memory: Block, dtype: DType, count: int, start: int = 0
    ) -> np.ndarray[Any, Any]:
        """A flat host array of `count` elements (shared, not copied, where possible). Waits for the
        work that made them, and for none that was launched later."""
        ...

    def compile(self, kernel: Any) -> Program:
        """A program for a kernel in IR, from the cache where it is there."""
        ...

    def prepare(self, steps: Sequence[ProgramStep], slots: int) -> Prepared:
        """A list of kernels to be run many times over memory in numbered slots."""
        ...

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order. May return before they are done."""
        ...

    def synchronize(self) -> None:
        """Wait until everything launched is done; errors of the work are raised here."""
        ...

    def memory_stats(self) -> dict[str, int]:
        """Bytes in use, bytes kept in the pool, the peak, and counts of allocations."""
        ...
