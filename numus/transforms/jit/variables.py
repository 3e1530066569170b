"""Python variables that hold tensors: names, attributes and container entries.

A function may assign a variable (`self.state = self.state + 1`, `nonlocal total`, `params = {…}`)
instead of changing a tensor in place. Reachable variables are snapshotted before tracing and
compared afterwards: assignments are undone, and repeated by each call.
"""

from __future__ import annotations

import functools
import operator
import sys
import types
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.jit.inputs import InputRef

ABSENT: Any = object()  # the value of a missing variable
ALL: Any = object()  # the key of a list as a whole

_MAX_NAMESPACES = 100_000  # a search that reaches more is cut short
_MAX_ENTRIES = 10_000  # larger containers are data, not state
_LIBRARIES = {*sys.stdlib_module_names, "numus", "numpy", "torch", "jax", "pytest", "_pytest"}
_LIBRARIES -= {"__main__"}
_HOLDERS = ("numus.nn", "numus.optim", "numus.torch")  # their objects hold flags and tensors


class Namespace(ABC):
    """A container of variables."""

    def __init__(self, container: Any) -> None:
        self.container = container

    @abstractmethod
    def contents(self) -> Mapping[Any, Any]:
        """A snapshot of the entries."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The value of an entry, or `ABSENT`."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Assign an entry."""

    @abstractmethod
    def drop(self, key: Any) -> None:
        """Delete an entry."""

    def reader(self, key: Any) -> Callable[[], Any]:
        """A fast reader of one entry."""
        return functools.partial(self.get, key)

    def changes(self, before: Mapping[Any, Any]) -> Iterator[Change]:
        """Entries whose tensors have changed."""
        after = self.contents()
        for key in {**before, **after}:
            old, new = before.get(key, ABSENT), after.get(key, ABSENT)
            if old is not new and (_has_tensors(old) or _has_tensors(new)):
                yield Change(self, key, old, new)

    def forget(self, before: Mapping[Any, Any]) -> None:
        """Undo additions that `changes` leaves out."""
        return

    def decides(self, key: Any, value: Any) -> bool:
        """True if an entry may steer control flow: a flag, a layer."""
        return value.__class__ is bool or _is_layer(value.__class__)


class Attributes(Namespace):
    """Attributes of an object, which its class may forbid to set."""

    _base: Any = object

    def get(self, key: Any) -> Any:
        return getattr(self.container, key, ABSENT)

    def put(self, key: Any, value: Any) -> None:
        self._base.__setattr__(self.container, key, value)

    def drop(self, key: Any) -> None:
        self._base.__delattr__(self.container, key)


class SlotAttributes(Attributes):
    """The `__slots__` of an object."""

    def contents(self) -> Mapping[Any, Any]:
        members = [x for kind in type(self.container).__mro__ for x in vars(kind).items()]
        names = [name for name, x in members if isinstance(x, types.MemberDescriptorType)]
        return {x: self.get(x) for x in names if self.get(x) is not ABSENT}


class ClassAttributes(Attributes):
    """The attributes of a user-defined class."""

    _base = type

    def contents(self) -> Mapping[Any, Any]:
        return {k: v for k, v in vars(self.container).items() if not k.startswith("__")}

    def get(self, key: Any) -> Any:
        return vars(self.container).get(key, ABSENT)


class CellVariable(Attributes):
    """A variable of an enclosing function."""

    def contents(self) -> Mapping[Any, Any]:
        value = self.get("cell_contents")
        return {} if value is ABSENT else {"cell_contents": value}

    def get(self, key: Any) -> Any:
        try:
            return self.container.cell_contents
        except ValueError:
            return ABSENT


class DictEntries(Namespace):
    """A dict, or some of its keys (the globals that a function names)."""

    def __init__(
        self, container: Any, names: Iterable[str] | None = None, of: type | None = None
    ) -> None:
        super().__init__(container)
        self._names = names
        self._of = of  # the class of the object whose __dict__ it is

    def contents(self) -> Mapping[Any, Any]:
        found = self.container
        if self._names is None:
            return dict(found)
        return {name: found[name] for name in self._names if name in found}

    def get(self, key: Any) -> Any:
        return self.container.get(key, ABSENT)

    def put(self, key: Any, value: Any) -> None:
        self.container[key] = value

    def drop(self, key: Any) -> None:
        self.container.pop(key, None)

    def reader(self, key: Any) -> Callable[[], Any]:
        return functools.partial(self.container.get, key)

    def decides(self, key: Any, value: Any) -> bool:
        if self._of is None or _is_own(self._of):
            return super().decides(key, value)
        # other attributes of numus's layers and optimisers are fixed at construction
        return key in ("training", "param_groups") or _is_layer(value.__class__)


