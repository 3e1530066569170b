"""Sequential functions (`codegen/cpu/sequential.py`), compiled when they are first called."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from numus.codegen.cpu import sequential as codegen
from numus.errors import DTypeError

_RESULTS: dict[str, Any] = {
    "int": ctypes.c_int64,
    "float": ctypes.c_double,
    "bool": ctypes.c_bool,
    "None": None,
}
_lock = threading.Lock()


class Sequential:
    """A function of the sequential subset. Calls run native code, without Python's lock; `python`
    is the function as it was written, for the same arrays."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.python = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        self._parameters, self._result = codegen.signature(function)
        self._native: Any = None

    def source(self) -> str:
        """The LLVM IR of the function and those that it calls."""
        return codegen.translate(self._called())

    def _called(self) -> list[Callable[..., Any]]:
        found: dict[str, Sequential] = {self.__name__: self}
        waiting = [self]
        while waiting:
            now = waiting.pop().python
            for name in now.__code__.co_names:
                other = now.__globals__.get(name)
                if isinstance(other, Sequential) and name not in found:
                    found[name] = other
                    waiting.append(other)
        return [f.python for f in found.values()]

    def _compiled(self) -> Any:
        with _lock:
            if self._native is None:
                from numus.runtime.devices import device  # knows this package

                runtime: Any = device("cpu").runtime
                compiler = runtime.compiler
                (address,) = compiler.native(self.source(), (self.__name__,))
                kinds = [
                    ctypes.c_void_p if kind in codegen.ARRAYS else _RESULTS[kind]
                    for _, kind in self._parameters
                ]
                self._native = ctypes.CFUNCTYPE(_RESULTS[self._result], *kinds)(address)
            return self._native

    def __call__(self, *arguments: Any) -> Any:
        native = self._native or self._compiled()
        passed = []
        for (name, kind), x in zip(self._parameters, arguments, strict=True):
            if kind in codegen.ARRAYS:
                fits = isinstance(x, np.ndarray) and x.dtype == codegen.DTYPES[kind]
                if not (fits and x.flags.c_contiguous):
                    raise DTypeError(
                        f"{self.__name__}: {name} must be a contiguous array of "
                        f"{np.dtype(codegen.DTYPES[kind])}, not {getattr(x, 'dtype', type(x))}"
                    )
                x = x.ctypes.data
            passed.append(x)
        return native(*passed)


def sequential(function: Callable[..., Any]) -> Sequential:
    """A function of the sequential subset, to be compiled."""
    return Sequential(function)
