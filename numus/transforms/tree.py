"""Containers of tensors (pytrees): the arguments and results of transformations.

A container is a dict, list, tuple, named tuple, dataclass, None, or a class that was registered,
nested to any depth; everything else is a leaf. Flattening is deterministic: the entries of a dict
are taken in the order of their keys, so that equal dicts flatten equally.

>>> leaves, structure = flatten({"b": 2, "a": (1, None)})
>>> leaves
[1, 2]
>>> unflatten(structure, [10, 20])
{'b': 20, 'a': (10, None)}
"""

from __future__ import annotations

import dataclasses
import functools
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

__all__ = [
    "Structure", "broadcast_prefix", "flatten", "flatten_up_to", "leaves", "map", "paths",
    "reduce", "register", "structure", "unflatten",
]  # fmt: skip

_builtin_map = map  # before this module has its own


Names = tuple[Any, ...]


class Structure:
    """A container without its leaves (JAX: PyTreeDef). Compares and hashes by value."""

    __slots__ = ("_hash", "children", "count", "kind", "names", "static")

    def __init__(
        self, kind: type | None, names: Names, children: tuple[Structure, ...], static: Any = None
    ) -> None:
        self.kind = kind  # None: a leaf
        self.names = names  # dict keys, field names, or positions
        self.children = children
        self.static = static  # what a container carries besides its entries
        self.count: int = sum(c.count for c in children) if kind is not None else 1
        self._hash: int | None = None

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Structure)
            and self.kind is other.kind
            and self.names == other.names
            and self._meaning() == other._meaning()
            and self.children == other.children
        )

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash((self.kind, self.names, self.children))
        return self._hash

    def _meaning(self) -> Any:
        # the order in which a dict was filled is kept for rebuilding it, but means nothing
        return None if self.kind in _DICTS else self.static

    def __repr__(self) -> str:
        return f"Structure({unflatten(self, [_Star()] * self.count)!r})"


class _Star:
    def __repr__(self) -> str:
        return "*"


Taken = tuple[Names, Sequence[Any], Any]  # names, entries, static
IsLeaf = Callable[[Any], bool] | None


class _Kind(NamedTuple):
    """How one type of container is taken apart and put together."""

    take: Callable[[Any], Taken]
    make: Callable[[Structure, list[Any]], Any]
    show: Callable[[Any], str]  # a name as a step of a path


_bracket, _attribute = "[{!r}]".format, ".{}".format

LEAF = Structure(None, (), ())
_NONE = Structure(type(None), (), ())


def _key_order(keys: Iterable[Any]) -> list[Any]:
    keys = list(keys)
    try:
        return sorted(keys)
    except TypeError:  # keys of several types
        return sorted(keys, key=lambda k: (type(k).__name__, repr(k)))


def _take_dict(x: Any) -> Taken:
    names = tuple(_key_order(x))
    factory = x.default_factory if type(x) is defaultdict else None
    return names, [x[k] for k in names], (tuple(x), factory)


def _make_dict(structure: Structure, entries: list[Any]) -> Any:
    order, factory = structure.static
    found = dict(zip(structure.names, entries, strict=True))
    items = ((k, found[k]) for k in order)
    if structure.kind is defaultdict:
        return defaultdict(factory, items)
    return structure.kind(items)  # type: ignore[misc]


_dict_kind = _Kind(_take_dict, _make_dict, _bracket)
_DICTS = (dict, OrderedDict, defaultdict)

_KINDS: dict[type, _Kind | None] = {
    list: _Kind(lambda x: (tuple(range(len(x))), x, None), lambda s, xs: xs, _bracket),
    tuple: _Kind(lambda x: (tuple(range(len(x))), x, None), lambda s, xs: tuple(xs), _bracket),
    type(None): _Kind(lambda x: ((), (), None), lambda s, xs: None, _bracket),
    **dict.fromkeys(_DICTS, _dict_kind),
}


def register(
    kind: type,
    take: Callable[[Any], tuple[Sequence[Any], Any]],
    make: Callable[[Any, Sequence[Any]], Any],
) -> type:
    """Make a class of yours a container.

    `take(x)` gives its entries and a hashable rest; `make(rest, entries)` puts it together again.
    """
    if kind in _KINDS and _KINDS[kind] is not None:
        raise ValueError(f"tree.register: {kind.__name__} is a container already")

    def taken(x: Any) -> Taken:
        entries, rest = take(x)
        return tuple(range(len(entries))), entries, rest

    _KINDS[kind] = _Kind(taken, lambda s, xs: make(s.static, xs), _bracket)
    return kind


