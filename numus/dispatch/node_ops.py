"""How native calls (`runtime/cpu/calls.py`) read and make nodes: their steps for it.

`Natively` is a function of Python's that has a native one beside it, once it is called often.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from numus import config
from numus.dtypes import DType
from numus.graph import Node, Storage, View, mode, next_serial, observers
from numus.runtime import devices
from numus.runtime.contract import RecycledOutput
from numus.shapes import Shape

MISS: Any = object()  # of native functions: this is not what they are for
_OFTEN = 4  # calls from which on a native function is worth making


def native_calls_of(device: Any) -> Any:
    """What makes native calls for nodes on a device; None where there are none."""
    calls = getattr(device.runtime, "native_calls", None)
    return None if calls is None else calls()


class Natively:
    """`call` is the native function; until there is one, and where there can be none, it gives
    MISS."""

    __slots__ = ("__weakref__", "_arity", "_calls", "_write", "call")
    _all: ClassVar[weakref.WeakSet[Natively]] = weakref.WeakSet()

    def __init__(self, arity: int, write: Callable[[Any], int]) -> None:
        self._arity = arity
        self._write = write  # writes the steps, and gives the register of the result
        self._all.add(self)
        self._start()

    def _start(self) -> None:
        self._calls = 0
        self.call: Callable[..., Any] = self._count

    def _count(self, *_: Any) -> Any:
        self._calls += 1
        if self._calls >= _OFTEN:
            started = devices.started("cpu")
            if started is not None:
                self.call = _never
                native = started.native_calls()
                if native is not None:
                    table = native.table()
                    self.call = table.function(self._arity, self._write(table), MISS)
        return MISS

    @classmethod
    def forget(cls) -> None:
        """Make all of them anew: settings have changed."""
        for one in cls._all:
            one._start()


def _never(*_: Any) -> Any:
    return MISS


# -- looking ---------------------------------------------------------------------------------------


def write_modes(table: Any, wanted: dict[str, Any]) -> None:
    """That some modes of this thread are as wanted."""
    mine = table.attribute(mode, "__dict__")
    for name, value in wanted.items():
        unset = getattr(type(mode), name, None)
        table.holds(mine, name, value, default=name != "device" and unset is value)


def place_view(table: Any, slot: int, node: int, strides: Shape, itemsize: int) -> None:
    """Where the node in a register has its elements; a miss, if it is pending, or they lie
    otherwise."""
    view = table.load(node, Node, "view")
    offset = table.get(view, View, "offset")  # looks whether there is a view
    table.like(view, View, "strides", strides)
    memory = table.load(table.load(view, View, "storage"), Storage, "memory")
    table.place(slot, memory, offset, itemsize)


def write_reach(table: Any, operands: Sequence[int], levels: int) -> tuple[int, int]:
    """How deep a graph of so many levels on operands is, and how many bytes it keeps from being
    freed; a miss, if it has to be evaluated first."""
    table.reach(operands, Node, DType, View, Storage)
    found: tuple[int, int] = table.reached(
        levels, (config.MAX_PENDING_DEPTH, config.MAX_PENDING_BYTES)
    )
    return found


# -- making ----------------------------------------------------------------------------------------


def write_node(
    table: Any, known: dict[str, Any], given: dict[str, int], *, handled: bool = False
) -> int:
    """A new node. Some of its members are known, others are in registers; the rest are as those of
    a new pending node. `handled`: a tensor will stand for it, and set its handle. Gives its
    register."""
    node: int = table.new(Node)
    unset = {"view": None, "abstract": False, "grad_slot": None}
    unset |= {} if handled else {"handle": None}
    for name, thing in {**unset, **known}.items():
        if name not in given:
            table.put(node, Node, name, thing)
    for name, register in {**given, "serial": table.call(next_serial)}.items():
        table.set(node, Node, name, register)
    return node


def write_view(table: Any, like: View, base: View, node: int) -> int:
    """A new view that is to the node in a register as one is to another on the same storage. Gives
    its register."""
    own = table.load(node, Node, "view")
    offset = table.load(own, View, "offset")
    if like.offset != base.offset:
        offset = table.plus(offset, like.offset - base.offset)
    view: int = table.new(View)
    table.set(view, View, "storage", table.load(own, View, "storage"))
    table.set(view, View, "offset", offset)
    table.put(view, View, "strides", like.strides)
    return view


def write_fresh_view(
    table: Any, slot: int, nbytes: int, offset: int, strides: Shape, total: int | None = None
) -> int:
    """A view of memory for a result: see `Table.fresh`."""

    def made(memory: Any) -> View:
        return View(Storage(memory), offset, strides)

    def written(memory: int) -> int:
        storage = table.new(Storage)
        table.set(storage, Storage, "memory", memory)
        for name in ("host", "guard", "aliases"):
            table.put(storage, Storage, name, None)
        view: int = table.new(View)
        table.set(view, View, "storage", storage)
        table.put(view, View, "offset", offset)
        table.put(view, View, "strides", strides)
        return view

    found: int = table.fresh(slot, nbytes, made, written, _piece_of, total)
    return found


def _piece_of(view: View) -> RecycledOutput:
    """A view that can be given to other nodes when nobody looks at it any more."""
    storage = view.storage
    idle = {"memory": storage.memory, "guard": None, "aliases": None}
    return RecycledOutput(
        view, (view, storage, storage.memory), [(storage, Storage, *item) for item in idle.items()]
    )


# -- applying --------------------------------------------------------------------------------------


def write_inherited(table: Any, operands: Sequence[int]) -> dict[str, int]:
    """What a node inherits from the nodes in registers that it is computed from: their device,
    whether it is tracked, how deep it is and what it holds. A miss where one of these is not to be
    computed, or somebody observes."""
    table.empty(observers)
    for x in operands:
        table.same(table.get(x, Node, "abstract"), False)  # looks whether it is a node
    device = table.load(operands[0], Node, "device")
    tracked = table.load(operands[0], Node, "tracked")
    for x in operands[1:]:
        device = table.common(device, table.load(x, Node, "device"), None)
        tracked = table.common(tracked, table.load(x, Node, "tracked"), False)
    end = table.unless(tracked, False)
    table.move(tracked, table.attribute(mode, "grad"))
    end()
    depth, pinned = write_reach(table, operands, 1)
    return {"device": device, "tracked": tracked, "depth": depth, "pinned": pinned}
