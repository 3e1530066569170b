"""GpuSession: the current context and memory pool of an adapter, across lost devices."""

from __future__ import annotations

import threading

from numus.errors import DeviceError
from numus.runtime.webgpu import adapters
from numus.runtime.webgpu.context import GpuContext, lost_error
from numus.runtime.webgpu.memory import BufferPool, Memory


class GpuSession:
    """State that launches, pipelines and user kernels of one runtime share."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.lock = threading.RLock()
        self._last_lost: GpuContext | None = None
        self._start()

    def _start(self) -> None:
        context = GpuContext.get(self.index)
        if context is None:
            raise DeviceError(
                f"there is no WebGPU adapter {self.index} here; {adapters.unavailable_hint()}"
            )
        self.context: GpuContext = context
        self.pool = BufferPool(context)

    def restart(self) -> None:
        """Replace a lost context by a new one."""
        self._last_lost = self.context
        self._start()

    def alive(self) -> GpuContext:
        """The current context; raises where it is lost."""
        if self.context.lost:
            raise lost_error(self.context)
        return self.context

    def memory_of(self, buffer_id: int) -> Memory:
        """The live block with a buffer id; it may be gone with a lost device."""
        found = self.pool.find(buffer_id)
        if found is None:
            if self._last_lost is not None:
                raise lost_error(self._last_lost)
            raise DeviceError(f"memory that is not, or no longer, on {self.context.name}")
        return found
