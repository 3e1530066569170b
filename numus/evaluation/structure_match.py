"""Signatures by fast calls: graphs of a known structure in ever new sizes.

Sequences that grow evaluate one structure in sizes that do not come again. From some walks of a
structure (`compiler/graph/signature`) on, one fast call guards it, all but its sizes, and returns
nodes and sizes in the order of the walk.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from numus.compiler.hooks import on_clear_plans
from numus.dispatch.call_cache import GUARD_FAILED, CallCache
from numus.dispatch.node_ops import new_bytecode
from numus.dispatch.templates import guard_constant, match_graph
from numus.graph import Node, View

if TYPE_CHECKING:
    from numus.compiler.graph.signature import GraphSignature
    from numus.runtime.pycall.builder import BytecodeBuilder

_WALKS_BEFORE = 6  # a call is made, which costs as much as that many
_MIN_NODES = 16  # smaller graphs are walked in no time
_calls = CallCache(max_structures=256, max_sites=256)
on_clear_plans.append(_calls.clear)


def signature_of(nodes: tuple[Node, ...], max_nodes: int) -> GraphSignature:
    """The signature of pending nodes of one device; the caller holds the lock of evaluations."""
    # Imported late: the compiler is needed only to evaluate something.
    from numus.compiler.graph.signature import GraphSignature

    node = nodes[0]
    site = _calls.site((node.prim, len(node.shape), node.dtype, node.depth, len(nodes)))
    found = site.call(nodes)
    if found is not GUARD_FAILED:
        record, matched, equal, sizes = found
        if record.has_constants(matched, equal):
            return GraphSignature.resized(record, matched, equal, sizes)
        del found, matched, equal  # they hold nodes, and referenced nodes are live-out
    signature = GraphSignature(nodes, max_nodes)
    if signature.standalone or signature.is_truncated or len(signature.nodes) < _MIN_NODES:
        return signature
    key = (node.device, signature.skeleton)
    walks, bits = _calls.structures.get(key, (0, ()))
    if walks < _WALKS_BEFORE:
        if len(_calls.structures) >= _calls.max_structures:
            _calls.clear()
        own = signature.constant_bits
        _calls.structures[key] = walks + 1, own
        if walks + 1 == _WALKS_BEFORE:
            constants = zip(signature.constants, own, bits, strict=True)
            call = _compile(nodes, signature, {x for x, a, b in constants if a != b})
            if call is not None:
                site.promote(call)
    return signature


def _compile(
    roots: tuple[Node, ...], signature: GraphSignature, varying: set[Node]
) -> Callable[..., Any] | None:
    """The fast call that matches graphs like this one; None where unsupported. `varying` are
    constants that follow from sizes."""
    from numus.compiler.graph.signature import SignatureRecord

    device = roots[0].device
    code = None if device is None else new_bytecode(device.runtime)
    if code is None:
        return None
    nodes = signature.nodes
    equal = [x for x, i in signature.number.items() if nodes[i] is not x]
    varying |= {x for x in equal if nodes[signature.number[x]] in varying}
    guards = _Guards(code, roots, signature, varying)
    registers = {root: code.load_arg(i) for i, root in enumerate(roots)}
    if not match_graph(code, registers, guards.guard, guards.has_matched_inputs):
        return None
    parts = (
        code.load_const(SignatureRecord(signature, varying)),
        code.new_tuple([registers[x] for x in nodes]),
        code.new_tuple([registers[x] for x in equal]),
        code.new_tuple([size for x in nodes for size in guards.sizes.get(x, ())]),
    )
    return code.function(len(roots), code.new_tuple(parts), GUARD_FAILED)


class _Guards:
    """Guards of a graph's nodes, all but their sizes, whose registers are collected."""

    def __init__(
        self,
        code: BytecodeBuilder,
        roots: tuple[Node, ...],
        signature: GraphSignature,
        varying: Collection[Node],
    ) -> None:
        # Imported late: the compiler is needed only to evaluate something.
        from numus.compiler.graph.signature import is_free
        from numus.compiler.graph.value import IDENTITIES, SIZED_OPS

        self._code, self._roots, self._varying = code, roots, varying
        self._is_free, self._sized, self._identities = is_free, SIZED_OPS, IDENTITIES
        self._live_out = {signature.nodes[i] for i in signature.live_out}
        self._uses = signature.uses()
        self.sizes: dict[Node, list[int]] = {}

    def has_matched_inputs(self, node: Node) -> bool:
        return node.view is None and node.prim.name != "constant"

    def guard(self, node: Node, register: int) -> bool:
        """What is known of one node; False where it cannot be guarded."""
        code = self._code
        if node.view is not None:
            code.slot_is(register, Node, "dtype", node.dtype)
            view = code.load_slot(register, Node, "view")
            strides = code.get_member(view, View, "strides")  # guards that there is a view
            self.sizes[node] = [self._shape(node, register), strides]
            code.len_eq(strides, len(node.view.strides))
            return True
        if node in self._varying:
            code.slot_is(register, Node, "prim", node.prim)
            code.slot_is(register, Node, "dtype", node.dtype)
            return True
        if node.prim.name == "constant":
            return guard_constant(code, register, node)
        if node in self._live_out:
            code.refcount(register, self._uses[node] + 1, more=True)
        elif node not in self._roots and node.device is not None and not self._is_free(node):
            code.refcount(register, self._uses[node] + 1)
        for name in ("view", "prim", "dtype", "device", "tracked"):
            code.slot_is(register, Node, name, getattr(node, name))
        self.sizes[node] = [self._shape(node, register)]
        if node.prim.name not in self._sized:
            if node.prim.name not in self._identities:
                code.slot_eq(register, Node, "params", node.params)
            return True
        params = node.params
        if params.__class__ is not tuple:
            return False
        given = code.load_slot(register, Node, "params")
        code.len_eq(given, len(params))
        if params and params[0].__class__ is tuple:
            for i, part in enumerate(params):
                item = code.load_item(given, i)
                code.len_eq(item, len(part))
                self.sizes[node].append(item)
        else:
            self.sizes[node].append(given)
        return True

    def _shape(self, node: Node, register: int) -> int:
        shape = self._code.load_slot(register, Node, "shape")
        self._code.len_eq(shape, len(node.shape))
        return shape
