"""A GPU behind the backend contract."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.errors import DeviceError
from numus.runtime.contract import Launch, ProgramStep, arguments_of, steps_of
from numus.runtime.webgpu.context import GpuContext, lost
from numus.runtime.webgpu.launch import Prepared
from numus.runtime.webgpu.memory import BufferPool, Memory
from numus.runtime.webgpu.programs import CompileRecord, PipelineCache, WebGpuProgram
from numus.runtime.webgpu.user_kernels import Sources
from numus.target import Target

if TYPE_CHECKING:
    from numus.dtypes import DType


class WebGpuRuntime:
    """One GPU as a device. Its context is started when the runtime is, and again after a loss."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self.lock = threading.RLock()
        self.before: GpuContext | None = None  # the last one that was lost
        self.pipelines = PipelineCache(self)
        self.sources = Sources(self)  # shaders of users
        self._start()

    def _start(self) -> None:
        context = GpuContext.get(self.index)
        if context is None:
            raise DeviceError(
                f"there is no adapter {self.index} for WebGPU here: it takes a driver for Vulkan, "
                "Metal or Direct3D 12 (on Linux without a GPU: the package mesa-vulkan-drivers)"
            )
        self.context: GpuContext = context
        self.pool = BufferPool(context)
        self.pipelines.restart()
        self.sources.restart()

    @property
    def target(self) -> Target:
        return self.context.target

    def missing(self, dtype: str) -> str:
        """The feature of an adapter that a dtype takes, where this one has not got it."""
        if dtype in self.target.dtypes:
            return ""
        found = {"float64": "shader-f64", "complex128": "shader-f64"}.get(dtype, "shader-int64")
        return f"the feature {found}"

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        if self.context.lost:
            with self.lock:
                if self.context.lost:
                    self.before = self.context
                    self._start()
        return self.pool.allocate(nbytes)

    def memory_at(self, number: int) -> Memory:
        """The block with a number; it may have gone with a device that was lost."""
        found = self.pool.at(number)
        if found is None:
            if self.before is not None:
                raise lost(self.before)
            raise DeviceError(f"memory that is not, or no longer, on {self.context.name}")
        return found

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        with self.lock:
            self._alive(memory).upload(memory, array)

    def download(
        self, memory: Memory, dtype: DType, count: int, start: int = 0
    ) -> np.ndarray[Any, Any]:
        """A copy; waits for the work that made it."""
        if count == 0:
            return np.empty(0, dtype.np)
        size = dtype.itemsize
        with self.lock:
            pool = self._alive(memory)
            try:
                return pool.download(memory, start * size, count * size).view(dtype.np)
            except self.context.wgpu.GPUError as error:
                raise self.context.check(error) from error

    def _alive(self, memory: Memory) -> BufferPool:
        if memory.pool.context.lost:
            raise lost(memory.pool.context)
        return memory.pool

    def memory_stats(self) -> dict[str, int]:
        return self.pool.stats()

    # -- programs and launches --------------------------------------------------------------------

    def compile(self, kernel: Any) -> WebGpuProgram:
        return self.pipelines.program(kernel)

    @property
    def compile_log(self) -> list[CompileRecord]:
        """The pipelines made so far, in order."""
        return self.pipelines.log

    def prepare(self, steps: Sequence[ProgramStep], slots: int) -> Prepared:
        return Prepared(self, steps, slots)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; may return before they are done."""
        if launches:
            self.prepare(*steps_of(launches)).run(*arguments_of(launches))

    def synchronize(self) -> None:
        """Wait until everything that was handed over is done."""
        if not self.context.lost:
            self.context.wait()
