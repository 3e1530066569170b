"""Device memory shared with other libraries by DLPack, streams honoured both ways.

Whoever takes memory names the stream on which it will use it; who gives it lets that stream wait
for what is still being computed. When a taker of our memory lets go, our stream waits for the
taker's. On which streams a giver will use its memory again, nobody tells us: it gets it back when
our work on it is done. While a graph is recorded from our stream, neither can be asked for.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numus.dtypes import DType
from numus.runtime import dlpack_abi, launch_lock
from numus.runtime.cuda import driver
from numus.runtime.memory_pool import Memory
from numus.runtime.pycall.llvm_macros import expand
from numus.shapes import Shape

CUDA = 2  # DLPack's number for memory on CUDA devices
_LEGACY = 1  # how DLPack names the default stream


def order(runtime: Any, before: Any, after: Any) -> None:
    """What comes on stream `after` from now on waits for what is on `before` by now."""
    runtime.activate()
    event = runtime.event()
    with launch_lock.lock:
        driver.call("cuEventRecord", event, before)
        driver.call("cuStreamWaitEvent", after, event, 0)
    runtime.spare_events.append(event)  # who records it anew does not change what waits


def _stream(number: int | None) -> Any:
    return driver.constant_stream(_LEGACY if number is None else number)


# -- taking ---------------------------------------------------------------------------------------


class _Lent:
    """Foreign memory: given back to its owner after the last tensor on it."""

    def __init__(self, runtime: Any, managed: Any) -> None:
        self.runtime, self.managed = runtime, managed

    def __del__(self) -> None:
        self.runtime.leaving.append(_Return(self.runtime, self.managed))
        settle(self.runtime)


class _Return:
    """Foreign memory that no tensor is on any more."""

    def __init__(self, runtime: Any, managed: Any) -> None:
        self.runtime, self.managed = runtime, managed
        self.done: Any = None  # an event that comes after our work on it

    def settled(self) -> bool:
        """Give it back if our work is done."""
        if self.done is None:
            self.done = self.runtime.event()
            driver.call("cuEventRecord", self.done, self.runtime.stream)
        if not driver.has_come(self.done):
            return False
        self.runtime.spare_events.append(self.done)
        if self.managed.deleter:
            self.managed.deleter(ctypes.addressof(self.managed))
        return True


def settle(runtime: Any) -> None:
    """Let go of what waits for it, as far as it can be done by now."""
    # never waits: what is collected may be so in the middle of anything
    if not runtime.leaving or not launch_lock.lock.acquire(blocking=False):
        return
    try:
        if runtime.recording:
            return
        runtime.activate()
        still = []
        while runtime.leaving:
            left = runtime.leaving.pop()
            if not left.settled():
                still.append(left)
        runtime.leaving += still
    finally:
        launch_lock.lock.release()


def take(runtime: Any, producer: Any) -> tuple[Memory, int, Shape, Shape, DType]:
    """Memory of another library: the block, offset and strides in elements, shape, and dtype."""
    settle(runtime)
    with launch_lock.lock:  # the producer lets our stream wait
        try:
            capsule = producer.__dlpack__(stream=runtime.stream_id, max_version=(1, 0))
        except TypeError:  # a producer from before versions
            capsule = producer.__dlpack__(stream=runtime.stream_id)
    name, managed = dlpack_abi.opened(capsule)
    dlpack_abi.rename(capsule, _USED[name])
    lent = _Lent(runtime, managed)
    tensor = managed.tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides:
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim))
    else:
        strides, below = (), 1
        for n in reversed(shape):
            strides, below = (below, *strides), below * n
    dtype = dlpack_abi.BY_CODE.get((tensor.code, tensor.bits))
    if dtype is None or tensor.lanes != 1:
        raise TypeError(f"from_dlpack: no dtype for code {tensor.code}, {tensor.bits} bits")
    first = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s < 0)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True) if s > 0)
    start = (tensor.data or 0) + tensor.byte_offset + first * dtype.itemsize
    nbytes = 0 if 0 in shape else (last - first + 1) * dtype.itemsize
    return Memory(start, nbytes, None, lent), -first, shape, strides, dtype


# the names must outlive the capsules
_USED = {name: b"used_" + name for name in (dlpack_abi.PLAIN, dlpack_abi.VERSIONED)}


# -- giving ---------------------------------------------------------------------------------------

_given: dict[int, tuple[Any, ...]] = {}  # what consumers hold, by the address of the struct


class _Given:
    """Our memory that a consumer no longer holds: ours again after the consumer's work."""

    def __init__(self, held: tuple[Any, ...]) -> None:
        self.held = held  # the memory, too

    def settled(self) -> bool:
        runtime, stream = self.held[0], self.held[1]
        order(runtime, _stream(stream), runtime.stream)
        return True


