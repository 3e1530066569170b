"""cond: one of two branches, chosen by a value."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus.dtypes import bool_, uint32
from numus.errors import ShapeError
from numus.evaluation.evaluate import elements
from numus.graph import Node, Nodes, Tangents, View, grad_mode, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.control import BoundCall
from numus.primitives.source import constant
from numus.runtime.devices import Device
from numus.tensor import Tensor, node_of
from numus.transforms import tree
from numus.transforms.control import body as bodies
from numus.transforms.control.body import Body, types_of
from numus.transforms.effects import BranchEffects
from numus.transforms.rules import CallRule, differentiated, instantiate_zeros
from numus.transforms.trace import nodes_of, require_function, tensors

__all__ = ["cond"]

Function = Callable[..., Any]


def run_body(body: Body, dev: Device, operands: Nodes) -> list[View]:
    """The results of a body, in memory of their own."""
    if not body.is_native(dev):
        return bodies.views_of(bodies.stable_carry(body.evaluated(dev, operands), dev))
    return bodies.views_of(body.run(dev, operands))


class BodyCall:
    """An unconditional call of a body."""

    name = "body"

    def __init__(self, body: Body) -> None:
        self.body = body
        self.results = body.results
        self.has_effects = body.has_effects
        self.batch_axes = [0] * len(body.results)

    def run(self, dev: Device, operands: Nodes) -> list[View]:
        return run_body(self.body, dev, operands)

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        return BodyCall(self.body.batched(flags, size)), tuple(operands)


class CondCall:
    """The choice: operands are the predicate, those of both branches, and each one's constants."""

    name = "cond"

    def __init__(self, branches: tuple[Body, Body], shared: int) -> None:
        self.branches = branches
        self.shared = shared
        self.results = branches[0].results
        self.has_effects = any(b.has_effects for b in branches)
        self.batch_axes = [0] * len(self.results)

    def parts(self, rest: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The operands of each branch, of those after the predicate."""
        first = len(self.branches[0].inputs)
        return list(rest[:first]), [*rest[: self.shared], *rest[first:]]

    def run(self, dev: Device, operands: Nodes) -> list[View]:
        which = 0 if elements(operands[0]) else 1
        return run_body(self.branches[which], dev, self.parts(operands[1:])[which])

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        pairs = zip(self.branches, self.parts(flags[1:]), strict=True)
        left, right = (body.batched(own, size) for body, own in pairs)
        if not flags[0]:
            return CondCall((left, right), self.shared), tuple(operands)
        # each entry has a predicate of its own: both branches run, and results are selected
        arguments = bodies.placeholders(types_of(operands), None, "vmap", True)
        with grad_mode(True):
            mine, others = self.parts(arguments[1:])
            selected = [
                bodies.select_entries(arguments[0], a, b)
                for a, b in zip(left(mine), right(others), strict=True)
            ]
        return BodyCall(Body(arguments, selected)), tuple(operands)


def cond(pred: Any, true_fun: Function, false_fun: Function, *operands: Any) -> Any:
    """`true_fun(*operands)` where pred holds, else `false_fun(*operands)`; only one of them runs.

    Both are traced, and must give containers of the same structure, shapes and dtypes.

    >>> import numus as nm
    >>> x = nm.asarray(3.0)
    >>> nm.cond(x > 0, lambda x: x * 2, lambda x: -x, x).item()
    6.0
    """
    op = "cond"
    if isinstance(pred, bool):  # the other is never looked at
        taken = true_fun if pred else false_fun
        require_function(taken, op)
        return taken(*operands)
    for f in (true_fun, false_fun):
        require_function(f, op)
    test = node_of(pred, op)
    if test.shape != ():
        raise ShapeError(
            f"cond: the predicate must have no axes, not shape {test.shape}; nm.where chooses "
            "element by element, nm.any and nm.all make one bool of many"
        )
    test = ew.cast(test, bool_)
    given: list[Node] = []
    structures = []
    for i, operand in enumerate(operands):
        nodes, structure = nodes_of(operand, op, f"operand {i}")
        given += nodes
        structures.append(structure)
    effects = BranchEffects(op), BranchEffects(op)
    arguments = bodies.placeholders(types_of(given), bodies.device_of([test, *given]), op)
    (left, shape), (right, other_shape) = (
        nodes_of(bodies.call_on(f, structures, arguments, check), op, f"the result of {name}")
        for f, name, check in (
            (true_fun, "the true branch", effects[0]),
            (false_fun, "the false branch", effects[1]),
        )
    )
    if shape != other_shape:
        where = tree.difference(shape, other_shape)
        raise ValueError(f"cond: the branches give different structures at {where}")
    for a, b, path in zip(left, right, tree.paths(shape), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ShapeError(
                f"cond: the branches differ at result{path}: {a.type_text} where true, "
                f"{b.type_text} where false; cast or reshape one of them"
            )
    count, own = len(left), [arguments, arguments]
    if any(check.iteration is not None for check in effects):
        own = [[*arguments, check.index()] for check in effects]
        given.append(constant(0, uint32))
        numbers = [c.numbers(found) for c, found in zip(effects, (left, right), strict=True)]
        zeros = [[constant(0, uint32)] * len(n) for n in numbers]
        left, right = [*left, *numbers[0], *zeros[1]], [*right, *zeros[0], *numbers[1]]
    constants = [
        bodies.behind_views(bodies.constants_of(*x)) for x in zip(own, (left, right), strict=True)
    ]
    branches = Body([*own[0], *constants[0]], left), Body([*own[1], *constants[1]], right)
    call = CondCall(branches, len(given))
    every = (test, *given, *constants[0], *constants[1])
    results = control.call(call, every)
    if mode.grad and any(x.tracked for x in every):
        results = differentiated(CondRule(len(results), call), results, every)
    return tensors(shape, results[:count])


@dataclass(eq=False)
class CondRule(CallRule):
    """The derivative of a choice is a choice of derivatives."""

    call: CondCall

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        def backward(body: Body, positions: list[int]) -> list[Tensor | None]:
            found = body.vjp("cond", [operands[i] for i in positions], cotangents)
            by_position = dict(zip(positions, found, strict=True))
            every = [by_position.get(i) for i in range(len(operands))]
            return bodies.tensors_of(instantiate_zeros(every, types_of(operands)))

        return self._choice(operands, backward)

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        def forward(body: Body, positions: list[int]) -> list[Tensor | None]:
            primals = [Tensor(operands[i]) for i in positions]
            return body.jvp("cond", primals, [tangents[i] for i in positions])[1]

        return self._choice(operands, forward)

    def _choice(self, operands: Nodes, derivative: Function) -> Tangents:
        """A derivative of the branch that ran, given its body and the positions of its operands."""
        positions = self.call.parts(range(1, len(operands)))
        pairs = zip(self.call.branches, positions, strict=True)
        true_fun, false_fun = (functools.partial(derivative, *pair) for pair in pairs)
        return bodies.nodes_or_none(cond(Tensor(operands[0]), true_fun, false_fun))
