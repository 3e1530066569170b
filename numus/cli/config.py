"""Reading a training's configuration: TOML tables with known keys, and names that stand for code.

A file that was copied from somewhere cannot run code by itself: names stand for layers, functions
and datasets of numus, or for code of modules and files that the caller allows. What is wrong is
said with the table, the key, and what was probably meant.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import inspect
import runpy
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numus import data, nn, optim
from numus.errors import NumusError

__all__ = ["Config", "ConfigError", "Table"]


class ConfigError(Exception):
    """A configuration that cannot be followed."""


class Config:
    """A configuration file.

    Args:
        allowed: modules (with those inside them) and Python files whose code it may name.
    """

    def __init__(self, path: Path, allowed: Sequence[str] = ()) -> None:
        self.path = path
        self.allowed = allowed
        self.runs_code = False  # that is not numus's own
        try:
            with open(path, "rb") as file:
                self._tables = tomllib.load(file)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
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
                raise ConfigError(f"{self.path}: there is no [{name}]{meant(name, known)}")

    def code(self, name: str, where: str) -> Any:
        """What `file.py:name` (beside the configuration) or `package.module:name` stands for."""
        file, _, attribute = name.partition(":")
        where = f"{self.path}: {where}:"
        if file.endswith(".py"):
            names = self._file(file, where)
        elif not all(part.isidentifier() for part in file.split(".")):
            raise ConfigError(f"{where} {file!r} is neither a module nor a file.py")
        elif self._allows(file):
            names = self._module(file, where)
            self.runs_code = True
        elif file.split(".")[0] == "numus":
            names = self._module(file, where)
            if attribute in names and not _is_harmless(names[attribute]):
                raise ConfigError(f"{where} {name} is no layer, optimiser, dataset or function")
        else:
            raise ConfigError(
                f"{where} {name!r} would run code of {file}; where you trust it, pass "
                f"--allow {file}"
            )
        if attribute not in names:
            raise ConfigError(f"{where} {file} has no {attribute}")
        return names[attribute]

    def _allows(self, module: str) -> bool:
        return any(module == a or module.startswith(f"{a}.") for a in self.allowed)

    def _file(self, file: str, where: str) -> dict[str, Any]:
        """The names of a Python file, which is run once."""
        path = (self.path.parent / file).resolve()
        if path not in self._modules:
            if not path.is_file():
                raise ConfigError(f"{where} there is no file {path}")
            if file not in self.allowed and path not in [Path(a).resolve() for a in self.allowed]:
                raise ConfigError(
                    f"{where} {file!r} would run {path}; where you trust it, pass --allow {file}"
                )
            self.runs_code = True
            with _importing_from(path.parent):
                self._modules[path] = runpy.run_path(str(path), run_name=path.stem)
        return self._modules[path]

    def _module(self, name: str, where: str) -> dict[str, Any]:
        try:
            if self._allows(name):
                with _importing_from(Path.cwd()):
                    return vars(importlib.import_module(name))
            return vars(importlib.import_module(name))
        except ImportError as error:
            raise ConfigError(f"{where} {error}") from None


@contextlib.contextmanager
def _importing_from(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


_HARMLESS = (nn.Module, optim.Optimizer, optim.lr_scheduler.LRScheduler, data.Dataset)


def _is_harmless(thing: Any) -> bool:
    """True for numus's own layers, optimisers, schedules, datasets and functions of arrays."""
    module = str(getattr(thing, "__module__", ""))
    if inspect.isclass(thing):
        return module.startswith("numus.") and issubclass(thing, _HARMLESS)
    return inspect.isfunction(thing) and module.startswith(
        ("numus.nn.functional", "numus.functions")
    )


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
            raise self.error(key, f"is not known{meant(key, self._known)}")

    def error(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.config.path}: [{self.name}] {key} {what}")

    @contextlib.contextmanager
    def errors(self, what: str = "") -> Iterator[None]:
        """Errors of numus about values of this table, as errors of the configuration."""
        try:
            yield
        except (NumusError, ValueError, TypeError, OSError, ArithmeticError) as error:
            words = f"{what}: " if what else ""
            raise ConfigError(f"{self.config.path}: [{self.name}] {words}{error}") from error

    def options(self, make: Callable[..., Any], what: str, given: int = 0) -> dict[str, Any]:
        """The rest of the table as arguments of a function; one that it does not take is an error.

        Args:
            given: how many arguments it is called with beside them.
        """
        options = self.rest()
        try:
            parameters = inspect.signature(make).parameters.values()
        except (TypeError, ValueError):
            raise ConfigError(
                f"{self.config.path}: [{self.name}] {what} is a {type(make).__name__}, not a "
                "function or class"
            ) from None
        named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        named = named[given:]
        if not any(p.kind is p.VAR_KEYWORD for p in parameters):
            for key in options:
                if key not in named:
                    raise self.error(key, f"is not an option of {what}{meant(key, named)}")
        for p in parameters:
            if p.name in named and p.default is p.empty and p.name not in options:
                raise self.error(p.name, f"is missing: {what} needs it")
        return options

    def made(self, make: Callable[..., Any], what: str, *given: Any) -> Any:
        """Call a function with the rest of the table."""
        options = self.options(make, what, len(given))
        with self.errors(what):
            return make(*given, **options)


def named(table: Table, key: str, names: Mapping[str, Any], *, default: str | None = None) -> Any:
    """A thing by its name among known ones, or by where its code is."""
    name = table.take(key, str, default, needed=default is None)
    if ":" in name:
        return table.config.code(name, f"[{table.name}] {key}")
    if name not in names:
        raise table.error(key, f"{name!r} is not known{meant(name, names)}")
    return names[name]


def meant(word: str, known: Iterable[str]) -> str:
    """What was probably meant, or else what there is."""
    known = list(known)
    close = [name for name in known if name.lower() == word.lower()]
    close = close or difflib.get_close_matches(word, known, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; there are {', '.join(sorted(known))}" if known else ""
