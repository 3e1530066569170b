"""NVIDIA GPUs: PTX from LLVM, and the driver through cuda-bindings. No CUDA toolkit is needed."""

from __future__ import annotations

from numus.runtime.cuda.runtime import CudaRuntime

__all__ = ["CudaRuntime"]
