"""CPU backend: memory, programs and launches."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.runtime.compile_log import CompileRecord
from numus.runtime.contract import Backend, Launch, LaunchStep, launch_arguments, launch_steps
from numus.runtime.cpu import properties
from numus.runtime.cpu.byte_ops import ByteOps
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.launch import CpuLaunchList
from numus.runtime.cpu.memory import Memory, MemoryPool, wrap
from numus.runtime.cpu.program import CpuProgram
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.pycall.vm import CallVM, is_supported

if TYPE_CHECKING:
    from numus.dtypes import DType

_MAX_PREPARED = 1024


class CpuRuntime(Backend):
    """The CPU as a device; one per process (`numus.runtime.get("cpu")`)."""

    def __init__(self) -> None:
        self.target = properties.target()
        self.memory = MemoryPool()
        self.compiler = Compiler()
        self.allocate = self.memory.allocate
        self._pool: Pool | None = None
        self._call_vm: CallVM | None = None
        self._prepared: dict[tuple[int, ...], CpuLaunchList] = {}
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def _after_fork(self) -> None:
        self.memory.after_fork()
        self.compiler.after_fork()

    @property
    def pool(self) -> Pool:
        if self._pool is None:
            self._pool = Pool(self.compiler)
        return self._pool

    @functools.cached_property
    def byte_ops(self) -> ByteOps:
        """Row gather and checksums of memory outside tensors."""
        return ByteOps(self.compiler, self.prepare, self.allocate)

    # -- memory -----------------------------------------------------------------------------------

    def wrap(self, array: np.ndarray[Any, Any]) -> Memory:
        """A contiguous NumPy array's own memory, without a copy."""
        return wrap(array)

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        array = np.ascontiguousarray(array)
        ctypes.memmove(memory.address, array.__array_interface__["data"][0], array.nbytes)

    def download(
        self, memory: Memory, dtype: DType, count: int, start: int = 0
    ) -> np.ndarray[Any, Any]:
        """A view of the memory, which it keeps alive."""
        return memory.view(dtype.np, start + count)[start:]

    def memory_stats(self) -> dict[str, int]:
        return self.memory.stats()

    # -- programs ---------------------------------------------------------------------------------

    def compile(self, kernel: Any) -> CpuProgram:
        return self.compiler.compile(kernel)

    @property
    def compile_log(self) -> list[CompileRecord]:
        """Kernels compiled or loaded so far, in order."""
        return self.compiler.log

    # -- launches ---------------------------------------------------------------------------------

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> CpuLaunchList:
        """A launch list to be run many times."""
        workers = self.target.num_cores
        return CpuLaunchList(self.pool, self.memory, steps, slots, workers, self.call_vm)

    def call_vm(self) -> CallVM | None:
        """The fast-call VM; None where this Python does not support it."""
        if self._call_vm is None and is_supported():
            target = self.compiler.jit.target
            self._call_vm = CallVM(self.compiler.native, target, self.pool.ticks_per_second)
        return self._call_vm

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; they are done on return."""
        if launches:
            self._prepared_for(launches).run(*launch_arguments(launches))

    def _prepared_for(self, launches: Sequence[Launch]) -> CpuLaunchList:
        """The launch list of these programs, one slot per memory."""
        key = tuple([id(x.program) * 64 + sum(m is not None for m in x.memories) for x in launches])
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            # it keeps its programs alive, so that their ids stay unique
            found = self._prepared[key] = self.prepare(*launch_steps(launches))
        return found

    def synchronize(self) -> None:
        """Launches are done when `run` returns."""

    # -- threads ----------------------------------------------------------------------------------

    def set_num_threads(self, count: int) -> None:
        self.pool.set_threads(count)

    def get_num_threads(self) -> int:
        return self.pool.threads
