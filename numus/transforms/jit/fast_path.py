"""Fast path of jitted functions: a call as bytecode (`runtime/pycall`).

Guards of inputs and captures, one launch, new tensors, and the effects of a training step: tensors
updated (in donated memory where nothing else references it) and gradients stored. No Python runs
but the call itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from numus.compiler.hooks import before_run
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dispatch.node_ops import guard_modes, new_output_view
from numus.evaluation import storage_lock
from numus.graph import Node, Storage, View, observers
from numus.runtime.memory_pool import Memory
from numus.tensor import GradSlot, Tensor, new_tensor
from numus.transforms import tree
from numus.transforms.jit.inputs import ArgumentRef, GradientRef, InputRef
from numus.transforms.jit.program import CompiledRun
from numus.transforms.jit.spec import ConstantResult, InputGuard, Spec, Specialization

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder


class FastPath:
    """A call as a fast call; `function` is None where unsupported."""

    def __init__(self, special: Specialization) -> None:
        self._run = special.run if isinstance(special.run, CompiledRun) else None
        self._made_for = self._current()
        self.function: Callable[..., Any] | None = None
        if self._run is not None and _is_supported(special, self._run.plan):
            code = self._run.plan.call_builder(hoisted=bool(self._run.retained))
            if code is not None:
                self.function = _CallWriter(code, special, self._run).write()

    def _current(self) -> Any:
        """The thread count and the retained inputs that fast calls are specialised to."""
        if self._run is None:
            return None
        return getattr(self._run.plan.plan.prepared, "threads", None), self._run.retained.version

    def is_current(self) -> bool:
        return bool(self._current() == self._made_for)


def _is_supported(special: Specialization, plan: Any) -> bool:
    spec = special.spec
    guards, effects = spec.guards, spec.effects
    outputs = [plan.outputs[x] for x in _outputs(spec)]
    refs = [
        *(guard.ref for guard in special.inputs),
        *(binding.target for binding in effects.bindings),
        *(ref for ref, _ in guards.grads),
        *(x for pair in effects.grads for x in pair if isinstance(x, InputRef)),
    ]
    return not (
        spec.numbers
        or spec.generators
        or guards.several_refs
        or guards.preconditions
        or guards.aliases
        or effects.donated
        or effects.variables
        or not all(map(_is_loadable, refs))
        or any(x.input is not None for x in outputs)
        or {x.block for x in outputs} != set(range(len(plan.block_sizes)))
        or len(outputs) != len(plan.block_sizes)  # some share memory
        or not all(isinstance(x, (int, ConstantResult)) for x in spec.results)
        or not _is_nested_tuple(spec.structure)
    )


def _outputs(spec: Spec) -> list[int]:
    """The outputs that are used, each once."""
    return sorted({*spec.visible_outputs(), *(x.output for x in spec.effects.bindings)})


def _is_loadable(ref: InputRef) -> bool:
    if isinstance(ref, GradientRef):
        return _is_loadable(ref.owner)
    return isinstance(ref, ArgumentRef) or ref.reader is not None


def _is_nested_tuple(structure: tree.Structure) -> bool:
    """True if a result is built of tuples and None."""
    return structure.kind in (None, tuple, type(None)) and all(
        map(_is_nested_tuple, structure.children)
    )


class _Layout(NamedTuple):
    """Registers of an input's view, storage and memory."""

    view: int
    storage: int
    memory: int


