"""cuSOLVER's dense factorisations, where the library is installed.

It comes with the wheel `nvidia-cusolver`, with PyTorch, or with the CUDA toolkit, and is called
through ctypes, a matrix of a stack after the other. Its matrices are column-major: row-major ones
are their transposes, so that triangles and sides change places, as for LAPACK on CPUs
(`runtime/cpu/lapack.py`). It may wait for the device, so it is never captured in a graph.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from numus import dtypes as dt
from numus.errors import DeviceError
from numus.runtime.cuda import cublas, driver
from numus.runtime.cuda.context import CudaContext
from numus.runtime.cuda.cublaslt import load
from numus.runtime.lapack_routines import Routine, operand_lengths, segments
from numus.runtime.locks import once

_LETTERS = {"float32": "S", "float64": "D", "complex64": "C", "complex128": "Z"}
_TYPES = {"float32": 0, "float64": 1, "complex64": 4, "complex128": 5}  # cudaDataType
_LOWER, _UPPER = 0, 1  # cublasFillMode_t
_NORMAL, _TRANSPOSED, _ADJOINT = 0, 1, 2  # cublasOperation_t
_RIGHT = 1  # cublasSideMode_t
_MAX_EXTENT = 1 << 15  # n² elements stay in range of int32
_ALIGNMENT = 256  # bytes, of parts of the workspace
_UNKNOWN = 1 << 16  # an address, where sizes are asked for and none is read


def is_supported(r: Routine) -> bool:
    """Whether the library has the routine for such matrices."""
    return r.name in _WRITERS and r.dtype in _TYPES and max(r.m, r.n, r.columns) <= _MAX_EXTENT


@once
def library() -> Any:
    """The loaded library; None where there is none."""
    return load("cusolver", "cusolverDnXsyevd")


class Address(NamedTuple):
    """A byte of an operand ("in0", "in1"), of the result ("out") or of the workspace ("work"), of
    the first matrix."""

    place: str
    offset: int = 0


class Call(NamedTuple):
    """A function with its arguments: addresses, and values of ctypes."""

    function: Callable[..., Any]
    name: str
    arguments: Sequence[Any]


@once
def _handle(context: CudaContext) -> tuple[Any, Any]:
    """A cuSOLVER handle on a device's stream, and default parameters."""
    handle, parameters = ctypes.c_void_p(), ctypes.c_void_p()
    _check("cusolverDnCreate", library().cusolverDnCreate(ctypes.byref(handle)))
    stream = ctypes.c_void_p(context.stream_id)
    _check("cusolverDnSetStream", library().cusolverDnSetStream(handle, stream))
    made = library().cusolverDnCreateParams(ctypes.byref(parameters))
    _check("cusolverDnCreateParams", made)
    return handle, parameters


def _check(name: str, status: int) -> None:
    if status != 0:
        raise DeviceError(f"cuda: {name}: status {status}")


def _int(n: int) -> Any:
    return ctypes.c_int(n)


def _long(n: int) -> Any:
    return ctypes.c_int64(n)


