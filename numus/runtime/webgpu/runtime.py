"""WebGPU runtime: the backend contract over one adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.runtime.contract import Array, Backend, LaunchStep
from numus.runtime.webgpu.context import GpuContext, lost_error
from numus.runtime.webgpu.launch import WebGpuLaunchList
from numus.runtime.webgpu.memory import BufferPool, GpuSession, Memory
from numus.runtime.webgpu.programs import PipelineCache, WebGpuProgram
from numus.runtime.webgpu.user_kernels import UserKernels
from numus.target import Target

if TYPE_CHECKING:
    from numus.dtypes import DType


class WebGpuRuntime(Backend):
    """One adapter as a device; its context is started again after a loss."""

    def __init__(self, index: int = 0) -> None:
        self._session = GpuSession(index)
        self.pipelines = PipelineCache(self._session)
        self.compile_log = self.pipelines.log  # pipelines compiled so far, in order
        self.user_kernels = UserKernels(self._session)

    @property
    def context(self) -> GpuContext:
        return self._session.context

    @property
    def pool(self) -> BufferPool:
        return self._session.pool

    @property
    def target(self) -> Target:
        return self.context.target

    def missing_feature(self, dtype: str) -> str:
        if dtype in self.target.dtypes:
            return ""
        found = {"float64": "shader-f64", "complex128": "shader-f64"}.get(dtype, "shader-int64")
        return f"the feature {found}"

    # -- memory -----------------------------------------------------------------------------------

    def allocate(self, nbytes: int) -> Memory:
        if self.context.lost:
            with self._session.lock:
                if self.context.lost:
                    self._session.restart()
                    self.pipelines.clear()
                    self.user_kernels.clear()
        return self.pool.allocate(nbytes)

    def upload(self, memory: Memory, array: Array) -> None:
        with self._session.lock:
            _alive_pool(memory).upload(memory, array)

    def download(self, memory: Memory, dtype: DType, count: int, start: int = 0) -> Array:
        """A copy; waits for the work that made it."""
        if count == 0:
            return np.empty(0, dtype.np)
        size = dtype.itemsize
        with self._session.lock:
            pool = _alive_pool(memory)
            try:
                return pool.download(memory, start * size, count * size).view(dtype.np)
            except self.context.wgpu.GPUError as error:
                self.context.raise_if_lost(error)
                raise

    def memory_stats(self) -> dict[str, int]:
        return self.pool.stats()

    # -- programs and launches --------------------------------------------------------------------

    def compile(self, kernel: Any) -> WebGpuProgram:
        return self.pipelines.program(kernel)

    def prepare(self, steps: Sequence[LaunchStep], slots: int) -> WebGpuLaunchList:
        return WebGpuLaunchList(self._session, steps)

    def synchronize(self) -> None:
        if not self.context.lost:
            self.context.wait()


def _alive_pool(memory: Memory) -> BufferPool:
    if memory.pool.context.lost:
        raise lost_error(memory.pool.context)
    return memory.pool
