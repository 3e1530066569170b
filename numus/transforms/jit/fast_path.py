"""Fast path of jitted functions: a call as bytecode (`runtime/pycall`).

Guards of the inputs, one launch and new tensors, without Python but for the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numus.compiler.hooks import before_run
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import guard_modes, new_output_view, store_view_address
from numus.evaluation import storage_lock
from numus.graph import Node
from numus.tensor import Tensor, new_tensor
from numus.transforms import tree
from numus.transforms.jit.program import CompiledRun
from numus.transforms.jit.spec import InputGuard, Specialization

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder


class FastPath:
    """A call as a fast call; `function` is None where unsupported."""

    def __init__(self, special: Specialization) -> None:
        self._run = special.run if isinstance(special.run, CompiledRun) else None
        self._threads = self._current_threads()
        self.function: Callable[..., Any] | None = None
        if self._run is not None:
            self.function = _compile(special, self._run.plan)

    def _current_threads(self) -> Any:
        """The thread count that fast calls are specialised to."""
        prepared = None if self._run is None else self._run.plan.plan.prepared
        return getattr(prepared, "threads", None)

    def is_current(self) -> bool:
        return bool(self._current_threads() == self._threads)


def _compile(special: Specialization, plan: Any) -> Callable[..., Any] | None:
    spec = special.spec
    shown = [x for x in spec.results if isinstance(x, int)]
    blocks = {plan.outputs[x].block for x in shown if plan.outputs[x].input is None}
    if (
        spec.guards.has_relations
        or spec.numbers
        or spec.generators
        or spec.effects
        or any(x.argument is None and x.reader is None for x in special.inputs)
        or len(shown) < len(spec.results)
        or len(blocks) < len(set(shown))  # results that are inputs, or share memory
        or len(blocks) < len(plan.block_sizes)  # or that are not returned
        or not (spec.structure.kind is None or _is_tuple(spec.structure))
    ):
        return None
    code: BytecodeBuilder | None = plan.call_builder()
    if code is None:
        return None
    grad, low = special.mode
    guard_modes(code, {"grad": grad, "low": low, "device": special.default_device})
    code.is_empty(before_run)
    code.is_empty(storage_lock.writers)
    for read, flag in spec.guards.flags:
        code.is_const(code.call(read), flag)
    for slot, guard in enumerate(special.inputs):
        _guard_input(code, slot, guard)
    views = {}
    for x in dict.fromkeys(shown):
        _, block, offset, strides = plan.outputs[x]
        slot, nbytes = plan.first_block + block, plan.block_sizes[block]
        views[x] = new_output_view(code, slot, nbytes, offset, strides)
    code.launch()
    made = {x: new_tensor(code, view, *special.output_types[x]) for x, view in views.items()}
    several = spec.structure.kind is not None
    result = code.new_tuple([made[x] for x in shown]) if several else made[shown[0]]
    return code.function(special.arity, result, GUARD_FAILED, storage_lock.lock)


def _guard_input(code: BytecodeBuilder, slot: int, guard: InputGuard) -> None:
    """Guard an input's properties and pass its elements."""
    if guard.argument is None:
        tensor = code.call(guard.reader)
    else:
        tensor = code.load_arg(guard.argument)
    node = code.get_member(tensor, Tensor, "_node")
    code.slot_is(node, Node, "dtype", guard.dtype)
    code.slot_eq(node, Node, "shape", guard.shape)
    code.slot_is(node, Node, "device", guard.device)
    code.slot_is(node, Node, "tracked", guard.tracked)
    store_view_address(code, slot, node, guard.strides, guard.dtype.itemsize)


def _is_tuple(structure: tree.Structure) -> bool:
    return structure.kind is tuple and all(child.kind is None for child in structure.children)
