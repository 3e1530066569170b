"""cuBLASLt matmul, where the library is installed.

It comes with the wheel `nvidia-cublas`, with PyTorch, or with the CUDA toolkit, and is called
through ctypes. Its matrices are column-major, so it computes the transposed matmul: the right
operand comes first.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import functools
from collections.abc import Iterator, Sequence
from typing import Any

from numus.errors import DeviceError
from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda.context import CudaContext
from numus.runtime.cuda.vendor_source import EXTRA_WORD
from numus.runtime.llvm_macros import function_address
from numus.runtime.locks import once

# cudaDataType and cublasComputeType_t
_TYPES = {
    **{"float32": (0, 68), "float64": (1, 70), "float16": (2, 68), "bfloat16": (14, 68)},
    **{"complex64": (4, 68), "complex128": (5, 70), "float8_e4m3fn": (28, 68)},
}
_TF32 = 77  # compute type: float32 rounded to TF32
_FP8_ALIGNMENT = 16  # elements, of all sizes and strides
_SCALES = {"float64": 1, "complex64": 4, "complex128": 5}  # of alpha and beta; 0: float32
_HALF_TYPES = ("float16", "bfloat16")  # their results may be float32
_BIAS_TYPES = ("float16", "bfloat16", "float32")

# attributes: cublasLtMatmulDescAttributes_t, …LayoutAttribute_t, …PreferenceAttributes_t
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_EPILOGUE, _BIAS_POINTER = 7, 8
_EPILOGUE_BIAS = 4
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_WORKSPACE = 1
_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C, D
_MAX_WORKSPACE_BYTES = 32 << 20
_ALIGNMENT = 16  # bytes: more gains nothing


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def is_supported(p: Any, target: Any) -> bool:
    """Whether the library has this matmul on such a target."""
    if p.bias and p.result not in _BIAS_TYPES:
        return False
    if p.dtype == "float8_e4m3fn":  # Hopper, both operands K-major
        if not target.wgmma:
            return False
        k_major = p.b.transposed and not p.a.transposed
        sizes = (p.m, p.n, p.k, p.a.ld, p.b.ld, p.a.offset, p.b.offset)
        aligned = all(x % _FP8_ALIGNMENT == 0 for x in (*sizes, p.a.batch_stride, p.b.batch_stride))
        return p.result in ("bfloat16", "float16", "float32") and k_major and aligned
    return p.dtype in _TYPES and (
        p.result == p.dtype or (p.dtype in _HALF_TYPES and p.result == "float32")
    )


@once
def library() -> Any:
    """The loaded library; None where there is none."""
    found = load("cublasLt", "cublasLtMatmulAlgoGetHeuristic")
    if found is not None:
        found.cublasLtMatmul.argtypes = [*[ctypes.c_void_p] * 14, ctypes.c_size_t, ctypes.c_void_p]
    return found


def load(name: str, function: str) -> Any:
    """An NVIDIA library that exports a function; None where there is none."""
    for path in _paths(name):
        with contextlib.suppress(OSError):
            found = ctypes.CDLL(path)
            if hasattr(found, function):
                return found
    return None


def _paths(name: str) -> Iterator[str]:
    with contextlib.suppress(ImportError, OSError, RuntimeError):  # the last: not found
        from cuda.pathfinder import load_nvidia_dynamic_lib

        yield load_nvidia_dynamic_lib(name).abs_path
    names = (name, *(f"{name}64_{version}" for version in (13, 12, 11)))
    yield from filter(None, map(ctypes.util.find_library, names))


def call(library: Any, name: str, *args: Any) -> None:
    """Call a library's function and check its status."""
    status = getattr(library, name)(*args)
    if status != 0:
        raise DeviceError(f"cuda: {name}: cuBLAS status {status}")


class _Handle:
    """An object of the library, destroyed with this one."""

    def __init__(self, create: str, destroy: str, *args: Any) -> None:
        self.value = ctypes.c_void_p()
        self._destroy = getattr(library(), destroy)  # kept: modules may be gone at exit
        call(library(), create, ctypes.byref(self.value), *args)

    def set(self, how: str, attribute: int, value: Any) -> None:
        size = ctypes.c_size_t(ctypes.sizeof(value))
        call(library(), how, self.value, attribute, ctypes.byref(value), size)

    def __del__(self) -> None:
        if self.value:
            self._destroy(self.value)


@once
def _handle(device: int) -> _Handle:
    """The handle of a device, whose context is current."""
    return _Handle("cublasLtCreate", "cublasLtDestroy")


def _layout(type_: int, lines: int, length: int, ld: int, batch: int, stride: int) -> _Handle:
    """The layout of a matrix of contiguous lines, which are columns to the library."""
    made = _Handle(
        *("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", type_),
        *(ctypes.c_uint64(length), ctypes.c_uint64(lines), ctypes.c_int64(ld)),
    )
    if batch > 1:
        set_ = "cublasLtMatrixLayoutSetAttribute"
        made.set(set_, _BATCH_COUNT, ctypes.c_int32(batch))
        made.set(set_, _BATCH_STRIDE, ctypes.c_int64(stride))
    return made


_DESCRIBE = "cublasLtMatmulDescSetAttribute"