class ListElements(Namespace):
    """A list. Appends happen once, like all untraced side effects; where elements move, the whole
    list is the variable.
    """

    def contents(self) -> Mapping[Any, Any]:
        return dict(enumerate(self.container))

    def get(self, key: Any) -> Any:
        if key is ALL:
            return list(self.container)
        return self.container[key] if key < len(self.container) else ABSENT

    def put(self, key: Any, value: Any) -> None:
        if key is ALL:
            self.container[:] = value
        elif key < len(self.container):
            self.container[key] = value

    def drop(self, key: Any) -> None:
        if key < len(self.container):
            del self.container[key]

    def changes(self, before: Mapping[Any, Any]) -> Iterator[Change]:
        old, new = list(before.values()), list(self.container)
        if len(new) > len(old) and all(map(operator.is_, old, new)):
            return  # appended
        if len(new) == len(old):
            yield from super().changes(before)
        elif _has_tensors(old) or _has_tensors(new):
            yield Change(self, ALL, old, new)

    def forget(self, before: Mapping[Any, Any]) -> None:
        if _has_tensors(self.container[len(before) :]):
            del self.container[len(before) :]


class VariableRef(InputRef):
    """A variable's tensor, or a leaf of the container in it."""

    def __init__(
        self, namespace: Namespace, key: Any, leaf: tuple[int, tree.Structure] | None
    ) -> None:
        self._namespace = namespace
        self._key = key
        self._leaf = leaf
        self.reader = namespace.reader(key) if leaf is None else None

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        value = self._namespace.get(self._key)
        if self._leaf is not None:
            index, structure = self._leaf
            found, now = tree.flatten(value)
            value = found[index] if now == structure else None
        return value if isinstance(value, Tensor) else None

    def key(self) -> Any:
        return ("variable", id(self._namespace.container), self._key, self._leaf and self._leaf[0])


class Change(NamedTuple):
    """A variable that a function has assigned."""

    namespace: Namespace
    key: Any
    before: Any
    after: Any

    def undo(self) -> None:
        if self.before is ABSENT:
            self.namespace.drop(self.key)
        else:
            self.namespace.put(self.key, self.before)


class Precondition:
    """The required structure of a variable before a call."""

    def __init__(self, change: Change) -> None:
        self._namespace, self._key = change.namespace, change.key
        has_structure = change.key is ALL or _has_tensors(change.before)
        self._structure = _structure(change.before) if has_structure else None
        self._value = ABSENT if has_structure else change.before

    def holds(self) -> bool:
        value = self._namespace.get(self._key)
        if self._structure is None:
            return value is self._value
        return value is not ABSENT and _structure(value) == self._structure


