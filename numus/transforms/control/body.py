"""Bodies of loops and branches: functions of nodes, traced once.

Loop-invariant values (tensors that a body closes over, and all that follows from them alone) become
operands of the call: they are computed once, and derivatives reach them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from numus.compiler.hooks import before_run
from numus.dtypes import DType
from numus.errors import ShapeError
from numus.evaluation.eager_cache import STANDALONE
from numus.evaluation.evaluate import evaluate
from numus.graph import Node, View, checking_effects, grad_mode, mode
from numus.primitives.broadcast import broadcast
from numus.primitives.source import placeholder, value
from numus.primitives.structure import copy as copied
from numus.primitives.structure import distinct_copy
from numus.runtime.devices import Device, default
from numus.shapes import Shape, row_major, size_of
from numus.tensor import Tensor
from numus.transforms import tree
from numus.transforms.effects import EffectCheck
from numus.transforms.subgraph import Recipe, dependents
from numus.transforms.vmap import batch

Type = tuple[Shape, DType]

_FEW_ROWS = 8
_DEEP = 16  # elements that a product sums over, from which on it costs more than memory


def types_of(nodes: Sequence[Node]) -> list[Type]:
    return [(x.shape, x.dtype) for x in nodes]


def text(kind: Type) -> str:
    """A type as errors name it."""
    return f"{kind[1].name}{list(kind[0])}"


def spots(
    kinds: Sequence[Type], device: Device | None, what: str, tracked: bool | None = None
) -> list[Node]:
    """The arguments of a body that is traced here and now."""
    found = []
    for shape, dtype in kinds:
        node = placeholder(shape, dtype, device, what)
        node.tracked = dtype.is_inexact and (mode.grad if tracked is None else tracked)
        found.append(node)
    return found


def device_of(nodes: Sequence[Node]) -> Device:
    """Where a call happens."""
    return next((x.device for x in nodes if x.device is not None), default.device)


class Body:
    """A traced function: of arguments and then constants, to results."""

    def __init__(
        self,
        arguments: Sequence[Node],
        outputs: Sequence[Node],
    ) -> None:
        order = dependents(outputs, arguments)
        self.recipe = Recipe(order, arguments, outputs)
        self.inputs = types_of(arguments)
        self.results = types_of(outputs)
        self._plain = not any(n.prim.name in STANDALONE for n in order)
        self._replays: dict[Any, Any] = {}

    def __call__(self, operands: Sequence[Node]) -> list[Node]:
        """The results for some arguments and constants, as a graph."""
        return self.recipe.replay(operands)

    def on_tensors(self, *operands: Tensor) -> list[Tensor]:
        return [Tensor(y) for y in self.recipe.replay([x._node for x in operands])]

    def keeping(self, count: int) -> Body:
        """The body that also gives what the way back needs, after its results: its first arguments,
        and products, which cost more to compute again than to keep.
        """
        arguments = spots(self.inputs, None, "a body", True)
        with grad_mode(True):
            found = self.recipe.replay(arguments, wanted=self.products)
        results = len(self.results)
        return Body(arguments, [*found[:results], *arguments[:count], *found[results:]])

    @functools.cached_property
    def products(self) -> list[int]:
        """Steps of the body whose results are kept for the way back."""
        return self.recipe.products(_DEEP)

    def with_products(self, products: Sequence[Node]) -> Callable[..., list[Tensor]]:
        """The body as a function of tensors, given the results of those steps."""
        known = dict(zip(self.products, products, strict=True))

        def run(*operands: Tensor) -> list[Tensor]:
            return [Tensor(y) for y in self.recipe.replay([x._node for x in operands], known)]

        return run

    # -- running ----------------------------------------------------------------------------------

    def is_native(self, dev: Device) -> bool:
        """Whether it is one program on a device."""
        return self._plain and dev.kind != "reference"

    def evaluated(self, operands: Sequence[Node]) -> list[Node]:
        """The results, by building and evaluating the graph."""
        with grad_mode(False):
            results = self.recipe.replay(operands)
        evaluate(results)
        return results

    def replay(self, dev: Device, layout: tuple[Shape, ...]) -> Any:
        """The compiled body for inputs of these strides: each result fills a block of its own."""
        found = self._replays.get((dev, layout))
        if found is None:
            found = self._replays[dev, layout] = self._compile(dev, layout)
        return found

    def _compile(self, dev: Device, layout: tuple[Shape, ...]) -> Any:
        # Imported late: the compiler is needed only by those who run something.
        from numus.compiler.traced_plan import cached_plan

        arguments = spots(self.inputs, dev, "a body", False)
        with grad_mode(False):
            outputs = self.recipe.replay(arguments)
            found = cached_plan(dev, outputs, arguments, layout)
            blocks = [out.block for out in found.outputs if out.input is None]
            apart = []
            for i, (y, out) in enumerate(zip(outputs, found.outputs, strict=True)):
                own = out.input is None and blocks.count(out.block) == 1
                rows = out.strides == row_major(y.shape)
                apart.append(y if own and rows else distinct_copy(y, i))
        return found if apart == outputs else cached_plan(dev, apart, arguments, layout)

    # -- batches ----------------------------------------------------------------------------------

    def batched(self, flags: Sequence[bool], size: int) -> Body:
        """The body over a new leading axis of the flagged inputs, and of every result."""
        kinds = [
            ((size, *shape) if flag else shape, dtype)
            for (shape, dtype), flag in zip(self.inputs, flags, strict=True)
        ]
        narrow = spots(self.inputs, None, "vmap", True)
        wide = spots(kinds, None, "vmap", True)
        with grad_mode(True):
            outputs = self.recipe.replay(
                [n if flag else w for n, w, flag in zip(narrow, wide, flags, strict=True)]
            )
            sources = {n: w for n, w, flag in zip(narrow, wide, flags, strict=True) if flag}
            made = [
                y if carries else broadcast(y, (size, *y.shape))
                for y, carries in batch(outputs, sources, size)
            ]
        return Body(wide, made)


def show(body: Body, replay: Any, dev: Device, operands: Sequence[Node], layout: Any) -> None:
    """Let those who watch programs see a body, on operands (or their first slices)."""
    if not before_run:
        return
    leaves = []
    for x, (shape, dtype), strides in zip(operands, body.inputs, layout, strict=True):
        assert x.view is not None
        leaves.append(value(View(x.view.storage, x.view.offset, strides), shape, dtype, dev))
    for watch in before_run:
        watch(dev, replay.plan, [*leaves, *replay.constant_leaves], replay.constants)


def constants_of(arguments: Sequence[Node], outputs: Sequence[Node]) -> list[Node]:
    """Loop-invariant inputs of a body's results, without plain numbers."""
    order = dependents(outputs, arguments)
    inside = {*order, *arguments}
    inputs = [x for node in order for x in node.inputs] + list(outputs)
    return list(dict.fromkeys(x for x in inputs if x not in inside and not _is_number(x)))


