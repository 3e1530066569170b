"""`jax.tree_util` and `jax.tree`: containers of tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from numus.transforms import tree as _tree
from numus.transforms.tree import Structure as PyTreeDef

Function = Callable[..., Any]

__all__ = ["Partial", "PyTreeDef"]  # and what follows


def tree_flatten(tree: Any, is_leaf: Function | None = None) -> tuple[list[Any], PyTreeDef]:
    """Leaves and structure."""
    return _tree.flatten(tree, is_leaf)


def tree_leaves(tree: Any, is_leaf: Function | None = None) -> list[Any]:
    """Leaves."""
    return _tree.flatten(tree, is_leaf)[0]


def tree_structure(tree: Any, is_leaf: Function | None = None) -> PyTreeDef:
    """Structure."""
    return _tree.flatten(tree, is_leaf)[1]


def tree_unflatten(treedef: PyTreeDef, leaves: Iterable[Any]) -> Any:
    """A container of a structure."""
    return _tree.unflatten(treedef, leaves)


def tree_map(f: Function, tree: Any, *rest: Any, is_leaf: Function | None = None) -> Any:
    """A function of the leaves of one or several containers; where the first has leaves, the others
    may have containers."""
    leaves, shape = _tree.flatten(tree, is_leaf)
    others = [_tree.flatten_up_to(shape, r) for r in rest]
    return _tree.unflatten(shape, [f(*xs) for xs in zip(leaves, *others, strict=True)])


def tree_reduce(function: Function, tree: Any, *initial: Any, **options: Any) -> Any:
    """Leaves, combined from first to last."""
    return functools.reduce(function, tree_leaves(tree, options.get("is_leaf")), *initial)


def tree_all(tree: Any, *, is_leaf: Function | None = None) -> bool:
    """True if all leaves are true."""
    return all(tree_leaves(tree, is_leaf))


def tree_transpose(outer_treedef: PyTreeDef, inner_treedef: PyTreeDef | None, tree: Any) -> Any:
    """A container of containers, turned inside out."""
    leaves = _tree.leaves(tree)
    outer = outer_treedef.count
    if inner_treedef is None:
        rows = [leaves[k :: len(leaves) // outer] for k in range(len(leaves) // outer)]
        return [_tree.unflatten(outer_treedef, row) for row in rows]
    inner = inner_treedef.count
    rows = [
        _tree.unflatten(outer_treedef, [leaves[o * inner + i] for o in range(outer)])
        for i in range(inner)
    ]
    return _tree.unflatten(inner_treedef, rows)


def tree_flatten_with_path(
    tree: Any, is_leaf: Function | None = None
) -> tuple[list[tuple[Any, Any]], PyTreeDef]:
    """Leaves with their paths, and the structure."""
    leaves, structure = _tree.flatten(tree, is_leaf)
    return list(zip(_paths(structure), leaves, strict=True)), structure


def _paths(structure: PyTreeDef) -> list[tuple[Any, ...]]:
    if structure.kind is None:
        return [()]
    pairs = zip(structure.names, structure.children, strict=True)
    return [(_key(structure, name), *path) for name, child in pairs for path in _paths(child)]


class _Key:
    """A step of a path."""

    def __init__(self, value: Any) -> None:
        self.key = self.idx = self.name = value

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.key!r})"


class DictKey(_Key):
    def __str__(self) -> str:
        return f"[{self.key!r}]"


class SequenceKey(_Key):
    def __str__(self) -> str:
        return f"[{self.key}]"


class GetAttrKey(_Key):
    def __str__(self) -> str:
        return f".{self.key}"


class FlattenedIndexKey(_Key):
    def __str__(self) -> str:
        return f"[<flat index {self.key}>]"


def _key(structure: PyTreeDef, name: Any) -> _Key:
    if structure.kind is not None and issubclass(structure.kind, dict):
        return DictKey(name)
    if isinstance(name, int):
        return SequenceKey(name)
    return GetAttrKey(name)


def tree_leaves_with_path(tree: Any, is_leaf: Function | None = None) -> list[tuple[Any, Any]]:
    """Leaves with their paths."""
    return tree_flatten_with_path(tree, is_leaf)[0]


def tree_map_with_path(f: Function, tree: Any, *rest: Any, is_leaf: Function | None = None) -> Any:
    """A function of each leaf and its path."""
    found, structure = tree_flatten_with_path(tree, is_leaf)
    others = [_tree.flatten(r, is_leaf)[0] for r in rest]
    leaves = [f(path, x, *xs) for (path, x), *xs in zip(found, *others, strict=True)]
    return _tree.unflatten(structure, leaves)


def keystr(keys: Iterable[Any], **options: Any) -> str:
    """A path as text."""
    return "".join(map(str, keys))


def all_leaves(iterable: Iterable[Any], is_leaf: Function | None = None) -> bool:
    """True if nothing among them is a container."""
    return all(treedef_is_leaf(tree_structure(x, is_leaf)) for x in iterable)


def treedef_is_leaf(treedef: PyTreeDef) -> bool:
    """True for the structure of a leaf."""
    return treedef.kind is None


def treedef_children(treedef: PyTreeDef) -> list[PyTreeDef]:
    """Structures of the entries."""
    return list(treedef.children)


def treedef_tuple(treedefs: Iterable[PyTreeDef]) -> PyTreeDef:
    """The structure of a tuple."""
    children = tuple(treedefs)
    return PyTreeDef(tuple, tuple(range(len(children))), children)


def register_pytree_node(nodetype: type, flatten_func: Function, unflatten_func: Function) -> None:
    """Make a class a container: it gives its children and something static, and takes them."""
    _tree.register(nodetype, flatten_func, unflatten_func)


def register_pytree_node_class(cls: type) -> type:
    """Make a class with `tree_flatten` and `tree_unflatten` a container."""
    flatten: Function = cls.tree_flatten  # type: ignore[attr-defined]
    register_pytree_node(cls, lambda x: flatten(x), cls.tree_unflatten)  # type: ignore[attr-defined]
    return cls


def register_dataclass(nodetype: type, data_fields: Any = None, meta_fields: Any = ()) -> type:
    """Make a dataclass a container of its data fields."""
    import dataclasses

    names = [field.name for field in dataclasses.fields(nodetype)]
    data = [n for n in names if n not in meta_fields] if data_fields is None else list(data_fields)

    def flatten(x: Any) -> tuple[Any, Any]:
        return [getattr(x, n) for n in data], tuple(getattr(x, n) for n in meta_fields)

    def unflatten(static: Any, entries: Any) -> Any:
        values = zip((*data, *meta_fields), (*entries, *static), strict=True)
        return nodetype(**dict(values))

    register_pytree_node(nodetype, flatten, unflatten)
    return nodetype


def register_static(cls: type) -> type:
    """Make objects of a class static: they have no leaves."""
    register_pytree_node(cls, lambda x: ((), x), lambda x, _: x)
    return cls


class Partial(functools.partial):
    """functools.partial as a container of its arguments."""


register_pytree_node(
    Partial,
    lambda p: ((p.args, p.keywords), p.func),
    lambda func, entries: Partial(func, *entries[0], **entries[1]),
)
