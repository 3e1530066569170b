"""Launches prepared once and run many times.

As on the CPU, a program of several kernels is laid out in one piece of memory, the image: for every
launch its function, its parameters, the places of its buffers and its scalars. To run it again is
to write what differs and to make one native call, which goes through the launches, those of a
vendor's library among them. A program that comes again with the very same addresses and numbers is
replayed as a CUDA graph. A program of few kernels can be run from a native call of Python's
(`runtime/cpu/calls.py`).
"""

from __future__ import annotations

import ctypes
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numus.runtime.contract import Step
from numus.runtime.cpu.calls import Table
from numus.runtime.cuda import driver
from numus.runtime.cuda.program import VendorProgram

if TYPE_CHECKING:
    from numus.runtime.cuda.runtime import CudaRuntime
    from numus.runtime.memory import Memory

# Words of a launch in the image, in the order in which `SOURCE` reads them.
_RECORD = (
    *("function", "grid", "group", "shared", "parameters", "count", "places", "buffers"),
    *("map count", "maps", "vendor", "attributes"),
)
# A launch may begin while the one before it ends: kernels that let it wait by themselves for what
# came before. The driver's attribute for that: its number, and that it is allowed.
_OVERLAPS = (6, 1)
# Words of a vendor's launch: a function of so many words, these words, and which of them are
# addresses: the word, the slot, and an offset.
_ARGUMENTS = 16
_MOST_ADDRESSES = 5
_VENDOR = ("function", "arguments", "count", "addresses")
_VENDOR_WORDS = 1 + _ARGUMENTS + 1 + 3 * _MOST_ADDRESSES
_BY_PYTHON = 0xFFFFFFFF  # the code of a vendor's launch that the loop does not do
# Words that a native call of Python's hands on to the loop.
_HEAD = ("launch", "encode", "records", "count", "slots", "stream", "failed", "last", "number")
# Words of a matrix that the copying engine is told of, likewise. Its numbers, extents and strides
# in bytes, are products of a scalar and a factor.
_MAP = ("slot", "offset", "told", "kind", "extents", "strides", "box", "steps", "numbers")
_NUMBERS = 5
_TOLD_WORDS, _TOLD_ALIGNMENT = 16, 64  # what the driver makes of it
_ATTRIBUTE_WORDS = 9
_SMALL_WORKSPACE = 64 << 20  # what native calls keep for temporaries, all of them together
_GRAPH_STEPS = 3  # programs of fewer kernels are launched as quickly one by one
_GRAPHS = 4  # kept for each program