class _Writer:
    """The calls of one routine of one matrix."""

    def __init__(self, context: CudaContext, r: Routine) -> None:
        self.r, self.context = r, context
        self.dtype = dt.as_dtype(r.dtype)
        self.size, self.complex = self.dtype.itemsize, self.dtype.is_complex
        self.real_size = self.size // (1 + self.complex)
        self.letter = _LETTERS[r.dtype]
        self.type = _int(_TYPES[r.dtype])
        self.real_type = _int(_TYPES[dt.real_of(self.dtype).name])
        self.handle, self.parameters = _handle(context)
        self.calls: list[Call] = []
        self.kept: list[Any] = []  # memory that calls are given the addresses of
        self.workspace = 0
        self.at: dict[str, Address] = {}
        start = 0
        for segment in segments(r, self.complex):
            self.at[segment.name] = Address("out", start * self.size)
            start += segment.elements(self.dtype)
        self.result_nbytes = start * self.size

    def take(self, nbytes: int) -> Address:
        """A part of the workspace."""
        start = self.workspace
        self.workspace += -(-max(nbytes, 1) // _ALIGNMENT) * _ALIGNMENT
        return Address("work", start)

    def copy(self, to: Address, source: Address, nbytes: int) -> None:
        def copied(to: Any, source: Any) -> int:
            given = (to.value, source.value, nbytes, self.context.stream)
            driver.call("cuMemcpyDtoDAsync", *given)
            return 0

        self.calls.append(Call(copied, "cuMemcpyDtoDAsync", (to, source)))

    def call(self, name: str, *arguments: Any) -> None:
        function = getattr(library(), name)
        self.calls.append(Call(function, name, (self.handle, *arguments)))

    def blas(self, name: str, *arguments: Any) -> None:
        name = f"cublas{self.letter}{name}"
        function = getattr(cublas.library(), name)
        handle = ctypes.c_void_p(cublas.handle(self.context)[0])
        self.calls.append(Call(function, name, (handle, *arguments)))

    def adjoint(self, to: Address, source: Address, rows: int, columns: int) -> None:
        """Store the adjoint, a matrix of `rows` and `columns`."""
        out = to, _int(rows)
        given = [_int(_ADJOINT), _int(_NORMAL), _int(rows), _int(columns), self.number(1.0), source]
        self.blas("geam", *given, _int(columns), self.number(0.0), *out, *out)

    def typed(self, name: str) -> str:
        """The name of a function for the dtype."""
        return f"cusolverDn{self.letter}{name}"

    def elements(self, name: str, *arguments: Any, more: Sequence[Any] = ()) -> tuple[Address, Any]:
        """The workspace of a function, and its number of elements."""
        count = ctypes.c_int()
        function = getattr(library(), f"{name}_bufferSize")
        _check(name, function(self.handle, *map(_asked, arguments), ctypes.byref(count), *more))
        return self.take(count.value * self.size), count

    def bytes(self, name: str, *arguments: Any) -> list[Any]:
        """The workspaces of a function of the 64-bit interface, on the device and on the host."""
        device, host = ctypes.c_size_t(), ctypes.c_size_t()
        function = getattr(library(), f"{name}_bufferSize")
        sizes = ctypes.byref(device), ctypes.byref(host)
        _check(name, function(self.handle, *map(_asked, arguments), *sizes))
        self.kept.append(ctypes.create_string_buffer(max(host.value, 1)))
        near = ctypes.c_void_p(ctypes.addressof(self.kept[-1]))
        return [self.take(device.value), device, near, host]

    def number(self, value: float) -> Any:
        """The address of a scalar of the matrix's dtype, on the host."""
        kind = ctypes.c_float if self.real_size == 4 else ctypes.c_double
        self.kept.append((kind * 2)(value, 0.0))
        return ctypes.c_void_p(ctypes.addressof(self.kept[-1]))


def _asked(argument: Any) -> Any:
    """An argument of a function that is asked for a size."""
    return ctypes.c_void_p(_UNKNOWN) if isinstance(argument, Address) else argument


def _cholesky(w: _Writer) -> None:
    """Of the lower triangle of a copy that is column-major, as the factor is then: the library is
    twice as fast as with upper triangles."""
    n = w.r.n
    work = w.take(n * n * w.size)
    given = [w.parameters, _int(_LOWER), _long(n), w.type, work, _long(n), w.type]
    w.adjoint(work, Address("in0"), n, n)
    w.call("cusolverDnXpotrf", *given, *w.bytes("cusolverDnXpotrf", *given), w.at["info"])
    w.adjoint(w.at["factor"], work, n, n)


def _eliminate(w: _Writer, factor: Address, swaps: Address) -> None:
    m, n = w.r.m, w.r.n
    w.copy(factor, Address("in0"), m * n * w.size)
    name = w.typed("getrf")
    given = [_int(m), _int(n), factor, _int(m)]
    space, _ = w.elements(name, *given)
    w.call(name, *given, space, swaps, w.at["info"])


def _lu(w: _Writer) -> None:
    """Of the transposed matrix: it is given column-major."""
    _eliminate(w, w.at["factor"], w.at["swaps"])


def _system(w: _Writer) -> None:
    """By the factors of the transposed matrix."""
    n, columns = w.r.n, w.r.columns
    factor, swaps = w.take(n * n * w.size), w.take(4 * n)
    _eliminate(w, factor, swaps)
    w.copy(w.at["x"], Address("in1"), n * columns * w.size)
    given = [_int(_TRANSPOSED), _int(n), _int(columns), factor, _int(n), swaps, w.at["x"], _int(n)]
    w.call(w.typed("getrs"), *given, w.take(4))


def _order(w: _Writer) -> None:
    """Numbers of rows, as the bits of float32, swapped as rows are."""
    rows, count = int(w.r.option), w.r.m
    memory = w.context.allocate(4 * rows)
    w.context.upload(memory, np.arange(rows, dtype=np.int32))  # type: ignore[attr-defined]
    w.kept.append(memory)
    w.copy(w.at["order"], Address("", memory.address), 4 * rows)
    given = [_int(1), w.at["order"], _int(rows), _int(1), _int(count), Address("in0"), _int(1)]
    w.call("cusolverDnSlaswp", *given)


def _qr(w: _Writer) -> None:
    m, n, columns = w.r.m, w.r.n, int(w.r.option)
    k = min(m, n)
    tau = w.take(k * w.size)
    w.copy(w.at["r"], Address("in0"), m * n * w.size)
    given = [w.parameters, _long(m), _long(n), w.type, w.at["r"], _long(m), w.type, tau, w.type]
    space = w.bytes("cusolverDnXgeqrf", *given)
    w.call("cusolverDnXgeqrf", *given, *space, w.at["info"])
    if columns:
        count = min(k, columns)
        w.copy(w.at["q"], w.at["r"], m * count * w.size)
        name = w.typed("ungqr" if w.complex else "orgqr")
        sizes = [_int(m), _int(columns), _int(count), w.at["q"], _int(m), tau]
        w.call(name, *sizes, *w.elements(name, *sizes), w.at["info"])


def _eigh(w: _Writer) -> None:
    n, vectors = w.r.n, _int(int(w.r.option))
    w.copy(w.at["vectors"], Address("in0"), n * n * w.size)
    given = [w.parameters, vectors, _int(_UPPER), _long(n), w.type, w.at["vectors"], _long(n)]
    given += [w.real_type, w.at["values"], w.type]
    w.call("cusolverDnXsyevd", *given, *w.bytes("cusolverDnXsyevd", *given), w.at["info"])


def _svd(w: _Writer) -> None:
    """By Jacobi rotations (gesvdj), of the transposed matrix, whose U and V change places. It gives
    V, and the result takes its adjoint."""
    rows, columns, job = w.r.n, w.r.m, str(w.r.option)
    wide = rows if job == "A" else columns
    copy, right = (w.take(n * columns * w.size) for n in (rows, columns))
    left = w.take(rows * columns * w.size) if job == "N" else w.at["vh"]
    w.copy(copy, Address("in0"), rows * columns * w.size)
    given = [_int(job != "N"), _int(job != "A"), _int(rows), _int(columns), copy, _int(rows)]
    given += [w.at["s"], left, _int(rows), right, _int(columns)]
    name, how = w.typed("gesvdj"), _jacobi(w)
    w.call(name, *given, *w.elements(name, *given, more=[how]), w.at["info"], how)
    if job != "N":
        narrow = min(wide, columns)
        w.adjoint(w.at["u"], right, narrow, columns)


def _jacobi(w: _Writer) -> Any:
    """Parameters of gesvdj: a tolerance of one rounding error."""
    made = ctypes.c_void_p()
    create, set_ = library().cusolverDnCreateGesvdjInfo, library().cusolverDnXgesvdjSetTolerance
    _check("cusolverDnCreateGesvdjInfo", create(ctypes.byref(made)))
    epsilon = float(np.finfo(dt.real_of(w.dtype).np).eps)
    _check("cusolverDnXgesvdjSetTolerance", set_(made, ctypes.c_double(epsilon)))
    return made


def _solve(w: _Writer) -> None:
    """Xᵀ Aᵀ = Bᵀ."""
    n, columns, option = w.r.n, w.r.columns, int(w.r.option)
    w.copy(w.at["x"], Address("in1"), n * columns * w.size)
    uplo = _UPPER if option & 1 else _LOWER
    given = [_int(_RIGHT), _int(uplo), _int(_NORMAL), _int(option >> 1), _int(columns), _int(n)]
    given += [w.number(1.0), Address("in0"), _int(n), w.at["x"], _int(columns)]
    w.blas("trsm_v2", *given)


_WRITERS: dict[str, Callable[[_Writer], None]] = {
    **{"cholesky": _cholesky, "lu": _lu, "system": _system, "order": _order, "qr": _qr},
    **{"eigh": _eigh, "svd": _svd, "solve": _solve},
}


class Factorisation:
    """A launcher of one routine of a stack of matrices."""

    is_capturable = False

    def __init__(self, context: CudaContext, r: Routine) -> None:
        context.activate()
        self._context, self._batch = context, r.batch
        self._writer = w = _Writer(context, r)
        _WRITERS[r.name](w)
        self.workspace = w.workspace
        operands = operand_lengths(r)
        names = ["out", *(f"in{i}" for i in range(len(operands)))]
        strides = [w.result_nbytes, *(n * w.size for n in operands)]
        self._strides = dict(zip(names, strides, strict=True))

    def __call__(self, addresses: Sequence[int], workspace: int) -> None:
        """Launch on the device's stream."""
        *operands, out = addresses
        first = {"out": out, "work": workspace, "": 0}
        first.update((f"in{i}", address) for i, address in enumerate(operands))
        for i in range(self._batch):
            base = {name: start + i * self._strides.get(name, 0) for name, start in first.items()}
            for function, name, arguments in self._writer.calls:
                given = [
                    ctypes.c_void_p(base[a.place] + a.offset) if isinstance(a, Address) else a
                    for a in arguments
                ]
                _check(name, function(*given))
