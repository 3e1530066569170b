"""Sequential functions (`codegen/cpu/sequential.py`), compiled when they are first called."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from numus.codegen.cpu import sequential as codegen
from numus.codegen.cpu import sequential_types as types
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
        self._parameters, self._result = types.signature(function)
        kinds = [kind for _, kind in self._parameters]
        self._numbers = kinds.index("NUMBERS") if "NUMBERS" in kinds else None
        self._takes_number = "Number" in (*kinds, self._result)  # which ctypes has no type for
        self._native: dict[str, tuple[list[tuple[str, str]], Any]] = {}  # by the kind of numbers

    def source(self, numbers: str = "FLOAT64") -> str:
        """The LLVM IR of the function and those that it calls, of real or complex numbers."""
        return codegen.translate(self._called(), numbers)

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

    def _compiled(self, numbers: str) -> tuple[list[tuple[str, str]], Any]:
        with _lock:
            if numbers not in self._native:
                from numus.runtime.devices import device  # knows this package

                runtime: Any = device("cpu").runtime
                source = self.source(numbers)
                (address,) = runtime.compiler.native(source, (self.__name__,))
                parameters, _ = types.signature(self.python, numbers)
                kinds = [
                    ctypes.c_void_p if kind in types.ARRAYS else _RESULTS[kind]
                    for _, kind in parameters
                ]
                native = ctypes.CFUNCTYPE(_RESULTS[self._result], *kinds)(address)
                self._native[numbers] = (parameters, native)
            return self._native[numbers]

    def __call__(self, *arguments: Any) -> Any:
        if self._takes_number:
            return self.python(*arguments)
        numbers = "FLOAT64"
        if self._numbers is not None:
            given = arguments[self._numbers]
            is_complex = isinstance(given, np.ndarray) and given.dtype.kind == "c"
            numbers = "COMPLEX128" if is_complex else numbers
        parameters, native = self._native.get(numbers) or self._compiled(numbers)
        passed = []
        for (name, kind), x in zip(parameters, arguments, strict=True):
            if kind in types.ARRAYS:
                fits = isinstance(x, np.ndarray) and x.dtype == types.DTYPES[kind]
                if not (fits and x.flags.c_contiguous):
                    raise DTypeError(
                        f"{self.__name__}: {name} must be a contiguous array of "
                        f"{np.dtype(types.DTYPES[kind])}, not {getattr(x, 'dtype', type(x))}"
                    )
                x = x.ctypes.data
            passed.append(x)
        return native(*passed)


def sequential(function: Callable[..., Any]) -> Sequential:
    """A function of the sequential subset, to be compiled."""
    return Sequential(function)
