"""Executables: a traced function specialised to the layout of its inputs.

`Executable.__call__` is the per-call overhead of jit, written for speed: one loop over the inputs,
the launch, the results. Where the runtime supports it, a fast call takes its place (`fast_path`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

from numus import aliases
from numus import dtypes as dt
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dtypes import DType
from numus.evaluation import storage_lock
from numus.evaluation.evaluate import evaluate
from numus.graph import SOLE_REFERENCE, Nodes, View, has_active_hook, mode
from numus.lru import LruTable
from numus.primitives.source import value
from numus.runtime.devices import default
from numus.runtime.memory_pool import is_borrowed
from numus.shapes import Shape, size_of
from numus.tensor import Tensor, scalar_node
from numus.transforms import tree
from numus.transforms.jit.fast_path import FastPath
from numus.transforms.jit.inputs import GradientRef, InputRef
from numus.transforms.jit.program import CompiledRun, Run, SegmentedRun, Views
from numus.transforms.jit.spec import (
    ConstantResult,
    Donated,
    InputGuard,
    Spec,
    Specialization,
    Values,
)
from numus.transforms.jit.tracing import TraceBailout

_MAX_LAYOUTS = 64  # of the inputs of a trace


class Executables:
    """The executables of a spec, by layout."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self._by_layout: LruTable[Any, Executable] = LruTable(_MAX_LAYOUTS)

    def get(self, leaves: Sequence[Any]) -> Executable | None:
        """The executable of a call; None where the spec's guards fail."""
        nodes = []
        for source in self.spec.inputs:
            node = source.find(leaves)
            if node is None:
                return None
            nodes.append(node)
        if not self.spec.guards.hold(leaves):
            return None
        evaluate(nodes)
        layout = tuple([node.view.strides for node in nodes if node.view is not None])
        return self._by_layout.setdefault(
            layout, lambda: Executable(self.spec, nodes, layout, len(leaves))
        )


