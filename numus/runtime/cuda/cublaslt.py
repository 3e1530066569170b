"""cuBLASLt, where it is installed: matrix products as NVIDIA's library does them.

The library comes with the wheel `nvidia-cublas`, with PyTorch, or with the CUDA toolkit; it is
looked for when a product first asks, and called through ctypes. Its matrices are column-major, so
it is asked for the transposed product: the right operand comes first.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from numus.errors import DeviceError
from numus.runtime.contract import NativeLaunch
from numus.runtime.cuda.vendor_source import BESIDE

if TYPE_CHECKING:
    from numus.runtime.cuda.runtime import CudaRuntime

# cudaDataType and cublasComputeType_t
_KINDS = {
    "float32": (0, 68),
    "float64": (1, 70),
    "float16": (2, 68),
    "bfloat16": (14, 68),
    "complex64": (4, 68),
    "complex128": (5, 70),
    "float8_e4m3fn": (28, 68),
}
_TF32 = 77  # the compute type for float32 that may be rounded
_RUN = 16  # bytes: 8-bit matrices have whole ones
_SCALES = {"float64": 1, "complex64": 4, "complex128": 5}  # of alpha and beta; 0: float32
_NARROW = ("float16", "bfloat16")  # may give float32, too
_BIASES = ("float16", "bfloat16", "float32")

# attributes: cublasLtMatmulDescAttributes_t, …LayoutAttribute_t, …PreferenceAttributes_t
_TRANSPOSE_A, _TRANSPOSE_B = 3, 4
_EPILOGUE, _BIAS_AT = 7, 8
_BIASED = 4  # the epilogue that adds a bias
_BATCH_COUNT, _BATCH_STRIDE = 5, 6
_WORKSPACE = 1
_ALIGNMENTS = (5, 6, 7, 8)  # of A, B, C, D
_MOST_WORKSPACE = 32 << 20
_ALIGNED = 16  # bytes: more than that gains nothing


class _Heuristic(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t"""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", ctypes.c_size_t),
        ("state", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    )


def knows(product: Any, target: Any) -> bool:
    """Whether it multiplies such matrices on a device of these target."""
    p = product
    if p.bias and p.result not in _BIASES:
        return False
    if p.dtype == "float8_e4m3fn":  # only lines along k, and not on older devices
        if not target.wgmma:
            return False
        lines = p.right.turned and not p.left.turned
        sizes = (p.m, p.n, p.k, p.left.line, p.right.line, p.left.offset, p.right.offset)
        whole = all(x % _RUN == 0 for x in (*sizes, p.left.step, p.right.step))
        return p.result in ("bfloat16", "float16", "float32") and lines and whole
    return p.dtype in _KINDS and (
        p.result == p.dtype or (p.dtype in _NARROW and p.result == "float32")
    )


@functools.cache
def library() -> Any:
    """The library, loaded; None where there is none."""
    return loaded("cublasLt", "cublasLtMatmulAlgoGetHeuristic")


def loaded(name: str, function: str) -> Any:
    """A library of NVIDIA's that has a function; None where there is none."""
    for find in (_by_pathfinder, _by_name):
        found = find(name)
        if found is not None and hasattr(found, function):
            return found
    return None


def _by_pathfinder(name: str) -> Any:
    try:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        return ctypes.CDLL(load_nvidia_dynamic_lib(name).abs_path)
    except (ImportError, OSError, RuntimeError):  # the last: it is nowhere to be found
        return None


def _by_name(name: str) -> Any:
    for full in (name, f"{name}64_13", f"{name}64_12"):
        path = ctypes.util.find_library(full)
        try:
            if path:
                return ctypes.CDLL(path)
        except OSError:
            continue
    return None


def _call(name: str, *args: Any) -> None:
    status = getattr(library(), name)(*args)
    if status != 0:
        raise DeviceError(f"cuda: {name}: cuBLAS status {status}")


class _Handle:
    """A thing of the library's that lives until it is let go."""

    def __init__(self, create: str, destroy: str, *args: Any) -> None:
        self.value = ctypes.c_void_p()
        self._destroy = getattr(library(), destroy)  # there to the end, when modules are gone
        _call(create, ctypes.byref(self.value), *args)

    def set(self, how: str, attribute: int, value: Any) -> None:
        _call(
            how, self.value, attribute, ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))
        )

    def __del__(self) -> None:
        if self.value:
            self._destroy(self.value)


@functools.cache
def _handle(device: int) -> _Handle:
    """The library's own state for a device, whose context is current."""
    return _Handle("cublasLtCreate", "cublasLtDestroy")


def _layout(kind: int, lines: int, length: int, line: int, batch: int, step: int) -> _Handle:
    """A matrix of lines, each contiguous: columns, as the library sees it."""
    made = _Handle(
        *("cublasLtMatrixLayoutCreate", "cublasLtMatrixLayoutDestroy", kind),
        *(ctypes.c_uint64(length), ctypes.c_uint64(lines), ctypes.c_int64(line)),
    )
    if batch > 1:
        set_ = "cublasLtMatrixLayoutSetAttribute"
        made.set(set_, _BATCH_COUNT, ctypes.c_int32(batch))
        made.set(set_, _BATCH_STRIDE, ctypes.c_int64(step))
    return made


_DESCRIBE = "cublasLtMatmulDescSetAttribute"