# Goes through the launches of an image; gives 0, or the number of the one that failed, from 1 on,
# in the upper half and the driver's code in the lower.
# A matrix that does not lie at a whole 16 bytes is not told of: kernels do without the engine then.
SOURCE = """
define i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count, ptr %slots,
    ptr %stream) {
entry:
  ; the driver's description of a launch: sizes of grid and group, shared memory, stream, attributes
  %config = alloca [7 x i64]
  store [7 x i64] [i64 4294967296, i64 1, i64 4294967297, i64 0, i64 0, i64 0, i64 0], ptr %config
  %c.group = getelementptr i32, ptr %config, i64 3
  %c.shared = getelementptr i32, ptr %config, i64 6
  %c.stream = getelementptr i64, ptr %config, i64 4
  %c.attributes = getelementptr i64, ptr %config, i64 5
  %c.count = getelementptr i64, ptr %config, i64 6
  store ptr %stream, ptr %c.stream
  br label %next
next:
  %n = phi i64 [ 0, %entry ], [ %m, %after ]
  %more = icmp ult i64 %n, %count
  br i1 %more, label %one, label %good
one:
  %r = getelementptr [12 x i64], ptr %records, i64 %n
  %function = load ptr, ptr %r
  %r1 = getelementptr i64, ptr %r, i64 1
  %grid.at = load ptr, ptr %r1
  %grid.wide = load i64, ptr %grid.at
  %grid = trunc i64 %grid.wide to i32
  %r2 = getelementptr i64, ptr %r, i64 2
  %group.wide = load i64, ptr %r2
  %group = trunc i64 %group.wide to i32
  %r3 = getelementptr i64, ptr %r, i64 3
  %shared.wide = load i64, ptr %r3
  %shared = trunc i64 %shared.wide to i32
  %r4 = getelementptr i64, ptr %r, i64 4
  %parameters = load ptr, ptr %r4
  %r5 = getelementptr i64, ptr %r, i64 5
  %buffer.count = load i64, ptr %r5
  %r6 = getelementptr i64, ptr %r, i64 6
  %places = load ptr, ptr %r6
  %r7 = getelementptr i64, ptr %r, i64 7
  %buffers = load ptr, ptr %r7
  %r8 = getelementptr i64, ptr %r, i64 8
  %map.count = load i64, ptr %r8
  %r9 = getelementptr i64, ptr %r, i64 9
  %maps = load ptr, ptr %r9
  %r10 = getelementptr i64, ptr %r, i64 10
  %vendor = load ptr, ptr %r10
  %own = icmp ne ptr %function, null
  br i1 %own, label %buffer, label %library
library:
  %no.way = icmp eq ptr %vendor, null
  br i1 %no.way, label %failed, label %ask
ask:
  %v.function = load ptr, ptr %vendor
  %v.arguments = getelementptr i64, ptr %vendor, i64 1
  %v.count.at = getelementptr i64, ptr %vendor, i64 17
  %v.count = load i64, ptr %v.count.at
  %v.table = getelementptr i64, ptr %vendor, i64 18
  br label %v.address
v.address:
  %v.i = phi i64 [ 0, %ask ], [ %v.next, %v.fill ]
  %v.odd = phi i64 [ 0, %ask ], [ %v.odd.next, %v.fill ]
  %v.more = icmp ult i64 %v.i, %v.count
  br i1 %v.more, label %v.fill, label %v.look
v.fill:
  %v0 = getelementptr [3 x i64], ptr %v.table, i64 %v.i
  %v.word = load i64, ptr %v0
  %v1 = getelementptr i64, ptr %v0, i64 1
  %v.slot = load i64, ptr %v1
  %v2 = getelementptr i64, ptr %v0, i64 2
  %v.offset = load i64, ptr %v2
  %v.at = getelementptr i64, ptr %slots, i64 %v.slot
  %v.base = load i64, ptr %v.at
  %v.where = add i64 %v.base, %v.offset
  %v.to = getelementptr i64, ptr %v.arguments, i64 %v.word
  store i64 %v.where, ptr %v.to
  %v.odd.next = or i64 %v.odd, %v.where
  %v.next = add i64 %v.i, 1
  br label %v.address
v.look:
  ; the algorithm is for memory at whole 16 bytes
  %v.rest = and i64 %v.odd, 15
  %v.whole = icmp eq i64 %v.rest, 0
  br i1 %v.whole, label %v.go, label %failed
v.go:
@LOAD@
  %v.code = call i32 %v.function(@ARGUMENTS@)
  %v.bad = icmp ne i32 %v.code, 0
  br i1 %v.bad, label %failed, label %after
buffer:
  %b = phi i64 [ 0, %one ], [ %b.next, %fill ]
  %b.more = icmp ult i64 %b, %buffer.count
  br i1 %b.more, label %fill, label %map
fill:
  %place = getelementptr [2 x i64], ptr %places, i64 %b
  %slot = load i64, ptr %place
  %offset.at = getelementptr i64, ptr %place, i64 1
  %offset = load i64, ptr %offset.at
  %address.at = getelementptr i64, ptr %slots, i64 %slot
  %base = load i64, ptr %address.at
  %address = add i64 %base, %offset
  %to = getelementptr i64, ptr %buffers, i64 %b
  store i64 %address, ptr %to
  %b.next = add i64 %b, 1
  br label %buffer
map:
  %j = phi i64 [ 0, %buffer ], [ %j.next, %told ]
  %j.more = icmp ult i64 %j, %map.count
  br i1 %j.more, label %tell, label %start
tell:
  %m0 = getelementptr [9 x i64], ptr %maps, i64 %j
  %m.slot = load i64, ptr %m0
  %m1 = getelementptr i64, ptr %m0, i64 1
  %m.offset = load i64, ptr %m1
  %m2 = getelementptr i64, ptr %m0, i64 2
  %m.told = load ptr, ptr %m2
  %m3 = getelementptr i64, ptr %m0, i64 3
  %m.kind.wide = load i64, ptr %m3
  %m.kind = trunc i64 %m.kind.wide to i32
  %m4 = getelementptr i64, ptr %m0, i64 4
  %m.extents = load ptr, ptr %m4
  %m5 = getelementptr i64, ptr %m0, i64 5
  %m.strides = load ptr, ptr %m5
  %m6 = getelementptr i64, ptr %m0, i64 6
  %m.box = load ptr, ptr %m6
  %m7 = getelementptr i64, ptr %m0, i64 7
  %m.steps = load ptr, ptr %m7
  %m8 = getelementptr i64, ptr %m0, i64 8
  %m.numbers = load ptr, ptr %m8
  %m.at = getelementptr i64, ptr %slots, i64 %m.slot
  %m.base = load i64, ptr %m.at
  %m.address = add i64 %m.base, %m.offset
  %m.odd = and i64 %m.address, 15
  %m.whole = icmp eq i64 %m.odd, 0
  br i1 %m.whole, label %number, label %told
number:
  %d = phi i64 [ 0, %tell ], [ %d.next, %number ]
  %d0 = getelementptr [3 x i64], ptr %m.numbers, i64 %d
  %d.from = load ptr, ptr %d0
  %d1 = getelementptr i64, ptr %d0, i64 1
  %d.factor = load i64, ptr %d1
  %d2 = getelementptr i64, ptr %d0, i64 2
  %d.to = load ptr, ptr %d2
  %d.value = load i64, ptr %d.from
  %d.product = mul i64 %d.value, %d.factor
  store i64 %d.product, ptr %d.to
  %d.next = add i64 %d, 1
  %d.more = icmp ult i64 %d.next, 5
  br i1 %d.more, label %number, label %encode.now
encode.now:
  %m.pointer = inttoptr i64 %m.address to ptr
  %m.code = call i32 %encode(ptr %m.told, i32 %m.kind, i32 3, ptr %m.pointer, ptr %m.extents,
    ptr %m.strides, ptr %m.box, ptr %m.steps, i32 0, i32 3, i32 3, i32 0)
  %m.bad = icmp ne i32 %m.code, 0
  br i1 %m.bad, label %failed, label %told
told:
  %j.next = add i64 %j, 1
  br label %map
start:
  %none = icmp eq i32 %grid, 0
  br i1 %none, label %after, label %go
go:
  %r11 = getelementptr i64, ptr %r, i64 11
  %attributes = load ptr, ptr %r11
  %attributed = icmp ne ptr %attributes, null
  %attribute.count = zext i1 %attributed to i64
  store i32 %grid, ptr %config
  store i32 %group, ptr %c.group
  store i32 %shared, ptr %c.shared
  store ptr %attributes, ptr %c.attributes
  store i64 %attribute.count, ptr %c.count
  %code = call i32 %launch(ptr %config, ptr %function, ptr %parameters, ptr null)
  %bad = icmp ne i32 %code, 0
  br i1 %bad, label %failed, label %after
after:
  %m = add i64 %n, 1
  br label %next
failed:
  %error = phi i32 [ %m.code, %encode.now ], [ %code, %go ], [ -1, %library ], [ -1, %v.look ],
    [ -1, %v.go ]
  %step = add i64 %n, 1
  %high = shl i64 %step, 32
  %low = zext i32 %error to i64
  %both = or i64 %high, %low
  ret i64 %both
good:
  ret i64 0
}
define void @numus_cuda_call(ptr %head) {
@HEAD@
  %failure = call i64 @numus_cuda_run(ptr %launch, ptr %encode, ptr %records, i64 %count,
    ptr %slots, ptr %stream)
  store i64 %failure, ptr %failed
  store i64 %number, ptr %last
  ret void
}
"""
SYMBOLS = ("numus_cuda_run", "numus_cuda_call")


