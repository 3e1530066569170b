"""The CPU's runtime: memory, programs and launches behind the backend contract."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.runtime.contract import Launch
from numus.runtime.cpu import facts
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.memory import Memory, MemoryPool, wrap
from numus.runtime.cpu.program import CpuProgram

if TYPE_CHECKING:
    from numus.dtypes import DType

_NATIVE = ctypes.CFUNCTYPE(
    None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p
)


class CpuRuntime:
    """The CPU as a device."""

    def __init__(self) -> None:
        self.facts = facts.facts()
        self.memory = MemoryPool()
        self.compiler = Compiler()

    def allocate(self, nbytes: int) -> Memory:
        return self.memory.allocate(nbytes)

    def wrap(self, array: np.ndarray[Any, Any]) -> Memory:
        """A contiguous NumPy array's own memory, without a copy."""
        return wrap(array)

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        array = np.ascontiguousarray(array)
        ctypes.memmove(memory.address, array.__array_interface__["data"][0], array.nbytes)

    def download(self, memory: Memory, dtype: DType, count: int) -> np.ndarray[Any, Any]:
        return memory.view(dtype.np, count)

    def compile(self, kernel: Any) -> CpuProgram:
        return self.compiler.compile(kernel)

    def run(self, launches: Sequence[Launch]) -> None:
        for launch in launches:
            program: CpuProgram = launch.program
            memories = self._memories(launch)
            addresses = (ctypes.c_void_p * max(1, program.buffers))(*(m.address for m in memories))
            scalars = struct.pack(program.formats, *launch.scalars) + bytes(8)
            values = ctypes.create_string_buffer(scalars)
            _NATIVE(program.address)(0, launch.grid, 0, addresses, values)

    def _memories(self, launch: Launch) -> list[Memory]:
        """The launch's memories, with scratch where it gives none."""
        program: CpuProgram = launch.program
        memories = list(launch.memories)
        memories += [None] * (program.buffers - len(memories))
        for i, nbytes in zip(program.scratch, program.scratch_nbytes(launch.scalars), strict=True):
            if memories[i] is None:
                memories[i] = self.allocate(nbytes)
        return memories

    def synchronize(self) -> None:
        """Launches are done when `run` returns."""

    def memory_stats(self) -> dict[str, int]:
        return self.memory.stats()