def with_layouts(
    constants: Sequence[Node], arguments: Sequence[Node], outputs: Sequence[Node]
) -> list[Node]:
    """The constants of a loop; transposed matmul operands are copied to a contiguous layout, once
    for all iterations. Matmuls of few rows read them unpacked.
    """
    read = set()
    for node in dependents(outputs, arguments):
        if node.prim.name == "contract" and node.shape[-2] >= _FEW_ROWS:
            read.add(node.inputs[1])
    return [copied(x) if x in read and x.prim.name == "permute" else x for x in constants]


def _is_number(x: Node) -> bool:
    return x.prim.name == "constant" and x.view is None


def call_on(
    f: Callable[..., Any], structures: Sequence[tree.Structure], nodes: Any, inside: EffectCheck
) -> Any:
    """f of containers of tensors on these nodes."""
    left = iter(nodes)
    args = [tree.unflatten(s, [Tensor(next(left)) for _ in range(s.count)]) for s in structures]
    with checking_effects(inside):
        return f(*args)


def check_types(
    op: str, what: str, found: Sequence[Node], wanted: Sequence[Type], structure: tree.Structure
) -> None:
    """Refuse results that are not of the types they have to be."""
    for y, kind, path in zip(found, wanted, tree.paths(structure), strict=True):
        if (y.shape, y.dtype) != kind:
            raise ShapeError(
                f"{op}: {what}{path} is {text((y.shape, y.dtype))}, but has to be {text(kind)}, as "
                "it goes in; cast or reshape one of them"
            )


def addresses_of(nodes: Sequence[Node]) -> list[int]:
    """Where realised nodes lie."""
    return [
        x.view.storage.memory.address + x.view.offset * x.dtype.itemsize
        for x in nodes
        if x.view is not None
    ]


def block_bytes(kind: Type) -> int:
    """How much memory a result takes."""
    return size_of(kind[0]) * kind[1].itemsize


def stable_carry(nodes: Sequence[Node], dev: Device) -> list[Node]:
    """Copies of carried values in memory of their own, which a loop may write to."""
    with grad_mode(False):
        copies = [distinct_copy(x, i) for i, x in enumerate(nodes)]
    for x in copies:
        x.device = dev
    evaluate(copies)
    return copies


def tensors_of(nodes: Sequence[Node | None]) -> list[Tensor | None]:
    """Tensors on nodes; None stays None."""
    return [None if x is None else Tensor(x) for x in nodes]