def _written_out(source: str) -> str:
    """The source with the lines in which every word is read."""
    words = range(_ARGUMENTS)
    load = [
        f"  %a{i}p = getelementptr i64, ptr %v.arguments, i64 {i}\n  %a{i} = load i64, ptr %a{i}p"
        for i in words
    ]
    head = [
        f"  %h{i} = getelementptr i64, ptr %head, i64 {i}\n"
        f"  %{name} = load {'i64' if name in ('count', 'number') else 'ptr'}, ptr %h{i}"
        for i, name in enumerate(_HEAD)
    ]
    arguments = ", ".join(f"i64 %a{i}" for i in words)
    for mark, text in (
        ("@LOAD@", "\n".join(load)),
        ("@ARGUMENTS@", arguments),
        ("@HEAD@", "\n".join(head)),
    ):
        source = source.replace(mark, text)
    return source


SOURCE = _written_out(SOURCE)


def launcher(address: int) -> Callable[..., int]:
    """The native function as Python calls it."""
    word = ctypes.c_void_p
    return ctypes.CFUNCTYPE(ctypes.c_int64, word, word, word, ctypes.c_int64, word, word)(address)


class _Image:
    """Memory that the native loop reads; used by one thread at a time."""

    __slots__ = ("data", "head", "records", "slots", "words")

    def __init__(self, data: bytearray, records: int, head: int) -> None:
        self.data = data
        self.words = (ctypes.c_int64 * (len(data) // 8)).from_buffer(data)
        self.slots = ctypes.addressof(self.words)
        self.records = self.slots + 8 * records
        self.head = self.slots + 8 * head

    def word(self, number: int) -> int:
        """The address of one of its words."""
        return self.slots + 8 * number


class Prepared:
    """A list of kernels with places for what changes from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid followed by its
    scalars, all in one flat sequence.
    """

    def __init__(self, runtime: CudaRuntime, steps: Sequence[Step], slots: int) -> None:
        self._runtime = runtime
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
        self._free: list[_Image] = []
        self._graphs: OrderedDict[bytes, Any] = OrderedDict()
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

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Start all steps, in order."""
        runtime = self._runtime
        runtime.activate()
        scratch: list[int] = []
        held: list[Memory] = []
        if self._scratch:
            scratch = self._place_scratch(values, held)
        if self._workspace:  # vendors' kernels run one after the other: one for all
            held.append(runtime.allocate(self._workspace))
            scratch.append(held[-1].address)
        try:
            image = self._free.pop()
        except IndexError:
            image = self._build()
        self._pack(image.data, 0, *addresses, *scratch, *values)
        if len(self.steps) < _GRAPH_STEPS or not self._replay(image):
            self._start(image)
        self._free.append(image)
        runtime.last = self
        runtime.last_number.value = 0

    def _start(self, image: _Image) -> None:
        runtime = self._runtime
        first = 0
        while first < len(self.steps):
            failed = runtime.launch(
                *(runtime.launch_address, runtime.encode_address),
                *(image.records + first * 8 * len(_RECORD), len(self.steps) - first),
                *(image.slots, runtime.stream_id),
            )
            if not failed:
                return
            step = self.steps[first + (failed >> 32) - 1]
            if not isinstance(step.program, VendorProgram):
                what = f"launching kernel {step.program.label}"
                raise driver.DriverError(what, failed & 0xFFFFFFFF)
            self._by_vendor(image, step)  # which knows what to do, or what is wrong
            first += failed >> 32

    def _by_vendor(self, image: _Image, step: Step) -> None:
        words = image.words
        places = [place for place in step.buffers if place is not None]
        workspace = words[self.slots + len(self._scratch)] if self._workspace else 0
        step.program.launch([words[slot] + offset for slot, offset in places], workspace)

    def table(
        self, values: Sequence[int | float], fixed: Sequence[tuple[int, int]], arena: int | None
    ) -> Table | None:
        """The beginnings of a native call; as on the CPU."""
        runtime = self._runtime
        calls = runtime.native_calls()
        start = 0 if arena is None else (arena + 255) & -256
        nbytes = start + self._workspace
        if (
            calls is None
            or len(self.steps) >= _GRAPH_STEPS
            or self._far
            or not self._all_native
            or nbytes > _SMALL_WORKSPACE
        ):
            return None
        image = self._build()
        space = runtime.memory.workspace(nbytes) if nbytes else None
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
        }
        for i, name in enumerate(_HEAD):
            ctypes.c_int64.from_address(image.head + 8 * i).value = head[name]
        return Table(calls, runtime.starter, image, runtime.allocate, (self, space))

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
            mode = driver.constant("CUstreamCaptureMode", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL")
            driver.call("cuStreamBeginCapture", stream, mode)
            try:
                self._start(image)
            finally:
                captured = driver.call("cuStreamEndCapture", stream)
            graph = driver.call("cuGraphInstantiate", captured, 0)
            driver.call("cuGraphDestroy", captured)
            self._graphs[key] = graph
            if len(self._graphs) > _GRAPHS:
                _, oldest = self._graphs.popitem(last=False)
                driver.call("cuGraphExecDestroy", oldest)
        driver.call("cuGraphLaunch", graph, stream)
        return True

    # -- the image --------------------------------------------------------------------------------

    def _build(self) -> _Image:
        """Changing values; a record per launch; places; buffer addresses; parameter pointers; what
        the copying engine is told."""
        changing = self._format.size // 8
        records = changing
        counts = [s.program.buffers for s in self.steps]
        maps = [len(s.program.maps) for s in self.steps]
        places = records + len(self.steps) * len(_RECORD)
        buffers = places + 2 * sum(counts)
        parameters = buffers + sum(counts)
        tables = parameters + sum(
            c + len(s.program.formats) + m for c, s, m in zip(counts, self.steps, maps, strict=True)
        )
        vendors = tables + sum(maps) * (_MAP_WORDS + _TOLD_ALIGNMENT // 8)
        asked = [s for s in self.steps if isinstance(s.program, VendorProgram)]
        head = vendors + _VENDOR_WORDS * len(asked)
        overlaps = head + len(_HEAD)
        image = _Image(bytearray(8 * (overlaps + _ATTRIBUTE_WORDS)), records, head)
        words, base = image.words, image.slots
        words[overlaps : overlaps + len(_OVERLAPS)] = list(_OVERLAPS)

        def at(word: int) -> int:
            return base + 8 * word

        scratch = {key: self.slots + k for k, key in enumerate(self._scratch)}
        value = self.slots + len(self._scratch) + bool(self._workspace)
        for n, step in enumerate(self.steps):
            program = step.program
            record = records + n * len(_RECORD)
            vendor = 0
            if isinstance(program, VendorProgram) and program.native is not None:
                vendor, vendors = at(vendors), self._ask(words, vendors, step)
            words[record : record + len(_RECORD)] = [
                *(program.address, at(value), program.group, self._shared[n], at(parameters)),
                *(program.buffers, at(places), at(buffers), maps[n], at(tables), vendor),
                at(overlaps) if program.overlaps else 0,
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
            entry, tables = tables, tables + maps[n] * len(_MAP)
            names = {slot: at(value + 1 + k) for k, (slot, _) in enumerate(program.kernel.scalars)}
            for source in program.maps:
                told, tables = _map(words, at, entry, tables, source, given[source.buffer], names)
                entry += len(_MAP)
                words[parameters] = told
                parameters += 1
            value += 1 + len(program.formats)
        return image

    def _ask(self, words: Any, free: int, step: Step) -> int:
        """Lay out a vendor's launch in free words; gives the next free one."""
        native = step.program.native
        places = list(step.buffers)
        if self._workspace:  # where there is none, its address stays as it is
            places.append((self.slots + len(self._scratch), 0))
        known = [a for a in native.addresses if a[1] < len(places)]
        addresses = []
        for word, operand, offset in known:
            slot, more = places[operand]
            addresses += [word, slot, offset + more]
        block = [native.function, *native.arguments, len(known), *addresses]
        words[free : free + len(block)] = [_signed(x) for x in block]
        return free + _VENDOR_WORDS


def _signed(word: int) -> int:
    return word - (1 << 64) if word >= 1 << 63 else word


_MAP_WORDS = len(_MAP) + 3 + 2 + 2 * 2 + _NUMBERS * 4 + _TOLD_WORDS


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
    told = free + (-at(free) % _TOLD_ALIGNMENT) // 8
    extents = told + _TOLD_WORDS
    strides, box, steps = extents + 3, extents + 5, extents + 7
    numbers, constants = extents + 9, extents + 9 + 3 * _NUMBERS
    free = constants + _NUMBERS
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
    words[entry : entry + len(_MAP)] = [
        *(slot, offset, at(told), kind, at(extents), at(strides), at(box), at(steps)),
        at(numbers),
    ]
    return at(told), free


# How the driver counts kinds of elements: bytes of so many, and float32 rounded on the way.
_KINDS, _TF32 = {1: 0, 2: 1, 4: 2}, 11
