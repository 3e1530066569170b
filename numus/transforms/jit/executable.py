"""A traced function, ready to run on inputs of one layout.

What a call costs beside its kernels is spent here, so `__call__` is written for speed: one loop
over the inputs, the launch, the results.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from numus import dtypes as dt
from numus.dtypes import DType
from numus.evaluation import storage_lock
from numus.graph import ONE_HOLDER, Node, View, is_observed, mode
from numus.primitives.source import value
from numus.runtime.devices import Device, default
from numus.shapes import Shape, size_of
from numus.tensor import Tensor, scalar_node
from numus.transforms import tree
from numus.transforms.jit.fast_path import MISS, NativeCall, Short
from numus.transforms.jit.inputs import Argument, Place
from numus.transforms.jit.program import Native, Run
from numus.transforms.jit.tracing import Inline

if TYPE_CHECKING:
    from numus.transforms.jit.traced import Traced


class Expected(NamedTuple):
    """An input: where it is found (an argument, a tensor's handle, or elsewhere), and what it has
    to be like.
    """

    argument: int | None
    handle: Any
    place: Place
    shape: Shape
    dtype: DType
    device: Device | None
    strides: Shape
    tracked: bool


class Ready:
    """Called with the leaves of the arguments, it gives the result, or `MISS`."""

    def __init__(self, traced: Traced, nodes: Sequence[Node], arity: int) -> None:
        self.traced = traced
        self.arity = arity  # how many leaves the arguments have
        self.run = traced.program.runner(
            tuple([n.view.strides for n in nodes if n.view is not None])
        )
        self.mode = (mode.grad, mode.low)
        self.default = default.device
        self.sources: list[Expected] = []
        for source, node in zip(traced.sources, nodes, strict=True):
            place = source.places[0]
            assert node.view is not None
            self.sources.append(
                Expected(
                    place.index if isinstance(place, Argument) else None,
                    place.reference,
                    place,
                    *(node.shape, node.dtype, node.device, node.view.strides, node.tracked),
                )
            )
        self._scalars: list[tuple[Any, type, DType, range | None]] = [
            (s.compute, s.sample.__class__, dtype, _integers(dtype)) for s, dtype in traced.scalars
        ]
        self.plain = not (traced.bindings or traced.grads or traced.donated or traced.rebound)
        self._reuse = self._in_place()
        self._native: NativeCall | None = None
        self.kinds = [
            (shape, dtype, device or traced.program.place or default.device)
            for shape, dtype, device in traced.types
        ]

    def _in_place(self) -> list[tuple[int, Place, int | None, int]]:
        """Results that may be written to the memory of inputs: block, input, binding, bytes."""
        traced, run = self.traced, self.run
        if not isinstance(run, Native) or ONE_HOLDER is None:
            return []
        sources = {s.places[0].key(): i for i, s in enumerate(traced.sources)}
        wishes: dict[tuple[int, int], int | None] = {**traced.replaced}
        for index in traced.donated:
            if index in sources:
                given = traced.sources[sources[index]]
                for at, (shape, dtype, _) in enumerate(traced.types):
                    if (shape, dtype) == (given.shape, given.dtype):
                        wishes.setdefault((sources[index], at), None)
        taken = run.replay.taken_over(list(wishes))
        found = []
        for (number, at), binding in wishes.items():
            block = run.replay.outputs[at].block
            if taken.get(block) == number:
                del taken[block]
                source = traced.sources[number]
                nbytes = size_of(source.shape) * source.dtype.itemsize
                found.append((block, source.places[0], binding, nbytes))
        return found

    def _given(self, leaves: Sequence[Any]) -> tuple[dict[int, Any], set[int]]:
        """Blocks that inputs give up, as nobody but their tensors knows of them, and the bindings
        that are done when these are written.
        """
        given: dict[int, Any] = {}
        done: set[int] = set()
        for block, place, binding, nbytes in self._reuse:
            tensor = place.find(leaves)
            if not isinstance(tensor, Tensor) or not held_alone(tensor):
                continue
            view = tensor._node.view
            if view is None or view.offset or view.storage.memory.nbytes != nbytes:
                continue
            given[block] = view.storage.memory
            if binding is not None and tensor._node.tracked is self.traced.bindings[binding][2]:
                done.add(binding)
        return given, done

    def __call__(self, leaves: Sequence[Any]) -> Any:
        if (mode.grad, mode.low) != self.mode or default.device is not self.default:
            return MISS
        traced = self.traced
        with storage_lock.lock:
            given, done = self._given(leaves) if self._reuse else (None, _NOTHING)
            views: list[View] = []  # they keep the memory while kernels run
            for index, handle, place, shape, dtype, device, strides, tracked in self.sources:
                if index is not None:
                    tensor = leaves[index]
                else:
                    tensor = place.find(leaves) if handle is None else handle()
                try:
                    node = tensor._node
                except AttributeError:
                    return MISS
                view = node.view
                if (
                    view is None
                    or node.dtype is not dtype
                    or node.shape != shape
                    or view.strides != strides
                    or node.device is not device
                    or node.tracked is not tracked
                ):
                    return MISS
                views.append(view)
            if traced.guarded and not traced.is_for(leaves):
                return MISS
            if storage_lock.being_written():
                storage_lock.await_writers([view.storage for view in views])
            numbers: Sequence[Any] = ()
            scalars: list[Any] = []
            if traced.numbers:
                numbers = [leaves[i] for i, _ in traced.numbers]
                for number, (_, kind) in zip(numbers, traced.numbers, strict=True):
                    if number.__class__ is not kind:
                        return MISS
                for compute, kind, dtype, integers in self._scalars:
                    number = compute(numbers)
                    if number.__class__ is not kind:
                        raise Inline  # 2**n with a negative n, say: another dtype would follow
                    if integers is not None and number not in integers:
                        scalar_node(number, dtype)  # which says so
                    scalars.append(number)
            run: Any = self.run
            if given:
                run = functools.partial(run, given=given)
            found = self._draw(run, views, scalars) if traced.generators else run(views, scalars)
            made = {}
            for at in traced.shown:
                shape, dtype, device = self.kinds[at]
                made[at] = Tensor(value(found[at], shape, dtype, device))
            # before anything is written: a result may be what a variable held
            out = [made[x] if isinstance(x, int) else x(leaves, numbers) for x in traced.results]
            if not self.plain:
                node = view = None  # nodes which only their tensors hold are to be seen as such
                views.clear()
                self._write(leaves, numbers, found, made, done)
        return out[0] if traced.structure.kind is None else tree.unflatten(traced.structure, out)

    def short_way(self) -> Short:
        """The same for the next calls, if they are like this one: a function of the arguments."""
        native = self._native
        if native is None or not native.is_current():
            native = self._native = NativeCall(self)
        return native.function or self._or_miss

    def _or_miss(self, *leaves: Any) -> Any:
        """A call that may turn out to be another one, or not to be a program of its own."""
        if len(leaves) != self.arity or is_observed():
            return MISS
        try:
            return self(leaves)
        except Inline:
            return MISS

    def _draw(self, run: Run, views: Sequence[View], scalars: list[Any]) -> list[View]:
        """A run with random keys; when it fails, they have not been drawn."""
        generators = self.traced.generators
        taken = 0
        try:
            for generator in generators:
                scalars += generator.next()
                taken += 1
            return run(views, scalars)
        except BaseException:
            generators[0].give_back(taken)
            raise

    def _write(
        self,
        leaves: Sequence[Any],
        numbers: Sequence[Any],
        found: Sequence[View],
        made: dict[int, Tensor],
        done: Collection[int],
    ) -> None:
        """Put results where the function has put them: in tensors, gradients, variables."""
        traced = self.traced
        targets = [
            (place.find(leaves), at, leaf)
            for number, (place, at, leaf) in enumerate(traced.bindings)
            if number not in done
        ]
        grads = [
            (place.slot(leaves), new.find(leaves) if isinstance(new, Place) else new)
            for place, new in traced.grads
        ]
        values = [r.value(leaves, numbers, made) for r in traced.rebound]
        for tensor, at, leaf in targets:
            if tensor is None:
                continue  # it was only there while the function was traced
            view = found[at]
            if sys.getrefcount(tensor._node) == ONE_HOLDER and tensor._node.tracked is leaf:
                tensor._node.view = view  # nobody else knows the node: its value may change
                continue
            shape, dtype, device = self.kinds[at]
            node = value(view, shape, dtype, device)
            if leaf:
                node.tracked = True
                node.grad_slot = tensor._node.grad_slot
            tensor._bind(node)
        for index in traced.donated:
            leaves[index]._bind(traced.spent(leaves[index]._node))
        for slot, grad in grads:
            if slot is not None:
                slot.grad = made[grad] if grad.__class__ is int else grad
        for rebound, new in zip(traced.rebound, values, strict=True):
            rebound.write(new)


_NOTHING: frozenset[int] = frozenset()


def _integers(dtype: DType) -> range | None:
    """The numbers of an integer dtype."""
    if not dtype.is_integer:
        return None
    low, high = dt.int_range(dtype)
    return range(low, high + 1)


def held_alone(tensor: Tensor) -> bool:
    """Whether nothing but this tensor holds its node, view, storage and memory."""
    count = sys.getrefcount
    if count(tensor._node) != ONE_HOLDER or tensor._node.view is None:
        return False
    return (
        count(tensor._node.view) == ONE_HOLDER
        and count(tensor._node.view.storage) == ONE_HOLDER
        and count(tensor._node.view.storage.memory) == ONE_HOLDER
    )
