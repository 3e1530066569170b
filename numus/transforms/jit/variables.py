"""Variables of Python that hold tensors: names, attributes and entries of containers.

A function may give a variable another tensor (`self.state = self.state + 1`, `nonlocal total`,
`params = {…}`) instead of changing the tensor in place. What it reaches is written down before it
is traced and compared afterwards: variables that changed are put back, and each call changes them
anew.
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
from numus.transforms.jit.inputs import Place

ABSENT: Any = object()  # the value of a variable that is not there
ALL: Any = object()  # the key of a list as a whole

_MANY_HOLDERS = 100_000  # a function that reaches more is not looked through to the end
_MANY_ENTRIES = 10_000  # data, not state
_OTHERS = frozenset(sys.stdlib_module_names) | {"numpy", "torch", "jax", "pytest", "_pytest"}
_OTHERS -= {"__main__"}


class Holder(ABC):
    """Something whose entries are variables."""

    def __init__(self, container: Any) -> None:
        self.container = container

    @abstractmethod
    def contents(self) -> Mapping[Any, Any]:
        """Entries by key, as they are now."""

    @abstractmethod
    def get(self, key: Any) -> Any:
        """The value of an entry, or `ABSENT`."""

    @abstractmethod
    def put(self, key: Any, value: Any) -> None:
        """Give an entry a value."""

    @abstractmethod
    def drop(self, key: Any) -> None:
        """Take an entry away."""

    def reader(self, key: Any) -> Callable[[], Any]:
        """What reads one entry, as fast as can be."""
        return functools.partial(self.get, key)

    def changes(self, before: Mapping[Any, Any]) -> Iterator[Change]:
        """The entries that hold other tensors than before."""
        after = self.contents()
        for key in {**before, **after}:
            old, new = before.get(key, ABSENT), after.get(key, ABSENT)
            if old is not new and (_has_tensors(old) or _has_tensors(new)):
                yield Change(self, key, old, new)

    def forget(self, before: Mapping[Any, Any]) -> None:
        """Take away what has come since, and is not among the changes: nothing, mostly."""
        return

    def decides(self, key: Any, value: Any) -> bool:
        """Whether a function may do one thing or another by what an entry is: a flag, a layer."""
        return value.__class__ is bool or _is_layer(value.__class__)


class Cell(Holder):
    """A variable of an enclosing function."""

    def contents(self) -> Mapping[Any, Any]:
        value = self.get(None)
        return {} if value is ABSENT else {None: value}

    def get(self, key: Any) -> Any:
        try:
            return self.container.cell_contents
        except ValueError:
            return ABSENT

    def put(self, key: Any, value: Any) -> None:
        self.container.cell_contents = value

    def drop(self, key: Any) -> None:
        del self.container.cell_contents


class Entries(Holder):
    """A dict, or the part of it with certain keys (the globals that a function names)."""

    def __init__(
        self, container: Any, names: Iterable[str] | None = None, of: type | None = None
    ) -> None:
        super().__init__(container)
        self._names = names
        self._of = of  # the class of an object whose attributes they are

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
        # what else numus's own layers and optimisers hold was settled when they were made
        return key in ("training", "param_groups") or _is_layer(value.__class__)


class Elements(Holder):
    """A list. What is appended while it is traced is there once, like all side effects; where
    elements move, the whole list is the variable.
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


class Attributes(Holder):
    """The `__slots__` of an object."""

    def contents(self) -> Mapping[Any, Any]:
        found = {}
        for kind in type(self.container).__mro__:
            for name, member in vars(kind).items():
                if isinstance(member, types.MemberDescriptorType):
                    value = self.get(name)
                    if value is not ABSENT:
                        found[name] = value
        return found

    def get(self, key: Any) -> Any:
        return getattr(self.container, key, ABSENT)

    def put(self, key: Any, value: Any) -> None:
        object.__setattr__(self.container, key, value)

    def drop(self, key: Any) -> None:
        object.__delattr__(self.container, key)


