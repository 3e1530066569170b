"""CudaContext: one GPU with its stream, memory pool, events and native launch functions.

All work of a device runs in order on one stream. Launches, interoperation and user kernels share
this state; `CudaRuntime` adds the backend contract.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Protocol
from weakref import WeakValueDictionary

from numus import dtypes
from numus.runtime import launch_lock
from numus.runtime.contract import LaunchStep
from numus.runtime.cpu import CpuRuntime
from numus.runtime.cuda import driver, graph_source
from numus.runtime.cuda.hazards import WrittenMemory
from numus.runtime.cuda.launch_source import SOURCE, SYMBOLS
from numus.runtime.cuda.properties import capability_fields
from numus.runtime.memory_pool import MemoryPool, gib
from numus.runtime.pycall.vm import Launcher
from numus.target import Target

_BLOCK_SIZE = 256  # threads: several blocks fit on an SM and hide each other's barriers
_MAX_NAMED_KERNELS = 8  # in an error message


class NamedSteps(Protocol):
    """A launch list, as errors name it."""

    @property
    def steps(self) -> tuple[LaunchStep, ...]: ...


class _Current(threading.local):
    """The context that is current in a thread."""

    context: CudaContext | None = None


_current = _Current()


class _MemoryPool(MemoryPool):
    """Blocks of a GPU's memory, reused at once: all work runs in order on one stream."""

    min_bytes = 256  # the driver's alignment
    classes_per_octave = 8
    slab_bytes = 1 << 21
    max_slab_block_bytes = 1 << 19
    lowest_address_first = True  # recurring addresses let launch lists be replayed as graphs

    def __init__(self, device: str, activate: Callable[[], None]) -> None:
        super().__init__(device)
        self._activate = activate  # makes the device's context current

    def obtain(self, size: int) -> int:
        self._activate()
        try:
            return int(driver.call("cuMemAlloc", size))
        except driver.DriverMemoryError:
            free, total = driver.call("cuMemGetInfo")
        raise self.out_of_memory(size, f"{gib(int(free))} are free of {gib(int(total))} in all")

    def release(self, address: int) -> None:
        """Free a block; the driver waits for running work."""
        self._activate()
        driver.call("cuMemFree", address)


