"""Graph templates: nodes recorded once and instantiated by bytecode.

The graph that a function or a derivative builds often depends only on the structure of its
operands. A template guards that structure and makes the same nodes: transformations, gradients and
evaluation see no difference.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from numus.dispatch import node_ops
from numus.dispatch.call_cache import GUARD_FAILED
from numus.graph import Node, View, mode

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder

_COPIED = ("prim", "params", "shape", "dtype", "device", "tracked")
_CONSTANTS = ("constant", "table")  # primitives of nodes that a template holds


class TemplateBuilder:
    """Bytecode that guards a pattern of nodes and makes those recorded on top of it."""

    def __init__(self, code: BytecodeBuilder) -> None:
        self.code = code
        self.registers: dict[Node, int] = {}
        node_ops.guard_modes(code, {"grad": mode.grad, "autocast": mode.autocast})

    def bind(self, node: Node, register: int, *, distinct: bool = False) -> bool:
        """Bind a node to a register; guards that registers of one node hold one object, and with
        `distinct` that those of two nodes hold two. True if the node is new."""
        if node in self.registers:
            self.code.is_same(register, self.registers[node])
            return False
        if distinct:
            for other in self.registers.values():
                self.code.is_not(register, other)
        self.registers[node] = register
        return True

    def instantiate(
        self,
        results: Collection[Node],
        since: int,
        matched: Collection[Node] = (),
        handled: Collection[Node] = (),
        numbers: Callable[[Sequence[Node]], Mapping[Node, dict[str, int]]] | None = None,
    ) -> bool:
        """Make the nodes that results consist of, which were recorded since a serial number.

        Args:
            matched: bound nodes whose inputs are guarded too.
            handled: results whose handles the caller sets.
            numbers: writes registers with shapes and parameters that differ from the recorded ones.

        Returns:
            True if possible: the results depend on bound nodes and constants alone.
        """
        made = recorded(self.registers, results, since, matched)
        if made is None or any(x not in self.registers and x not in made for x in results):
            return False
        if any(x in made and x.view is not None for x in results):
            return False  # it may be written to, and its storage is another's
        for node, register in self.registers.items():
            if node not in matched:
                # a reshape of a reshape would be recorded as one of its base, and so on
                for prim in {x.prim for x in made if _is_view_of_pending(x, (node,))}:
                    self.code.slot_is_not(register, Node, "prim", prim)
        self._write(made, matched, handled, {} if numbers is None else numbers(made))
        return True

    def _write(
        self,
        made: Sequence[Node],
        matched: Collection[Node],
        handled: Collection[Node],
        numbers: Mapping[Node, dict[str, int]],
    ) -> None:
        code, bound = self.code, dict(self.registers)
        levels: dict[Node, int] = {}
        for node in made:
            if node.view is None:
                levels[node] = 1 + max((levels.get(x, 0) for x in node.inputs), default=0)
        operands = {x: bound[x] for node in made for x in node.inputs if x in bound}
        height = max(levels.values(), default=0)
        depth, retained_bytes = node_ops.pending_bounds(code, list(operands.values()), height)
        zero = code.load_const(0)
        registers = self.registers
        for node in made:
            for x in node.inputs:
                if x not in registers:
                    registers[x] = code.load_const(x)  # a constant
            members = {"inputs": code.new_tuple([registers[x] for x in node.inputs])}
            if node.view is None:
                members |= {"depth": depth, "retained_bytes": retained_bytes}
            else:
                base = _base(node, bound, matched)
                assert base is not None
                assert base.view is not None
                view = node_ops.new_view_like(code, node.view, base.view, registers[base])
                members |= {"depth": zero, "retained_bytes": zero, "view": view}
            members |= numbers.get(node, {})
            copied = {name: getattr(node, name) for name in _COPIED}
            registers[node] = node_ops.new_node(code, copied, members, handled=node in handled)

    def function(self, arity: int, result: int) -> Callable[..., Any]:
        return self.code.function(arity, result, GUARD_FAILED)


def new_template(nodes: Iterable[Node]) -> TemplateBuilder | None:
    """A template for the device of these nodes; None where it has no fast-call VM."""
    device = next((x.device for x in nodes if x.device is not None), None)
    code = None if device is None else node_ops.new_bytecode(device.runtime)
    return None if code is None else TemplateBuilder(code)


# -- recorded nodes --------------------------------------------------------------------------------


def recorded(
    bound: Mapping[Node, Any], results: Iterable[Node], since: int, matched: Collection[Node]
) -> list[Node] | None:
    """The nodes between bound ones and results, inputs first, without constants; None where the
    results depend on others, or cannot be made again."""
    device = next((x.device for x in bound if x.device is not None), None)
    found: dict[Node, None] = {}
    stack = list(results)
    while stack:
        node = stack.pop()
        if node in bound or node in found or node.prim.name in _CONSTANTS:
            continue
        foreign = node.grad_slot is not None or node.abstract or node.serial < since
        if foreign or node.device not in (device, None):
            return None
        if node.view is None:
            if not node.inputs and node.prim.name != "iota":
                return None  # a source that may differ each time
        elif _base(node, bound, matched) is None:
            return None
        if _is_view_of_pending(node, bound):
            source = node.inputs[0]
            if source.prim is node.prim and source not in matched:
                return None  # a later one would be a view of the source's base
        found[node] = None
        stack += node.inputs
    return sorted(found, key=lambda node: node.serial)


def _is_view_of_pending(node: Node, bound: Collection[Node]) -> bool:
    if node.prim.kind != "view" or not node.inputs:
        return False
    source = node.inputs[0]
    return source in bound and source.view is None


def _base(node: Node, bound: Iterable[Node], matched: Collection[Node]) -> Node | None:
    """The bound node whose memory a realised node views; None if there is none, or several whose
    relation is not guarded."""
    view = node.view
    assert view is not None
    sharing = [x for x in bound if x.view is not None and x.view.storage is view.storage]
    roots = {_view_root(x, matched) for x in sharing}
    return roots.pop() if len(roots) == 1 else None


def _view_root(node: Node, matched: Collection[Node]) -> Node:
    """The node that a realised one is a view of, through matched nodes."""
    while node in matched and node.prim.kind == "view":
        below = node.inputs[0]
        if below.view is None or node.view is None or below.view.storage is not node.view.storage:
            break
        node = below
    return node


# -- patterns --------------------------------------------------------------------------------------


def guard_node(code: BytecodeBuilder, register: int, node: Node) -> None:
    """Guards all that is known of a node without its inputs."""
    for name in ("abstract", "dtype", "device", "tracked"):
        code.slot_is(register, Node, name, getattr(node, name))
    code.slot_eq(register, Node, "shape", node.shape)
    if node.view is None:
        code.slot_is(register, Node, "view", None)
    else:
        view = code.load_slot(register, Node, "view")
        code.get_member(view, View, "offset")  # guards that there is a view
        code.slot_eq(view, View, "strides", node.view.strides)


def guard_constant(code: BytecodeBuilder, register: int, node: Node) -> bool:
    """Guards that a constant has these bits; False where that is unsupported."""
    if node.dtype.is_complex:
        return False
    for name in ("prim", "dtype"):
        code.slot_is(register, Node, name, getattr(node, name))
    if node.dtype.kind == "float":  # tells -0.0 from 0.0, and NaN equals itself
        code.slot_bits_eq(register, Node, "params", float(node.params))
    else:
        code.slot_eq(register, Node, "params", node.params)
    return True


def match_graph(
    code: BytecodeBuilder,
    registers: dict[Node, int],
    guard: Callable[[Node, int], bool],
    has_matched_inputs: Callable[[Node], bool],
) -> bool:
    """Guards that nodes in registers have the recorded graph below them.

    Adds the registers of all of it. `guard` writes what is known of one node by itself, as soon as
    it is first loaded; False where it cannot, and so here.
    """
    worklist = list(registers)
    if not all(guard(node, registers[node]) for node in worklist):
        return False
    for node in worklist:  # which grows
        if not has_matched_inputs(node):
            continue
        inputs = code.load_slot(registers[node], Node, "inputs")
        code.len_eq(inputs, len(node.inputs))
        for i, x in enumerate(node.inputs):
            register = code.load_item(inputs, i)
            if x in registers:
                code.is_same(register, registers[x])
                continue
            registers[x] = register
            if not guard(x, register):
                return False
            worklist.append(x)
    return True
