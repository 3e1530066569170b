"""scan: a loop of known length that carries a state, reads slices and stacks results."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import Node, Nodes, Storage, Tangents, View, checking_effects, mode
from numus.lru import LruTable
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.control import BoundCall
from numus.primitives.source import constant, iota, placeholder
from numus.primitives.structure import concat
from numus.primitives.views import permute, reshape, take_range
from numus.runtime.devices import Device
from numus.shapes import as_int, row_major
from numus.tensor import Tensor, node_of
from numus.transforms import tree
from numus.transforms.control import body as bodies
from numus.transforms.control.body import Body, placeholders, tensors_of, types_of
from numus.transforms.control.loop_sum_hoisting import HoistedSum, total_of, worth_it
from numus.transforms.control.while_loop import while_loop
from numus.transforms.effects import LoopEffects
from numus.transforms.rules import CallRule, differentiated, instantiate_zeros
from numus.transforms.subgraph import Recipe, dependents
from numus.transforms.trace import nodes_of, require_function, tensors

__all__ = ["fori_loop", "scan"]

Function = Callable[..., Any]

_MAX_REVERSED = 16  # recipes of a loop's derivative


@dataclass(eq=False)
class ScanCall:
    """The loop: operands are the carried values, the arrays to be sliced, the constants."""

    body: Body
    carried: int
    sliced: int
    length: int
    reverse: bool
    innermost: bool = False  # a batch's axis, if it has one
    name = "scan"

    def __post_init__(self) -> None:
        last, rows = self.body.results[: self.carried], self.body.results[self.carried :]
        self.results = [*last, *(((self.length, *shape), dtype) for shape, dtype in rows)]
        self.batch_axes = [0] * len(last) + [1] * len(rows)
        self.has_effects = self.body.has_effects
        if self.innermost:
            self.batch_axes = [len(shape) - 1 for shape, _ in self.results]

    def split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        """Carried values, sliced arrays, constants, and residuals."""
        xs = list(operands)
        a, b, c = self.carried, self.carried + self.sliced, len(self.body.inputs)
        return xs[:a], xs[a:b], xs[b:c], xs[c:]

    def saving_residuals(self) -> ScanCall:
        """The loop that also stacks what backward needs of every iteration."""
        return replace(self, body=self.body.saving_residuals(self.carried))

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        carries = [i < self.carried or flag for i, flag in enumerate(flags)]  # every carry does
        innermost = bodies.batch_is_innermost(self.body.results[: self.carried], size)
        given = []
        for i, (x, flag) in enumerate(zip(operands, flags, strict=True)):
            if carries[i] and not flag:
                x = broadcast(x, (size, *x.shape))
            if carries[i] and innermost:
                x = bodies.innermost_copy(x)
            elif flag and self.carried <= i < self.carried + self.sliced:
                x = permute(x, (1, 0, *range(2, x.ndim)))
            given.append(x)
        body = self.body.batched(carries, size, innermost)
        return replace(self, body=body, innermost=innermost), tuple(given)

    # -- running ----------------------------------------------------------------------------------

    def run(self, dev: Device, operands: Nodes) -> list[View]:
        if not self.body.is_native(dev):
            return self._step_by_step(dev, operands)
        init = bodies.stable_carry(operands[: self.carried], dev)
        inputs = [*init, *operands[self.carried :]]
        first = self.carried + self.sliced
        layout, starts, steps = [], bodies.addresses_of(inputs), []
        for i, (x, view) in enumerate(zip(inputs, bodies.views_of(inputs), strict=True)):
            strides = view.strides
            if self.carried <= i < first:
                by = strides[0] * x.dtype.itemsize if self.length else 0
                strides = strides[1:]
                starts[i] += (self.length - 1) * by * self.reverse
                steps.append((i, -by if self.reverse else by))
            layout.append(strides)
        plan = self.body.plan(dev, inputs, tuple(layout), first, runs=self.length > 0)
        memories = []  # of the results
        blocks = [0] * len(self.body.results)
        for at, kind in enumerate(self.results):
            nbytes = bodies.block_bytes(kind)
            memories.append(dev.runtime.allocate(nbytes))
            block = plan.outputs[at].block
            blocks[block] = memories[at].address
            if at >= self.carried:
                by = nbytes // max(self.length, 1)
                blocks[block] += (self.length - 1) * by * self.reverse if self.length else 0
                steps.append((plan.block(at), -by if self.reverse else by))
        swaps = [(i, plan.block(i)) for i in range(self.carried)]
        plan.repeat(starts, blocks, self.length, steps, swaps)
        if self.length % 2 == 0:  # the carry is back in the memory that it began in
            memories[: self.carried] = [view.storage.memory for view in bodies.views_of(init)]
        return [
            View(Storage(memory), 0, row_major(shape))
            for memory, (shape, _) in zip(memories, self.results, strict=True)
        ]

    def _step_by_step(self, dev: Device, operands: Nodes) -> list[View]:
        carry, arrays, constants, _ = self.split(operands)
        types = self.results[self.carried :]
        rows: list[list[Node]] = [[] for _ in types]
        for i in range(self.length)[:: -1 if self.reverse else 1]:
            slices = [reshape(take_range(x, 0, i, i + 1), x.shape[1:]) for x in arrays]
            found = self.body.evaluated(dev, [*carry, *slices, *constants])
            carry = found[: self.carried]
            for row, y in zip(rows, found[self.carried :], strict=True):
                row.append(reshape(y, (1, *y.shape)))
        stacked = [
            concat(tuple(row[::-1] if self.reverse else row), 0) if row else full(shape, 0, dtype)
            for row, (shape, dtype) in zip(rows, types, strict=True)
        ]
        return bodies.views_of(bodies.stable_carry([*carry, *stacked], dev))


def scan(
    f: Function, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Call `f(carry, x) -> (carry, y)` for each slice of xs along its first axis.

    Gives the last carry and the ys, stacked. Both are containers of tensors; the carry keeps its
    types. Without xs, `length` says how often. The loop runs outside of Python, and is
    differentiable in both modes. Random draws inside f differ between iterations.

    >>> import numus as nm
    >>> total, sums = nm.scan(lambda c, x: (c + x, c + x), 0.0, nm.asarray([1.0, 2.0, 3.0]))
    >>> sums.tolist()
    [1.0, 3.0, 6.0]
    """
    op = "scan"
    require_function(f, op)
    sliced, xs_structure = nodes_of(xs, op, "xs")
    length = _length(sliced, xs_structure, length)
    traced = bodies.trace_body(op, "the carry", f, init, sliced, xs_structure, _carry_and_y)
    ys, ys_structure = nodes_of(traced.rest, op, "y")
    count = len(traced.carry)
    carry = dict(zip(traced.arguments, traced.carry, strict=False))
    slices = dict(zip(traced.arguments[count:], sliced, strict=True))
    outputs = [*traced.after, *ys]
    given = [*outputs, *traced.effects.numbers(outputs)]
    results = _loop(carry, slices, given, traced.effects, length, reverse)[: len(outputs)]
    return tensors(traced.structure, results[:count]), tensors(ys_structure, results[count:])