class Executable:
    """Called with the leaves of the arguments, it returns the result, or `GUARD_FAILED`."""

    def __init__(self, spec: Spec, nodes: Nodes, layout: tuple[Shape, ...], arity: int) -> None:
        run = spec.program.runner(layout)
        inputs = zip(spec.inputs, nodes, strict=True)
        self.spec = spec
        self._special = Specialization(
            spec,
            arity,
            inputs=[InputGuard.of(x.refs[0], node) for x, node in inputs],
            mode=(mode.grad, mode.autocast, default.device),
            run=run,
            output_types=[
                (shape, dtype, device or spec.program.device or default.device)
                for shape, dtype, device in spec.output_types
            ],
            donations=_donations(spec, run),
        )
        self._scalars: list[tuple[Any, type, DType, range | None]] = [
            (s.compute, s.sample.__class__, dtype, _int_range(dtype)) for s, dtype in spec.scalars
        ]
        self._visible = spec.visible_outputs()
        self._has_guards = bool(spec.guards)
        self._has_effects = bool(spec.effects)
        self._replaced_gradients = _replaced_gradients(spec)
        self._fast_path: FastPath | None = None
        self._retained = (
            run.retained if isinstance(run, CompiledRun) and run.plan.captured else None
        )

    def _donate(self, leaves: Sequence[Any]) -> tuple[dict[int, Any], set[int]]:
        """Result blocks in the memory of inputs that nothing else references, and the bindings that
        this makes."""
        donated: dict[int, Any] = {}
        done: set[int] = set()
        for block, ref, binding, nbytes in self._special.donations:
            tensor = ref.find(leaves)
            if not isinstance(tensor, Tensor) or not owns_memory(tensor):
                continue
            view = tensor._node.view
            if view is None or view.offset or view.storage.memory.nbytes != nbytes:
                continue
            if is_borrowed(view.storage.memory):
                continue
            donated[block] = view.storage.memory
            if binding is None or tensor._alias is not None:
                continue
            if tensor._node.tracked is self.spec.effects.bindings[binding].is_leaf:
                done.add(binding)
        return donated, done

    def __call__(self, leaves: Sequence[Any]) -> Any:
        special, spec = self._special, self.spec
        if (mode.grad, mode.autocast, default.device) != special.mode:
            return GUARD_FAILED
        with storage_lock.lock:
            donated, done = self._donate(leaves) if special.donations else (None, ())
            views: list[View] = []  # they keep the memory alive while kernels run
            for index, reader, ref, shape, dtype, device, strides, tracked in special.inputs:
                if index is not None:
                    tensor = leaves[index]
                else:
                    tensor = ref.find(leaves) if reader is None else reader()
                try:
                    node = tensor._node
                except AttributeError:
                    return GUARD_FAILED
                view = node.view
                if (
                    view is None
                    or node.dtype is not dtype
                    or node.shape != shape
                    or view.strides != strides
                    or node.device is not device
                    or node.tracked is not tracked
                ):
                    return GUARD_FAILED
                views.append(view)
            if self._has_guards and not spec.guards.hold(leaves):
                return GUARD_FAILED
            if storage_lock.writers:
                storage_lock.wait_for_writers([view.storage for view in views])
            numbers: Sequence[Any] = ()
            scalars: list[Any] = []
            if spec.numbers:
                numbers = [leaves[i] for i, _ in spec.numbers]
                for number, (_, kind) in zip(numbers, spec.numbers, strict=True):
                    if number.__class__ is not kind:
                        return GUARD_FAILED
                for compute, kind, dtype, allowed in self._scalars:
                    number = compute(numbers)
                    if number.__class__ is not kind:
                        raise TraceBailout  # 2**n with a negative n, say: another dtype follows
                    if allowed is not None and number not in allowed:
                        scalar_node(number, dtype)  # raises
                    scalars.append(number)
            for gradient in self._replaced_gradients:
                slot = gradient.slot(leaves)
                if slot is not None:
                    slot.grad = None
            run: Any = special.run
            if donated:
                run = functools.partial(run, donated=donated)
            found = self._draw(run, views, scalars) if spec.generators else run(views, scalars)
            retained = self._retained
            if retained is not None and not retained and not storage_lock.writers:
                retained.retain(views)
            made = {}
            for at in self._visible:
                shape, dtype, device = special.output_types[at]
                made[at] = Tensor(value(found[at], shape, dtype, device))
            # before anything is written: a result may be a variable's old value
            out = [made[x] if isinstance(x, int) else x(leaves, numbers) for x in spec.results]
            if self._has_effects:
                node = view = None  # so that nodes have no references but their tensors'
                views.clear()
                self._apply_effects(leaves, numbers, found, made, done)
        return out[0] if spec.structure.kind is None else tree.unflatten(spec.structure, out)

    def fast_path(self) -> Callable[..., Any]:
        """A function of the arguments that does the same, or returns `GUARD_FAILED`."""
        found = self._fast_path
        if found is None or not found.is_current():
            found = self._fast_path = FastPath(self._special)
        return found.function or self._guarded_call

    def _guarded_call(self, *leaves: Any) -> Any:
        if len(leaves) != self._special.arity or has_active_hook():
            return GUARD_FAILED
        try:
            return self(leaves)
        except TraceBailout:
            return GUARD_FAILED

    def _draw(self, run: Run, views: Views, scalars: list[Any]) -> list[View]:
        """A run with random keys, which are returned if it fails."""
        generators = self.spec.generators
        taken = 0
        try:
            for generator in generators:
                scalars += generator.next()
                taken += 1
            return run(views, scalars)
        except BaseException:
            generators[0].give_back(taken)
            raise

    def _apply_effects(
        self, leaves: Values, numbers: Values, found: Views, made: Any, done: Collection[int]
    ) -> None:
        """Write outputs to tensors, gradients and variables."""
        effects = self.spec.effects
        targets = [
            (target.find(leaves), output, is_leaf)
            for number, (target, output, is_leaf) in enumerate(effects.bindings)
            if number not in done
        ]
        grads = [
            (ref.slot(leaves), new.find(leaves) if isinstance(new, InputRef) else new)
            for ref, new in effects.grads
        ]
        values = [write.value(leaves, numbers, made) for write in effects.variables]
        for tensor, at, is_leaf in targets:
            if tensor is None:
                continue  # it existed only while the function was traced
            view = found[at]
            if sys.getrefcount(tensor._node) == SOLE_REFERENCE and tensor._node.tracked is is_leaf:
                tensor._node.view = view  # nothing else references the node: its value may change
                continue
            shape, dtype, device = self._special.output_types[at]
            node = value(view, shape, dtype, device)
            if is_leaf:
                node.tracked = True
                node.grad_slot = tensor._node.grad_slot
            tensor._bind(node)
        aliased = [x for x, *_ in targets if x is not None and x._alias is not None]
        for tensor in aliased:
            aliases.propagate(tensor, set(map(id, aliased)), self.spec.name)
        if effects.donated:
            marker = Donated(self.spec.name)
            for index in effects.donated:
                leaves[index]._bind(marker.node(leaves[index]._node))
        for slot, grad in grads:
            if slot is not None:
                slot.grad = made[grad] if grad.__class__ is int else grad
        for write, new in zip(effects.variables, values, strict=True):
            write.write(new)


