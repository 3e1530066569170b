"""Graph nodes in fast-call bytecode (`runtime/pycall`): guards on nodes and new nodes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from numus import config
from numus.dispatch.call_cache import GUARD_FAILED
from numus.dtypes import DType
from numus.graph import Node, Storage, View, active_hooks, mode, next_serial
from numus.runtime import devices
from numus.runtime.contract import RecycledOutput
from numus.shapes import Shape

if TYPE_CHECKING:
    from numus.runtime.pycall.builder import BytecodeBuilder

_COMPILE_AT_CALL = 4


def new_bytecode(runtime: Any) -> BytecodeBuilder | None:
    """Bytecode of a call without launches; None where the device has no fast-call VM."""
    vm = runtime.call_vm()
    if vm is None:
        return None
    # Imported late: it takes time, and many programs never get here.
    from numus.runtime.pycall.builder import BytecodeBuilder

    return BytecodeBuilder(vm)


class FastCall:
    """A Python function's counterpart in bytecode: `call` returns `GUARD_FAILED` until it has been
    called a few times, and where it is unsupported."""

    __slots__ = ("__weakref__", "_arity", "_calls", "_write", "call")
    _all: ClassVar[weakref.WeakSet[FastCall]] = weakref.WeakSet()

    def __init__(self, arity: int, write: Callable[[BytecodeBuilder], int]) -> None:
        self._arity = arity
        self._write = write  # writes the instructions, returns the register of the result
        self._all.add(self)
        self._reset()

    def _reset(self) -> None:
        self._calls = 0
        self.call: Callable[..., Any] = self._count

    def _count(self, *_: Any) -> Any:
        self._calls += 1
        if self._calls >= _COMPILE_AT_CALL:
            cpu = devices.started("cpu")
            if cpu is not None:
                self.call = lambda *_: GUARD_FAILED
                code = new_bytecode(cpu)
                if code is not None:
                    self.call = code.function(self._arity, self._write(code), GUARD_FAILED)
        return GUARD_FAILED

    @classmethod
    def reset_all(cls) -> None:
        """Compile all of them anew: settings have changed."""
        for one in cls._all:
            one._reset()


# -- guards ----------------------------------------------------------------------------------------


def guard_modes(
    code: BytecodeBuilder, expected: dict[str, Any], hooks: list[None] = active_hooks
) -> None:
    """Guards modes of this thread, and that no trace or hook observes operations."""
    code.is_empty(hooks)
    attributes = code.get_attr(mode, "__dict__")
    for name, value in expected.items():
        unset = getattr(type(mode), name, None)
        code.dict_is(attributes, name, value, default=name != "device" and unset is value)


def store_view_address(
    code: BytecodeBuilder, slot: int, node: int, strides: Shape, itemsize: int
) -> None:
    """Pass a node's elements to a buffer; guards that it is realised with these strides."""
    view = code.load_slot(node, Node, "view")
    offset = code.get_member(view, View, "offset")  # guards that there is a view
    code.slot_eq(view, View, "strides", strides)
    memory = code.load_slot(code.load_slot(view, View, "storage"), Storage, "memory")
    code.store_address(slot, memory, offset, itemsize)


def pending_bounds(code: BytecodeBuilder, operands: Sequence[int], levels: int) -> tuple[int, int]:
    """Depth and retained bytes of a graph of some levels on operands; guards that it needs no
    flush."""
    code.add_operands(operands, Node, DType, View, Storage)
    return code.pending_bounds(levels, (config.MAX_PENDING_DEPTH, config.MAX_PENDING_BYTES))


# -- new objects -----------------------------------------------------------------------------------


def new_node(
    code: BytecodeBuilder,
    constants: dict[str, Any],
    registers: dict[str, int],
    *,
    handled: bool = False,
) -> int:
    """A new node with some members constant and others in registers; the rest are those of a new
    pending node. `handled`: the caller sets its handle."""
    node = code.new(Node)
    unset = {"view": None, "abstract": False, "grad_slot": None}
    unset |= {} if handled else {"handle": None}
    for name, thing in {**unset, **constants}.items():
        if name not in registers:
            code.set_const(node, Node, name, thing)
    for name, register in {**registers, "serial": code.call(next_serial)}.items():
        code.set_slot(node, Node, name, register)
    return node


