"""Launches prepared once and run many times.

As on the CPU, a program of several kernels is laid out in one piece of memory, the image: for every
launch its function, its parameters, the places of its buffers and its scalars. To run it again is
to write what differs and to make one native call, which goes through the launches, those of a
vendor's library among them. A program that comes again with the very same addresses and numbers is
replayed as a CUDA graph. A program of not too many kernels can be run from a native call of
Python's (`runtime/pycall`), which keeps graphs of its own.
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numus.errors import DeviceError
from numus.runtime.contract import ProgramStep
from numus.runtime.cuda import driver, graph_source, vendor_source
from numus.runtime.cuda import launch_source as layout
from numus.runtime.cuda.program import VendorProgram
from numus.runtime.cuda.staging import EARLY
from numus.runtime.pycall.builder import MAX_RECYCLED_BYTES, BytecodeBuilder

if TYPE_CHECKING:
    from numus.runtime.cuda.runtime import CudaRuntime
    from numus.runtime.memory_pool import Memory

# What native calls keep for temporaries, all of them together; they allocate more as they run.
_SMALL_WORKSPACE = 64 << 20
_GRAPH_STEPS = 3  # programs of fewer kernels are launched as quickly one by one by Python
_NATIVE_STEPS = 16  # programs of more kernels are no native calls: they take longer than Python
_GRAPHS = 4  # kept for each program
_SHORT_SHARE = 16  # of the L2 cache: what moves no more of it takes no longer than its launch
# Native calls keep memory for results of up to this share of the device's, as a power of two: a
# thousand such results are 1.5 % of it.
_KEPT_SHARE = 16
# Single results that are there long before a program ends (a loss, before its gradients) can be
# read meanwhile: so many of a program, where so many steps follow.
_EARLY_RESULTS, _STEPS_AFTER = 4, 16
_EXTERNAL = 1  # the driver's flag of an event that is recorded in a graph for others to see


def launcher(address: int) -> Callable[..., int]:
    """The native function as Python calls it."""
    word = ctypes.c_void_p
    return ctypes.CFUNCTYPE(ctypes.c_int64, word, word, word, ctypes.c_int64, word, word)(address)


class _Image:
    """Memory that the native loop reads; used by one thread at a time. `graphs`: the words in which
    native calls keep graphs."""

    __slots__ = ("_runtime", "data", "graphs", "header", "records", "slots", "words")

    def __init__(
        self, runtime: CudaRuntime, data: bytearray, records: int, head: int, graphs: Sequence[int]
    ) -> None:
        self._runtime = runtime
        self.graphs = graphs
        self.data = data
        self.words = (ctypes.c_int64 * (len(data) // 8)).from_buffer(data)
        self.slots = ctypes.addressof(self.words)
        self.records = self.slots + 8 * records
        self.header = self.slots + 8 * head

    def slot_address(self, number: int) -> int:
        """The address of one of its words."""
        return self.slots + 8 * number

    def __del__(self) -> None:
        self._runtime.dropped += [self.words[at] for at in self.graphs if self.words[at]]


class Prepared:
    """A list of kernels with places for what changes from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid followed by its
    scalars, all in one flat sequence.
    """

    def __init__(self, runtime: CudaRuntime, steps: Sequence[ProgramStep], slots: int) -> None:
        self._runtime = runtime
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()
        self._events: dict[int, Any] = {}  # of early results, by slot, once it runs
        self.steps = tuple(steps)
        self.slots = slots
        self._scratch = [(n, i) for n, s in enumerate(steps) for i in s.program.open]
        vendors = [s.program for s in steps if isinstance(s.program, VendorProgram)]
        self._workspace = max((program.launch.workspace for program in vendors), default=0)
        self._all_native = all(program.native is not None for program in vendors)
        formats = "".join("q" + s.program.formats for s in steps)
        # scratch addresses follow the caller's, values follow those
        given = slots + len(self._scratch) + bool(self._workspace)
        self._format = struct.Struct(f"={given}Q{formats}")
        self._pack = self._format.pack_into
        self._shared, self._far = self._places()
        self._no_scratch = [0] * len(self._scratch)
        self._marks = self._early_results()
        self._free: list[_Image] = []
        self._records = True  # whether graphs can be made of it
        self._seen: OrderedDict[bytes, None] = OrderedDict()  # images of late, each once

    def _places(self) -> tuple[list[int], dict[int, list[int]]]:
        """Shared memory that each step is given; for those that need more than a group has, the
        bytes of each of their scratch buffers, which then lie in device memory."""
        shared, far = [], {}
        for n, step in enumerate(self.steps):
            program = step.program
            needed = program.shared
            if program.open:
                sizes = step.scratch
                if sizes is None:
                    raise ValueError(f"kernel {program.label} needs to be told its scratch sizes")
                names = [i for i, b in enumerate(program.kernel.buffers) if b.access == "scratch"]
                rounded = [(sizes[k] + 63) & -64 for k, i in enumerate(names) if i in program.open]
                if needed + sum(rounded) > self._runtime.shared_limit:
                    far[n] = rounded
                else:
                    needed += sum(rounded)
            program.take_shared(needed)
            shared.append(needed)
        return shared, far

    def _early_results(self) -> dict[int, int]:
        """Slots that one step alone writes, a few bytes, with that step's number."""
        if len(self.steps) <= _STEPS_AFTER:
            return {}
        writers: dict[int, list[tuple[int, int, int]]] = {}
        for n, step in enumerate(self.steps):
            sizes = step.nbytes or ()
            for i, buffer in enumerate(step.program.kernel.buffers[: len(sizes)]):
                place = step.buffers[i]
                if buffer.access != "read" and place is not None:
                    writers.setdefault(place[0], []).append((n, place[1], sizes[i]))
        alone = [(slot, *found[0]) for slot, found in writers.items() if len(found) == 1]
        last = len(self.steps) - _STEPS_AFTER
        marks = [(n, s) for s, n, at, size in alone if at == 0 and size <= EARLY and n < last]
        return {slot: n for n, slot in sorted(marks)[:_EARLY_RESULTS]}

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Start all steps, in order."""
        runtime = self._runtime
        runtime.activate()
        scratch: list[int] = []
        held: list[Memory] = []
        if self._scratch:
            scratch = self._place_scratch(values, held) if self._far else [*self._no_scratch]
        if self._workspace:  # vendors' kernels run one after the other: one for all
            held.append(runtime.allocate(self._workspace))
            scratch.append(held[-1].address)
        try:
            image = self._free.pop()
        except IndexError:
            image = self._build()
        self._pack(image.data, 0, *addresses, *scratch, *values)
        if len(self.steps) < _GRAPH_STEPS or not self._records or not self._replay(image):
            self._start(image)
        self._free.append(image)
        runtime.last = self
        runtime.last_number.value = 0
        runtime.early = {addresses[slot]: event for slot, event in self._events.items()}

    def _start(self, image: _Image, captured: bool = False) -> None:
        first = 0
        for slot, marked in self._marks.items():
            self._start_some(image, first, marked + 1)
            first = marked + 1
            if slot not in self._events:
                self._events[slot] = self._runtime.event()
            # of a captured event, others than the graph are to know
            flag = _EXTERNAL if captured else 0
            stream = self._runtime.stream
            driver.call("cuEventRecordWithFlags", self._events[slot], stream, flag)
        self._start_some(image, first, len(self.steps))

    def _start_some(self, image: _Image, first: int, end: int) -> None:
        runtime, given_back = self._runtime, False
        while first < end:
            failed = runtime.launch(
                *(runtime.launch_address, runtime.encode_address),
                *(image.records + first * 8 * len(layout.RECORD), end - first),
                *(image.slots, runtime.stream_id),
            )
            if not failed:
                return
            first += (failed >> 32) - 1
            step, code = self.steps[first], failed & 0xFFFFFFFF
            if isinstance(step.program, VendorProgram):
                self._by_vendor(image, step)  # which knows what to do, or what is wrong
                first += 1
                continue
            if code == driver.OUT_OF_MEMORY and not given_back and runtime.give_back():
                given_back = True
                continue
            what = f"launching kernel {step.program.label}"
            if code == layout.TOO_MANY:
                raise DeviceError(
                    f"cuda: {what}: it takes 2**31 blocks or more; use smaller pieces"
                )
            raise driver.failure(what, code)

    def _by_vendor(self, image: _Image, step: ProgramStep) -> None:
        words = image.words
        places = [place for place in step.buffers if place is not None]
        workspace = words[self.slots + len(self._scratch)] if self._workspace else 0
        step.program.launch([words[slot] + offset for slot, offset in places], workspace)

    def call_builder(
        self, values: Sequence[int | float], fixed: Sequence[tuple[int, int]], arena: int | None
    ) -> BytecodeBuilder | None:
        """The beginnings of a native call; as on the CPU."""
        runtime = self._runtime
        vm = runtime.call_vm()
        start = 0 if arena is None else (arena + 255) & -256
        nbytes = start + self._workspace
        large = nbytes > _SMALL_WORKSPACE
        if (
            vm is None
            or len(self.steps) > _NATIVE_STEPS
            or self._far
            or not self._all_native
            # graphs are told apart by what is in slots: a workspace by itself is in none
            or (large and arena is None)
        ):
            return None
        image = self._build(called=True)
        space = runtime.memory.workspace(nbytes) if nbytes and not large else None
        where = 0 if space is None else space.address
        scratch = [0] * len(self._scratch) + [where + start] * bool(self._workspace)
        self._pack(image.data, 0, *([0] * self.slots), *scratch, *values)
        if arena is not None:
            image.words[self.slots - 1] = where
        for slot, address in fixed:
            image.words[slot] = address
        head = {
            "launch": runtime.launch_address,
            "encode": runtime.encode_address,
            "records": image.records,
            "count": len(self.steps),
            "slots": image.slots,
            "stream": runtime.stream_id,
            "failed": ctypes.addressof(runtime.failed),
            "last": ctypes.addressof(runtime.last_number),
            "number": runtime.number(self),
            "width": self.slots,
            "driver": runtime.graph_functions if self._gains_by_graphs() else 0,
            "next": 0,
            "graphs": image.slot_address(image.graphs[0]),
        }
        for i, name in enumerate(graph_source.HEAD):
            ctypes.c_int64.from_address(image.header + 8 * i).value = head[name]
        small = max(MAX_RECYCLED_BYTES, runtime.target.memory_bytes >> _KEPT_SHARE)

        def make_space(code: BytecodeBuilder) -> None:
            memory = code.allocate(nbytes)
            code.store_address(self.slots - 1, memory, code.load_const(0), 1)
            if self._workspace:
                at = self.slots + len(self._scratch)
                code.store_address(at, memory, code.load_const(start), 1)

        keep, before = (self, space), make_space if large else None
        return BytecodeBuilder(
            *(vm, runtime.launcher, image, runtime.allocate, keep, small, before)
        )

    def _gains_by_graphs(self) -> bool:
        """Whether its launches take longer than that of a graph. A single kernel's does, too, but
        it can begin sooner after the one before: that is worth more where it runs for longer."""
        step, *others = self.steps
        if others or step.program.maps or isinstance(step.program, VendorProgram):
            return True
        moved = sum(step.nbytes or (self._runtime.target.l2_bytes,))
        return moved <= self._runtime.target.l2_bytes // _SHORT_SHARE

    def _place_scratch(self, values: Sequence[int | float], held: list[Memory]) -> list[int]:
        """Null for what lies in shared memory, else memory for every block of the grid."""
        grids, at = [], 0
        for step in self.steps:
            grids.append(int(values[at]))
            at += len(step.program.formats) + 1
        out = []
        for n, step in enumerate(self.steps):
            for k in range(len(step.program.open)):
                if n not in self._far:
                    out.append(0)
                    continue
                memory = self._runtime.allocate(grids[n] * self._far[n][k])
                held.append(memory)
                out.append(memory.address)
        return out

    def __del__(self) -> None:
        self._runtime.dropped += self._graphs.values()
        self._runtime.spare_events += self._events.values()

    # -- graphs -----------------------------------------------------------------------------------

    def _replay(self, image: _Image) -> bool:
        """Run by a graph if this very image came before; capture it when it comes a second time.

        Memory that is written anew at every step alternates between a few places, and so do images.
        """
        stream = self._runtime.stream
        key = bytes(memoryview(image.data)[: self._format.size])
        graph = self._graphs.get(key)
        if graph is None:
            if key not in self._seen:
                self._seen[key] = None
                if len(self._seen) > _GRAPHS:
                    self._seen.popitem(last=False)
                return False
            graph = self._captured(image)
            if graph is None:
                return False
            self._graphs[key] = graph
            if len(self._graphs) > _GRAPHS:
                _, oldest = self._graphs.popitem(last=False)
                driver.call("cuGraphExecDestroy", oldest)
        driver.call("cuGraphLaunch", graph, stream)
        return True

    def _captured(self, image: _Image) -> Any:
        """A graph of what an image starts. None where something in it cannot be recorded, as a
        launch of somebody else's may: it is not tried again, and what is wrong shows without."""
        runtime, captured = self._runtime, None
        mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
        try:
            driver.call("cuStreamBeginCapture", runtime.stream, mode)
            runtime.recording = True
            try:
                self._start(image, captured=True)
            finally:
                runtime.recording = False
                captured = driver.call("cuStreamEndCapture", runtime.stream)
            return driver.call("cuGraphInstantiate", captured, 0)
        except Exception:
            self._records = False
            return None
        finally:
            if captured is not None:
                driver.call("cuGraphDestroy", captured)

    # -- the image --------------------------------------------------------------------------------

    def _build(self, called: bool = False) -> _Image:
        """Changing values; a record per launch; places; buffer addresses; parameter pointers; what
        the copying engine is told; what vendors are asked. If it is `called` natively, what such a
        call hands on, and its graphs."""
        changing = self._format.size // 8
        records = changing
        counts = [s.program.buffers for s in self.steps]
        maps = [len(s.program.maps) for s in self.steps]
        places = records + len(self.steps) * len(layout.RECORD)
        buffers = places + 2 * sum(counts)
        parameters = buffers + sum(counts)
        tables = parameters + sum(
            c + len(s.program.formats) + m for c, s, m in zip(counts, self.steps, maps, strict=True)
        )
        vendors = tables + sum(maps) * (_MAP_WORDS + layout.TOLD_ALIGNMENT // 8)
        asked = [s for s in self.steps if isinstance(s.program, VendorProgram)]
        head = vendors + vendor_source.WORDS * len(asked)
        overlaps = head + (len(graph_source.HEAD) if called else 0)
        graphs = overlaps + layout.ATTRIBUTE_WORDS
        data = bytearray(8 * (graphs + (graph_source.words(self.slots) if called else 0)))
        kept = graph_source.entries(graphs, self.slots) if called else ()
        image = _Image(self._runtime, data, records, head, kept)
        words, base = image.words, image.slots
        words[overlaps : overlaps + len(layout.OVERLAPS)] = list(layout.OVERLAPS)

        def at(word: int) -> int:
            return base + 8 * word

        scratch = {key: self.slots + k for k, key in enumerate(self._scratch)}
        marked = set(self._marks.values())
        value = self.slots + len(self._scratch) + bool(self._workspace)
        for n, step in enumerate(self.steps):
            program = step.program
            record = records + n * len(layout.RECORD)
            vendor = 0
            if isinstance(program, VendorProgram) and program.native is not None:
                vendor, vendors = at(vendors), self._ask(image, vendors, step)
            words[record : record + len(layout.RECORD)] = [
                *(program.address, at(value), program.group, self._shared[n], at(parameters)),
                *(program.buffers, at(places), at(buffers), maps[n], at(tables), vendor),
                at(overlaps) if program.overlaps and n - 1 not in marked else 0,
            ]
            given: list[Any] = [*step.buffers, *([None] * program.buffers)][: program.buffers]
            for i, place in enumerate(given):
                slot, offset = (scratch.get((n, i), 0), 0) if place is None else place
                words[places], words[places + 1] = slot, offset
                places += 2
                if i not in program.fixed:
                    words[parameters] = at(buffers + i)
                    parameters += 1
            buffers += program.buffers
            for k in range(len(program.formats)):
                words[parameters] = at(value + 1 + k)
                parameters += 1
            entry, tables = tables, tables + maps[n] * len(layout.MAP)
            names = {slot: at(value + 1 + k) for k, (slot, _) in enumerate(program.kernel.scalars)}
            for source in program.maps:
                told, tables = _map(words, at, entry, tables, source, given[source.buffer], names)
                entry += len(layout.MAP)
                words[parameters] = told
                parameters += 1
            value += 1 + len(program.formats)
        return image

    def _ask(self, image: _Image, free: int, step: ProgramStep) -> int:
        """Lay out a vendor's launch in free words; gives the next free one."""
        places: list[Any] = list(step.buffers)
        if self._workspace:
            places.append((self.slots + len(self._scratch), 0))
        block = vendor_source.block(step.program.native, places)
        image.words[free : free + len(block)] = [_signed(x) for x in block]
        return free + vendor_source.WORDS


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


_MAP_WORDS = len(layout.MAP) + 3 + 2 + 2 * 2 + layout.NUMBERS * 4 + layout.TOLD_WORDS


def _map(
    words: Any,
    at: Callable[[int], int],
    entry: int,
    free: int,
    source: Any,
    place: Any,
    names: dict[str, int],
) -> tuple[int, int]:
    """Lay out what the engine is told of a matrix, with tables in free words; gives the address of
    what the driver makes of it, and the next free word."""
    told = free + (-at(free) % layout.TOLD_ALIGNMENT) // 8
    extents = told + layout.TOLD_WORDS
    strides, box, steps = extents + 3, extents + 5, extents + 7
    numbers, constants = extents + 9, extents + 9 + 3 * layout.NUMBERS
    free = constants + layout.NUMBERS
    wide, lines, matrices = source.box
    words[box], words[box + 1] = wide | lines << 32, matrices
    words[steps], words[steps + 1] = 1 | 1 << 32, 1
    factors = (1, 1, 1, source.itemsize, source.itemsize)
    for i, (number, factor) in enumerate(
        zip((*source.extents, *source.strides), factors, strict=True)
    ):
        if isinstance(number, int):
            words[constants + i] = number
        where = at(constants + i) if isinstance(number, int) else names[number]
        words[numbers + 3 * i : numbers + 3 * i + 3] = [where, factor, at(extents + i)]
    slot, offset = place
    kind = _TF32 if source.rounds else _KINDS[source.itemsize]
    words[entry : entry + len(layout.MAP)] = [
        *(slot, offset, at(told), kind, at(extents), at(strides), at(box), at(steps)),
        at(numbers),
    ]
    return at(told), free


# How the driver counts kinds of elements: bytes of so many, and float32 rounded on the way.
_KINDS, _TF32 = {1: 0, 2: 1, 4: 2}, 11
