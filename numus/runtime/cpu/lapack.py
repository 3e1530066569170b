"""LAPACK and BLAS through the function pointers that SciPy exports, where it is installed.

A program is a loop over the matrices of a batch, in LLVM IR, that calls the library for each: no
Python runs between two matrices. Row-major matrices are the library's column-major ones transposed,
so that triangles and sides change places.
"""

from __future__ import annotations

import ctypes
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from numus import dtypes as dt
from numus.runtime.lapack_routines import Routine, operand_lengths, segments
from numus.runtime.llvm_macros import expand
from numus.runtime.locks import once

if TYPE_CHECKING:
    from numus.runtime.cpu.jit import LoadedCode
    from numus.runtime.cpu.runtime import CpuRuntime

_LETTERS = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}
_MAX_EXTENT = 1 << 15  # n² elements stay in range of the library's int32


@once
def _pointers() -> dict[str, tuple[int, str]]:
    """Addresses and C signatures of functions by name; none where SciPy is missing."""
    found: dict[str, tuple[int, str]] = {}
    for name in ("cython_lapack", "cython_blas"):
        module = _extension(name)
        if module is None:
            return {}
        for function, capsule in module.__pyx_capi__.items():
            signature = _capsule_name(capsule)
            found[function] = (_capsule_pointer(capsule, signature), signature.decode())
    return found


def _extension(name: str) -> Any:
    """An extension module of scipy.linalg without the package, whose import takes long."""
    full = f"scipy.linalg.{name}"
    if full in sys.modules:
        return sys.modules[full]
    try:
        package = importlib.util.find_spec("scipy")
        for folder in (package and package.submodule_search_locations) or ():
            for suffix in importlib.machinery.EXTENSION_SUFFIXES:
                path = Path(folder, "linalg", name + suffix)
                if path.exists():
                    spec = importlib.util.spec_from_file_location(full, path)
                    assert spec is not None
                    assert spec.loader is not None
                    module = importlib.util.module_from_spec(spec)
                    spec.loader.exec_module(module)
                    sys.modules.pop(full, None)  # the package, if imported, has it as well
                    return module
    except ImportError:
        pass
    return None


def _capsule_name(capsule: Any) -> bytes:
    get = ctypes.pythonapi.PyCapsule_GetName
    get.restype, get.argtypes = ctypes.c_char_p, [ctypes.py_object]
    return bytes(get(capsule))


def _capsule_pointer(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, name))


def is_supported(r: Routine) -> bool:
    """The library is there, with 32-bit integers, and has the routine for such matrices."""
    known = r.name in _WRITERS and r.dtype in _LETTERS
    known = known and max(r.m, r.n, r.columns) <= _MAX_EXTENT
    return known and "int *" in _pointers().get("dpotrf", (0, ""))[1]


# -- calls ----------------------------------------------------------------------------------------


class Argument(NamedTuple):
    """A pointer that a call is given: to a character, an int32, a number of the matrix's dtype; or
    to a byte of an operand, of the result or of the worker's memory; or null."""

    kind: str
    value: Any = 0


class Call(NamedTuple):
    """A function of the library with its arguments; "copy": nbytes from one place to another."""

    name: str
    arguments: Sequence[Argument]


class Workspace:
    """Bytes of a worker's memory, handed out one after the other."""

    def __init__(self) -> None:
        self.nbytes = 0

    def take(self, nbytes: int) -> Argument:
        start = self.nbytes
        self.nbytes += (max(nbytes, 1) + 63) & ~63
        return Argument("work", start)


def _char(letter: str) -> Argument:
    return Argument("char", letter)


def _int(n: int) -> Argument:
    return Argument("int", n)


NULL = Argument("null")


