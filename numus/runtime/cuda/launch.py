"""Command buffers of CUDA launches, replayed as CUDA graphs.

As on the CPU, a launch list is one block of memory: for every launch its function, parameters,
buffer references and scalars. A run writes the addresses and values that changed and makes one
native call for all launches, those of vendor libraries among them. A command buffer that recurs
with the same content is captured and replayed as a graph. Short lists can run from a fast call
(`runtime/pycall`), which keeps graphs of its own.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from numus.errors import DeviceError
from numus.runtime.contract import LaunchList, LaunchStep, Pairs, Values
from numus.runtime.cuda import driver, graph_source, hazards, vendor_source
from numus.runtime.cuda import launch_source as layout
from numus.runtime.cuda.context import CudaContext
from numus.runtime.cuda.graphs import GraphCache
from numus.runtime.cuda.loops import placed_by_run, repeat_ahead
from numus.runtime.cuda.program import VendorProgram
from numus.runtime.cuda.staging import MAX_EARLY_BYTES
from numus.runtime.pycall.builder import MAX_RECYCLED_BYTES, BytecodeBuilder

if TYPE_CHECKING:
    from numus.runtime.cuda.graphs import RunRecorder
    from numus.runtime.memory_pool import Memory


@dataclass(frozen=True)
class LaunchTuning:
    """Measured on one H200."""

    max_kept_workspace_bytes: int = 64 << 20  # of fast calls, for all together; else allocated
    min_graph_steps: int = 3  # shorter lists are as fast launched one by one
    max_call_steps: int = 16  # longer lists gain nothing from a fast call
    graphs: int = 8  # cached per launch list
    max_loop_launches: int = 2048  # of one graph of a loop's runs
    single_kernel_l2_share: int = 16  # one kernel that moves up to 1/16 of L2 is launch-bound
    # Percent of a multiprocessor's shared memory that kernels of a list ask for where some load
    # ahead of their wait: two run side by side only where both divide its memory alike.
    early_carveout: tuple[int, int] = (50, 100)  # the latter where one loads into that memory
    # Fast calls recycle results up to 2**-16 of the device's memory: a thousand are 1.5 % of it.
    recycled_memory_shift: int = 16
    # Small results that are ready long before the list ends (a loss, before its gradients) can be
    # read early: up to so many, if so many steps follow.
    max_early_results: int = 4
    min_steps_after_early: int = 16


TUNING = LaunchTuning()
_EXTERNAL_EVENT = 1  # CU_EVENT_RECORD_EXTERNAL: an event captured in a graph for others to see


class _CommandBuffer:
    """Memory that the native launch loop reads; used by one thread at a time. `graphs`: the words
    in which fast calls keep graphs."""

    __slots__ = ("context", "data", "graphs", "header", "records", "slots", "words")

    def __init__(
        self, context: CudaContext, data: bytearray, records: int, head: int, graphs: Sequence[int]
    ) -> None:
        self.context = context
        self.graphs = graphs
        self.data = data
        self.words = (ctypes.c_int64 * (len(data) // 8)).from_buffer(data)
        self.slots = ctypes.addressof(self.words)
        self.records = self.slot_address(records)
        self.header = self.slot_address(head)

    def slot_address(self, number: int) -> int:
        """The address of a word."""
        return self.slots + 8 * number

    def __del__(self) -> None:
        self.context.retired_graphs += [self.words[at] for at in self.graphs if self.words[at]]


class CudaLaunchList(LaunchList):
    """Kernels with slots for addresses and values that change from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid followed by its
    scalars, all in one flat sequence.
    """

    def __init__(self, context: CudaContext, steps: Sequence[LaunchStep], slots: int) -> None:
        self._context = context
        self._early_events: dict[int, Any] = {}  # by slot
        self.steps = tuple(steps)
        self.slots = slots
        self._scratch = [(n, i) for n, s in enumerate(steps) for i in s.program.dynamic_scratch]
        vendors = [s.program for s in steps if isinstance(s.program, VendorProgram)]
        self._workspace = max((program.launch.workspace for program in vendors), default=0)
        self._vendors_native = all(program.native is not None for program in vendors)
        formats = "".join("q" + s.program.formats for s in steps)
        # scratch addresses follow the caller's, values follow those
        addresses = slots + len(self._scratch) + bool(self._workspace)
        self._format = struct.Struct(f"={addresses}Q{formats}")
        self._pack = self._format.pack_into
        self._shared, self._global_scratch = self._place_scratch()
        if early := [step.program for step in steps if step.program.loads_early]:
            into_shared_memory = any(program.shared_bytes for program in early)
            for step in steps:
                step.program.prefer_carveout(TUNING.early_carveout[into_shared_memory])
        self._no_scratch = [0] * len(self._scratch)
        self._early_steps = self._find_early_results()
        self._free: list[_CommandBuffer] = []
        capturable = all(program.is_capturable for program in vendors)
        self._graphs = GraphCache(context, TUNING.graphs, capturable)

    def _place_scratch(self) -> tuple[list[int], dict[int, list[int]]]:
        """Dynamic shared memory of each step; for steps that need more than a block may have, the
        bytes of each scratch buffer, which is then in global memory."""
        shared, in_global = [], {}
        for n, step in enumerate(self.steps):
            program = step.program
            needed = program.shared_bytes
            if program.dynamic_scratch:
                sizes = step.scratch
                if sizes is None:
                    raise ValueError(f"kernel {program.label} needs its scratch sizes")
                scratch = [i for i, b in enumerate(program.kernel.buffers) if b.access == "scratch"]
                open_ = program.dynamic_scratch
                rounded = [(sizes[k] + 63) & -64 for k, i in enumerate(scratch) if i in open_]
                if needed + sum(rounded) > self._context.max_dynamic_shared:
                    in_global[n] = rounded
                else:
                    needed += sum(rounded)
            program.allow_shared(needed)
            shared.append(needed)
        return shared, in_global

    def _find_early_results(self) -> dict[int, int]:
        """Slots of a few bytes with a single writer, and that step's index."""
        if len(self.steps) <= TUNING.min_steps_after_early:
            return {}
        writers: dict[int, list[tuple[int, int, int]]] = {}
        for n, step in enumerate(self.steps):
            sizes = step.nbytes or ()
            for i, buffer in enumerate(step.program.kernel.buffers[: len(sizes)]):
                reference = step.buffers[i]
                if buffer.access != "read" and reference is not None:
                    writers.setdefault(reference[0], []).append((n, reference[1], sizes[i]))
        single = [(slot, *found[0]) for slot, found in writers.items() if len(found) == 1]
        last = len(self.steps) - TUNING.min_steps_after_early
        early = sorted(
            (n, slot)
            for slot, n, offset, size in single
            if offset == 0 and size <= MAX_EARLY_BYTES and n < last
        )
        return {slot: n for n, slot in early[: TUNING.max_early_results]}

    def run(self, addresses: Sequence[int], values: Values) -> None:
        """Launch all steps, in order."""
        context = self._context
        commands, temporaries = self._filled(addresses, values)
        if context.recording is not None and not self._graphs.capturable:
            context.recording.stop()
        if context.recording is not None:
            self._record(context.recording, commands)
            return
        graphs = len(self.steps) >= TUNING.min_graph_steps
        if not graphs or not self._graphs.replay(
            self._content(commands), functools.partial(self._launch, commands, captured=True)
        ):
            self._launch(commands)
        self._launched(commands, temporaries)
        events = self._early_events.items()
        context.early_results = {addresses[slot]: event for slot, event in events}

    def _filled(
        self, addresses: Sequence[int], values: Values
    ) -> tuple[_CommandBuffer, list[Memory]]:
        """A command buffer with these contents, and memory to be kept until it is launched."""
        context = self._context
        context.activate()
        scratch = list(self._no_scratch)
        temporaries: list[Memory] = []
        if self._global_scratch:
            scratch = self._allocate_scratch(values, temporaries)
        if self._workspace:  # shared by all vendor kernels: they run one after the other
            temporaries.append(context.allocate(self._workspace))
            scratch.append(temporaries[-1].address)
        try:
            commands = self._free.pop()
        except IndexError:
            commands = self._build()
        self._pack(commands.data, 0, *addresses, *scratch, *values)
        return commands, temporaries

    def _launched(self, commands: _CommandBuffer, temporaries: list[Memory]) -> None:
        """Contents are with the device, which frees memory in the order of its work."""
        temporaries.clear()
        self._free.append(commands)
        self._context.last_launched = self
        self._context.last_call.value = 0

    def _content(self, commands: _CommandBuffer) -> bytes:
        return bytes(memoryview(commands.data)[: self._format.size])

    def repeat(
        self, values: Values, addresses: list[int], count: int, steps: Pairs, swaps: Pairs,
        flag: Any, runtime: Any, ahead: bool = False,
    ) -> int:  # fmt: skip
        recorded = self._context.recording is not None
        if flag is None and not recorded:
            self._repeat_all(values, addresses, count, steps, swaps)
            return count
        if flag is None or not ahead or steps or recorded:
            return super().repeat(values, addresses, count, steps, swaps, flag, runtime)
        launch, slot = self.bind_values(values, ()), addresses.index(flag.address)
        done, more = repeat_ahead(self._context, launch, addresses, count, swaps, slot)
        if done == count:
            runtime.upload(flag, np.array([more]))
        return done

    def _repeat_all(
        self, values: Values, addresses: Sequence[int], count: int, steps: Pairs, swaps: Pairs
    ) -> None:
        """All runs of a loop with one command buffer, many of them in a graph."""
        context = self._context
        commands, temporaries = self._filled(addresses, values)
        place = placed_by_run(commands.words, addresses, steps, swaps)

        def launch(runs: range) -> None:
            for run in runs:
                place(run)
                self._launch_range(commands, 0, len(self.steps))

        most = max(1, TUNING.max_loop_launches // max(len(self.steps), 1))
        for start in range(0, count, most):
            runs = range(start, min(start + most, count))
            place(start)
            key = self._content(commands), len(runs), tuple(steps), tuple(swaps)
            graphs = len(runs) * len(self.steps) >= TUNING.min_graph_steps
            if not graphs or not self._graphs.replay(key, functools.partial(launch, runs)):
                launch(runs)
        self._launched(commands, temporaries)
        context.early_results = {}

    def _record(self, recording: RunRecorder, commands: _CommandBuffer) -> None:
        """Launch these contents later, as a part of a run that may become a graph."""

        def work() -> None:
            self._launch_range(commands, 0, len(self.steps))
            self._context.last_launched = self
            self._context.last_call.value = 0

        recording.add(
            (id(self), self._content(commands)), work, lambda: self._free.append(commands)
        )

    def _launch(self, commands: _CommandBuffer, captured: bool = False) -> None:
        first, context = 0, self._context
        for slot, step in self._early_steps.items():
            self._launch_range(commands, first, step + 1)
            first = step + 1
            if slot not in self._early_events:
                self._early_events[slot] = context.event()
            flag = _EXTERNAL_EVENT if captured else 0
            event = self._early_events[slot]
            driver.call("cuEventRecordWithFlags", event, context.stream, flag)
        self._launch_range(commands, first, len(self.steps))

    def _launch_range(self, commands: _CommandBuffer, first: int, end: int) -> None:
        context, reclaimed = self._context, False
        while first < end:
            failed = context.run_launches(
                *(context.launch_address, context.encode_address),
                *(commands.records + first * 8 * len(layout.RECORD), end - first),
                *(commands.slots, context.stream_id),
            )
            if not failed:
                return
            first += (failed >> 32) - 1
            step, code = self.steps[first], failed & 0xFFFFFFFF
            if isinstance(step.program, VendorProgram):
                words, buffers = commands.words, [r for r in step.buffers if r is not None]
                workspace = words[self.slots + len(self._scratch)] if self._workspace else 0
                step.program.launch([words[slot] + offset for slot, offset in buffers], workspace)
                context.written.forget()
                first += 1
                continue
            if code == driver.OUT_OF_MEMORY and not reclaimed and context.reclaim_memory():
                reclaimed = True
                continue
            doing = f"launching kernel {step.program.label}"
            if code == layout.GRID_TOO_LARGE:
                raise DeviceError(
                    f"cuda: {doing}: its grid must be below 2**31 blocks; use smaller tensors"
                )
            raise driver.error(doing, code)

    def call_builder(
        self, values: Values, fixed: Pairs, arena: int | None
    ) -> BytecodeBuilder | None:
        context = self._context
        vm = context.host.call_vm()
        start = 0 if arena is None else (arena + 255) & -256
        nbytes = start + self._workspace
        large = nbytes > TUNING.max_kept_workspace_bytes
        if (
            vm is None
            or len(self.steps) > TUNING.max_call_steps
            or self._global_scratch
            or not self._vendors_native
            # graphs are keyed by slots, and a workspace without an arena has none
            or (large and arena is None)
        ):
            return None
        commands = self._build(called=True)
        workspace = context.memory.workspace(nbytes) if nbytes and not large else None
        first = 0 if workspace is None else workspace.address
        scratch = [0] * len(self._scratch) + [first + start] * bool(self._workspace)
        self._pack(commands.data, 0, *([0] * self.slots), *scratch, *values)
        if arena is not None:
            commands.words[self.slots - 1] = first
        for slot, address in fixed:
            commands.words[slot] = address
        head = {
            **{"launch": context.launch_address, "encode": context.encode_address},
            **{"records": commands.records, "count": len(self.steps), "slots": commands.slots},
            **{"stream": context.stream_id, "failed": ctypes.addressof(context.launch_error)},
            **{"last": ctypes.addressof(context.last_call), "number": context.call_id(self)},
            **{"width": self.slots, "next": 0, "written": context.written.address},
            "driver": context.graph_functions if self._graphs_pay() else 0,
            "graphs": commands.slot_address(commands.graphs[0]),
        }
        for i, name in enumerate(graph_source.HEAD):
            ctypes.c_int64.from_address(commands.header + 8 * i).value = head[name]
        recycled = context.target.memory_bytes >> TUNING.recycled_memory_shift

        def allocate_workspace(code: BytecodeBuilder) -> None:
            memory = code.allocate(nbytes)
            code.store_address(self.slots - 1, memory, code.load_const(0), 1)
            if self._workspace:
                slot = self.slots + len(self._scratch)
                code.store_address(slot, memory, code.load_const(start), 1)

        return BytecodeBuilder(
            *(vm, context.launcher, commands, context.allocate, (self, workspace)),
            *(max(MAX_RECYCLED_BYTES, recycled), allocate_workspace if large else None),
        )

    def _graphs_pay(self) -> bool:
        """Whether a graph launches faster. A single kernel outside a graph can overlap the one
        before it (programmatic launch), which is worth more unless it is launch-bound."""
        step, *others = self.steps
        if others or step.program.tensor_maps or isinstance(step.program, VendorProgram):
            return True
        l2_bytes = self._context.target.l2_bytes
        return sum(step.nbytes or (l2_bytes,)) <= l2_bytes // TUNING.single_kernel_l2_share

    def _allocate_scratch(self, values: Values, temporaries: list[Memory]) -> list[int]:
        """Global memory for every block of the grid; 0 for scratch in shared memory."""
        out, at = [], 0
        for n, step in enumerate(self.steps):
            grid, at = int(values[at]), at + len(step.program.formats) + 1
            sizes = self._global_scratch.get(n)
            for k in range(len(step.program.dynamic_scratch)):
                if sizes is not None:
                    temporaries.append(self._context.allocate(grid * sizes[k]))
                out.append(0 if sizes is None else temporaries[-1].address)
        return out

    def __del__(self) -> None:
        self._context.free_events += self._early_events.values()

    # -- the command buffer -----------------------------------------------------------------------

    def _build(self, called: bool = False) -> _CommandBuffer:
        """Addresses and values; launch records; buffer references; buffer addresses; parameter
        pointers; tensor maps; vendor launches; for fast calls (`called`), header and graphs."""
        records = self._format.size // 8
        programs = [step.program for step in self.steps]
        references = records + len(programs) * len(layout.RECORD)
        num_buffers = sum(p.num_buffers for p in programs)
        num_maps = sum(len(p.tensor_maps) for p in programs)
        buffers = references + 2 * num_buffers
        parameters = buffers + num_buffers
        maps = parameters + num_buffers + sum(len(p.formats) for p in programs) + num_maps
        vendors = maps + num_maps * (_TENSOR_MAP_WORDS + layout.ENCODED_ALIGNMENT // 8)
        begins_alone, checks = hazards.tables(self._context.written, self.steps)
        hazard = vendors + vendor_source.WORDS * sum(isinstance(p, VendorProgram) for p in programs)
        head = hazard + sum(map(len, checks))
        attribute = head + (len(graph_source.HEAD) if called else 0)
        graphs = attribute + layout.ATTRIBUTE_WORDS
        data = bytearray(8 * (graphs + (graph_source.words(self.slots) if called else 0)))
        graph_words = graph_source.entries(graphs, self.slots) if called else ()
        commands = _CommandBuffer(self._context, data, records, head, graph_words)
        words, at = commands.words, commands.slot_address
        words[attribute : attribute + 2] = list(layout.PROGRAMMATIC_LAUNCH)
        scratch = {key: self.slots + k for k, key in enumerate(self._scratch)}
        early = set(self._early_steps.values())
        value = self.slots + len(self._scratch) + bool(self._workspace)
        for n, step in enumerate(self.steps):
            program = step.program
            record = records + n * len(layout.RECORD)
            vendor = 0
            if isinstance(program, VendorProgram) and program.native is not None:
                vendor, vendors = at(vendors), self._encode_vendor(commands, vendors, step)
            overlaps = program.programmatic_launch and n - 1 not in early
            overlaps = overlaps and not (n == 0 and begins_alone)
            words[record : record + len(layout.RECORD)] = [
                *(program.address, at(value), program.block_size, self._shared[n]),
                *(at(parameters), program.num_buffers, at(references), at(buffers)),
                *(len(program.tensor_maps), at(maps), vendor, at(attribute) if overlaps else 0),
                *(int(program.kernel.copies), at(hazard)),
            ]
            words[hazard : hazard + len(checks[n])] = checks[n]
            hazard += len(checks[n])
            given: list[Any] = [*step.buffers, *([None] * program.num_buffers)]
            for i, reference in enumerate(given[: program.num_buffers]):
                slot, offset = (scratch.get((n, i), 0), 0) if reference is None else reference
                words[references], words[references + 1] = slot, offset
                references += 2
                if i not in program.static_scratch:
                    words[parameters] = at(buffers + i)
                    parameters += 1
            buffers += program.num_buffers
            for k in range(len(program.formats)):
                words[parameters] = at(value + 1 + k)
                parameters += 1
            entry, maps = maps, maps + len(program.tensor_maps) * len(layout.TENSOR_MAP)
            slots = [slot for slot, _ in program.kernel.scalars]
            scalars = {slot: at(value + 1 + k) for k, slot in enumerate(slots)}
            for tensor in program.tensor_maps:
                tables = (entry, maps, given[tensor.buffer], scalars)
                words[parameters], maps = _tensor_map(commands, tensor, *tables)
                entry += len(layout.TENSOR_MAP)
                parameters += 1
            value += 1 + len(program.formats)
        return commands

    def _encode_vendor(self, commands: _CommandBuffer, free: int, step: LaunchStep) -> int:
        """Lay out a vendor launch in free words; gives the next free one."""
        references: list[Any] = list(step.buffers)
        if self._workspace:
            references.append((self.slots + len(self._scratch), 0))
        block = vendor_source.block(step.program.native, references)
        words: Any = [x - (1 << 64) if x >= 1 << 63 else x for x in block]
        commands.words[free : free + len(block)] = words
        return free + vendor_source.WORDS


# Extents, strides, box, steps and corners of a tensor map, in words.
_TABLES = (layout.MAX_RANK, layout.MAX_RANK - 1, 2, 3, 2, 2)
_TENSOR_MAP_WORDS = (
    len(layout.TENSOR_MAP) + sum(_TABLES) + 4 * layout.MAP_SIZES + layout.ENCODED_WORDS
)


def _tensor_map(
    commands: _CommandBuffer, tensor: Any, entry: int, free: int, ref: Any, scalars: dict[str, int]
) -> tuple[int, int]:
    """Lay out the description of a TMA tensor, with its tables in free words; gives the address of
    the encoded tensor map and the next free word."""
    words, at, context = commands.words, commands.slot_address, commands.context
    encoded = free + (-at(free) % layout.ENCODED_ALIGNMENT) // 8
    extents, strides, box, steps, lower, upper, sizes = itertools.accumulate(
        _TABLES, initial=encoded + layout.ENCODED_WORDS
    )
    constants = sizes + 3 * layout.MAP_SIZES
    corners, axes = tensor.corners, len(tensor.corners) // 2
    tables = {box: tensor.box, steps: tensor.steps, lower: corners[:axes], upper: corners[axes:]}
    for table, numbers in tables.items():
        for i, number in enumerate(numbers):
            ctypes.c_int32.from_address(at(table) + 4 * i).value = number
    targets = [*range(extents, strides)][: len(tensor.extents)]
    targets += [*range(strides, box)][: len(tensor.strides)]
    factors = [1] * len(tensor.extents) + [tensor.itemsize] * len(tensor.strides)
    lengths = (*tensor.extents, *tensor.strides)
    for i, (size, factor, to) in enumerate(zip(lengths, factors, targets, strict=True)):
        if isinstance(size, int):
            words[constants + i] = size
        source = at(constants + i) if isinstance(size, int) else scalars[size]
        words[sizes + 3 * i : sizes + 3 * i + 3] = [source, factor, at(to)]
    slot, offset = ref
    dtype = _TF32 if tensor.round_to_tf32 else _UINTS[tensor.itemsize]
    encoder = context.im2col_address if axes else 0
    words[entry : entry + len(layout.TENSOR_MAP)] = [
        *(slot, offset, at(encoded), dtype, at(extents), at(strides), at(box), at(steps)),
        *(at(sizes), _SWIZZLES[tensor.swizzle_bytes]),
        *(len(tensor.extents), len(lengths), encoder, at(lower), at(upper)),
    ]
    return at(encoded), constants + layout.MAP_SIZES


# CUtensorMapDataType: unsigned integers by bytes, and float32 rounded to TF32 by the copy.
_UINTS, _TF32 = {1: 0, 2: 1, 4: 2}, 11
_SWIZZLES = {64: 2, 128: 3}  # CUtensorMapSwizzle, by bytes of a row
