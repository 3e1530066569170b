"""An NVIDIA GPU's runtime: memory, programs and launches behind the backend contract."""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from numus import dtypes
from numus.ir import kernel_text
from numus.runtime import launch_lock
from numus.runtime.compile_log import CompileRecord
from numus.runtime.contract import Launch, ProgramStep, arguments_of, steps_of
from numus.runtime.cuda import dlpack, driver, graph_source
from numus.runtime.cuda.compiler import Compiler
from numus.runtime.cuda.launch import Prepared, launcher
from numus.runtime.cuda.launch_source import SOURCE, SYMBOLS
from numus.runtime.cuda.memory import MemoryPool
from numus.runtime.cuda.program import CudaProgram, VendorProgram
from numus.runtime.cuda.properties import capability_fields
from numus.runtime.cuda.staging import Staging
from numus.runtime.cuda.user_kernels import UserKernels
from numus.runtime.memory_pool import Memory
from numus.runtime.pycall.vm import CallVM, Launcher
from numus.target import Target

if TYPE_CHECKING:
    from numus.dtypes import DType
    from numus.shapes import Shape

_GROUP = 256  # threads: a multiprocessor holds several groups, which hide each other's barriers


class CudaRuntime:
    """One GPU. All of its work runs in order on one stream.

    With an older `capability`, its kernels are those for such a device: to test them.
    """

    def __init__(self, index: int = 0, capability: int | None = None) -> None:
        self.index = index
        self._older = capability
        self.device = driver.call("cuDeviceGet", index)
        self._context = driver.call("cuDevicePrimaryCtxRetain", self.device)
        # other libraries may then have made another device the one that a thread's calls are about
        self._one_of_many = driver.count() > 1
        self.activate()
        self.stream = driver.call("cuStreamCreate", 1)  # does not wait for the default stream
        self.stream_id = int(self.stream)
        self.target = self._target()
        self.name = f"cuda:{index}" if index else "cuda"
        self.memory = MemoryPool(self.name, self.activate)
        self.allocate = self.memory.allocate
        self.compiler = Compiler(self.capability, self.activate)
        self.user_kernels = UserKernels(self)
        self.launch, run = _native()
        # what native calls leave behind: the driver's complaint, and which program ran last
        self.failed, self.last_number = ctypes.c_int64(0), ctypes.c_int64(0)
        self._ready = ctypes.c_int64(1)
        self.launcher = Launcher(
            *(run, ctypes.addressof(self._ready), 1, ctypes.addressof(self.failed)),
        )
        self._numbered: WeakValueDictionary[int, Prepared] = WeakValueDictionary()
        self.launch_address = driver.function_address("cuLaunchKernelEx")
        self.encode_address = 0  # of what prepares the copying engine, where there is one
        if self.target.wgmma:
            self.encode_address = driver.function_address("cuTensorMapEncodeTiled")
        found = [driver.function_address(name) for name in graph_source.FUNCTIONS]
        self._graph_functions = (ctypes.c_void_p * len(found))(*found)
        self.graph_functions = ctypes.addressof(self._graph_functions)
        # graphs that nobody starts any more: let go when nothing is recorded into another
        self.dropped: list[Any] = []
        # events of programs that are gone, for others to record: none is destroyed while a graph
        # that is still under way may come to it
        self.spare_events: list[Any] = []
        # memory that others lent, or were lent, and is to go back once work on it is done; a graph
        # that is just being recorded from the stream must not wait for anything
        self.leaving: list[Any] = []
        self.recording = False
        self.last: Prepared | None = None  # what ran last, to be named where it failed
        # where it has put results that are there before it ends, with events that tell when
        self.early: dict[int, Any] = {}
        self._stagings: list[Staging] = []  # of those that nobody copies through
        # as long as a plan has them: they are for sizes, of which there may be ever others
        self._by_vendors: WeakValueDictionary[str, VendorProgram] = WeakValueDictionary()

    def _target(self) -> Target:
        def of(name: str) -> int:
            return driver.attribute(self.device, name)

        major, minor = of("COMPUTE_CAPABILITY_MAJOR"), of("COMPUTE_CAPABILITY_MINOR")
        self.capability = self._older or 10 * major + minor
        shared = of("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")
        self.shared_limit = shared // 2  # two groups at least fit on a multiprocessor
        name = driver.call("cuDeviceGetName", 256, self.device)
        return Target(
            name="cuda",
            description=name.split(b"\0")[0].decode(),
            dtypes=frozenset(d.name for d in dtypes.ALL),
            vector_bytes=128,  # what a warp reads at a time, in one line of the cache
            vector_registers=64,
            l1_bytes=shared,
            l2_bytes=of("L2_CACHE_SIZE"),
            num_cores=of("MULTIPROCESSOR_COUNT"),
            language="ptx",
            memory_bytes=int(driver.call("cuDeviceTotalMem", self.device)),
            block_size=_GROUP,
            shared_bytes=shared,
            max_block_size=of("MAX_THREADS_PER_BLOCK"),
            **capability_fields(self.capability),
        )

    def activate(self) -> None:
        """Make this device the one that the driver's calls of this thread are about."""
        if _active.runtime is not self or self._one_of_many:
            driver.call("cuCtxSetCurrent", self._context)
            _active.runtime = self

    # -- memory -----------------------------------------------------------------------------------

    def give_back(self) -> bool:
        """When there is no more memory: get what others have let go of, let go of what is others',
        and give free blocks back; whether there was any of it. A thread whose turn it is may want
        memory, too: nobody waits for it here."""
        if self.recording:
            return False
        leaving, pooled = bool(self.leaving), self.memory.pooled
        if leaving and launch_lock.lock.acquire(blocking=False):
            try:
                self.synchronize()
            finally:
                launch_lock.lock.release()
        self.memory.empty()
        return leaving or self.memory.pooled < pooled

    def upload(self, memory: Memory, array: np.ndarray[Any, Any]) -> None:
        if array.nbytes:
            self.activate()
            self.early.pop(memory.address, None)
            with self._staging() as staging:
                staging.upload(memory.address, np.ascontiguousarray(array))

    def download(
        self, memory: Memory, dtype: DType, count: int, start: int = 0
    ) -> np.ndarray[Any, Any]:
        out = np.empty(count, dtype.np)
        if count:
            self.activate()
            address = memory.address + start * dtype.itemsize
            # native calls leave their number behind: what came before is no longer the last
            made = None if self.last_number.value else self.early.get(memory.address)
            with self._staging() as staging:
                if made is None:
                    staging.download(address, out)
                else:
                    staging.download_early(address, out, made)
            dlpack.settle(self)
        return out

    @contextlib.contextmanager
    def _staging(self) -> Iterator[Staging]:
        """Pieces to copy through, which no other thread uses meanwhile."""
        try:
            staging = self._stagings.pop()
        except IndexError:
            staging = Staging(self.stream)
        try:
            yield staging
        except driver.DriverError as failure:
            if failure.code == driver.OUT_OF_MEMORY:
                raise
            raise driver.failure(self._doing(), failure.code) from None
        finally:
            self._stagings.append(staging)

    def take_dlpack(self, producer: Any) -> tuple[Memory, int, Shape, Shape, DType]:
        """Another library's memory on this device: block, offset, shape, strides, dtype."""
        return dlpack.take(self, producer)

    def give_dlpack(
        self,
        memory: Memory,
        offset: int,
        shape: Shape,
        strides: Shape,
        dtype: DType,
        stream: int | None,
        versioned: bool,
        read_only: bool,
    ) -> Any:
        """A DLPack capsule on this device's memory, ready on the consumer's stream."""
        self.early.pop(memory.address, None)  # others may write to it
        return dlpack.give(
            self, memory, offset, shape, strides, dtype, stream, versioned, read_only
        )

    def memory_stats(self) -> dict[str, int]:
        return self.memory.stats()

    # -- programs ---------------------------------------------------------------------------------

    def compile(self, kernel: Any) -> CudaProgram | VendorProgram:
        self.activate()
        if kernel.vendor is None:
            return self.compiler.compile(kernel)
        return self._by_vendor(kernel)

    def compile_all(self, kernels: Sequence[Any]) -> list[CudaProgram | VendorProgram]:
        """The programs of several kernels, compiled side by side."""
        self.activate()
        own = iter(self.compiler.compile_all([k for k in kernels if k.vendor is None]))
        return [next(own) if k.vendor is None else self._by_vendor(k) for k in kernels]

    def _by_vendor(self, kernel: Any) -> VendorProgram:
        text = kernel_text(kernel)
        found = self._by_vendors.get(text)
        if found is None:
            launch = kernel.vendor.start(self, kernel.problem)
            found = self._by_vendors.setdefault(text, VendorProgram(kernel, launch))
        return found

    @property
    def compile_log(self) -> list[CompileRecord]:
        """What was compiled or loaded so far, in order."""
        return self.compiler.log

    # -- launches ---------------------------------------------------------------------------------

    def prepare(self, steps: Sequence[ProgramStep], slots: int) -> Prepared:
        """A list of kernels to be run many times; see `Prepared`."""
        self.activate()
        while self.dropped:
            driver.call("cuGraphExecDestroy", self.dropped.pop())
        return Prepared(self, steps, slots)

    def event(self) -> Any:
        """An event that takes no time down."""
        try:
            return self.spare_events.pop()
        except IndexError:
            return driver.call("cuEventCreate", 2)

    def run(self, launches: Sequence[Launch]) -> None:
        """Run launches in order; they may still be under way on return."""
        self.prepare(*steps_of(launches, _scratch)).run(*arguments_of(launches))

    def call_vm(self) -> CallVM | None:
        """The fast-call VM; None where this Python does not support it."""
        from numus.runtime import get

        found: CallVM | None = get("cpu").call_vm()
        return found

    def number(self, prepared: Prepared) -> int:
        """What native code calls a program by."""
        self._numbered[id(prepared)] = prepared
        return id(prepared)

    def _doing(self) -> str:
        """What an error of the device may come from."""
        last = self._numbered.get(self.last_number.value, self.last)
        names = "" if last is None else ", ".join(s.program.label for s in last.steps[:8])
        return f"running kernels, of which the last were {names}" if names else "waiting"

    def synchronize(self) -> None:
        """Wait until everything launched is done; errors of the work are raised here."""
        self.activate()
        doing = self._doing()
        event = self.event()
        with launch_lock.lock:
            driver.call("cuEventRecord", event, self.stream, doing=doing)
        driver.call("cuEventSynchronize", event, doing=doing)
        self.spare_events.append(event)
        dlpack.settle(self)


class _Active(threading.local):
    """The runtime whose context is current in a thread."""

    runtime: CudaRuntime | None = None


_active = _Active()


def _give_back() -> bool:
    """Memory of the device that this thread's calls are about."""
    return _active.runtime is not None and _active.runtime.give_back()


driver.when_full(_give_back)


def _native() -> tuple[Any, int]:
    """The loop that goes through launches, compiled for the host: as a function, and the address of
    one for native calls."""
    from numus.runtime import get

    loop, call = get("cpu").compiler.native(SOURCE, SYMBOLS)
    return launcher(int(loop)), int(call)


def _scratch(launch: Launch) -> list[int] | None:
    """Bytes of each scratch buffer of a launch whose sizes are given by its scalars."""
    from numus.runtime.cpu.program import scratch_nbytes

    return scratch_nbytes(launch.program.kernel, launch.scalars)
