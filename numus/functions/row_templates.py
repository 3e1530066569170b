"""Graph templates for any number of rows: sequences that grow build their graphs by bytecode.

Many compositions treat the rows of their operands alike: all axes but the last enter shapes and
parameters as factors, and nothing else. Where such a function has made the same graph for three
different sizes, every number in it is written as a product of those that differ, and a template
guards all others.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numus.dispatch.call_cache import InlineCache
from numus.dispatch.templates import TemplateBuilder, guard_node, new_template, recorded
from numus.dtypes import DType
from numus.graph import Node, mode
from numus.lru import LruTable
from numus.tensor import Tensor, new_handle

RECORDINGS = 3
_MAX_FAMILIES = 64  # of one function
_MAX_TEMPLATES = 4  # of one family
_MAX_ATTEMPTS = 4  # in a row
# Arguments besides tensors: others may change, or would stay alive.
STATIC_TYPES = frozenset({int, bool, str, type(None), DType})


class _UnfitError(Exception):
    """A number that is no product of sizes."""


class _Product(NamedTuple):
    """A number times sizes, by their positions."""

    factor: int
    sizes: tuple[int, ...]


class _Recording(NamedTuple):
    """A graph without its nodes, of some sizes."""

    sizes: tuple[int, ...]  # of axes but the last, those that are equal once
    structure: tuple[Any, ...]
    numbers: tuple[Any, ...]  # shapes and parameters of each node


class Families:
    """The families of calls of one function.

    Args:
        operands: the number of operands, the first ones, whose rows may differ.
    """

    def __init__(self, operands: int) -> None:
        self._operands = operands
        self._known: LruTable[Any, Family] = LruTable(_MAX_FAMILIES)
        self.site = InlineCache()  # templates

    def clear(self) -> None:
        self._known.clear()
        self.site.clear()

    def find(self, given: Sequence[Any]) -> Family | None:
        """The family of a call; None where it can have none."""
        key = _family_key(given, self._operands) if self._operands else None
        return None if key is None else self._known.setdefault(key, self._new)

    def _new(self) -> Family:
        return Family(self._operands)


class Family:
    """Calls whose operands differ in the number of rows alone."""

    def __init__(self, operands: int) -> None:
        self._operands = operands
        self._recordings: list[_Recording] = []
        self._attempts = 0  # to make a template
        self.templates: list[Any] = []

    @property
    def is_varying(self) -> bool:
        """Calls came in several sizes, and may get a template for all of them."""
        return self.is_open and len(self._recordings) > 1

    @property
    def is_open(self) -> bool:
        return len(self.templates) < _MAX_TEMPLATES and self._attempts < _MAX_ATTEMPTS

    def record(self, given: Sequence[Any], out: Any, since: int) -> Any:
        """Note the graph of a call that returned `out`; its template, where enough are known."""
        inputs = [x._node for x in given if isinstance(x, Tensor)]
        rows = inputs[: self._operands]
        sizes = tuple(_numbered(rows))
        if any(x.sizes == sizes for x in self._recordings):
            return None
        bases = [base for x in rows if (base := _base(x)) is not None]
        bound = dict.fromkeys([*inputs, *bases])
        made = None
        if out.__class__ is Tensor and out._node not in bound:
            made = recorded(bound, (out._node,), since, ())
        if made is None or any(map(_may_be_base, made)):
            self._attempts += 1
            return None
        new = _Recording(sizes, *_outline(list(bound), made))
        if self._recordings and self._recordings[-1].structure != new.structure:
            self._recordings.clear()
        self._recordings = [*self._recordings[1 - RECORDINGS :], new]
        if len(self._recordings) < RECORDINGS:
            return None
        columns = list(zip(*[x.sizes for x in self._recordings], strict=True))
        varying = [i for i, column in enumerate(columns) if len(set(column)) == RECORDINGS]
        if not varying or any(1 < len(set(column)) < RECORDINGS for column in columns):
            return None
        self._attempts += 1
        try:
            found = self._compile(given, out, since, varying)
        except _UnfitError:
            return None
        if found is not None:
            self._attempts = 0
            self._recordings.clear()
        return found

    def _compile(
        self, given: Sequence[Any], out: Tensor, since: int, varying: Sequence[int]
    ) -> Any:
        """The template of these calls; None where fast calls are unsupported."""
        inputs = [x._node for x in given if isinstance(x, Tensor)]
        rows = inputs[: self._operands]
        numbered = _numbered(rows)
        names = {n: i for i, n in enumerate(numbered) if i in varying}
        fixed = [n for x in rows for n in x.shape[:-1] if n not in names]
        fixed += [x.shape[-1] for x in rows]
        extents = {*fixed, *(n for x in inputs if x not in rows for n in x.shape)}
        for recording in self._recordings:
            if any(recording.sizes[i] in extents for i in varying):
                return None  # an extent that is equal by chance
        fitted = _fit(
            tuple([x.numbers for x in self._recordings]),
            [{i: x.sizes[i] for i in varying} for x in self._recordings],
        )
        template = new_template(inputs)
        if template is None:
            return None
        numbers = _Numbers(template, names, extents)
        code = template.code
        for i, x in enumerate(given):
            if not isinstance(x, Tensor):
                code.is_const(code.load_arg(i), x)
                continue
            register = code.get_member(code.load_arg(i), Tensor, "_node")
            if template.bind(x._node, register, distinct=True):
                if x._node in rows:
                    numbers.guard(x._node, register)
                    _bind_base(template, x._node, register)
                else:
                    guard_node(code, register, x._node)

        def written(made: Sequence[Node]) -> Mapping[Node, dict[str, int]]:
            pairs = zip(made, fitted, strict=True)
            return {node: numbers.members(found) for node, found in pairs}

        if not template.instantiate((out._node,), since, handled=(out._node,), numbers=written):
            return None
        return template.function(len(given), new_handle(code, template.registers[out._node]))


def _family_key(given: Sequence[Any], operands: int) -> tuple[Any, ...] | None:
    """What calls of one family have in common; None where there are no rows that could vary, or
    operands in memory, whose strides differ with them."""
    nodes: list[Node] = []
    key: list[Any] = [mode.grad, mode.autocast]
    number: dict[int, int] = {}
    for x in given:
        if isinstance(x, Tensor):
            node = x._node
            device, view = node.device, node.view
            if node.abstract or device is None:
                return None
            if node in nodes:
                key.append(nodes.index(node))
            shape: tuple[Any, ...] = node.shape
            if len(nodes) < operands:
                if view is not None or not shape:
                    return None
                pattern = [
                    n if n < 2 else -1 - number.setdefault(n, len(number)) for n in shape[:-1]
                ]
                shape = (*pattern, shape[-1])
            nodes.append(node)
            strides = None if view is None else view.strides
            key += (shape, node.dtype, strides, node.tracked, device.name)
        elif x.__class__ is float:
            key.append(repr(x))  # -0.0 differs from 0.0
        elif x.__class__ in STATIC_TYPES:
            key += (x, x.__class__)  # 1 differs from True
        elif x.__class__ is tuple and set(map(type, x)) <= {int}:
            key.append(x)
        else:
            return None
    return tuple(key) if number else None


def _base(node: Node) -> Node | None:
    """What a reshape of this pending node reshapes, where it is a reshape itself."""
    inputs = node.inputs  # read once: another thread may evaluate the node
    if node.prim.name != "reshape" or not inputs or node.tracked or inputs[0].tracked:
        return None
    return inputs[0] if inputs[0].view is None else None


def _may_be_base(node: Node) -> bool:
    """A reshape to a rank of its operand is none, where the shapes are equal."""
    return node.prim.name == "reshape" and len(node.inputs[0].shape) == len(node.shape)


def _bind_base(template: TemplateBuilder, node: Node, register: int) -> None:
    """Bind what an operand is a reshape of."""
    base, code = _base(node), template.code
    if base is None:
        return
    code.slot_is(register, Node, "prim", node.prim)
    found = code.load_item(code.load_slot(register, Node, "inputs"), 0)
    for name in ("abstract", "dtype", "device", "tracked", "view"):
        code.slot_is(found, Node, name, getattr(base, name))
    code.len_eq(code.load_slot(found, Node, "shape"), len(base.shape))
    template.bind(base, found, distinct=True)


def _numbered(rows: Sequence[Node]) -> dict[int, None]:
    """The sizes of all axes but the last, but for 0 and 1, in the order in which they are met."""
    return dict.fromkeys(n for x in rows for n in x.shape[:-1] if n > 1)


def _outline(
    inputs: Sequence[Node], made: Sequence[Node]
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The structure of a graph, and its shapes and parameters."""
    number = {x: i for i, x in enumerate([*inputs, *made])}

    def name(x: Node) -> Any:
        return number[x] if x in number else (x.dtype, repr(x.params))  # a constant

    structure = [
        (x.prim, x.dtype, x.device, x.tracked, x.view is None, tuple(map(name, x.inputs)))
        for x in made
    ]
    return tuple(structure), tuple([(x.shape, x.params) for x in made])


