"""CPU backend: memory, programs and launches."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from numus import config, dtypes
from numus.codegen.cpu.target import cache_sizes, cache_ways, host, shared_cache_size
from numus.ir import kernel_text
from numus.runtime.contract import (
    Array,
    Backend,
    Launch,
    LaunchStep,
    launch_arguments,
    launch_steps,
)
from numus.runtime.cpu.byte_ops import ByteOps
from numus.runtime.cpu.compiler import Compiler, CpuProgram
from numus.runtime.cpu.launch import CpuLaunchList
from numus.runtime.cpu.memory import Memory, MemoryPool, wrap
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.locks import once_property
from numus.runtime.pycall.vm import CallVM, is_supported
from numus.target import Target

if TYPE_CHECKING:
    from numus.dtypes import DType

_MAX_PREPARED = 1024


def target() -> Target:
    """The description of this CPU."""
    machine = host()
    l1, l2 = cache_sizes()
    return Target(
        name="cpu",
        description=f"{machine.cpu} ({machine.vector_bytes * 8}-bit vectors)",
        dtypes=frozenset(d.name for d in dtypes.ALL),
        vector_bytes=machine.vector_bytes,
        vector_registers=machine.vector_registers,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=shared_cache_size(),
        l1_ways=cache_ways(),
        masked_store_min_bytes=machine.masked_store_min_bytes,
        compress_min_bytes=machine.compress_min_bytes,
        num_cores=config.default_threads(),
        language="llvm",
        byte_dot=machine.byte_dot,
        fma=machine.arch != "x86" or "fma" in machine.enabled,
        features=machine.enabled | {machine.arch},
        gathers=machine.gathers,
        streams_lines=machine.streams_lines,
        prefetches_results=machine.prefetches_results,
        libraries=frozenset({"lapack"}),
    )


class CpuRuntime(Backend):
    """The CPU as a device; one per process (`numus.runtime.get("cpu")`)."""

    def __init__(self) -> None:
        self.target = target()
        self.memory = MemoryPool()
        self.compiler = Compiler()
        self.allocate, self.memory_stats = self.memory.allocate, self.memory.stats
        self.compile_log = self.compiler.log  # kernels compiled or loaded so far, in order
        self._prepared: dict[tuple[int, ...], CpuLaunchList] = {}
        # weak: these are per size, and plans keep those in use
        self._vendor_programs: WeakValueDictionary[str, CpuProgram] = WeakValueDictionary()

    def compile(self, kernel: Any) -> CpuProgram:
        if kernel.vendor is not None:
            return self._vendor_program(kernel)
        return self.compiler.compile(kernel)

    def compile_all(self, kernels: Sequence[Any]) -> list[CpuProgram]:
        own = iter(self.compiler.compile_all([k for k in kernels if k.vendor is None]))
        return [next(own) if k.vendor is None else self._vendor_program(k) for k in kernels]

    def has_code(self, kernel: Any) -> bool:
        return kernel.vendor is not None or self.compiler.has_code(kernel)

    def _vendor_program(self, kernel: Any) -> CpuProgram:
        """A loop that calls a vendor's library."""
        text = kernel_text(kernel)
        found = self._vendor_programs.get(text)
        if found is None:
            code, source = kernel.vendor.start(self, kernel.problem)
            found = CpuProgram(kernel, text, code, lambda: source)
            found = self._vendor_programs.setdefault(text, found)
        return found

    @once_property
    def pool(self) -> Pool:
        return Pool(self.compiler)

    @once_property
    def byte_ops(self) -> ByteOps:
        """Row gather and checksums of memory outside tensors."""
        return ByteOps(self.compiler, self.prepare, self.allocate)

    # -- memory -----------------------------------------------------------------------------------

    wrap = staticmethod(wrap)

    def upload(self, memory: Memory, array: Array) -> None:
        array = np.ascontiguousarray(array)
        ctypes.memmove(memory.address, array.__array_interface__["data"][0], array.nbytes)

    def download(self, memory: Memory, dtype: DType, count: int, start: int = 0) -> Array:
        """A view of the memory, which it keeps alive."""
        return memory.view(dtype.np, start + count)[start:]

    # -- launches ---------------------------------------------------------------------------------

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> CpuLaunchList:
        """A launch list to be run many times."""
        workers = self.target.num_cores
        return CpuLaunchList(self.pool, self.memory, steps, slots, workers, self.call_vm)

    prepare_unsized = prepare

    def call_vm(self) -> CallVM | None:
        """The fast-call VM; None where this Python does not support it."""
        return self._call_vm

    @once_property
    def _call_vm(self) -> CallVM | None:
        if not is_supported():
            return None
        jit = self.compiler.jit
        return CallVM(self.compiler.native, jit.target, self.pool.ticks_per_second)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; they are done on return."""
        key = tuple([id(x.program) * 64 + sum(m is not None for m in x.memories) for x in launches])
        found = self._prepared.get(key)
        if found is None:
            if len(self._prepared) >= _MAX_PREPARED:
                self._prepared.clear()
            # it keeps its programs alive, so that their ids stay unique
            found = self._prepared[key] = self.prepare(*launch_steps(launches))
        found.run(*launch_arguments(launches))

    def synchronize(self) -> None:
        """Launches are done when `run` returns."""

    # -- threads ----------------------------------------------------------------------------------

    def set_num_threads(self, count: int) -> None:
        self.pool.set_threads(count)

    def get_num_threads(self) -> int:
        return self.pool.threads
