"""scan: a loop of known length that carries a state, reads slices and stacks results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

from numus import dtypes as dt
from numus.errors import ShapeError
from numus.evaluation.evaluate import is_known
from numus.graph import Node, Storage, View, checking_effects, mode
from numus.primitives import control
from numus.primitives import elementwise as ew
from numus.primitives.broadcast import broadcast, full
from numus.primitives.custom import custom
from numus.primitives.source import constant, iota
from numus.primitives.structure import concat
from numus.primitives.views import permute, reshape, take_range
from numus.runtime.devices import Device
from numus.shapes import row_major
from numus.tensor import Tensor, node_of
from numus.transforms import tree
from numus.transforms.control.body import (
    Body,
    addresses_of,
    block_bytes,
    constants_of,
    device_of,
    show,
    spots,
    stable_carry,
    tensors_of,
    types_of,
    with_layouts,
)
from numus.transforms.control.carry import trace_body
from numus.transforms.control.loop_sum_hoisting import HoistedSum, total_of, worth_it
from numus.transforms.control.while_loop import while_loop
from numus.transforms.effects import LoopEffects
from numus.transforms.rules import CallRule
from numus.transforms.trace import Trace, nodes_of, require_function

__all__ = ["fori_loop", "scan"]

Function = Callable[..., Any]


class ScanCall:
    """The loop: operands are the carried values, the arrays to be sliced, the constants."""

    name = "scan"

    def __init__(self, body: Body, carried: int, sliced: int, length: int, reverse: bool) -> None:
        self.body = body
        self.carried = carried
        self.sliced = sliced
        self.length = length
        self.reverse = reverse
        self.results = [
            *body.results[:carried],
            *(((length, *shape), dtype) for shape, dtype in body.results[carried:]),
        ]
        self.batch_axes = [0] * carried + [1] * (len(body.results) - carried)

    def batched(
        self, operands: Sequence[Node], flags: Sequence[bool], size: int
    ) -> tuple[control.Call, tuple[Node, ...]]:
        wide = [i < self.carried or flag for i, flag in enumerate(flags)]  # every carry is
        given = []
        for i, (x, flag) in enumerate(zip(operands, flags, strict=True)):
            if wide[i] and not flag:
                x = broadcast(x, (size, *x.shape))
            if flag and self.carried <= i < self.carried + self.sliced:
                x = permute(x, (1, 0, *range(2, x.ndim)))
            given.append(x)
        body = self.body.batched(wide, size)
        return ScanCall(body, self.carried, self.sliced, self.length, self.reverse), tuple(given)

    # -- running ----------------------------------------------------------------------------------

    def run(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        if not self.body.is_native(dev):
            return self._step_by_step(dev, operands)
        init = stable_carry(operands[: self.carried], dev)
        inputs = [*init, *operands[self.carried :]]
        first = self.carried + self.sliced
        layout, starts, steps = [], addresses_of(inputs), []
        for i, x in enumerate(inputs):
            assert x.view is not None
            strides = x.view.strides
            if self.carried <= i < first:
                by = strides[0] * x.dtype.itemsize if self.length else 0
                strides = strides[1:]
                starts[i] += (self.length - 1) * by * self.reverse
                steps.append((i, -by if self.reverse else by))
            layout.append(strides)
        replay = self.body.replay(dev, tuple(layout))
        if self.length:
            show(self.body, replay, dev, inputs, layout)
        memories: dict[int, Any] = {}  # of the body's results, by block
        blocks = [0] * len(self.body.results)
        for at, (shape, dtype) in enumerate(self.results):
            nbytes = block_bytes((shape, dtype))
            memory = memories[at] = dev.runtime.allocate(nbytes)
            block = replay.outputs[at].block
            blocks[block] = memory.address
            if at >= self.carried:
                by = nbytes // max(self.length, 1)
                blocks[block] += (self.length - 1) * by * self.reverse if self.length else 0
                steps.append((replay.block(at), -by if self.reverse else by))
        swaps = [(i, replay.block(i)) for i in range(self.carried)]
        replay.repeat(starts, blocks, self.length, steps, swaps)
        views = []
        for at, (shape, _) in enumerate(self.results):
            memory = memories[at]
            if at < self.carried and self.length % 2 == 0:
                view = init[at].view
                assert view is not None
                memory = view.storage.memory
            views.append(View(Storage(memory), 0, row_major(shape)))
        return views

    def _step_by_step(self, dev: Device, operands: Sequence[Node]) -> list[View]:
        first = self.carried + self.sliced
        carry = list(operands[: self.carried])
        rows: list[list[Node]] = [[] for _ in self.results[self.carried :]]
        for k in range(self.length):
            i = self.length - 1 - k if self.reverse else k
            slices = [
                reshape(take_range(x, 0, i, i + 1), x.shape[1:])
                for x in operands[self.carried : first]
            ]
            found = self.body.evaluated([*carry, *slices, *operands[first:]])
            carry = found[: self.carried]
            for row, y in zip(rows, found[self.carried :], strict=True):
                row.append(reshape(y, (1, *y.shape)))
        stacked = [
            concat(tuple(row[::-1] if self.reverse else row), 0) if row else full(shape, 0, dtype)
            for row, (shape, dtype) in zip(rows, self.results[self.carried :], strict=True)
        ]
        results = stable_carry([*carry, *stacked], dev)
        return [y.view for y in results if y.view is not None]


def scan(
    f: Function, init: Any, xs: Any = None, length: int | None = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Call `f(carry, x) -> (carry, y)` for each slice of xs along its first axis.

    Gives the last carry and the ys, stacked. Both are containers of tensors; the carry keeps its
    types. Without xs, `length` says how often. The loop runs outside of Python, and is
    differentiable in both modes. Random draws inside f are others at each turn.

    >>> import numus as nm
    >>> total, sums = nm.scan(lambda c, x: (c + x, c + x), 0.0, nm.asarray([1.0, 2.0, 3.0]))
    >>> sums.tolist()
    [1.0, 3.0, 6.0]
    """
    op = "scan"
    require_function(f, op)
    sliced, xs_structure = nodes_of(xs, op, "xs")
    length = _length(sliced, xs_structure, length)
    traced = trace_body(op, "the carry", f, init, sliced, xs_structure, _carry_and_y)
    arguments, after = traced.arguments, traced.after
    ys, ys_structure = nodes_of(traced.rest, op, "y")
    if traced.inside.iteration is not None:
        arguments.append(traced.inside.iteration)
        sliced.append(iota(length, dt.uint32, None))
    constants = constants_of(arguments, [*after, *ys])
    body = Body([*arguments, *constants], [*after, *ys])
    operands = (*traced.carry, *sliced, *with_layouts(constants, arguments, [*after, *ys]))
    count = len(traced.carry)
    results = loop(body, operands, count, len(sliced), length, reverse)
    stacked = tree.unflatten(ys_structure, [Tensor(y) for y in results[count:]])
    return traced.carried(results[:count]), stacked