class Matmul:
    """A launcher of one matmul of fixed sizes."""

    def __init__(self, context: CudaContext, p: Any) -> None:
        context.activate()
        self._handle = _handle(context.index)
        self._stream = context.stream_id
        type_, compute = _TYPES[p.dtype]
        if p.tf32:
            compute = _TF32
        scale = _SCALES.get(p.dtype, 0)
        self._description = _Handle(
            "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", compute, scale
        )
        for attribute, matrix in ((_TRANSPOSE_A, p.b), (_TRANSPOSE_B, p.a)):
            transposed = ctypes.c_int32(1 if matrix.transposed else 0)
            self._description.set(_DESCRIBE, attribute, transposed)
        self._bias = p.bias
        if p.bias:  # the heuristic needs some address before it is known
            self._description.set(_DESCRIBE, _EPILOGUE, ctypes.c_uint32(_EPILOGUE_BIAS))
            self._description.set(_DESCRIBE, _BIAS_POINTER, ctypes.c_uint64(1 << 16))

        def operand(matrix: Any, rows: int, columns: int) -> _Handle:
            lines, length = (columns, rows) if matrix.transposed else (rows, columns)
            return _layout(type_, lines, length, matrix.ld, p.batch, matrix.batch_stride)

        self._left, self._right = operand(p.a, p.m, p.k), operand(p.b, p.k, p.n)
        self._result = _layout(_TYPES[p.result][0], p.m, p.n, p.n, p.batch, p.m * p.n)
        self._offsets = [x.offset * _ITEM_BYTES.get(p.dtype, 8) for x in (p.a, p.b)]
        real = ctypes.c_double if scale in (1, 5) else ctypes.c_float
        scalar = real * (2 if scale in (4, 5) else 1)
        self._one, self._zero = scalar(1), scalar(0)
        self._algorithms: dict[int, _Heuristic] = {}
        self.workspace = self._algorithm(_ALIGNMENT).workspace
        # plain integers: converting them at every launch would cost more than the launch
        self._handles = [
            x.value.value for x in (self._handle, self._description, self._right, self._left)
        ]
        self._result_layout = self._result.value.value
        self._scalars = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        arguments = self._arguments(0, 0, 0, self._algorithm(_ALIGNMENT), 0)
        function = function_address(library().cublasLtMatmul)
        left, right = self._offsets
        out = 3 if p.bias else 2  # index of the result; the workspace follows
        addresses = [(3, 1, right), (5, 0, left), (8, out, 0), (10, out, 0), (13, out + 1, 0)]
        setter = None
        if p.bias:
            addresses.append((EXTRA_WORD, 2, 0))
            describe = function_address(getattr(library(), _DESCRIBE))
            description = self._description.value.value or 0
            setter = (describe, description, _BIAS_POINTER, ctypes.sizeof(ctypes.c_void_p))
        self.native = NativeLaunch(function, tuple(arguments), tuple(addresses), setter)

    def _arguments(
        self, left: int, right: int, result: int, algorithm: _Heuristic, workspace: int
    ) -> list[int]:
        """The arguments of cublasLtMatmul."""
        handle, description, right_layout, left_layout = self._handles
        result_layout, (one, zero) = self._result_layout, self._scalars
        return [
            *(handle, description, one, right, right_layout, left, left_layout, zero),
            *(result, result_layout, result, result_layout, ctypes.addressof(algorithm)),
            *(workspace, algorithm.workspace, self._stream),
        ]

    def _algorithm(self, alignment: int) -> _Heuristic:
        """The library's choice for memory of this alignment."""
        found = self._algorithms.get(alignment)
        if found is not None:
            return found
        preference = _Handle("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
        set_ = "cublasLtMatmulPreferenceSetAttribute"
        limit = self.workspace if self._algorithms else _MAX_WORKSPACE_BYTES
        preference.set(set_, _WORKSPACE, ctypes.c_uint64(limit))
        for attribute in _ALIGNMENTS:
            preference.set(set_, attribute, ctypes.c_uint32(alignment))
        found, count = _Heuristic(), ctypes.c_int(0)
        a, b, d = self._right.value, self._left.value, self._result.value
        call(
            library(),
            *("cublasLtMatmulAlgoGetHeuristic", self._handle.value, self._description.value),
            *(a, b, d, d, preference.value, 1, ctypes.byref(found), ctypes.byref(count)),
        )
        if count.value == 0:
            raise DeviceError(
                "cuda: cuBLAS has no algorithm for a matmul; use nm.kernels.prefer('native')"
            )
        self._algorithms[alignment] = found
        return found

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch on the device's stream."""
        left, right = addresses[0] + self._offsets[0], addresses[1] + self._offsets[1]
        result = addresses[-1]
        bits = left | right | result | _ALIGNMENT
        if self._bias:
            bits |= addresses[2]
            self._description.set(_DESCRIBE, _BIAS_POINTER, ctypes.c_uint64(addresses[2]))
        algorithm = self._algorithm(bits & -bits)
        arguments = self._arguments(left, right, result, algorithm, workspace)
        call(library(), "cublasLtMatmul", *arguments)


@functools.lru_cache(4096)
def has_algorithm(problem: Any) -> bool:
    """Whether the installed library has an algorithm on the device started last."""
    if CudaContext.latest is None:
        return False
    try:
        Matmul(CudaContext.latest, problem)
    except DeviceError:
        return False
    return True


_ITEM_BYTES = {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4, "complex128": 16}
