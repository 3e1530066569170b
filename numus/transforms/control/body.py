"""Bodies of loops and branches: functions of nodes, traced once.

Loop-invariant values (tensors that a body closes over, and all that follows from them alone) become
operands of the call: they are computed once, and derivatives reach them.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numus.compiler.hooks import before_run
from numus.dtypes import DType
from numus.errors import ShapeError
from numus.evaluation.eager_cache import STANDALONE
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, Nodes, Storage, Tangents, View, checking_effects, grad_mode, mode
from numus.lru import LruTable
from numus.primitives import elementwise as ew
from numus.primitives import structure as st
from numus.primitives.broadcast import broadcast
from numus.primitives.control import has_effects
from numus.primitives.source import placeholder, value
from numus.primitives.views import reshape
from numus.runtime.devices import Device, default
from numus.shapes import Shape, row_major, size_of
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.effects import EffectCheck, LoopEffects
from numus.transforms.rules import instantiate_zeros
from numus.transforms.subgraph import Recipe, dependents
from numus.transforms.trace import Trace, nodes_of
from numus.transforms.vmap import batch, move_axis

Type = tuple[Shape, DType]
Layout = tuple[Shape, ...]  # strides of each input

_PACKED_MATMUL_MIN_ROWS = 8
_SAVED_MATMUL_MIN_DEPTH = 16  # from this inner dimension on, a matmul costs more than memory


def types_of(nodes: Nodes) -> list[Type]:
    return [(x.shape, x.dtype) for x in nodes]


def placeholders(
    types: Sequence[Type], device: Device | None, op: str, tracked: bool | None = None
) -> list[Node]:
    """The arguments of a body that is being traced."""
    found = []
    for shape, dtype in types:
        node = placeholder(shape, dtype, device, op)
        node.tracked = dtype.is_inexact and (mode.grad if tracked is None else tracked)
        found.append(node)
    return found


def device_of(nodes: Nodes) -> Device:
    return next((x.device for x in nodes if x.device is not None), default.device)


_FREE_VIEWS = frozenset({"reshape", "permute", "slice", "broadcast"})
_MAX_LAYOUTS = 64  # of the operands of a body
_COPIED_BYTES = 1 << 16  # up to which a state is copied, rather than written in place, on GPUs


class Body:
    """A traced function: of arguments and then constants, to results."""

    def __init__(self, arguments: Nodes, outputs: Nodes) -> None:
        order = dependents(outputs, arguments)
        self.recipe = Recipe(order, arguments, outputs)
        self.inputs, self.results = types_of(arguments), types_of(outputs)
        # pairs of an argument and the result of its place that differ in few elements
        self.updates = [
            (i, i)
            for i, (x, y) in enumerate(zip(arguments, outputs, strict=False))
            if y.prim.name == "scatter" and y.inputs[0] is x
        ]
        standalone = {n.prim.name for n in order if n.prim.name in STANDALONE}
        self.has_effects = any(n.prim.name == "call" and has_effects(n.params) for n in order)
        self._is_one_program = not standalone
        self._has_stages = standalone == {"get_tuple_element"}
        self._stages: dict[Device, Stages] = {}
        self._plans: LruTable[Any, Any] = LruTable(_MAX_LAYOUTS)

    def __call__(self, operands: Nodes) -> list[Node]:
        """The results for some arguments and constants, as a graph."""
        return self.recipe.replay(operands)

    def on_tensors(self, *operands: Tensor, known: Mapping[int, Node] | None = None) -> Any:
        """The results as tensors; steps whose results are `known` are only differentiated."""
        return [Tensor(y) for y in self.recipe.replay([x._node for x in operands], known)]

    # -- derivatives ------------------------------------------------------------------------------

    @functools.cached_property
    def _matmuls(self) -> list[int]:
        """Steps whose results are saved for backward: they cost more to compute again."""
        return self.recipe.matmuls(_SAVED_MATMUL_MIN_DEPTH)

    def saving_residuals(self, count: int) -> Body:
        """The body that also returns what backward needs: its first arguments, and matmuls."""
        arguments = placeholders(self.inputs, None, "a body", True)
        with grad_mode(True):
            found = self.recipe.replay(arguments, wanted=self._matmuls)
        results = len(self.results)
        return Body(arguments, [*found[:results], *arguments[:count], *found[results:]])

    def vjp(self, op: str, primals: Nodes, cotangents: Tangents, matmuls: Nodes = ()) -> Tangents:
        """Cotangents of the inputs; `matmuls`: saved results of those steps, if there are any."""
        known = dict(zip(self._matmuls, matmuls, strict=True)) if matmuls else None
        body = functools.partial(self.on_tensors, known=known)
        return Trace(op, body, [Tensor(x) for x in primals]).vjp(cotangents)

    def jvp(
        self, op: str, primals: Sequence[Tensor], tangents: Tangents
    ) -> tuple[list[Tensor], list[Tensor | None]]:
        """The results and their tangents."""
        trace = Trace(op, self.on_tensors, primals)
        found = trace.forward(tangents)
        trace.close([*found, *trace.outputs])
        return tree.leaves(trace.value()), tensors_of(instantiate_zeros(found, self.results))

    # -- running ----------------------------------------------------------------------------------

    def is_native(self, dev: Device) -> bool:
        """True if it is one program on a device."""
        return self._is_one_program and dev.kind != "reference"

    def evaluated(self, dev: Device, operands: Nodes) -> list[Node]:
        """The results of a body that is not one program: in stages, or node by node."""
        if dev.kind == "reference" or not self._has_stages:
            with grad_mode(False):
                results = self.recipe.replay(operands)
            evaluate(results)
            return results
        if dev not in self._stages:
            self._stages[dev] = Stages(self, dev)
        return self._stages[dev].run(operands)

    def run(self, dev: Device, operands: Nodes) -> list[Node]:
        """The results of one program, each in memory of its own."""
        plan = self.plan(dev, operands, tuple([view.strides for view in views_of(operands)]))
        blocks = plan.run(addresses_of(operands), ())
        return [
            value(View(Storage(blocks[out.block]), 0, row_major(shape)), shape, dtype, dev)
            for out, (shape, dtype) in zip(plan.outputs, self.results, strict=True)
        ]

    def plan(
        self, dev: Device, operands: Nodes, layout: Layout, changing: int = -1, runs: bool = True
    ) -> Any:
        """The compiled body for inputs of these strides, each result in a block of its own. Those
        after the `changing` ones are the same in all its runs (-1: it is run once). Hooks are told
        that it runs on the operands (or their first slices)."""
        key = (dev, layout, changing)
        found = self._plans.get(key)
        if found is None:
            fixed = range(changing, len(layout)) if changing >= 0 else ()
            found = self._plans[key] = self._compile(dev, layout, fixed)
        if before_run and runs:
            leaves = [
                value(View(view.storage, view.offset, strides), shape, dtype, dev)
                for view, (shape, dtype), strides in zip(
                    views_of(operands), self.inputs, layout, strict=True
                )
            ]
            for hook in before_run:
                hook(dev, found.plan, [*leaves, *found.constant_leaves], found.constants)
        return found

    def updates_on(self, dev: Device) -> list[tuple[int, int]]:
        """The pairs whose memory is written in place. Devices that launch the next run of a loop
        before the last one has ended copy what is small: a run too many then changes nothing."""
        if not dev.runtime.target.simt:
            return self.updates
        return [(i, j) for i, j in self.updates if block_bytes(self.results[j]) > _COPIED_BYTES]

    def _compile(self, dev: Device, layout: Layout, fixed: Sequence[int]) -> Any:
        # Imported late: the compiler is needed only to run something.
        from numus.compiler.traced_plan import cached_plan

        arguments = placeholders(self.inputs, dev, "a body", False)
        with grad_mode(False):
            outputs = self.recipe.replay(arguments)
            updates = self.updates_on(dev)
            found = cached_plan(dev, outputs, arguments, layout, updates, fixed)
            blocks = [out.block for out in found.outputs if out.input is None]
            distinct = []
            for i, (y, out) in enumerate(zip(outputs, found.outputs, strict=True)):
                own = out.input is None and blocks.count(out.block) == 1
                rows = out.strides == row_major(y.shape)
                distinct.append(y if own and rows else st.distinct_copy(y, i))
        if distinct == outputs:
            return found
        return cached_plan(dev, distinct, arguments, layout, updates, fixed)

    # -- batches ----------------------------------------------------------------------------------

    def batched(self, flags: Sequence[bool], size: int, innermost: bool = False) -> Body:
        """The body over a new axis of the flagged inputs, and of every result: the leading one, or
        the innermost."""
        types = [
            (_with_extent(shape, size, innermost) if flag else shape, dtype)
            for (shape, dtype), flag in zip(self.inputs, flags, strict=True)
        ]
        single = placeholders(self.inputs, None, "vmap", True)
        whole = placeholders(types, None, "vmap", True)
        triples = list(zip(single, whole, flags, strict=True))
        with grad_mode(True):
            outputs = self.recipe.replay([x if flag else xs for x, xs, flag in triples])
            sources = {
                x: move_axis(xs, xs.ndim - 1, 0) if innermost else xs
                for x, xs, flag in triples
                if flag
            }
            made = [
                y if carries else broadcast(y, (size, *y.shape))
                for y, carries in batch(outputs, sources, size, innermost)
            ]
            if innermost:
                made = [move_axis(y, 0, y.ndim - 1) for y in made]
        return Body(whole, made)


class Stages:
    """A body with calls of loops or branches in it: programs, and between them those calls.

    A value belongs to the first stage in which everything that it depends on is known; the results
    of a call are known in the stage after that of its operands.
    """

    def __init__(self, body: Body, dev: Device) -> None:
        self._dev = dev
        self._arguments = placeholders(body.inputs, dev, "a body", False)
        with grad_mode(False):
            self._outputs = body.recipe.replay(self._arguments)
        order = dependents(self._outputs, self._arguments)
        level = dict.fromkeys(self._arguments, 0)
        for node in order:
            level[node] = max(level.get(x, 0) for x in node.inputs) + (
                node.prim.name == "get_tuple_element"
            )
        self._elements: dict[Node, list[Node]] = {n: [] for n in order if n.prim.name == "call"}
        for node in order:
            if node.prim.name == "get_tuple_element":
                self._elements[node.inputs[0]].append(node)
        inner = [n for n in order if n.prim.name not in ("call", "get_tuple_element")]
        known = {*self._arguments, *(e for found in self._elements.values() for e in found)}
        readers = [(x, level[n] + (n in self._elements)) for n in order for x in n.inputs]
        last_read = dict.fromkeys(self._outputs, len(order))
        for x, at in readers:
            last_read[x] = max(last_read.get(x, 0), at)
        self._steps = []
        for at in range(max(level.values()) + 1):
            mine = [n for n in inner if level[n] == at]
            wanted = [n for n in mine if last_read.get(n, 0) > at]
            read = [x for n in mine for x in n.inputs if x in known or level.get(x, at) < at]
            operands = list(dict.fromkeys(read))
            calls = [n for n in self._elements if level[n] == at]
            self._steps.append((Body(operands, wanted), operands, wanted, calls))
        made = {x for _, _, wanted, _ in self._steps for x in wanted}
        uses = Counter([*self._outputs, *(x for n in order for x in n.inputs)])
        # operands of a call that were made for it alone, in memory of their own
        self._spare = {
            n: frozenset(i for i, x in enumerate(n.inputs) if x in made and uses[x] == 1)
            for n in self._elements
        }
        fixed = [x for n in self._elements for x in n.inputs if x not in level]
        self._fixed = dict(zip(fixed, stable_carry(fixed, dev), strict=True))
        held = [x for x in self._outputs if x not in level]
        self._fixed |= zip(held, stable_carry(held, dev), strict=True)

    def run(self, operands: Nodes) -> list[Node]:
        evaluate([x for x in operands if x.view is None])
        found = dict(self._fixed)
        found |= zip(self._arguments, operands, strict=True)
        for body, given, wanted, calls in self._steps:
            if wanted:
                found |= zip(wanted, body.run(self._dev, [found[x] for x in given]), strict=True)
            for call in calls:
                given = [found[x] for x in call.inputs]
                if call.params.name == "while_loop":
                    views = call.params.run(self._dev, given, self._spare[call])
                else:
                    views = call.params.run(self._dev, given)
                for element in self._elements[call]:
                    view = views[element.params]
                    found[element] = value(view, element.shape, element.dtype, self._dev)
        return [found[x] for x in self._outputs]


def _with_extent(shape: Shape, size: int, innermost: bool) -> Shape:
    return (*shape, size) if innermost else (size, *shape)


_SHORT_AXIS = 16  # rows of fewer elements leave most of a vector or a warp idle


def batch_is_innermost(types: Sequence[Type], size: int) -> bool:
    """Whether a batched loop has the axis of its batch innermost: where entries of its state are
    short vectors, and the batch is longer."""
    extents = [shape[-1] for shape, _ in types if shape]
    return bool(extents) and max(extents) < _SHORT_AXIS <= size


def innermost_copy(x: Node) -> Node:
    """A batched operand of a loop with its leading axis last, in memory too."""
    return x if x.ndim < 2 else st.copy(move_axis(x, 0, x.ndim - 1))


def constants_of(arguments: Nodes, outputs: Nodes) -> list[Node]:
    """Loop-invariant inputs of a body's results, without plain numbers."""
    order = dependents(outputs, arguments)
    variant = {*order, *arguments}
    inputs = dict.fromkeys([*(x for node in order for x in node.inputs), *outputs])
    numbers = {x for x in inputs if x.prim.name == "constant" and x.view is None}
    return [x for x in inputs if x not in variant and x not in numbers]