def _kind_of(x: Any) -> _Kind | None:
    """How to take x apart; None for a leaf. Named tuples and dataclasses are met as they come."""
    kind = type(x)
    try:
        return _KINDS[kind]
    except KeyError:
        pass
    found: _Kind | None = None
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        names = kind._fields
        found = _Kind(lambda x: (names, x, None), lambda s, xs: s.kind(*xs), _attribute)  # type: ignore[misc]
    elif dataclasses.is_dataclass(kind):
        found = _dataclass_kind(kind)
    _KINDS[kind] = found
    return found


def _dataclass_kind(kind: type) -> _Kind:
    """The fields of a dataclass are its entries, but for those with `metadata={"static": True}`."""
    fields = dataclasses.fields(kind)
    names = tuple(f.name for f in fields if not f.metadata.get("static"))
    fixed = tuple(f.name for f in fields if f.metadata.get("static"))

    def take(x: Any) -> Taken:
        return names, [getattr(x, n) for n in names], tuple(getattr(x, n) for n in fixed)

    def make(structure: Structure, entries: list[Any]) -> Any:
        # not through __init__, which may check or change what it is given
        made: Any = object.__new__(kind)
        for name, value in zip((*names, *fixed), (*entries, *structure.static), strict=True):
            object.__setattr__(made, name, value)
        return made

    return _Kind(take, make, _attribute)


def entries(x: Any) -> Sequence[Any] | None:
    """The entries of a container; None for a leaf."""
    kind = _kind_of(x)
    return None if kind is None else kind.take(x)[1]


def flatten(tree: Any, is_leaf: IsLeaf = None) -> tuple[list[Any], Structure]:
    """The leaves of a container, in a fixed order, and its structure. `is_leaf`: true for what is
    not to be taken apart."""
    found: list[Any] = []
    try:
        if is_leaf is not None:
            return found, _flatten_until(tree, found, is_leaf)
        return found, _flatten(tree, found)
    except RecursionError:
        raise ValueError("containers are nested too deep, or hold themselves") from None


def _flatten(tree: Any, found: list[Any]) -> Structure:
    if tree is None:
        return _NONE
    kind = _kind_of(tree)
    if kind is None:
        found.append(tree)
        return LEAF
    names, entries, static = kind.take(tree)
    return Structure(type(tree), names, tuple(_flatten(x, found) for x in entries), static)


def _flatten_until(tree: Any, found: list[Any], is_leaf: Callable[[Any], bool]) -> Structure:
    kind = None if is_leaf(tree) else _kind_of(tree)
    if kind is None:
        found.append(tree)
        return LEAF
    names, entries, static = kind.take(tree)
    children = tuple(_flatten_until(x, found, is_leaf) for x in entries)
    return Structure(type(tree), names, children, static)


def flatten_up_to(shape: Structure, tree: Any) -> list[Any]:
    """What a container has where a structure has its leaves: leaves, or containers below them."""
    found: list[Any] = []
    if not _flatten_up_to(shape, tree, found):
        raise ValueError(f"a container differs at {difference(shape, structure(tree))}")
    return found


def _flatten_up_to(shape: Structure, tree: Any, found: list[Any]) -> bool:
    if shape.kind is None:
        found.append(tree)
        return True
    if type(tree) is not shape.kind:
        return False
    names, entries, _ = _KINDS[shape.kind].take(tree)  # type: ignore[union-attr]
    pairs = zip(shape.children, entries, strict=False)
    return names == shape.names and all(_flatten_up_to(s, x, found) for s, x in pairs)


def flatten_equal(shape: Structure, tree: Any, found: list[Any]) -> bool:
    """Append the leaves of a container if its structure equals a known one. A leaf of that may be
    anything here."""
    if shape.kind is None:
        found.append(tree)
        return True
    if type(tree) is not shape.kind:
        return False
    names, entries, static = _KINDS[shape.kind].take(tree)  # type: ignore[union-attr]
    if names != shape.names or (static != shape.static and shape.kind not in _DICTS):
        return False
    for child, x in zip(shape.children, entries, strict=True):
        if child.kind is None:
            found.append(x)
        elif not flatten_equal(child, x, found):
            return False
    return True


def unflatten(structure: Structure, leaves: Iterable[Any]) -> Any:
    """A container of this structure with these leaves."""
    given = list(leaves)
    if len(given) != structure.count:
        count = structure.count
        raise ValueError(f"tree.unflatten: {len(given)} leaves for a structure of {count}")
    return _unflatten(structure, iter(given))