class _Writer:
    """The calls of one routine."""

    def __init__(self, r: Routine) -> None:
        self.r = r
        self.dtype = dt.as_dtype(r.dtype)
        self.size = self.dtype.itemsize
        self.real = self.size // (1 + self.dtype.is_complex)
        self.letter = _LETTERS[r.dtype]
        self.work = Workspace()
        self.calls: list[Call] = []
        self.at: dict[str, Argument] = {}
        start = 0
        for segment in segments(r, self.dtype.is_complex):
            self.at[segment.name] = Argument("out", start * self.size)
            start += segment.elements(self.dtype)
        self.result_nbytes = start * self.size
        self.operands = [n * self.size for n in operand_lengths(r)]

    def copy(self, to: Argument, operand: Argument, nbytes: int) -> None:
        self.calls.append(Call("copy", (to, operand, Argument("bytes", nbytes))))

    def call(self, name: str, *arguments: Argument, work: str = "") -> None:
        """A call whose workspaces, by the letters of `work` (of numbers, reals or int32), follow
        the arguments; the library is asked for their sizes. The info number comes last."""
        name = self.letter + name
        info = self.at["info"]
        if work:
            sizes = _query(name, self.dtype, arguments, work)
            widths = {"w": self.size, "r": self.real, "i": 4}
            for kind, count in zip(work, sizes, strict=True):
                space = self.work.take(count * widths[kind])
                arguments = (*arguments, space, _int(count))
        self.calls.append(Call(name, (*arguments, info)))


def _query(name: str, dtype: Any, arguments: Sequence[Argument], work: str) -> list[int]:
    """The sizes of workspaces that a routine is fastest with (it is asked with sizes of -1)."""
    kinds = {"w": dtype.np, "r": dt.real_of(dtype).np, "i": "int32"}
    spaces = [np.zeros(4, kinds[kind]) for kind in work]
    minus, dummy, keep = ctypes.c_int32(-1), (ctypes.c_char * 64)(), []
    values: list[Any] = []
    for kind, value in arguments:
        if kind in ("char", "int", "number"):
            made: Any = ctypes.c_char(value.encode()) if kind == "char" else ctypes.c_int32(value)
            keep.append(made)
            values.append(ctypes.addressof(made))
        else:
            values.append(None if kind == "null" else ctypes.addressof(dummy))
    for space in spaces:
        values += [space.ctypes.data, ctypes.addressof(minus)]
    values += [ctypes.addressof(dummy)] * 4  # what follows: at most four more arguments
    address = _pointers()[name][0]
    ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(values))(address)(*values)
    return [max(1, int(space[0].real)) for space in spaces]


def _cholesky(w: _Writer) -> None:
    n = w.r.n
    w.copy(w.at["factor"], Argument("in", 0), w.operands[0])
    w.call("potrf", _char("U"), _int(n), w.at["factor"], _int(n))


def _lu(w: _Writer) -> None:
    """Of the transposed matrix: it is given column-major."""
    m, n = w.r.m, w.r.n
    w.copy(w.at["factor"], Argument("in", 0), w.operands[0])
    w.call("getrf", _int(m), _int(n), w.at["factor"], _int(m), w.at["swaps"])
    if w.r.option:
        w.calls.append(Call("order", (w.at["order"], w.at["swaps"], _int(m), _int(min(m, n)))))


def _system(w: _Writer) -> None:
    """By the factors of the transposed matrix."""
    n, columns = w.r.n, w.r.columns
    factor, swaps = w.work.take(w.operands[0]), w.work.take(4 * n)
    w.copy(factor, Argument("in", 0), w.operands[0])
    w.call("getrf", _int(n), _int(n), factor, _int(n), swaps)
    w.copy(w.at["x"], Argument("in", 1), w.operands[1])
    given = [_char("T"), _int(n), _int(columns), factor, _int(n), swaps, w.at["x"], _int(n)]
    w.calls.append(Call(w.letter + "getrs", (*given, w.work.take(4))))


