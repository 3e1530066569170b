"""The CPU: LLVM-compiled kernels on a pool of native threads."""

from __future__ import annotations

from numus.runtime.cpu.runtime import CpuRuntime

__all__ = ["CpuRuntime"]