def _unflatten(structure: Structure, leaves: Iterator[Any]) -> Any:
    if structure.kind is None:
        return next(leaves)
    entries = [_unflatten(c, leaves) for c in structure.children]
    return _KINDS[structure.kind].make(structure, entries)  # type: ignore[union-attr]


def leaves(tree: Any, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a container, in a fixed order."""
    return flatten(tree, is_leaf)[0]


def structure(tree: Any, is_leaf: IsLeaf = None) -> Structure:
    """The structure of a container."""
    return flatten(tree, is_leaf)[1]


def paths(tree: Any) -> list[str]:
    """Where each leaf is, as Python would write it: `['layers'][0].weight`."""
    return list(_paths(tree if isinstance(tree, Structure) else structure(tree), ""))


def _paths(structure: Structure, prefix: str) -> Iterator[str]:
    if structure.kind is None:
        yield prefix
        return
    for name, child in zip(structure.names, structure.children, strict=True):
        yield from _paths(child, prefix + _step(structure, name))


def _step(structure: Structure, name: Any) -> str:
    """The path from a container to one of its entries."""
    return _KINDS[structure.kind].show(name)  # type: ignore[index, union-attr]


def map(function: Callable[..., Any], tree: Any, *rest: Any, is_leaf: IsLeaf = None) -> Any:
    """A container of the same structure with `function` applied to its leaves.

    With several containers, all must have the structure of the first.

    >>> map(lambda x, y: x + y, {"a": 1}, {"a": 10})
    {'a': 11}
    """
    first, shape = flatten(tree, is_leaf)
    columns = [first]
    for i, other in enumerate(rest, start=1):
        others, other_shape = flatten(other, is_leaf)
        if other_shape != shape:
            where = difference(shape, other_shape)
            raise ValueError(f"tree.map: container {i} differs from the first at {where}")
        columns.append(others)
    return unflatten(shape, _builtin_map(function, *columns))


def reduce(function: Callable[[Any, Any], Any], tree: Any, *initial: Any) -> Any:
    """The leaves combined from the first to the last, as `functools.reduce` does."""
    return functools.reduce(function, leaves(tree), *initial)


def difference(a: Structure, b: Structure, path: str = "") -> str:
    """The path at which two structures first differ, in words."""
    where = path or "the top"
    if a.kind is not b.kind:
        return f"{where}: {_name(a)} and {_name(b)}"
    if a.names != b.names:
        return f"{where}: entries {list(a.names)} and {list(b.names)}"
    for name, x, y in zip(a.names, a.children, b.children, strict=True):
        if x != y:
            return difference(x, y, path + _step(a, name))
    return f"{where}: static parts differ"


def _name(structure: Structure) -> str:
    return "a leaf" if structure.kind is None else structure.kind.__name__


def broadcast_prefix(prefix: Any, tree: Any, op: str) -> list[Any]:
    """One value for each leaf of `tree` from a container that may stop above them.

    An integer or None in `prefix` holds for every leaf below its path.
    """
    shape = tree if isinstance(tree, Structure) else structure(tree)
    return list(_broadcast_prefix(prefix, shape, op, "", lambda x: isinstance(x, int)))


def broadcast_leaves(container: Any, shape: Structure, op: str, what: str) -> list[Any]:
    """The leaves of a container that must have this structure, where None stands for anything."""
    return list(_broadcast_prefix(container, shape, op, what, lambda x: False))


def _broadcast_prefix(
    prefix: Any, shape: Structure, op: str, path: str, ends: Callable[[Any], bool]
) -> Iterator[Any]:
    if prefix is None or ends(prefix):
        yield from (prefix for _ in range(shape.count))
        return
    where = path or "the top"
    if shape.kind is None:
        if _kind_of(prefix) is not None:
            raise ValueError(f"{op}: {where} is {type(prefix).__name__}, not one value")
        yield prefix
        return
    same = type(prefix) is shape.kind or (type(prefix) in _LISTS and shape.kind in _LISTS)
    own = _kind_of(prefix) if same else None
    if own is None:
        found, wanted = type(prefix).__name__, _name(shape)
        raise ValueError(f"{op}: {where} is {found} where {wanted} is expected")
    names, entries, _ = own.take(prefix)
    if names != shape.names:
        raise ValueError(f"{op}: {where} has entries {list(names)}, expected {list(shape.names)}")
    for name, entry, child in zip(names, entries, shape.children, strict=True):
        yield from _broadcast_prefix(entry, child, op, path + _step(shape, name), ends)


_LISTS = (list, tuple)
