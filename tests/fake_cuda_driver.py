"""A fake CUDA driver that counts calls and runs no kernel, to test the runtime without a GPU.

Device memory is host memory, so copies work; kernels are compiled to PTX. Launches arrive from
native code, through functions that count them.
"""

from __future__ import annotations

import ctypes
import itertools
from collections import Counter
from typing import Any

import numus as nm
from numus.runtime.cuda import driver, graph_source

OUT_OF_MEMORY = 2

_ATTRIBUTES = {
    "COMPUTE_CAPABILITY_MAJOR": 9,
    "COMPUTE_CAPABILITY_MINOR": 0,
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 227 << 10,
    "L2_CACHE_SIZE": 50 << 20,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_BLOCK": 1024,
}
# Stand-ins for the driver's functions: they count calls and return a given code.
_COUNTING = """
define i32 @fake_launch(ptr %config, ptr %f, ptr %p, ptr %e) {
  %n = load i64, ptr inttoptr (i64 @COUNT@ to ptr)
  %m = add i64 %n, 1
  store i64 %m, ptr inttoptr (i64 @COUNT@ to ptr)
  %code = load i32, ptr inttoptr (i64 @CODE@ to ptr)
  ret i32 %code
}
define i32 @fake_pixels(ptr %t, i32 %k, i32 %r, ptr %a, ptr %e, ptr %s, ptr %l, ptr %u, i32 %c,
    i32 %p, ptr %st, i32 %i, i32 %j, i32 %m, i32 %n) {
  ret i32 0
}
define i32 @fake_encode(ptr %t, i32 %k, i32 %r, ptr %a, ptr %e, ptr %s, ptr %b, ptr %st, i32 %i,
    i32 %j, i32 %l, i32 %m) {
  ret i32 0
}
"""
# Those of graphs: handles are numbers, and calls are counted.
_GRAPHS = """
define i32 @fake_@NAME@(ptr %a, ptr %b, i64 %c) {
  %n = load i64, ptr inttoptr (i64 @COUNTER@ to ptr)
  %m = add i64 %n, 1
  store i64 %m, ptr inttoptr (i64 @COUNTER@ to ptr)
  @MAKE@
  %code = load i32, ptr inttoptr (i64 @CODE@ to ptr)
  %told = select i1 @FAILS@, i32 %code, i32 0
  ret i32 %told
}
"""
_MADE = {
    "cuStreamEndCapture": "store i64 77, ptr %b",
    "cuGraphInstantiateWithFlags": "store i64 %m, ptr %a",
}


class Enumeration:
    """An enumeration with any name as a value."""

    def __getattr__(self, name: str) -> str:
        return name.removeprefix("CU_DEVICE_ATTRIBUTE_")


class CUresult:
    def __init__(self, code: int) -> None:
        self.name = {2: "CUDA_ERROR_OUT_OF_MEMORY"}.get(code, f"CUDA_ERROR_{code}")


