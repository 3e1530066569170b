"""cuBLAS GEMV, where it is installed: a vector times a matrix that is not K-major.

cuBLASLt offers only GEMM kernels for it, which read such a matrix more slowly.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda.context import CudaContext
from numus.runtime.cuda.cublaslt import call, load
from numus.runtime.llvm_macros import function_address
from numus.runtime.locks import once

_FUNCTIONS = {"float32": "cublasSgemm_v2", "float64": "cublasDgemm_v2"}
_SCALARS = {"float32": ctypes.c_float, "float64": ctypes.c_double}
_WORKSPACE_BYTES = 4 << 20


def is_supported(p: Any) -> bool:
    """Whether a matmul is a vector times a matrix whose rows are along the result (MN-major)."""
    return bool(
        ((p.m == 1 and not p.b.transposed) or (p.n == 1 and p.a.transposed))
        and p.batch == 1
        and max(p.m, p.n, p.k, p.a.ld, p.b.ld) < 1 << 31  # its sizes are int32
        and max(p.m, p.n) > 1
        and p.dtype in _FUNCTIONS
        and p.result == p.dtype
        and not p.tf32
        and not p.bias
    )


@once
def library() -> Any:
    """The loaded library; None where there is none."""
    return load("cublas", "cublasSgemm_v2")


@once
def handle(context: CudaContext) -> tuple[int, Any]:
    """A cuBLAS handle on a device's stream, and its workspace."""
    made = ctypes.c_void_p()
    memory = context.allocate(_WORKSPACE_BYTES)
    stream, size = ctypes.c_void_p(context.stream_id), ctypes.c_size_t(_WORKSPACE_BYTES)
    call(library(), "cublasCreate_v2", ctypes.byref(made))
    call(library(), "cublasSetStream_v2", made, stream)
    call(library(), "cublasSetWorkspace_v2", made, ctypes.c_void_p(memory.address), size)
    return made.value or 0, memory


class Gemv:
    """A launcher of one matmul of fixed sizes."""

    workspace = 0

    def __init__(self, context: CudaContext, p: Any) -> None:
        context.activate()
        library_handle, self._memory = handle(context)
        rows = p.m == 1  # else the vector is the right operand
        vector, matrix = (p.a, p.b) if rows else (p.b, p.a)
        count = p.n if rows else p.m
        stride = 1 if rows and not vector.transposed else vector.ld
        scalar = _SCALARS[p.dtype]
        self._one, self._zero = scalar(1), scalar(0)
        sizes = (count, 1, p.k)
        one, zero = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        self._arguments = [
            *(library_handle, 0, 0 if stride == 1 else 1, *sizes, one, 0, matrix.ld),
            *(0, p.k if stride == 1 else stride, zero, 0, count, 0, 0),
        ]
        self._name = _FUNCTIONS[p.dtype]
        function = getattr(library(), self._name)
        word, int_ = ctypes.c_void_p, ctypes.c_int
        function.argtypes = [
            *(word, int_, int_, int_, int_, int_, word, word, int_),
            *(word, int_, word, word, int_),
        ]
        size = ctypes.sizeof(scalar)
        a, b = (1, 0) if rows else (0, 1)  # indices of the matrix and the vector
        self._addresses = ((7, a, matrix.offset * size), (9, b, vector.offset * size), (12, 2, 0))
        address = function_address(function)
        self.native = NativeLaunch(address, tuple(self._arguments), self._addresses)

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch on the device's stream."""
        arguments = list(self._arguments)
        for word, buffer, offset in self._addresses:
            arguments[word] = addresses[buffer] + offset
        call(library(), self._name, *arguments[:14])