def behind_views(constants: Nodes) -> list[Node]:
    """What traced constants are views of, once each: a body that runs once takes such views itself,
    so that they need not be copied to be handed over. Identities, which are variables, stay."""
    found: dict[Node, None] = {}
    for x in constants:
        while x.abstract and x.prim.name in _FREE_VIEWS:
            if x.prim.name == "reshape" and x.shape == x.inputs[0].shape:
                break
            x = x.inputs[0]
        found[x] = None
    return list(found)


def with_layouts(constants: Nodes, arguments: Nodes, outputs: Nodes) -> list[Node]:
    """The constants of a loop; transposed matmul operands are copied to a contiguous layout, once
    for all iterations. Matmuls of few rows read them unpacked; on the host all loops pack them.
    """
    read = {
        node.inputs[1]
        for node in dependents(outputs, arguments)
        if node.prim.name == "contract" and node.shape[-2] >= _PACKED_MATMUL_MIN_ROWS
    }
    return [
        st.copy(x) if x in read and x.prim.name == "permute" and not device_of([x]).on_host else x
        for x in constants
    ]


def call_on(
    f: Callable[..., Any], structures: Sequence[tree.Structure], nodes: Nodes, effects: EffectCheck
) -> Any:
    """f of containers of tensors on these nodes."""
    left = iter(nodes)
    args = [tree.unflatten(s, [Tensor(next(left)) for _ in range(s.count)]) for s in structures]
    with checking_effects(effects):
        return f(*args)


