"""Captured variables of a function without arguments, to trace it as one with arguments.

`trainer.train_step(lambda: loss(model(x), y))` gets another function at every step, whose `x` and
`y` are other tensors. What such a function reads is told by its code: variables of the functions
around it, globals, attributes of objects. Tensors and arrays found there become arguments of the
traced step; plain values (numbers, strings) are part of what a trace is for.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

import numus as nm
from numus.nn import Module
from numus.optim.optimizer import Optimizer
from numus.tensor import Tensor

_PLAIN = (int, float, complex, str, bytes, bool, type(None), nm.DType, nm.Device)
_MAX_LEAVES = 64  # a container with more of them is no batch
_MAX_DEPTH = 4  # functions that call functions that call functions


class Reached:
    """The tensors that a function reads, and all else that decides what it computes."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.cells: list[tuple[Any, Any]] = []  # a namespace, and a name in it
        self.statics: list[Any] = []
        self.modules: list[Module] = []
        self.fixed: list[Tensor] = []  # tensors that are the same as long as `statics` are
        self.referenced: list[Any] = []  # objects known by their ids, which nobody else may get
        self._seen: set[Any] = set()
        self._function(function, 0)

    def key(self) -> tuple[Any, ...]:
        """The cache key of a trace."""
        modes = tuple(m.training for m in self.modules)
        return (*self.statics, modes)

    def values(self) -> list[Any]:
        """The contents of the cells."""
        return [namespace[name] for namespace, name in self.cells]

    def tensors(self) -> Iterator[Tensor]:
        """The tensors of all modules, be they parameters, buffers or plain attributes."""
        yield from self.fixed
        for module in self.modules:
            for part in module.modules():
                yield from (x for x in nm.tree.leaves(vars(part)) if isinstance(x, Tensor))

    def call_with(self, function: Callable[[], Any], values: Sequence[Any]) -> Any:
        """Call the function while other values are in the cells."""
        before = self.values()
        try:
            for (namespace, name), value in zip(self.cells, values, strict=True):
                namespace[name] = value
            return function()
        finally:
            for (namespace, name), value in zip(self.cells, before, strict=True):
                namespace[name] = value

    # -- reading ----------------------------------------------------------------------------------

    def _function(self, function: Any, depth: int) -> None:
        if isinstance(function, functools.partial):
            self._known_by_id(function)  # and with it what it holds
            given = (*function.args, *function.keywords.values())
            self.fixed += [x for x in nm.tree.leaves(given) if isinstance(x, Tensor)]
            return self._function(function.func, depth)
        if isinstance(function, types.MethodType):
            bound = function.__self__
            function = function.__func__
            names = _names(function.__code__) if isinstance(function, types.FunctionType) else ()
            self._value(None, None, bound, names, depth)
        if not isinstance(function, types.FunctionType) or (depth and not _is_users(function)):
            return self._known_by_id(function)
        if depth > _MAX_DEPTH or not self._first(function.__code__, *(function.__closure__ or ())):
            return
        code = function.__code__
        self.statics.append(code)
        names = _names(code)
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # it may not be set yet
                self._value(_Cell(cell), None, cell.cell_contents, names, depth)
        for name in names:
            if name in function.__globals__:
                self._value(function.__globals__, name, function.__globals__[name], names, depth)
        defaults = _Defaults(function)
        for position, x in enumerate(function.__defaults__ or ()):
            self._value(defaults, position, x, names, depth)
        for name, x in (function.__kwdefaults__ or {}).items():
            self._value(function.__kwdefaults__, name, x, names, depth)

    def _value(self, namespace: Any, name: Any, x: Any, names: Any, depth: int) -> None:
        """Something that a name stands for; `names` are those that the code mentions."""
        if isinstance(x, (Tensor, np.ndarray)):
            self._add_cell(namespace, name)
        elif isinstance(x, _PLAIN):
            self.statics.append((type(x), x))
        elif isinstance(x, (list, tuple, dict)):
            leaves = nm.tree.leaves(x) if len(x) <= _MAX_LEAVES else []
            if len(leaves) <= _MAX_LEAVES and any(isinstance(v, Tensor) for v in leaves):
                self._add_cell(namespace, name)
            else:
                self._known_by_id(x)
        elif isinstance(x, Module):
            self._known_by_id(x)
            if all(x is not m for m in self.modules):
                self.modules.append(x)
        elif isinstance(x, (types.FunctionType, types.MethodType, functools.partial)):
            self._function(x, depth + 1)
        elif _has_attributes(x):
            self._known_by_id(x)
            if self._first(x):
                for attribute, value in list(vars(x).items()):
                    if attribute in names:
                        self._value(vars(x), attribute, value, names, depth)
        else:
            self._known_by_id(x)

    def _add_cell(self, namespace: Any, name: Any) -> None:
        if namespace is not None and self._first(namespace, name):
            self.cells.append((namespace, name))

    def _known_by_id(self, x: Any) -> None:
        self.referenced.append(x)
        self.statics.append(id(x))

    def _first(self, *things: Any) -> bool:
        key = tuple(x if isinstance(x, str) else id(x) for x in things)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


class _Cell:
    """A variable of an enclosing function, as a namespace of one name."""

    def __init__(self, cell: types.CellType) -> None:
        self.cell = cell

    def __getitem__(self, name: Any) -> Any:
        return self.cell.cell_contents

    def __setitem__(self, name: Any, value: Any) -> None:
        self.cell.cell_contents = value


class _Defaults:
    """The values that a function's arguments have by themselves, as a namespace of their cells."""

    def __init__(self, function: types.FunctionType) -> None:
        self.function = function

    def __getitem__(self, position: int) -> Any:
        return (self.function.__defaults__ or ())[position]

    def __setitem__(self, position: int, value: Any) -> None:
        values = list(self.function.__defaults__ or ())
        values[position] = value
        self.function.__defaults__ = tuple(values)


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals and attributes that a function mentions, and those of functions inside it."""
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(n for names in inner for n in names)]))


def _is_users(function: types.FunctionType) -> bool:
    """Whether a function was written by the user, so that what it mentions may change."""
    return not (function.__module__ or "").startswith("numus.")


def _has_attributes(x: Any) -> bool:
    if isinstance(x, (type, types.ModuleType, Optimizer)) or not hasattr(x, "__dict__"):
        return False
    return type(x).__module__ != "builtins"