class Variables:
    """The variables that a function reaches, and a snapshot of their values."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._before = [(namespace, namespace.contents()) for namespace in _reachable(roots)]
        self.changes: list[Change] = []
        self.flags: list[tuple[Callable[[], Any], Any]] = []

    def compare(self) -> None:
        """Find assigned variables of tensors, undo assignments, and collect flags (`training`)."""
        for namespace, before in self._before:
            self.changes += namespace.changes(before)
            for key, old in before.items():
                if namespace.decides(key, old) and namespace.get(key) is old:
                    self.flags.append((namespace.reader(key), old))
        for change in self.changes:
            change.undo()

    def undo(self) -> None:
        """Undo all changes of a function that raised."""
        self.compare()
        for namespace, before in self._before:
            namespace.forget(before)

    def refs(self) -> dict[int, list[VariableRef]]:
        """References to tensors, by their ids: variables that change, and those which alone hold a
        tensor. Others are found by handle, and must stay in all of their variables (`shared`).
        """
        found: dict[int, list[VariableRef]] = {}
        changing = set()
        replaced: set[int] = set()  # containers that assignments drop
        for change in self.changes:
            if isinstance(change.before, Tensor):
                changing.add(id(change.before))
                continue
            replaced.update(_containers_in(change.before))
            if change.key is ALL:
                replaced.add(id(change.namespace.container))
            leaves, structure = tree.flatten(change.before)
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor):
                    changing.add(id(leaf))
                    at = VariableRef(change.namespace, change.key, (i, structure))
                    found.setdefault(id(leaf), []).append(at)
        for namespace, before in self._before:
            if id(namespace.container) in replaced:
                continue
            for key, value in before.items():
                if isinstance(value, Tensor):
                    found.setdefault(id(value), []).append(VariableRef(namespace, key, None))
        self.shared = {k: v for k, v in found.items() if k not in changing and len(v) > 1}
        return {k: v for k, v in found.items() if k not in self.shared}


def _containers_in(value: Any) -> Iterator[int]:
    """The ids of a container and of the nested ones."""
    entries = tree.entries(value)
    if entries is not None:
        yield from (id(value), id(getattr(value, "__dict__", None)))
        for x in entries:
            yield from _containers_in(x)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(x, Tensor) for x in tree.leaves(value))


def _structure(value: Any) -> tuple[list[Any], tree.Structure]:
    """The structure of a tensor, or of a container, that decides which operations run on it."""
    leaves, structure = tree.flatten(value)
    return [
        (x.shape, x.dtype)
        if isinstance(x, Tensor)
        else (type(x), x if isinstance(x, _LEAF_TYPES) else id(x))
        for x in leaves
    ], structure


# -- reachability ---------------------------------------------------------------------------------


def _reachable(roots: Iterable[Any]) -> Iterator[Namespace]:
    """The namespaces reachable from functions, breadth first."""
    waiting = deque(roots)
    seen: dict[int, Any] = {}  # kept alive, so that ids stay unique
    count = 0
    while waiting and count < _MAX_NAMESPACES:
        x = waiting.popleft()
        if id(x) in seen or isinstance(x, _LEAF_TYPES):
            continue
        seen[id(x)] = x
        for namespace in _namespaces(x):
            count += 1
            contents = namespace.contents()
            waiting.extend(contents.values())
            yield namespace
        waiting.extend(_referenced(x))


_LEAF_TYPES = (
    *(Tensor, np.ndarray, np.generic, types.ModuleType, type(None)),
    *(bool, int, float, complex, str, bytes, bytearray, range),
)


def _namespaces(x: Any) -> Iterator[Namespace]:
    """The namespaces of an object itself."""
    if isinstance(x, types.FunctionType):
        if _is_own(x):
            for cell in x.__closure__ or ():
                yield CellVariable(cell)
            yield from _globals(x)
    elif isinstance(x, (dict, list)):
        if len(x) <= _MAX_ENTRIES:
            yield DictEntries(x) if isinstance(x, dict) else ListElements(x)
    elif isinstance(x, type):
        if _is_own(x):
            yield ClassAttributes(x)
    elif _is_own(type(x)) or type(x).__module__.startswith(_HOLDERS):
        attributes = getattr(x, "__dict__", None)
        if isinstance(attributes, dict):
            yield DictEntries(attributes, of=type(x))
        yield SlotAttributes(x)


def _referenced(x: Any) -> Iterable[Any]:
    """Other objects reached from one: constant parts."""
    if isinstance(x, (tuple, set, frozenset)):
        return x if len(x) <= _MAX_ENTRIES else ()
    if isinstance(x, functools.partial):
        return (x.func, x.args, x.keywords)
    if isinstance(x, types.MethodType):
        return (x.__self__, x.__func__)
    if isinstance(x, types.FunctionType):
        return (getattr(x, "__wrapped__", None), x.__defaults__, x.__kwdefaults__)
    if isinstance(x, (staticmethod, classmethod)):
        return (x.__func__,)
    if isinstance(x, property):
        return (x.fget, x.fset)
    kind = x if isinstance(x, type) else type(x)
    return [base for base in kind.__mro__ if _is_own(base)]


def _is_own(x: Any) -> bool:
    """True if a function or class is the user's, by its module."""
    return _is_users(x.__module__ or "")


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in _LIBRARIES


def _is_layer(kind: type) -> bool:
    """True if a class is an nn.Module, which cannot be imported here."""
    return any((k.__module__, k.__name__) == ("numus.nn.module", "Module") for k in kind.__mro__)


def _globals(f: types.FunctionType) -> Iterator[Namespace]:
    """The globals that a function names, and those of user modules that it names."""
    names: set[str] = set()
    codes = [f.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    spaces = [f.__globals__]
    for space in spaces:
        yield DictEntries(space, sorted(names))
        modules = (m for m in map(space.get, names) if isinstance(m, types.ModuleType))
        inner = [vars(m) for m in modules if _is_users(m.__name__)]
        spaces += [found for found in inner if not any(found is known for known in spaces)]
