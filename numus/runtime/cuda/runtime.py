"""CUDA runtime: the backend contract over one NVIDIA GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from numus.ir import kernel_text
from numus.runtime.contract import (
    Array,
    Backend,
    Launch,
    LaunchStep,
    launch_arguments,
    launch_steps,
)
from numus.runtime.cpu import CpuRuntime
from numus.runtime.cuda import dlpack, driver
from numus.runtime.cuda.compiler import Compiler
from numus.runtime.cuda.context import CudaContext
from numus.runtime.cuda.graphs import RunRecorder
from numus.runtime.cuda.launch import CudaLaunchList
from numus.runtime.cuda.program import CudaProgram, VendorProgram
from numus.runtime.cuda.staging import Staging
from numus.runtime.cuda.user_kernels import UserKernels
from numus.runtime.memory_pool import Memory
from numus.runtime.programs import scratch_nbytes

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.runtime.pycall.vm import CallVM


class CudaRuntime(CudaContext, Backend):
    """One GPU as a device."""

    def __init__(self, host: CpuRuntime, index: int = 0, capability: int | None = None) -> None:
        super().__init__(host, index, capability)
        self.compiler = Compiler(self.capability, self.activate, self.unload)
        self.compile_log = self.compiler.log  # kernels compiled or loaded so far, in order
        self.memory_stats = self.memory.stats
        self.user_kernels = UserKernels(self)
        self._free_stagings: list[Staging] = []
        # weak: these are per size, and plans keep those in use
        self._vendor_programs: WeakValueDictionary[str, VendorProgram] = WeakValueDictionary()

    # -- memory -----------------------------------------------------------------------------------

    def upload(self, memory: Memory, array: Array) -> None:
        if array.nbytes:
            self.activate()
            self.early_results.pop(memory.address, None)
            with self._staging() as staging:
                staging.upload(memory.address, np.ascontiguousarray(array))

    def download(self, memory: Memory, dtype: DType, count: int, start: int = 0) -> Array:
        out = np.empty(count, dtype.np)
        if count:
            self.activate()
            address = memory.address + start * dtype.itemsize
            # after a native call, the early results are not those of the last launch list
            ready = None if self.last_call.value else self.early_results.get(memory.address)
            with self._staging() as staging:
                if ready is None:
                    staging.download(address, out)
                else:
                    staging.download_early(address, out, ready)
            self.process_releases()
        return out

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Staging]:
        """Pinned buffers that no other thread uses meanwhile."""
        try:
            staging = self._free_stagings.pop()
        except IndexError:
            staging = Staging(self.stream)
        try:
            yield staging
        except driver.DriverError as error:
            self.raise_asynchronous(error)
        finally:
            self._free_stagings.append(staging)

    import_dlpack, export_dlpack = dlpack.import_tensor, dlpack.export_tensor

    # -- programs ---------------------------------------------------------------------------------

    def compile(self, kernel: Any) -> CudaProgram | VendorProgram:
        return self.compile_all([kernel])[0]

    def compile_all(self, kernels: Sequence[Any]) -> list[CudaProgram | VendorProgram]:
        """The programs of several kernels, assembled in parallel."""
        self.activate()
        own = iter(self.compiler.compile_all([k for k in kernels if k.vendor is None]))
        return [next(own) if k.vendor is None else self._vendor_program(k) for k in kernels]

    def _vendor_program(self, kernel: Any) -> VendorProgram:
        text = kernel_text(kernel)
        found = self._vendor_programs.get(text)
        if found is None:
            launch = kernel.vendor.start(self, kernel.problem)
            found = self._vendor_programs.setdefault(text, VendorProgram(kernel, launch))
        return found

    # -- launches ---------------------------------------------------------------------------------

    def call_vm(self) -> CallVM | None:
        return self.host.call_vm()

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> CudaLaunchList:
        self.activate()
        while self.retired_graphs:
            driver.call("cuGraphExecDestroy", self.retired_graphs.pop())
        return CudaLaunchList(self, steps, slots)

    def recorder(self) -> RunRecorder:
        return RunRecorder(self)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; they may still be under way on return."""
        steps = launch_steps(launches, lambda x: scratch_nbytes(x.program.kernel, x.scalars))
        self.prepare(*steps).run(*launch_arguments(launches))