def _fit(values: tuple[Any, ...], sizes: list[dict[int, int]]) -> Any:
    """What gives these values for these sizes: itself where it is constant, a product, or a tuple
    of such."""
    first = values[0]
    if all(v.__class__ is first.__class__ and v == first for v in values):
        return first
    if all(v.__class__ is tuple and len(v) == len(first) for v in values):
        return tuple([_fit(parts, sizes) for parts in zip(*values, strict=True)])
    if any(v.__class__ is not int for v in values):
        raise _UnfitError
    found = []
    names = list(sizes[0])
    for count in range(1, len(names) + 1):
        for chosen in itertools.combinations(names, count):
            products = [math.prod([own[i] for i in chosen]) for own in sizes]
            factor = first // products[0]
            if all(v == factor * p for v, p in zip(values, products, strict=True)):
                found.append(_Product(factor, chosen))
    if len(found) != 1:
        raise _UnfitError
    return found[0]


class _Numbers:
    """Registers with sizes and what follows from them."""

    def __init__(
        self, template: TemplateBuilder, names: Mapping[int, int], extents: set[int]
    ) -> None:
        self._code, self._names, self._extents = template.code, names, extents
        self._sizes: dict[int, int] = {}  # registers, by position
        self._known: dict[Any, int] = {}  # registers

    def guard(self, node: Node, register: int) -> None:
        """Guards all that is known of an operand but sizes that vary."""
        code = self._code
        for name in ("abstract", "dtype", "device", "tracked", "view"):
            code.slot_is(register, Node, name, getattr(node, name))
        shape = code.load_slot(register, Node, "shape")
        code.len_eq(shape, len(node.shape))
        fitted: list[Any] = []
        for axis, n in enumerate(node.shape):
            item = code.load_item(shape, axis)
            position = self._names.get(n) if axis < len(node.shape) - 1 else None
            fitted.append(n if position is None else _Product(1, (position,)))
            if position is None:
                code.int_is(item, n)
            elif position in self._sizes:
                code.same_int(item, self._sizes[position])
            else:
                self._guard_size(item)
                self._sizes[position] = item
        self._known.setdefault(tuple(fitted), shape)

    def _guard_size(self, item: int) -> None:
        """Guards that a size is none that anything else is."""
        self._code.int_above(item, 1)
        for n in self._extents:
            if n > 1:
                self._code.int_is_not(item, n)
        for other in self._sizes.values():
            self._code.different_ints(item, other)

    def members(self, fitted: tuple[Any, Any]) -> dict[str, int]:
        """Registers with the shape and the parameters of a node, where they vary."""
        found = zip(("shape", "params"), fitted, strict=True)
        return {name: self._register(x) for name, x in found if _varies(x)}

    def _register(self, fitted: Any) -> int:
        if not _varies(fitted):
            return self._code.load_const(fitted)
        if fitted not in self._known:
            self._known[fitted] = self._write(fitted)
        return self._known[fitted]

    def _write(self, fitted: Any) -> int:
        code = self._code
        if fitted.__class__ is tuple:
            return code.new_tuple([self._register(x) for x in fitted])
        total, *others = [self._sizes[i] for i in fitted.sizes]
        if fitted.factor != 1:
            others.append(code.load_const(fitted.factor))
        for other in others:
            total = code.mul_int(total, other)
        return total


def _varies(fitted: Any) -> bool:
    if fitted.__class__ is tuple:
        return any(map(_varies, fitted))
    return fitted.__class__ is _Product