def _qr(w: _Writer) -> None:
    m, n, columns = w.r.m, w.r.n, int(w.r.option)
    k = min(m, n)
    tau = w.work.take(k * w.size)
    w.copy(w.at["r"], Argument("in", 0), w.operands[0])
    w.call("geqrf", _int(m), _int(n), w.at["r"], _int(m), tau, work="w")
    if columns:
        w.copy(w.at["q"], w.at["r"], m * min(k, columns) * w.size)
        form = "ungqr" if w.dtype.is_complex else "orgqr"
        w.call(
            form, _int(m), _int(columns), _int(min(k, columns)), w.at["q"], _int(m), tau, work="w"
        )


def _eigh(w: _Writer) -> None:
    n = w.r.n
    w.copy(w.at["vectors"], Argument("in", 0), w.operands[0])
    job, uplo = _char("V" if w.r.option else "N"), _char("U")
    name, work = ("heevd", "wri") if w.dtype.is_complex else ("syevd", "wi")
    w.call(name, job, uplo, _int(n), w.at["vectors"], _int(n), w.at["values"], work=work)


def _svd(w: _Writer) -> None:
    """Of the transposed matrix, whose U and V change places."""
    rows, columns, job = w.r.n, w.r.m, str(w.r.option)
    k = min(rows, columns)
    right = {"S": k, "A": columns, "N": 0}[job]
    copy = w.work.take(w.operands[0])
    w.copy(copy, Argument("in", 0), w.operands[0])
    given = [_char(job), _int(rows), _int(columns), copy, _int(rows), w.at["s"]]
    given += [w.at["vh"], _int(rows), w.at["u"], _int(max(1, right))]
    integers = w.work.take(8 * k * 4)
    if w.dtype.is_complex:
        longer = max(rows, columns)
        reals = w.work.take(max(5 * k * k + 7 * k, 2 * longer * k + 2 * k * k + 9 * k) * w.real)
        (size,) = _query(w.letter + "gesdd", w.dtype, given, "w")
        given += [w.work.take(size * w.size), _int(size), reals, integers]
    else:
        (size,) = _query(w.letter + "gesdd", w.dtype, given, "w")
        given += [w.work.take(size * w.size), _int(size), integers]
    w.call("gesdd", *given)


def _spectrum(w: _Writer) -> list[Argument]:
    return [w.at["w"]] if w.dtype.is_complex else [w.at["re"], w.at["im"]]


def _sized(w: _Writer, name: str, given: list[Argument], after: list[Argument]) -> None:
    """A call whose workspace is followed by more arguments."""
    (size,) = _query(w.letter + name, w.dtype, given, "w")
    w.call(name, *given, w.work.take(size * w.size), _int(size), *after)


def _eig(w: _Writer) -> None:
    n, vectors = w.r.n, bool(w.r.option)
    copy = w.work.take(w.operands[0])
    w.copy(copy, Argument("in", 0), w.operands[0])
    given = [_char("N"), _char("V" if vectors else "N"), _int(n), copy, _int(n), *_spectrum(w)]
    given += [NULL, _int(1), w.at["vectors"], _int(n)]
    _sized(w, "geev", given, [w.work.take(2 * n * w.real)] if w.dtype.is_complex else [])


def _schur(w: _Writer) -> None:
    n = w.r.n
    w.copy(w.at["t"], Argument("in", 0), w.operands[0])
    given = [_char("V"), _char("N"), NULL, _int(n), w.at["t"], _int(n), w.work.take(4)]
    given += [*_spectrum(w), w.at["z"], _int(n)]
    reals = [w.work.take(n * w.real)] if w.dtype.is_complex else []
    _sized(w, "gees", given, [*reals, w.work.take(4 * n)])


def _qz(w: _Writer) -> None:
    n = w.r.n
    w.copy(w.at["s"], Argument("in", 0), w.operands[0])
    w.copy(w.at["t"], Argument("in", 1), w.operands[1])
    given = [_char("V"), _char("V"), _char("N"), NULL, _int(n), w.at["s"], _int(n), w.at["t"]]
    given += [_int(n), w.work.take(4), *_spectrum(w), w.at["beta"]]
    given += [w.at["q"], _int(n), w.at["z"], _int(n)]
    reals = [w.work.take(8 * n * w.real)] if w.dtype.is_complex else []
    _sized(w, "gges", given, [*reals, w.work.take(4 * n)])


