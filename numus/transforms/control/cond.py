"""cond: one of two branches, chosen by a value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.dtypes import bool_
from numus.errors import ShapeError
from numus.evaluation.evaluate import elements
from numus.graph import Node, Storage, View, grad_mode, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.custom import custom
from numus.primitives.views import reshape
from numus.runtime.devices import Device
from numus.shapes import row_major
from numus.tensor import Tensor, node_of
from numus.transforms import tree
from numus.transforms.control.body import (
    Body,
    addresses_of,
    call_on,
    constants_of,
    device_of,
    show,
    spots,
    stable_carry,
    text,
    types_of,
)
from numus.transforms.effects import BranchEffects
from numus.transforms.rules import CallRule
from numus.transforms.trace import Trace, nodes_of, require_function

__all__ = ["cond"]

Function = Callable[..., Any]


def run_body(body: Body, dev: Device, operands: Sequence[Node]) -> list[View]:
    """The results of a body, in memory of their own."""
    if not body.is_native(dev):
        found = stable_carry(body.evaluated(operands), dev)
        return [y.view for y in found if y.view is not None]
    layout = tuple([x.view.strides for x in operands if x.view is not None])
    replay = body.replay(dev, layout)
    show(body, replay, dev, operands, layout)
    blocks = replay.run(addresses_of(operands), ())
    return [
        View(Storage(blocks[out.block]), 0, row_major(shape))
        for out, (shape, _) in zip(replay.outputs, body.results, strict=True)
    ]


class StraightCall:
    """A body that simply runs."""

    name = "body"

    def __init__(self, body: Body) -> None:
        self.body = body
        self.results = body.results
        self.batch_axes = [0] * len(body.results)

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        return run_body(self.body, dev, operands)

    def batched(
        self, operands: Sequence[Node], flags: Sequence[bool], size: int
    ) -> tuple[control.Call, tuple[Node, ...]]:
        return StraightCall(self.body.batched(flags, size)), tuple(operands)


class CondCall:
    """The choice: operands are the predicate, those of both branches, and each one's constants."""

    name = "cond"

    def __init__(self, branches: tuple[Body, Body], shared: int) -> None:
        self.branches = branches
        self.shared = shared
        self.results = branches[0].results
        self.batch_axes = [0] * len(self.results)

    def parts(self, rest: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """What each branch gets of the operands after the predicate."""
        first = len(self.branches[0].inputs)
        shared = list(rest[: self.shared])
        return list(rest[:first]), [*shared, *rest[first:]]

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        which = 0 if elements(operands[0]) else 1
        return run_body(self.branches[which], dev, self.parts(operands[1:])[which])

    def batched(
        self, operands: Sequence[Node], flags: Sequence[bool], size: int
    ) -> tuple[control.Call, tuple[Node, ...]]:
        if not flags[0]:
            left, right = (
                b.batched(f, size)
                for b, f in zip(self.branches, self.parts(flags[1:]), strict=True)
            )
            return CondCall((left, right), self.shared), tuple(operands)
        # each entry has a predicate of its own: both branches run, and results are picked
        arguments = spots(types_of(operands), None, "vmap", True)
        with grad_mode(True):
            left_results, right_results = (
                b.batched(f, size)(given)
                for b, f, given in zip(
                    self.branches,
                    self.parts(flags[1:]),
                    self.parts(arguments[1:]),
                    strict=True,
                )
            )
            mask = arguments[0]
            picked = [
                ew.where(broadcast(reshape(mask, (size,) + (1,) * (a.ndim - 1)), a.shape), a, b)
                for a, b in zip(left_results, right_results, strict=True)
            ]
        return StraightCall(Body(arguments, picked)), tuple(operands)


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
    inside = BranchEffects(op)
    arguments = spots(types_of(given), device_of([test, *given]), op)
    results, shapes = zip(
        *(
            nodes_of(
                call_on(f, structures, arguments, inside), op, f"the result of the {name} branch"
            )
            for f, name in ((true_fun, "true"), (false_fun, "false"))
        ),
        strict=True,
    )
    _check_branches(results, shapes)
    constants = [constants_of(arguments, found) for found in results]
    left, right = (
        Body([*arguments, *held], found) for held, found in zip(constants, results, strict=True)
    )
    call = CondCall((left, right), len(given))
    chosen = branch(call, (test, *given, *constants[0], *constants[1]))
    return tree.unflatten(shapes[0], [Tensor(y) for y in chosen])


def _check_branches(results: Sequence[Any], shapes: Sequence[tree.Structure]) -> None:
    if shapes[0] != shapes[1]:
        where = tree.difference(shapes[0], shapes[1])
        raise ValueError(f"cond: the branches give different structures at {where}")
    for a, b, path in zip(*results, tree.paths(shapes[0]), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            kinds = [text((x.shape, x.dtype)) for x in (a, b)]
            raise ShapeError(
                f"cond: the branches differ at result{path}: {kinds[0]} where true, {kinds[1]} "
                "where false; cast or reshape one of them"
            )


def branch(call: CondCall, operands: tuple[Node, ...]) -> list[Node]:
    """The nodes of a choice's results."""
    found = control.call(call, operands)
    if not (mode.grad and any(x.tracked for x in operands)):
        return found
    rule = CondRule(call)
    return [custom(rule, i, y, operands) if y.dtype.is_inexact else y for i, y in enumerate(found)]


class CondRule(CallRule):
    """The derivative of a choice is a choice of derivatives."""

    def __init__(self, call: CondCall) -> None:
        super().__init__()
        self._call = call
        self.count = len(call.results)

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        positions = self._call.parts(range(1, len(operands)))

        def back(which: int) -> Function:
            def run() -> list[Tensor]:
                chosen = [operands[i] for i in positions[which]]
                body = self._call.branches[which]
                trace = Trace("cond", body.on_tensors, [Tensor(x) for x in chosen])
                found = trace.reverse(list(cotangents))
                trace.close(found)
                by_position = dict(zip(positions[which], found, strict=True))
                return [
                    Tensor(_filled(by_position.get(i), x))
                    for i, x in enumerate(operands)
                    if x.dtype.is_inexact
                ]

            return run

        found = iter(cond(Tensor(operands[0]), back(0), back(1)))
        return [next(found)._node if x.dtype.is_inexact else None for x in operands]

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        positions = self._call.parts(range(1, len(operands)))

        def forward(which: int) -> Function:
            def run() -> list[Tensor]:
                chosen = [Tensor(operands[i]) for i in positions[which]]
                trace = Trace("cond", self._call.branches[which].on_tensors, chosen)
                found = trace.forward([tangents[i] for i in positions[which]])
                trace.close(found)
                return [
                    Tensor(_filled(t, y))
                    for t, y in zip(found, trace.outputs, strict=True)
                    if y.dtype.is_inexact
                ]

            return run

        found = iter(cond(Tensor(operands[0]), forward(0), forward(1)))
        return [next(found)._node if dtype.is_inexact else None for _, dtype in self._call.results]


def _filled(g: Node | None, like: Node) -> Node:
    return full(like.shape, 0, like.dtype) if g is None else g
