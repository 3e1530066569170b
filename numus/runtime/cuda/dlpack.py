"""DLPack on CUDA memory, with streams synchronised both ways.

A consumer names the stream on which it will use memory; the producer makes that stream wait for
pending work. When a consumer of our memory is done, our stream waits for the consumer's. A
producer's streams are unknown to us: it gets its memory back when our work on it is done. Neither
can be arranged while a graph is captured from our stream.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

from numus.dtypes import DType
from numus.runtime import dlpack_abi, launch_lock
from numus.runtime.cuda import driver
from numus.runtime.cuda.context import CudaContext
from numus.runtime.llvm_macros import expand, function_address
from numus.runtime.locks import once
from numus.runtime.memory_pool import Memory
from numus.shapes import Shape

CUDA = 2  # DLPack's number for memory on CUDA devices
_LEGACY = 1  # DLPack's name of the default stream


def _stream(number: int | None) -> Any:
    return driver.stream_of(_LEGACY if number is None else number)


# -- import ---------------------------------------------------------------------------------------


class _Imported:
    """Owner of another library's memory: released after the last tensor on it."""

    def __init__(self, context: CudaContext, managed: Any) -> None:
        self.context, self.managed = context, managed
        self.read_only = bool(getattr(managed, "flags", 0) & dlpack_abi.READ_ONLY)

    def __del__(self) -> None:
        self.context.pending_releases.append(_ImportRelease(self.context, self.managed))
        self.context.process_releases()


class _ImportRelease:
    """Another library's memory without tensors on it: released when our work on it is done."""

    def __init__(self, context: CudaContext, managed: Any) -> None:
        self.context, self.managed = context, managed
        self.done: Any = None  # an event after our work on it

    def __call__(self) -> bool:
        if self.done is None:
            self.done = self.context.event()
            driver.call("cuEventRecord", self.done, self.context.stream)
        if not driver.is_complete(self.done):
            return False
        self.context.free_events.append(self.done)
        if self.managed.deleter:
            self.managed.deleter(ctypes.addressof(self.managed))
        return True


def import_tensor(context: CudaContext, producer: Any) -> tuple[Memory, int, Shape, Shape, DType]:
    """Memory of another library: the block, offset and strides in elements, shape, and dtype."""
    context.process_releases()
    with launch_lock.lock:  # the producer makes our stream wait
        try:
            capsule = producer.__dlpack__(stream=context.stream_id, max_version=(1, 0))
        except TypeError:  # a producer from before versions
            capsule = producer.__dlpack__(stream=context.stream_id)
    name, managed = dlpack_abi.unpack(capsule)
    dlpack_abi.rename(capsule, _USED[name])
    owner = _Imported(context, managed)
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
    return Memory(start, nbytes, owner=owner), -first, shape, strides, dtype


# the names must outlive the capsules
_USED = {name: b"used_" + name for name in (dlpack_abi.UNVERSIONED, dlpack_abi.VERSIONED)}


# -- export ---------------------------------------------------------------------------------------

# Exports by the struct's address: context, stream, and objects to keep alive.
_exported: dict[int, tuple[Any, ...]] = {}


def _order_after_consumer(exported: tuple[Any, ...]) -> bool:
    """Our memory that a consumer no longer uses: reused after the consumer's work."""
    context, stream = exported[:2]
    context.order(_stream(stream), context.stream)
    return True


def _release(address: int) -> None:
    exported = _exported.pop(address, None)
    if exported is not None:
        context = exported[0]
        context.pending_releases.append(functools.partial(_order_after_consumer, exported))
        context.process_releases()


_release_native = dlpack_abi.Deleter(_release)

# Words that the native function reads: functions of CPython, ours, and the names of our capsules.
_API = ("PyErr_Fetch", "PyErr_Restore", "PyCapsule_IsValid", "PyCapsule_GetPointer")
_TABLE = (*_API, "release", "names")

# The destructor of capsules: memory of one that nobody consumed is released. Native, because a
# consumer that rejects a capsule may be raising an error, which a Python function would swallow.
_DESTRUCTOR = """
@api = internal global ptr null
define void @numus_dlpack_bind(ptr %table) {
  store ptr %table, ptr @api
  ret void
}
define void @numus_dlpack_unused(ptr %capsule) {
  %type = alloca ptr
  %value = alloca ptr
  %trace = alloca ptr
  %table = load ptr, ptr @api
  ?ptr PyErr_Fetch, ptr PyErr_Restore, ptr PyCapsule_IsValid = TABLE of %table
  ?ptr PyCapsule_GetPointer, ptr release, at names = TABLE of %table
  call void %PyErr_Fetch(ptr %type, ptr %value, ptr %trace)
  for %i in 0..2
  %name = ptr %names.at[%i]
  %valid = call i32 %PyCapsule_IsValid(ptr %capsule, ptr %name)
  br ne i32 %valid, 0, label %drop, label %i.latch
drop:
  %managed = call ptr %PyCapsule_GetPointer(ptr %capsule, ptr %name)
  call void %release(ptr %managed)
  end
  %t = load ptr, ptr %type
  %v = load ptr, ptr %value
  %r = load ptr, ptr %trace
  call void %PyErr_Restore(ptr %t, ptr %v, ptr %r)
  ret void
}
"""
_NAMES = tuple(ctypes.create_string_buffer(name) for name in _USED)


@once
def _destructor(compiler: Any) -> tuple[int, Any]:
    """The address of the destructor, and the table that it reads."""
    source = expand(_DESTRUCTOR, TABLE=_TABLE)
    bind, unused = compiler.native(source, ("numus_dlpack_bind", "numus_dlpack_unused"))
    functions = (*(getattr(ctypes.pythonapi, name) for name in _API), _release_native)
    words = (*map(function_address, functions), *map(ctypes.addressof, _NAMES))
    table = (ctypes.c_void_p * len(words))(*words)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(bind)(ctypes.addressof(table))
    return int(unused), table


def export_tensor(
    context: CudaContext,
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
    context.early_results.pop(memory.address, None)  # the consumer may write to it
    if stream != -1:
        context.order(context.stream, _stream(stream))
    extents = ctypes.c_int64 * max(1, len(shape))
    shape_array, strides_array = extents(*shape), extents(*strides)
    managed: Any = dlpack_abi.Versioned() if versioned else dlpack_abi.Managed()
    tensor = managed.tensor
    tensor.data = memory.address
    tensor.device_type, tensor.device_id = CUDA, context.index
    tensor.ndim = len(shape)
    tensor.code, tensor.lanes = dlpack_abi.code(dtype), 1
    tensor.bits = 8 if dtype.kind == "bool" else dtype.bits
    tensor.shape, tensor.strides = shape_array, strides_array
    tensor.byte_offset = offset * dtype.itemsize
    managed.deleter = _release_native
    if versioned:
        managed.major, managed.minor = 1, 0
        managed.flags = dlpack_abi.READ_ONLY if read_only else 0
    address = ctypes.addressof(managed)
    consumer = None if stream == -1 else stream
    _exported[address] = (context, consumer, managed, shape_array, strides_array, memory)
    name = _NAMES[1] if versioned else _NAMES[0]
    return dlpack_abi.new(address, ctypes.addressof(name), _destructor(context.host.compiler)[0])
