"""GPUs of any maker through WebGPU: WGSL kernels on Vulkan, Metal or Direct3D 12."""

from __future__ import annotations

from numus.runtime.webgpu.context import GpuContext
from numus.runtime.webgpu.memory import BufferPool
from numus.runtime.webgpu.programs import PipelineCache
from numus.runtime.webgpu.runtime import WebGpuRuntime

__all__ = ["BufferPool", "GpuContext", "PipelineCache", "WebGpuRuntime"]
