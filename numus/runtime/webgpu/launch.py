"""Launches prepared once and run many times.

Running means one encoder, filled and handed over. What a step needs (its pipeline, its numbers on
the GPU, a bind group for the buffers it is given) is kept between runs and made again only where
sizes or buffers are others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from numus.runtime.contract import ProgramStep
from numus.runtime.webgpu.context import lost
from numus.runtime.webgpu.encoding import recorder
from numus.runtime.webgpu.memory import SHIFT, Memory
from numus.runtime.webgpu.programs import Pipeline, Windows, pack, repack

if TYPE_CHECKING:
    from numus.runtime.webgpu.runtime import WebGpuRuntime

_OFFSET = (1 << SHIFT) - 1
_ALIGNMENT = 256  # of the numbers of a step, and of parts of buffers that are bound
_SCRATCH = 64 << 20  # bytes of scratch that one launch takes, where fewer workers can do
_MOST_GROUPS = 64  # bind groups that a step keeps
_MOST_KNOWN = 16  # sets of memory whose dispatches a program keeps

Block = tuple[Memory, int]  # memory and an offset in bytes


class _Work:
    """A step, and what it was last run with."""

    def __init__(self, step: ProgramStep, at: int) -> None:
        self.step = step
        self.at = at  # where its numbers lie in the prepared program's
        self.program = step.program
        self.buffers = self.program.kernel.buffers
        self.values: Sequence[Any] | None = None
        self.sizes: dict[str, int] = {}
        self.offsets: list[int] = []
        self.shared: frozenset[int] = frozenset()
        self.windows: Windows = ()
        self.form: Pipeline | None = None
        self.x = self.y = self.workers = 0
        self.scratch: list[int] = []  # bytes of each scratch buffer that is bound
        self.pools: list[_Pool] = []
        self.bound: dict[tuple[int, ...], Any] = {}  # bind groups by what they bind

    @property
    def shape(self) -> tuple[Any, ...]:
        """All that dispatches of it depend on, but for the memory that they are given."""
        return self.form, self.x, self.y, self.workers, self.offsets

    def most_bytes(self) -> int:
        """What its numbers take at most."""
        words = 8 + len(self.buffers) + 2 * len(self.program.slots)
        return -(-4 * words // _ALIGNMENT) * _ALIGNMENT

    def blocks(self, slots: Sequence[Block]) -> list[Block | None]:
        """Where each buffer lies; None for scratch."""
        found: list[Block | None] = []
        for place in self.step.buffers:
            if place is None:
                found.append(None)
            else:
                memory, offset = slots[place[0]]
                found.append((memory, offset + place[1]))
        return found + [None] * (len(self.buffers) - len(found))

    def set_values(self, values: Sequence[Any], context: Any) -> None:
        """Choose the form of the kernel, and the shape of the grid, for these numbers."""
        self.values = None  # until all is done: making the form may fail, now and the next time
        grid = int(values[0])
        self.sizes = dict(zip(self.program.slots, values[1:], strict=True))
        needs = self.program.needs(self.sizes)
        self.form = self.program.form(*needs, self.shared, self.windows)
        shader, target = self.form.shader, context.shader_target
        groups = -(-grid // shader.threads) if shader.per_thread else grid
        per_group = shader.threads if shader.per_thread else 1
        if shader.scratch:
            needed = sum(
                shader.scratch_elements(i, self.sizes) * nbytes for i, nbytes in shader.scratch
            )
            affordable = max(1, _SCRATCH // max(1, needed * per_group))
            groups = min(groups, affordable, target.max_workgroups)
        self.workers = groups * per_group
        self.scratch = [
            shader.scratch_elements(i, self.sizes) * nbytes * self.workers
            for i, nbytes in shader.scratch
        ]
        self.x = max(1, min(groups, target.max_workgroups))
        self.y = -(-groups // self.x)
        self.values = values

    def renew(self, values: Sequence[Any], image: bytearray) -> bool:
        """Take on other numbers in place, where all sizes are the same; whether they are."""
        assert self.form is not None
        assert self.values is not None
        if values[0] != self.values[0]:
            return False
        changed = {}
        for slot, old, new in zip(self.program.slots, self.values[1:], values[1:], strict=True):
            if old != new:
                if slot in self.program.sizes:
                    return False
                changed[slot] = new
        self.values = values
        self.sizes.update(changed)
        words = self.form.words
        repack([words[slot] for slot in changed], changed, image, self.at)
        return True


Call = tuple[Any, Any, int, int, "_Copies"]  # pipeline, bind group, groups along x and y


@dataclass(slots=True)
class _Known:
    """The dispatches of a run on a certain set of memory; None for those that are made each time,
    because they take memory for the run."""

    state: int  # of the program's shapes and offsets: see `Prepared._state`
    calls: list[Call | None]


class Prepared:
    """A list of kernels with places for what changes from run to run."""

    def __init__(self, runtime: WebGpuRuntime, steps: Sequence[ProgramStep], slots: int) -> None:
        self._runtime = runtime
        self._context = runtime.context
        self._works: list[_Work] = []
        at = 0
        for step in steps:
            work = _Work(step, at)
            self._works.append(work)
            at += work.most_bytes()
        self._image = bytearray(at)  # the numbers of all steps
        self._numbers: Any = None
        self._state = 0  # changes whenever a step's form, grid or offsets do
        self._values: Sequence[Any] = ()  # of the last run
        self._known: OrderedDict[tuple[int, ...], _Known] = OrderedDict()

    def run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        """Encode all steps and hand them over."""
        context = self._runtime.context
        if context.lost:
            raise lost(context)
        with self._runtime.lock:
            if context is not self._context:  # the device was lost, and is another one now
                self._context, self._numbers = context, None
                self._works = [_Work(work.step, work.at) for work in self._works]
                self._known.clear()
            try:
                self._run(addresses, values)
            except context.wgpu.GPUError as error:
                failure = context.check(error)
                if failure is error:
                    raise
                raise failure from error

    def _run(self, addresses: Sequence[int], values: Sequence[int | float]) -> None:
        context, find = self._context, self._runtime.memory_at
        slots = [(find(address >> SHIFT), address & _OFFSET) for address in addresses]
        if self._numbers is None:
            usage = context.wgpu.BufferUsage
            self._numbers = context.device.create_buffer(
                size=max(_ALIGNMENT, len(self._image)), usage=usage.UNIFORM | usage.COPY_DST
            )
            self._values = ()
        held: list[Memory] = []
        calls, stale = self._calls(tuple(addresses), slots, values, held)
        if not calls:
            return
        if stale:
            context.queue.write_buffer(self._numbers, 0, self._image)
        encoder = context.device.create_command_encoder()
        computing = encoder.begin_compute_pass()
        set_pipeline, set_group, dispatch = recorder(computing)
        last = None
        for pipeline, group, x, y, copies in calls:
            if copies.before:
                computing.end()
                for copy in copies.before:
                    encoder.copy_buffer_to_buffer(*copy)
                computing, last = encoder.begin_compute_pass(), None
                set_pipeline, set_group, dispatch = recorder(computing)
            if pipeline is not last:
                set_pipeline(pipeline)
                last = pipeline
            set_group(group)
            dispatch(x, y)
            if copies.after:
                computing.end()
                for copy in copies.after:
                    encoder.copy_buffer_to_buffer(*copy)
                computing, last = encoder.begin_compute_pass(), None
                set_pipeline, set_group, dispatch = recorder(computing)
        computing.end()
        number = context.submit([encoder.finish()])
        for memory, _ in slots:
            memory.fence = number

    def _calls(
        self,
        key: tuple[int, ...],
        slots: Sequence[Block],
        values: Sequence[int | float],
        held: list[Memory],
    ) -> tuple[list[Call], bool]:
        """What to dispatch, and whether any number of a step has changed."""
        known = self._known.get(key)
        stale = False
        if known is not None and known.state == self._state:
            renewed = self._renew(values)
            if renewed is not None:
                stale = renewed
                calls = known.calls
                if None in calls:
                    calls = [
                        call if call is not None else self._call(work, slots, held)
                        for work, call in zip(self._active(values), calls, strict=True)
                    ]
                return [call for call in calls if call is not None], stale
        at, made, kept = 0, [], []
        for work in self._works:
            count = len(work.program.slots) + 1
            given = values[at : at + count]
            at += count
            if not given[0]:
                continue
            stale = self._settle(work, given, work.blocks(slots)) or stale
            made.append(self._call(work, slots, held))
            fleeting = work.scratch or work.pools
            # without `made`'s hold on what other steps were given for this run
            kept.append(None if fleeting else (*made[-1][:4], _NO_COPIES))
        self._values = list(values)
        self._known[key] = _Known(self._state, kept)
        if len(self._known) > _MOST_KNOWN:
            self._known.popitem(last=False)
        return made, stale

    def _renew(self, values: Sequence[int | float]) -> bool | None:
        """Take on the numbers of a run; whether any has changed, None where sizes have."""
        if values == self._values:
            return False
        at = 0
        for work in self._works:
            count = len(work.program.slots) + 1
            given = values[at : at + count]
            at += count
            if given == work.values or not (given[0] or work.values):
                continue  # the same as before, or nothing to do, then as now
            if not work.values or not work.renew(given, self._image):
                self._values = ()
                return None
        self._values = list(values)
        return True

    def _active(self, values: Sequence[int | float]) -> list[_Work]:
        """The steps that have something to do."""
        at, found = 0, []
        for work in self._works:
            if values[at]:
                found.append(work)
            at += len(work.program.slots) + 1
        return found

    def _call(self, work: _Work, slots: Sequence[Block], held: list[Memory]) -> Call:
        """The dispatch of a step whose numbers are settled."""
        copies = _Copies(held)
        group = self._group(work, work.blocks(slots), copies)
        assert work.form is not None
        return work.form.pipeline, group, work.x, work.y, copies

    def _settle(self, work: _Work, values: Sequence[Any], blocks: list[Block | None]) -> bool:
        """Make a step's numbers those of this run; whether any of them changed."""
        written = {
            block[0].number
            for b, block in zip(work.buffers, blocks, strict=True)
            if block is not None and b.access == "write"
        }
        shared = frozenset(
            i
            for i, (b, block) in enumerate(zip(work.buffers, blocks, strict=True))
            if block is not None and b.access == "read" and block[0].number in written
        )
        most = self._context.shader_target.max_binding_bytes
        windows = tuple(
            (i, -(-block[0].buffer.size // most))
            for i, block in enumerate(blocks)
            if block is not None and block[0].buffer.size > most
        )
        before = work.shape
        facts = (shared, windows)
        same = work.values == values and (work.shared, work.windows) == facts
        if not same:
            work.shared, work.windows = facts
            work.set_values(values, self._context)
            if work.form is not before[0]:
                work.bound.clear()
        assert work.form is not None
        if work.form.shader.pooled:
            work.pools = self._pools(work, blocks)
        offsets = [
            self._start(work, i, block) // work.buffers[i].dtype.itemsize
            for i, block in enumerate(blocks)
            if block is not None
        ]
        if same and work.offsets == offsets:
            return False
        work.offsets = offsets
        self._state += work.shape != before
        numbers = pack(work.form.shader, (0, work.x, work.workers, 0, *offsets), work.sizes)
        self._image[work.at : work.at + len(numbers)] = numbers
        return True

    def _start(self, work: _Work, which: int, block: Block) -> int:
        """Where a buffer starts in what is bound for it, in bytes."""
        for pool in work.pools:
            if which in pool.buffers:
                return pool.starts[block[0].number] + block[1]
        return block[1]

    def _pools(self, work: _Work, blocks: list[Block | None]) -> list[_Pool]:
        """Where memory lies that is bound together with other memory."""
        assert work.form is not None
        scratch = {i for i, _ in work.form.shader.scratch}
        pools = []
        for which in work.form.shader.bound:
            if scratch.isdisjoint(which):
                pool = _Pool(which, {}, 0)
                for i in which:
                    block = blocks[i]
                    assert block is not None
                    if block[0].number not in pool.starts:
                        pool.starts[block[0].number] = pool.nbytes
                        pool.nbytes += -(-block[0].nbytes // _ALIGNMENT) * _ALIGNMENT
                pools.append(pool)
        return pools

    def _group(self, work: _Work, blocks: list[Block | None], copies: _Copies) -> Any:
        """The bind group for these buffers."""
        assert work.form is not None
        shader = work.form.shader
        given = list(blocks)
        for (i, _), nbytes in zip(shader.scratch, work.scratch, strict=True):
            given[i] = (copies.hold(self._runtime.pool.allocate(nbytes)), 0)
        for pool in work.pools:
            whole = copies.hold(self._runtime.pool.allocate(pool.nbytes))
            copies.add(work, pool, blocks, whole)
            for i in pool.buffers:
                given[i] = (whole, 0)
        places: list[tuple[Any, int]] = []
        key: list[int] = []
        most = self._context.shader_target.max_binding_bytes
        for (i, *_), window in zip(shader.bound, shader.windows, strict=True):
            block = given[i]
            assert block is not None
            places.append((block[0].buffer, window * most))
            key.append(block[0].number)
        found = work.bound.get(tuple(key))
        if found is None:
            if len(work.bound) >= _MOST_GROUPS:
                work.bound.clear()
            entries = [_entry(0, self._numbers, work.at, shader.words * 4)]
            entries += [
                _entry(n + 1, buffer, start, min(most, buffer.size - start))
                for n, (buffer, start) in enumerate(places)
            ]
            found = work.bound[tuple(key)] = self._context.device.create_bind_group(
                layout=work.form.layout, entries=entries
            )
        return found


@dataclass(slots=True)
class _Pool:
    """Buffers that share a binding: where each memory starts in it, and how large it is."""

    buffers: tuple[int, ...]
    starts: dict[int, int]
    nbytes: int


Copy = tuple[Any, int, Any, int, int]  # from a buffer at an offset to another, so many bytes


@dataclass(slots=True)
class _Copies:
    """Memory that a step is given for its run, and what is copied there before and back after."""

    held: list[Memory]
    before: list[Copy] = field(default_factory=list)
    after: list[Copy] = field(default_factory=list)

    def hold(self, memory: Memory) -> Memory:
        """Keep memory until the work is handed over."""
        self.held.append(memory)
        return memory

    def add(self, work: _Work, pool: _Pool, blocks: list[Block | None], whole: Memory) -> None:
        """Copy all memory of a pool in, and back what the step writes."""
        done = set()
        sizes = work.step.nbytes
        for i in pool.buffers:
            block = blocks[i]
            assert block is not None
            memory, offset = block
            start = pool.starts[memory.number]
            if memory.number not in done:
                done.add(memory.number)
                nbytes = -(-memory.nbytes // 4) * 4
                self.before.append((memory.buffer, 0, whole.buffer, start, nbytes))
            if work.buffers[i].access == "write":
                nbytes = sizes[i] if sizes is not None else memory.nbytes - offset
                nbytes = -(-nbytes // 4) * 4
                self.after.append((whole.buffer, start + offset, memory.buffer, offset, nbytes))


_NO_COPIES = _Copies([])


def _entry(binding: int, buffer: Any, offset: int, size: int) -> dict[str, Any]:
    return {"binding": binding, "resource": {"buffer": buffer, "offset": offset, "size": size}}
