"""Command buffers: launch lists encoded once and submitted many times.

A program of several kernels is one block of memory: for every launch its function, buffer
references and scalars. A run writes the addresses and values that changed and makes one native
call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from numus.runtime.contract import BoundLaunch, LaunchList, LaunchStep, Pairs, Values
from numus.runtime.cpu import launch_source
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.cpu.thread_pool_source import POOL
from numus.runtime.pycall.builder import BytecodeBuilder
from numus.runtime.pycall.vm import CallVM, Launcher

if TYPE_CHECKING:
    from numus.runtime.cpu.memory import MemoryPool
    from numus.runtime.memory_pool import Memory

_ANY_WORKERS = 1 << 30
_MAX_CALL_WORKSPACE_BYTES = 4 << 20  # kept per fast call; larger ones are worth an allocation
_THREADS = launch_source.HEADER.index("threads")


class _CommandBuffer:
    """Memory that `numus_run` reads; used by one thread at a time."""

    __slots__ = ("data", "header", "words")

    def __init__(self, data: bytearray, header: int) -> None:
        self.data = data
        self.words = (ctypes.c_int64 * (len(data) // 8)).from_buffer(data)
        self.header = self.slot_address(header)

    def slot_address(self, number: int) -> int:
        return ctypes.addressof(self.words) + 8 * number


class _CommandBuffers:
    """Free command buffers of one program.

    Scratch memory lies in a slot where the steps say so (`threads` > 0). Otherwise the runtime
    provides it: the addresses of each step's scratch buffers follow those of the slots, and with
    them the bytes between two workers. Values follow all addresses.
    """

    def __init__(self, pool: Pool, steps: Sequence[LaunchStep], slots: int, threads: int) -> None:
        self._pool = pool
        self._steps = steps
        self._slots = slots
        self._threads = threads  # upper bound; 0: set for each run
        words = sum(len(s.program.scratch) + 1 for s in steps if s.program.scratch)
        self.addresses = slots + (0 if threads else words)
        self.formats = "".join("q" + s.program.formats for s in steps)
        layout = struct.Struct(f"={self.addresses}Q{self.formats}")
        self.pack = layout.pack_into
        self._header = layout.size // 8
        self.threads_at = self._header + _THREADS
        self._free: list[_CommandBuffer] = []
        self.release = self._free.append

    def acquire(self) -> _CommandBuffer:
        try:
            return self._free.pop()
        except IndexError:
            return self.build()

    def _wave_sizes(self) -> list[int]:
        """The number of steps in a wave, at its first step; 1 at the others."""
        sizes = [1] * len(self._steps)
        first = 0
        for n, step in enumerate(self._steps):
            if step.concurrent:
                sizes[first] += 1
            else:
                first = n
        return sizes

    def build(self) -> _CommandBuffer:
        """Addresses and values, header, launches, buffer references, buffer addresses, 0."""
        header, steps = self._header, self._steps
        # a kernel finds the bytes between two workers' scratch behind its buffers
        counts = [s.program.buffers + bool(s.program.scratch) for s in steps]
        launches = header + len(launch_source.HEADER)
        refs = launches + len(steps) * len(launch_source.LAUNCH)
        buffers = refs + 2 * sum(counts)
        zero = buffers + sum(counts)
        commands = _CommandBuffer(bytearray(8 * (zero + 1)), header)
        words, at = commands.words, commands.slot_address
        words[header:launches] = [
            *(self._pool.address, at(launches), len(steps), at(0), self._threads)
        ]
        parameters, own = self.addresses, self._slots
        wave_sizes = self._wave_sizes()
        base = at(0)
        launch_words: list[Any] = []
        ref_words: list[Any] = []  # in lists: setting words one by one takes longer
        for n, (step, count) in enumerate(zip(steps, counts, strict=True)):
            program = step.program
            launch_words += (
                *(program.address, base + 8 * buffers, base + 8 * refs, count),
                *(base + 8 * parameters, wave_sizes[n], 0, 0, launch_source.UNKNOWN_TICKS),
            )
            given: list[Any] = [*step.buffers, *([None] * count)][: program.buffers]
            if program.scratch:
                at_slot = step.pitch_slot
                given.append((zero, step.scratch_pitch) if at_slot is None else (at_slot, 0))
                if not self._threads:
                    for i in (*program.scratch, program.buffers):
                        given[i] = (own, 0)
                        own += 1
            for pair in given:
                ref_words += pair
            refs += 2 * count
            buffers += count
            parameters += 1 + len(program.formats)
        words[launches : launches + len(launch_words)] = launch_words
        words[refs - len(ref_words) : refs] = ref_words
        return commands


class CpuLaunchList(LaunchList):
    """A launch list whose buffers and scalars change from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid and scalars, in
    one flat sequence. Thread-safe.

    Scratch memory in slots is for `workers` threads; for more of them, and where steps have none,
    the runtime provides it.
    """

    def __init__(
        self,
        pool: Pool,
        memory: MemoryPool,
        steps: Sequence[LaunchStep],
        slots: int,
        workers: int,
        call_vm: Callable[[], CallVM | None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._call_vm = call_vm
        self.steps = tuple(steps)
        self.slots = slots
        with_scratch = [s for s in steps if s.program.scratch]
        self._workers = workers if with_scratch else _ANY_WORKERS
        if not all(s.scratch_pitch or s.pitch_slot is not None for s in with_scratch):
            self._workers = 0
        self._buffers = _CommandBuffers(pool, self.steps, slots, self._workers)
        self._submit = pool.run

    def run(self, addresses: Sequence[int], values: Values) -> None:
        """Run all steps; returns when they are done."""
        buffers, commands, memory = self._fill(addresses, values)
        self._submit(commands.header)
        buffers.release(commands)
        del memory

    def _fill(
        self, addresses: Sequence[int], values: Values
    ) -> tuple[_CommandBuffers, _CommandBuffer, Memory | None]:
        """A command buffer with these addresses and values, and its scratch memory, if any: it is
        reused by one kernel after the other."""
        if not self._pool.started:
            self._pool.start()
        threads, buffers = self._pool.threads, self._buffers
        memory, scratch = None, list[int]()
        if threads > self._workers:
            buffers, pitch = self._any_threads, self._pitch(values)
            memory = self._memory.allocate(threads * pitch)
            scratch = self._scratch_words(values, memory.address, pitch)
        commands = buffers.acquire()
        if memory is not None:
            commands.words[buffers.threads_at] = threads
        buffers.pack(commands.data, 0, *addresses, *scratch, *values)
        return buffers, commands, memory

    @functools.cached_property
    def _any_threads(self) -> _CommandBuffers:
        """Command buffers for any number of threads."""
        if not self._workers:
            return self._buffers
        return _CommandBuffers(self._pool, self.steps, self.slots, 0)

    def bind_values(self, values: Values, changing: Sequence[int]) -> BoundLaunch:
        """Command buffers that hold the values: a run writes addresses, and what changes."""
        by_run = super().bind_values(values, changing)
        pool, submit, workers = self._pool, self._submit, self._workers
        buffers, free = self._buffers, list[tuple[bytearray, _CommandBuffer, int]]()
        pack_addresses = struct.Struct(f"={self.slots}Q").pack_into
        writers = [
            (struct.Struct(f"={buffers.formats[i]}").pack_into, 8 * (self.slots + i))
            for i in changing
        ]

        def build() -> tuple[bytearray, _CommandBuffer, int]:
            commands = buffers.build()
            buffers.pack(commands.data, 0, *([0] * self.slots), *values)
            return commands.data, commands, commands.header

        def launch(addresses: Sequence[int], changed: Values) -> None:
            if not pool.started:
                pool.start()
            if pool.threads > workers:
                by_run(addresses, changed)
                return
            try:
                mine = free.pop()
            except IndexError:
                mine = build()
            data, _, header = mine
            pack_addresses(data, 0, *addresses)
            for (write, at), value in zip(writers, changed, strict=True):
                write(data, at, value)
            submit(header)
            free.append(mine)

        return launch

    @property
    def threads(self) -> int:
        """The thread count that fast calls are specialised to."""
        return self._pool.threads

    def call_builder(
        self, values: Values, fixed: Pairs, arena: int | None
    ) -> BytecodeBuilder | None:
        vm = self._call_vm()
        if vm is None:
            return None
        pool = self._pool
        threads, buffers, pitch = pool.threads, self._buffers, 0
        start = 0 if arena is None else (arena + 63) & ~63
        if threads > self._workers:
            buffers, pitch = self._any_threads, self._pitch(values)
        nbytes = start + threads * pitch
        if nbytes > _MAX_CALL_WORKSPACE_BYTES:
            return None
        commands = buffers.build()
        space = self._memory.workspace(nbytes) if nbytes else None
        first = 0 if space is None else space.address
        scratch = self._scratch_words(values, first + start, pitch) if pitch else []
        buffers.pack(commands.data, 0, *([0] * self.slots), *scratch, *values)
        if arena is not None:
            commands.words[self.slots - 1] = first
        if pitch:
            commands.words[buffers.threads_at] = threads
        for slot, address in fixed:
            commands.words[slot] = address
        state = pool.address + 8 * POOL["started"]
        launcher = Launcher(pool.run_address, state, threads, ctypes.addressof(_NO_ERROR))
        return BytecodeBuilder(vm, launcher, commands, self._memory.allocate, (self, space))

    def repeat(
        self,
        values: Values,
        addresses: Sequence[int],
        count: int,
        steps: Pairs,
        swaps: Pairs,
        flag: Memory | None,
        runtime: Any = None,
        ahead: bool = False,
    ) -> int:
        """All runs in one native call."""
        buffers, commands, memory = self._fill(addresses, values)
        pairs = [word for pair in (*steps, *swaps) for word in pair]
        words = (ctypes.c_int64 * max(len(pairs), 1))(*pairs)
        done = self._pool.repeat(
            *(commands.header, count, ctypes.addressof(words), len(steps), len(swaps)),
            None if flag is None else flag.address,
        )
        buffers.release(commands)
        del memory
        return done

    def _scratch_sizes(self, values: Values) -> Iterator[list[int]]:
        """Bytes per worker of each scratch buffer, for each step that has some."""
        at = 0
        for step in self.steps:
            count = len(step.program.formats)
            if step.program.scratch:
                yield step.program.scratch_nbytes(values[at + 1 : at + 1 + count])
            at += count + 1

    def _pitch(self, values: Values) -> int:
        """Bytes per worker, for the step that needs most."""
        return max(map(sum, self._scratch_sizes(values)))

    def _scratch_words(self, values: Values, address: int, pitch: int) -> list[int]:
        """For each step the addresses of its buffers, and the bytes between two workers."""
        words = []
        for sizes in self._scratch_sizes(values):
            words += [*itertools.accumulate(sizes[:-1], initial=address), pitch]
        return words


_NO_ERROR = ctypes.c_int64(0)  # CPU launches do not fail
