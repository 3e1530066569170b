"""Hierarchical collectives: within each node first, then between nodes (Karonis et al., 2000).

Ranks are seen as a grid of nodes by places within a node. A large all_reduce is a reduce_scatter
among the ranks of a node, an all_reduce of each part among the ranks of one place, and an
all_gather within the node: what crosses the network is a node's share, not a rank's. Ranks compare
their calls first, as everywhere; steps of several collectives come one after the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from numus import dtypes as dt
from numus.distributed.mpi import MpiTransport
from numus.distributed.transport import Agreement, Buffer, Operation, Pending, SmallTransport

_MIN_BYTES = 1 << 15  # smaller ones take one message
_KINDS = ("all_reduce", "broadcast", "all_gather", "reduce_scatter")

Step = tuple[str, "_Part", Any, Any, dict[str, Any]]  # kind, ranks, from, to, options


@dataclass
class _Part:
    """The ranks of a node, or of a place in each node, and what carries bytes between them."""

    ranks: tuple[int, ...]
    rank: int
    name: str
    transport: MpiTransport

    @property
    def size(self) -> int:
        return len(self.ranks)

    def __str__(self) -> str:
        return self.name


class HierarchicalTransport(SmallTransport):
    """Large collectives of a group in steps; the others by its flat transport."""

    name = "hierarchical"
    on_host = True

    def __init__(
        self,
        flat: MpiTransport,
        ranks: np.ndarray[Any, Any],
        group: Any,
        new: Callable[[Any, tuple[int, ...]], MpiTransport],
    ) -> None:
        self._flat, self._ranks = flat, ranks
        (at,) = np.argwhere(ranks == group.rank)
        self._node, self._place = int(at[0]), int(at[1])
        communicator = flat.communicator
        self._within = self._part("node", communicator.Split(self._node, self._place), group, new)
        self._between = self._part("place", communicator.Split(self._place, self._node), group, new)
        self._queue: deque[_Steps] = deque()

    def _part(self, name: str, communicator: Any, group: Any, new: Any) -> _Part:
        index = self._node if name == "node" else self._place
        chosen = self._ranks[index] if name == "node" else self._ranks[:, index]
        ranks = tuple(group.ranks[r] for r in chosen)
        name = f"{name} {index} of {group}"
        return _Part(ranks, communicator.rank, name, new(communicator, ranks))

    def small(self, call: Operation) -> Callable[[int, int], None]:
        if self._is_hierarchical(call):
            given, taken = call.sizes
            return lambda source, target: self.start(
                call, Buffer(source, given), Buffer(target, taken)
            ).wait()
        run = self._flat.small(call)

        def alone(source: int, target: int) -> None:
            if self._queue:
                self._queue[-1].wait()
            run(source, target)

        return alone

    def _is_hierarchical(self, call: Operation) -> bool:
        return call.kind in _KINDS and max(call.sizes) >= _MIN_BYTES

    def start(self, call: Operation, source: Buffer, target: Buffer) -> Pending:
        if not self._is_hierarchical(call):
            if self._queue:  # others may wait for its steps before they come here
                self._queue[-1].wait()
            return self._flat.start(call, source, target)
        agreement = Agreement(call.text, call.group)
        agreed = self._flat.start(agreement, Buffer(0, 0), Buffer(0, 0))
        steps = self._steps(call, source, target)
        found = _Steps(self, call.text, agreed, steps, (source, target))
        self._queue.append(found)
        return found

    def advance(self) -> None:
        """Go on with the oldest: collectives of the parts begin in the same order on all ranks."""
        while self._queue and self._queue[0].go_on():
            self._queue.popleft()

    def close(self) -> None:
        """Transports are closed one by one."""

    # -- the steps of each kind -------------------------------------------------------------------

    def _steps(self, call: Operation, source: Buffer, target: Buffer) -> Iterator[Step]:
        dtype = call.dtype if call.reduction else dt.uint8
        given, taken = (_array(buffer, dtype) for buffer in (source, target))
        make: dict[str, Callable[..., Iterator[Step]]] = {
            "all_reduce": self._all_reduce,
            "reduce_scatter": self._reduce_scatter,
            "all_gather": self._all_gather,
            "broadcast": self._broadcast,
        }
        return make[call.kind](call, given, taken)

    def _all_reduce(self, call: Operation, given: Any, taken: Any) -> Iterator[Step]:
        places = self._ranks.shape[1]
        padded = -(-given.size // places) * places
        whole = given
        if padded != given.size:
            whole = np.zeros(padded, given.dtype)
            whole[: given.size] = given
        mine, total = (np.empty(padded // places, given.dtype) for _ in range(2))
        result = taken if padded == given.size else np.empty_like(whole)
        how = {"reduction": call.reduction, "dtype": call.dtype}
        yield "reduce_scatter", self._within, whole.reshape(places, -1), mine, how
        yield "all_reduce", self._between, mine, total, how
        yield "all_gather", self._within, total, result, {"dtype": call.dtype}
        if result is not taken:
            taken[:] = result[: taken.size]

    def _reduce_scatter(self, call: Operation, given: Any, taken: Any) -> Iterator[Step]:
        nodes, places = self._ranks.shape
        parts = given.reshape(nodes * places, -1)
        ordered = np.ascontiguousarray(parts[self._ranks.T])  # (places, nodes, part)
        mine = np.empty((nodes, parts.shape[1]), given.dtype)
        how = {"reduction": call.reduction, "dtype": call.dtype}
        yield "reduce_scatter", self._within, ordered.reshape(places, -1), mine, how
        yield "reduce_scatter", self._between, mine, taken, how

    def _all_gather(self, call: Operation, given: Any, taken: Any) -> Iterator[Step]:
        nodes, places = self._ranks.shape
        across = np.empty((nodes, given.size), given.dtype)
        found = np.empty((places, nodes, given.size), given.dtype)
        yield "all_gather", self._between, given, across, {"dtype": dt.uint8}
        yield "all_gather", self._within, across, found, {"dtype": dt.uint8}
        taken.reshape(nodes * places, -1)[self._ranks.T] = found

    def _broadcast(self, call: Operation, given: Any, taken: Any) -> Iterator[Step]:
        (at,) = np.argwhere(self._ranks == call.root)
        node, place = int(at[0]), int(at[1])
        if self._place == place:
            yield "broadcast", self._between, given, taken, {"root": node, "dtype": dt.uint8}
        options = {"root": place, "dtype": dt.uint8}
        yield "broadcast", self._within, taken.copy(), taken, options


class _Steps:
    """A collective in steps: the comparison of calls, and then one after the other."""

    def __init__(
        self,
        owner: HierarchicalTransport,
        text: str,
        agreed: Pending,
        steps: Iterator[Step],
        keep: Any,
    ) -> None:
        self._owner, self._text = owner, text
        self._pending, self._steps, self._keep = agreed, steps, keep
        self._is_done = False

    def go_on(self) -> bool:
        """Begin further steps while there are some that can; whether it is done."""
        while not self._is_done:
            if not self._pending.done():
                return False
            self._next()
        return True

    def _next(self) -> None:
        step = next(self._steps, None)
        if step is None:
            self._is_done, self._keep = True, None
            return
        kind, part, given, taken, options = step
        text = f"{kind} of {given.nbytes} bytes, a step of {self._text}"
        sizes = given.nbytes, taken.nbytes
        call = Agreement(text, part, kind, sizes=sizes, **options)
        self._pending = part.transport.start(call, _buffer(given), _buffer(taken))

    def done(self) -> bool:
        self._owner.advance()
        return self._is_done

    def wait(self) -> None:
        queue = self._owner._queue
        while not self._is_done:
            first = queue[0]
            first._pending.wait()
            self._owner.advance()


def _array(buffer: Buffer, dtype: dt.DType) -> Any:
    """Host memory as an array."""
    from mpi4py import MPI

    memory: Any = MPI.buffer.fromaddress(buffer.address, buffer.nbytes)
    return np.frombuffer(memory, dtype.np)


def _buffer(array: Any) -> Buffer:
    return Buffer(array.ctypes.data, array.nbytes, array)
