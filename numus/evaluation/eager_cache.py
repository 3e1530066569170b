"""Eager plan cache: small graphs evaluated by one fast call each.

Code that reads every result evaluates graphs of a few nodes, whose walk costs more than many a
kernel. From the second time on, a structure (primitives, dtypes, shapes, strides, constants, which
nodes escape) is one fast call: it guards the graph, reads the operands' addresses, launches and
gives nodes their views. Reshapes and permutations of such results are views of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from numus.compiler.hooks import before_run
from numus.dispatch.call_cache import GUARD_FAILED, InlineCache, eager_calls
from numus.dispatch.node_ops import new_aliasing_view, new_output_view, store_view_address
from numus.dispatch.templates import guard_constant, match_graph
from numus.evaluation import storage_lock
from numus.evaluation.structure_match import signature_of
from numus.graph import Node, View
from numus.kernels.vendor.registry import kernel_choice_key
from numus.primitives.elementwise import is_boundary
from numus.primitives.source import forget, write_forget
from numus.shapes import Shape, reshape_strides

if TYPE_CHECKING:
    from numus.compiler.graph.signature import GraphSignature
    from numus.runtime.pycall.builder import BytecodeBuilder

# Evaluated by themselves, before the graph around them: transfers between devices, and results of
# control flow.
STANDALONE = ("transfer", "get_tuple_element")
_ALIASING = ("reshape", "permute")  # views of whole results


@dataclass(frozen=True)
class EagerTuning:
    """Bounds, measured on 2-core Neoverse N1 and x86-64 machines."""

    max_nodes: int = 448  # of a graph, with its leaves and constants
    # After this many misses in a row, a structure is computed only every so many times: perhaps
    # none of them ever repeats.
    max_misses: int = 16
    miss_interval: int = 32


TUNING = EagerTuning()


def evaluate(nodes: tuple[Node, ...]) -> bool | GraphSignature:
    """Evaluate distinct pending nodes by a fast call; False where there is none, or the signature
    of their graph."""
    node = nodes[0]
    if node.device is None or not node.inputs:
        return False
    key = (node.prim, node.shape, node.dtype, node.depth, len(nodes), kernel_choice_key())
    site = eager_calls.site(key)
    for call in site.calls:
        if call(*nodes) is not GUARD_FAILED:
            if site.misses or call is not site.calls[0]:
                site.promote(call)
            return True
    if len(nodes) == 1 and is_view_of_standalone(node):
        return False
    site.misses += 1
    signature = None
    if site.misses <= TUNING.max_misses or site.misses % TUNING.miss_interval == 0:
        known, signature = _evaluate_by_structure(nodes, site)
        if known is not None:
            site.promote(known)
            return True
    if len(nodes) == 1 and node.prim.name in _ALIASING:
        inputs = node.inputs
        if inputs and inputs[0].view is None:
            return evaluate((inputs[0],)) is True and alias(node)
    return False if signature is None else signature


def is_view_of_standalone(node: Node) -> bool:
    """Whether a pending node is only a view of a whole value that is evaluated by itself."""
    if node.prim.name not in _ALIASING:
        return False
    while node.view is None and node.prim.name in _ALIASING and node.inputs:
        node = node.inputs[0]
    return node.view is None and node.prim.name in STANDALONE


def _evaluate_by_structure(
    nodes: tuple[Node, ...], site: InlineCache
) -> tuple[Any, GraphSignature | None]:
    """Evaluate nodes by the fast call of their structure, and return it; None without one. Where
    the structure is new, its signature."""
    device = nodes[0].device
    if before_run or storage_lock.writers:  # fast calls wait for neither
        return None, None
    if device is None or device.kind == "reference" or any(n.device is not device for n in nodes):
        return None, None
    with storage_lock.lock:  # another thread may be evaluating the nodes
        if any(node.view is not None for node in nodes):
            return None, None
        signature = signature_of(nodes, TUNING.max_nodes)
    if signature.standalone or signature.is_truncated:
        return None, None
    key = (device.name, kernel_choice_key(), signature.key, signature.constant_bits)
    call = eager_calls.get(key)
    skeleton = signature.skeleton
    if call is None:
        if eager_calls.runs(key):
            site.misses = 0  # this one repeats
        if not eager_calls.is_due(key, lambda: skeleton):
            return None, signature
    del signature  # it holds nodes
    if call is None or call(*nodes) is GUARD_FAILED:
        # what it was specialised to may have changed: the number of threads, say
        call = _compile(nodes)
        if call is None or call(*nodes) is GUARD_FAILED:
            return None, None
        eager_calls.structures[key] = call
    return call, None


def alias(node: Node) -> bool:
    """Make a node a view of the value that it is reshaped or permuted from, where that can be."""
    with storage_lock.lock:
        if node.view is not None:  # another thread was here
            return True
        source = node.inputs[0]
        view = source.view
        if view is None:
            return False
        if node.prim.name == "permute":
            strides: Shape | None = tuple([view.strides[a] for a in node.params])
        else:
            strides = reshape_strides(source.shape, view.strides, node.shape)
        if strides is None:
            return False
        node.view = View(view.storage, view.offset, strides)
        if not node.tracked or is_boundary(node):
            forget(node)
    return True


# -- compilation ----------------------------------------------------------------------------------


def _compile(roots: tuple[Node, ...]) -> Any:
    """The fast call for nodes like these; None where unsupported."""
    from numus.compiler import plan as plans
    from numus.compiler.graph.signature import GraphSignature
    from numus.compiler.launch_plan import scalar_part

    device: Any = roots[0].device
    with storage_lock.lock:  # so that no other thread evaluates any of the nodes meanwhile
        if any(root.view is not None for root in roots):
            return None
        signature = GraphSignature(roots)
        if signature.standalone:
            return None
        plan = plans.plan_of(device, signature, roots)
        call_builder = getattr(plan.prepared, "call_builder", None)
        leaves = len(signature.leaves)
        if call_builder is None or any(slot < leaves for slot, _ in plan.outputs):
            return None
        values = list(plan.values)
        for at, constant, part in plan.scalar_patches:
            values[at] = scalar_part(signature.constants[constant].params, part)
        code: BytecodeBuilder | None = call_builder(values, (), plan.arena or None)
        if code is None:
            return None
        code.is_empty(before_run)
        code.is_empty(storage_lock.writers)
        registers = _match(code, roots, signature)
        if registers is None:
            return None
        saved = [signature.nodes[i] for i in (*signature.live_out, *plan.saved_for_backward)]
        views = _new_views(code, leaves, plan)
        code.launch()
        for node, view in zip([*roots, *saved], views, strict=True):
            code.set_slot(registers[node], Node, "view", view)
            if not node.tracked or is_boundary(node):
                write_forget(code, registers[node])
        return code.function(len(roots), registers[roots[0]], GUARD_FAILED, storage_lock.lock)


def _match(
    code: BytecodeBuilder, roots: tuple[Node, ...], signature: Any
) -> dict[Node, int] | None:
    """Guard the graph below the arguments, and pass its leaves; the registers of all nodes, None
    where the graph cannot be guarded."""
    from numus.compiler.graph.signature import is_free

    uses = signature.uses()
    live_out = {signature.nodes[i] for i in signature.live_out}
    slots = {x: i for i, x in enumerate(signature.leaves)}
    registers = {root: code.load_arg(i) for i, root in enumerate(roots)}

    def guard(node: Node, register: int) -> bool:
        if node in slots:
            code.slot_is(register, Node, "dtype", node.dtype)
            code.slot_eq(register, Node, "shape", node.shape)
            strides = signature.leaf_strides[slots[node]]
            store_view_address(code, slots[node], register, strides, node.dtype.itemsize)
            return True
        if node.prim.name == "constant":
            return guard_constant(code, register, node)
        if node in live_out:
            code.refcount(register, uses[node] + 1, more=True)
        elif node not in roots and node.device is not None and not is_free(node):
            code.refcount(register, uses[node] + 1)
        for name in ("view", "prim", "dtype", "device", "tracked"):
            code.slot_is(register, Node, name, getattr(node, name))
        code.slot_eq(register, Node, "shape", node.shape)
        code.slot_eq(register, Node, "params", node.params)
        return True

    def is_inner(node: Node) -> bool:
        return node not in slots and node.prim.name != "constant"

    return registers if match_graph(code, registers, guard, is_inner) else None


def _new_views(code: BytecodeBuilder, leaves: int, plan: Any) -> list[int]:
    """Registers with a view for each output; some share memory."""
    first: dict[int, int] = {}
    views = []
    total = sum(plan.result_bytes)
    for slot, (offset, strides) in plan.outputs:
        if slot in first:
            view = new_aliasing_view(code, first[slot], offset, strides)
        else:
            nbytes = plan.result_bytes[slot - leaves]
            view = first[slot] = new_output_view(code, slot, nbytes, offset, strides, total)
        views.append(view)
    return views