def _carry_and_y(answer: Any) -> tuple[Any, Any]:
    if not (isinstance(answer, tuple) and len(answer) == 2):
        raise TypeError(f"scan: the function must return (carry, y), not {answer!r}")
    return answer


def _length(sliced: Sequence[Node], structure: tree.Structure, given: int | None) -> int:
    for x, path in zip(sliced, tree.paths(structure), strict=True):
        if x.ndim == 0:
            raise ShapeError(f"scan: xs{path} has no axis to go along")
        if given is not None and x.shape[0] != given:
            raise ShapeError(f"scan: xs{path} has {x.shape[0]} slices, where there are {given}")
        given = x.shape[0]
    if given is None:
        raise ShapeError("scan: without xs, give the length")
    return given


def loop(
    body: Body, operands: tuple[Node, ...], carried: int, sliced: int, length: int, reverse: bool
) -> list[Node]:
    """The nodes of a scan's results: the last carried values, and the rows of ys."""
    if not (mode.grad and any(x.tracked for x in operands)):
        return control.call(ScanCall(body, carried, sliced, length, reverse), operands)
    keeping = body.keeping(carried)  # every step's carried values, for the way back
    found = control.call(ScanCall(keeping, carried, sliced, length, reverse), operands)
    count = len(body.results)
    rule = ScanRule(body, carried, sliced, length, reverse)
    return [
        custom(rule, i, y, (*operands, *found[count:])) if y.dtype.is_inexact else y
        for i, y in enumerate(found[:count])
    ]


