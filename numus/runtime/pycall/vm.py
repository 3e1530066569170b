"""Fast-call VM: a bytecode interpreter over CPython objects, for calls shorter than their Python.

A call that repeats is specialised to a bytecode (`builder`): guards on its arguments, buffer
addresses, one launch, the objects of its result. Its function is a builtin, which runs the bytecode
(`vm_source`) and returns a sentinel where a guard fails: the caller then takes the slow path.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from numus.codegen.cpu.target import LlvmTarget
from numus.runtime.llvm_macros import function_address
from numus.runtime.pycall import vm_source
from numus.runtime.pycall.vm_source import API

_WORD = ctypes.sizeof(ctypes.c_void_p)
_METH_FASTCALL = 0x0080
_TP_DESCR_GET, _TP_DESCR_SET = 54, 55  # Py_tp_descr_get and Py_tp_descr_set
_KEEP_GIL_SECONDS = 100e-6  # shorter launches keep the GIL: handing it over costs as much

# Addresses of the functions of an LLVM IR module, by symbol.
CompileNative = Callable[[str, tuple[str, ...]], tuple[int, ...]]


class _Method(ctypes.Structure):
    """CPython's PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class _Member:
    __slots__ = ("member",)


def _refcount_is_first_word() -> bool:
    """True if an object's first word, or its lower half, is its reference count."""
    thing = object()
    word = ctypes.c_uint32.from_address(id(thing))
    before = word.value
    more = [thing, thing, thing]
    return word.value == before + len(more)


@functools.cache
def slot_offset(kind: type, name: str) -> int:
    """Byte offset of a `__slots__` member; 0 if it is not found."""
    probe = kind
    if hasattr(kind, "__del__"):  # which expects an initialised object
        probe = type("_Probe", (kind,), {"__slots__": (), "__del__": lambda self: None})
    thing: Any = object.__new__(probe)
    marker = object()
    kind.__dict__[name].__set__(thing, marker)
    words = (ctypes.c_size_t * (kind.__basicsize__ // _WORD)).from_address(id(thing))
    return _WORD * list(words).index(id(marker)) if id(marker) in words else 0


@functools.cache
def is_supported() -> bool:
    """True if this Python's object layout is the one the VM knows: CPython with a GIL."""
    return (
        sys.implementation.name == "cpython"
        and getattr(sys, "_is_gil_enabled", lambda: True)()
        and _refcount_is_first_word()
        and slot_offset(_Member, "member") > 0
    )


class Launcher(NamedTuple):
    """How LAUNCH runs a command buffer. All fields but `expected` are addresses."""

    entry: int  # of a function of the command buffer's header
    state: int  # of a word that must equal `expected`
    expected: int
    error: int  # of a word that is 0 after a successful run


class CallVM:
    """The interpreter loop, loaded into this process.

    Args:
        compile_native: the JIT compiler for LLVM IR.
        ticks_per_second: the rate of `llvm_macros.clock`.
    """

    def __init__(
        self, compile_native: CompileNative, target: LlvmTarget, ticks_per_second: float
    ) -> None:
        python = ctypes.pythonapi
        self.keep_gil_ticks = int(_KEEP_GIL_SECONDS * ticks_per_second)
        function, bind = compile_native(vm_source.source(target), vm_source.SYMBOLS)
        slot = python.PyType_GetSlot
        slot.restype = ctypes.c_void_p
        slot.argtypes = [ctypes.py_object, ctypes.c_int]
        members = type(_Member.__dict__["member"])
        own = {"descr_get": slot(members, _TP_DESCR_GET), "descr_set": slot(members, _TP_DESCR_SET)}
        own["EXPECTED_ERRORS"] = id(vm_source.EXPECTED_ERRORS)
        addresses = [own.get(name) or function_address(getattr(python, name)) for name in API]
        self._api = (ctypes.c_void_p * len(API))(*addresses)
        ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(bind)(ctypes.addressof(self._api))
        self._method = _Method(b"jitted", function, _METH_FASTCALL, None)
        self._new_builtin = python.PyCFunction_NewEx
        self._new_builtin.restype = ctypes.py_object
        self._new_builtin.argtypes = [ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p]

    def function(self, words: Sequence[int], keep_alive: Sequence[Any]) -> Callable[..., Any]:
        """The builtin that runs a bytecode."""
        code = (ctypes.c_int64 * len(words)).from_buffer(array("q", words))
        owner = (ctypes.addressof(code), code, self, *keep_alive)
        found: Callable[..., Any] = self._new_builtin(ctypes.addressof(self._method), owner, None)
        return found
