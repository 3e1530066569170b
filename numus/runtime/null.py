"""The null backend: launches nothing and counts kernels, bytes moved and peak memory.

Schedulers are tested on it. It describes the same machine everywhere, so tests can contain its
numbers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from numus import dtypes
from numus.ir import kernel_text
from numus.runtime.contract import Array, Backend, Launch, LaunchList, LaunchStep, Values
from numus.runtime.programs import KernelProgram
from numus.target import Target

if TYPE_CHECKING:
    from numus.dtypes import DType

TARGET = Target(
    name="null",
    description="counts launches; 256-bit vectors",
    dtypes=frozenset(d.name for d in dtypes.ALL),
    vector_bytes=32,
    vector_registers=16,
    l1_bytes=32 << 10,
    l2_bytes=1 << 20,
    num_cores=4,
    language="none",
)


@dataclass(slots=True)
class Counts:
    """Counts since the start or the last `reset`."""

    kernels: int = 0  # launched
    waves: int = 0  # of concurrent kernels
    compiled: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    allocations: int = 0
    bytes_allocated: int = 0
    bytes_in_use: int = 0
    peak: int = 0
    names: list[str] = field(default_factory=list)  # of the kernels launched, in order


class NullMemory:
    """A size without memory."""

    __slots__ = ("__weakref__", "_counts", "_taken", "address", "nbytes")

    def __init__(self, address: int, nbytes: int, taken: int, counts: Counts) -> None:
        self.address = address
        self.nbytes = nbytes
        self._taken = taken
        self._counts = counts

    def __del__(self) -> None:
        self._counts.bytes_in_use -= self._taken


class NullProgram(KernelProgram):
    """A kernel; its source is its IR."""

    __slots__ = ()


class NullLaunchList(LaunchList):
    """Launches that are counted each time they would run."""

    def __init__(self, runtime: NullRuntime, steps: Sequence[LaunchStep]) -> None:
        self._runtime = runtime
        self._steps = steps

    def run(self, addresses: Sequence[int], values: Values) -> None:
        for step in self._steps:
            self._runtime.counts.waves += not step.concurrent
            self._runtime.count(step.program, step.nbytes or ())


class NullRuntime(Backend):
    """The device on which nothing runs."""

    def __init__(self) -> None:
        self.target = TARGET
        self.counts = Counts()
        self.launched: list[NullProgram] = []  # in order
        self._programs: dict[str, NullProgram] = {}
        self._next_address = 64
        self.size_class: Callable[[int], int] = int  # what a pool takes for a request

    def reset(self) -> Counts:
        """Reset the counts, except memory in use; gives the counts so far."""
        counts = self.counts
        so_far = dataclasses.replace(counts)
        # blocks refer to this object: reset in place
        fresh = Counts(bytes_in_use=counts.bytes_in_use, peak=counts.bytes_in_use)
        for f in dataclasses.fields(Counts):
            setattr(counts, f.name, getattr(fresh, f.name))
        self.launched = []
        return so_far

    def allocate(self, nbytes: int) -> NullMemory:
        counts = self.counts
        taken = self.size_class(nbytes)
        counts.allocations += 1
        counts.bytes_allocated += taken
        counts.bytes_in_use += taken
        counts.peak = max(counts.peak, counts.bytes_in_use)
        address = self._next_address
        self._next_address += (nbytes + 127) & ~63
        return NullMemory(address, nbytes, taken, counts)

    def upload(self, memory: NullMemory, array: Array) -> None:
        """Keeps nothing."""

    def download(self, memory: NullMemory, dtype: DType, count: int, start: int = 0) -> Array:
        return np.zeros(count, dtype.np)

    def compile(self, kernel: Any) -> NullProgram:
        text = kernel_text(kernel)
        found = self._programs.get(text)
        if found is None:
            self.counts.compiled += 1
            found = self._programs[text] = NullProgram(kernel)
        return found

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> NullLaunchList:
        return NullLaunchList(self, steps)

    def run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            self.counts.waves += 1
            self.count(launch.program, [0 if m is None else m.nbytes for m in launch.memories])

    def count(self, program: NullProgram, nbytes: Sequence[int]) -> None:
        """One launch of a kernel on buffers of these sizes."""
        counts = self.counts
        counts.kernels += 1
        counts.names.append(program.name)
        for buffer, size in zip(program.kernel.buffers, nbytes, strict=False):
            if buffer.access == "read":
                counts.bytes_read += size
            elif buffer.access == "write":
                counts.bytes_written += size
        self.launched.append(program)

    def synchronize(self) -> None:
        """Nothing runs."""

    def memory_stats(self) -> dict[str, int]:
        counts = self.counts
        return {
            "in_use": counts.bytes_in_use,
            "pooled": 0,
            "peak": counts.peak,
            "allocations": counts.allocations,
        }
