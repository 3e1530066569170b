"""vmap: a function of one example becomes one of many, by rewriting its graph."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from numus.dispatch.apply import apply
from numus.errors import ShapeError
from numus.graph import Node, Nodes, Tangents, checking_effects, mode
from numus.primitives.broadcast import broadcast, reduction_batch
from numus.primitives.elementwise.arithmetic import elementwise_batch
from numus.primitives.source import placeholder
from numus.primitives.views import permute, reshape
from numus.shapes import normal_axis
from numus.tensor import Tensor, node_of
from numus.transforms import tree
from numus.transforms.effects import EffectCheck
from numus.transforms.subgraph import dependents
from numus.transforms.trace import nodes_of, require_function

__all__ = ["vmap"]

Axes = Any  # an integer, None, or a container of them

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


def batch(
    outputs: Nodes, sources: Mapping[Node, Node], size: int, innermost: bool = False
) -> list[tuple[Node, bool]]:
    """The outputs when placeholders are replaced by nodes with a new leading axis of extent `size`,
    each with whether it carries that axis. Nodes recorded under `no_grad` remain untracked.

    With `innermost`, elementwise operations and reductions are computed with the new axis last,
    behind a permutation: where entries are a few numbers, that makes rows as long as the batch.
    """
    made = dict(sources)
    ambient = mode.grad
    try:
        for node in dependents(outputs, sources):
            flags = [x in made for x in node.inputs]
            inputs = [made.get(x, x) for x in node.inputs]
            mode.grad = node.tracked
            rule = innermost_batch if innermost and node.prim.kind in _RIGID else node.prim.batch
            made[node] = rule(node, inputs, flags, size)
    finally:
        mode.grad = ambient
    return [(made.get(y, y), y in made) for y in outputs]


# Kinds of primitives whose operands may have their axes in another order, all in the same.
_RIGID = ("elementwise", "reduce")


def innermost_batch(node: Node, inputs: Nodes, batched: Sequence[bool], size: int) -> Node:
    """An elementwise operation or reduction over a new axis, computed with it as the last."""
    if node.prim.batch not in (elementwise_batch, reduction_batch):
        return node.prim.batch(node, inputs, batched, size)
    rank = len(inputs[0].shape) - 1 if node.prim.kind == "reduce" else len(node.shape)
    aligned = []
    for x, is_batched in zip(inputs, batched, strict=True):
        if is_batched:
            x = move_axis(x, 0, x.ndim - 1)
            x = reshape(x, (1,) * (rank + 1 - x.ndim) + x.shape)
        elif x.ndim:
            x = reshape(x, (*x.shape, 1))
        aligned.append(x)
    made = apply(node.prim, tuple(aligned), node.params, (*node.shape, size), node.dtype)
    return move_axis(made, made.ndim - 1, 0)


def entries_of(nodes: Sequence[Any], flags: Sequence[bool], spots: dict[Node, Node]) -> list[Any]:
    """Placeholders for one entry of each batched node; `spots` maps them to the nodes."""
    out = []
    for x, is_batched in zip(nodes, flags, strict=True):
        if x is not None and is_batched:
            spot = placeholder(x.shape[1:], x.dtype, x.device, "vmap")
            spot.tracked = x.tracked
            spots[spot] = x
            x = spot
        out.append(x)
    return out


def move_axis(x: Node, source: int, target: int) -> Node:
    order = [i for i in range(x.ndim) if i != source]
    order.insert(target, source)
    return permute(x, tuple(order))


class OfTensor(Protocol[P, R_co]):
    """A function of a tensor and what else there is; lambdas get their types by it."""

    def __call__(self, x: Tensor, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


@overload
def vmap(
    f: Callable[Concatenate[Tensor, P], R],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    axis_size: int | None = None,
) -> OfTensor[P, R]: ...
@overload
def vmap(
    f: Callable[P, R], in_axes: Axes = 0, out_axes: Axes = 0, axis_size: int | None = None
) -> Callable[P, R]: ...
def vmap(
    f: Callable[..., Any], in_axes: Axes = 0, out_axes: Axes = 0, axis_size: int | None = None
) -> Callable[..., Any]:
    """Map f over an axis of its arguments, as one computation instead of a loop.

    `in_axes` says which axis of each positional argument is mapped: an integer for all, or a
    tuple with an entry for each argument; None leaves an argument as it is, and a container
    reaches into one. Keyword arguments are mapped over axis 0. `out_axes` says where the axis
    goes in the results. `axis_size` is needed only where no argument is mapped.

    Inside f, mapped arguments have a shape and a dtype but no value: a Python condition on them
    is a TracingError. Random draws inside f are the same for every entry, unless they are made
    from keys that are mapped.

    >>> import numus as nm
    >>> dots = nm.vmap(lambda a, b: (a * b).sum(), in_axes=(0, None))
    >>> dots(nm.asarray([[1.0, 2.0], [3.0, 4.0]]), nm.asarray([1.0, 10.0])).tolist()
    [21.0, 43.0]
    """
    require_function(f, "vmap")

    @functools.wraps(f)
    def mapped(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        if isinstance(in_axes, (tuple, list)) and len(in_axes) != len(args):
            raise ValueError(
                f"vmap: in_axes has {len(in_axes)} entries, but {len(args)} positional arguments "
                "were given"
            )
        spec = (in_axes if isinstance(in_axes, (tuple, list)) else (in_axes,) * len(args), 0)
        axes = tree.broadcast_prefix(spec, structure, "vmap: in_axes")
        paths = tree.paths(structure)
        nodes = [
            None if axis is None else _leading(node_of(leaf, "vmap"), axis, path)
            for leaf, axis, path in zip(leaves, axes, paths, strict=True)
        ]
        size = _common_size(nodes, paths, axis_size)
        effects = EffectCheck("vmap")
        spots: dict[Node, Node] = {}
        entries = entries_of(nodes, (True,) * len(nodes), spots)
        inner = [x if e is None else Tensor(e) for x, e in zip(leaves, entries, strict=True)]
        inner_args, inner_kwargs = tree.unflatten(structure, inner)
        with checking_effects(effects):
            answer = f(*inner_args, **inner_kwargs)
        outputs, out_structure = nodes_of(answer, "vmap", "the result")
        axes_out = tree.broadcast_prefix(out_axes, out_structure, "vmap: out_axes")
        results = [
            Tensor(_with_axis(y, carries, size, axis))
            for (y, carries), axis in zip(batch(outputs, spots, size), axes_out, strict=True)
        ]
        return tree.unflatten(out_structure, results)

    return mapped


def _leading(x: Node, axis: int, path: str) -> Node:
    """x with the mapped axis in front."""
    if x.ndim == 0:
        raise ShapeError(f"vmap: {argument_name(path)} has no axis to map; give it in_axes None")
    return move_axis(x, normal_axis(axis, x.ndim, f"vmap: in_axes for {argument_name(path)}"), 0)


def argument_name(path: str) -> str:
    """A path into (args, kwargs), in errors."""
    inner = path.partition("]")[2]
    return f"argument {inner[1:].replace(']', '', 1)}"


def _common_size(nodes: Tangents, paths: Sequence[str], given: int | None) -> int:
    size, by = given, "axis_size"
    for node, path in zip(nodes, paths, strict=True):
        if node is None:
            continue
        name, extent = argument_name(path), node.shape[0]
        if size is None:
            size, by = extent, name
        elif extent != size:
            raise ShapeError(f"vmap: the mapped axes differ: {by} has {size}, {name} has {extent}")
    if size is None:
        raise ShapeError("vmap: no argument is mapped; give axis_size, or an axis in in_axes")
    return size


def _with_axis(y: Node, carries: bool, size: int, axis: int | None) -> Node:
    """A result with its mapped axis at this position."""
    if axis is None:
        if carries:
            raise ShapeError("vmap: a result with out_axes None depends on a mapped argument")
        return y
    if not carries:
        y = broadcast(y, (size, *y.shape))
    return move_axis(y, 0, normal_axis(axis, y.ndim, "vmap: out_axes"))
