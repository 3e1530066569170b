"""One call of a function, recorded so that it can be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.errors import GradientError
from numus.evaluation.host_reads import differentiating
from numus.graph import Node, Nodes, Tangents, grad_mode, mode, now
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import full_like
from numus.tensor import Tensor, detached, node_of
from numus.transforms import tree
from numus.transforms.forward import push_forward
from numus.transforms.reverse import pull_back
from numus.transforms.tape import leads_outside, tape, untrack, variable
from numus.transforms.tree import Structure


def nodes_of(container: Any, op: str, what: str) -> tuple[list[Node], Structure]:
    """The nodes of a container's leaves; errors name the path of a leaf that is no number."""
    if container.__class__ is Tensor:  # most are
        return [container._node], tree.LEAF
    leaves, structure = tree.flatten(container)
    nodes = []
    for i, leaf in enumerate(leaves):
        try:
            nodes.append(node_of(leaf, op))
        except TypeError as error:
            path = what + tree.paths(structure)[i]
            raise TypeError(
                f"{op}: {path} is a {type(leaf).__name__}; it must be a tensor or a number"
            ) from error
    return nodes, structure


def require_function(f: Any, op: str) -> None:
    """Raise where a function is passed rather than where it would be called."""
    if not callable(f):
        raise TypeError(f"{op}: takes a function, not {type(f).__name__}")


def tensors(structure: Structure, nodes: Tangents) -> Any:
    """A container of tensors, or None for nodes that are None."""
    if structure is tree.LEAF and nodes[0] is not None:
        return Tensor(nodes[0])
    return tree.unflatten(structure, [None if n is None else Tensor(n) for n in nodes])


class Trace:
    """A call `f(*primals)`: its variables, its outputs, and the tape between them.

    Values are concrete. Integer and boolean primals are no variables: their tangents and
    cotangents are None, or errors if primals are the arguments at these `positions` of a call.
    """

    def __init__(
        self,
        op: str,
        f: Callable[..., Any],
        primals: Sequence[Any],
        *,
        has_aux: bool = False,
        positions: Sequence[int] = (),
    ) -> None:
        require_function(f, op)
        self.op = op
        self.structures: list[Structure] = []
        self.primals: list[Node] = []
        for i, primal in enumerate(primals):
            name = f"argument {positions[i] if positions else i}"
            nodes, structure = nodes_of(primal, op, name)
            if positions:
                _require_floats(nodes, structure, op, name)
            self.structures.append(structure)
            self.primals += nodes
        self.since = now()
        self.variables = [variable(x) if x.dtype.is_inexact else x for x in self.primals]
        with grad_mode(True), differentiating(op, self.variables):
            result = f(*self.split(tensors, self.variables))
        self.aux = None
        if has_aux:
            if not (isinstance(result, tuple) and len(result) == 2):
                raise TypeError(f"{op}: with has_aux the function must return (result, aux)")
            result, self.aux = result
        self.outputs, self.structure = nodes_of(result, op, "the result")
        others = [x._node for x in tree.leaves(self.aux) if isinstance(x, Tensor)]
        self.order = tape((*self.outputs, *others), self.since)
        self.outside = mode.grad and leads_outside(self.order, self.since)

    def split(self, build: Callable[[Structure, Any], Any], flat: Sequence[Any]) -> list[Any]:
        """One container per primal from a flat list over all their leaves."""
        out = []
        at = 0
        for structure in self.structures:
            out.append(build(structure, flat[at : at + structure.count]))
            at += structure.count
        return out

    def reverse(self, cotangents: Tangents) -> list[Node | None]:
        """Cotangents of the primals from those of the outputs."""
        seeds: dict[Node, Node] = {}
        for y, g in zip(self.outputs, cotangents, strict=True):
            if g is not None and y.tracked:
                seeds[y] = ew.add(seeds[y], g) if y in seeds else g
        further = self.outside or (mode.grad and any(g.tracked for g in seeds.values()))
        with grad_mode(further):
            found = pull_back(self.order, seeds, list(dict.fromkeys(self.variables)))
        return [found.get(v) for v in self.variables]

    def forward(self, tangents: Tangents) -> list[Node | None]:
        """Tangents of the outputs from those of the primals."""
        seeds = {
            v: t
            for v, t in zip(self.variables, tangents, strict=True)
            if t is not None and v.dtype.is_inexact
        }
        further = self.outside or (mode.grad and any(t.tracked for t in seeds.values()))
        with grad_mode(further):
            found = push_forward(self.order, seeds)
        return [found.get(y) for y in self.outputs]

    def close(self, results: Tangents) -> None:
        """Stop tracking for the variables, which are not differentiated any more."""
        untrack(self.order)
        untrack(tape([n for n in results if n is not None], self.since))

    def vjp(self, cotangents: Tangents) -> list[Node | None]:
        """`reverse`, after which nothing else is differentiated."""
        found = self.reverse(cotangents)
        self.close(found)
        return found

    def value(self) -> Any:
        """The function's result, differentiable by captured tensors only."""
        outputs = [
            y if self.outside or not y.tracked else detached(y, sees_writes=False)
            for y in self.outputs
        ]
        return tensors(self.structure, outputs)


def _require_floats(nodes: Nodes, structure: Structure, op: str, name: str) -> None:
    for i, node in enumerate(nodes):
        if not node.dtype.is_inexact:
            raise GradientError(
                f"{op}: {name}{tree.paths(structure)[i]} is {node.dtype.name}, which has no "
                "gradients; give it a float dtype (2.0, not 2)"
            )


def filled(found: Tangents, like: Nodes) -> list[Node | None]:
    """Zeros for derivatives that nothing contributed to; None where there are none."""
    return [
        full_like(x, 0) if g is None and x.dtype.is_inexact else g
        for g, x in zip(found, like, strict=True)
    ]


def matching(container: Any, structure: Structure, like: Nodes, op: str, what: str) -> Tangents:
    """The nodes of tangents or cotangents, each checked against its primal.

    None stands for zero, for one leaf or for everything below a path.
    """
    if structure is tree.LEAF and container.__class__ is Tensor:
        return [fitting(container, like[0], op, what)]
    leaves = tree.broadcast_leaves(container, structure, op, what)
    return [
        fitting(leaf, x, op, what + path)
        for leaf, x, path in zip(leaves, like, tree.paths(structure), strict=True)
    ]


def fitting(given: Any, x: Node, op: str, path: str) -> Node | None:
    """The node of one tangent or cotangent of x, checked; None is zero."""
    if given is None:
        return None
    node = node_of(given, op)
    if type(given) in (int, float, complex):  # a Python scalar is weak
        node = ew.cast(node, x.dtype)
    if node.shape != x.shape or node.dtype is not x.dtype:
        raise GradientError(
            f"{op}: {path} is {node.type_text}, but the value it belongs to is {x.type_text}"
        )
    return node
