"""The CPU's runtime: memory, programs and launches behind the backend contract."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.runtime.compile_log import CompileRecord
from numus.runtime.contract import Launch, ProgramStep, arguments_of, steps_of
from numus.runtime.cpu import properties
from numus.runtime.cpu.byte_ops import Stretches
from numus.runtime.cpu.compiler import Compiler
from numus.runtime.cpu.launch import Prepared
from numus.runtime.cpu.memory import Memory, MemoryPool, wrap
from numus.runtime.cpu.program import CpuProgram
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.pycall import vm

if TYPE_CHECKING:
    from numus.dtypes import DType

_MOST_PREPARED = 1024


class CpuRuntime:
    """The CPU as a device. One per process is enough: `numus.runtime.get("cpu")`."""

    def __init__(self) -> None:
        self.target = properties.target()
        self.memory = MemoryPool()
        self.compiler = Compiler()
        self.allocate = self.memory.allocate
        self._pool: Pool | None = None
        self._calls: vm.Calls | None = None
        self._prepared: dict[tuple[int, ...], Prepared] = {}
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
    def stretches(self) -> Stretches:
        """Rows gathered and checksums taken, of memory that no tensor holds."""
        return Stretches(self)

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
        """Shared with the memory, which it keeps alive."""
        return memory.view(dtype.np, start + count)[start:]

    def memory_stats(self) -> dict[str, int]:
        return self.memory.stats()

    # -- programs ---------------------------------------------------------------------------------

    def compile(self, kernel: Any) -> CpuProgram:
        return self.compiler.compile(kernel)

    @property
    def compile_log(self) -> list[CompileRecord]:
        """What was compiled or loaded so far, in order."""
        return self.compiler.log

    # -- launches ---------------------------------------------------------------------------------

    def prepare(self, steps: Sequence[ProgramStep], slots: int) -> Prepared:
        """A list of kernels to be run many times; see `Prepared`."""
        workers = self.target.num_cores
        return Prepared(self.pool, self.memory, steps, slots, workers, self.native_calls)

    def native_calls(self) -> vm.Calls | None:
        if self._calls is None and vm.possible():
            self._calls = vm.Calls(self.compiler, self.pool)
        return self._calls

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; they are done on return."""
        if launches:
            self._template(launches).run(*arguments_of(launches))

    def _template(self, launches: Sequence[Launch]) -> Prepared:
        """The prepared form of launches of these programs, one slot per memory."""
        key = tuple([id(x.program) * 64 + sum(m is not None for m in x.memories) for x in launches])
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MOST_PREPARED:
                self._prepared.clear()
            # it keeps its programs alive, so that their ids stay theirs
            found = self._prepared[key] = self.prepare(*steps_of(launches))
        return found

    def synchronize(self) -> None:
        """Launches are done when `run` returns."""

    # -- threads ----------------------------------------------------------------------------------

    def set_num_threads(self, count: int) -> None:
        self.pool.set_threads(count)

    def get_num_threads(self) -> int:
        return self.pool.threads
