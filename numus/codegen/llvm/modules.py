"""LLVM modules in contexts of their own: parse, verify, emit.

An interrupt (Ctrl-C) is raised between any two calls. Pointers without destructors can leak then;
llvmlite's objects would be freed twice, or lose an interrupt that comes in their destructors. No
call takes the lock by which llvmlite admits one thread at a time: contexts are independent.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from numus.errors import CompileError


def unlocked(function: Any) -> Any:
    """A function of LLVM without llvmlite's lock."""
    return getattr(function, "_cfn", function)


@contextlib.contextmanager
def parsed(library: Any, source: str) -> Iterator[Any]:
    """A verified module (a pointer) of the library `llvmlite.binding.ffi.lib`."""
    context = unlocked(library.LLVMPY_ContextCreate)()
    try:
        with _message(library) as message:
            module = unlocked(library.LLVMPY_ParseAssembly)(context, source.encode(), message)
            if not module or unlocked(library.LLVMPY_VerifyModule)(module, message):
                raise CompileError(f"LLVM rejects the kernel: {_text(message)}\n{source}")
        yield module
    finally:
        unlocked(library.LLVMPY_ContextDispose)(context)  # and the modules in it


def emitted(library: Any, machine: Any, module: Any, as_object: bool) -> bytes:
    """The object or the assembly text of a module."""
    with _message(library) as message:
        emit = unlocked(library.LLVMPY_TargetMachineEmitToMemory)
        buffer = emit(machine, module, as_object, message)
        if not buffer:
            raise CompileError(f"LLVM emits no code for the kernel: {_text(message)}")
    try:
        start = unlocked(library.LLVMPY_GetBufferStart)(buffer)
        return ctypes.string_at(start, unlocked(library.LLVMPY_GetBufferSize)(buffer))
    finally:
        unlocked(library.LLVMPY_DisposeMemoryBuffer)(buffer)


@contextlib.contextmanager
def _message(library: Any) -> Iterator[Any]:
    """Where LLVM stores a string."""
    message = ctypes.pointer(ctypes.c_char_p())
    try:
        yield message
    finally:
        unlocked(library.LLVMPY_DisposeString)(message.contents)


def _text(message: Any) -> str:
    return (message.contents.value or b"").decode(errors="replace")