class ScanRule(CallRule):
    """Derivatives of a scan are scans: of tangents along it, of cotangents against it.

    Operands are those of the loop, and then what it kept of every step: the carried values that it
    began with, and its products.
    """

    def __init__(self, body: Body, carried: int, sliced: int, length: int, reverse: bool) -> None:
        super().__init__()
        self._length = length
        self._body = body
        self._carried = carried
        self._sliced = sliced
        self._reverse = reverse
        self.count = len(body.results)

    def _split(self, operands: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
        a, b, c = self._carried, self._carried + self._sliced, len(self._body.inputs)
        return (
            list(operands[:a]),
            list(operands[a:b]),
            list(operands[b:c]),
            list(operands[c:]),
        )

    def vjp(
        self, operands: Sequence[Node], cotangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        init, sliced, constants, kept = self._split(operands)
        length = self._length
        if mode.grad and any(x.tracked for x in operands):
            # they are to be differentiated too, which what was kept is not
            keeping = self._body.keeping(self._carried)
            again = (*init, *sliced, *constants)
            results = loop(keeping, again, self._carried, self._sliced, length, self._reverse)
            kept = results[len(self._body.results) :]
        moving = [dtype.is_inexact for _, dtype in self._body.inputs]
        carried, count = self._carried, self._carried + self._sliced
        last = [
            None if not x.dtype.is_inexact else full(x.shape, 0, x.dtype) if g is None else g
            for x, g in zip(init, cotangents, strict=False)
        ]
        rows = [
            None if not dtype.is_inexact else full((length, *shape), 0, dtype) if g is None else g
            for g, (shape, dtype) in zip(
                cotangents[carried:], self._body.results[carried:], strict=True
            )
        ]
        dev = device_of([*init, *sliced, *constants])
        state = [g for g in last if g is not None]
        streams = [*kept, *sliced, *(g for g in rows if g is not None)]
        inside = LoopEffects("scan")
        held = spots(types_of(state), dev, "scan")
        slices = spots([(x.shape[1:], x.dtype) for x in streams], dev, "scan")
        before, products, xs = slices[:carried], slices[carried : len(kept)], slices[len(kept) :]
        given = _filled(last, held) + _filled(rows, xs[self._sliced :])
        with checking_effects(inside):
            primals = [Tensor(x) for x in (*before, *xs[: self._sliced], *constants)]
            trace = Trace("scan", self._body.with_products(products), primals)
            found = trace.reverse(given)
            trace.close(found)
        each = [
            (full(kind[0], 0, kind[1]) if g is None else g) if moves else None
            for kind, g, moves in zip(self._body.inputs, found, moving, strict=True)
        ]
        back = ReverseScan(held, state, slices, streams, inside.iteration)
        g_init, g_sliced, g_constants = back.run(
            each[:carried], each[carried:count], each[count:], length, not self._reverse
        )
        return [*g_init, *g_sliced, *g_constants, *(None for _ in kept)]

    def jvp(
        self, operands: Sequence[Node], tangents: Sequence[Node | None]
    ) -> Sequence[Node | None]:
        init, sliced, constants, _ = self._split(operands)
        given = [
            None if not x.dtype.is_inexact else full(x.shape, 0, x.dtype) if t is None else t
            for x, t in zip(operands, tangents, strict=True)
        ]
        t_init, t_sliced, t_constants, _ = self._split(given)
        carried = self._carried

        def forward(state: Any, slices: Any) -> Any:
            (carry, t_carry), (xs, t_xs) = state, slices
            primals = [*carry, *xs, *(Tensor(x) for x in constants)]
            trace = Trace("scan", self._body.on_tensors, primals)
            moves = [None if t is None else t._node for t in (*t_carry, *t_xs)]
            found = trace.forward([*moves, *t_constants])
            trace.close([*found, *trace.outputs])
            out = [
                Tensor(full(y.shape, 0, y.dtype) if t is None else t)
                if y.dtype.is_inexact
                else None
                for y, t in zip(trace.outputs, found, strict=True)
            ]
            values = tree.leaves(trace.value())
            return (values[:carried], out[:carried]), out[carried:]

        (_, t_last), t_rows = scan(
            forward,
            (tensors_of(init), tensors_of(t_init)),
            (tensors_of(sliced), tensors_of(t_sliced)),
            self._length,
            self._reverse,
        )
        return [None if t is None else t._node for t in (*t_last, *t_rows)]


def _filled(wanted: Sequence[Node | None], nodes: Sequence[Node]) -> list[Node | None]:
    """The nodes in the places of those that are wanted."""
    left = iter(nodes)
    return [None if x is None else next(left) for x in wanted]


class ReverseScan:
    """The loop against a scan: cotangents of carried values are its carry, those of slices its
    rows; those of constants are summed over all turns, after the loop where that costs less.
    """

    def __init__(
        self,
        saved: Sequence[Node],
        state: Sequence[Node],
        slices: Sequence[Node],
        streams: Sequence[Node],
        iteration: Node | None,
    ) -> None:
        self._saved, self._state = list(saved), list(state)  # arguments of the body, their values
        self._slices, self._streams = list(slices), list(streams)
        self._iteration = iteration

    def run(
        self,
        g_carry: Sequence[Node | None],
        g_sliced: Sequence[Node | None],
        g_constants: Sequence[Node | None],
        length: int,
        reverse: bool,
    ) -> tuple[list[Node | None], list[Node | None], list[Node | None]]:
        """The cotangents of the whole from those of a turn."""
        after = [g for g in g_carry if g is not None]
        rows = [g for g in g_sliced if g is not None]
        stacked = dict(zip(self._slices, self._streams, strict=True))  # what all turns have
        later: dict[int, HoistedSum] = {}
        for i, g in enumerate(g_constants):
            total = None if g is None or not g.abstract else total_of(g)
            if g is None or total is None:
                continue
            parts = [x for x in map(_plain, total.parts) if x not in stacked and x not in rows]
            if worth_it(g, parts):
                later[i] = total
                rows += dict.fromkeys(parts)
        for i, g in enumerate(g_constants):
            if g is not None and i not in later:
                self._state.append(full(g.shape, 0, g.dtype))
                self._saved += spots([(g.shape, g.dtype)], g.device, "scan")
                after.append(ew.add(self._saved[-1], g))
        if self._iteration is not None:
            self._slices.append(self._iteration)
            self._streams.append(iota(length, dt.uint32, None))
        arguments = [*self._saved, *self._slices]
        constants = constants_of(arguments, [*after, *rows])
        body = Body([*arguments, *constants], [*after, *rows])
        laid_out = with_layouts(constants, arguments, [*after, *rows])
        operands = (*self._state, *self._streams, *laid_out)
        results = loop(body, operands, len(after), len(self._streams), length, reverse)
        stacked |= zip(rows, results[len(after) :], strict=True)
        sums = iter(results[len([g for g in g_carry if g is not None]) : len(after)])
        g_all = [
            later[i].finish(lambda x: stacked[_plain(x)]) if i in later else g and next(sums)
            for i, g in enumerate(g_constants)
        ]
        return _filled(g_carry, results), _filled(g_sliced, results[len(after) :]), g_all


def _plain(x: Node) -> Node:
    """A node under whose elements another one has them too: what a variable stands for."""
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
        return _until(upper, f, (lower, init))
    lower, upper = (operator.index(n) for n in (lower, upper))
    count = max(upper - lower, 0)
    start = constant(lower, dt.default_int)
    counter = Tensor(ew.add(iota(count, dt.default_int, None), start))
    return scan(lambda state, i: (f(i, state), None), init, counter)[0]


def _is_known_number(bound: Any) -> bool:
    if isinstance(bound, Tensor):
        return is_known(bound._node)
    return not isinstance(bound, dt.Weak)


def _until(upper: Any, f: Function, init: Any) -> Any:
    def step(state: tuple[Tensor, Any]) -> tuple[Tensor, Any]:
        i, inner = state
        return Tensor(ew.add(i._node, constant(1, dt.default_int))), f(i, inner)

    def goes_on(state: tuple[Tensor, Any]) -> Tensor:
        return Tensor(ew.lt(state[0]._node, last))

    lower, inner = init
    first, last = (ew.cast(node_of(n, "fori_loop"), dt.default_int) for n in (lower, upper))
    return while_loop(goes_on, step, (Tensor(first), inner))[1]