def _let_go(address: int) -> None:
    held = _given.pop(address, None)
    if held is not None:
        held[0].leaving.append(_Given(held))
        settle(held[0])


_let_go_native = dlpack_abi.Deleter(_let_go)

# Words of what the native function below knows: functions of Python's, one of ours, and the names
# that our capsules have, from the last word on.
_API = ("PyErr_Fetch", "PyErr_Restore", "PyCapsule_IsValid", "PyCapsule_GetPointer")
_TABLE = (*_API, "let_go", "names")

# What Python calls when a capsule goes: if nobody took it, its memory is let go. A consumer that
# refuses it may just be raising an error, which a function written in Python would swallow.
_UNUSED = """
@api = internal global ptr null
define void @numus_dlpack_bind(ptr %table) {
  store ptr %table, ptr @api
  ret void
}
define void @numus_dlpack_unused(ptr %capsule) {
entry:
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %table = load ptr, ptr @api
  ?%fetch = ptr TABLE.PyErr_Fetch of %table
  ?%restore = ptr TABLE.PyErr_Restore of %table
  ?%valid = ptr TABLE.PyCapsule_IsValid of %table
  ?%get = ptr TABLE.PyCapsule_GetPointer of %table
  ?%let.go = ptr TABLE.let_go of %table
  ?%names = TABLE.names of %table
  call void %fetch(ptr %type, ptr %value, ptr %trace)
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %j, %after ]
  %name.at = getelementptr ptr, ptr %names, i64 %i
  %name = load ptr, ptr %name.at
  %is = call i32 %valid(ptr %capsule, ptr %name)
  %ours = icmp ne i32 %is, 0
  br i1 %ours, label %drop, label %after
drop:
  %held = call ptr %get(ptr %capsule, ptr %name)
  call void %let.go(ptr %held)
  br label %after
after:
  %j = add i64 %i, 1
  %more = icmp ult i64 %j, 2
  br i1 %more, label %next, label %done
done:
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %r = load ptr, ptr %trace
  call void %restore(ptr %t, ptr %v, ptr %r)
  ret void
}
"""
_NAMES = tuple(ctypes.create_string_buffer(name) for name in _USED)


@functools.cache
def _unused_native() -> tuple[int, Any]:
    """The address of that function, and what it needs."""
    from numus.runtime import get

    source = expand(_UNUSED, TABLE=_TABLE)
    bind, unused = get("cpu").compiler.native(source, ("numus_dlpack_bind", "numus_dlpack_unused"))
    functions = (*(getattr(ctypes.pythonapi, name) for name in _API), _let_go_native)
    addresses = [ctypes.cast(f, ctypes.c_void_p).value for f in functions]
    words = (*addresses, *map(ctypes.addressof, _NAMES))
    table = (ctypes.c_void_p * len(words))(*words)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bind)(ctypes.addressof(table))
    return int(unused), table


def give(
    runtime: Any,
    memory: Memory,
    offset: int,
    shape: Shape,
    strides: Shape,
    dtype: DType,
    stream: int | None,
    versioned: bool,
    read_only: bool,
) -> Any:
    """A capsule on device memory, to be used on the consumer's stream (-1: without waiting)."""
    if stream == 0:
        raise ValueError("__dlpack__: stream 0 is ambiguous on CUDA; 1 is the default stream")
    if stream != -1:
        order(runtime, runtime.stream, _stream(stream))
    numbers = ctypes.c_int64 * max(1, len(shape))
    held_shape, held_strides = numbers(*shape), numbers(*strides)
    managed: Any = dlpack_abi.Versioned() if versioned else dlpack_abi.Managed()
    tensor = managed.tensor
    tensor.data = memory.address
    tensor.device_type, tensor.device_id = CUDA, runtime.index
    tensor.ndim = len(shape)
    tensor.code, tensor.lanes = dlpack_abi.code(dtype), 1
    tensor.bits = 8 if dtype.kind == "bool" else dtype.bits
    tensor.shape, tensor.strides = held_shape, held_strides
    tensor.byte_offset = offset * dtype.itemsize
    managed.deleter = _let_go_native
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = dlpack_abi.READ_ONLY if read_only else 0
    address = ctypes.addressof(managed)
    back = None if stream == -1 else stream
    _given[address] = (runtime, back, managed, held_shape, held_strides, memory)
    name = _NAMES[1] if versioned else _NAMES[0]
    return dlpack_abi.new(address, ctypes.addressof(name), _unused_native()[0])
