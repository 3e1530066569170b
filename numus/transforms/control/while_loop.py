"""while_loop: a loop that ends when its state says so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numus.dtypes import bool_, uint32
from numus.errors import GradientError, ShapeError
from numus.evaluation.evaluate import elements
from numus.graph import Nodes, Storage, Tangents, View, grad_mode, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast
from numus.primitives.control import BoundCall
from numus.primitives.reduce import reduce_max
from numus.primitives.source import constant
from numus.runtime.devices import Device
from numus.shapes import row_major
from numus.tensor import Tensor
from numus.transforms.control import body as bodies
from numus.transforms.control.body import Body, placeholders, tensors_of, types_of
from numus.transforms.rules import CallRule, differentiated, instantiate_zeros
from numus.transforms.trace import nodes_of, require_function, tensors
from numus.transforms.vmap import move_axis

__all__ = ["while_loop"]

Function = Callable[..., Any]

_UNINTERRUPTED_STEPS = 1 << 20  # between two checks for an interrupt; even, see `run`


class WhileCall:
    """The loop: operands are the first condition, the carried values, the constants.

    The body returns the carried values, and the next condition.
    """

    name = "while_loop"

    def __init__(self, body: Body, carried: int, innermost: bool = False) -> None:
        self.body = body
        self.carried = carried
        self.results = body.results[:carried]
        self.has_effects = body.has_effects
        self.batch_axes = [len(shape) - 1 if innermost else 0 for shape, _ in self.results]

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        """All entries step together while one of them goes on; the state of others is frozen."""
        count = self.carried
        go, *carry = (
            x if flag else broadcast(x, (size, *x.shape))
            for x, flag in zip(operands[: 1 + count], flags, strict=False)
        )
        constants = list(operands[1 + count :])
        innermost = bodies.batch_is_innermost(self.results, size)
        if innermost:
            carry = [move_axis(x, 0, x.ndim - 1) for x in carry]
            constants = [
                bodies.innermost_copy(x) if flag else x
                for x, flag in zip(constants, flags[1 + count :], strict=True)
            ]
        body = self.body.batched([*([True] * count), *flags[1 + count :]], size, innermost)
        types = [*body.inputs[:count], ((size,), bool_), *body.inputs[count:]]
        arguments = placeholders(types, None, "vmap", True)
        with grad_mode(True):
            active = arguments[count]
            *after, more = body([*arguments[:count], *arguments[count + 1 :]])
            pairs = zip(arguments, after, strict=False)
            select = bodies.select_innermost if innermost else bodies.select_entries
            after = [select(active, y, x) for x, y in pairs]
            still = ew.and_(active, more)
            step = Body(arguments, [*after, still, reduce_max(still, (0,))])
        call = WhileCall(step, count + 1, innermost)
        return call, (reduce_max(go, (0,)), *carry, go, *constants)

    # -- running ----------------------------------------------------------------------------------

    def run(self, dev: Device, operands: Nodes, spare: frozenset[int] = frozenset()) -> list[View]:
        """The last state. `spare`: operands, by number, whose memory the loop may use."""
        go, init = bool(elements(operands[0])), operands[1 : 1 + self.carried]
        constants = operands[1 + self.carried :]
        if not self.body.is_native(dev):
            state = list(init)
            while go:
                *state, flag = self.body.evaluated(dev, [*state, *constants])
                go = bool(elements(flag))
            return bodies.views_of(bodies.stable_carry(state, dev))
        own = frozenset(i - 1 for i in spare if 0 < i <= self.carried)
        carry = bodies.stable_carry(init, dev, own)
        views = bodies.views_of(carry)
        if not go:
            return views
        inputs = [*carry, *constants]
        layout = tuple([view.strides for view in bodies.views_of(inputs)])
        plan = self.body.plan(dev, inputs, layout, self.carried)
        # what is written by index stays in its memory; the rest alternates between two
        updates = [pair for pair in self.body.updates_on(dev) if pair[0] < self.carried]
        updated = set(plan.donatable(updates).values())
        memories = [
            views[at].storage.memory
            if at in updated
            else dev.runtime.allocate(bodies.block_bytes(kind))
            for at, kind in enumerate(self.body.results)
        ]
        blocks = [0] * len(memories)
        for at, memory in enumerate(memories):
            blocks[plan.outputs[at].block] = memory.address
        swaps = [(i, plan.block(i)) for i in range(self.carried) if i not in updated]
        addresses = bodies.addresses_of(inputs)
        limit = done = _UNINTERRUPTED_STEPS
        while done == limit:  # after an even number of steps, everything is where it was
            # a run too many overwrites nothing but the state before the last
            about = (limit, (), swaps, memories[-1], not updated)
            done = plan.repeat(list(addresses), blocks, *about)
            if done == limit and not dev.runtime.download(memories[-1], bool_, 1)[0]:
                break
        return [
            View(Storage(memory if done % 2 else view.storage.memory), 0, row_major(x.shape))
            for x, view, memory in zip(carry, views, memories, strict=False)
        ]


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
    traced = bodies.trace_body(op, "the state", body_fun, init)
    carry, arguments, after, effects = traced.carry, traced.arguments, traced.after, traced.effects
    answer = bodies.call_on(cond_fun, (traced.structure,), arguments, effects)
    answers, shape = nodes_of(answer, op, "the condition")
    if shape.kind is not None or answers[0].shape != () or answers[0].dtype is not bool_:
        raise ShapeError("while_loop: the condition must give one bool, a tensor without axes")
    count = len(carry)
    for number in effects.numbers([*after, *answers]):
        arguments += placeholders([((), uint32)], None, op)
        after.append(number)
        carry.append(constant(0, uint32))
    if effects.iteration is not None:
        arguments.append(effects.iteration)
        after.append(ew.add(effects.iteration, constant(1, uint32)))
        carry.append(constant(0, uint32))
    constants = bodies.constants_of(arguments, [*after, *answers])
    inputs = [*arguments, *constants]
    condition, body = Body(inputs, answers), Body(inputs, after)

    arguments = placeholders(body.inputs, None, op, True)
    with grad_mode(True):
        after = body(arguments)
        step = Body(arguments, [*after, *condition([*after, *arguments[len(carry) :]])])
    operands = (*carry, *constants)
    with grad_mode(False):
        begins = condition(operands)
    found = control.call(WhileCall(step, len(carry)), (*begins, *operands))
    if mode.grad and any(x.tracked for x in operands):
        found = differentiated(WhileRule(len(carry), condition, body), found, operands)
    return tensors(traced.structure, found[:count])


@dataclass(eq=False)
class WhileRule(CallRule):
    """Tangents are carried by a loop of the same length. Operands: the state and the constants."""

    condition: Body
    body: Body

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        raise GradientError(
            "while_loop: reverse mode would have to keep every state of a loop whose length is not "
            "known; use nm.scan or nm.fori_loop, or forward mode (nm.jvp, nm.jacfwd)"
        )

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        count = self.count
        constants = [Tensor(x) for x in operands[count:]]
        given = instantiate_zeros(tangents, types_of(operands))

        def cond_fun(state: Any) -> Any:
            return self.condition.on_tensors(*state[0], *constants)[0]

        def body_fun(state: Any) -> Any:
            carry, moves = state
            every = [*bodies.nodes_or_none(moves), *given[count:]]
            return self.body.jvp("while_loop", [*carry, *constants], every)

        init = (tensors_of(operands[:count]), tensors_of(given[:count]))
        return bodies.nodes_or_none(while_loop(cond_fun, body_fun, init)[1])