def _carry_and_y(answer: Any) -> tuple[Any, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise TypeError(f"scan: the function must return (carry, y), not {answer!r}")
    return answer


def _length(sliced: Nodes, structure: tree.Structure, given: int | None) -> int:
    if given is not None:
        given = as_int(given, "length", "scan")
        if given < 0:
            raise ShapeError(f"scan: length must not be negative, but is {given}")
    for x, path in zip(sliced, tree.paths(structure), strict=True):
        if x.ndim == 0:
            raise ShapeError(f"scan: xs{path} has no axis to go along")
        if given is not None and x.shape[0] != given:
            raise ShapeError(f"scan: xs{path} has {x.shape[0]} slices, where there are {given}")
        given = x.shape[0]
    if given is None:
        raise ShapeError("scan: without xs, give the length")
    return given


Values = dict[Node, Node]  # arguments of a body, and what the loop is given for them


def _loop(
    carry: Values, slices: Values, outputs: Nodes, effects: LoopEffects, length: int, reverse: bool
) -> list[Node]:
    """The results of a loop whose body was traced from these arguments to outputs."""
    if effects.iteration is not None:
        slices = {**slices, effects.iteration: iota(length, dt.uint32, None)}
    arguments = [*carry, *slices]
    constants = bodies.constants_of(arguments, outputs)
    body = Body([*arguments, *constants], outputs)
    invariant = bodies.with_layouts(constants, arguments, outputs)
    operands = (*carry.values(), *slices.values(), *invariant)
    return _call(ScanCall(body, len(carry), len(slices), length, reverse), operands)


def _call(call: ScanCall, operands: tuple[Node, ...]) -> list[Node]:
    """The nodes of a scan's results: the last carried values, and the rows of ys."""
    if not (mode.grad and any(x.tracked for x in operands)):
        return control.call(call, operands)
    found = control.call(call.saving_residuals(), operands)
    count = len(call.results)
    return differentiated(ScanRule(count, call), found[:count], (*operands, *found[count:]))


@dataclass(eq=False)
class ScanRule(CallRule):
    """Derivatives of a scan are scans: of tangents along it, of cotangents against it.

    Operands are those of the loop, and then its residuals of every iteration: the carried values
    that it began with, and matmuls.
    """

    call: ScanCall

    @functools.cached_property
    def _reversed(self) -> LruTable[Any, tuple[Recipe, list[bool]] | None]:
        return LruTable(_MAX_REVERSED)

    def vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        """From the second time on by a recipe: what the reverse loop looks like depends on the
        types of operands and on which cotangents there are, and tracing it takes a millisecond."""
        given = [*operands, *(g for g in cotangents if g is not None)]
        if not self._repeats(given):
            return self._traced_vjp(operands, cotangents)
        devices = tuple([x.device for x in given])
        key = (tuple([g is None for g in cotangents]), devices, mode.autocast)
        known = self._reversed.get(key)
        if known is None:
            if key not in self._reversed:
                self._reversed[key] = None
                return self._traced_vjp(operands, cotangents)
            known = self._reversed[key] = self._recipe(given, len(operands), cotangents)
        recipe, is_given = known
        found = iter(recipe.replay(given))
        return [next(found) if x else None for x in is_given]

    def _repeats(self, given: Nodes) -> bool:
        """Whether a recipe of the reverse loop serves: on values, of which no derivative is asked.
        (Programs are traced once, and loops of GPUs look at how their constants are laid out.)"""
        return not self.call.has_effects and not any(
            x.abstract or (mode.grad and x.tracked) or not (x.device is None or x.device.on_host)
            for x in given
        )

    def _recipe(self, given: Nodes, count: int, cotangents: Tangents) -> tuple[Recipe, list[bool]]:
        """How results follow from operands and cotangents, and which there are."""
        arguments = [placeholder(x.shape, x.dtype, x.device, "scan") for x in given]
        left = iter(arguments[count:])
        each = [None if g is None else next(left) for g in cotangents]
        found = self._traced_vjp(arguments[:count], each)
        wanted = [g for g in found if g is not None]
        recipe = Recipe(dependents(wanted, arguments), arguments, wanted)
        return recipe, [g is not None for g in found]

    def _traced_vjp(self, operands: Nodes, cotangents: Tangents) -> Tangents:
        call, carried = self.call, self.call.carried
        init, sliced, constants, saved = call.split(operands)
        if mode.grad and any(x.tracked for x in operands):
            # the residuals are to be differentiated too, which saved ones are not
            saved = _call(call.saving_residuals(), (*init, *sliced, *constants))[self.count :]
        dev = bodies.device_of([*init, *sliced, *constants])
        every = instantiate_zeros(cotangents, call.results)
        last, rows = every[:carried], every[carried:]
        state = [g for g in last if g is not None]
        scanned = [*saved, *sliced, *(g for g in rows if g is not None)]
        effects = LoopEffects("scan")
        carry = placeholders(types_of(state), dev, "scan")
        slices = placeholders([(x.shape[1:], x.dtype) for x in scanned], dev, "scan")
        matmuls, xs = slices[carried : len(saved)], slices[len(saved) :]
        primals = [*slices[:carried], *xs[: call.sliced], *constants]
        given = _in_order(last, carry) + _in_order(rows, xs[call.sliced :])
        with checking_effects(effects):
            found = call.body.vjp("scan", primals, given, matmuls)
        grads = instantiate_zeros(found, call.body.inputs)
        init_grads = dict(zip(carry, state, strict=True))
        arrays = dict(zip(slices, scanned, strict=True))
        return [*_reverse_scan(call, init_grads, arrays, effects, grads), *(None for _ in saved)]

    def jvp(self, operands: Nodes, tangents: Tangents) -> Tangents:
        call, carried = self.call, self.call.carried
        init, sliced, constants, _ = call.split(operands)
        every = instantiate_zeros(tangents, types_of(operands))
        t_init, t_sliced, t_constants, _ = call.split(every)

        def forward(state: Any, slices: Any) -> Any:
            (carry, t_carry), (xs, t_xs) = state, slices
            primals = [*carry, *xs, *(Tensor(x) for x in constants)]
            given = [*bodies.nodes_or_none([*t_carry, *t_xs]), *t_constants]
            values, out = call.body.jvp("scan", primals, given)
            return (values[:carried], out[:carried]), out[carried:]

        states, arrays = (
            (tensors_of(x), tensors_of(t)) for x, t in ((init, t_init), (sliced, t_sliced))
        )
        (_, t_last), t_rows = scan(forward, states, arrays, call.length, call.reverse)
        return bodies.nodes_or_none([*t_last, *t_rows])


def _in_order(wanted: Tangents, nodes: Nodes) -> list[Node | None]:
    """The nodes at the positions of the wanted ones, which are not None."""
    left = iter(nodes)
    return [None if x is None else next(left) for x in wanted]


def _reverse_scan(
    call: ScanCall, carry: Values, slices: Values, effects: LoopEffects, grads: Tangents
) -> Tangents:
    """The cotangents of a scan's inputs from those of one iteration's, by a loop against it:
    cotangents of carried values are its carry, those of slices its rows; those of constants are
    summed over all iterations, after the loop where that costs less.
    """
    g_carry, g_sliced, g_constants, _ = call.split(grads)
    after = [g for g in g_carry if g is not None]
    rows = [g for g in g_sliced if g is not None]
    carried = len(after)
    stacked = dict(slices)  # values of all iterations
    hoisted: dict[int, HoistedSum] = {}
    for i, g in enumerate(g_constants):
        if g is None:
            continue
        total = total_of(g) if g.abstract else None
        parts = [] if total is None else [_aliased(x) for x in total.parts]
        parts = [x for x in parts if x not in stacked and x not in rows]
        if total is not None and worth_it(g, parts):
            hoisted[i] = total
            rows += dict.fromkeys(parts)
        else:
            (accumulator,) = placeholders([(g.shape, g.dtype)], g.device, "scan")
            carry[accumulator] = full(g.shape, 0, g.dtype)
            after.append(ew.add(accumulator, g))
    results = _loop(carry, slices, [*after, *rows], effects, call.length, not call.reverse)
    g_rows, sums = results[len(after) :], iter(results[carried : len(after)])
    stacked |= zip(rows, g_rows, strict=True)
    totals = [
        hoisted[i].finish(lambda x: stacked[_aliased(x)]) if i in hoisted else g and next(sums)
        for i, g in enumerate(g_constants)
    ]
    return [*_in_order(g_carry, results), *_in_order(g_sliced, g_rows), *totals]


def _aliased(x: Node) -> Node:
    """The node of the same elements behind reshapes to the same shape."""
    while x.prim.name == "reshape" and x.inputs and x.shape == x.inputs[0].shape:
        x = x.inputs[0]
    return x


def fori_loop(lower: Any, upper: Any, f: Function, init: Any) -> Any:
    """The state after `state = f(i, state)` for i from lower to upper - 1.

    Where the bounds are not known while it is traced, it is a `while_loop`.

    >>> import numus as nm
    >>> nm.fori_loop(1, 5, lambda i, total: total + i, 0).item()
    10
    """
    require_function(f, "fori_loop")
    if not (_is_known_number(lower) and _is_known_number(upper)):
        return _while_below(upper, f, lower, init)
    lower, upper = as_int(lower, "lower", "fori_loop"), as_int(upper, "upper", "fori_loop")
    count = max(upper - lower, 0)
    start = constant(lower, dt.default_int)
    counter = Tensor(ew.add(iota(count, dt.default_int, None), start))
    return scan(lambda state, i: (f(i, state), None), init, counter)[0]


def _is_known_number(bound: Any) -> bool:
    return is_known(bound._node) if isinstance(bound, Tensor) else not isinstance(bound, dt.Weak)


def _while_below(upper: Any, f: Function, lower: Any, init: Any) -> Any:
    def step(state: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        i, inner = state
        return Tensor(ew.add(i._node, constant(1, dt.default_int))), f(i, inner)

    first, last = (ew.cast(node_of(n, "fori_loop"), dt.default_int) for n in (lower, upper))
    return while_loop(
        lambda state: Tensor(ew.lt(state[0]._node, last)), step, (Tensor(first), init)
    )[1]
