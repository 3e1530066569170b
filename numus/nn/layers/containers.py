"""Modules that hold others: in a row, in a list, by name."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from numus.nn.module import Module
from numus.nn.parameter import Parameter
from numus.tensor import Tensor

__all__ = ["ModuleDict", "ModuleList", "ParameterDict", "ParameterList", "Sequential"]


class _Named(Module):
    """Entries are attributes with the names "0", "1", … or any other."""

    def _names(self) -> list[str]:
        skipped = ("training", "_buffers", "_hooks")
        return [name for name in self.__dict__ if name not in skipped]

    def __len__(self) -> int:
        return len(self._names())

    def _at(self, index: Any) -> str:
        position, count = operator.index(index), len(self)
        if not -count <= position < count:
            raise IndexError(f"{type(self).__name__}: there is no entry {position} among {count}")
        return self._names()[position]

    def _checked(self, entry: Any) -> Any:
        """An entry as it is stored: a module, or a function in its place."""
        if not callable(entry):
            raise TypeError(
                f"{type(self).__name__}: holds modules, not {type(entry).__name__}: {entry!r}"
            )
        return entry

    def _replaced(self, entries: Iterable[Any]) -> None:
        checked = [self._checked(entry) for entry in entries]
        for name in self._names():
            del self.__dict__[name]
        for i, entry in enumerate(checked):
            setattr(self, str(i), entry)

    def _entries(self) -> list[Any]:
        return [self.__dict__[name] for name in self._names()]


class _Listed(_Named):
    """Lists of modules and lists of parameters."""

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            out = type(self)()
            out._replaced(self._entries()[index])
            return out
        return self.__dict__[self._at(index)]

    def __setitem__(self, index: int, entry: Any) -> None:
        setattr(self, self._at(index), self._checked(entry))

    def __delitem__(self, index: int | slice) -> None:
        entries = self._entries()
        del entries[index]
        self._replaced(entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries())

    def append(self, entry: Any) -> Any:
        """Add an entry at the end."""
        setattr(self, str(len(self)), self._checked(entry))
        return self

    def extend(self, entries: Iterable[Any]) -> Any:
        """Add entries at the end."""
        for entry in entries:
            self.append(entry)
        return self

    def insert(self, index: int, entry: Any) -> None:
        """Put an entry before another."""
        entries = self._entries()
        entries.insert(index, entry)
        self._replaced(entries)


class Sequential(_Listed):
    """Modules applied one after the other; a dict gives them names.

    >>> from numus import nn
    >>> nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))(nm.ones((5, 3))).shape
    (5, 2)
    """

    def __init__(self, *modules: Any) -> None:
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                setattr(self, name, self._checked(module))
        else:
            self._replaced(modules)

    def forward(self, x: Any) -> Any:
        for module in self._entries():
            x = module(x)
        return x


class ModuleList(_Listed):
    """A list of modules. A plain list as an attribute does as well."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        self._replaced(modules)


class ParameterList(_Listed):
    """A list of parameters; tensors that are put in become some."""

    def __init__(self, parameters: Iterable[Any] = ()) -> None:
        self._replaced(parameters)

    def _checked(self, entry: Any) -> Any:
        return _parameter(entry)

    def extra_repr(self) -> str:
        return _shapes(self)


class _Keyed(_Named):
    def __init__(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]] = ()) -> None:
        self.update(entries)

    def __getitem__(self, name: str) -> Any:
        if name not in self._names():
            raise KeyError(name)
        return self.__dict__[name]

    def __setitem__(self, name: str, entry: Any) -> None:
        if hasattr(type(self), name) or "." in name or not name:
            raise KeyError(f"{type(self).__name__}: {name!r} cannot be the name of an entry")
        setattr(self, name, self._checked(entry))

    def __delitem__(self, name: str) -> None:
        self[name]
        delattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def keys(self) -> list[str]:
        """The names."""
        return self._names()

    def values(self) -> list[Any]:
        """The entries."""
        return self._entries()

    def items(self) -> list[tuple[str, Any]]:
        """Names and entries."""
        return [(name, self.__dict__[name]) for name in self._names()]

    def pop(self, name: str) -> Any:
        """Take an entry out."""
        entry = self[name]
        delattr(self, name)
        return entry

    def clear(self) -> None:
        """Take everything out."""
        self._replaced(())

    def update(self, entries: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> None:
        """Put entries in."""
        pairs = entries.items() if isinstance(entries, (Mapping, _Keyed)) else entries
        for name, entry in pairs:
            self[name] = entry


class ModuleDict(_Keyed):
    """Modules by name."""


class ParameterDict(_Keyed):
    """Parameters by name; tensors that are put in become some."""

    def _checked(self, entry: Any) -> Any:
        return _parameter(entry)

    def extra_repr(self) -> str:
        return _shapes(self)


def _parameter(entry: Any) -> Any:
    plain = isinstance(entry, Tensor) and not isinstance(entry, Parameter)
    return Parameter(entry) if plain else entry


def _shapes(container: _Named) -> str:
    pairs = zip(container._names(), container._entries(), strict=True)
    return ", ".join(f"{name}: {p.dtype.name}{list(p.shape)}" for name, p in pairs)