def new_view_like(code: BytecodeBuilder, like: View, base: View, node: int) -> int:
    """A new view, related to a node's as `like` is to `base` on the same storage."""
    own = code.load_slot(node, Node, "view")
    offset = code.load_slot(own, View, "offset")
    if like.offset != base.offset:
        offset = code.add_int(offset, like.offset - base.offset)
    return _new_view(code, code.load_slot(own, View, "storage"), offset, like.strides)


def new_aliasing_view(code: BytecodeBuilder, view: int, offset: int, strides: Shape) -> int:
    """A new view of another one's storage."""
    storage = code.load_slot(view, View, "storage")
    return _new_view(code, storage, code.load_const(offset), strides)


def _new_view(code: BytecodeBuilder, storage: int, offset: int, strides: Shape) -> int:
    view = code.new(View)
    code.set_slot(view, View, "storage", storage)
    code.set_slot(view, View, "offset", offset)
    code.set_const(view, View, "strides", strides)
    return view


def new_window(code: BytecodeBuilder, prim: Any) -> int:
    """A node of a realised one's storage, of arguments (node, offset, strides, shape). Guards that
    it is untracked and nothing observes operations."""
    base, offset, strides, shape = (code.load_arg(i) for i in range(4))
    code.is_empty(active_hooks)
    code.is_const(code.get_member(base, Node, "tracked"), False)  # guards that it is a node
    own = code.load_slot(base, Node, "view")
    view = code.new(View)
    code.set_slot(view, View, "storage", code.get_member(own, View, "storage"))
    code.set_slot(view, View, "offset", offset)
    code.set_slot(view, View, "strides", strides)
    members = {name: code.load_slot(base, Node, name) for name in ("dtype", "device")}
    constants = {"prim": prim, "inputs": (), "params": None, "tracked": False}
    constants |= {"depth": 0, "retained_bytes": 0}
    return new_node(code, constants, {"view": view, "shape": shape, **members})


def new_output_view(
    code: BytecodeBuilder,
    slot: int,
    nbytes: int,
    offset: int,
    strides: Shape,
    total: int | None = None,
) -> int:
    """A view of memory for a result: see `BytecodeBuilder.new_output`."""

    def make(memory: Any) -> View:
        return View(Storage(memory), offset, strides)

    def write(memory: int) -> int:
        return _new_view(code, new_storage(code, memory), code.load_const(offset), strides)

    return code.new_output(slot, nbytes, make, write, _recycled, total)


def new_storage(code: BytecodeBuilder, memory: int) -> int:
    storage = code.new(Storage)
    code.set_slot(storage, Storage, "memory", memory)
    for name in ("host", "host_access"):
        code.set_const(storage, Storage, name, None)
    return storage


def _recycled(view: View) -> RecycledOutput:
    """A view that is given to other nodes when nothing else references it."""
    storage = view.storage
    idle = {"memory": storage.memory, "host_access": None}
    slots = [(storage, Storage, *item) for item in idle.items()]
    return RecycledOutput(view, (view, storage, storage.memory), slots)


# -- application -----------------------------------------------------------------------------------


def inherit(code: BytecodeBuilder, operands: Sequence[int]) -> dict[str, int]:
    """The members a node inherits from its operands: device, tracking, depth and retained bytes.
    Guards that operands are concrete, on one device, and nothing observes operations."""
    code.is_empty(active_hooks)
    for x in operands:
        code.is_const(code.get_member(x, Node, "abstract"), False)  # guards that it is a node
    device = code.load_slot(operands[0], Node, "device")
    tracked = code.load_slot(operands[0], Node, "tracked")
    for x in operands[1:]:
        device = code.coalesce(device, code.load_slot(x, Node, "device"), None)
        tracked = code.coalesce(tracked, code.load_slot(x, Node, "tracked"), False)
    end = code.skip_if(tracked, False)
    code.move(tracked, code.get_attr(mode, "grad"))
    end()
    depth, retained_bytes = pending_bounds(code, operands, 1)
    return {"device": device, "tracked": tracked, "depth": depth, "retained_bytes": retained_bytes}