def _solve(w: _Writer) -> None:
    """Xᵀ Aᵀ = Bᵀ; for a vector, the transposed system of Aᵀ."""
    n, columns = w.r.n, w.r.columns
    lower, unit = bool(int(w.r.option) & 1), int(w.r.option) & 2
    _, _, pitch, transposed = w.r.layout or (0, 0, n, False)
    uplo, diag = _char("L" if lower is transposed else "U"), _char("U" if unit else "N")
    w.copy(w.at["x"], Argument("in", 1), w.operands[1])
    if columns == 1:
        how = _char("N" if transposed else "T")
        given = [uplo, how, diag, _int(n), Argument("in", 0), _int(pitch), w.at["x"], _int(1)]
        w.calls.append(Call(w.letter + "trsv", given))
    else:
        how = _char("T" if transposed else "N")
        given = [_char("R"), uplo, how, diag, _int(columns), _int(n), Argument("number", 1)]
        given += [Argument("in", 0), _int(pitch), w.at["x"], _int(columns)]
        w.calls.append(Call(w.letter + "trsm", given))
    w.calls.append(Call("zero", (w.at["info"],)))


_WRITERS = {
    **{"cholesky": _cholesky, "lu": _lu, "qr": _qr, "eigh": _eigh, "svd": _svd},
    **{"eig": _eig, "schur": _schur, "qz": _qz, "solve": _solve},
    "system": _system,
}


@once
def _written(r: Routine) -> _Writer:
    w = _Writer(r)
    _WRITERS[r.name](w)
    return w


def workspace_nbytes(r: Routine) -> int:
    """Bytes that a worker needs beside operands and result."""
    return max(64, _written(r).work.nbytes)


# -- programs -------------------------------------------------------------------------------------


def start(runtime: CpuRuntime, r: Routine) -> tuple[LoadedCode, str]:
    """The program, and its text."""
    text = _Text(_written(r)).text()
    return runtime.compiler.load(text, ("kernel",)), text


# The order of rows after swaps, counted from 1, one after the other.
_ORDER = """
define internal void @order(ptr %order, ptr %swaps, i64 %m, i64 %k) {
  for %i in 0..%m
  %number = trunc i64 %i to i32
  %order[%i] = i32 %number
  end
  for %j in 0..%k
  %from = i32 %swaps[%j]
  %from0 = sub i32 %from, 1
  %other = sext i32 %from0 to i64
  %a = i32 %order[%j]
  %b = i32 %order[%other]
  %order[%j] = i32 %b
  %order[%other] = i32 %a
  end
  ret void
}
"""


_LOOP = """
define void @kernel(i64 %begin, i64 %end, i64 %worker, ptr %buffers, ptr %scalars) {{
entry:
{entry}
  %work.slot = getelementptr ptr, ptr %buffers, i64 {work}
  %work.first = load ptr, ptr %work.slot
  %pitch.slot = getelementptr i64, ptr %buffers, i64 {pitch}
  %pitch = load i64, ptr %pitch.slot
  %number = and i64 %worker, 65535
  %own = mul i64 %pitch, %number
  %work = getelementptr i8, ptr %work.first, i64 %own
  br label %head
head:
  %i = phi i64 [ %begin, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %end
  br i1 %more, label %body, label %done
body:
{body}
  %next = add i64 %i, 1
  br label %head
done:
  ret void
}}
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
"""