class _CallWriter:
    """Writes the bytecode of a call. Every object is loaded into one register only, so that
    reference counts are known."""

    def __init__(self, code: BytecodeBuilder, special: Specialization, run: CompiledRun) -> None:
        plan = run.plan
        self._retained = run.retained
        self._code = code
        self._special = special
        self._spec = special.spec
        self._plan = plan
        self._tensors: dict[Any, int] = {}  # registers by the key of a reference
        self._nodes: dict[Any, int] = {}
        self._slots: dict[Any, int] = {}
        self._layouts: dict[Any, _Layout] = {}

    def write(self) -> Callable[..., Any]:
        code, special, spec = self._code, self._special, self._spec
        modes = dict(zip(("grad", "autocast", "device"), special.mode, strict=True))
        guard_modes(code, modes, observers)  # lent memory is read now, and not later
        code.is_empty(before_run)
        code.is_empty(storage_lock.writers)
        for slot, guard in enumerate(special.inputs):
            self._guard_input(slot, guard)
        self._guard_relations()
        for ref, new in spec.effects.grads:
            self._grad_slot(ref)
            if isinstance(new, InputRef):
                self._tensor(new)
        views = self._new_outputs(self._guard_targets())
        code.launch()
        made = {
            x: new_tensor(code, views[x], *special.output_types[x]) for x in spec.visible_outputs()
        }
        self._apply_effects(views, made)
        results = [
            made[x] if isinstance(x, int) else code.load_const(getattr(x, "value", None))
            for x in spec.results
        ]
        result = self._unflatten(spec.structure, iter(results))
        return code.function(special.arity, result, GUARD_FAILED, storage_lock.lock)

    def _unflatten(self, structure: tree.Structure, leaves: Iterator[int]) -> int:
        if structure.kind is None:
            return next(leaves)
        if structure.kind is not tuple:
            return self._code.load_const(None)
        return self._code.new_tuple([self._unflatten(x, leaves) for x in structure.children])

    # -- loads ------------------------------------------------------------------------------------

    def _tensor(self, ref: InputRef) -> int:
        key = ref.key()
        if key in self._tensors:
            return self._tensors[key]
        if isinstance(ref, GradientRef):
            found = self._code.get_member(self._grad_slot(ref), GradSlot, "_grad")
        elif isinstance(ref, ArgumentRef):
            found = self._code.load_arg(ref.index)
        else:
            assert ref.reader is not None
            found = self._code.call(ref.reader)
        return self._tensors.setdefault(key, found)

    def _node(self, ref: InputRef) -> int:
        key = ref.key()
        if key not in self._nodes:
            self._nodes[key] = self._code.get_member(self._tensor(ref), Tensor, "_node")
        return self._nodes[key]

    def _grad_slot(self, ref: GradientRef) -> int:
        key = ref.owner.key()
        if key not in self._slots:
            found = self._code.load_slot(self._node(ref.owner), Node, "grad_slot")
            self._code.get_member(found, GradSlot, "serial")  # guards that there is one
            self._slots[key] = found
        return self._slots[key]

    # -- guards -----------------------------------------------------------------------------------

    def _guard_input(self, slot: int, guard: InputGuard) -> None:
        """Guard an input's properties and pass its elements."""
        code, node = self._code, self._node(guard.ref)
        code.slot_is(node, Node, "dtype", guard.dtype)
        code.slot_eq(node, Node, "shape", guard.shape)
        code.slot_is(node, Node, "device", guard.device)
        code.slot_is(node, Node, "tracked", guard.tracked)
        view = code.load_slot(node, Node, "view")
        offset = code.get_member(view, View, "offset")  # guards that there is a view
        code.slot_eq(view, View, "strides", guard.strides)
        storage = code.load_slot(view, View, "storage")
        memory = code.load_slot(storage, Storage, "memory")
        retained = self._retained.memory_of(slot)
        if retained is not None:
            code.slot_is(storage, Storage, "memory", retained[0])
            code.slot_eq(view, View, "offset", retained[1])
        code.store_address(slot, memory, offset, guard.dtype.itemsize)
        self._layouts[guard.ref.key()] = _Layout(view, storage, memory)

    def _guard_relations(self) -> None:
        code, guards = self._code, self._spec.guards
        for read, flag in guards.flags:
            code.is_const(code.call(read), flag)
        for read, known in guards.shared:
            code.is_same(code.call(read), code.call(known))
        for ref, was_none in guards.grads:
            guard = code.slot_is if was_none else code.slot_is_not
            guard(self._grad_slot(ref), GradSlot, "_grad", None)
        for binding in self._spec.effects.bindings:
            for index in guards.arguments:
                code.is_not(self._tensor(binding.target), self._tensor(ArgumentRef(index)))

    def _guard_targets(self) -> dict[int, int]:
        """Guard that nothing else references the nodes of updated tensors, nor donated memory;
        returns registers of the latter, by block."""
        code, plan = self._code, self._plan
        donations = {block: nbytes for block, _, _, nbytes in self._special.donations}
        donated: dict[int, int] = {}
        for target, output, is_leaf in self._spec.effects.bindings:
            node = self._node(target)
            code.slot_is(self._tensor(target), Tensor, "_alias", None)
            shape, dtype, _ = self._special.output_types[output]
            code.slot_is(node, Node, "dtype", dtype)
            code.slot_eq(node, Node, "shape", shape)
            code.slot_is(node, Node, "tracked", is_leaf)
            code.refcount(node, 2)  # its tensor and the register
            block = plan.outputs[output].block
            if block in donations:
                layout = self._layouts[target.key()]
                for register in layout:
                    code.refcount(register, 2)
                code.slot_eq(layout.view, View, "offset", 0)
                code.slot_eq(layout.memory, Memory, "nbytes", donations[block])
                code.slot_is(layout.memory, Memory, "owner", None)
                donated[block] = layout.memory
        return donated

    # -- outputs and effects ----------------------------------------------------------------------

    def _new_outputs(self, donated: dict[int, int]) -> dict[int, int]:
        """Registers of views for the outputs; none for those in donated memory."""
        code, plan = self._code, self._plan
        # results alone are recycled one by one, effects only where all are small
        total = sum(plan.block_sizes) if self._spec.effects else None
        views = {}
        for x in _outputs(self._spec):
            _, block, offset, strides = plan.outputs[x]
            slot = plan.first_block + block
            if block in donated:
                code.store_address(slot, donated[block], code.load_const(0), 1)
            else:
                nbytes = plan.block_sizes[block]
                views[x] = new_output_view(code, slot, nbytes, offset, strides, total)
        return views

    def _apply_effects(self, views: dict[int, int], made: dict[int, int]) -> None:
        code, effects = self._code, self._spec.effects
        for target, output, _ in effects.bindings:
            if output in views:
                code.set_slot(self._node(target), Node, "view", views[output])
        for ref, new in effects.grads:
            slot = self._slots[ref.owner.key()]
            if new is None:
                code.set_const(slot, GradSlot, "_grad", None)
            else:
                grad = made[new] if isinstance(new, int) else self._tensor(new)
                code.set_slot(slot, GradSlot, "_grad", grad)