@dataclass
class TracedBody:
    """One traced iteration: from the carry and slices to the next carry and other results."""

    carry: list[Node]  # initial values, in the dtypes that the loop gives them
    structure: tree.Structure
    arguments: list[Node]
    after: list[Node]
    rest: Any
    effects: LoopEffects


def trace_body(
    op: str,
    what: str,
    f: Callable[..., Any],
    init: Any,
    sliced: Nodes = (),
    slices: tree.Structure | None = None,
    split: Callable[[Any], tuple[Any, Any]] = lambda answer: (answer, None),
) -> TracedBody:
    """f traced on a carry like `init` and, if there are any, slices of arrays. `split` separates
    f's result into the carry, called `what` by errors, and the rest.

    A Python number takes the dtype that the loop gives it: f is then traced once more.
    """
    carry, structure = nodes_of(init, op, "init")
    structures = [structure] if slices is None else [structure, slices]
    types = [(x.shape[1:], x.dtype) for x in sliced]
    weak = [type(leaf) in (int, float, complex, bool) for leaf in tree.leaves(init)]
    while True:
        effects = LoopEffects(op)
        arguments = placeholders([*types_of(carry), *types], device_of([*carry, *sliced]), op)
        state, rest = split(call_on(f, structures, arguments, effects))
        after, found = nodes_of(state, op, what)
        if found != structure:
            where = tree.difference(structure, found)
            raise ValueError(f"{op}: {what} changes its structure at {where}")
        wider = [w and y.dtype is not x.dtype for w, x, y in zip(weak, carry, after, strict=True)]
        if not any(wider):
            break
        pairs = zip(wider, carry, after, strict=True)
        carry = [ew.cast(x, y.dtype) if w else x for w, x, y in pairs]
        weak = [False] * len(weak)
    for y, x, path in zip(after, carry, tree.paths(structure), strict=True):
        if (y.shape, y.dtype) != (x.shape, x.dtype):
            raise ShapeError(
                f"{op}: {what}{path} is {y.type_text}, but has to be {x.type_text}, as it goes in; "
                "cast or reshape one of them"
            )
    return TracedBody(carry, structure, arguments, after, rest, effects)


