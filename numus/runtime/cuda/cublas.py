"""cuBLAS, where it is installed: a vector times a matrix across whose lines is summed.

cuBLASLt proposes kernels for larger products only, which read such a matrix less quickly.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numus.errors import DeviceError
from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda.cublaslt import loaded

if TYPE_CHECKING:
    from numus.runtime.cuda.runtime import CudaRuntime

_FUNCTIONS = {"float32": "cublasSgemm_v2", "float64": "cublasDgemm_v2"}
_NUMBERS = {"float32": ctypes.c_float, "float64": ctypes.c_double}
_WORKSPACE = 4 << 20


def knows(product: Any) -> bool:
    """Whether it is a vector times a matrix, each number of the result a sum across lines."""
    p = product
    across = p.m == 1 and not p.right.turned
    across |= p.n == 1 and p.left.turned
    return bool(
        across
        and p.batch == 1
        and max(p.m, p.n, p.k, p.left.line, p.right.line) < 1 << 31  # what its numbers hold
        and max(p.m, p.n) > 1
        and p.dtype in _FUNCTIONS
        and p.result == p.dtype
        and not p.rounds
        and not p.bias
    )


@functools.cache
def library() -> Any:
    """The library, loaded; None where there is none."""
    return loaded("cublas", "cublasSgemm_v2")


@functools.cache
def _handle(device: int, runtime: CudaRuntime) -> tuple[int, Any]:
    """The library's own state for a device, on its runtime's stream, and the memory it may use."""
    handle = ctypes.c_void_p()
    memory = runtime.allocate(_WORKSPACE)
    stream, size = ctypes.c_void_p(runtime.stream_id), ctypes.c_size_t(_WORKSPACE)
    _check("cublasCreate_v2", library().cublasCreate_v2(ctypes.byref(handle)))
    _check("cublasSetStream_v2", library().cublasSetStream_v2(handle, stream))
    at = ctypes.c_void_p(memory.address)
    _check("cublasSetWorkspace_v2", library().cublasSetWorkspace_v2(handle, at, size))
    return handle.value or 0, memory


def _check(name: str, status: int) -> None:
    if status != 0:
        raise DeviceError(f"cuda: {name}: cuBLAS status {status}")


class VectorProduct:
    """One such product, of fixed sizes, ready to be launched again and again."""

    workspace = 0

    def __init__(self, runtime: CudaRuntime, product: Any) -> None:
        p = product
        runtime.activate()
        handle, self._memory = _handle(runtime.index, runtime)
        rows = p.m == 1  # else the vector is the right operand
        vector, matrix = (p.left, p.right) if rows else (p.right, p.left)
        count = p.n if rows else p.m
        step = 1 if rows and not vector.turned else vector.line  # from one number to the next
        number = _NUMBERS[p.dtype]
        self._one, self._zero = number(1), number(0)
        sizes = (count, 1, p.k)
        one, zero = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        self._arguments = [
            *(handle, 0, 0 if step == 1 else 1, *sizes, one, 0, matrix.line),
            *(0, p.k if step == 1 else step, zero, 0, count, 0, 0),
        ]
        self._name = _FUNCTIONS[p.dtype]
        self._function = getattr(library(), self._name)
        word, small = ctypes.c_void_p, ctypes.c_int
        self._function.argtypes = [
            *(word, small, small, small, small, small, word, word, small),
            *(word, small, word, word, small),
        ]
        size = ctypes.sizeof(number)
        own, other = (1, 0) if rows else (0, 1)  # among the buffers: the matrix, the vector
        self._places = (
            (7, own, matrix.offset * size),
            (9, other, vector.offset * size),
            (12, 2, 0),
        )
        address = ctypes.cast(self._function, ctypes.c_void_p).value or 0
        self.native = NativeLaunch(address, tuple(self._arguments), self._places)

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch on the runtime's stream."""
        arguments = list(self._arguments)
        for word, buffer, offset in self._places:
            arguments[word] = addresses[buffer] + offset
        _check(self._name, self._function(*arguments[:14]))
