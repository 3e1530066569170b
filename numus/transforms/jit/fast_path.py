"""The short way through a jitted function, for calls like the one before.

Most calls give tensors and get new tensors, and nothing else happens. Such a call is written down
as a native one, where the runtime has these: what its inputs have to be like, the launch, and what
the results are made of. It takes no Python but the call itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numus.compiler.hooks import before_run
from numus.dispatch.node_ops import MISS as MISS
from numus.dispatch.node_ops import place_view, write_fresh_view, write_modes
from numus.evaluation import storage_lock
from numus.graph import Node, observers
from numus.tensor import Tensor, write_tensor
from numus.transforms import tree
from numus.transforms.jit.program import Native

if TYPE_CHECKING:
    from numus.transforms.jit.executable import Expected, Ready

Short = Callable[..., Any]  # of the arguments; gives the result, or MISS


class NativeCall:
    """A call as a native function; None where there is more to it, or the runtime has none."""

    def __init__(self, ready: Ready) -> None:
        self._native = ready.run if isinstance(ready.run, Native) else None
        self._threads = self._planned_threads()
        self.function = None if self._native is None else _function(ready, self._native.replay)

    def _planned_threads(self) -> Any:
        """What native calls are made for, and miss where it has changed."""
        prepared = None if self._native is None else self._native.replay.plan.prepared
        return getattr(prepared, "threads", None)

    def is_current(self) -> bool:
        return bool(self._planned_threads() == self._threads)


def _function(ready: Ready, replay: Any) -> Short | None:
    traced = ready.traced
    shown = [x for x in traced.results if isinstance(x, int)]
    blocks = {replay.outputs[x].block for x in shown if replay.outputs[x].input is None}
    if (
        traced.related
        or traced.numbers
        or traced.generators
        or not ready.plain
        or any(source.argument is None and source.handle is None for source in ready.sources)
        or len(shown) < len(traced.results)
        or len(blocks) < len(set(shown))  # results that are inputs, or share memory
        or len(blocks) < len(replay.block_sizes)  # or that nobody gets
        or not (traced.structure.kind is None or _is_tuple(traced.structure))
    ):
        return None
    table = replay.table()
    if table is None:
        return None
    table.empty(observers)
    grad, low = ready.mode
    write_modes(table, {"grad": grad, "low": low, "device": ready.default})
    table.empty(before_run)
    table.empty(storage_lock.writers)
    for read, flag in traced.flags:
        table.same(table.call(read), flag)
    for slot, source in enumerate(ready.sources):
        _write_input(table, slot, source)
    views = {}
    for x in dict.fromkeys(shown):
        _, block, offset, strides = replay.outputs[x]
        slot, nbytes = replay.first_block + block, replay.block_sizes[block]
        views[x] = write_fresh_view(table, slot, nbytes, offset, strides)
    table.run()
    made = {x: write_tensor(table, view, *ready.kinds[x]) for x, view in views.items()}
    several = traced.structure.kind is not None
    result = table.tuple([made[x] for x in shown]) if several else made[shown[0]]
    function: Short = table.function(ready.arity, result, MISS, storage_lock.lock)
    return function


def _write_input(table: Any, slot: int, source: Expected) -> None:
    """That an input is as expected, and where it lies."""
    if source.argument is None:
        tensor = table.call(source.handle)
    else:
        tensor = table.argument(source.argument)
    node = table.get(tensor, Tensor, "_node")
    table.has(node, Node, "dtype", source.dtype)
    table.like(node, Node, "shape", source.shape)
    table.has(node, Node, "device", source.device)
    table.has(node, Node, "tracked", source.tracked)
    place_view(table, slot, node, source.strides, source.dtype.itemsize)


def _is_tuple(structure: tree.Structure) -> bool:
    return structure.kind is tuple and all(child.kind is None for child in structure.children)
