"""Collectives as calls of the graph: their results, how they are batched, and how they run.

The stacked form is the primitive one: what has a part for each rank has them along a new leading
axis, so that parts are contiguous in memory. `collectives.py` moves axes around it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.distributed.groups import Group
from numus.distributed.transport import SMALL_BYTES, Buffer, Pending, SmallTransport, Transport
from numus.dtypes import DType
from numus.evaluation.evaluate import elements
from numus.functions.custom_op import dense
from numus.graph import Node, Nodes, Storage, View
from numus.primitives.control import BoundCall, Effect
from numus.primitives.views import permute
from numus.runtime.devices import Device
from numus.shapes import Shape, row_major, size_of

_TAKES_PARTS = ("reduce_scatter", "all_to_all", "scatter")  # (ranks, ...): one for each
_GIVES_PARTS = ("all_gather", "all_to_all", "gather")
_MAX_KEPT = 4096  # collectives of a group
# Told of every collective: it begins (True), its results are waited for (None), it is over (False).
watchers: list[Callable[[Any, Any, bool | None], None]] = []
_ROOT_GIVES = ("broadcast", "scatter")  # others' operands are not read


def _tell(key: Any, call: Any, state: bool | None) -> None:
    for watcher in watchers:
        watcher(key, call, state)


@dataclass(eq=False)
class Collective(Effect):
    """One collective of a group, of an operand of this shape and dtype.

    Args:
        reduction: "sum", "prod", "max" or "min", where it reduces.
        root: the rank in the group that gives or gets everything, where there is one.
        peer: the rank in the group that a message comes from or goes to.
        pairs: from which rank to which, of a permutation.
        tokens: the shape of what a `send` gives.
    """

    kind: str
    group: Group
    shape: Shape
    dtype: DType
    reduction: str = ""
    root: int = -1
    peer: int = -1
    pairs: tuple[tuple[int, int], ...] = ()
    tokens: Shape = ()

    @cached_property
    def text_of_operand(self) -> str:
        """The dtype and shape."""
        return f"{self.dtype.name}{list(self.shape)}"

    @cached_property
    def text(self) -> str:
        """What is called: the same text on all ranks that call the same."""
        how = [self.reduction] if self.reduction else []
        how += [f"root={self.group.ranks[self.root]}"] if self.root >= 0 else []
        how += [f"{a}→{b}" for a, b in self.pairs]
        if self.peer >= 0:
            where = "from" if self.kind == "recv" else "to"
            how.append(f"{where} rank {self.group.ranks[self.peer]}")
        return f"{self.kind}({', '.join(how)}) of {self.text_of_operand}"

    def __str__(self) -> str:
        return self.text

    @cached_property
    def digest(self) -> int:
        """32 bits that stand for the text."""
        return zlib.crc32(self.text.encode())

    @cached_property
    def result(self) -> tuple[Shape, DType]:
        """Shape and dtype of the result on this rank."""
        if self.kind == "send":
            return self.tokens, dt.float32
        if self.kind == "all_gather":
            return (self.group.size, *self.shape), self.dtype
        if self.kind == "gather":
            return (self.group.size if self.is_root else 0, *self.shape), self.dtype
        if self.kind in ("reduce_scatter", "scatter"):
            return self.shape[1:], self.dtype
        return self.shape, self.dtype

    @cached_property
    def sizes(self) -> tuple[int, int]:
        """Bytes of the operand and of the result."""
        shape, dtype = self.result
        return size_of(self.shape) * self.dtype.itemsize, size_of(shape) * dtype.itemsize

    @cached_property
    def strides(self) -> tuple[Shape, Shape]:
        """Of a contiguous operand and of the result."""
        return row_major(self.shape), row_major(self.result[0])

    @cached_property
    def reads(self) -> bool:
        """Whether the operand of this rank counts."""
        return self.kind != "recv" and (self.kind not in _ROOT_GIVES or self.is_root)

    def __post_init__(self) -> None:
        # what a call of the graph has (primitives.control.Call)
        self.name = self.kind
        self.prepared: Any = None  # what a transport keeps for the next time
        self.carried: Any = None
        self._small: Any = None  # see run_small
        self.results = [self.result]
        self.batch_axes = [1 if self.kind in _GIVES_PARTS else 0]

    @property
    def is_root(self) -> bool:
        """Whether this rank gives or gets everything."""
        return self.root == self.group.rank

    def batched(self, operands: Nodes, flags: Sequence[bool], size: int) -> BoundCall:
        """The collective of whole batches: one message for all entries."""
        x, *others = operands
        if self.kind in _TAKES_PARTS:
            x = permute(x, (1, 0, *range(2, x.ndim)))
        tokens = (size, *self.tokens) if self.kind == "send" else ()
        return replace(self, shape=x.shape, tokens=tokens), (x, *others)

    @cached_property
    def is_small(self) -> bool:
        """Whether it travels with its header: see `mpi.py`."""
        return max(self.sizes) <= SMALL_BYTES and self.kind not in ("send", "recv")

    def run(self, dev: Device, operands: Nodes) -> list[View]:
        view = operands[0].view
        found = None if view is None else self.run_at(dev, view)
        return self.start(dev, operands).views() if found is None else [found]

    def run_at(self, dev: Device, at: View) -> View | None:
        """The result of a small collective of contiguous host memory; None for others."""
        known = self._small
        if known is None or known[0] is not dev:
            known = self._small = self._prepare_small(dev)
        _, run, allocate, nbytes, strides, result_strides, itemsize = known
        if at.strides != strides:
            return None
        memory = allocate(nbytes)
        if watchers:
            _tell(memory, self, True)
        run(at.storage.memory.address + at.offset * itemsize, memory.address)
        if watchers:
            _tell(memory, self, False)
        return View(Storage(memory), 0, result_strides)

    def _prepare_small(self, dev: Device) -> tuple[Any, ...]:
        """What `run_at` needs on a device: no strides are those of others."""
        if self.is_small and dev.on_host:
            transport = self.group.transport(dev)
            if isinstance(transport, SmallTransport):
                given, taken = self.strides
                run = transport.small(self)
                size = self.dtype.itemsize
                return dev, run, dev.runtime.allocate, self.sizes[1], given, taken, size
        return dev, None, None, 0, None, None, 0

    def is_on_stream(self, dev: Device) -> bool:
        """NCCL's collectives are; messages are not, whose ranks do not all call them."""
        transport = self.group.transport(dev)
        return transport is not None and not transport.on_host and self.peer < 0

    def start(self, dev: Device, operands: Nodes) -> StartedCollective:
        """Begin it, of the first operand; others are waited for, and not read."""
        found = self._started(dev, operands)
        if watchers:
            found.call = self
            _tell(found, self, True)
        return found

    def _started(self, dev: Device, operands: Nodes) -> StartedCollective:
        transport = self.group.transport(dev)
        if transport is None:
            return StartedCollective(None, [self._alone(dev, operands[0])])
        given, taken = self.sizes
        memory = dev.runtime.allocate(taken)
        view = View(Storage(memory), 0, self.strides[1])
        if self.kind == "send":  # a token
            dev.runtime.upload(memory, np.zeros(self.tokens, np.float32))
            taken = 0
        if not (dev.on_host or not transport.on_host):
            return self._by_way_of_the_host(transport, dev, operands[0], view, taken)
        operand = operands[0]
        assert operand.view is not None
        if self.reads and (operand.view.strides != self.strides[0] or operand.device is not dev):
            operand = dense(operand, dev, 1)
        at = operand.view
        assert at is not None
        address = at.storage.memory.address + at.offset * self.dtype.itemsize
        source, target = Buffer(address, given, operand), Buffer(memory.address, taken, memory)
        return StartedCollective(transport.start(self, source, target), [view])

    def _by_way_of_the_host(
        self, transport: Transport, dev: Device, operand: Node, view: View, taken: int
    ) -> StartedCollective:
        """The collective of a device whose memory the transport cannot reach."""
        shape, dtype = self.result
        given = np.ascontiguousarray(elements(operand)) if self.reads else np.empty(0, np.uint8)
        got = np.zeros(shape, dtype.np)
        source = Buffer(given.ctypes.data, self.sizes[0], given)
        target = Buffer(got.ctypes.data, taken, got)
        pending = transport.start(self, source, target)
        finish = lambda: dev.runtime.upload(view.storage.memory, got)  # noqa: E731
        return StartedCollective(pending, [view], finish)

    def _alone(self, dev: Device, operand: Node) -> View:
        """The result in a group of one: what the rank gave, without a copy."""
        shape, dtype = self.result
        if self.kind == "permute" and not self.pairs:
            memory = dev.runtime.allocate(size_of(shape) * dtype.itemsize)
            dev.runtime.upload(memory, np.zeros(shape, dtype.np))
            return View(Storage(memory), 0, row_major(shape))
        view = dense(operand, dev, 1).view
        assert view is not None
        return View(view.storage.copy(), view.offset, row_major(shape))


class StartedCollective:
    """A collective under way, with memory for its results; the transport holds the operand."""

    __slots__ = ("_finish", "_pending", "_views", "call")

    def __init__(self, pending: Pending | None, views: list[View], finish: Any = None) -> None:
        self._pending, self._views, self._finish = pending, views, finish
        self.call: Collective | None = None  # where somebody watches

    def done(self) -> bool:
        """Whether the results are there."""
        return self._pending is None or self._pending.done()

    def views(self) -> list[View]:
        """Wait for the results."""
        if self.call is not None:
            _tell(self, self.call, None)
        if self._pending is not None:
            self._pending.wait()
            self._pending = None
            if self._finish is not None:
                self._finish()
                self._finish = None
        if self.call is not None:
            _tell(self, self.call, False)
            self.call = None
        return self._views


def collective(kind: str, group: Group, shape: Shape, dtype: DType, **options: Any) -> Collective:
    """The collective; programs call the same ones again and again, so they are kept."""
    key = (kind, shape, dtype, *options.items())
    found = group.calls.get(key)
    if found is None:
        if len(group.calls) > _MAX_KEPT:
            group.calls.clear()
        found = group.calls[key] = Collective(kind, group, shape, dtype, **options)
    return found
