"""The reference backend: primitives evaluated by their NumPy references, the oracle of tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.dtypes import DType
from numus.runtime.contract import Array, Backend, Launch, LaunchStep
from numus.target import Target


class HostMemory:
    """Bytes held by a NumPy array."""

    __slots__ = ("array", "nbytes")

    def __init__(self, array: Array) -> None:
        self.array = array
        self.nbytes = array.nbytes

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return self.array.__array_interface__


class ReferenceRuntime(Backend):
    """NumPy as a device."""

    target = Target(
        name="reference",
        description=f"NumPy {np.__version__}",
        dtypes=frozenset(d.name for d in dt.ALL),
        vector_bytes=16,
        vector_registers=16,
        l1_bytes=1 << 15,
        l2_bytes=1 << 20,
        num_cores=1,
        language="none",
    )

    def allocate(self, nbytes: int) -> HostMemory:
        return HostMemory(np.empty(nbytes, np.uint8))

    def wrap(self, array: Array) -> HostMemory:
        """A contiguous NumPy array's own memory, without a copy."""
        return HostMemory(array.reshape(-1).view(np.uint8))

    def upload(self, memory: HostMemory, array: Array) -> None:
        memory.array[: array.nbytes] = array.reshape(-1).view(np.uint8)

    def download(self, memory: HostMemory, dtype: DType, count: int, start: int = 0) -> Array:
        # through the interface: the result keeps the memory object alive, so that it is counted
        size = dtype.itemsize
        return np.asarray(memory)[start * size : (start + count) * size].view(dtype.np)

    def compile(self, kernel: Any) -> Any:
        raise TypeError("the reference device evaluates primitives by NumPy: it has no kernels")

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> Any:
        self.compile(steps)

    def run(self, launches: Sequence[Launch]) -> None:
        self.compile(launches)

    def synchronize(self) -> None:
        pass

    def memory_stats(self) -> dict[str, int]:
        return {}