class ClassAttributes(Holder):
    """The attributes of a class of the user's."""

    def contents(self) -> Mapping[Any, Any]:
        return {k: v for k, v in vars(self.container).items() if not k.startswith("__")}

    def get(self, key: Any) -> Any:
        return vars(self.container).get(key, ABSENT)

    def put(self, key: Any, value: Any) -> None:
        type.__setattr__(self.container, key, value)

    def drop(self, key: Any) -> None:
        type.__delattr__(self.container, key)


class Variable(Place):
    """A tensor that a variable holds: by itself, or as a leaf of a container that it holds."""

    def __init__(self, holder: Holder, key: Any, leaf: tuple[int, tree.Structure] | None) -> None:
        self._holder = holder
        self._key = key
        self._leaf = leaf
        self.reference = holder.reader(key) if leaf is None else None

    def find(self, leaves: Sequence[Any]) -> Tensor | None:
        value = self._holder.get(self._key)
        if self._leaf is not None:
            index, structure = self._leaf
            found, now = tree.flatten(value)
            value = found[index] if now == structure else None
        return value if isinstance(value, Tensor) else None

    def key(self) -> Any:
        return ("variable", id(self._holder.container), self._key, self._leaf and self._leaf[0])


class Change(NamedTuple):
    """A variable that a function has given another value."""

    holder: Holder
    key: Any
    before: Any
    after: Any

    def undo(self) -> None:
        if self.before is ABSENT:
            self.holder.drop(self.key)
        else:
            self.holder.put(self.key, self.before)


class Precondition:
    """What a variable is to hold at the beginning of a call: what it was like, not what it was."""

    def __init__(self, change: Change) -> None:
        self._holder = change.holder
        self._key = change.key
        self._same = change.before  # where it held no tensor
        self._like: tuple[list[Any], tree.Structure] | None = None
        if change.key is ALL or _has_tensors(change.before):
            self._same = ABSENT
            self._like = _likeness(change.before)

    def holds(self) -> bool:
        value = self._holder.get(self._key)
        if self._like is None:
            return value is self._same
        return value is not ABSENT and _likeness(value) == self._like


class Variables:
    """The variables that a function reaches, with their values of now."""

    def __init__(self, roots: Iterable[Any]) -> None:
        self._before = [(holder, holder.contents()) for holder in _reached(roots)]
        self.changes: list[Change] = []
        self.flags: list[tuple[Callable[[], Any], Any]] = []

    def compare(self) -> None:
        """Find the variables of tensors that hold others now, and put them back; take note of
        flags (`training`), which decide what the function does.
        """
        for holder, before in self._before:
            self.changes += holder.changes(before)
            for key, old in before.items():
                if holder.decides(key, old) and holder.get(key) is old:
                    self.flags.append((holder.reader(key), old))
        for change in self.changes:
            change.undo()

    def undo(self) -> None:
        """Put back what a function has changed that did not come to its end."""
        self.compare()
        for holder, before in self._before:
            holder.forget(before)

    def places(self) -> dict[int, list[Variable]]:
        """Where to find tensors, by their ids: in the variables that change, and in those which
        alone hold a tensor. Others are found by themselves, and have to be in all (`shared`).
        """
        found: dict[int, list[Variable]] = {}
        changing = set()
        replaced: set[int] = set()  # containers that are left behind with what they hold
        for change in self.changes:
            if isinstance(change.before, Tensor):
                changing.add(id(change.before))
                continue
            replaced.update(_containers_in(change.before))
            if change.key is ALL:
                replaced.add(id(change.holder.container))
            leaves, structure = tree.flatten(change.before)
            for i, leaf in enumerate(leaves):
                if isinstance(leaf, Tensor):
                    changing.add(id(leaf))
                    at = Variable(change.holder, change.key, (i, structure))
                    found.setdefault(id(leaf), []).append(at)
        for holder, before in self._before:
            if id(holder.container) in replaced:
                continue
            for key, value in before.items():
                if isinstance(value, Tensor):
                    found.setdefault(id(value), []).append(Variable(holder, key, None))
        self.shared = {k: v for k, v in found.items() if k not in changing and len(v) > 1}
        return {k: v for k, v in found.items() if k not in self.shared}