class Matmul:
    """One product, of fixed sizes, ready to be launched again and again."""

    def __init__(self, runtime: CudaRuntime, product: Any) -> None:
        runtime.activate()
        self._handle = _handle(runtime.index)
        self._stream = runtime.stream_id
        p = product
        kind, compute = _KINDS[p.dtype]
        if p.rounds:
            compute = _TF32
        scale = _SCALES.get(p.dtype, 0)
        self._description = _Handle(
            "cublasLtMatmulDescCreate", "cublasLtMatmulDescDestroy", compute, scale
        )
        for attribute, matrix in ((_TRANSPOSE_A, p.right), (_TRANSPOSE_B, p.left)):
            turned = ctypes.c_int32(1 if matrix.turned else 0)
            self._description.set(_DESCRIBE, attribute, turned)
        self._bias = p.bias
        if p.bias:  # algorithms are sought before it is known where it lies
            self._description.set(_DESCRIBE, _EPILOGUE, ctypes.c_uint32(_BIASED))
            self._description.set(_DESCRIBE, _BIAS_AT, ctypes.c_uint64(1 << 16))

        def operand(matrix: Any, rows: int, columns: int) -> _Handle:
            lines, length = (columns, rows) if matrix.turned else (rows, columns)
            return _layout(kind, lines, length, matrix.line, p.batch, matrix.step)

        self._left, self._right = operand(p.left, p.m, p.k), operand(p.right, p.k, p.n)
        self._result = _layout(_KINDS[p.result][0], p.m, p.n, p.n, p.batch, p.m * p.n)
        self._offsets = [x.offset * _itemsize(p.dtype) for x in (p.left, p.right)]
        number = ctypes.c_double if scale in (1, 5) else ctypes.c_float
        count = 2 if scale in (4, 5) else 1
        self._one, self._zero = (number * count)(1), (number * count)(0)
        self._algorithms: dict[int, _Heuristic] = {}
        self.workspace = self._algorithm(_ALIGNED).workspace
        # what a launch is given, as plain numbers: converting them anew would cost more than it
        self._fixed = [
            x.value.value for x in (self._handle, self._description, self._right, self._left)
        ]
        self._result_at = self._result.value.value
        self._numbers = ctypes.addressof(self._one), ctypes.addressof(self._zero)
        arguments = self._arguments(0, 0, 0, self._algorithm(_ALIGNED), 0)
        function = ctypes.cast(_matmul(), ctypes.c_void_p).value or 0
        left, right = self._offsets
        out = 3 if p.bias else 2  # among the buffers; the workspace follows it
        addresses = [(3, 1, right), (5, 0, left), (8, out, 0), (10, out, 0), (13, out + 1, 0)]
        prior = None
        if p.bias:
            addresses.append((BESIDE, 2, 0))
            tell = ctypes.cast(getattr(library(), _DESCRIBE), ctypes.c_void_p).value or 0
            description = self._description.value.value or 0
            prior = (tell, description, _BIAS_AT, ctypes.sizeof(ctypes.c_void_p))
        self.native = NativeLaunch(function, tuple(arguments), tuple(addresses), prior)

    def _arguments(
        self, left: int, right: int, result: int, algorithm: _Heuristic, workspace: int
    ) -> list[int]:
        """What the library's function is given."""
        handle, description, right_is, left_is = self._fixed
        result_is, (one, zero) = self._result_at, self._numbers
        return [
            *(handle, description, one, right, right_is, left, left_is, zero),
            *(result, result_is, result, result_is, ctypes.addressof(algorithm)),
            *(workspace, algorithm.workspace, self._stream),
        ]

    def _algorithm(self, alignment: int) -> _Heuristic:
        """What the library thinks best for memory that is aligned so."""
        found = self._algorithms.get(alignment)
        if found is not None:
            return found
        wish = _Handle("cublasLtMatmulPreferenceCreate", "cublasLtMatmulPreferenceDestroy")
        set_ = "cublasLtMatmulPreferenceSetAttribute"
        most = self.workspace if self._algorithms else _MOST_WORKSPACE
        wish.set(set_, _WORKSPACE, ctypes.c_uint64(most))
        for attribute in _ALIGNMENTS:
            wish.set(set_, attribute, ctypes.c_uint32(alignment))
        found, count = _Heuristic(), ctypes.c_int(0)
        a, b, d = self._right.value, self._left.value, self._result.value
        _call(
            *("cublasLtMatmulAlgoGetHeuristic", self._handle.value, self._description.value),
            *(a, b, d, d, wish.value, 1, ctypes.byref(found), ctypes.byref(count)),
        )
        if count.value == 0:
            raise DeviceError(
                "cuda: cuBLAS has no algorithm for a product; prefer('native') does it"
            )
        self._algorithms[alignment] = found
        return found

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch on the runtime's stream."""
        left, right = addresses[0] + self._offsets[0], addresses[1] + self._offsets[1]
        result = addresses[-1]
        together = left | right | result | _ALIGNED
        if self._bias:
            together |= addresses[2]
            self._description.set(_DESCRIBE, _BIAS_AT, ctypes.c_uint64(addresses[2]))
        algorithm = self._algorithm(together & -together)
        status = _matmul()(*self._arguments(left, right, result, algorithm, workspace))
        if status != 0:
            raise DeviceError(f"cuda: cublasLtMatmul: cuBLAS status {status}")


@functools.lru_cache(4096)
def has_algorithm(product: Any) -> bool:
    """Whether the library finds a way to do it: not all that it might know comes with it."""
    from numus.runtime import get

    try:
        Matmul(get("cuda"), product)
    except DeviceError:
        return False
    return True


@functools.cache
def _matmul() -> Any:
    """The function that launches, told what it takes."""
    function = library().cublasLtMatmul
    word = ctypes.c_void_p
    function.argtypes = [*[word] * 14, ctypes.c_size_t, word]
    return function


def _itemsize(dtype: str) -> int:
    return {"float8_e4m3fn": 1, "float16": 2, "bfloat16": 2, "float32": 4, "complex128": 16}.get(
        dtype, 8
    )
