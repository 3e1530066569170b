"""User CUDA kernels: PTX, or CUDA C++ where NVRTC is installed."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from numus.dtypes import DType
from numus.errors import CompileError, DeviceError, DTypeError
from numus.runtime.cuda import driver
from numus.runtime.cuda.context import CudaContext

# The CUDA C++ type of a dtype, and its header.
TYPES = {
    **{"float32": ("float", ""), "float64": ("double", "")},
    **{"float16": ("__half", "cuda_fp16.h"), "bfloat16": ("__nv_bfloat16", "cuda_bf16.h")},
    **{"bool": ("bool", ""), "int8": ("signed char", ""), "uint8": ("unsigned char", "")},
    **{"int16": ("short", ""), "uint16": ("unsigned short", "")},
    **{"int32": ("int", ""), "uint32": ("unsigned int", "")},
    **{"int64": ("long long", ""), "uint64": ("unsigned long long", "")},
}
_SCALARS = tuple(name for name in TYPES if name not in ("float16", "bfloat16"))
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)")
_C_ENTRY = re.compile(r"__global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\(")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


Named = Sequence[tuple[str, DType]]


@dataclass(frozen=True)
class Kernel:
    """A user's kernel for one set of dtypes: its arguments are arrays, then scalars."""

    name: str
    text: str
    entry: str
    is_ptx: bool
    scalars: tuple[tuple[str, str], ...]  # names and dtypes


def parse(name: str, source: str, inputs: Named, outputs: Named, scalars: Named) -> Kernel:
    """The kernel of a source. In CUDA C++, `scalar` is the dtype of the first input (of the first
    output, where there are no inputs)."""
    for scalar, dtype in scalars:
        if dtype.name not in _SCALARS:
            known = ", ".join(_SCALARS)
            raise DTypeError(f"{name}: the scalar {scalar!r} is {dtype.name}; kernels take {known}")
    bare = _COMMENT.sub(" ", source)
    is_ptx = ".entry" in bare
    found = (_PTX_ENTRY if is_ptx else _C_ENTRY).findall(bare)
    if len(found) != 1:
        raise CompileError(
            f"{name}: a CUDA source must have one kernel (`.entry` in PTX, `__global__ void` in "
            f"CUDA C++); this one has {len(found)}"
        )
    if not is_ptx and 'extern "C"' not in bare:
        raise CompileError(f'{name}: declare the kernel extern "C" __global__ void {found[0]}(...)')
    head = ""
    if not is_ptx and re.search(r"\bscalar\b", bare):
        first = (*inputs, *outputs)[0][1]
        if first.name not in TYPES:
            raise DTypeError(f"{name}: CUDA C++ has no scalar for {first.name}; cast it")
        kind, header = TYPES[first.name]
        head = (f"#include <{header}>\n" if header else "") + f"typedef {kind} scalar;\n"
    return Kernel(name, head + source, found[0], is_ptx, tuple((n, d.name) for n, d in scalars))


class UserKernels:
    """Users' kernels loaded on one device."""

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._loaded: dict[Kernel, tuple[Any, Any]] = {}  # modules and functions

    def launch(
        self,
        kernel: Kernel,
        addresses: Sequence[int],
        scalars: dict[str, int | float],
        grid: Sequence[int],
        threads: int,
    ) -> None:
        """Run a kernel on a grid of blocks."""
        self._context.activate()
        self._context.early_results = {}
        found = self._loaded.get(kernel)
        if found is None:
            found = self._loaded[kernel] = self._load(kernel)
        arguments: list[Any] = [ctypes.c_uint64(a) for a in addresses]
        for name, dtype in kernel.scalars:
            arguments.append(np.ctypeslib.as_ctypes_type(np.dtype(dtype))(scalars[name]))
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(map(ctypes.addressof, arguments)))
        x, y, z = (*grid, 1, 1)[:3]
        driver.call(
            *("cuLaunchKernel", found[1], x, y, z, threads, 1, 1, 0, self._context.stream),
            *(ctypes.addressof(pointers), 0),
            doing=f"launching {kernel.name} on a grid of {x}x{y}x{z} blocks of {threads} threads",
        )
        self._context.written.forget()

    def _load(self, kernel: Kernel) -> tuple[Any, Any]:
        text = kernel.text if kernel.is_ptx else _compile(kernel, self._context.capability)
        data = text.encode() + b"\0"
        try:
            module = driver.call("cuModuleLoadData", data, doing=f"loading {kernel.name}")
            function = driver.call("cuModuleGetFunction", module, kernel.entry.encode())
        except driver.DriverError as error:
            message = f"{kernel.name}: the CUDA driver rejects the kernel: {error}\n{text}"
            raise CompileError(message) from None
        return module, function


def _compile(kernel: Kernel, capability: int) -> str:
    """CUDA C++ to PTX."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise DeviceError(
            f"{kernel.name}: CUDA C++ takes NVRTC (pip install nvidia-cuda-nvrtc), which could not "
            f"be imported ({error}); give PTX, or a portable kernel"
        ) from error
    options = [f"--gpu-architecture=compute_{capability}".encode(), b"--std=c++17"]
    options += [f"-I{folder}".encode() for folder in _headers()]
    code, program = nvrtc.nvrtcCreateProgram(kernel.text.encode(), kernel.name.encode(), 0, [], [])
    if int(code) != 0:
        raise DeviceError(f"{kernel.name}: NVRTC: {code}")
    (code,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(code) != 0:
        _, size = nvrtc.nvrtcGetProgramLogSize(program)
        log = b" " * size
        nvrtc.nvrtcGetProgramLog(program, log)
        message = log.rstrip(b"\0 ").decode(errors="replace")
        raise CompileError(f"{kernel.name}: NVRTC rejects the kernel:\n{message}\n{kernel.text}")
    _, size = nvrtc.nvrtcGetPTXSize(program)
    ptx = b" " * size
    nvrtc.nvrtcGetPTX(program, ptx)
    return str(ptx.rstrip(b"\0 ").decode())


def _headers() -> list[Path]:
    """Folders that may have CUDA's headers."""
    homes = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    return [Path(h) / "include" for h in homes if h and (Path(h) / "include").is_dir()]