def _containers_in(value: Any) -> Iterator[int]:
    """The ids of a container and of those in it."""
    entries = tree.entries(value)
    if entries is not None:
        yield from (id(value), id(getattr(value, "__dict__", None)))
        for x in entries:
            yield from _containers_in(x)


def _has_tensors(value: Any) -> bool:
    return any(isinstance(x, Tensor) for x in tree.leaves(value))


def _likeness(value: Any) -> tuple[list[Any], tree.Structure]:
    """What of a tensor, or of a container of tensors, decides which operations run on it."""
    leaves, structure = tree.flatten(value)
    return [
        (x.shape, x.dtype)
        if isinstance(x, Tensor)
        else (type(x), x if isinstance(x, _PLAIN) else id(x))
        for x in leaves
    ], structure


# -- what a function reaches ----------------------------------------------------------------------


def _reached(roots: Iterable[Any]) -> Iterator[Holder]:
    """Everything that holds variables and is reached from functions, nearest first."""
    waiting = deque(roots)
    seen: dict[int, Any] = {}  # kept, so that ids stay theirs
    holders = 0
    while waiting and holders < _MANY_HOLDERS:
        x = waiting.popleft()
        if id(x) in seen or isinstance(x, _PLAIN):
            continue
        seen[id(x)] = x
        for holder in _holders(x):
            holders += 1
            contents = holder.contents()
            waiting.extend(contents.values())
            yield holder
        waiting.extend(_beyond(x))


_PLAIN = (
    *(Tensor, np.ndarray, np.generic, types.ModuleType, type(None)),
    *(bool, int, float, complex, str, bytes, bytearray, range),
)


def _holders(x: Any) -> Iterator[Holder]:
    """The variables of an object itself."""
    if isinstance(x, types.FunctionType):
        if _is_own(x):
            for cell in x.__closure__ or ():
                yield Cell(cell)
            yield from _globals(x)
    elif isinstance(x, dict):
        if len(x) <= _MANY_ENTRIES:
            yield Entries(x)
    elif isinstance(x, list):
        if len(x) <= _MANY_ENTRIES:
            yield Elements(x)
    elif isinstance(x, type):
        if _is_own(x):
            yield ClassAttributes(x)
    elif _has_state(type(x)):
        attributes = getattr(x, "__dict__", None)
        if isinstance(attributes, dict):
            yield Entries(attributes, of=type(x))
        yield Attributes(x)


def _beyond(x: Any) -> Iterable[Any]:
    """What else is reached from an object: parts that cannot be given another value."""
    if isinstance(x, (tuple, set, frozenset)):
        return x if len(x) <= _MANY_ENTRIES else ()
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
    """Whether a function or class is the user's, by its module's name."""
    return _is_users(x.__module__ or "")


def _is_users(module: str) -> bool:
    return module.partition(".")[0] not in {"numus", *_OTHERS}


def _has_state(kind: type) -> bool:
    """Whether objects of a class may hold tensors as attributes that a function replaces."""
    return _is_own(kind) or kind.__module__.startswith(("numus.nn", "numus.optim"))


def _is_layer(kind: type) -> bool:
    """Whether objects of a class are modules of nn, which lies on a floor above this one."""
    return any((k.__module__, k.__name__) == ("numus.nn.module", "Module") for k in kind.__mro__)


def _globals(f: types.FunctionType) -> Iterator[Holder]:
    """The globals that a function names, and those of modules that it names."""
    names: set[str] = set()
    codes = [f.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [c for c in code.co_consts if isinstance(c, types.CodeType)]
    spaces = [f.__globals__]
    for space in spaces:
        yield Entries(space, sorted(names))
        modules = (m for m in map(space.get, names) if isinstance(m, types.ModuleType))
        inner = [vars(m) for m in modules if _is_users(m.__name__)]
        spaces += [found for found in inner if not any(found is known for known in spaces)]