# -- realised nodes -------------------------------------------------------------------------------


def views_of(nodes: Nodes) -> list[View]:
    return [x.view for x in nodes if x.view is not None]


def addresses_of(nodes: Nodes) -> list[int]:
    return [
        x.view.storage.memory.address + x.view.offset * x.dtype.itemsize
        for x in nodes
        if x.view is not None
    ]


def block_bytes(kind: Type) -> int:
    return size_of(kind[0]) * kind[1].itemsize


@functools.lru_cache(maxsize=256)
def _identity(types: tuple[Type, ...]) -> Body:
    arguments = placeholders(types, None, "a body", False)
    return Body(arguments, arguments)


def stable_carry(nodes: Nodes, dev: Device, spare: frozenset[int] = frozenset()) -> list[Node]:
    """Copies of carried values in memory of their own, which a loop may write to; those whose
    memory is spare stay where they are."""
    if spare:
        others = iter(stable_carry([x for i, x in enumerate(nodes) if i not in spare], dev))
        return [x if i in spare else next(others) for i, x in enumerate(nodes)]
    if (
        nodes
        and dev.kind != "reference"
        and all(x.view is not None and x.device is dev for x in nodes)
    ):
        return _identity(tuple(types_of(nodes))).run(dev, nodes)
    with grad_mode(False):
        copies = [st.distinct_copy(x, i) for i, x in enumerate(nodes)]
    for x in copies:
        x.device = dev
    evaluate(copies)
    return copies


def select_entries(mask: Node, a: Node, b: Node) -> Node:
    """Entries along the first axis of a where the mask holds, else of b."""
    return ew.where(broadcast(reshape(mask, mask.shape + (1,) * (a.ndim - 1)), a.shape), a, b)


def select_innermost(mask: Node, a: Node, b: Node) -> Node:
    """Entries along the last axis of a where the mask holds, else of b."""
    return ew.where(broadcast(mask, a.shape), a, b)


def tensors_of(nodes: Tangents) -> list[Tensor | None]:
    return [None if x is None else Tensor(x) for x in nodes]


def nodes_or_none(tensors: Sequence[Tensor | None]) -> list[Node | None]:
    return [None if t is None else t._node for t in tensors]
