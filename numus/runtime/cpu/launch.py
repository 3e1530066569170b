"""Launches prepared once and run many times.

A program of several kernels is laid out in one piece of memory, the image: for every launch its
function, the places of its buffers and its scalars. Running it again means writing the addresses
and values that differ into the image and making one native call.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from numus.runtime.contract import LaunchFixed, ProgramStep, fixed_by_run
from numus.runtime.cpu import launch_source
from numus.runtime.cpu.thread_pool import Pool
from numus.runtime.pycall.vm import Calls, Table

if TYPE_CHECKING:
    from numus.runtime.cpu.memory import MemoryPool
    from numus.runtime.memory_pool import Memory

_UNBOUNDED = 1 << 30
_SMALL_WORKSPACE = 4 << 20  # what native calls keep for temporaries; more is worth an allocation
_THREADS = launch_source.IMAGE.index("threads")


class _Image:
    """Memory that `numus_run` reads; used by one thread at a time."""

    __slots__ = ("data", "head", "words")

    def __init__(self, data: bytearray, head: int) -> None:
        self.data = data
        self.words = (ctypes.c_int64 * (len(data) // 8)).from_buffer(data)
        self.head = ctypes.addressof(self.words) + 8 * head

    def word(self, number: int) -> int:
        """The address of one of its words."""
        return ctypes.addressof(self.words) + 8 * number


class _Images:
    """Images of one program that are ready to be used.

    Scratch memory lies in a slot, where the steps say so. Where it is `provided` by the runtime
    instead, the addresses of each step's buffers follow those of the slots, and with them how far
    apart the parts of two workers are; values follow all addresses.
    """

    def __init__(self, pool: Pool, steps: Sequence[ProgramStep], slots: int, threads: int) -> None:
        self._pool = pool
        self._steps = steps
        self._slots = slots
        self._threads = threads  # that may share its launches; 0: given for each run
        self._provided = provided = not threads
        words = sum(len(s.program.scratch) + 1 for s in steps if s.program.scratch)
        self.addresses = slots + (words if provided else 0)
        self.formats = "".join("q" + s.program.formats for s in steps)
        layout = struct.Struct(f"={self.addresses}Q{self.formats}")
        self.pack = layout.pack_into
        self._head = layout.size // 8
        self.threads_at = self._head + _THREADS
        self._free: list[_Image] = []
        self.give = self._free.append

    def take(self) -> _Image:
        try:
            return self._free.pop()
        except IndexError:
            return self.build()

    def _wave_sizes(self) -> list[int]:
        """For the first step of each wave how many there are in it; 1 for the others."""
        sizes = [1] * len(self._steps)
        first = 0
        for n, step in enumerate(self._steps):
            if step.joins:
                sizes[first] += 1
            else:
                first = n
        return sizes

    def build(self) -> _Image:
        """An image: changing values; the head; a record per launch; places; buffer addresses; 0."""
        head, steps = self._head, self._steps
        # a kernel finds after its buffers how far apart the scratch memory of two workers is
        counts = [s.program.buffers + bool(s.program.scratch) for s in steps]
        records = head + len(launch_source.IMAGE)
        places = records + len(steps) * len(launch_source.LAUNCH)
        buffers = places + 2 * sum(counts)
        zero = buffers + sum(counts)
        image = _Image(bytearray(8 * (zero + 1)), head)
        words, base = image.words, ctypes.addressof(image.words)

        def at(word: int) -> int:
            return base + 8 * word

        words[head : head + len(launch_source.IMAGE)] = [
            *(self._pool.address, at(records), len(steps), base, self._threads)
        ]
        parameters, own = self.addresses, self._slots
        together = self._wave_sizes()
        for n, (step, count) in enumerate(zip(steps, counts, strict=True)):
            program = step.program
            record = records + n * len(launch_source.LAUNCH)
            words[record : record + len(launch_source.LAUNCH)] = [
                *(program.address, at(buffers), at(places), count),
                *(at(parameters), together[n], 0, 0, launch_source.UNKNOWN),
            ]
            given: list[Any] = [*step.buffers, *([None] * count)][: program.buffers]
            if program.scratch:
                given.append((zero, step.pitch))
            if self._provided:
                for i in (*program.scratch, *([program.buffers] if program.scratch else ())):
                    given[i] = (own, 0)
                    own += 1
            for slot, offset in given:
                words[places], words[places + 1] = slot, offset
                places += 2
            buffers += count
            parameters += 1 + len(program.formats)
        return image


class Prepared:
    """A list of kernels with places for what changes from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid followed by its
    scalars, all in one flat sequence. It may be called from several threads at once.

    Where steps say where their scratch memory lies, that is for so many `workers`; otherwise, and
    for more of them, the runtime provides it.
    """

    def __init__(
        self,
        pool: Pool,
        memory: MemoryPool,
        steps: Sequence[ProgramStep],
        slots: int,
        workers: int,
        calls: Callable[[], Calls | None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._calls = calls
        self.steps = tuple(steps)
        self.slots = slots
        with_scratch = [s for s in steps if s.program.scratch]
        self._workers = workers if with_scratch else _UNBOUNDED  # that there is room for
        if not all(s.pitch for s in with_scratch):
            self._workers = 0
        self._images = _Images(pool, self.steps, slots, self._workers)
        self._native = pool.run

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Run all steps; returns when they are done."""
        if not self._pool.started:
            self._pool.start()
        if self._pool.threads > self._workers:
            self._run_with_scratch(addresses, values)
            return
        image = self._images.take()
        self._images.pack(image.data, 0, *addresses, *values)
        self._native(image.head)
        self._images.give(image)

    @functools.cached_property
    def _wide(self) -> _Images:
        """Images for any number of threads."""
        return _Images(self._pool, self.steps, self.slots, 0) if self._workers else self._images

    def fixed(self, values: Sequence[int | float], changing: Sequence[int]) -> LaunchFixed:
        """Images that hold the values already: a run writes addresses, and what changes."""
        by_run = fixed_by_run(self, values, changing)
        pool, native, workers = self._pool, self._native, self._workers
        images, free = self._images, list[tuple[bytearray, _Image, int]]()
        place = struct.Struct(f"={self.slots}Q").pack_into
        writers = [
            (struct.Struct(f"={images.formats[i]}").pack_into, 8 * (self.slots + i))
            for i in changing
        ]

        def build() -> tuple[bytearray, _Image, int]:
            image = images.build()
            images.pack(image.data, 0, *([0] * self.slots), *values)
            return image.data, image, image.head

        def launch(addresses: Sequence[int], changed: Sequence[int | float]) -> None:
            if not pool.started:
                pool.start()
            if pool.threads > workers:
                by_run(addresses, changed)
                return
            try:
                mine = free.pop()
            except IndexError:
                mine = build()
            data, _, head = mine
            place(data, 0, *addresses)
            for (write, at), value in zip(writers, changed, strict=True):
                write(data, at, value)
            native(head)
            free.append(mine)

        return launch

    @property
    def threads(self) -> int:
        """How many share a launch; native calls are made for a number of them."""
        return self._pool.threads

    def table(
        self, values: Sequence[int | float], fixed: Sequence[tuple[int, int]], arena: int | None
    ) -> Table | None:
        """The beginnings of a native call (see `calls`), None where there can be none: these values
        and addresses of slots stay. `arena` is how large the last slot's memory is, if that is for
        temporaries.
        """
        calls = self._calls()
        if calls is None:
            return None
        threads, images, pitch = self._pool.threads, self._images, 0
        start = 0 if arena is None else (arena + 63) & ~63
        if threads > self._workers:
            images, pitch = self._wide, self._pitch(values)
        nbytes = start + threads * pitch
        if nbytes > _SMALL_WORKSPACE:
            return None
        image = images.build()
        space = self._memory.workspace(nbytes) if nbytes else None
        first = 0 if space is None else space.address
        scratch = self._scratch_words(values, first + start, pitch) if pitch else []
        images.pack(image.data, 0, *([0] * self.slots), *scratch, *values)
        if arena is not None:
            image.words[self.slots - 1] = first
        if pitch:
            image.words[images.threads_at] = threads
        for slot, address in fixed:
            image.words[slot] = address
        return Table(calls, calls.on_pool(), image, self._memory.allocate, (self, space))

    def repeat(
        self,
        values: Sequence[int | float],
        addresses: Sequence[int],
        count: int,
        steps: Sequence[tuple[int, int]],
        swaps: Sequence[tuple[int, int]],
        flag: Memory | None,
    ) -> int:
        """Run up to `count` times in one native call; see `contract.repeat`."""
        if not self._pool.started:
            self._pool.start()
        threads, images = self._pool.threads, self._images
        held, scratch = None, list[int]()
        if threads > self._workers:
            images = self._wide
            held, scratch = self._own_scratch(values, threads)
        image = images.take()
        if scratch:
            image.words[images.threads_at] = threads
        images.pack(image.data, 0, *addresses, *scratch, *values)
        table = [word for pair in (*steps, *swaps) for word in pair]
        words = (ctypes.c_int64 * max(len(table), 1))(*table)
        done = self._pool.repeat(
            *(image.head, count, ctypes.addressof(words), len(steps), len(swaps)),
            None if flag is None else flag.address,
        )
        del held
        images.give(image)
        return done

    def _own_scratch(self, values: Sequence[int | float], threads: int) -> tuple[Memory, list[int]]:
        """Memory for the scratch buffers of a run, which the kernels use in turn, and its words."""
        pitch = self._pitch(values)
        block = self._memory.allocate(threads * pitch)
        return block, self._scratch_words(values, block.address, pitch)

    def _scratch_sizes(self, values: Sequence[int | float]) -> Iterator[list[int]]:
        """Of each step that has some, the bytes that a worker needs of each scratch buffer."""
        at = 0
        for step in self.steps:
            count = len(step.program.formats)
            if step.program.scratch:
                yield step.program.scratch_nbytes(values[at + 1 : at + 1 + count])
            at += count + 1

    def _pitch(self, values: Sequence[int | float]) -> int:
        """What a worker needs, of all steps."""
        return max(map(sum, self._scratch_sizes(values)))

    def _scratch_words(self, values: Sequence[int | float], address: int, pitch: int) -> list[int]:
        """For each step the addresses of its buffers, and the bytes between two workers."""
        words = []
        for sizes in self._scratch_sizes(values):
            words += [*itertools.accumulate(sizes[:-1], initial=address), pitch]
        return words

    def _run_with_scratch(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        threads, images = self._pool.threads, self._wide
        held, scratch = self._own_scratch(values, threads)
        image = images.take()
        image.words[images.threads_at] = threads
        images.pack(image.data, 0, *addresses, *scratch, *values)
        self._native(image.head)
        images.give(image)
        del held