class _Text:
    """LLVM IR of the loop over matrices; constants are in the stack frame."""

    def __init__(self, w: _Writer) -> None:
        self._w = w
        self._entry: list[str] = []
        self._body: list[str] = []
        self._constants: dict[Argument, str] = {}
        self._count = 0

    def _new(self, lines: list[str], value: str) -> str:
        self._count += 1
        lines.append(f"  %v{self._count} = {value}")
        return f"%v{self._count}"

    def _constant(self, a: Argument) -> str:
        if a not in self._constants:
            if a.kind == "number":
                scalar = "float" if self._w.real == 4 else "double"
                slot = self._new(self._entry, f"alloca [2 x {scalar}]")
                self._entry.append(
                    f"  store [2 x {scalar}] [{scalar} {a.value}.0, {scalar} 0.0], ptr {slot}"
                )
            else:
                ty, value = ("i8", ord(a.value)) if a.kind == "char" else ("i32", a.value)
                slot = self._new(self._entry, f"alloca {ty}")
                self._entry.append(f"  store {ty} {value}, ptr {slot}")
            self._constants[a] = slot
        return self._constants[a]

    def _pointer(self, a: Argument) -> str:
        if a.kind == "null":
            return "null"
        if a.kind in ("char", "int", "number"):
            return self._constant(a)
        if a.kind == "in":
            return f"%in{a.value}"
        base = "%out" if a.kind == "out" else "%work"
        return self._new(self._body, f"getelementptr i8, ptr {base}, i64 {a.value}")

    def text(self) -> str:
        w = self._w
        for name, arguments in w.calls:
            if name == "zero":
                self._body.append(f"  store i32 0, ptr {self._pointer(arguments[0])}")
                continue
            if name == "order":
                order, swaps, m, k = arguments
                given = f"ptr {self._pointer(order)}, ptr {self._pointer(swaps)}"
                self._body.append(f"  call void @order({given}, i64 {m.value}, i64 {k.value})")
                continue
            if name == "copy":
                to, operand, nbytes = arguments
                pair = f"ptr {self._pointer(to)}, ptr {self._pointer(operand)}"
                copied = f"{pair}, i64 {nbytes.value}, i1 false"
                self._body.append(f"  call void @llvm.memcpy.p0.p0.i64({copied})")
                continue
            pointers = ", ".join(f"ptr {self._pointer(a)}" for a in arguments)
            address = _pointers()[name][0]
            self._body.append(f"  call void inttoptr (i64 {address} to ptr)({pointers})")
        offset, matrix, *_ = w.r.layout or (0, w.operands[0] // w.size)
        strides = [matrix * w.size, *w.operands[1:], w.result_nbytes]
        names = [*(f"in{i}" for i in range(len(w.operands))), "out"]
        buffers: list[str] = []
        for i, name in enumerate(names):
            start = offset * w.size if i == 0 else 0
            buffers += [
                f"  %{name}.slot = getelementptr ptr, ptr %buffers, i64 {i}",
                f"  %{name}.base = load ptr, ptr %{name}.slot",
                f"  %{name}.first = getelementptr i8, ptr %{name}.base, i64 {start}",
            ]
        places: list[str] = []
        for name, stride in zip(names, strides, strict=True):
            places += [
                f"  %{name}.offset = mul i64 %i, {stride}",
                f"  %{name} = getelementptr i8, ptr %{name}.first, i64 %{name}.offset",
            ]
        return _LOOP.format(
            entry="\n".join([*self._entry, *buffers]),
            body="\n".join([*places, *self._body]),
            work=len(names),
            pitch=len(names) + 1,
        ) + expand(_ORDER)


def run(runtime: Any, r: Routine, arrays: Sequence[Any]) -> None:
    """The routine of contiguous NumPy arrays, the last of which takes the result."""
    code, _ = start(runtime, r)
    work = ctypes.create_string_buffer(workspace_nbytes(r))
    addresses = [*(x.ctypes.data for x in arrays), ctypes.addressof(work), 0]
    word, integer = ctypes.c_void_p, ctypes.c_int64
    kernel = ctypes.CFUNCTYPE(None, integer, integer, integer, word, word)(code.addresses[0])
    kernel(0, r.batch, 0, ctypes.byref((word * len(addresses))(*addresses)), None)
