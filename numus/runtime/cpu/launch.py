"""Launches prepared once and run many times.

A program of several kernels is laid out in one piece of memory, the image: for every launch its
function, the places of its buffers and its scalars. Running it again means writing the addresses
and values that differ into the image and making one native call.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numus.runtime.contract import LaunchFixed, Step, fixed_by_run
from numus.runtime.cpu import pool_source
from numus.runtime.cpu.calls import Calls, Table
from numus.runtime.cpu.pool import Pool

if TYPE_CHECKING:
    from numus.runtime.cpu.memory import MemoryPool
    from numus.runtime.memory import Memory

_UNBOUNDED = 1 << 30
_SMALL_WORKSPACE = 4 << 20  # what native calls keep for temporaries; more is worth an allocation
_THREADS = pool_source.IMAGE.index("threads")


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


class Prepared:
    """A list of kernels with places for what changes from run to run.

    `run(addresses, values)` takes one address per slot, and for each step its grid followed by its
    scalars, all in one flat sequence. It may be called from several threads at once.
    """

    def __init__(
        self,
        pool: Pool,
        memory: MemoryPool,
        steps: Sequence[Step],
        slots: int,
        calls: Callable[[], Calls | None] = lambda: None,
    ) -> None:
        self._pool = pool
        self._memory = memory
        self._calls = calls
        self.steps = tuple(steps)
        self.slots = slots
        self._scratch = [
            (n, i, at) for n, s in enumerate(steps) for at, i in enumerate(s.program.scratch)
        ]
        formats = "".join("q" + s.program.formats for s in steps)
        # scratch addresses follow the caller's, values follow those
        self._format = struct.Struct(f"={slots + len(self._scratch)}Q{formats}")
        self._pack = self._format.pack_into
        self._native = pool.run
        self._areas = self._shared_scratch()
        self._free: list[_Image] = []

    def _shared_scratch(self) -> list[tuple[int, int]] | None:
        """Where each scratch buffer starts, in bytes per thread from the start of one block that
        the waves use in turn, and its size; None where a size depends on the run.
        """
        if any(s.scratch is None for s in self.steps):
            return None
        areas = []
        start = 0
        for step in self.steps:
            if not step.joins:
                start = 0
            for nbytes in step.scratch or ():
                size = (nbytes + 63) & ~63
                areas.append((start, size))
                start += size
        return areas

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Run all steps; returns when they are done."""
        if not self._pool.started:
            self._pool.start()
        if self._scratch:
            self._run_with_scratch(addresses, values)
            return
        try:
            image = self._free.pop()
        except IndexError:
            image = self._build()
        self._pack(image.data, 0, *addresses, *values)
        self._native(image.head)
        self._free.append(image)

    def fixed(self, values: Sequence[int | float], changing: Sequence[int]) -> LaunchFixed:
        """Images that hold the values already: a run writes addresses, and what changes."""
        if self._scratch and self._areas is None:
            return fixed_by_run(self, values, changing)
        pool, native, free = self._pool, self._native, list[tuple[bytearray, _Image, int]]()
        count = self.slots + len(self._scratch)
        formats = "".join("q" + s.program.formats for s in self.steps)
        place = struct.Struct(f"={count}Q").pack_into
        writers = [(struct.Struct(f"={formats[i]}").pack_into, 8 * (count + i)) for i in changing]
        starts = [start for start, _ in self._areas or ()]
        per_thread = max((a + b for a, b in self._areas or ()), default=0)
        threads_at = self._format.size // 8 + _THREADS
        plain = not starts and not writers

        def build() -> tuple[bytearray, _Image, int]:
            image = self._build()
            self._pack(image.data, 0, *([0] * count), *values)
            return image.data, image, image.head

        def launch(addresses: Sequence[int], changed: Sequence[int | float]) -> None:
            if not pool.started:
                pool.start()
            try:
                mine = free.pop()
            except IndexError:
                mine = build()
            data, image, head = mine
            if plain:
                place(data, 0, *addresses)
                native(head)
                free.append(mine)
                return
            if starts:
                threads = pool.threads
                block = self._memory.allocate(threads * per_thread)
                first = block.address
                image.words[threads_at] = threads
                place(data, 0, *addresses, *[first + threads * s for s in starts])
            else:
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
        if calls is None or self._areas is None:
            return None
        threads = self._pool.threads
        per_thread = max((a + b for a, b in self._areas), default=0)
        start = 0 if arena is None else (arena + 63) & ~63
        nbytes = start + threads * per_thread
        if nbytes > _SMALL_WORKSPACE:
            return None
        image = self._build()
        space = self._memory.workspace(nbytes) if nbytes else None
        first = 0 if space is None else space.address
        scratch = [first + start + threads * at for at, _ in self._areas]
        self._pack(image.data, 0, *([0] * self.slots), *scratch, *values)
        if arena is not None:
            image.words[self.slots - 1] = first
        for slot, address in fixed:
            image.words[slot] = address
        image.words[self._format.size // 8 + _THREADS] = threads
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
        try:
            image = self._free.pop()
        except IndexError:
            image = self._build()
        threads = self._pool.threads
        held, scratch = self._own_scratch(values, threads)
        image.words[self._format.size // 8 + _THREADS] = threads if scratch else _UNBOUNDED
        self._pack(image.data, 0, *addresses, *scratch, *values)
        table = [word for pair in (*steps, *swaps) for word in pair]
        words = (ctypes.c_int64 * max(len(table), 1))(*table)
        done = self._pool.repeat(
            *(image.head, count, ctypes.addressof(words), len(steps), len(swaps)),
            None if flag is None else flag.address,
        )
        del held
        self._free.append(image)
        return done

    def _own_scratch(
        self, values: Sequence[int | float], threads: int
    ) -> tuple[list[Memory], list[int]]:
        """Memory for the scratch buffers of a run, and where each of them starts."""
        if not self._scratch:
            return [], []
        if self._areas is not None:
            block = self._memory.allocate(threads * max(a + b for a, b in self._areas))
            return [block], [block.address + threads * start for start, _ in self._areas]
        at, sizes = 0, []
        for step in self.steps:
            count = len(step.program.formats)
            sizes.append(step.program.scratch_nbytes(values[at + 1 : at + 1 + count]))
            at += count + 1
        held = [self._memory.allocate(threads * sizes[n][k]) for n, _, k in self._scratch]
        return held, [m.address for m in held]

    def _run_with_scratch(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        threads = self._pool.threads
        held, scratch = self._own_scratch(values, threads)
        self._run_on(addresses, scratch, values, threads)
        del held

    def _run_on(
        self, addresses: Sequence[int], scratch: Sequence[int], values: Any, threads: int
    ) -> None:
        try:
            image = self._free.pop()
        except IndexError:
            image = self._build()
        image.words[self._format.size // 8 + _THREADS] = threads
        self._pack(image.data, 0, *addresses, *scratch, *values)
        self._native(image.head)
        self._free.append(image)

    def _wave_sizes(self) -> list[int]:
        """For the first step of each wave how many there are in it; 1 for the others."""
        sizes = [1] * len(self.steps)
        first = 0
        for n, step in enumerate(self.steps):
            if step.joins:
                sizes[first] += 1
            else:
                first = n
        return sizes

    def _build(self) -> _Image:
        """An image: changing values; the head; a record per launch; places; buffer addresses."""
        changing = self._format.size // 8
        head = changing
        records = head + len(pool_source.IMAGE)
        places = records + len(self.steps) * len(pool_source.LAUNCH)
        buffers = places + 2 * sum(s.program.buffers for s in self.steps)
        end = buffers + sum(s.program.buffers for s in self.steps)
        image = _Image(bytearray(8 * end), head)
        words, base = image.words, ctypes.addressof(image.words)

        def at(word: int) -> int:
            return base + 8 * word

        words[head : head + len(pool_source.IMAGE)] = [
            *(self._pool.address, at(records), len(self.steps), base, _UNBOUNDED)
        ]
        scratch = {(n, i): self.slots + k for k, (n, i, _) in enumerate(self._scratch)}
        parameters = self.slots + len(self._scratch)
        together = self._wave_sizes()
        for n, step in enumerate(self.steps):
            program = step.program
            record = records + n * len(pool_source.LAUNCH)
            words[record : record + len(pool_source.LAUNCH)] = [
                *(program.address, at(buffers), at(places), program.buffers),
                *(at(parameters), together[n], 0, 0, pool_source.UNKNOWN),
            ]
            given: list[Any] = [*step.buffers, *([None] * program.buffers)][: program.buffers]
            for i, place in enumerate(given):
                slot, offset = (scratch[n, i], 0) if place is None else place
                words[places], words[places + 1] = slot, offset
                places += 2
            buffers += program.buffers
            parameters += 1 + len(program.formats)
        return image
