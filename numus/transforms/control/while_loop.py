"""while_loop: a loop that ends when its state says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from numus.dtypes import bool_, uint32
from numus.errors import GradientError, ShapeError
from numus.evaluation.evaluate import elements
from numus.graph import Node, Storage, View, grad_mode, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.custom import custom
from numus.primitives.reduce import reduce_max
from numus.primitives.source import constant
from numus.primitives.views import reshape
from numus.runtime.devices import Device
from numus.shapes import row_major
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.control.body import (
    Body,
    addresses_of,
    block_bytes,
    call_on,
    constants_of,
    show,
    spots,
    stable_carry,
    tensors_of,
)
from numus.transforms.control.carry import trace_body
from numus.transforms.rules import CallRule
from numus.transforms.trace import Trace, nodes_of, require_function

__all__ = ["while_loop"]

Function = Callable[..., Any]

_AT_ONCE = 1 << 20  # steps between two looks at the keyboard; even, see `run`


class WhileCall:
    """The loop: operands are whether it begins, the carried values, the constants.

    The body gives the carried values, and whether it goes on.
    """

    name = "while_loop"

    def __init__(self, body: Body, carried: int) -> None:
        self.body = body
        self.carried = carried
        self.results = body.results[:carried]
        self.batch_axes = [0] * carried

    def batched(
        self, operands: Sequence[Node], flags: Sequence[bool], size: int
    ) -> tuple[control.Call, tuple[Node, ...]]:
        """All entries step together as long as one of them goes on; those that are done stay."""
        count = self.carried
        wide = [
            x if flag else broadcast(x, (size, *x.shape))
            for x, flag in zip(operands[: 1 + count], flags, strict=False)
        ]
        constants = operands[1 + count :]
        body = self.body.batched([*([True] * count), *flags[1 + count :]], size)
        kinds = [*body.inputs[:count], ((size,), bool_), *body.inputs[count:]]
        arguments = spots(kinds, None, "vmap", True)
        with grad_mode(True):
            active = arguments[count]
            *after, go = body([*arguments[:count], *arguments[count + 1 :]])
            after = [
                ew.where(_broadcast_carry(active, y), y, x)
                for x, y in zip(arguments, after, strict=False)
            ]
            still = ew.and_(active, go)
            step = Body(arguments, [*after, still, reduce_max(still, (0,))])
        call = WhileCall(step, count + 1)
        return call, (reduce_max(wide[0], (0,)), *wide[1:], wide[0], *constants)

    # -- running ----------------------------------------------------------------------------------

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        go, init = bool(elements(operands[0])), operands[1 : 1 + self.carried]
        constants = operands[1 + self.carried :]
        if not self.body.is_native(dev):
            return self._step_by_step(dev, go, init, constants)
        carry = stable_carry(init, dev)
        if not go:
            return [x.view for x in carry if x.view is not None]
        inputs = [*carry, *constants]
        layout = tuple([x.view.strides for x in inputs if x.view is not None])
        replay = self.body.replay(dev, layout)
        show(self.body, replay, dev, inputs, layout)
        memories = [dev.runtime.allocate(block_bytes(kind)) for kind in self.body.results]
        blocks = [0] * len(memories)
        for at, memory in enumerate(memories):
            blocks[replay.outputs[at].block] = memory.address
        swaps = [(i, replay.block(i)) for i in range(self.carried)]
        addresses = addresses_of(inputs)
        done = _AT_ONCE
        while done == _AT_ONCE:  # after an even number of steps, everything is where it was
            done = replay.repeat(list(addresses), blocks, _AT_ONCE, (), swaps, memories[-1])
            if done == _AT_ONCE and not dev.runtime.download(memories[-1], bool_, 1)[0]:
                break
        found = []
        for x, memory in zip(carry, memories, strict=False):
            assert x.view is not None
            kept = memory if done % 2 else x.view.storage.memory
            found.append(View(Storage(kept), 0, row_major(x.shape)))
        return found

    def _step_by_step(
        self, dev: Device, go: bool, init: Sequence[Node], constants: Sequence[Node]
    ) -> list[View]:
        carry = list(init)
        while go:
            *carry, flag = self.body.evaluated([*carry, *constants])
            go = bool(elements(flag))
        results = stable_carry(carry, dev)
        return [y.view for y in results if y.view is not None]


def _broadcast_carry(mask: Node, like: Node) -> Node:
    """A mask over the first axis for all elements of an array."""
    return broadcast(reshape(mask, mask.shape + (1,) * (like.ndim - 1)), like.shape)


def while_loop(cond_fun: Function, body_fun: Function, init: Any) -> Any:
    """The state after `state = body_fun(state)` as long as `cond_fun(state)` holds.

    The state is a container of tensors that keep their types. The loop runs outside of Python.
    How often is not known, so there is forward mode only: reverse mode needs `scan` or `fori_loop`.

    >>> import numus as nm
    >>> nm.while_loop(lambda x: x < 100, lambda x: x * 2, nm.asarray(3)).item()
    192
    """
    op = "while_loop"
    for f in (cond_fun, body_fun):
        require_function(f, op)
    traced = trace_body(op, "the state", body_fun, init)
    carry, arguments, after = traced.carry, traced.arguments, traced.after
    answer = call_on(cond_fun, (traced.structure,), arguments, traced.inside)
    answers, shape = nodes_of(answer, op, "the condition")
    if shape.kind is not None or answers[0].shape != () or answers[0].dtype is not bool_:
        raise ShapeError("while_loop: the condition must give one bool, a tensor without axes")
    count = len(carry)
    if traced.inside.iteration is not None:
        arguments.append(traced.inside.iteration)
        after.append(ew.add(traced.inside.iteration, constant(1, uint32)))
        carry.append(constant(0, uint32))
    constants = constants_of(arguments, [*after, *answers])
    inputs = [*arguments, *constants]
    results = loop(Body(inputs, answers), Body(inputs, after), carry, constants)
    return traced.carried(results[:count])


def loop(goes_on: Body, body: Body, carry: Sequence[Node], constants: Sequence[Node]) -> list[Node]:
    """The nodes of the state after a loop."""
    arguments = spots(body.inputs, None, "while_loop", True)
    with grad_mode(True):
        after = body(arguments)
        step = Body(arguments, [*after, *goes_on([*after, *arguments[len(carry) :]])])
    operands = (*carry, *constants)
    with grad_mode(False):
        begins = goes_on(operands)
    found = control.call(WhileCall(step, len(carry)), (*begins, *operands))
    if not (mode.grad and any(x.tracked for x in operands)):
        return found
    rule = WhileRule(goes_on, body, len(carry))
    return [custom(rule, i, y, operands) if y.dtype.is_inexact else y for i, y in enumerate(found)]


class WhileRule(CallRule):
    """The tangents go along in a loop of the same length. Operands: the state and the constants."""

    def __init__(self, goes_on: Body, body: Body, carried: int) -> None:
        super().__init__()
        self._goes_on = goes_on
        self._body = body
        self._carried = carried
        self.count = carried

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        raise GradientError(
            "while_loop: reverse mode would have to keep every state of a loop whose length is not "
            "known; use nm.scan or nm.fori_loop, or forward mode (nm.jvp, nm.jacfwd)"
        )

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        count = self._carried
        constants = [Tensor(x) for x in operands[count:]]
        given = [
            None if not x.dtype.is_inexact else full(x.shape, 0, x.dtype) if t is None else t
            for x, t in zip(operands, tangents, strict=True)
        ]

        def cond_fun(state: Any) -> Tensor:
            return self._goes_on.on_tensors(*state[0], *constants)[0]

        def body_fun(state: Any) -> Any:
            carry, moves = state
            trace = Trace("while_loop", self._body.on_tensors, [*carry, *constants])
            along = [None if t is None else t._node for t in moves]
            found = trace.forward([*along, *given[count:]])
            trace.close([*found, *trace.outputs])
            values = tree.leaves(trace.value())
            return values, [
                Tensor(full(y.shape, 0, y.dtype) if t is None else t)
                if y.dtype.is_inexact
                else None
                for y, t in zip(trace.outputs, found, strict=True)
            ]

        init = ([Tensor(x) for x in operands[:count]], tensors_of(given[:count]))
        _, moves = while_loop(cond_fun, body_fun, init)
        return [None if t is None else t._node for t in moves]