class Driver:
    """The part of `cuda.bindings.driver` that the runtime uses."""

    CUresult, CUstream = CUresult, int
    CUdevice_attribute = CUfunction_attribute = CUjit_option = CUjitInputType = Enumeration()
    CUstreamCaptureMode = CUdriverProcAddress_flags = Enumeration()

    def __init__(self, memory: int = 1 << 30) -> None:
        self.total = memory
        self.blocks: dict[int, Any] = {}
        self.calls: Counter[str] = Counter()
        self.handles = 1000
        self.pinned: list[Any] = []
        self._launched, self.code = ctypes.c_int64(0), ctypes.c_int32(0)
        places = {"@COUNT@": self._launched, "@CODE@": self.code}
        source = _COUNTING
        for mark, word in places.items():
            source = source.replace(mark, str(ctypes.addressof(word)))
        compiler = nm.device("cpu").runtime.compiler
        self.native_calls = {name: ctypes.c_int64(0) for name in graph_source.FUNCTIONS}
        for name, word in self.native_calls.items():
            text = _GRAPHS.replace("@NAME@", name).replace("@MAKE@", _MADE.get(name, ""))
            text = text.replace("@FAILS@", str(name == "cuGraphLaunch").lower())
            text = text.replace("@CODE@", str(ctypes.addressof(self.code)))
            source += text.replace("@COUNTER@", str(ctypes.addressof(word)))
        names = ["launch", "encode", "pixels", *self.native_calls]
        launch, encode, pixels, *others = compiler.native(source, [f"fake_{n}" for n in names])
        self.functions = {"cuLaunchKernelEx": launch, "cuTensorMapEncodeTiled": encode}
        self.functions["cuTensorMapEncodeIm2col"] = pixels
        self.functions.update(zip(self.native_calls, others, strict=True))

    @property
    def launched(self) -> int:
        return self._launched.value

    @property
    def started(self) -> int:
        """The number of launches of kernels and native graphs, captured ones excluded."""
        graphs = [f"cuGraph{name}" for name in ("Launch", "InstantiateWithFlags")]
        begun, made = (self.native_calls[name].value for name in graphs)
        return self.launched + begun - made

    @property
    def used(self) -> int:
        return sum(len(block) for block in self.blocks.values())

    def cuInit(self, flags: int) -> Any:
        return (0,)

    def cuDeviceGetCount(self) -> Any:
        return 0, 1

    def cuDeviceGetAttribute(self, name: str, device: Any) -> Any:
        return 0, _ATTRIBUTES[name]

    def cuDeviceGetName(self, size: int, device: Any) -> Any:
        return 0, b"a driver without a GPU\0"

    def cuDeviceTotalMem(self, device: Any) -> Any:
        return 0, self.total

    def cuDriverGetVersion(self) -> Any:
        return 0, 1  # of no driver: cached code is for others

    def cuMemGetInfo(self) -> Any:
        return 0, self.total - self.used, self.total

    def cuMemAlloc(self, size: int) -> Any:
        if self.used + size > self.total:
            return OUT_OF_MEMORY, 0
        block = bytearray(size + 256)
        address = ctypes.addressof(ctypes.c_char.from_buffer(block))
        address += -address % 256
        self.blocks[address] = block
        self.calls["cuMemAlloc"] += 1
        return 0, address

    def cuMemHostAlloc(self, size: int, flags: int) -> Any:
        block = (ctypes.c_char * size)()
        self.pinned.append(block)
        return 0, ctypes.addressof(block)

    def cuMemFree(self, address: int) -> Any:
        del self.blocks[address]
        return (0,)

    def cuMemcpyHtoDAsync(self, to: int, source: int, size: int, stream: Any) -> Any:
        ctypes.memmove(to, source, size)
        return (0,)

    def cuMemcpyDtoHAsync(self, to: int, source: int, size: int, stream: Any) -> Any:
        return self.cuMemcpyHtoDAsync(to, source, size, stream)

    def cuMemcpyDtoDAsync(self, to: int, source: int, size: int, stream: Any) -> Any:
        return self.cuMemcpyHtoDAsync(to, source, size, stream)

    def cuGetProcAddress(self, name: bytes, version: int, flags: Any) -> Any:
        return 0, self.functions[name.decode()], 0

    def cuLinkComplete(self, state: Any) -> Any:
        self._code = ctypes.create_string_buffer(b"code")
        return 0, ctypes.addressof(self._code), 4

    def __getattr__(self, name: str) -> Any:
        """Other functions are counted and return a new handle."""
        if not name.startswith("cu"):
            raise AttributeError(name)

        def call(*args: Any) -> Any:
            self.calls[name] += 1
            self.handles += 1
            return 0, self.handles

        return call


_numbers = itertools.count()


def install(monkeypatch: Any, memory: int = 1 << 30) -> tuple[Driver, str]:
    """The fake, and the name of a new device on it."""
    from numus.compiler.plan import clear_plans
    from numus.runtime import devices
    from numus.runtime.cuda.runtime import CudaRuntime

    fake = Driver(memory)
    driver.count()  # remembered for the life of the process: that of the real driver
    monkeypatch.setattr(driver, "_module", lambda: fake)
    runtime = CudaRuntime(nm.device("cpu").runtime)
    runtime.driver = fake  # keeps the fake's memory alive
    name = f"cuda_alone_{next(_numbers)}"
    devices.BACKENDS[name] = lambda index: runtime
    clear_plans()
    return fake, name