class CudaContext:
    """The state of one device. With an older `capability`, kernels are compiled for that one.

    `host` compiles the native launch loop.
    """

    latest: CudaContext | None = None  # the last one started

    def __init__(self, host: CpuRuntime, index: int = 0, capability: int | None = None) -> None:
        self.host = host
        self.index = index
        self.name = f"cuda:{index}" if index else "cuda"
        self.device = driver.call("cuDeviceGet", index)
        self._primary = driver.call("cuDevicePrimaryCtxRetain", self.device)
        # with several devices, other libraries may have made another context current
        self._several_devices = driver.count() > 1
        self.activate()
        self.stream = driver.call("cuStreamCreate", 1)  # does not wait for the default stream
        self.stream_id = int(self.stream)
        major, minor = (self._attribute(f"COMPUTE_CAPABILITY_{x}") for x in ("MAJOR", "MINOR"))
        self.capability = capability or 10 * major + minor
        self.target = self._target()
        self.max_dynamic_shared = self.target.shared_bytes // 2  # two blocks per SM at least
        self.memory = _MemoryPool(self.name, self.activate)
        self.allocate = self.memory.allocate
        self._load_launcher()
        # graphs to destroy when no capture is under way, and events to reuse: an event may be part
        # of a graph that still runs, so none is destroyed
        self.retired_graphs: list[Any] = []
        self.free_events: list[Any] = []
        self.free_flags: list[Any] = []  # of loops
        # Release memory shared with other libraries if work on it is done, and give whether it was;
        # not called during a capture.
        self.pending_releases: list[Callable[[], bool]] = []
        self.capturing = False
        self.written = WrittenMemory()
        self.recording: Any = None  # a `RunRecorder` that takes what would be launched
        self.last_launched: NamedSteps | None = None  # named in errors
        self.early_results: dict[int, Any] = {}  # events of results ready before their program ends
        CudaContext.latest = self

    def _attribute(self, name: str) -> int:
        return driver.attribute(self.device, name)

    def _target(self) -> Target:
        shared = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        name = driver.call("cuDeviceGetName", 256, self.device)
        return Target(
            name="cuda",
            description=name.split(b"\0")[0].decode(),
            dtypes=frozenset(d.name for d in dtypes.ALL),
            vector_bytes=128,  # one cache line: a warp's natural access
            vector_registers=64,
            l1_bytes=shared,
            l2_bytes=self._attribute("L2_CACHE_SIZE"),
            num_cores=self._attribute("MULTIPROCESSOR_COUNT"),
            language="ptx",
            libraries=frozenset({"cublas", "cublaslt", "cusolver"}),
            memory_bytes=int(driver.call("cuDeviceTotalMem", self.device)),
            block_size=_BLOCK_SIZE,
            shared_bytes=shared,
            max_block_size=self._attribute("MAX_THREADS_PER_BLOCK"),
            elides_copies=True,
            **capability_fields(self.capability),
        )

    def _load_launcher(self) -> None:
        """Compile the native launch loop for the host."""
        loop, call = self.host.compiler.native(SOURCE, SYMBOLS)
        word, count = ctypes.c_void_p, ctypes.c_int64
        signature = ctypes.CFUNCTYPE(ctypes.c_int64, word, word, word, count, word, word)
        self.run_launches = signature(int(loop))
        self.launch_error, self.last_call = ctypes.c_int64(0), ctypes.c_int64(0)
        self._valid = ctypes.c_int64(1)  # fast calls on this device never become invalid
        valid, error = ctypes.addressof(self._valid), ctypes.addressof(self.launch_error)
        self.launcher = Launcher(int(call), valid, 1, error)
        self._called: WeakValueDictionary[int, NamedSteps] = WeakValueDictionary()
        self.launch_address = driver.function_address("cuLaunchKernelEx")
        self.encode_address = self.im2col_address = 0  # of the encoders of tensor maps
        if self.target.wgmma:
            self.encode_address = driver.function_address("cuTensorMapEncodeTiled")
            self.im2col_address = driver.function_address("cuTensorMapEncodeIm2col")
        functions = [driver.function_address(name) for name in graph_source.FUNCTIONS]
        self._graph_functions = (ctypes.c_void_p * len(functions))(*functions)
        self.graph_functions = ctypes.addressof(self._graph_functions)

    def activate(self) -> None:
        """Make this device's context current in this thread."""
        if _current.context is not self or self._several_devices:
            driver.call("cuCtxSetCurrent", self._primary)
            _current.context = self

    # -- events and errors ------------------------------------------------------------------------

    def event(self) -> Any:
        """An event without timing."""
        try:
            return self.free_events.pop()
        except IndexError:
            return driver.call("cuEventCreate", 2)

    def order(self, before: Any, after: Any) -> None:
        """Make later work on stream `after` wait for earlier work on stream `before`."""
        self.activate()
        event = self.event()
        with launch_lock.lock:
            driver.call("cuEventRecord", event, before)
            driver.call("cuStreamWaitEvent", after, event, 0)
            self.written.forget()
        self.free_events.append(event)  # recording it again does not affect the wait

    def call_id(self, launches: NamedSteps) -> int:
        """The number by which native code names a launch list."""
        self._called[id(launches)] = launches
        return id(launches)

    def last_kernels(self) -> str:
        """The kernels that an asynchronous error may come from."""
        last = self._called.get(self.last_call.value, self.last_launched)
        steps = () if last is None else last.steps[:_MAX_NAMED_KERNELS]
        names = ", ".join(s.program.label for s in steps)
        return f"running kernels, of which the last were {names}" if names else "waiting"

    def raise_asynchronous(self, error: driver.DriverError) -> NoReturn:
        """Raise a driver's error again, with the kernels that it may come from."""
        if error.code == driver.OUT_OF_MEMORY:
            raise error
        raise driver.error(self.last_kernels(), error.code) from None

    def synchronize(self) -> None:
        """Wait until everything launched is done; errors of the work are raised here."""
        self.activate()
        doing = self.last_kernels()
        event = self.event()
        with launch_lock.lock:
            driver.call("cuEventRecord", event, self.stream, doing=doing)
        driver.call("cuEventSynchronize", event, doing=doing)
        self.free_events.append(event)
        self.process_releases()

    def unload(self, modules: Sequence[Any]) -> None:
        """Unload modules that no program uses, after the kernels of theirs that still run."""
        self.synchronize()
        with launch_lock.lock:
            for module in modules:
                driver.call("cuModuleUnload", module)

    # -- memory -----------------------------------------------------------------------------------

    def process_releases(self) -> None:
        """Release shared memory whose work is done. Never waits: finalisers run anywhere."""
        if not self.pending_releases or not launch_lock.lock.acquire(blocking=False):
            return
        try:
            if self.capturing:
                return
            self.activate()
            waiting = []
            while self.pending_releases:
                release = self.pending_releases.pop()
                if not release():
                    waiting.append(release)
            self.pending_releases += waiting
        finally:
            launch_lock.lock.release()

    def reclaim_memory(self) -> bool:
        """Out of memory: release shared memory and empty the pool; whether there was any.

        Does not wait for the launch lock, whose owner may need memory, too.
        """
        if self.capturing:
            return False
        releases, pooled = bool(self.pending_releases), self.memory.pooled
        if releases and launch_lock.lock.acquire(blocking=False):
            try:
                self.synchronize()
            finally:
                launch_lock.lock.release()
        self.memory.empty()
        return releases or self.memory.pooled < pooled


def _reclaim_current() -> bool:
    return _current.context is not None and _current.context.reclaim_memory()


driver.reclaim_memory = _reclaim_current
