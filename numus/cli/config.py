"""Reading a training's configuration: TOML tables with known keys, and names that stand for code.

What is wrong is said with the table, the key, and what was probably meant.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["Config", "ConfigError", "Table"]


class ConfigError(Exception):
    """A configuration that cannot be followed."""


class Config:
    """A configuration file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._tables = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except tomllib.TOMLDecodeError as error:
            raise ConfigError(f"{path} is not TOML: {error}") from None
        self._modules: dict[Path, dict[str, Any]] = {}

    def table(self, name: str, *, needed: bool = False) -> Table:
        """A table; an empty one where it is not there."""
        found = self._tables.get(name, {})
        if needed and name not in self._tables:
            raise ConfigError(f"{self.path}: there is no table [{name}]")
        if not isinstance(found, dict):
            raise ConfigError(f"{self.path}: {name} is a table, [{name}], not a value")
        return Table(self, name, found)

    def check_tables(self, known: Iterable[str]) -> None:
        """Refuse tables that nobody reads."""
        for name in self._tables:
            if name not in known:
                raise ConfigError(f"{self.path}: there is no [{name}]{_meant(name, known)}")

    def code(self, name: str, where: str) -> Any:
        """What `file.py:name` (beside the configuration) or `package.module:name` stands for."""
        file, _, attribute = name.partition(":")
        if file.endswith(".py"):
            path = (self.path.parent / file).resolve()
            if path not in self._modules:
                if not path.is_file():
                    raise ConfigError(f"{self.path}: {where}: there is no file {path}")
                sys.path.insert(0, str(path.parent))
                try:
                    self._modules[path] = runpy.run_path(str(path), run_name=path.stem)
                finally:
                    sys.path.remove(str(path.parent))
            names = self._modules[path]
        else:
            try:
                names = vars(importlib.import_module(file))
            except ImportError as error:
                raise ConfigError(f"{self.path}: {where}: {error}") from None
        if attribute not in names:
            raise ConfigError(f"{self.path}: {where}: {file} has no {attribute}")
        return names[attribute]


class Table:
    """A table of a configuration, whose keys are taken one after the other."""

    def __init__(self, config: Config, name: str, entries: Mapping[str, Any]) -> None:
        self.config = config
        self.name = name
        self._left = dict(entries)
        self._known: list[str] = []

    def __bool__(self) -> bool:
        return bool(self._left)

    def take(self, key: str, kind: Any, default: Any = None, *, needed: bool = False) -> Any:
        """The value of a key, checked."""
        self._known.append(key)
        if key not in self._left:
            if needed:
                raise self.error(key, "is missing")
            return default
        value = self._left.pop(key)
        if kind is float and type(value) is int:
            value = float(value)
        kinds = kind if isinstance(kind, tuple) else (kind,)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            names = " or ".join(k.__name__ for k in kinds)
            raise self.error(key, f"is of type {names}, not {value!r}")
        return value

    def rest(self) -> dict[str, Any]:
        """All keys that were not taken."""
        found, self._left = self._left, {}
        return found

    def end(self) -> None:
        """Refuse keys that nobody took."""
        for key in self._left:
            raise self.error(key, f"is not known{_meant(key, self._known)}")

    def error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.config.path}: [{self.name}] {key} {what}")

    def made(self, make: Callable[..., Any], what: str, *given: Any) -> Any:
        """Call a function with the rest of the table; a key that it does not take is an error."""
        options = self.rest()
        parameters = inspect.signature(make).parameters.values()
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        named = named[len(given) :]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for key in options:
                if key not in named:
                    raise self.error(key, f"is not an option of {what}{_meant(key, named)}")
        for p in parameters:
            if p.name in named and p.default is p.empty and p.name not in options:
                raise self.error(p.name, f"is missing: {what} needs it")
        try:
            return make(*given, **options)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{self.config.path}: [{self.name}] {what}: {error}") from error


def named(table: Table, key: str, names: Mapping[str, Any], *, default: str | None = None) -> Any:
    """A thing by its name among known ones, or by where its code is."""
    name = table.take(key, str, default, needed=default is None)
    if ":" in name:
        return table.config.code(name, f"[{table.name}] {key}")
    if name not in names:
        raise table.error(key, f"{name!r} is not known{_meant(name, names)}")
    return names[name]


def _meant(word: str, known: Iterable[str]) -> str:
    """What was probably meant, or else what there is."""
    known = list(known)
    close = [name for name in known if name.lower() == word.lower()]
    close = close or difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""