def _replaced_gradients(spec: Spec) -> list[GradientRef]:
    """Gradients that a call replaces and that are no results: it runs in their memory, as after
    PyTorch's `zero_grad`."""
    effects = spec.effects
    others: list[Any] = [binding.target for binding in effects.bindings]
    others += [new for _, new in effects.grads]
    if (
        effects.variables
        or any(isinstance(x, GradientRef) for x in others)
        or not all(isinstance(x, (int, ConstantResult)) for x in spec.results)
    ):
        return []
    return [gradient for gradient, _ in effects.grads]


def _donations(spec: Spec, run: Any) -> list[tuple[int, InputRef, int | None, int]]:
    """Outputs that may be written to the memory of inputs: block (or number of the input, where
    there are segments), input, binding, bytes."""
    if not isinstance(run, (CompiledRun, SegmentedRun)) or SOLE_REFERENCE is None:
        return []
    inputs = {x.refs[0].key(): i for i, x in enumerate(spec.inputs)}
    pairs: dict[tuple[int, int], int | None] = {**spec.effects.in_place}
    for index in spec.effects.donated:
        if index in inputs:
            given = spec.inputs[inputs[index]]
            for at, (shape, dtype, _) in enumerate(spec.output_types):
                if (shape, dtype) == (given.shape, given.dtype):
                    pairs.setdefault((inputs[index], at), None)
    found: list[tuple[int, InputRef, int | None, int]] = []
    if isinstance(run, SegmentedRun):  # which block it is turns out when the last program runs
        for number, _ in run.donatable(list(pairs)):
            source = spec.inputs[number]
            found.append((number, source.refs[0], None, _nbytes(source)))
        return found
    allowed = run.plan.donatable(list(pairs))
    for (number, at), binding in pairs.items():
        block = run.plan.outputs[at].block
        if allowed.get(block) == number:
            del allowed[block]
            source = spec.inputs[number]
            found.append((block, source.refs[0], binding, _nbytes(source)))
    return found


def _nbytes(source: Any) -> int:
    return size_of(source.shape) * source.dtype.itemsize


def _int_range(dtype: DType) -> range | None:
    low, high = dt.int_range(dtype)
    return range(low, high + 1) if dtype.is_integer else None


def owns_memory(tensor: Tensor) -> bool:
    """True if nothing but this tensor references its node, view, storage and memory."""
    count = sys.getrefcount
    if count(tensor._node) != SOLE_REFERENCE or tensor._node.view is None:
        return False
    return (
        count(tensor._node.view) == SOLE_REFERENCE
        and count(tensor._node.view.storage) == SOLE_REFERENCE
        and count(tensor._node.view.storage.memory) == SOLE_REFERENCE
    )
